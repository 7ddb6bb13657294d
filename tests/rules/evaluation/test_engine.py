"""The engine keeps every rule going, every alert saved, and says what changed once."""

import asyncio
import logging
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import Clock, ManualClock
from gpuwarden.judgement import JudgementState
from gpuwarden.query import LakeAwayError, QueryError, Result
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.evaluation import engine as engine_module
from gpuwarden_rules.evaluation import runtime as runtime_module
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.testing import MemoryDatabase

PENDING, FIRING, RESOLVED = AlertState.PENDING, AlertState.FIRING, AlertState.RESOLVED


def rule_of(name: str = "hot", *, hold: str = "0s", keep: str = "0s", sql: str = "") -> Rule:
    """A rule over `events` of its own name: an event says that the condition held for a minute."""
    sql = sql or (
        "SELECT node, count(*) AS value FROM events WHERE kind = $kind "
        "AND ts <= $now::TIMESTAMP AND ts > $now::TIMESTAMP - INTERVAL 1 MINUTE GROUP BY node"
    )
    params = f"{{kind: {name}}}" if "$kind" in sql else "{}"
    (rule,) = parse(
        f"""
        rules:
          - {{name: {name}, severity: warning, labels: [node], interval: 30s, for: {hold},
             keep_firing_for: {keep}, summary: "{name} {{node}} {{active}}", remedy: r,
             params: {params}, sql: "{sql}"}}
        """,
        "r.yaml",
    )
    return rule


HOUR = "SELECT DISTINCT node FROM events WHERE ts > $now::TIMESTAMP - INTERVAL 1 HOUR AND ts <= $now::TIMESTAMP"


def hold(database: MemoryDatabase, at: datetime, *, node: str = "n1", kind: str = "hot") -> None:
    row = {"ts": at, "node": node, "kind": kind, "severity": "info", "message": ""}
    database.insert("events", [{**row, "simulated": False}])


def hear(database: MemoryDatabase, node: str, at: datetime) -> None:
    database.execute(f"DELETE FROM nodes WHERE node = '{node}'")
    known = {"node": node, "agent_id": node, "boot_id": "b", "simulated": False}
    database.insert("nodes", [{**known, "last_seen_at": at}])


def own(engine: RuleEngine) -> list[Alert]:
    """Its alerts except those of rules that fail."""
    return [alert for alert in engine.alerts if alert.rule != "rule_failing"]


