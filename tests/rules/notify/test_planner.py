"""Messages are planned: who gets what, when; examples, and what holds whatever happens."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.rules.notify.alerts import make_alert

from gpuwarden.alert import AlertState, Severity
from gpuwarden_rules.notify.message import ALERTS_MAX, Notification
from gpuwarden_rules.notify.planner import NotificationGroup, plan
from gpuwarden_rules.notify.routing import Owners, Recipient, Route, RoutingPolicy

ONE = RoutingPolicy({"chat": Recipient()}, [Route(receivers=("chat",))])
S = timedelta(seconds=1)


def told(messages: list[Notification]) -> list[tuple[int, int]]:
    """How many fire and how many are over, of each message."""
    return [(len(m.firing), len(m.resolved)) for m in messages]


class Run:
    """Plans one after another, as the notifier does."""

    def __init__(self, policy: RoutingPolicy = ONE) -> None:
        self.policy = policy
        self.state: dict[str, NotificationGroup] = {}

    def __call__(self, alerts, now: datetime) -> list[Notification]:
        done = plan(self.state, alerts, self.policy, now)
        self.state, self.wake_at = done.state, done.wake_at
        self.unrouted, self.muted = done.unrouted, done.muted
        return done.messages


def test_eight_gpus_with_one_cause_are_one_message(alert_of, start) -> None:
    run = Run()
    alerts = [alert_of(gpu=gpu) for gpu in range(8)]
    assert run(alerts, start) == []
    assert run.wake_at == start + S
    (message,) = run(alerts, start + S)
    assert told([message]) == [(8, 0)]
    assert message.labels == {"rule": "gpu_hot", "node": "dgx-07"}
    assert message.usd_per_hour == pytest.approx(23.6)
    assert run(alerts, start + 2 * S) == []


def test_other_nodes_and_rules_are_other_messages(alert_of, start) -> None:
    run = Run()
    alerts = [alert_of(), alert_of(node="dgx-08"), alert_of("gpu_lost")]
    assert told(run(alerts, start + S)) == [(1, 0)] * 3


def test_less_urgent_alerts_wait_for_company(alert_of, start) -> None:
    run = Run()
    first = alert_of(severity=Severity.WARNING)
    second = alert_of(gpu=1, severity=Severity.WARNING, at=start + 20 * S)
    assert run([first, second], start + 29 * S) == []
    assert told(run([first, second], start + 30 * S)) == [(2, 0)]


def test_what_comes_later_waits_for_the_interval_and_is_told_as_news(alert_of, start) -> None:
    run = Run()
    run([alert_of(gpu=1)], start + S)
    alerts = [alert_of(gpu=1), alert_of(gpu=0, at=start + 10 * S)]
    assert run(alerts, start + 12 * S) == []
    assert run.wake_at == start + 31 * S
    (message,) = run(alerts, start + 31 * S)
    assert message.news == 1
    assert [a.labels["gpu"] for a in message.firing] == ["0", "1"]


def test_an_alert_that_is_over_is_told_once(alert_of, start) -> None:
    run = Run()
    run([alert_of()], start + S)
    (message,) = run([], start + 60 * S)
    assert told([message]) == [(0, 1)]
    assert message.resolved[0].resolved_at == start + 60 * S
    assert run([], start + 61 * S) == []
    assert run([], start + 91 * S) == []
    assert run.state == {}


def test_an_alert_that_was_over_before_it_was_told_is_not_told(alert_of, start) -> None:
    run = Run()
    assert run([alert_of()], start) == []
    assert run([], start + S) == []


def test_an_alert_that_comes_and_goes_keeps_the_pace(alert_of, start) -> None:
    run = Run()
    messages = []
    for second in range(1, 121):
        alerts = [alert_of(at=start + second * S)] if second % 4 < 2 else []
        messages += run(alerts, start + second * S)
    assert len(messages) <= 1 + 120 / 30


def test_what_still_fires_is_told_again(alert_of, start) -> None:
    run = Run()
    run([alert_of()], start + S)
    assert run.wake_at == start + S + timedelta(hours=4)
    assert run([alert_of()], run.wake_at - S) == []
    (message,) = run([alert_of()], start + S + timedelta(hours=4))
    assert message.is_repeat
    assert message.news == 0


def test_a_muted_alert_is_not_told_and_ends_quietly(alert_of, start) -> None:
    run = Run()
    muted = alert_of(muted="silenced until 18:00 by alice: maintenance")
    assert run([muted], start + S) == []
    assert run.muted == 1
    assert run([], start + 2 * S) == []


def test_an_alert_that_is_muted_no_more_is_told(alert_of, start) -> None:
    run = Run()
    run([alert_of(muted="inhibited by node_down")], start + S)
    assert told(run([alert_of()], start + 5 * S)) == [(1, 0)]


def test_who_was_told_is_told_the_end_also_of_what_was_muted_meanwhile(alert_of, start) -> None:
    run = Run()
    run([alert_of()], start + S)
    muted = alert_of(muted="acknowledged until 18:00 by alice")
    assert run([muted], start + timedelta(hours=9)) == []
    assert told(run([], start + timedelta(hours=10))) == [(0, 1)]


def test_a_receiver_that_wants_no_ends_gets_none(alert_of, start) -> None:
    run = Run(
        RoutingPolicy({"pager": Recipient(wants_resolved=False)}, [Route(receivers=("pager",))])
    )
    assert told(run([alert_of()], start + S)) == [(1, 0)]
    assert run([], start + 60 * S) == []
    assert run.state == {}


def test_who_was_told_is_told_the_end_though_routes_changed(alert_of, start) -> None:
    run = Run()
    run([alert_of()], start + S)
    run.policy = RoutingPolicy(
        {"chat": Recipient(), "mail": Recipient()}, [Route(receivers=("mail",))]
    )
    (message,) = run([alert_of()], start + 2 * S)
    assert message.receiver == "mail"
    assert {m.receiver for m in run([], start + 60 * S)} == {"chat", "mail"}


def test_another_grouping_tells_nothing_twice(alert_of, start) -> None:
    run = Run()
    alerts = [alert_of(gpu=gpu) for gpu in range(3)]
    run(alerts, start + S)
    run.policy = RoutingPolicy(
        {"chat": Recipient()}, [Route(receivers=("chat",), group_by=("gpu",))]
    )
    assert run(alerts, start + 60 * S) == []


def test_a_receiver_of_two_routes_is_told_once(alert_of, start) -> None:
    routes = [Route(receivers=("chat",), continues=True, group_by=()), Route(receivers=("chat",))]
    run = Run(RoutingPolicy({"chat": Recipient()}, routes))
    assert told(run([alert_of()], start + S)) == [(1, 0)]


def test_alerts_without_a_route_are_counted(alert_of, start) -> None:
    run = Run(RoutingPolicy({"chat": Recipient()}, []))
    assert run([alert_of()], start + S) == []
    assert run.unrouted == 1


def test_owners_are_told_of_their_own(alert_of, start) -> None:
    owners = Owners("{user}@example.com", {"root": "ops@example.com"})
    policy = RoutingPolicy(
        {"mail": Recipient(is_personal=True)}, [Route(receivers=("mail",))], owners
    )
    run = Run(policy)
    alerts = [alert_of(gpu=0, owner="ann"), alert_of(gpu=1, owner="root"), alert_of(gpu=2)]
    messages = run(alerts, start + S)
    assert [m.address for m in messages] == ["ann@example.com", "ops@example.com"]
    # The GPU goes to another user while it is hot: the new one has to know as well.
    alerts[0] = replace(alerts[0], owner="bob")
    assert [m.address for m in run(alerts, start + 60 * S)] == ["bob@example.com"]


def test_a_system_that_keeps_state_is_told_all_at_once_and_again(alert_of, start) -> None:
    run = Run(RoutingPolicy({"am": Recipient(keeps_state=True)}, [Route(receivers=("am",))]))
    alerts = [alert_of(gpu=gpu, severity=Severity.INFO) for gpu in range(2 * ALERTS_MAX + 1)]
    assert told(run(alerts, start)) == [(ALERTS_MAX, 0), (ALERTS_MAX, 0), (1, 0)]
    assert run.wake_at == start + timedelta(minutes=5)
    assert told(run(alerts[1:], start + S)) == [(ALERTS_MAX, 1), (ALERTS_MAX, 0)]


def test_a_group_of_very_many_is_one_message_that_counts_them(alert_of, start) -> None:
    run = Run()
    (message,) = run([alert_of(gpu=gpu) for gpu in range(ALERTS_MAX + 5)], start + S)
    assert (len(message.firing), message.firing_total) == (ALERTS_MAX, ALERTS_MAX + 5)


def test_a_clock_that_is_set_back_silences_nothing(alert_of, start) -> None:
    run = Run()
    back = start - timedelta(hours=1)
    assert told(run([alert_of()], back)) == [(1, 0)]
    run([alert_of()], start)
    assert told(run([], back + 60 * S)) == [(0, 1)]


class Planner(RuleBasedStateMachine):
    """Alerts come, go, are muted and routed elsewhere; a model keeps what each receiver heard."""

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime.fromisoformat("2026-01-01T00:00:00Z")
        self.active: dict[str, object] = {}
        self.run = Run(self._policy(["chat"]))
        self.believes: dict[str, set[str]] = {"chat": set(), "mail": set()}
        self.ids: set[str] = set()

    def _policy(self, receivers: list[str]) -> RoutingPolicy:
        recipients = {"chat": Recipient(), "mail": Recipient()}
        return RoutingPolicy(recipients, [Route(receivers=tuple(receivers), repeat_s=7200)])

    @rule(
        gpu=st.integers(0, 3),
        severity=st.sampled_from(Severity),
        muted=st.sampled_from([None, None, "silenced"]),
    )
    def fire(self, gpu, severity, muted) -> None:
        alert = make_alert(gpu=gpu, severity=severity, muted=muted, at=self.now)
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
        for receiver in {r for route in self.run.policy.routes for r in route.receivers}:
            due = {f for f, a in self.active.items() if a.muted is None}
            assert due <= self.believes[receiver]
        for believed in self.believes.values():
            assert believed <= self.active.keys()

    def _hear(self, message: Notification) -> None:
        assert message.id not in self.ids
        self.ids.add(message.id)
        believed = self.believes[message.receiver]
        for alert in message.resolved:
            assert alert.state is AlertState.RESOLVED
            assert alert.fingerprint in believed
            believed.remove(alert.fingerprint)
        news = {a.fingerprint for a in message.firing[: message.news]}
        assert not news & believed
        assert {a.fingerprint for a in message.firing[message.news :]} <= believed
        assert all(a.muted is None for a in message.firing)
        assert message.firing or message.resolved
        believed |= news


Planner.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestPlanner = Planner.TestCase
