"""The simulated week in small: what is planned fits, what fires is judged, and a short replay catches its faults."""

import asyncio
from datetime import timedelta

import pytest
from bench import rules_fidelity
from bench.fidelity import scenarios, verdict
from bench.fidelity.fleet import START_MS, Fleet, Hour, Silence
from bench.fidelity.scenarios import MINUTE_MS, Order, Scenario, ScriptedFault
from bench.fidelity.warehouse import HOUR_S, Warehouse

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.clock import from_ms
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_simulator import FaultKind

RULES = {rule.name: rule for rule in builtin_rules()}
LOST = Scenario("lost", 20, (Order(FaultKind.GPU_LOST),), {"gpu_lost": 5, "xid_critical": 1})


def incident(
    scenario: Scenario = LOST, begin_min: float = 10, node: str = "node-000"
) -> ScriptedFault:
    begin_ms = round(begin_min * MINUTE_MS)
    end_ms = begin_ms + round(scenario.minutes * MINUTE_MS)
    return ScriptedFault(scenario, node, frozenset({1}), (1,), begin_ms, end_ms)


def alert(rule: str, fired_min: float, lasts_min: float = 10, gpu: int = 1) -> Alert:
    at = from_ms(START_MS) + timedelta(minutes=fired_min)
    labels = {"node": "node-000", "gpu": str(gpu), "gpu_uuid": f"GPU-{gpu}"}
    return Alert(
        fingerprint=f"{rule}/{gpu}",
        rule=rule,
        severity=Severity.WARNING,
        state=AlertState.RESOLVED,
        labels=labels,
        summary="",
        remedy="",
        value=None,
        usd_per_hour=None,
        began_at=at,
        active_at=at,
        fired_at=at,
        resolved_at=at + timedelta(minutes=lasts_min),
        seen_at=at,
    )


def judged(*alerts: Alert) -> verdict.Verdict:
    return verdict.judge([incident()], alerts, builtin_rules(), 120 * MINUTE_MS)


def test_every_scenario_names_rules_that_exist_and_fits_the_models_of_its_nodes() -> None:
    every = [s for part in scenarios.PARTS.values() for s in part]
    for scenario in every:
        assert {*scenario.expects, *scenario.may} <= set(RULES), scenario.name
    Fleet(8, 1, scenarios.plan(8, 30, 1))  # raises where a node cannot have a fault


def test_faults_on_one_part_of_a_node_do_not_meet() -> None:
    planned = scenarios.plan(16, 60, 1)
    lasting = [i for i in planned if i.scenario.minutes and i.gpus is not None]
    for number, one in enumerate(lasting):
        for other in lasting[number + 1 :]:
            if one.node == other.node and set(one.part) & set(other.part):
                assert one.end_ms < other.begin_ms or other.end_ms < one.begin_ms


def test_boards_that_broke_for_good_are_replaced_when_nothing_else_is_wrong() -> None:
    planned = scenarios.plan(16, 60, 1)
    replaced = [i for i in planned if i.scenario is scenarios.MAINTENANCE]
    assert {i.node for i in replaced} >= {"node-002", "node-006"}
    for one in replaced:
        beside = [i for i in planned if i.node == one.node and i is not one and i.scenario.minutes]
        assert not [i for i in beside if i.begin_ms < one.end_ms and one.begin_ms < i.end_ms]
    broken = {
        (i.node, gpu)
        for i in planned
        if i.scenario.is_mended and i.begin_ms < 20 * 60 * MINUTE_MS
        for gpu in i.part[:1]
    }
    assert broken <= {(i.node, gpu) for i in replaced for gpu in i.part}


def test_a_board_is_in_the_inventory_from_when_it_was_put_in_and_the_one_before_until_then() -> (
    None
):
    order = Order(FaultKind.BOARD_REPLACED, at_min=4)
    reboot = Order(FaultKind.REBOOT, gpus="none")
    replaced = incident(Scenario("replaced", 8, (reboot, order), {}), begin_min=20)
    fleet = Fleet(1, 1, [replaced])
    warehouse = Warehouse(fleet.describe())
    warehouse.load(fleet.read(0, HOUR_S), 0)

    def seen(minutes: float) -> dict[str, float]:
        at = from_ms(START_MS) + timedelta(minutes=minutes)
        sql = "SELECT gpu_uuid, last_seen_at FROM gpus WHERE gpu = 1 AND $now IS NOT NULL"
        found = asyncio.run(warehouse.query(sql, {"now": at})).rows
        return {uuid: (last - from_ms(START_MS)).total_seconds() / 60 for uuid, last in found}

    (old,) = seen(10)
    assert seen(24) == {old: 19.75}
    later = seen(40)
    assert len(later) == 2
    assert (later.pop(old), [*later.values()]) == (19.75, [40])


def test_an_alert_in_time_is_caught_and_one_that_comes_late_or_never_is_said() -> None:
    found = judged(alert("gpu_lost", 17))
    assert (found.scores["gpu_lost"].late, found.scores["xid_critical"].missed) == (1, 1)
    assert found.scores["gpu_lost"].minutes == [7]
    assert [line.split()[0] for line in found.wrong] == ["late", "missed"]
    found = judged(alert("gpu_lost", 12), alert("xid_critical", 10))
    assert (found.figures()["caught"], found.wrong) == (2, [])


