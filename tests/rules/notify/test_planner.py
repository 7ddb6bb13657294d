"""Messages about incidents are planned: who gets what, when; examples, and what holds always."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import log2

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.rules.notify.alerts import GRAPH, Incidents, make_alert

from gpuwarden.alert import AlertState, Severity
from gpuwarden.incident import IncidentState
from gpuwarden_rules.incidents.graph import CauseGraph
from gpuwarden_rules.notify.message import ALERTS_MAX, MessageReason, Notification
from gpuwarden_rules.notify.planner import IncidentNotice, plan
from gpuwarden_rules.notify.routing import Owners, Recipient, Route, RoutingPolicy
from gpuwarden_rules.notify.sentences import Style, rendered

ONE = RoutingPolicy({"chat": Recipient()}, [Route(receivers=("chat",))])
EDITS = RoutingPolicy({"chat": Recipient(updates=True)}, [Route(receivers=("chat",))])
KEEPER = RoutingPolicy({"am": Recipient(keeps_state=True)}, [Route(receivers=("am",))])
S = timedelta(seconds=1)
H = timedelta(hours=1)


def told(messages: list[Notification]) -> list[tuple[str, int, int]]:
    """Why, how many fire and how many are over, of each message."""
    return [(str(m.reason), len(m.firing), len(m.resolved)) for m in messages]


class Run:
    """Plans one after another, as the notifier does."""

    def __init__(self, policy: RoutingPolicy = ONE) -> None:
        self.policy = policy
        self.incidents = Incidents()
        self.state: dict[str, IncidentNotice] = {}

    def __call__(self, alerts, now: datetime) -> list[Notification]:
        self.view = self.incidents.view(alerts, now)
        done = plan(self.state, self.view, self.policy, now)
        self.state, self.wake_at = done.state, done.wake_at
        self.unrouted, self.muted = done.unrouted, done.muted
        assert done.wake_at is None or done.wake_at > now, "it would plan without end"
        return done.messages


def test_an_incident_is_one_message_that_names_its_root_first(alert_of, start) -> None:
    run = Run()
    alerts = [alert_of("gpu_idle", gpu=3), *(alert_of(gpu=gpu) for gpu in range(8))]
    (message,) = run(alerts, start)
    assert told([message]) == [("opened", 9, 0)]
    assert message.incident.place == "dgx-07"
    assert [a.rule for a in message.firing] == ["gpu_hot"] * 8 + ["gpu_idle"]
    assert message.roots == 8
    assert message.usd_per_hour == pytest.approx(23.6)
    assert run(alerts, start + S) == []
    assert run.wake_at == start + 4 * H


def test_what_follows_is_news_only_for_receivers_that_replace_what_they_have(
    alert_of, start
) -> None:
    root, follows = alert_of(), alert_of("gpu_idle", severity=Severity.INFO, at=start + 10 * S)
    for policy, expected in (
        (ONE, []),
        (EDITS, [("updated", 2, 0)]),
        (KEEPER, [("updated", 2, 0)]),
    ):
        run = Run(policy)
        assert len(run([root], start)) == 1
        found = run([root, follows], start + 10 * S) + run([root, follows], start + 30 * S)
        assert told(found) == expected
        # Only the consequence is left: the root is over, the incident is not.
        found = run([follows], start + 20 * 60 * S)
        assert [(m.reason, m.incident.rule) for m in found] == (
            [(MessageReason.UPDATED, "gpu_hot")] * bool(expected)
        )


def test_a_root_that_comes_later_and_is_worse_is_told_in_the_same_incident(alert_of, start) -> None:
    run = Run()
    hot, lost = alert_of(severity=Severity.WARNING), alert_of("gpu_lost", at=start + 60 * S)
    (first,) = run([hot], start)
    assert run([hot, lost], start + 29 * S) == []
    (second,) = run([hot, lost], start + 60 * S)
    assert (second.group, second.reason) == (first.group, MessageReason.ESCALATED)
    assert (second.incident.rule, second.incident.id) == ("gpu_lost", first.incident.id)
    assert run([hot], start + 600 * S) == []
    (end,) = run([], start + H)
    assert (end.reason, end.incident.rule, len(end.resolved)) == (
        MessageReason.RESOLVED,
        "gpu_lost",
        2,
    )
    assert end.incident.severity is Severity.CRITICAL


def test_an_incident_that_became_twice_as_large_is_told_again(alert_of, start) -> None:
    run, alerts, messages = Run(), [], []
    for number in range(32):
        alerts.append(alert_of(gpu=number, at=start + 30 * number * S))
        messages += run(alerts, start + 30 * number * S)
    assert [m.incident.roots for m in messages] == [1, 2, 4, 8, 16, 32]
    assert len({m.incident.id for m in messages}) == 1
    assert len(run([*alerts, alert_of(gpu=99, at=start + H)], start + H)) == 1  # another incident


def test_a_node_that_makes_up_alerts_keeps_no_other_from_being_named(alert_of, start) -> None:
    """Racks and switches are labels that nodes send, so a node may be in the incident of any other."""
    racks = CauseGraph(
        together={"gpu_hot": ("rack",)},
        causes={"gpu_idle": {"gpu_hot": ("rack",)}},
        gather_s=GRAPH.gather_s,
    )
    for name in ("gpu_hot", "gpu_idle"):
        run = Run()
        run.incidents.graph, run.incidents.nodes = (
            racks,
            {n: {"rack": "r1"} for n in ("aaa", "victim")},
        )
        made_up = [
            with_rack(alert_of(node="aaa", gpu=gpu, usd_per_hour=99.0))
            for gpu in range(ALERTS_MAX + 9)
        ]
        assert len(run(made_up, start)) == 1
        later = start + 60 * S
        victim = with_rack(alert_of(name, node="victim", severity=Severity.WARNING, at=later))
        (message,) = run([*made_up, victim], later)
        assert message.reason is MessageReason.ESCALATED
        assert "victim" in rendered(message, "text", Style(UTC)).body
        assert run([*made_up, victim], later + H) == []


def with_rack(alert):
    return replace(alert, labels={**alert.labels, "rack": "r1"})


def test_each_node_that_joins_a_small_incident_is_told(alert_of, start) -> None:
    run, alerts, messages = Run(), [], []
    run.incidents.graph = CauseGraph(together={"gpu_hot": ("fleet",)}, gather_s=GRAPH.gather_s)
    for number in range(30):
        at = start + 30 * number * S
        alerts.append(alert_of(node=f"n{number}", at=at))
        messages += run(alerts, at)
    assert [m.incident.nodes for m in messages] == [1, 2, 3, 5, 8, 12, 18, 27]


def test_an_incident_that_is_over_is_told_once_and_one_that_comes_back_keeps_its_pace(
    alert_of, start
) -> None:
    run = Run()
    (first,) = run([alert_of()], start)
    assert run([], start + 10 * S) == []
    assert run.wake_at == start + 30 * S
    (end,) = run([], start + 30 * S)
    assert (end.reason, end.incident.state) == (MessageReason.RESOLVED, IncidentState.RESOLVED)
    assert end.resolved[0].state is AlertState.RESOLVED
    again = alert_of(at=start + 40 * S)
    assert run([again], start + 40 * S) == []
    (back,) = run([again], start + 60 * S)
    assert (back.group, back.reason) == (first.group, MessageReason.OPENED)
    run([], start + H)
    run([], start + 2 * H)
    assert run.state == {}
    flapping = Run()
    messages = []
    for second in range(1, 121):
        alerts = [alert_of(at=start + second * S)] if second % 4 < 2 else []
        messages += flapping(alerts, start + second * S)
    assert len(messages) <= 1 + 120 / 30


def test_what_is_still_open_is_told_again_unless_nobody_knows_it(alert_of, start) -> None:
    run = Run()
    run([alert_of()], start)
    (message,) = run([alert_of()], start + 4 * H)
    assert message.reason is MessageReason.REPEATED


def test_merged_incidents_end_for_who_was_told_of_them(alert_of, start) -> None:
    run = Run()
    cold = replace(alert_of("gpu_idle", gpu=9), labels={"gpu_uuid": "GPU-0"})
    hot = replace(alert_of(gpu=9, at=start + S), labels={"gpu_uuid": "GPU-0"}, began_at=start + H)
    assert len(run([cold, hot], start + S)) == 2
    lost = replace(alert_of("gpu_lost", gpu=9, at=start + 60 * S), labels={"gpu_uuid": "GPU-0"})
    graph = replace(
        GRAPH, causes={name: {"gpu_lost": ("gpu_uuid",)} for name in ("gpu_idle", "gpu_hot")}
    )
    run.incidents.graph = graph
    (end,) = run([cold, hot, lost], start + 60 * S)
    assert (end.reason, end.incident.state) == (MessageReason.MERGED, IncidentState.MERGED)
    assert end.incident.merged_into in {i.id for i in run.view.incidents}
    assert told(run([], start + 2 * H)) == [("resolved", 0, 1)]


def test_a_muted_incident_is_not_told_and_ends_quietly_and_is_told_when_it_is_muted_no_more(
    alert_of, start
) -> None:
    run = Run()
    muted = alert_of(muted="silenced until 18:00 by alice: maintenance")
    assert run([muted], start) == []
    assert run.muted == 1
    assert run([], start + 2 * S) == []
    run = Run()
    run([muted], start)
    assert told(run([alert_of()], start + 5 * S)) == [("opened", 1, 0)]
    # A receiver that got an incident gets its end, also of what was muted meanwhile.
    muted = alert_of(muted="acknowledged until 18:00 by alice")
    assert run([muted], start + 9 * H) == []
    assert told(run([], start + 10 * H)) == [("resolved", 0, 1)]


def test_a_receiver_that_wants_no_ends_gets_none(alert_of, start) -> None:
    run = Run(
        RoutingPolicy({"pager": Recipient(wants_resolved=False)}, [Route(receivers=("pager",))])
    )
    assert told(run([alert_of()], start)) == [("opened", 1, 0)]
    assert run([], start + 60 * S) == []
    assert run([], start + H) == []
    assert run.state == {}


def test_the_root_decides_on_routes_with_the_severity_of_the_incident(alert_of, start) -> None:
    import re

    critical = Route(
        receivers=("pager",), match={"severity": (re.compile("critical"),)}, continues=True
    )
    run = Run(
        RoutingPolicy(
            {"pager": Recipient(), "chat": Recipient()},
            [critical, Route(receivers=("chat",), match={"rule": (re.compile("gpu_hot"),)})],
        )
    )
    hot = alert_of(severity=Severity.WARNING)
    assert [
        m.receiver for m in run([hot, alert_of("gpu_idle", severity=Severity.INFO)], start)
    ] == ["chat"]
    found = run([hot, alert_of("gpu_idle")], start + H)
    assert {(m.receiver, m.reason.value) for m in found} == {
        ("pager", "opened"),
        ("chat", "escalated"),
    }
    run.policy = RoutingPolicy({"chat": Recipient()}, [])
    run([hot, alert_of("gpu_idle")], start + 2 * H)
    assert run.unrouted == 1


def test_owners_are_told_of_their_own(alert_of, start) -> None:
    owners = Owners("{user}@example.com", {"root": "ops@example.com"})
    policy = RoutingPolicy(
        {"mail": Recipient(is_personal=True)}, [Route(receivers=("mail",))], owners
    )
    run = Run(policy)
    alerts = [alert_of(gpu=0, owner="ann"), alert_of(gpu=1, owner="root"), alert_of(gpu=2)]
    messages = run(alerts, start)
    assert {m.address: len(m.firing) for m in messages} == {
        "ann@example.com": 1,
        "ops@example.com": 1,
    }
    # The GPU goes to another user while it is hot: the new one has to know as well.
    alerts[0] = replace(alerts[0], owner="bob")
    assert "bob@example.com" in [m.address for m in run(alerts, start + 60 * S)]


def test_a_system_that_keeps_state_is_told_all_at_once_and_again_and_no_muted_alert(
    alert_of, start
) -> None:
    run = Run(KEEPER)
    alerts = [alert_of(gpu=gpu, severity=Severity.INFO) for gpu in range(2 * ALERTS_MAX + 1)]
    alerts.append(alert_of(gpu=999, muted="silenced"))
    expected = [("opened", ALERTS_MAX, 0), ("opened", ALERTS_MAX, 0), ("opened", 1, 0)]
    assert told(run(alerts, start)) == expected
    assert run.wake_at == start + timedelta(minutes=5)
    found = told(run(alerts[1:], start + S))
    assert found == [("updated", ALERTS_MAX, 1), ("updated", ALERTS_MAX, 0)]


def test_an_incident_of_very_many_is_one_message_that_counts_them(alert_of, start) -> None:
    run = Run()
    roots = [alert_of(gpu=gpu) for gpu in range(ALERTS_MAX + 5)]
    (message,) = run(roots, start)
    assert (len(message.firing), message.firing_total) == (ALERTS_MAX, ALERTS_MAX + 5)
    (end,) = run([], start + H)
    assert (len(end.resolved), end.resolved_total) == (ALERTS_MAX, ALERTS_MAX + 5)
    # A quarter of the places is for consequences.
    (message,) = Run()([*roots, *(alert_of("gpu_idle", gpu=a.labels["gpu"]) for a in roots)], start)
    assert (len(message.firing), message.roots) == (ALERTS_MAX, ALERTS_MAX * 3 // 4)


def test_an_incident_costs_what_its_root_costs_or_its_consequences_until_it_ends(
    alert_of, start
) -> None:
    run = Run()
    root, follows = alert_of(usd_per_hour=None), alert_of("gpu_idle", usd_per_hour=60.0)
    (message,) = run([root, follows], start)
    assert (message.usd_per_hour, message.usd_so_far) == (60, pytest.approx(12))
    assert run([], start + 6 * S) == []
    # The end is sent later, when the receiver's pace allows it.
    (end,) = run([], start + 30 * S)
    assert (end.usd_per_hour, end.usd_so_far) == (60, pytest.approx(12.1))


def test_the_end_of_an_incident_that_is_not_known_any_more_is_that_of_what_was_sent(
    alert_of, start
) -> None:
    """It ended while the process did not run."""
    run = Run()
    run([alert_of(), alert_of(gpu=1)], start)
    run.incidents = Incidents()
    (end,) = run([], start + H)
    assert (end.reason, end.incident.state) == (MessageReason.RESOLVED, IncidentState.RESOLVED)
    assert (end.incident.resolved_at, end.incident.members) == (start + H, {})
    assert end.resolved_total == 2
    assert [alert.resolved_at for alert in end.resolved] == [start + H] * 2


def test_a_receiver_that_is_removed_and_comes_back_is_sent_a_new_message(alert_of, start) -> None:
    both = RoutingPolicy(
        {"chat": Recipient(), "mail": Recipient()}, [Route(receivers=("chat", "mail"))]
    )
    run = Run(both)
    first, _ = run([alert_of()], start)
    run.policy = RoutingPolicy({"mail": Recipient()}, [Route(receivers=("mail",))])
    for second in (1, 2):
        assert run([alert_of()], start + second * S) == []
    run.policy = both
    (again,) = run([alert_of()], start + 60 * S)
    assert (again.receiver, again.reason) == ("chat", MessageReason.OPENED)
    assert (again.group, again.id != first.id) == (first.group, True)


def test_a_clock_that_is_set_back_silences_nothing(alert_of, start) -> None:
    run = Run()
    back = start - H
    assert len(run([alert_of()], back)) == 1
    run([alert_of()], start)
    assert told(run([], back + 60 * S)) == [("resolved", 0, 1)]


class Planner(RuleBasedStateMachine):
    """Alerts come, go, are muted and routed elsewhere; a model keeps what each receiver heard."""

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime.fromisoformat("2026-01-01T00:00:00Z")
        self.active: dict[str, object] = {}
        self.run = Run(self._policy(["chat"]))
        self.believes: dict[str, set[str]] = {"chat": set(), "mail": set()}
        self.ids: set[str] = set()
        self.spoken: Counter[tuple[str, str]] = Counter()
        self.severities: dict[str, int] = {}

    def _policy(self, receivers: list[str]) -> RoutingPolicy:
        recipients = {"chat": Recipient(), "mail": Recipient()}
        return RoutingPolicy(recipients, [Route(receivers=tuple(receivers), repeat_s=7200)])

    @rule(
        name=st.sampled_from(["gpu_hot", "gpu_idle", "gpu_lost"]),
        gpu=st.integers(0, 3),
        severity=st.sampled_from(Severity),
        muted=st.sampled_from([None, None, "silenced"]),
    )
    def fire(self, name, gpu, severity, muted) -> None:
        alert = make_alert(name, gpu=gpu, severity=severity, muted=muted, at=self.now)
        if before := self.active.get(alert.fingerprint):
            alert = replace(before, muted=muted)
        self.active[alert.fingerprint] = alert

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def end(self, data) -> None:
        del self.active[data.draw(st.sampled_from(sorted(self.active)))]

    @rule(receivers=st.sampled_from([["chat"], ["mail"], ["chat", "mail"], []]))
    def route(self, receivers) -> None:
        self.run.policy = self._policy(receivers)

    @rule(seconds=st.sampled_from([0, 1, 29, 60, 900, 3600]))
    def look(self, seconds) -> None:
        self.now += timedelta(seconds=seconds)
        for message in self.run(self.active.values(), self.now):
            self._hear(message)
        assert self.run(self.active.values(), self.now) == []

    @rule()
    def wait_until_all_is_told(self) -> None:
        for _ in range(20):
            self.look(900)
        opened = [i for i in self.run.view.incidents if i.state is IncidentState.OPEN]
        for receiver in {r for route in self.run.policy.routes for r in route.receivers}:
            assert {i.id for i in opened if i.muted is None} <= self.believes[receiver]
        for believed in self.believes.values():
            assert believed <= {i.id for i in opened}

    def _hear(self, message: Notification) -> None:
        assert message.id not in self.ids
        self.ids.add(message.id)
        incident, believed = message.incident, self.believes[message.receiver]
        key = (message.receiver, incident.id)
        if message.is_over:
            assert incident.state is not IncidentState.OPEN
            believed.remove(incident.id)
            self.spoken[key] = 0
            return
        assert incident.state is IncidentState.OPEN
        assert incident.muted is None
        assert (message.reason is MessageReason.OPENED) == (incident.id not in believed)
        assert message.firing
        believed.add(incident.id)
        if message.reason is not MessageReason.REPEATED:
            self.spoken[key] += 1
            # Opened, two worse severities, and each doubling of four roots of three rules.
            assert self.spoken[key] <= 1 + 2 + log2(4)


Planner.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestPlanner = Planner.TestCase