class Scripted:
    """A Querier that answers as told: the outside world where it misbehaves."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.timeouts: list[float | None] = []

    async def query(self, sql, params=None, *, timeout_s=None, row_limit=None) -> Result:
        if "last_seen_at" in sql:  # no node is silent
            return Result(["node"], ["VARCHAR"], [], truncated=False)
        self.timeouts.append(timeout_s)
        answer = self.answers.pop(0) if self.answers else ["n1"]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = []
        return Result(["node"], ["VARCHAR"], [(node,) for node in answer], truncated=False)


async def test_an_alert_is_saved_and_told_when_it_changes(database, store, clock) -> None:
    told: list[AlertState] = []
    engine = RuleEngine(
        [rule_of(hold="1m")], database, store, clock, on_change=lambda a: told.append(a.state)
    )
    await engine.start()
    for _ in range(4):
        hold(database, clock.now())
        await engine.evaluate("hot")
        clock.advance(30)
    assert told == [PENDING, FIRING]
    assert [[a.state for a in save] for save in store.saves] == [[PENDING], [FIRING]]
    clock.advance(60)
    await engine.evaluate("hot")
    assert told == [PENDING, FIRING, RESOLVED]
    assert engine.alerts == []
    (kept,) = store.kept.values()
    assert kept.state is RESOLVED


async def test_an_alert_of_another_collector_goes_on_and_is_unknown_until_a_row_has_it(
    database, store, clock
) -> None:
    told: list[AlertState] = []
    engine = RuleEngine([rule_of()], database, store, clock, on_change=lambda a: told.append(a.state))  # fmt: skip
    await engine.start()
    hold(database, clock.now())
    await engine.evaluate("hot")
    (alert,) = engine.alerts
    database.clear()
    other = RuleEngine([rule_of()], database, type(store)(), clock)
    await other.start()
    earlier = replace(alert, fired_at=clock.now() - timedelta(hours=1))
    await other.adopt([earlier, replace(alert, fingerprint="x", rule="another")])
    for _ in range(3):
        clock.advance(600)
        await other.evaluate("hot")
    (adopted,) = other.alerts
    assert (adopted.fired_at, adopted.state) == (earlier.fired_at, FIRING)
    assert adopted.unknown_since is not None
    # It is not found for longer than another collector's rows can be missing.
    clock.advance(engine_module.ADOPTED_FOR.total_seconds())
    await other.evaluate("hot")
    assert other.alerts == []


async def test_an_adopted_alert_that_a_row_has_is_known_and_ends_as_any_other(
    database, store, clock
) -> None:
    engine = RuleEngine([rule_of()], database, store, clock)
    await engine.start()
    hold(database, clock.now())
    await engine.evaluate("hot")
    (alert,) = engine.alerts
    again = RuleEngine([rule_of()], database, type(store)(), clock)
    await again.start()
    await again.adopt([replace(alert, fired_at=clock.now() - timedelta(hours=1))])
    await again.evaluate("hot")
    (known,) = again.alerts
    assert (known.unknown_since, known.fired_at) == (None, clock.now() - timedelta(hours=1))
    clock.advance(120)
    await again.evaluate("hot")
    assert again.alerts == []


async def test_nodes_that_send_elsewhere_are_not_judged_and_their_alerts_end_with_the_reason(
    database, store, clock
) -> None:
    told: list[AlertState] = []
    engine = RuleEngine([rule_of()], database, store, clock, on_change=lambda a: told.append(a.state))  # fmt: skip
    await engine.start()
    for node in ("n1", "n2"):
        hold(database, clock.now(), node=node)
    await engine.evaluate("hot")
    await engine.leave(frozenset({"n1"}))
    assert [alert.labels["node"] for alert in engine.alerts] == ["n2"]
    await engine.evaluate("hot")
    assert [alert.labels["node"] for alert in engine.alerts] == ["n2"]
    assert told == [FIRING, FIRING], "its end is not told"
    left = [a for a in store.kept.values() if a.labels["node"] == "n1"]
    assert [(a.state, a.resolved_reason) for a in left] == [(RESOLVED, "its node reports to another collector")]  # fmt: skip
    await engine.leave(frozenset())
    await engine.evaluate("hot")
    assert len(engine.alerts) == 2


async def test_an_event_wakes_the_rules_that_are_about_its_kind(
    database, store, clock, monkeypatch
) -> None:
    """At once, and then at most once in an interval."""
    monkeypatch.setattr(engine_module, "EVENT_REST_S", 0.2)
    woken = replace(rule_of(), interval_s=3600.0, on_events=("hot",))
    engine = RuleEngine(
        [woken, replace(rule_of("cold"), interval_s=3600.0)], database, store, clock
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run(stop))
        await reached(lambda: all(s.evaluations == 1 for s in engine.stats.values()))
        hold(database, clock.now())
        engine.wake(["other"])
        for _ in range(50):
            engine.wake(["hot", "other"])
        await reached(lambda: own(engine))
        for _ in range(20):  # within the rest, after which there is one more
            engine.wake(["hot"])
        await reached(lambda: engine.stats["hot"].evaluations >= 3)
        await asyncio.sleep(0.5)
        stop.set()
        await running
    assert engine.stats["hot"].evaluations <= 4
    assert engine.stats["cold"].evaluations == 1


async def test_alerts_of_a_rule_that_is_gone_are_resolved(database, store, clock) -> None:
    hold(database, clock.now())
    old = RuleEngine([rule_of()], database, store, clock)
    await old.evaluate("hot")
    await RuleEngine([rule_of("cold")], database, store, clock).start()
    (kept,) = store.kept.values()
    assert (kept.state, kept.resolved_at) == (RESOLVED, clock.now())


async def test_what_has_held_all_along_fires_at_the_first_evaluation(
    database, store, clock
) -> None:
    for seconds in range(0, 600, 30):
        hold(database, clock.now() - timedelta(seconds=seconds))
    hold(database, clock.now(), node="just-now")
    told: list[Alert] = []
    engine = RuleEngine([rule_of(hold="5m")], database, store, clock, on_change=told.append)
    await engine.start()
    await engine.warm_up("hot")
    await engine.evaluate("hot")
    assert [(a.labels["node"], a.state) for a in told] == [
        ("n1", PENDING),
        ("n1", FIRING),
        ("just-now", PENDING),
    ]
    assert told[1].fired_at == clock.now()
    assert {a.state for a in store.kept.values()} == {PENDING, FIRING}


async def test_a_replay_leaves_alone_what_the_store_knows(database, store, clock) -> None:
    for seconds in range(0, 1200, 30):
        hold(database, clock.now() - timedelta(seconds=seconds))
    old = RuleEngine([rule_of(hold="5m")], database, store, ManualClock(clock.now()))
    await old.evaluate("hot")
    engine = RuleEngine([rule_of(hold="5m")], database, store, clock)
    await engine.start()
    await engine.warm_up("hot")
    assert [alert.active_at for alert in engine.alerts] == [clock.now()]


async def test_all_rules_are_evaluated_before_the_past_of_any_is_asked_for(
    database, store, clock
) -> None:
    """And what a replay finds is as if it had come first."""
    for seconds in range(0, 1200, 30):
        hold(database, clock.now() - timedelta(seconds=seconds))
    hold(database, clock.now(), node="just-now")
    told: list[Alert] = []
    asked: list[str] = []
    is_open = asyncio.Event()

    class Past:
        async def query(self, sql, params=None, **limits) -> Result:
            asked.append(sql)
            await is_open.wait()
            return await database.query(sql, params, **limits)

    rules = [rule_of("hot", hold="5m"), rule_of("cold", hold="5m")]
    engine = RuleEngine(rules, database, store, clock, background=Past(), on_change=told.append)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(engine.run(stop))
        await reached(lambda: bool(asked))
        assert all(figures.evaluations for figures in engine.stats.values())
        assert (engine.stats["hot"].pending, told, store.kept) == (2, [], {})
        is_open.set()
        await reached(lambda: len(told) == 3)
        stop.set()
    found = [(a.labels["node"], a.state) for a in told]
    assert sorted(found[:2]) == [("just-now", PENDING), ("n1", PENDING)]
    assert found[2] == ("n1", FIRING)
    assert {(node, state) for (_, _), a in store.kept.items() for node, state in [(a.labels["node"], a.state)]} == {
        ("n1", FIRING), ("just-now", PENDING),
    }  # fmt: skip


async def test_a_pending_alert_that_goes_before_its_past_is_known_was_never_there(
    database, store, clock
) -> None:
    told: list[Alert] = []
    engine = RuleEngine([rule_of(hold="5m")], database, store, clock, on_change=told.append)
    await engine.start()
    (runtime,) = engine._all[:1]
    runtime.is_replayed = False
    hold(database, clock.now())
    await engine.evaluate("hot")
    clock.advance(120)
    await engine.evaluate("hot")
    assert (engine.alerts, told, store.kept) == ([], [], {})


async def test_a_replay_is_bounded(store, clock) -> None:
    querier = Scripted()
    engine = RuleEngine([rule_of(hold="1d", keep="7d")], querier, store, clock)
    await engine.warm_up("hot")
    assert len(querier.timeouts) == engine_module.WARM_UP_EVALUATIONS_MAX
    nothing = Scripted()
    await RuleEngine([rule_of(keep="1h")], nothing, store, clock).warm_up("hot")
    assert nothing.timeouts == []


@pytest.mark.parametrize(
    "failure",
    [
        QueryError("Binder Error: no column x\nmore"),
        ["n1", "n1"],
        ZeroDivisionError("a bug"),
    ],
)
async def test_a_failed_evaluation_changes_nothing(failure, store, clock, caplog) -> None:
    engine = RuleEngine([rule_of()], Scripted(["n1"], failure, failure, ["n1"]), store, clock)
    await engine.evaluate("hot")
    before = own(engine)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            clock.advance(30)
            await engine.evaluate("hot")
        assert own(engine) == before
        assert engine.stats["hot"].failures == 2
        assert engine.stats["hot"].last_error
        await engine.evaluate("hot")
    # Without those of timetables of other tests, whose threads may still end.
    own_records = [record for record in caplog.records if record.name.startswith("gpuwarden_rules")]
    assert [record.getMessage() for record in own_records] == ["rule fails", "rule works again"]
    assert engine.stats["hot"].last_error is None
    assert engine.stats["hot"].evaluations == 4


async def test_a_rule_has_judged_once_it_succeeded_on_fresh_data(store, clock) -> None:
    lag: list[float | None] = [None]
    querier = Scripted([], QueryError("away"), [], [])
    engine = RuleEngine([rule_of()], querier, store, clock, lag_s=lambda: lag[0])
    await engine.start()
    for now in (None, 5.0, 400.0, 5.0):  # nothing came; it fails; a backlog; fresh
        assert engine.judgement.state is JudgementState.NOT_YET
        lag[0] = now
        await engine.evaluate("hot")
        clock.advance(10)
    assert (engine.judgement.state, engine.judgement.rules) == (JudgementState.YES, 1)
    clock.advance(3600)
    assert engine.judgement.state is JudgementState.STALE
    await engine.reload([rule_of(), rule_of("new")])
    await engine.evaluate("hot")
    assert engine.judgement.since == clock.now()  # since the new one came


async def test_rules_that_need_the_lake_keep_their_alerts_while_it_is_away(store, clock) -> None:
    away = LakeAwayError("the lake's catalogue cannot be read now")
    querier = Scripted(["n1"], *[away] * 4, [])
    engine = RuleEngine([rule_of()], querier, store, clock)
    await engine.start()
    for _ in range(5):
        await engine.evaluate("hot")
        clock.advance(100)
    figures = engine.stats["hot"]
    assert (figures.state, figures.failures, figures.failing_since) == ("not judged", 0, None)
    assert engine.judgement.state is JudgementState.STALE
    kept, told = engine.alerts
    assert (kept.rule, kept.state, kept.seen_at) == (
        "hot",
        FIRING,
        datetime(2026, 1, 1, 12, tzinfo=UTC),
    )
    assert (told.rule, told.state) == ("lake_away", FIRING)
    assert told.summary == (
        "The lake's catalog has been unreadable for 5 min: 1 rule is not judged (hot). Alerts of these do not "
        "change. Other rules are judged by the newest rows."
    )
    await engine.evaluate("hot")
    clock.advance(100)
    await engine.evaluate("hot")
    assert engine.judgement.state is JudgementState.YES
    assert {alert.rule for alert in engine.alerts} == {"hot"}


async def test_too_many_rows_fail_the_evaluation(database, store, clock, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "ROWS_MAX", 2)
    engine = RuleEngine([rule_of()], database, store, clock)
    for node in ("n1", "n2", "n3"):
        hold(database, clock.now(), node=node)
    await engine.evaluate("hot")
    assert own(engine) == []
    assert engine.stats["hot"].last_error == "more than 2 rows; narrow the rule's SQL"


async def test_many_rows_are_as_good_as_few(database, store, clock, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "INLINE_ROWS_MAX", 1)
    engine = RuleEngine([rule_of()], database, store, clock)
    for node in ("n1", "n2", "n3"):
        hold(database, clock.now(), node=node)
    assert len(await engine.evaluate("hot")) == len(engine.alerts) == len(store.kept) == 3


async def test_a_full_store_silences_nobody_and_is_tried_again(database, store, clock) -> None:
    told: list[AlertState] = []
    engine = RuleEngine(
        [rule_of()], database, store, clock, on_change=lambda a: told.append(a.state)
    )
    store.is_full = True
    hold(database, clock.now())
    await engine.evaluate("hot")
    assert told == [FIRING]
    assert engine.stats["hot"].last_error == "[Errno 28] No space left on device"
    clock.advance(90)
    await engine.evaluate("hot")
    store.is_full = False
    await engine.evaluate("hot")
    assert told == [FIRING, RESOLVED]
    (kept,) = store.kept.values()
    assert kept.state is RESOLVED


async def test_a_listener_that_fails_costs_no_alert(database, store, clock) -> None:
    def listen(alert: Alert) -> None:
        raise RuntimeError("deaf")

    engine = RuleEngine([rule_of()], database, store, clock, on_change=listen)
    hold(database, clock.now())
    await engine.evaluate("hot")
    assert len(engine.alerts) == len(store.kept) == 1
    assert engine.stats["hot"].last_error == "deaf"


async def reached(condition, *, within_s: float = 10.0) -> None:
    """Wait for a real condition, with a deadline."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "not reached in time"
        await asyncio.sleep(0.01)


