"""The engine on a fleet: rules that cannot run, overrides, causes, silences, and rules that change."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

from gpuwarden.alert import Alert, AlertState, Silence, matcher_of
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.overrides import parse_overrides
from gpuwarden_rules.evaluation.engine import RuleEngine

FIRING, RESOLVED = AlertState.FIRING, AlertState.RESOLVED


def rules_of(*lines: str) -> list[Rule]:
    texts = [
        f"  - {{severity: warning, labels: [node], interval: 30s, summary: s, remedy: r, {line}}}"
        for line in lines
    ]
    return parse("rules:\n" + "\n".join(texts), "r.yaml")


HOT = (
    'name: hot, params: {above: 85}, requires: [gpu_samples.temperature_celsius], sql: "SELECT node,'
    " max(temperature_celsius) AS value FROM gpu_samples WHERE ts > $now::TIMESTAMP - INTERVAL 1 MINUTE"
    ' AND ts <= $now::TIMESTAMP GROUP BY node HAVING value > $above"'
)
DOWN = (
    "name: down, sql: \"SELECT DISTINCT node FROM events WHERE kind = 'down' AND ts <= $now::TIMESTAMP"
    ' AND ts > $now::TIMESTAMP - INTERVAL 1 MINUTE"'
)
BROKEN = "name: broken, sql: SELECT $now AS t FROM nowhere"


def sample(database, clock, node: str, celsius: float | None) -> None:
    gpu = {"gpu": 0, "gpu_uuid": f"GPU-{node}", "simulated": False}
    row = {**gpu, "ts": clock.now(), "node": node, "temperature_celsius": celsius}
    database.insert("gpu_samples", [row])


def event(database, clock, node: str, kind: str = "down") -> None:
    row = {"ts": clock.now(), "node": node, "kind": kind, "severity": "info", "message": ""}
    database.insert("events", [{**row, "simulated": False}])


def node(database, name: str, labels: str = "{}") -> None:
    row = {"node": name, "agent_id": "a", "boot_id": "b", "labels": labels, "simulated": False}
    database.insert("nodes", [row])


async def test_a_rule_that_cannot_run_is_not_evaluated_and_not_failing(
    database, store, clock
) -> None:
    engine = RuleEngine(rules_of(HOT), database, store, clock)
    sample(database, clock, "n1", None)
    await engine.evaluate("hot")
    figures = engine.stats["hot"]
    assert figures.cannot_run == "no GPU of the fleet reports gpu_samples.temperature_celsius"
    assert (figures.state, figures.evaluations, figures.failures) == ("cannot run", 0, 0)
    clock.advance(60)
    sample(database, clock, "n1", 99)
    await engine.evaluate("hot")
    assert (figures.state, figures.firing) == ("ok", 1)


async def test_what_lost_its_column_keeps_its_alerts(database, store, clock) -> None:
    engine = RuleEngine(rules_of(HOT), database, store, clock)
    sample(database, clock, "n1", 99)
    await engine.evaluate("hot")
    for _ in range(20):
        clock.advance(60)
        sample(database, clock, "n1", None)
    await engine.evaluate("hot")
    assert engine.stats["hot"].state == "cannot run"
    assert [alert.state for alert in engine.alerts] == [FIRING]


async def test_each_part_of_the_fleet_has_its_own_parameters(database, store, clock) -> None:
    rules = rules_of(HOT)
    overrides = parse_overrides(
        """
overrides:
  - {rules: [hot], match: {team: lab}, params: {above: 95}}
  - {rules: [hot], match: {node: n3}, severity: critical}
  - {rules: [hot], match: {node: n4}, enabled: false}
