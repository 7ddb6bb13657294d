"""Asking a collector, and what a person reads when that fails."""

import socket

import pytest

from gpuwarden_cli.client import Answer, CallError, ask, collector_url

ROWS = {"columns": [{"name": "n", "type": "BIGINT"}], "rows": [[1]], "truncated": False}


def test_rows_come_back_with_their_columns(answering) -> None:
    asked = answering(200, ROWS)
    assert ask("select 1 as n") == Answer(["n"], [[1]], False)
    assert asked == [{"path": "/v1/sql", "sql": "select 1 as n"}]


def test_a_refusal_is_the_collectors_own_sentence(answering) -> None:
    answering(400, {"error": "Table gpu does not exist", "status": 400})
    with pytest.raises(CallError, match="^Table gpu does not exist$"):
        ask("select * from gpu")


def test_a_refusal_without_a_sentence_names_the_status(answering) -> None:
    answering(502, b"<html>proxy</html>")
    with pytest.raises(CallError, match="/v1/sql answered 502 Bad Gateway"):
        ask("select 1")


def test_something_else_that_answers_is_not_a_collector(answering) -> None:
    answering(200, b"hello")
    with pytest.raises(CallError, match="does not answer like a gpuwarden collector"):
        ask("select 1")


def test_nobody_there_is_said_with_what_to_do(monkeypatch) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        monkeypatch.setenv("GPUWARDEN_URL", f"http://127.0.0.1:{sock.getsockname()[1]}")
        with pytest.raises(
            CallError, match=r"\(connection refused\): start one with `gpuwarden up`"
        ):
            ask("select 1")


def test_a_url_without_scheme_is_refused() -> None:
    with pytest.raises(CallError, match="must start with http://"):
        ask("select 1", url="localhost:8750")


def test_the_default_is_this_machine(monkeypatch) -> None:
    monkeypatch.delenv("GPUWARDEN_URL", raising=False)
    assert collector_url() == "http://127.0.0.1:8750"