def test_an_alert_that_no_fault_explains_is_false_unless_it_only_follows_from_a_cause() -> None:
    caught = alert("gpu_lost", 12, 20), alert("xid_critical", 10)
    assert judged(*caught, alert("straggler", 13, gpu=3)).scores["straggler"].false == 1
    quiet = judged(*caught, alert("straggler", 13))
    assert (quiet.scores["straggler"].false, quiet.scores["straggler"].follows) == (0, 1)


def test_messages_of_a_fault_are_counted_and_one_in_several_incidents_is_named() -> None:
    found = judged(alert("gpu_lost", 12, 20), alert("xid_critical", 10))
    assert found.figures()["messages_per_fault"] == 1
    assert (found.messages["opened"], found.messages["resolved"], found.split) == (1, 1, [])
    found = judged(alert("gpu_lost", 12, 5), alert("gpu_lost", 28, 5), alert("xid_critical", 10, 4))
    assert found.figures()["messages_per_fault"] == 2
    assert found.split == [
        "several   0:10 lost: gpu_lost (node-000 GPU 1), gpu_lost (node-000 GPU 1)"
    ]


def test_what_is_not_due_by_the_end_is_not_missed() -> None:
    lost = RULES["gpu_lost"], RULES["xid_critical"]
    found = verdict.judge([incident(begin_min=10)], [], lost, 12 * MINUTE_MS)
    assert {name: score.faults for name, score in found.scores.items()} == {
        "gpu_lost": 0,
        "xid_critical": 1,
    }


@pytest.fixture(scope="module")
def short() -> tuple[list[ScriptedFault], list[Alert]]:
    """One H100 node, whose GPU 1 is lost for a quarter of an hour, half an hour long."""
    planned = [incident()]
    warehouse = Warehouse(Fleet(1, 1, ()).describe())
    warehouse.load(Fleet(1, 1, planned).read(0, HOUR_S // 2), 0)
    names = ("gpu_lost", "xid_critical", "node_down", "nvlink_down", "gpu_power_brake")
    replays = [rules_fidelity.ReplayedRule(RULES[name], warehouse) for name in names]
    for replayed in replays:
        end = from_ms(START_MS + HOUR_S // 2 * 1000)
        asyncio.run(replayed.follow(from_ms(START_MS), end))
    return planned, [a for replayed in replays for a in replayed.episodes.values()]


def test_a_lost_gpu_is_caught_in_time_and_nothing_else_fires(
    short: tuple[list[ScriptedFault], list[Alert]],
) -> None:
    planned, episodes = short
    found = verdict.judge(planned, episodes, builtin_rules(), 30 * MINUTE_MS)
    assert found.wrong == []
    assert found.figures()["caught"] == 2
    assert "gpu_lost 1" in verdict.table(found)


def test_the_inventory_says_when_a_node_was_last_heard_of_at_the_instant_that_is_asked_about() -> (
    None
):
    warehouse = Warehouse(Fleet(2, 1, ()).describe())
    away = Silence("node-001", START_MS + 600_000, START_MS + 1_200_000)
    warehouse.load(Hour({}, [away]), 0)

    def unheard_s(minutes: float) -> dict[str, float]:
        sql = "SELECT node, epoch($now::TIMESTAMP - last_seen_at) AS s FROM nodes ORDER BY node"
        now = from_ms(START_MS) + timedelta(minutes=minutes)
        rows = asyncio.run(warehouse.query(sql, {"now": now})).records()
        return {row["node"]: row["s"] for row in rows}

    assert unheard_s(5) == {"node-000": 0, "node-001": 0}
    assert unheard_s(15) == {"node-000": 0, "node-001": 300}
    assert unheard_s(25) == {"node-000": 0, "node-001": 0}


def test_a_node_is_silent_a_minute_after_it_was_last_heard_of_until_it_is_heard_again() -> None:
    warehouse = Warehouse(Fleet(1, 1, ()).describe())
    away = Silence("node-000", START_MS + 600_000, START_MS + 1_200_000)
    warehouse.load(Hour({}, [away]), 0)
    seen = {s: warehouse.silent(from_ms(START_MS + s * 1000)) for s in (659, 660, 1199, 1200)}
    assert {s for s, silent in seen.items() if silent == {"node-000"}} == {660, 1199}


def test_rows_that_no_rule_reads_any_more_are_forgotten_and_their_rollups_are_not() -> None:
    fleet = Fleet(1, 1, ())
    warehouse = Warehouse(fleet.describe())
    for begin_s in (0, HOUR_S):
        warehouse.load(fleet.read(begin_s, begin_s + 600), begin_s)
    counted = "SELECT count(*) FROM {} WHERE ts < make_timestamp_ms({})"
    since_ms = START_MS + HOUR_S * 1000

    def before(table: str) -> int:
        return int(warehouse.db.run(counted.format(table, since_ms)).rows[0][0])

    assert before("gpu_samples") == 0
    assert before("gpu_1m") == 8 * 10
    assert before("gpu_1h") == 8
