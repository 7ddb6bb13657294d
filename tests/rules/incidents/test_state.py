"""Alerts of one cause make one incident: as seen on real fleets, and in any order of arrival."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuwarden.alert import Alert, AlertState, Severity, fingerprint
from gpuwarden.incident import Incident, IncidentState
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.incidents.graph import CauseGraph, graph_of
from gpuwarden_rules.incidents.state import LAG, SPREAD, step

START = datetime(2026, 1, 1, 10, 15, tzinfo=UTC)
S = timedelta(seconds=1)
MIN = timedelta(minutes=1)
RULES = {rule.name: rule for rule in builtin_rules()}
GRAPH = graph_of(RULES.values())
RACKS = {
    f"n{number}": {"rack": f"r{number // 4}", "site": "berlin", "team": "ml"}
    for number in range(12)
}


def alert(name: str, at: datetime = START, **labels: str | int) -> Alert:
    """A firing alert of a built-in rule, with the labels that its rule has of these."""
    rule = RULES[name]
    given = {"node": "n1", "gpu": "0", **{key: str(value) for key, value in labels.items()}}
    given["gpu_uuid"] = f"GPU-{given['node']}-{given['gpu']}"
    found = {key: given[key] for key in rule.labels if key in given}
    return Alert(
        fingerprint=fingerprint(name, found),
        rule=name,
        severity=rule.severity,
        consequence=rule.consequence,
        state=AlertState.FIRING,
        labels=found,
        summary=f"{name} at {found.get('node')}",
        remedy="Look.",
        value=None,
        usd_per_hour=2.0,
        began_at=at,
        active_at=at,
        fired_at=at,
        seen_at=at,
    )


class Run:
    """Steps one after another, as the service makes them, with a restart between any two."""

    def __init__(self, graph: CauseGraph = GRAPH) -> None:
        self.graph = graph
        self.incidents: dict[str, Incident] = {}

    def __call__(self, now: datetime, *alerts: Alert) -> list[Incident]:
        """Open incidents after a look; each is the same after another step."""
        done = step(self.incidents, alerts, self.graph, RACKS, now)
        self.incidents = msgspec.json.decode(
            msgspec.json.encode(done.incidents), type=dict[str, Incident]
        )
        assert self.incidents == done.incidents
        self.wake_at, self.waiting = done.wake_at, done.waiting
        again = step(self.incidents, alerts, self.graph, RACKS, now)
        assert again.incidents == self.incidents
        return [i for i in self.incidents.values() if i.state is IncidentState.OPEN]


ECC = ("xid_warning", "row_remap_pending", "recovery_action", "ecc_uncorrectable")
HEAT = (
    "temperature_margin_low",
    "gpu_thermal_throttle_sw",
    "temperature_limit_reached",
    "gpu_thermal_throttle_hw",
)


@pytest.mark.parametrize(
    ("names", "root"), [(ECC, "ecc_uncorrectable"), (HEAT, "gpu_thermal_throttle_hw")]
)
def test_one_fault_of_a_gpu_is_one_incident_of_its_cause_in_whatever_order_it_is_seen(
    names, root
) -> None:
    found = set()
    for seed in range(6):
        order = random.Random(seed).sample(names, len(names))
        alerts = [alert(name, START + 3 * number * S, xid=63) for number, name in enumerate(order)]
        run = Run()
        for number in range(len(alerts)):
            assert run(alerts[number].fired_at, *alerts[: number + 1]) == []
        assert run.wake_at is not None
        (incident,) = run(max(run.wake_at, alerts[-1].fired_at), *alerts)
        rules = frozenset(member.rule for member in incident.members.values())
        found.add((incident.rule, incident.place, incident.severity, rules))
        assert all(m.cause for m in incident.members.values() if m.rule != root)
    assert found == {(root, "n1 GPU 0", Severity.CRITICAL, frozenset(names))}


def went_down(at: datetime, node: int) -> Alert:
    """A node that last reported a minute before the alerts of the test."""
    return replace(alert("node_down", at, node=f"n{node}"), began_at=START - MIN)


def test_twelve_silent_nodes_are_one_incident_with_what_they_have_in_common() -> None:
    rack = [alert("agent_stale", START + n * S, node=f"n{n}") for n in range(4, 8)]
    run = Run()
    assert run(START + 3 * MIN, *rack) == []
    down = [went_down(START + 3 * MIN, n) for n in range(4, 8)]
    later = START + 3 * MIN + 15 * S
    (incident,) = run(later, *rack, *down)
    assert incident.summary == "4 nodes of rack r1 stopped reporting at 10:14 UTC."
    assert (incident.labels, incident.nodes, incident.rule) == ({"rack": "r1"}, 4, "node_down")
    # Another rack follows: what they share then is not a rack.
    more = [went_down(later + MIN, n) for n in range(4)]
    (incident,) = run(later + MIN, *rack, *down, *more)
    assert incident.summary == "8 nodes stopped reporting at 10:14 UTC."
    # A node that goes long after is another matter.
    late = went_down(later + 2 * SPREAD, 9)
    assert len(run(later + 2 * SPREAD + 15 * S, *rack, *down, *more, late)) == 2


@pytest.mark.parametrize("name", ["fabric_unhealthy", "nvlink_down", "sxid_fatal", "gpu_lost"])
def test_what_several_trays_of_a_rack_have_at_once_is_one_incident_of_the_rack(name: str) -> None:
    trays = [alert(name, START + n * S, node=f"n{n}", sxid=20034, switch="0") for n in (4, 5, 6)]
    elsewhere = alert(name, START + 3 * S, node="n9", sxid=20034, switch="0")
    of_rack, other = Run()(START + 5 * MIN, *trays, elsewhere)
    assert of_rack.place == "rack r1"
    assert of_rack.summary.startswith("3 ") and " of rack r1 " in of_rack.summary
    assert {member.labels["node"] for member in of_rack.members.values()} == {"n4", "n5", "n6"}
    assert other.nodes == 1


def test_a_cause_that_comes_later_takes_over_and_merges_what_had_been_apart() -> None:
    run = Run()
    hot, xid = alert("gpu_thermal_throttle_sw"), alert("xid_critical", START + MIN, xid=79)
    apart = run(START + 2 * MIN, hot, xid)
    assert {i.rule for i in apart} == {"gpu_thermal_throttle_sw", "xid_critical"}
    lost = replace(alert("gpu_lost", START + 5 * MIN), began_at=START + LAG)
    (incident,) = run(START + 5 * MIN, hot, xid, lost)
    assert (incident.id, incident.rule) == (min(apart, key=lambda i: i.opened_at).id, "gpu_lost")
    (merged,) = (i for i in run.incidents.values() if i.state is IncidentState.MERGED)
    assert (merged.merged_into, merged.firing) == (incident.id, [])
    # A cause that began long after is none.
    down = alert("node_down", START + 5 * MIN + LAG + S)
    assert len(run(down.fired_at + 15 * S, hot, xid, lost, down)) == 2


def test_what_follows_joins_while_the_cause_holds_or_when_it_began_while_it_held() -> None:
    run = Run()
    lost = alert("gpu_lost")
    run(START + 15 * S, lost)
    idle = alert("gpu_idle_free", START + 40 * MIN)
    (incident,) = run(START + 40 * MIN, lost, idle)
    assert incident.members[idle.fingerprint].cause == lost.fingerprint
    (incident,) = run(START + 50 * MIN, idle)  # the root is over, the incident is not
    assert (incident.rule, incident.severity) == ("gpu_lost", Severity.INFO)
    held = replace(alert("gpu_idle_held", START + 60 * MIN), began_at=START + 45 * MIN)
    (incident,) = run(START + 60 * MIN, idle, held)
    other = alert("oversized_gpu", START + 61 * MIN, gpu=1)
    assert len(run(START + 63 * MIN, idle, held, other)) == 2
    assert run(START + 64 * MIN) == []
    assert {i.state for i in run.incidents.values()} == {IncidentState.RESOLVED}


def test_an_alert_that_comes_back_goes_on_in_its_incident_and_after_a_while_opens_another() -> None:
    run = Run()
    (first,) = run(START + MIN, alert("gpu_power_brake"))
    assert run(START + 2 * MIN) == []
    again = alert("gpu_power_brake", START + 8 * MIN)
    (incident,) = run(START + 8 * MIN, again)
    assert (incident.id, incident.members[again.fingerprint].active_at) == (
        first.id,
        START + 8 * MIN,
    )
    run(START + 9 * MIN)
    late = alert("gpu_power_brake", START + 9 * MIN + GRAPH.reopens_within(["gpu_power_brake"]) + S)
    (incident,) = run(late.fired_at + MIN, late)
    assert incident.id != first.id


def test_an_xid_that_comes_back_after_reboots_is_one_incident_and_one_of_another_gpu_is_not() -> (
    None
):
    run = Run()
    (first,) = run(START + MIN, alert("xid_critical", xid=119))
    assert run(START + 13 * MIN) == []  # rebooted
    again = alert("xid_critical", START + 30 * MIN, xid=119)
    assert [i.id for i in run(START + 31 * MIN, again)] == [first.id]
    assert run(START + 43 * MIN) == []
    third = alert("xid_critical", START + 60 * MIN, xid=119)
    broken = replace(alert("xid_after_reboots", START + 60 * MIN, xid=119), began_at=START)
    other = alert("xid_critical", START + 60 * MIN, xid=119, gpu=1)
    run(START + 60 * MIN, third, broken, other)
    incident, beside = run(START + 62 * MIN, third, broken, other)
    assert (incident.id, incident.rule) == (first.id, "xid_after_reboots")
    assert [m.labels["gpu"] for m in beside.members.values()] == ["1"]
    run(START + 70 * MIN)
    late = alert("xid_critical", START + 70 * MIN + 24 * 60 * MIN + S, xid=119)
    assert first.id not in {i.id for i in run(late.fired_at + MIN, late)}


def test_gpus_of_one_job_or_node_that_come_at_once_are_one_and_other_rules_are_not() -> None:
    hung = [alert("gpu_hung", START + n * S, node=f"n{n}", job="4711") for n in range(3)]
    run = Run()
    assert [i.summary for i in run(START + MIN, *hung)] == [
        "3 GPUs on 3 nodes of job 4711 stopped working at 10:15 UTC."
    ]
    run = Run()
    alerts = [alert("gpu_idle_free", gpu=3), alert("inforom_invalid", gpu=5)]
    assert len(run(START + MIN, *alerts)) == 2


def test_a_gpu_costs_once_and_what_follows_counts_where_the_cost_of_the_root_is_unknown() -> None:
    root, follows = alert("ecc_uncorrectable"), [alert("recovery_action"), alert("gpu_idle_held")]
    (incident,) = Run()(START + MIN, root, *follows)
    assert incident.usd_per_hour == 2
    (incident,) = Run()(START + MIN, replace(root, usd_per_hour=None), *follows)
    assert incident.usd_per_hour == 2
    (incident,) = Run()(START + MIN, root, alert("ecc_uncorrectable", gpu=1))
    assert incident.usd_per_hour == 4


def test_an_incident_is_muted_with_its_roots_and_unknown_with_all_its_alerts() -> None:
    run = Run()
    root, follows = alert("gpu_lost"), alert("xid_critical", xid=79)
    (incident,) = run(
        START + MIN, replace(root, muted="silenced until 18:00 UTC by alice"), follows
    )
    assert incident.muted == "silenced until 18:00 UTC by alice"
    (incident,) = run(START + MIN, root, replace(follows, muted="acknowledged"))
    assert incident.muted is None
    (incident,) = run(START + MIN, replace(root, unknown_since=START), follows)
    assert incident.unknown_since is None
    stale = [replace(a, unknown_since=START + 2 * MIN) for a in (root, follows)]
    (incident,) = run(START + 3 * MIN, *stale)
    assert incident.unknown_since == START + 2 * MIN


NAMES = (
    "node_down",
    "gpu_lost",
    "ecc_uncorrectable",
    "xid_critical",
    "row_remap_pending",
    "gpu_idle_free",
    "agent_stale",
)
drawn = st.tuples(st.sampled_from(NAMES), st.sampled_from(["n1", "n2", "n5"]), st.integers(0, 1))


def partition(run: Run) -> list[tuple[str, str, str, list[str]]]:
    """The incidents without their names."""
    return sorted(
        (i.root, i.summary, repr(i.labels), sorted(i.members))
        for i in run.incidents.values()
        if i.state is IncidentState.OPEN
    )


@settings(max_examples=20)
@given(st.lists(drawn, min_size=1, max_size=12, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_arrival_within_the_window_does_not_matter(found, chance) -> None:
    """`began_at` is the same, only when each alert is found differs."""
    graph = replace(GRAPH, gather_s=dict.fromkeys(NAMES, 15.0))
    results = []
    for _ in range(3):
        chance.shuffle(found)
        run = Run(graph)
        alerts: list[Alert] = []
        for number, (name, node, gpu) in enumerate(found):
            at = START + number * S
            made = alert(name, at, node=node, gpu=gpu, xid=48)
            alerts.append(replace(made, began_at=START - MIN))
            assert run(at, *alerts) == []
        for second in range(12, 31):
            run(START + second * S, *alerts)
        assert run.waiting == frozenset()
        results.append(partition(run))
    assert results[0] == results[1] == results[2]


class Incidents(RuleBasedStateMachine):
    """Alerts come and go in any order; each step is followed by a restart (see `Run`)."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.active: dict[str, Alert] = {}
        self.run = Run()

    @rule(found=drawn)
    def fire(self, found) -> None:
        name, node, gpu = found
        made = alert(name, self.now, node=node, gpu=gpu, xid=48)
        self.active.setdefault(made.fingerprint, made)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def end(self, data) -> None:
        del self.active[data.draw(st.sampled_from(sorted(self.active)))]

    @rule(seconds=st.sampled_from([1, 20, 60, 400, 3600, -30]))
    def wait(self, seconds) -> None:
        self.now += timedelta(seconds=seconds)

    @invariant()
    def every_firing_alert_is_in_one_open_incident_or_waits(self) -> None:
        opened = self.run(self.now, *self.active.values())
        homes = [member.fingerprint for incident in opened for member in incident.firing]
        assert sorted([*homes, *self.run.waiting]) == sorted(self.active)
        assert all(incident.firing for incident in opened)
        if self.run.waiting:
            assert self.run.wake_at is not None
            assert self.now < self.run.wake_at <= self.now + timedelta(minutes=4)
        for incident in opened:
            for member in incident.members.values():
                assert member.cause is None or member.cause in incident.members
            assert incident.root in incident.members


Incidents.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestIncidents = Incidents.TestCase