def every_second(rule: Rule) -> Rule:
    return replace(rule, interval_s=1.0)


async def test_rules_run_on_their_interval_until_stopped(database, store, clock: Clock) -> None:
    stop = asyncio.Event()
    rules = [every_second(rule_of("hot")), every_second(rule_of("bad", sql="SELECT $now, oops"))]
    engine = RuleEngine(rules, database, store, clock)
    hold(database, clock.now())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run(stop))
        await reached(lambda: all(s.evaluations >= 3 for s in engine.stats.values()))
        stop.set()
        await asyncio.wait_for(running, 5)
    assert engine.stats["bad"].failures == engine.stats["bad"].evaluations
    assert engine.stats["hot"].failures == 0
    assert {alert.rule for alert in store.kept.values()} == {"hot", "rule_failing"}


async def test_a_stop_does_not_wait_for_a_query_that_hangs(store, clock, monkeypatch) -> None:
    monkeypatch.setattr(engine_module, "STOP_TIMEOUT_S", 0.05)
    stop, never = asyncio.Event(), asyncio.Event()
    querier = Scripted(never)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(RuleEngine([rule_of()], querier, store, clock).run(stop))
        await reached(lambda: bool(querier.timeouts))
        stop.set()
        await asyncio.wait_for(running, 5)


