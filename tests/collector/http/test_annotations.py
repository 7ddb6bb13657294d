"""Annotations over HTTP: scopes, rubbish, time and place."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuwarden.access import Scope
from gpuwarden.annotation import annotation_of
from gpuwarden.schema import ANNOTATIONS
from gpuwarden_collector.storage.maintenance import forget_alerts
from gpuwarden_collector.storage.schemas import arrow_schema
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

PATH = "/v1/annotations"


@pytest.fixture
def asked(session: Any, bearer: Any) -> Any:
    async def ask(
        collector: Any, method: str, path: str, token: Any, document: Any = None
    ) -> tuple[int, Any]:
        async with session.request(
            method, collector.url + path, json=document, headers=bearer(token)
        ) as answer:
            return answer.status, await answer.json() if answer.content_length else None

    return ask


async def test_readers_see_and_do_not_change_and_editors_do_not_administer(
    start: Any, asked: Any, grant: Any
) -> None:
    reader, editor = (grant(scope) for scope in (Scope.READ, Scope.EDIT))
    async with start(require_tokens=True) as collector:
        text = {"text": "<script>alert(1)</script>"}
        status, said = await asked(collector, "POST", PATH, reader, text)
        assert status == 403 and "gpuwarden token create --scope edit" in said["error"]
        status, made = await asked(collector, "POST", PATH, editor, text)
        assert status == 201
        gone = f"{PATH}/{made['id']}"
        assert (await asked(collector, "DELETE", gone, reader))[0] == 403
        _, said = await asked(collector, "GET", f"{PATH}?begin=2020-01-01&end=2100-01-01", reader)
        assert [one["text"] for one in said["annotations"]] == [text["text"]]
        assert (await asked(collector, "POST", "/v1/sql", editor, {"sql": "SELECT 1"}))[0] == 200
        assert (await asked(collector, "DELETE", "/v1/nodes/n1", editor))[0] == 403


async def test_rubbish_is_refused_in_words(
    start: Any, asked: Any, grant: Any, session: Any, bearer: Any
) -> None:
    ada = grant(Scope.EDIT)
    async with start(require_tokens=True) as collector:
        for text in ({}, {"text": ""}, {"text": "x", "at": "soon"}, [], "x"):
            assert (await asked(collector, "POST", PATH, ada, text))[0] == 400, text
        assert (await asked(collector, "POST", PATH, ada, {"text": "x" * 600_000}))[0] == 413
        for body in (b"", b"{", b"[" * 50_000, b"\xff"):
            headers = {"Content-Type": "application/json", **bearer(ada)}
            async with session.post(collector.url + PATH, data=body, headers=headers) as answer:
                assert answer.status == 400, body[:10]
        async with session.post(collector.url + PATH, data="{}", headers=bearer(ada)) as answer:
            assert answer.status == 415  # what a form of another site's page could send
        for wrong in (
            "begin=soon",
            "end=0001-01-01",
            "begin=2026-01-01&end=0001-01-01",
            "end=9999-12-31",
        ):
            status, said = await asked(collector, "GET", f"{PATH}?{wrong}", ada)
            assert status == 400 and "must be a time from 1970 to 9998" in said["error"], wrong
        assert (await asked(collector, "GET", f"{PATH}?end=1970-01-01", ada))[0] == 200


async def test_annotations_are_listed_by_time_and_place_and_seen_in_sql(
    start: Any, asked: Any, grant: Any, clock: Any
) -> None:
    ada = grant(Scope.EDIT, comment="ada")
    async with start(require_tokens=True) as collector:
        for document in (
            {"text": "all"},
            {"text": "node", "node": "n1"},
            {"text": "gpu", "node": "n1", "gpu": 1, "tags": ["a"]},
            {"text": "job", "job": "7"},
            {"text": "job's gpu", "node": "n1", "gpu": 3, "job": "7"},
            {"text": "old", "at": "2020-01-01", "until": "2020-01-02"},
        ):
            assert (await asked(collector, "POST", PATH, ada, document))[0] == 201

        async def texts(query: str) -> list[str]:
            _, said = await asked(collector, "GET", PATH + query, ada)
            return sorted(one["text"] for one in said["annotations"])

        end = f"end={int(clock.now().timestamp() * 1000) + 1}"
        assert await texts(f"?{end}") == ["all", "gpu", "job", "job's gpu", "node"]
        assert await texts(f"?{end}&node=n1") == ["all", "gpu", "job's gpu", "node"]
        assert await texts(f"?{end}&node=n1&gpu=3") == ["all", "job's gpu", "node"]
        assert await texts(f"?{end}&node=n2&job=7") == ["all", "job"]
        assert await texts(f"?{end}&node=n1&gpu=0") == ["all", "node"]
        assert await texts(f"?{end}&job=7") == ["all", "job", "job's gpu"]
        assert await texts("?begin=2020-01-01T12:00&end=2020-01-03") == ["old"]
        sql = {"sql": "SELECT id, text, tags, author FROM annotations WHERE gpu = 1"}
        _, said = await asked(collector, "POST", "/v1/sql", ada, sql)
        ((name, *rest),) = said["rows"]
        assert rest == ["gpu", ["a"], "ada"]
        assert (await asked(collector, "DELETE", f"{PATH}/{name}", ada))[0] == 204
        assert (await asked(collector, "DELETE", f"{PATH}/{name}", ada))[0] == 404
        _, said = await asked(collector, "POST", "/v1/sql", ada, sql)
        assert said["rows"] == []


def test_annotations_are_forgotten_with_past_alerts(tmp_path: Path) -> None:
    state = StateFile(tmp_path / FILE_NAME)
    schema = arrow_schema(ANNOTATIONS.columns)
    now = datetime(2026, 5, 1, tzinfo=UTC)
    ends = {"old": None, "long": now.isoformat(), "new": None}
    with state.writing() as writing:
        for days, (text, until) in zip((40, 40, 1), ends.items(), strict=True):
            document = {"text": text, "at": (now - timedelta(days=days)).isoformat()}
            document |= {} if until is None else {"until": until}
            row = annotation_of(document, name=text, author=None, now=now).row
            naive = {
                k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()
            }
            writing.upsert(ANNOTATIONS.name, pa.Table.from_pylist([naive], schema=schema))
    assert forget_alerts(state, now - timedelta(days=30))["annotations"] == 1
    left = state.annotations(now - timedelta(days=99), now, 10)
    assert [row["text"] for row in left] == ["long", "new"]
    state.close()
