"""Dashboards and annotations over HTTP: versions, conflicts, scopes, rubbish, a restart, a backup."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuwarden.access import Scope
from gpuwarden.annotation import annotation_of
from gpuwarden.clock import ManualClock
from gpuwarden.dashboard import DELETED_KEPT, VERSIONS_MAX
from gpuwarden.schema import ANNOTATIONS
from gpuwarden_collector.http.dashboards import DashboardEndpoints
from gpuwarden_collector.storage.maintenance import forget_alerts
from gpuwarden_collector.storage.schemas import arrow_schema
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

PATH = "/v1/dashboards"
EVIL = "<script>alert(1)</script>"
PANEL = {"title": EVIL, "kind": "table", "sql": "SELECT 1", "width": 6, "height": 4}


def board(title: str = "Training", panels: int = 1) -> dict[str, Any]:
    return {"title": title, "panels": [PANEL] * panels}


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


async def test_a_save_is_a_version_and_nobody_overwrites_what_another_saved(
    start: Any, asked: Any, grant: Any, data_dir: Path, tmp_path: Path
) -> None:
    ada, bob = grant(Scope.EDIT, comment="ada"), grant(Scope.EDIT, comment="bob")
    async with start(require_tokens=True) as collector:
        status, said = await asked(collector, "PUT", f"{PATH}/team-a?version=0", ada, board())
        assert (status, said["version"], said["author"]) == (200, 1, "ada")
        status, said = await asked(collector, "PUT", f"{PATH}/team-a?version=0", bob, board())
        assert (status, said["error"]) == (
            409,
            "there is a dashboard team-a (Training): choose another name",
        )
        both = [
            asked(collector, "PUT", f"{PATH}/team-a?version=1", token, board(title))
            for token, title in ((ada, "A"), (bob, "B"))
        ]
        answers = await asyncio.gather(*both)
        assert sorted(status for status, _ in answers) == [200, 409]
        (refused,) = (said for status, said in answers if status == 409)
        assert refused["newest"] == 2
        assert "has saved version 2 meanwhile, and this changes version 1" in refused["error"]
        await asked(collector, "PUT", f"{PATH}/team-a?version=2", bob, board("C", 2))
    async with start(require_tokens=True) as collector:
        _, said = await asked(collector, "GET", f"{PATH}/team-a", bob)
        assert (said["version"], said["newest"], said["dashboard"]) == (3, 3, board("C", 2))
        _, said = await asked(collector, "GET", f"{PATH}/team-a?version=1", bob)
        assert (said["version"], said["newest"], said["dashboard"]) == (1, 3, board())
        assert (await asked(collector, "GET", f"{PATH}/team-a?version=9", bob))[0] == 404
        for number in (0, 2):
            wrong = f"{PATH}/team-a?version={number}"
            status, said = await asked(collector, "DELETE", wrong, bob)
            assert (status, said["newest"]) == (409, 3)
            assert f"is 3, and this deletes version {number}: read it again" in said["error"]
        assert (await asked(collector, "DELETE", f"{PATH}/team-a?version=3", bob))[0] == 204
        assert (await asked(collector, "DELETE", f"{PATH}/team-a", bob))[0] == 404
        assert (await asked(collector, "GET", f"{PATH}/team-a", bob))[0] == 404
        _, said = await asked(collector, "GET", PATH, bob)
        assert (said["dashboards"], [one["name"] for one in said["deleted"]]) == ([], ["team-a"])
        _, said = await asked(collector, "GET", f"{PATH}/team-a/versions", bob)
        assert [(one["version"], one["deleted"]) for one in said["versions"]] == [
            (4, True), (3, False), (2, False), (1, False),
        ]  # fmt: skip
        _, said = await asked(collector, "PUT", f"{PATH}/team-a?version=0", bob, board("D"))
        assert said["version"] == 5
    state = StateFile(data_dir / FILE_NAME)
    state.backup(tmp_path / FILE_NAME)
    state.close()
    copy = StateFile(tmp_path / FILE_NAME, is_read_only=True)
    assert json.loads(copy.dashboard("team-a", 5) or b"") == board("D")
    copy.close()


async def test_old_versions_are_forgotten(start: Any, asked: Any, grant: Any) -> None:
    ada = grant(Scope.EDIT)
    async with start(require_tokens=True) as collector:
        for number in range(VERSIONS_MAX + 2):
            path = f"{PATH}/a?version={number}"
            assert (await asked(collector, "PUT", path, ada, board(str(number))))[0] == 200
        _, said = await asked(collector, "GET", f"{PATH}/a/versions", ada)
        versions = [one["version"] for one in said["versions"]]
        assert versions == [*range(VERSIONS_MAX + 2, 2, -1)]


async def test_one_save_does_not_read_the_versions_of_other_dashboards(
    start: Any, asked: Any, grant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = grant(Scope.EDIT)
    read = []
    ask = StateFile.dashboard_versions

    def noted(state: StateFile, name: str | None = None) -> Any:
        read.append(name)
        return ask(state, name)

    monkeypatch.setattr(StateFile, "dashboard_versions", noted)
    async with start(require_tokens=True) as collector:
        for name in ("a", "b"):
            for number in range(2):
                path = f"{PATH}/{name}?version={number}"
                assert (await asked(collector, "PUT", path, ada, board(name)))[0] == 200
        assert (await asked(collector, "DELETE", f"{PATH}/a?version=2", ada))[0] == 204
        _, said = await asked(collector, "GET", PATH, ada)
    assert [(one["name"], one["version"]) for one in said["dashboards"]] == [("b", 2)]
    assert [(one["name"], one["version"]) for one in said["deleted"]] == [("a", 3)]
    assert set(read) == {"a", "b"}


async def test_a_dashboard_that_was_deleted_long_ago_goes_with_the_next_save_of_another(
    tmp_path: Path,
) -> None:
    state = StateFile(tmp_path / FILE_NAME)
    clock = ManualClock(datetime(2026, 5, 1, tzinfo=UTC))
    app = web.Application()
    app.add_routes(DashboardEndpoints(state, clock).routes())
    async with TestClient(TestServer(app)) as client:
        assert (await client.put(f"{PATH}/a?version=0", json=board())).status == 200
        assert (await client.delete(f"{PATH}/a")).status == 204
        clock.advance(DELETED_KEPT.total_seconds() + 1)
        assert (await client.put(f"{PATH}/b?version=0", json=board())).status == 200
        said = await (await client.get(PATH)).json()
    assert ([one["name"] for one in said["dashboards"]], said["deleted"]) == (["b"], [])
    assert state.dashboard_versions("a") == []
    assert state.dashboard_bytes() == sum(one.size_bytes for one in state.dashboard_versions())
    state.close()


async def test_readers_see_and_do_not_change_and_editors_do_not_administer(
    start: Any, asked: Any, grant: Any
) -> None:
    reader, editor, admin = (grant(scope) for scope in (Scope.READ, Scope.EDIT, Scope.ADMIN))
    async with start(require_tokens=True) as collector:
        assert (await asked(collector, "PUT", f"{PATH}/a?version=0", admin, board()))[0] == 200
        status, said = await asked(collector, "PUT", f"{PATH}/a?version=1", reader, board())
        assert status == 403 and "gpuwarden token create --scope edit" in said["error"]
        assert (await asked(collector, "DELETE", f"{PATH}/a", reader))[0] == 403
        assert (await asked(collector, "GET", f"{PATH}/a", reader))[0] == 200
        text = {"text": EVIL}
        assert (await asked(collector, "POST", "/v1/annotations", reader, text))[0] == 403
        status, made = await asked(collector, "POST", "/v1/annotations", editor, text)
        assert status == 201
        gone = f"/v1/annotations/{made['id']}"
        assert (await asked(collector, "DELETE", gone, reader))[0] == 403
        assert (await asked(collector, "POST", "/v1/sql", editor, {"sql": "SELECT 1"}))[0] == 200
        assert (await asked(collector, "DELETE", "/v1/nodes/n1", editor))[0] == 403


async def test_rubbish_is_refused_in_words(
    start: Any, asked: Any, grant: Any, session: Any, bearer: Any
) -> None:
    ada = grant(Scope.EDIT)
    async with start(require_tokens=True) as collector:
        path = f"{PATH}/a?version=0"
        for document in ([], 5, "x", {"title": 1}, {"title": "a", "panels": [{}]}):
            status, said = await asked(collector, "PUT", path, ada, document)
            assert status == 422 and said["error"] == said["problems"][0], document
        assert (await asked(collector, "PUT", f"{PATH}/a", ada, board()))[0] == 400
        assert (await asked(collector, "PUT", f"{PATH}/a?version=-1", ada, board()))[0] == 400
        status, said = await asked(collector, "PUT", f"{PATH}/A%2Fb?version=0", ada, board())
        assert status == 400 and "lowercase letters" in said["error"]
        assert (await asked(collector, "PUT", path, ada, board("x" * 600_000)))[0] == 413
        for body in (b"", b"{", b"[" * 100_000, b"\xff"):
            headers = {"Content-Type": "application/json", **bearer(ada)}
            async with session.put(collector.url + path, data=body, headers=headers) as answer:
                assert answer.status == 400, body[:10]
        async with session.put(collector.url + path, data="{}", headers=bearer(ada)) as answer:
            assert answer.status == 415  # what a form of another site's page could send
        for text in ({}, {"text": ""}, {"text": "x", "at": "soon"}, [], "x"):
            assert (await asked(collector, "POST", "/v1/annotations", ada, text))[0] == 400, text
        for wrong in (
            "begin=soon",
            "end=0001-01-01",
            "begin=2026-01-01&end=0001-01-01",
            "end=9999-12-31",
        ):
            status, said = await asked(collector, "GET", f"/v1/annotations?{wrong}", ada)
            assert status == 400 and "must be a time from 1970 to 9998" in said["error"], wrong
        assert (await asked(collector, "GET", "/v1/annotations?end=1970-01-01", ada))[0] == 200


async def test_annotations_are_listed_by_time_and_place_and_seen_in_sql(
    start: Any, asked: Any, grant: Any, clock: Any
) -> None:
    ada = grant(Scope.EDIT, comment="ada")
    path = "/v1/annotations"
    async with start(require_tokens=True) as collector:
        for document in (
            {"text": "all"},
            {"text": "node", "node": "n1"},
            {"text": "gpu", "node": "n1", "gpu": 1, "tags": ["a"]},
            {"text": "job", "job": "7"},
            {"text": "job's gpu", "node": "n1", "gpu": 3, "job": "7"},
            {"text": "old", "at": "2020-01-01", "until": "2020-01-02"},
        ):
            assert (await asked(collector, "POST", path, ada, document))[0] == 201

        async def texts(query: str) -> list[str]:
            _, said = await asked(collector, "GET", path + query, ada)
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
        assert rest == ["gpu", '["a"]', "ada"]
        assert (await asked(collector, "DELETE", f"{path}/{name}", ada))[0] == 204
        assert (await asked(collector, "DELETE", f"{path}/{name}", ada))[0] == 404
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
