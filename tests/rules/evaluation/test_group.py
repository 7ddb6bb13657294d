"""Rules of one kind are one SELECT a round; one that fails leaves the others alone."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.alert import AlertState
from gpuwarden.clock import ManualClock
from gpuwarden.query import QueryError
from gpuwarden.wire import AHEAD_S_MAX
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.overrides import parse_overrides
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.group import groups_of
from gpuwarden_rules.evaluation.runtime import RuleRuntime
from gpuwarden_rules.testing.database import MemoryDatabase

HEAD = "    severity: warning\n    summary: '{node}'\n    remedy: r\n    interval: 30s\n    window: 3m\n"
GOOD = f"""
rules:
  - name: hot
{HEAD}    of: gpu
    params: {{most: 85}}
    measure: {{hottest: max(temperature_celsius)}}
    when: hottest > $most
  - name: busy
{HEAD}    of: gpu
    measure: {{util: min(util_percent)}}
    when: util > 90
  - name: odd
{HEAD}    of: gpu
    measure: {{util: max(util_percent)}}
    when: util > 90
  - name: loaded
{HEAD}    of: node
    measure: {{load: max(load_1m)}}
    when: load > 90
"""
WRONG = {
    "when it runs": ("max(error('it is wrong')::INT + util_percent)", "it is wrong"),
    "when it is planned": ("max(no_function(util_percent))", "no_function"),
}
EVENTS = f"""
rules:
  - name: fell
{HEAD}    of: gpu
    events: [xid]
  - name: hot
{HEAD}    of: gpu
    measure: {{hottest: max(temperature_celsius)}}
    when: hottest > 85
"""


class CountingQuerier:
    """A database that counts queries, and fails when told to."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self.queries: list[str] = []
        self.fails = False

    async def query(self, sql, params=None, **limits):
        self.queries.append(sql)
        if self.fails:
            raise QueryError("the store is away")
        return await self._database.query(sql, params, **limits)


def rules_of(text: str) -> list[Rule]:
    return parse(text, "r.yaml")


def samples(database, clock, uuid: str, node: str = "n1", **columns) -> None:
    rows = [
        {
            "ts": clock.now() - timedelta(seconds=ago),
            "node": node,
            "gpu": 0,
            "gpu_uuid": uuid,
            "simulated": False,
            **columns,
        }
        for ago in range(180)
    ]
    database.insert("gpu_samples", rows)


def firing(engine: RuleEngine) -> set[tuple[str, str]]:
    return {
        (alert.rule, alert.labels.get("gpu_uuid", ""))
        for alert in engine.alerts
        if alert.state is AlertState.FIRING
    }


async def round_of(engine: RuleEngine) -> None:
    for group in engine.groups:
        await engine.evaluate_group(group)


def test_rules_about_the_same_with_the_same_interval_are_a_group() -> None:
    rules = rules_of(GOOD.replace("interval: 30s", "interval: 15s", 1))
    groups = groups_of(RuleRuntime(rule) for rule in rules)
    assert [[one.rule.name for one in group.runtimes] for group in groups] == [
        ["hot"],
        ["busy", "odd"],
        ["loaded"],
    ]


async def test_a_group_is_one_query_a_round(database, store, clock) -> None:
    querier = CountingQuerier(database)
    engine = RuleEngine(rules_of(GOOD), querier, store, clock)
    samples(database, clock, "GPU-a", temperature_celsius=90, util_percent=95)
    samples(database, clock, "GPU-b", temperature_celsius=70, util_percent=95)
    await round_of(engine)
    assert firing(engine) == {
        ("hot", "GPU-a"),
        ("busy", "GPU-a"),
        ("busy", "GPU-b"),
        ("odd", "GPU-a"),
        ("odd", "GPU-b"),
    }
    assert sum("gpu_samples" in sql and "holds" in sql for sql in querier.queries) == 1


@pytest.mark.parametrize(("measure", "message"), WRONG.values(), ids=WRONG)
async def test_a_rule_that_fails_is_named_and_the_others_go_on(
    database, store, clock, measure: str, message: str
) -> None:
    querier = CountingQuerier(database)
    rules = rules_of(GOOD.replace("max(util_percent)", measure))
    engine = RuleEngine(rules, querier, store, clock)
    samples(database, clock, "GPU-a", temperature_celsius=90, util_percent=95)
    for _ in range(2):
        await round_of(engine)
        assert firing(engine) == {("hot", "GPU-a"), ("busy", "GPU-a")}
        assert message in (engine.stats["odd"].last_error or "")
        assert engine.stats["hot"].last_error is None
        clock.advance(30)
    querier.queries.clear()
    await round_of(engine)
    # The two that work are together, the one that fails is alone.
    assert sum("holds" in sql and "gpu_samples" in sql for sql in querier.queries) == 2


