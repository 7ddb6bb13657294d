"""What people do is in `audit` before they get the answer, with who, from where and how it ended; nobody changes it there."""

import asyncio
import json
from typing import Any

import pytest

from gpuwarden.access import Scope
from gpuwarden_collector.auth.scopes import NEEDS
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.ops import audit as module
from gpuwarden_collector.ops.audit import ACTIONS, NOT_AUDITED, action_of

SQL = "SELECT username, token, scope, address, action, target, outcome, status, details FROM audit ORDER BY number"
SAFE = ("GET", "HEAD")


async def rows(session: Any, url: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    async with session.post(url + "/v1/sql", data=SQL, headers=headers) as answer:
        found = await answer.json()
    names = [column["name"] for column in found["columns"]]
    return [dict(zip(names, row, strict=True)) for row in found["rows"]]


def test_each_endpoint_that_changes_something_is_audited() -> None:
    for method, path in NEEDS:
        if method not in SAFE:
            assert (action_of(method, path) is None) == ((method, path) in NOT_AUDITED), (
                method,
                path,
            )
    assert set(ACTIONS) | NOT_AUDITED <= set(NEEDS)
    assert {key for key in NEEDS if key[0] not in SAFE} <= set(ACTIONS) | NOT_AUDITED
    assert action_of("PUT", "/v1/of-tomorrow") == "PUT /v1/of-tomorrow"


async def test_done_and_refused_actions_are_there_when_the_answer_comes(
    start: Any, session: Any, grant: Any, bearer: Any
) -> None:
    admin, editor = grant(Scope.ADMIN, comment="ada"), grant(Scope.EDIT, comment="eve")
    async with start(require_tokens=True) as collector:
        url = collector.url

        async def asks(method: str, path: str, token: Any, **more: Any) -> int:
            async with session.request(method, url + path, headers=bearer(token), **more) as answer:
                return int(answer.status)

        assert await asks("POST", "/v1/annotations", editor, json={"text": "deployed 2.3"}) == 201
        assert await asks("DELETE", "/v1/nodes/n1", editor) == 403
        assert await asks("DELETE", "/v1/nodes/n1", admin) == 404
        assert await asks("POST", "/v1/annotations", editor, json={"text": ""}) == 400
        found = [
            row
            for row in await rows(session, url, bearer(admin))
            if not row["action"].startswith("token_")
        ]
        assert [
            (r["username"], r["action"], r["outcome"], r["status"], r["target"]) for r in found
        ] == [
            ("eve", "annotate", "done", 201, None),
            ("eve", "forget_node", "refused", 403, "n1"),
            ("ada", "forget_node", "refused", 404, "n1"),
            ("eve", "annotate", "refused", 400, None),
        ]
        assert json.loads(found[0]["details"])["text"] == "deployed 2.3"
        assert {row["address"] for row in found} == {"127.0.0.1"}
        assert (found[0]["token"], found[0]["scope"]) == (editor.id, "edit")
        own = await rows(session, url, bearer(editor))
        assert {row["username"] for row in own} == {"eve"} and len(own) == 3


async def test_requests_without_a_valid_token_are_not_listed(
    start: Any, session: Any, grant: Any, bearer: Any
) -> None:
    admin = grant(Scope.ADMIN)
    async with start(require_tokens=True) as collector:
        for headers in ({}, {"Authorization": "Bearer gw_read_x"}):
            async with session.post(
                collector.url + "/v1/annotations", headers=headers, data="{}"
            ) as answer:
                assert answer.status == 401
        cross = {"Origin": "https://evil.example", **bearer(admin)}
        async with session.post(
            collector.url + "/v1/annotations", headers=cross, data="{}"
        ) as answer:
            assert answer.status == 403
        form = {"token": "wrong", "next": "/"}
        async with session.post(
            collector.url + "/login", data=form, allow_redirects=False
        ) as answer:
            assert answer.status == 303
        assert await rows(session, collector.url, bearer(admin)) == []
        form = {"token": admin.text, "next": "/"}
        async with session.post(
            collector.url + "/login", data=form, allow_redirects=False
        ) as answer:
            assert answer.status == 303
        [row] = await rows(session, collector.url, bearer(admin))
        assert (row["action"], row["token"], row["details"]) == ("log_in", admin.id, None)
        assert admin.text not in json.dumps(row)


async def test_changes_of_the_file_of_tokens_are_listed(
    start: Any, session: Any, grant: Any, bearer: Any, data_dir: Any, clock: Any
) -> None:
    admin = grant(Scope.ADMIN)
    async with start(require_tokens=True) as collector:
        made = grant(Scope.READ, comment="grafana", team="vision")
        collector.reload()
        edit(data_dir / NAME, lambda store: (store.revoked([made.id]), None))
        collector.reload()

        async def listed() -> list[dict[str, Any]]:
            return await rows(session, collector.url, bearer(admin))

        async with asyncio.timeout(20):
            while len(found := await listed()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert [(row["action"], row["target"], row["address"]) for row in found] == [
        ("token_created", made.id, None), ("token_removed", made.id, None),
    ]  # fmt: skip
    assert found[0]["details"] == "scope read, team vision, comment grafana"


async def test_a_reader_cannot_fill_the_audit(
    start: Any, session: Any, grant: Any, bearer: Any, monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    monkeypatch.setattr(module, "A_MINUTE_MAX", 3)
    reader, admin = grant(Scope.READ, comment="bob"), grant(Scope.ADMIN)
    async with start(require_tokens=True) as collector:
        for number in range(8):
            body = {"name": f"q{number}", "sql": "SELECT 1"}
            async with session.post(
                collector.url + "/v1/queries", json=body, headers=bearer(reader)
            ) as answer:
                assert answer.status == 201
        assert len(await rows(session, collector.url, bearer(admin))) == 3
        clock.advance(60)
        async with asyncio.timeout(20):
            while len(found := await rows(session, collector.url, bearer(admin))) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert (found[-1]["action"], found[-1]["target"], found[-1]["details"]) == (
        "actions_not_listed", "bob", "5 more in a minute",
    )  # fmt: skip


async def test_a_store_that_takes_no_rows_leaves_the_action_in_the_log(
    start: Any, session: Any, grant: Any, bearer: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    from gpuwarden_collector.ingest.writer import Writer
    from gpuwarden_collector.storage.errors import StoreUnavailableError

    async def full(self: Any, changes: Any) -> None:
        raise StoreUnavailableError("no space left on device")

    admin = grant(Scope.ADMIN)
    async with start(require_tokens=True) as collector:
        monkeypatch.setattr(Writer, "write", full)
        async with session.delete(
            collector.url + "/v1/queries/none", headers=bearer(admin)
        ) as answer:
            assert answer.status == 404
    [record] = [r for r in caplog.records if r.message == "an action is not in the audit"]
    assert "delete_query" in record.action