async def test_what_could_not_be_saved_is_saved_at_the_stop(database, store, clock) -> None:
    stop = asyncio.Event()
    store.is_full = True
    hold(database, clock.now())
    engine = RuleEngine([rule_of()], database, store, clock)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run(stop))
        await reached(lambda: engine.stats["hot"].evaluations > 0)
        store.is_full = False
        stop.set()
        await asyncio.wait_for(running, 5)
    assert len(store.kept) == 1


async def test_alerts_of_before_are_read_again_where_the_store_is_slow_or_away(
    store, clock, monkeypatch
) -> None:
    monkeypatch.setattr("gpuwarden_rules.evaluation.engine.SAVE_TIMEOUT_S", 0.01)
    monkeypatch.setattr("gpuwarden_rules.evaluation.engine.START_RETRY_S", 0.0)
    answers, active = iter([60, QueryError("the store cannot be read now"), 0]), store.active

    async def slow():
        match next(answers):
            case QueryError() as error:
                raise error
            case seconds:
                await asyncio.sleep(seconds)
        return await active()

    monkeypatch.setattr(store, "active", slow)
    await RuleEngine([], None, store, clock).start()
    assert list(answers) == []


class Replayed:
    """A Querier that gives the rows of each instant: the same for every caller, at any time."""

    def __init__(self, nodes_at: dict[datetime, list[str] | None]) -> None:
        self.nodes_at = nodes_at

    async def query(self, sql, params=None, *, timeout_s=None, row_limit=None) -> Result:
        nodes = [] if "last_seen_at" in sql else self.nodes_at.get(params["now"], [])
        if nodes is None:
            raise QueryError("the database is away")
        return Result(["node"], ["VARCHAR"], [(node,) for node in nodes], truncated=False)