async def test_a_store_that_fails_takes_no_rule_out_of_its_group(database, store, clock) -> None:
    querier = CountingQuerier(database)
    engine = RuleEngine(rules_of(GOOD), querier, store, clock)
    samples(database, clock, "GPU-a", temperature_celsius=90, util_percent=95)
    await round_of(engine)
    querier.fails = True
    await round_of(engine)
    assert engine.stats["hot"].last_error == "the store is away"
    assert firing(engine) >= {("hot", "GPU-a")}
    querier.fails = False
    querier.queries.clear()
    await round_of(engine)
    assert engine.stats["hot"].last_error is None
    assert sum("holds" in sql and "gpu_samples" in sql for sql in querier.queries) == 1


@pytest.mark.parametrize("most", [70, 95])
async def test_parts_of_the_fleet_with_other_parameters_stay_in_the_group(
    database, store, clock, most: int
) -> None:
    rules = rules_of(GOOD)
    overrides = parse_overrides(
        f"overrides: [{{rules: [hot], match: {{node: n2}}, params: {{most: {most}}}}}]",
        "o.yaml",
        rules,
    )
    for node in ("n1", "n2"):
        row = {"node": node, "agent_id": "a", "boot_id": "b", "labels": "{}", "simulated": False}
        database.insert("nodes", [row])
    querier = CountingQuerier(database)
    engine = RuleEngine(rules, querier, store, clock, overrides=overrides)
    samples(database, clock, "GPU-a", node="n1", temperature_celsius=90)
    samples(database, clock, "GPU-b", node="n2", temperature_celsius=90)
    samples(database, clock, "GPU-c", node="n2", temperature_celsius=80)
    await round_of(engine)
    hot = {gpu for rule, gpu in firing(engine) if rule == "hot"}
    assert hot == ({"GPU-a", "GPU-b", "GPU-c"} if most == 70 else {"GPU-a"})
    assert sum("holds" in sql and "gpu_samples" in sql for sql in querier.queries) == 1


def event(database, at: datetime) -> None:
    row = {"ts": at, "node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "kind": "xid", "severity": "info"}
    database.insert("events", [{**row, "message": "m", "details": "{}", "simulated": False}])


async def turns(engine: RuleEngine) -> tuple[int, int]:
    """Give each group its turn; how often rules about events and about samples have been evaluated."""
    for group in engine.groups:
        await engine.turn(group)
    return engine.stats["fell"].evaluations, engine.stats["hot"].evaluations


async def test_rules_about_events_rest_until_one_is_stored(database, store, clock) -> None:
    engine = RuleEngine(rules_of(EVENTS), database, store, clock)
    assert await turns(engine) == (1, 1)
    clock.advance(30)
    # Absence of samples may be news, and time moves their window.
    assert await turns(engine) == (1, 2)
    assert engine.stats["fell"].skipped == 1
    assert engine.stats["fell"].judged_at == engine.stats["hot"].judged_at
    event(database, clock.now())
    engine.wake(["port_down"])
    assert await turns(engine) == (1, 3)
    engine.wake(["xid"])
    assert await turns(engine) == (2, 4)
    assert firing(engine) == {("fell", "GPU-a")}
    clock.advance(240)  # no event ends it, time does
    assert await turns(engine) == (3, 5)
    assert firing(engine) == set()


async def test_an_event_ahead_of_the_clock_is_judged_when_its_time_comes(
    database, store, clock
) -> None:
    engine = RuleEngine(rules_of(EVENTS), database, store, clock)
    await turns(engine)
    event(database, clock.now() + timedelta(seconds=AHEAD_S_MAX))
    engine.wake(["xid"])
    for _ in range(AHEAD_S_MAX // 30):
        await turns(engine)
        assert firing(engine) == set()
        clock.advance(30)
    await turns(engine)
    assert firing(engine) == {("fell", "GPU-a")}


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.sampled_from(["event", "event ahead", "turn", "turn", "long"]), max_size=30)
)
def test_alerts_are_those_of_an_engine_that_never_rests(
    database, store_type, steps: Sequence[str]
) -> None:
    async def compare() -> None:
        database.clear()
        clock = ManualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))
        resting, restless = (
            RuleEngine(rules_of(EVENTS), database, store_type(), clock) for _ in range(2)
        )
        for step in steps:
            if step.startswith("event"):
                ahead = timedelta(seconds=AHEAD_S_MAX - 20 if "ahead" in step else 0)
                event(database, clock.now() + ahead)
                resting.wake(["xid"])
            clock.advance(400 if step == "long" else 30)
            for group in resting.groups:
                await resting.turn(group)
            await round_of(restless)
            assert firing(resting) == firing(restless)

    asyncio.run(compare())
