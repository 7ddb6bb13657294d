"""The HTTP routes of rules, explanations and silences, over a real server."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuwarden_rules.definition.language import builtin_rules, parse
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.reload import RuleReloader
from gpuwarden_rules.http.routes import routes

RULE = """
rules:
  - {name: down, severity: warning, labels: [node], interval: 30s, params: {least: 1}, summary: "{node} is down",
     remedy: r, sql: "SELECT node, count(*) AS value, [1.5, 'nan'::DOUBLE] AS list, INTERVAL 1 MINUTE AS span,
     max(ts) AS last_at FROM events WHERE ts <= $now::TIMESTAMP GROUP BY node HAVING value >= $least"}
"""


@pytest.fixture
def engine(database, store, clock) -> RuleEngine:
    return RuleEngine(parse(RULE, "r.yaml"), database, store, clock)


@pytest.fixture
async def client(engine, database, clock, tmp_path):
    app = web.Application()
    reloader = RuleReloader(engine, [tmp_path])
    app.add_routes(routes(lambda: reloader, database, clock))
    async with TestClient(TestServer(app)) as client:
        yield client


async def fire(engine, database, clock, store) -> str:
    row = {"ts": clock.now(), "node": "n1", "kind": "x", "severity": "info", "message": ""}
    database.insert("events", [{**row, "simulated": False}])
    await engine.evaluate("down")
    (alert,) = engine.alerts
    return alert.fingerprint


async def test_rules_are_listed_with_their_state_and_figures(
    client, engine, database, clock, store
) -> None:
    await fire(engine, database, clock, store)
    answer = await client.get("/v1/rules")
    (rule,) = (await answer.json())["rules"]
    assert (rule["rule"], rule["state"], rule["firing"], rule["evaluations"]) == (
        "down",
        "ok",
        1,
        1,
    )
    assert rule["last_success_at"] == "2026-01-01T12:00:00.000Z"


async def test_a_reload_takes_what_is_right_and_says_what_is_wrong(
    client, engine, tmp_path
) -> None:
    (tmp_path / "mine.yaml").write_text("rules: [{nome: x}]")
    answer = await client.post("/v1/rules/reload")
    problem = await answer.json()
    assert answer.status == problem["status"] == 422
    assert problem["problems"][0]["line"] == 1
    assert "the previous rules stay in force" in problem["error"]
    assert [rule.name for rule in engine.rules] == ["down"]
    (tmp_path / "mine.yaml").write_text(RULE)
    answer = await client.post("/v1/rules/reload")
    assert await answer.json() == {"rules": len(builtin_rules()) + 1, "overrides": 0}
    assert len(engine.rules) == len(builtin_rules()) + 1


async def test_a_silence_comes_holds_and_goes(client, engine, database, clock, store) -> None:
    await fire(engine, database, clock, store)
    body = {"matchers": ["node=n1"], "for": "2h", "author": "alice"}
    answer = await client.post("/v1/silences", json=body)
    made = await answer.json()
    assert (answer.status, made["alerts"]) == (201, 1)
    assert made["ends_at"] == "2026-01-01T14:00:00.000Z"
    assert [alert.muted for alert in engine.alerts] == ["silenced until 14:00 UTC by alice"]
    assert (await (await client.get("/v1/silences")).json())["silences"] == [made]
    assert (await client.delete(f"/v1/silences/{made['id']}")).status == 204
    assert [alert.muted for alert in engine.alerts] == [None]
    assert (await client.delete(f"/v1/silences/{made['id']}")).status == 404


async def test_one_alert_is_acknowledged(client, engine, database, clock, store) -> None:
    wanted = await fire(engine, database, clock, store)
    body = {"fingerprint": wanted, "for": "1h", "author": "bob", "comment": "mine"}
    assert (await client.post("/v1/silences", json=body)).status == 201
    assert [a.muted for a in engine.alerts] == ["acknowledged until 13:00 UTC by bob: mine"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"matchers": ["a=b"]}', 400), (b"[" * 100_000, 400)],
)
async def test_rubbish_is_refused(client, body: bytes, status: int) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await client.post("/v1/silences", data=body, headers=headers)
    assert answer.status == status
    assert (await answer.json())["error"]


async def test_a_form_cannot_silence(client) -> None:
    """Requests that a page of somebody else can send without asking are refused."""
    answer = await client.post("/v1/silences", data={"matchers": "a=b"})
    assert answer.status == 415


async def test_an_explanation_has_rows_parameters_and_times(
    client, engine, database, clock, store
) -> None:
    wanted = await fire(engine, database, clock, store)
    (alert,) = engine.alerts
    row = {
        "fingerprint": wanted, "rule": "down", "severity": "warning", "consequence": "slow_work", "state": "firing", "labels": "{}",
        "summary": alert.summary, "remedy": "r", "began_at": alert.began_at, "seen_at": clock.now(),
        "active_at": alert.active_at, "fired_at": alert.fired_at, "simulated": False,
    }  # fmt: skip
    database.insert("alerts", [row])
    clock.advance(60)
    found = await (await client.get(f"/v1/alerts/{wanted}/explanation")).json()
    assert found["params"] == {"least": 1}
    assert [entry["when"] for entry in found["rows"]] == ["when it fired", "now"]
    shown = found["rows"][0]["row"]
    assert (shown["list"], shown["span"]) == ([1.5, None], 60.0)
    assert shown["last_at"] == "2026-01-01T12:00:00.000Z"
    assert [entry["what"] for entry in found["timeline"]] == ["began, as the samples say", "fired"]
    assert (await client.get("/v1/alerts/none/explanation")).status == 404


async def test_before_the_rules_have_started_it_says_so(database, clock) -> None:
    app = web.Application()
    app.add_routes(routes(lambda: None, database, clock))
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/v1/rules")
        assert (answer.status, (await answer.json())["error"]) == (
            503,
            "the rules have not started yet",
        )
