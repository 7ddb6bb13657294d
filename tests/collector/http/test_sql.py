"""Requests for SQL are read as they were meant, or refused by name."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuwarden.query import QueryError
from gpuwarden_collector.http.sql import Form, sql_request_of


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.JSON),
        ("*/*", Form.JSON),
        ("text/csv", Form.CSV),
        ("text/html, text/csv;q=0.9", Form.CSV),
        ("application/vnd.apache.arrow.stream", Form.ARROW),
        ("application/vnd.apache.parquet", Form.PARQUET),
        ("APPLICATION/JSON", Form.JSON),
    ],
)
def test_accept_chooses_the_form(accept: str, form: Form) -> None:
    assert sql_request_of(b"SELECT 1", "text/plain", accept).form is form


def test_json_carries_parameters_and_instants() -> None:
    params = {"n": 1, "s": None, "l": [1, "x"], "now": {"timestamp": "2026-01-01T00:00:00Z"}}
    body = json.dumps({"sql": "SELECT $n", "params": params}).encode()
    asked = sql_request_of(body, "application/json", "")
    assert asked.sql == "SELECT $n"
    assert asked.params == {**params, "now": datetime(2026, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "not UTF-8"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", '"sql", a text'),
        (b"{}", '"sql", a text'),
        (b'{"sql": 1}', '"sql", a text'),
        (b'{"sql": "x", "limit": 1}', "unknown key 'limit'"),
        (b'{"sql": "x", "params": [1]}', '"params" must be an object'),
        (b'{"sql": "x", "params": []}', '"params" must be an object'),
        (b'{"sql": "SELECT \'\\ud800\'"}', "surrogates not allowed"),
        (b'{"sql": "x", "params": {"a": "\\ud800"}}', "surrogates not allowed"),
        (
            b'{"sql": "x", "params": {"a": {"timestamp": "0001-01-01T00:00:00+14:00"}}}',
            "parameter $a is not an ISO",
        ),
        (b'{"sql": "x", "params": {"a": {"b": 1}}}', "parameter $a must be"),
        (b'{"sql": "x", "params": {"a": {"timestamp": "soon"}}}', "parameter $a is not an ISO"),
    ],
)
def test_wrong_requests_are_refused_by_name(body: bytes, reason: Any) -> None:
    with pytest.raises(QueryError) as refused:
        sql_request_of(body, "application/json", "")
    assert reason in str(refused.value)
