"""The HTTP routes of rules, explanations and silences, over a real server."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuwarden_rules.backtest.run import Backtester
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


class SlowDatabase:
    """The database, behind a gate that a test can shut."""

    def __init__(self, database) -> None:
        self.database, self.gate = database, asyncio.Event()
        self.gate.set()

    async def query(self, sql, params=None, *, timeout_s=None, row_limit=None):
        await self.gate.wait()
        return await self.database.query(sql, params, timeout_s=timeout_s, row_limit=row_limit)


@pytest.fixture
def slow(database) -> SlowDatabase:
    return SlowDatabase(database)


@pytest.fixture
async def client(engine, database, slow, clock, tmp_path):
    app = web.Application()
    reloader, backtester = RuleReloader(engine, [tmp_path]), Backtester(slow, clock)
    app.add_routes(routes(lambda: reloader, database, clock, lambda: backtester))
    stop = asyncio.Event()
    async with TestClient(TestServer(app)) as client, asyncio.TaskGroup() as group:
        group.create_task(backtester.run(stop))
        yield client
        stop.set()


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


async def test_it_is_said_whether_the_rules_have_judged(
    client, engine, database, clock, store
) -> None:
    found = await (await client.get("/v1/judgement")).json()
    assert (found["state"], found["judged"], found["waiting"]) == ("not_judged", 0, ["down"])
    assert (await (await client.get("/v1/rules")).json())["judgement"] == found
    await fire(engine, database, clock, store)
    found = await (await client.get("/v1/judgement")).json()
    assert (found["state"], found["since"], found["judged"]) == ("judged", None, 1)


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
    body = {"matchers": ["node=n1"], "for": "2h"}
    answer = await client.post("/v1/silences", json=body)
    made = await answer.json()
    assert (answer.status, made["alerts"]) == (201, 1)
    assert made["ends_at"] == "2026-01-01T14:00:00.000Z"
    assert [alert.muted for alert in engine.alerts] == ["silenced until 14:00 UTC by somebody"]
    assert (await (await client.get("/v1/silences")).json())["silences"] == [made]
    assert (await client.delete(f"/v1/silences/{made['id']}")).status == 204
    assert [alert.muted for alert in engine.alerts] == [None]
    assert (await client.delete(f"/v1/silences/{made['id']}")).status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"matchers": ["a=b"]}', 400), (b"[" * 100_000, 400)],
)
async def test_a_silence_of_a_wrong_body_is_refused_with_an_error(
    client, body: bytes, status: int
) -> None:
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
    earlier = await client.get(f"/v1/alerts/{wanted}/explanation?active_at=1")
    assert (await earlier.json())["alert"][
        "rule"
    ] == "down"  # the newest, where there is no such episode
    assert (await client.get(f"/v1/alerts/{wanted}/explanation?active_at=x")).status == 400
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


async def test_a_rule_comes_with_its_text_cases_and_overrides(client, engine, tmp_path) -> None:
    (tmp_path / "mine.yaml").write_text(RULE.replace("down", "mine"))
    (tmp_path / "mine.test.yaml").write_text(
        "cases:\n  - {name: a, expect: [{at: 1m, rule: mine, firing: [{node: n1}]}]}\n"
        "  - name: b\n    expect:\n      - {at: 1m, rule: mine, quiet: true}\n\n  - {name: c, expect: []}\n"
    )
    (tmp_path / "overrides.yaml").write_text("overrides: [{rules: [mine], enabled: false}]")
    assert (await client.post("/v1/rules/reload")).status == 200
    rule = await (await client.get("/v1/rules/mine")).json()
    assert rule["state"] == "disabled"
    assert [(o["match"], o["enabled"]) for o in rule["overridden"]] == [({}, False)]
    assert rule["source"].startswith("{name: mine, severity: warning")
    assert [(case["name"], case["fires"]) for case in rule["cases"]] == [("a", True), ("b", False)]
    assert rule["cases"][1]["text"] == "name: b\nexpect:\n  - {at: 1m, rule: mine, quiet: true}"
    builtin = await (await client.get("/v1/rules/low_utilization")).json()
    assert builtin["page"]["quiet"]
    assert builtin["charts"] == [{"metric": "util_percent", "name": "low_percent", "threshold": 25}]
    held = await (await client.get("/v1/rules/gpu_idle_held")).json()
    assert held["charts"] == [{"metric": "util_percent", "name": None, "threshold": 5}]
    assert (await client.get("/v1/rules/none")).status == 404


async def test_the_engines_own_rules_come_without_sql(
    client, engine, database, clock, store
) -> None:
    await fire(engine, database, clock, store)
    for name in ("rule_failing", "lake_away"):
        rule = await (await client.get(f"/v1/rules/{name}")).json()
        assert (rule["rule"], rule["state"], rule["sql"], rule["source"]) == (name, "ok", None, "")
        assert rule["overridden"] == rule["cases"] == []
    listed = (await (await client.get("/v1/rules")).json())["rules"]
    assert [one["rule"] for one in listed] == ["down"]


async def test_a_silence_is_previewed_before_it_is_made(
    client, engine, database, clock, store
) -> None:
    await fire(engine, database, clock, store)
    found = await (await client.get("/v1/silences/preview?matcher=node%3D~n.*")).json()
    assert (found["alerts"], found["covered"][0]["summary"]) == (1, "n1 is down")
    assert (await (await client.get("/v1/silences/preview?matcher=node%3Dx")).json())["alerts"] == 0
    assert (await client.get("/v1/silences/preview?matcher=what")).status == 400
    assert (await client.get("/v1/silences/preview")).status == 400
    assert engine.silences == []


async def over(client, begun) -> dict:
    while True:
        found = await (await client.get(f"/v1/backtests/{begun['id']}")).json()
        if found["state"] != "running":
            return found
        await asyncio.sleep(0.01)


async def test_a_backtest_runs_alone_tells_how_far_it_is_and_is_cancelled(
    client, engine, database, clock, store, slow
) -> None:
    await fire(engine, database, clock, store)
    clock.advance(3600)
    for wrong, status in (
        ({"rule": "none"}, 404),
        ({"rule": "down", "since": "100d"}, 400),
        ({"rule": "down", "x": 1}, 400),
        ([], 400),
    ):
        assert (await client.post("/v1/backtests", json=wrong)).status == status
    assert (await client.post("/v1/backtests", data="rule=down")).status == 415
    slow.gate.clear()
    begun = await (await client.post("/v1/backtests", json={"rule": "down", "since": "2h"})).json()
    assert (begun["state"], begun["progress"]) == ("running", 0)
    again = await client.post("/v1/backtests", json={"rule": "down"})
    assert again.status == 409
    assert "a backtest of down is running" in (await again.json())["error"]
    running = await (await client.get("/v1/backtests")).json()
    assert running["running"]["id"] == begun["id"]
    assert (await client.delete(f"/v1/backtests/{begun['id']}")).status == 204
    assert (await over(client, begun))["state"] == "cancelled"
    assert (await client.delete("/v1/backtests/none")).status == 404

    slow.gate.set()
    begun = await (await client.post("/v1/backtests", json={"rule": "down", "since": "2h"})).json()
    done = await over(client, begun)
    assert (done["state"], done["progress"], done["fired"]) == ("done", 1, 1), done
    (episode,) = done["episodes"]
    assert (episode["labels"], episode["summary"]) == ({"node": "n1"}, "n1 is down")
    assert episode["resolved_at"] is None
    assert (await client.get("/v1/backtests/none")).status == 404


async def test_a_backtest_without_the_data_cannot_say(client, engine, tmp_path, clock) -> None:
    begun = await (await client.post("/v1/backtests", json={"rule": "down"})).json()
    found = await over(client, begun)
    assert (found["state"], found["reason"]) == (
        "cannot say",
        "the collector has no samples to replay",
    )


async def test_prometheus_is_told_rules_and_alerts(client, engine, database, clock, store) -> None:
    async def data(path: str) -> dict:
        answer = await client.get(f"/prometheus/api/v1/{path}")
        found = await answer.json()
        assert (answer.status, found["status"]) == (200, "success")
        return found["data"]

    (group,) = (await data("rules"))["groups"]
    (rule,) = group["rules"]
    assert (rule["state"], rule["health"], rule["alerts"]) == ("inactive", "unknown", [])
    assert (await data("alerts")) == {"alerts": []}
    await fire(engine, database, clock, store)
    (group,) = (await data("rules?type=alert"))["groups"]
    (rule,) = group["rules"]
    assert (rule["name"], rule["state"], rule["health"], rule["type"]) == (
        "down",
        "firing",
        "ok",
        "alerting",
    )
    assert (rule["duration"], group["interval"], rule["labels"]["severity"]) == (0, 30, "warning")
    (alert,) = (await data("alerts"))["alerts"]
    assert rule["alerts"] == [alert]
    assert alert == {
        "labels": {
            "alertname": "down",
            "consequence": "slow_work",
            "node": "n1",
            "severity": "warning",
        },
        "annotations": {"summary": "n1 is down", "remedy": "r"},
        "state": "firing",
        "activeAt": "2026-01-01T12:00:00.000Z",
        "value": "1.000000e+00",
    }
    for nothing in ("type=record", "rule_name[]=other", "rule_group[]=other", "file[]=other"):
        assert (await data(f"rules?{nothing}"))["groups"] == []
    ((rule,),) = [g["rules"] for g in (await data("rules?exclude_alerts=true"))["groups"]]
    assert "alerts" not in rule


async def test_rules_that_cannot_judge_a_gpu_are_listed(client, database, clock) -> None:
    answer = await client.get("/v1/gpus/GPU-9/unable-rules")
    assert answer.status == 404
    row = {"ts": clock.now(), "node": "n1", "gpu": 0, "gpu_uuid": "GPU-9", "simulated": False}
    database.insert("gpu_samples", [{**row, "util_percent": 1.0}])
    answer = await client.get("/v1/gpus/GPU-9/unable-rules")
    assert await answer.json() == {"gpu_uuid": "GPU-9", "rules": 0, "unable": []}