@settings(max_examples=30)
@given(
    st.lists(st.one_of(st.none(), st.lists(st.sampled_from("ab"), unique=True)), max_size=25),
    st.sampled_from([("0s", "0s"), ("1m", "0s"), ("0s", "2m"), ("1m", "90s")]),
)
async def test_a_restart_between_any_two_evaluations_changes_no_episode(
    store_type, history: list[list[str] | None], held: tuple[str, str]
) -> None:
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)
    rule = rule_of(hold=held[0], keep=held[1], sql="SELECT node FROM nodes WHERE $now IS NOT NULL")
    querier = Replayed(
        {start + timedelta(seconds=30 * i): nodes for i, nodes in enumerate(history)}
    )
    kept = []
    for restarts in (False, True):
        clock, kept_in, engine = ManualClock(start), store_type(), None
        for _ in history:
            if engine is None or restarts:
                engine = RuleEngine([rule], querier, kept_in, clock)
                await engine.start()
            await engine.evaluate("hot")
            await engine.close()
            clock.advance(30)
        kept.append(kept_in.kept)
    assert kept[0] == kept[1]


async def test_a_store_that_fails_for_long_costs_no_unbounded_memory(
    store, clock, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(runtime_module, "UNSAVED_MAX", 3)
    answers = [["a"], []] * 6
    engine = RuleEngine([rule_of()], Scripted(*answers), store, clock)
    store.is_full = True
    for _ in range(11):
        await engine.evaluate("hot")
        clock.advance(3600)  # so far apart that nothing flaps
    assert engine.stats["hot"].dropped == 3
    store.is_full = False
    await engine.evaluate("hot")
    assert len(store.kept) == 3
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("resolved alerts are not recorded") == 1


async def test_a_store_that_fails_at_the_stop_is_named_and_no_crash(
    database, store, clock, caplog
) -> None:
    hold(database, clock.now())
    engine = RuleEngine([rule_of()], database, store, clock)
    store.is_full = True
    await engine.evaluate("hot")
    await engine.close()
    (record,) = [r for r in caplog.records if r.getMessage() == "alerts not saved at stop"]
    assert (record.alerts, record.reason) == (1, "[Errno 28] No space left on device")


async def test_a_quick_rule_waits_neither_for_slow_ones_nor_for_replays(store, clock) -> None:
    """Slow rules and rules with a past, more than there are places, are all stuck from the start."""
    stop, never = asyncio.Event(), asyncio.Event()

    class AllHangButOne(Scripted):
        async def query(self, sql, params=None, **limits) -> Result:
            if "slow" in sql:
                await never.wait()
            return await super().query(sql, params, **limits)

    past = [rule_of(f"past{n}", hold="5m", sql="SELECT slow, $now") for n in range(3)]
    slow = [rule_of(f"slow{n}", sql="SELECT slow, $now") for n in range(3)]
    rules = [*past, *slow, every_second(rule_of("hot"))]
    engine = RuleEngine(rules, AllHangButOne(), store, clock)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(engine.run(stop))
        await reached(lambda: engine.stats["hot"].evaluations >= 2)
        assert not any(engine.stats[rule.name].evaluations for rule in (*past, *slow))
        never.set()
        stop.set()
        await asyncio.wait_for(running, 10)


async def test_a_stopped_engine_leaves_no_task_thread_or_timer(database, store, clock) -> None:
    tasks_before, threads_before = asyncio.all_tasks(), set(threading.enumerate())
    for _ in range(3):
        stop = asyncio.Event()
        engine = RuleEngine([every_second(rule_of())], database, store, clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engine.run(stop))
            await reached(lambda engine=engine: engine.stats["hot"].evaluations > 0)
            stop.set()
    assert asyncio.all_tasks() == tasks_before
    assert set(threading.enumerate()) <= threads_before
    timers = [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]
    assert not [h for h in timers if "EvaluationSchedule" in repr(h)]


async def test_alerts_of_a_silent_node_are_stale_then_end_and_none_begins(
    database, store, clock
) -> None:
    """The rule's window keeps what the node sent last; a node that speaks again is judged again."""
    engine = RuleEngine([rule_of(sql=HOUR)], database, store, clock)
    heard_at = clock.now()
    hold(database, heard_at, node="n1")
    for node in ("n1", "n2"):
        hear(database, node, heard_at)
    await engine.evaluate("hot")
    clock.advance(59)
    await engine.evaluate("hot")
    assert [alert.stale_since for alert in engine.alerts] == [None]
    clock.advance(6)
    silent_at = clock.now()
    hold(database, clock.now(), node="n2")
    assert await engine.evaluate("hot") == []
    (alert,) = store.kept.values()
    assert (alert.state, alert.stale_since) == (FIRING, silent_at)
    clock.advance(20)
    hear(database, "n2", clock.now())
    (told,) = await engine.evaluate("hot")
    assert told.alert.labels == {"node": "n2"}
    clock.advance(1800)
    hear(database, "n2", clock.now())
    (told,) = await engine.evaluate("hot")
    assert (told.alert.labels, told.alert.state) == ({"node": "n1"}, RESOLVED)
    assert told.alert.resolved_reason == "n1 has sent nothing for 30 min, so its state is unknown"
    restarted = RuleEngine([rule_of(sql=HOUR)], database, store, clock)
    await restarted.start()
    await restarted.evaluate("hot")
    assert {a.labels["node"]: a.stale_since for a in restarted.alerts} == {
        "n1": None,
        "n2": None,
    }, "who was not heard because the collector was away is not silent"