""",
        "o.yaml",
        rules,
    )
    engine = RuleEngine(rules, database, store, clock, overrides=overrides)
    node(database, "n2", '{"team": "lab"}')
    node(database, "n5", '{"team": "lab"}')
    for name, celsius in (("n1", 90), ("n2", 90), ("n3", 90), ("n4", 90), ("n5", 97)):
        sample(database, clock, name, celsius)
        if name not in ("n2", "n5"):
            node(database, name)
    await engine.evaluate("hot")
    found = {alert.labels["node"]: str(alert.severity) for alert in engine.alerts}
    assert found == {"n1": "warning", "n3": "critical", "n5": "warning"}


async def test_a_silence_is_kept_and_said_of_its_alerts_for_as_long_as_it_holds(
    database, store, clock
) -> None:
    engine = RuleEngine(rules_of(DOWN), database, store, clock)
    event(database, clock, "n1")
    await engine.evaluate("down")
    silence = Silence(
        id="s1",
        matchers=(matcher_of("node=n1"),),
        author="alice",
        comment="",
        starts_at=clock.now(),
        ends_at=clock.now() + timedelta(seconds=45),
    )
    await engine.silence(silence)
    reason = "silenced until 12:00 UTC by alice"
    assert [alert.muted for alert in engine.alerts] == [reason]
    assert [alert.muted for alert in store.kept.values()] == [reason]
    again = RuleEngine(rules_of(DOWN), database, store, clock)
    await again.start()
    assert [alert.muted for alert in again.alerts] == [reason]
    assert list(again.silences) == [silence]
    clock.advance(50)
    await again.evaluate("down")
    assert [alert.muted for alert in again.alerts] == [None]
    assert list(again.silences) == []


async def test_a_silence_of_another_collector_holds_that_comes_while_stored_ones_are_read(
    database, store, clock, monkeypatch
) -> None:
    engine = RuleEngine(rules_of(DOWN), database, store, clock)
    silence = Silence(
        id="s1",
        matchers=(matcher_of("node=n1"),),
        author="alice",
        comment="",
        starts_at=clock.now(),
        ends_at=clock.now() + timedelta(hours=1),
    )
    read = store.silences

    async def read_before_it_comes() -> Sequence[Silence]:
        stored = await read()
        await engine.take_silences([silence])
        return stored

    monkeypatch.setattr(store, "silences", read_before_it_comes)
    await engine.start()
    assert list(engine.silences) == [silence]


async def test_a_rule_that_fails_for_a_minute_is_an_alert(database, store, clock) -> None:
    engine = RuleEngine(rules_of(BROKEN.replace("labels: [node], ", "")), database, store, clock)
    for _ in range(4):
        await engine.evaluate("broken")
        clock.advance(30)
    (alert,) = engine.alerts
    assert (alert.rule, alert.state, alert.labels) == ("rule_failing", FIRING, {"rule": "broken"})
    assert "nowhere does not exist" in alert.summary
    assert {kept.state for kept in store.kept.values()} == {FIRING}


async def test_rules_that_stay_keep_their_alerts_and_others_are_over(
    database, store, clock
) -> None:
    told: list[Alert] = []
    engine = RuleEngine(rules_of(DOWN, HOT), database, store, clock, on_change=told.append)
    event(database, clock, "n1")
    sample(database, clock, "n1", 99)
    for name in ("down", "hot"):
        await engine.evaluate(name)
    kept = [alert for alert in engine.alerts if alert.rule == "hot"]
    await engine.reload(rules_of(HOT.replace("85", "98"), BROKEN))
    assert engine.alerts == kept
    assert [rule.name for rule in engine.rules] == ["hot", "broken"]
    assert (told[-1].rule, told[-1].state) == ("down", RESOLVED)
    await engine.evaluate("hot")
    assert [(a.rule, a.active_at) for a in engine.alerts] == [("hot", kept[0].active_at)]
    await engine.reload(rules_of(HOT.replace("85", "99")))
    await engine.evaluate("hot")
    assert engine.alerts == []


async def evaluated(engine: RuleEngine, name: str) -> None:
    """Wait until a rule has been evaluated, with a deadline."""
    deadline = time.monotonic() + 10
    while not engine.stats[name].evaluations:
        assert time.monotonic() < deadline, "not evaluated in time"
        await asyncio.sleep(0.01)


async def test_a_running_engine_takes_new_rules_and_lets_go_of_old_ones(
    database, store, clock
) -> None:
    stop = asyncio.Event()
    engine = RuleEngine(rules_of(DOWN), database, store, clock)
    event(database, clock, "n1")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run(stop))
        await evaluated(engine, "down")
        await engine.reload(rules_of(BROKEN))
        await evaluated(engine, "broken")
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "rule broken" in names
        assert "rule down" not in names
        stop.set()
    states = {alert.rule: alert.state for alert in store.kept.values()}
    assert states["down"] is RESOLVED
