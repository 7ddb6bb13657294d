"""No endpoint shows a reader of one team a name of the others, over HTTP, PostgreSQL and MCP."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from tests.collector.made_up_store import LIMITS, move_all
from tests.collector.two_teams import OTHERS, OWN, SECRET, fill

from gpuwarden.access import Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector.auth.scopes import FOR_TEAMS, NEEDS, Anyone
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry, scram_of
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database

pytestmark = pytest.mark.slow

ACCESS = """
[teams.vision]
nodes = ["v*"]
users = ["vera"]
accounts = ["vi"]
namespaces = ["vision"]
"""
NAMES = {
    "/nodes/{node}": "node", "/gpus/{gpu_uuid}": "gpu_uuid", "/jobs/{name}": "job", "/users/{name}": "username",
    "/incidents/{id}": "id", "/alerts/{fingerprint}": "fingerprint", "/racks/{rack}": "node",
    "/v1/alerts/{fingerprint}/explanation": "fingerprint", "/v1/gpus/{gpu_uuid}/unable-rules": "gpu_uuid",
}  # fmt: skip
ASKED = {
    "/compare": "?gpus={gpu_uuid}", "/v1/search": "?q={node}", "/v1/series": "?node={node}&metrics=util_percent&last=600",
    "/v1/live": "?node={node}&metrics=util_percent", "/v1/timeline": "?node={node}&last=600", "/v1/health": "?node={node}",
    "/v1/coverage": "?node={node}&last=600", "/v1/topology": "?node={node}", "/v1/usual": "?gpu_uuid={gpu_uuid}&metrics=util_percent",
    "/v1/series/model": "?gpu_uuid={gpu_uuid}&metrics=util_percent&last=600", "/v1/map/nodes": "?node={node}",
    "/sql": "?q=FROM+nodes", "/prometheus/api/v1/query": "?query=%7B__name__%3D~%22.%2Butil_percent%22%7D",
    "/prometheus/api/v1/query_range": "?query=gpuwarden_gpu_util_percent&start={since}&end={now}&step=5",
    "/prometheus/api/v1/series": "?match[]=%7B__name__%3D~%22.%2Butil_percent%22%7D", "/prometheus/federate": "?match[]=%7B__name__%3D~%22.%2Butil_percent%22%7D",
    "/prometheus/api/v1/query_exemplars": "?query=up", "/v1/silences/preview": "?matcher=node={node}",
}  # fmt: skip


class Visitor:
    """Asks with a token."""

    def __init__(self, collector: Collector, token: Token) -> None:
        self.collector, self.token = collector, token
        headers = {
            "Authorization": f"Bearer {token.text}",
            "Accept": "text/html, application/json, text/event-stream",
        }
        self.session = aiohttp.ClientSession(headers=headers)

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        async with self.session.request(
            method, self.collector.url + path, allow_redirects=False, **more
        ) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    """A reader of vision, at a collector whose lake and segments have rows of others."""
    data, access = tmp_path / "data", tmp_path / "access.toml"
    access.write_text(ACCESS)
    data.mkdir()
    database = Database.open(data, LIMITS)
    for is_lake in (True, False):
        at = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=90 if is_lake else 10)
        fill(database, OWN, "own", at)
        fill(database, OTHERS, SECRET, at)
        if is_lake:
            move_all(database)
    database.close()
    token = Token.new(Scope.READ)
    entry = TokenEntry(
        token.id, Scope.READ, token.digest, datetime.now(UTC), team="vision", scram=scram_of(token)
    )
    edit(data / NAME, lambda store: (store.with_entry(entry), None))
    settings = CollectorSettings(
        port=0, postgres_port=0, data_dir=data, require_tokens=True, access_file=access
    )
    async with collecting(settings, SystemClock()) as collector:
        found = Visitor(collector, token)
        yield found
        await found.session.close()


def _path(path: str, names: dict[str, str]) -> str:
    now = int(datetime.now(UTC).timestamp())
    if path in NAMES:
        return path.partition("{")[0] + names[NAMES[path]] + path.partition("}")[2]
    at = {**names, "now": str(now), "since": str(now - 300)}
    filled = re.sub(r"{\w+}", "1", path.replace("{name}", "node"))
    return filled + ASKED.get(path, "").format(**at)


async def test_no_endpoint_shows_a_name_of_others(visitor: Visitor) -> None:
    shown, refused = set(), set()
    for method, path in sorted(NEEDS):
        body = {"data": b"{}"} if method in ("POST", "PUT") else {}
        status, text = await visitor.ask(method, _path(path, OWN), **body)
        assert SECRET not in text, (method, path)
        assert status < 500, (method, path, status, text[:300])
        if status == 200:
            shown.add((method, path))
        if (method, path) not in FOR_TEAMS and NEEDS[method, path] is not Anyone:
            assert status == 403, (method, path, status)
            refused.add((method, path))
    # What is asked for is there: nearly all show the team's own.
    empty = {path for method, path in FOR_TEAMS - shown if method == "GET"}
    assert empty == {"/racks/{rack}"}
    assert len(refused) > 20


async def test_things_of_others_are_as_those_that_do_not_exist(visitor: Visitor) -> None:
    nobody = {name: value.replace(SECRET, "nobodyat") for name, value in OTHERS.items()}
    assert len("nobodyat") == len(SECRET)
    for method, path in sorted(FOR_TEAMS):
        if method != "GET" or not (
            path in NAMES or "{node}" in ASKED.get(path, "") or "{gpu" in ASKED.get(path, "")
        ):
            continue
        (status, text), (of_none, none) = [
            await visitor.ask("GET", _path(path, names)) for names in (OTHERS, nobody)
        ]
        assert status == of_none, path
        assert len(text) == pytest.approx(len(none), abs=60), path


async def test_sql_over_each_protocol_shows_the_teams_rows(visitor: Visitor) -> None:
    asked = "SELECT node FROM nodes"
    status, text = await visitor.ask("POST", "/v1/sql", json={"sql": asked})
    assert (status, json.loads(text)["rows"]) == (200, [["v1"]])
    status, text = await visitor.ask("GET", "/prometheus/api/v1/label/node/values")
    assert json.loads(text)["data"] == ["v1"]
    assert visitor.collector.postgres is not None
    host, port = visitor.collector.postgres
    async with await psycopg.AsyncConnection.connect(
        host=host,
        port=port,
        user="any",
        password=visitor.token.text,
        dbname="gpuwarden",
        sslmode="disable",
    ) as connection:
        assert await (await connection.execute(asked)).fetchall() == [("v1",)]
        catalogue = await (await connection.execute("SELECT relname FROM pg_class")).fetchall()
        assert ("gpu_samples",) in catalogue and not [one for one in catalogue if "hot_" in one[0]]
    called = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "sql", "arguments": {"query": asked}},
    }
    status, text = await visitor.ask("POST", "/mcp", json=called)
    assert status == 200 and "v1" in text and SECRET not in text


async def test_a_team_that_is_gone_or_smaller_holds_for_the_next_request(
    visitor: Visitor, tmp_path: Path
) -> None:
    access = tmp_path / "access.toml"

    async def nodes() -> Any:
        status, text = await visitor.ask("POST", "/v1/sql", json={"sql": "SELECT node FROM nodes"})
        return json.loads(text)["rows"] if status == 200 else (status, json.loads(text)["error"])

    async def nodes_become(expected: Any) -> None:
        visitor.collector.reload()
        assert await nodes() == expected

    assert await nodes() == [["v1"]]
    access.write_text('[teams.vision]\nnodes = ["none"]\n')
    await nodes_become([])
    access.write_text("[teams.speech]\n")
    await nodes_become((403, "access_file has no team vision, to which this token belongs"))
    access.write_text("[teams.vision")
    await nodes_become((403, "access_file has no team vision, to which this token belongs"))


async def test_a_team_silences_its_own_nodes_and_sees_no_silence_of_others(
    visitor: Visitor, tmp_path: Path
) -> None:
    def granted(team: str | None) -> Token:
        token = Token.new(Scope.OPERATE)
        entry = TokenEntry(
            token.id, Scope.OPERATE, token.digest, datetime.now(UTC), comment="vera", team=team
        )
        edit(tmp_path / "data" / NAME, lambda store: (store.with_entry(entry), None))
        return token

    own, all_rows = (Visitor(visitor.collector, granted(team)) for team in ("vision", None))
    visitor.collector.reload()

    async def silences(one: Visitor, *matchers: str) -> tuple[int, Any]:
        asked = {"matchers": matchers, "for": "1h"}
        status, text = await one.ask("POST", "/v1/silences", json=asked)
        return status, json.loads(text)

    others = OTHERS["node"]
    status, foreign = await silences(all_rows, f"node={others}")
    assert status == 201
    for matchers in ([f"node={others}"], ["node=~v1"], ["node!=x"], ["rule=~.*"], ["node=nobody"]):
        status, said = await silences(own, *matchers)
        assert (status, said["error"][:31]) == (403, "a team silences its own nodes: "), matchers
    status, made = await silences(own, "node=v1", "rule=~gpu_.*")
    assert status == 201
    asked = {"fingerprint": OTHERS["fingerprint"], "for": "1h"}
    assert (await own.ask("POST", "/v1/silences", json=asked))[0] == 404
    listed = json.loads((await own.ask("GET", "/v1/silences"))[1])["silences"]
    assert [(one["id"], one["author"]) for one in listed] == [(made["id"], "vera")]
    assert len(json.loads((await all_rows.ask("GET", "/v1/silences"))[1])["silences"]) == 2
    assert (await own.ask("DELETE", f"/v1/silences/{foreign['id']}"))[0] == 404
    status, text = await own.ask("GET", f"/v1/silences/preview?matcher=node={others}")
    assert (status, json.loads(text)["alerts"]) == (200, 0)
    assert (await own.ask("DELETE", f"/v1/silences/{made['id']}"))[0] == 204
    # A reader of the team makes none.
    assert (await silences(visitor, "node=v1"))[0] == 403
    for one in (own, all_rows):
        await one.session.close()
