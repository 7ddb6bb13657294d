"""The simulated week in small: what is planned fits, what fires is judged, and a short replay catches its faults."""

import asyncio
from datetime import timedelta

import pytest
from bench import rules_fidelity
from bench.fidelity import scenarios, verdict
from bench.fidelity.fleet import START_MS, Fleet
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
