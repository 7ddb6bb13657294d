"""Live policies: each step once, within waits, hours and limits; nothing is done about what is not known to hold."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each
from tests.rules.policies.test_dry_run import HOUR, MINUTE, NOW, alert, policy

from gpuwarden.alert import AlertState
from gpuwarden_rules.policies.case_store import CaseStore, CaseStoreError, PolicyNote
from gpuwarden_rules.policies.cases import (
    ACT_WITHIN,
    OPEN,
    CaseState,
    LiveAlert,
    PolicyCase,
    advance,
    answered,
    digest_of,
    reported,
)
from gpuwarden_rules.policies.language import (
    Policy,
    PolicyState,
    PolicyStep,
    PolicySubject,
    StepKind,
)

ACTS = (PolicyStep(StepKind.CANCEL_JOB, 0),)
NOTE = PolicyNote("policy_answer", "job 11", "kept")
ADA = PolicySubject(node="n0", model="H100", username="ada", job="11")


def live(gpu: int = 0, subject: PolicySubject = ADA, **more: Any) -> LiveAlert:
    return LiveAlert(replace(alert(timedelta(), None, gpu), **more), subject)


class Follower:
    """Policies over time, with what was said and asked for."""

    def __init__(self, *policies: Policy) -> None:
        self.policies = policies
        self.cases: dict[str, PolicyCase] = {}
        self.said: list[tuple[str, StepKind, datetime]] = []

    def step(
        self, at: datetime, *alerts: LiveAlert, reach: tuple[str, ...] = ("ada", "bob")
    ) -> list[CaseState]:
        moves = advance(self.policies, self.cases, alerts, at, may_ask=reach)
        self.cases |= {case.id: case for case in moves.changed}
        self.said += [(case.id, word, at) for case, word in moves.said]
        for case, _ in moves.said:
            self.cases[case.id] = case
        return [case.state for case in self.cases.values()]

    @property
    def only(self) -> PolicyCase:
        (found,) = self.cases.values()
        return found


def test_an_owner_is_asked_once_and_after_the_wait_the_act_is_asked_for_once() -> None:
    one = Follower(policy())
    for minute in range(0, 70, 10):
        one.step(NOW + minute * MINUTE, live())
    assert [(word, at) for _, word, at in one.said] == [(StepKind.ASK_OWNER, NOW)]
    assert (one.only.state, one.only.act_at) == (CaseState.ACTING, NOW + HOUR)
    ended = reported(one.only, NOW + HOUR + MINUTE, is_done=True, note="done, and checked")
    assert ended is not None and ended.state is CaseState.DONE
    assert reported(ended, NOW + HOUR + MINUTE, is_done=False, note="") is None
    one.cases[ended.id] = ended
    assert one.step(NOW + 3 * HOUR, live()) == [CaseState.DONE]
    # The next episode is another case.
    assert one.step(NOW + 4 * HOUR, live(active_at=NOW + 4 * HOUR, fired_at=NOW + 4 * HOUR)) == [
        CaseState.DONE,
        CaseState.WAITS,
    ]


@each("changed", [
    {"state": AlertState.PENDING}, {"simulated": True}, {"muted": "silenced by bob"}, {"stale_since": NOW},
    {"unknown_since": NOW},
])  # fmt: skip
def test_what_is_not_known_to_hold_on_a_real_gpu_is_never_acted_upon(
    changed: dict[str, Any],
) -> None:
    begun = Follower(policy(steps=ACTS, after_s=60))
    assert begun.step(NOW, live()) == [CaseState.WAITS]
    assert begun.step(NOW + HOUR, live(**changed)) == [CaseState.WAITS]
    assert Follower(policy(steps=ACTS)).step(NOW, live(**changed)) == []


@each("later, note", [
    (None, "the alert ended"), (live(subject=replace(ADA, job="12")), "another job"), (live(subject=replace(ADA, username="bob")), "another job"),
    (live(subject=replace(ADA, labels={"env": "prod"})), "protected"),
])  # fmt: skip
def test_what_has_changed_is_spared(later: LiveAlert | None, note: str) -> None:
    one = Follower(policy(steps=ACTS, after_s=60, protect=({"env": "prod"},)))
    one.step(NOW, live())
    assert one.step(NOW + HOUR, *([later] if later else [])) == [CaseState.SPARED]
    assert note in one.only.note


def test_who_cannot_be_asked_and_what_has_no_job_is_left_to_a_person() -> None:
    one = Follower(policy())
    assert one.step(NOW, live(), reach=()) == [CaseState.LEFT] and one.said == []
    two = Follower(policy(steps=ACTS))
    assert two.step(NOW, live(subject=replace(ADA, job=""))) == [CaseState.LEFT]


def test_an_owner_keeps_it_or_ends_it_at_once() -> None:
    one = Follower(policy())
    one.step(NOW, live())
    kept = answered(one.only, NOW + MINUTE, until=NOW + 5 * HOUR)
    assert kept is not None
    one.cases[kept.id] = kept
    assert one.step(NOW + 4 * HOUR, live()) == [CaseState.KEPT]
    one.step(NOW + 5 * HOUR, live())
    assert [word for _, word, _ in one.said] == [StepKind.ASK_OWNER] * 2
    ends = answered(one.only, NOW + 5 * HOUR, until=None)
    assert ends is not None
    one.cases[ends.id] = ends
    assert one.step(NOW + 5 * HOUR, live()) == [CaseState.ACTING]
    assert answered(one.only, NOW, until=None) is None
    longest = answered(kept, NOW, until=NOW + timedelta(days=900))
    assert longest is not None and longest.next_at == NOW + timedelta(days=14)


def test_one_act_ends_a_job_on_all_of_its_gpus() -> None:
    one = Follower(policy(steps=ACTS))
    states = one.step(NOW, *(live(gpu) for gpu in range(4)))
    assert sorted(states) == [CaseState.ACTING, *[CaseState.WITH_OTHERS] * 3]


def test_a_storm_is_left_to_a_person() -> None:
    one = Follower(policy(steps=ACTS, at_once=3))
    alerts = [live(gpu, replace(ADA, job=str(gpu))) for gpu in range(5)]
    assert set(one.step(NOW, *alerts)) == {CaseState.LEFT}


def test_an_actor_that_does_not_report_is_a_failure_and_is_not_asked_again() -> None:
    one = Follower(policy(steps=ACTS))
    one.step(NOW, live())
    assert one.step(NOW + ACT_WITHIN, live()) == [CaseState.FAILED]
    assert one.step(NOW + 2 * ACT_WITHIN, live()) == [CaseState.FAILED]


DRAINS = (PolicyStep(StepKind.DRAIN_NODE, 0),)


def done(one: Follower, at: datetime) -> None:
    """The actor has done what it was asked for."""
    for case in list(one.cases.values()):
        found = reported(case, at, is_done=True, note="done, and checked")
        if found is not None:
            one.cases[case.id] = found


def test_a_node_is_opened_again_once_when_no_alert_of_the_rule_fires_on_it_for_long_enough() -> (
    None
):
    one = Follower(policy(steps=DRAINS, undo_after_s=2 * 3600))
    assert one.step(NOW, live()) == [CaseState.ACTING]
    done(one, NOW + MINUTE)
    drained = one.only
    assert drained.waits_for_undo and drained.is_followed
    one.step(NOW + HOUR)
    assert one.only.undo_at == NOW + 3 * HOUR
    # Another GPU of the node is sick now: it is kept closed. What stands for a silenced alert counts as sick.
    one.step(NOW + 2 * HOUR, live(1, muted="silenced by bob"))
    assert one.cases[drained.id].undo_at is None
    one.step(NOW + 4 * HOUR)
    one.step(NOW + 6 * HOUR - MINUTE)
    assert [case.act for case in one.cases.values()] == [StepKind.DRAIN_NODE]
    one.step(NOW + 6 * HOUR)
    one.step(NOW + 6 * HOUR + MINUTE)
    back = [case for case in one.cases.values() if case.act is StepKind.RESUME_NODE]
    assert [(case.node, case.policy, case.state) for case in back] == [
        ("n0", "cull", CaseState.ACTING)
    ]
    assert not one.cases[drained.id].is_followed
    # What was opened again does not stand for an act on the next alert.
    done(one, NOW + 6 * HOUR + 2 * MINUTE)
    later = live(active_at=NOW + 7 * HOUR, fired_at=NOW + 7 * HOUR, began_at=NOW + 5 * HOUR)
    assert CaseState.ACTING in one.step(NOW + 7 * HOUR, later)


@each("more", [{"undo_after_s": None}, {"undo_after_s": 60.0, "name": "other"}])
def test_a_node_of_a_policy_without_undo_stays_closed(more: dict[str, Any]) -> None:
    one = Follower(policy(steps=DRAINS, undo_after_s=60.0))
    one.step(NOW, live())
    done(one, NOW + MINUTE)
    one.policies = (policy(steps=DRAINS, **more),)
    for hour in range(1, 9):
        one.step(NOW + hour * HOUR)
    assert [case.act for case in one.cases.values()] == [StepKind.DRAIN_NODE]
    assert not one.only.is_followed


def test_a_drain_that_failed_is_not_undone() -> None:
    one = Follower(policy(steps=DRAINS, undo_after_s=60.0))
    one.step(NOW, live())
    for hour in range(1, 5):
        one.step(NOW + hour * HOUR)
    assert (one.only.state, one.only.is_followed) == (CaseState.FAILED, False)


@each("act, subject, state", [
    (StepKind.CALL_WEBHOOK, PolicySubject(node="n0"), CaseState.ACTING),
    (StepKind.RUN_COMMAND, PolicySubject(node="n0"), CaseState.ACTING),
    (StepKind.DELETE_POD, PolicySubject(node="n0", username="ada"), CaseState.LEFT),
    (StepKind.REBOOT_NODE, PolicySubject(node="n0"), CaseState.ACTING),
    (StepKind.CORDON_NODE, PolicySubject(node="n0"), CaseState.ACTING),
])  # fmt: skip
def test_each_act_needs_what_it_is_about(
    act: StepKind, subject: PolicySubject, state: CaseState
) -> None:
    one = Follower(policy(steps=(PolicyStep(act, 0),)))
    assert one.step(NOW, live(subject=subject)) == [state]


def test_an_act_of_the_site_is_done_for_each_alert() -> None:
    one = Follower(policy(steps=(PolicyStep(StepKind.RUN_COMMAND, 0),)))
    assert one.step(NOW, live(0), live(1)) == [CaseState.ACTING, CaseState.ACTING]


def test_a_policy_that_is_off_leaves_no_case_open_but_those_on_their_way() -> None:
    one = Follower(
        policy(steps=ACTS), policy(name="other", after_s=3600, steps=ACTS, rule="gpu_idle_held")
    )
    one.step(NOW, live())
    one.policies = ()
    assert sorted(one.step(NOW + MINUTE, live())) == [CaseState.ACTING, CaseState.SPARED]
    assert sorted(one.step(NOW + HOUR, live())) == [CaseState.FAILED, CaseState.SPARED]


_ALERT = st.builds(
    live,
    gpu=st.integers(0, 5),
    subject=st.builds(PolicySubject, node=st.just("n0"), username=st.sampled_from(["ada", "bob", ""]), job=st.sampled_from(["1", "2", "3", ""])),
    muted=st.sampled_from([None, None, "silenced"]), simulated=st.sampled_from([False, False, True]),
    stale_since=st.sampled_from([None, None, NOW]), state=st.sampled_from([AlertState.FIRING, AlertState.FIRING, AlertState.PENDING]),
)  # fmt: skip
_MOMENT = st.tuples(
    st.integers(1, 90),
    st.lists(_ALERT, max_size=6, unique_by=lambda one: one.alert.fingerprint),
    st.sampled_from(["", "keep", "end", "done", "failed", "stop"]),
)


@settings(max_examples=100)
@given(
    st.lists(_MOMENT, min_size=1, max_size=20), st.sampled_from([None, 1, 2]), st.sampled_from([None, 2, 4]),
    st.sampled_from([ACTS, (PolicyStep(StepKind.ASK_OWNER, 600), *ACTS), (PolicyStep(StepKind.TELL_OWNER, 60), PolicyStep(StepKind.WARN_OWNER, 600), *ACTS)]),
)  # fmt: skip
def test_whatever_comes_each_case_acts_at_most_once_and_only_on_what_holds(
    moments: list[Any], an_hour: int | None, at_once: int | None, steps: Any
) -> None:
    one = Follower(
        policy(steps=steps, an_hour=an_hour, at_once=at_once, protect=({"username": "bob"},))
    )
    at, acts = NOW, []
    for minutes, alerts, news in moments:
        at += minutes * MINUTE
        before = dict(one.cases)
        one.step(at, *alerts)
        holding = {a.alert.fingerprint: a for a in alerts if a.may_be_acted_upon}
        for case in one.cases.values():
            old = before.get(case.id)
            if case.state is CaseState.ACTING and (
                old is None or old.state is not CaseState.ACTING
            ):
                acts.append(case)
                found = holding[case.fingerprint]
                assert (found.subject.job, found.subject.username) == (case.job, case.username)
                assert case.job and case.username != "bob" and case.act_at == at
            if old is not None and old.state not in OPEN:
                assert case == old
        for case in [c for c in one.cases.values() if c.state in OPEN][:1]:
            later = {
                "keep": answered(case, at, until=at + HOUR), "end": answered(case, at, until=None),
                "done": reported(case, at, is_done=True, note=""), "failed": reported(case, at, is_done=False, note=""),
            }.get(news)  # fmt: skip
            if later is not None:
                one.cases[later.id] = later
    assert len({case.id for case in acts}) == len(acts)
    if an_hour is not None:
        times = sorted(case.act_at for case in acts if case.act_at is not None)
        assert all(
            later - first >= HOUR for first, later in zip(times, times[an_hour:], strict=False)
        )


def test_only_what_a_dry_run_was_about_counts_for_its_digest() -> None:
    plain = policy()
    assert digest_of(plain) == digest_of(replace(plain, state=PolicyState.ON, path="other", line=9))
    assert digest_of(plain) != digest_of(replace(plain, after_s=1.0))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    found = CaseStore(tmp_path / "policies.sqlite")
    yield found
    found.close()


def a_case(**more: Any) -> PolicyCase:
    one = Follower(policy())
    one.step(NOW, live())
    return replace(one.only, **more)


def test_cases_and_what_is_to_be_said_outlive_the_process(store: CaseStore, tmp_path: Path) -> None:
    case = a_case()
    store.save([case], {case.id: StepKind.ASK_OWNER}, NOW)
    again = CaseStore(tmp_path / "policies.sqlite")
    assert again.cases(NOW) == {case.id: case} and again.unsaid() == [(case, StepKind.ASK_OWNER)]
    again.save([replace(case, note="x")], {}, NOW)
    assert [word for _, word in again.unsaid()] == [StepKind.ASK_OWNER]
    again.was_said(case.id, PolicyNote("policy_ask_owner", "job 11", ""))
    assert again.unsaid() == []
    last, notes = again.notes()
    assert [note.action for note in notes] == ["policy_ask_owner"]
    again.forget_notes(last)
    assert again.notes() == (0, [])
    ended = replace(case, state=CaseState.DONE, ended_at=NOW)
    again.save([ended], {}, NOW)
    assert again.cases(NOW + HOUR) == {} and again.cases(NOW) == {case.id: ended}
    # While its alert fires it is known, and does not begin again.
    assert again.cases(NOW + 99 * HOUR, [case.id, "other"]) == {case.id: ended}
    again.close()


def test_a_link_serves_once_and_not_for_ever(store: CaseStore) -> None:
    case = a_case()
    store.save([case], {}, NOW)
    first, second, late = (store.question(case, NOW + hours * HOUR) for hours in (2, 2, 1))
    assert store.asked(first, NOW) == case and store.asked("guess", NOW) is None
    assert store.asked(late, NOW + HOUR) is None
    kept = replace(case, state=CaseState.KEPT)
    assert store.answer(first, kept, NOW, NOTE)
    assert not store.answer(first, kept, NOW, NOTE) and not store.answer(second, kept, NOW, NOTE)
    assert store.case(case.id) == kept
    assert first not in (
        store._path.read_bytes() + store._path.with_name("policies.sqlite-wal").read_bytes()
    ).decode("latin-1")


def test_stops_and_looks_are_kept(store: CaseStore) -> None:
    assert store.stopped() is None and store.seen() == frozenset()
    store.stop("ada", NOW)
    store.see("d1", NOW)
    assert store.stopped() == (NOW.replace(tzinfo=UTC), "ada") and store.seen() == {"d1"}
    store.start()
    assert store.stopped() is None


def test_a_file_of_a_newer_release_is_refused_and_stays_as_it_is(
    store: CaseStore, tmp_path: Path
) -> None:
    store._db.execute("PRAGMA user_version = 2")
    with pytest.raises(CaseStoreError, match="has version 2, this release reads 1"):
        CaseStore(tmp_path / "policies.sqlite")
    assert store._db.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "policies.sqlite"
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(CaseStoreError, match="move it away"):
        CaseStore(path)
