"""What policies would have done: every act within its waits, hours and limits, and the wrong ones named."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.rules.policies.test_language import HOURS

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden_rules.backtest.replay import Replay
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.evaluation.fleet import locations
from gpuwarden_rules.policies.dry_run import (
    WRONG_WITHIN,
    ActFacts,
    Outcome,
    PolicyTrial,
    dry_run,
    judged,
    tried,
)
from gpuwarden_rules.policies.language import (
    OfficeHours,
    Policy,
    PolicyState,
    PolicyStep,
    PolicySubject,
    StepKind,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
UNTIL = NOW + timedelta(days=2)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ASKS = (PolicyStep(StepKind.ASK_OWNER, 3600), PolicyStep(StepKind.CANCEL_JOB, 0))


def policy(**more: Any) -> Policy:
    known: dict[str, Any] = {
        "name": "cull", "state": PolicyState.DRY_RUN, "rule": "gpu_idle_held", "match": {}, "protect": (),
        "after_s": 0.0, "steps": ASKS, "hours": None, "an_hour": None, "at_once": None, "undo_after_s": None, "path": "p", "line": 1,
    }  # fmt: skip
    return Policy(**{**known, **more})


def alert(begins: timedelta, lasts: timedelta | None, gpu: int = 0) -> Alert:
    """One that fires `begins` after NOW, for `lasts`; None: it still fires."""
    fired = NOW + begins
    return Alert(
        fingerprint=f"{gpu:016x}", rule="gpu_idle_held", severity=Severity.WARNING,
        state=AlertState.RESOLVED if lasts is not None else AlertState.FIRING,
        labels={"node": f"n{gpu // 8}", "gpu": str(gpu % 8), "gpu_uuid": f"GPU-{gpu}"}, summary="", remedy="",
        value=None, usd_per_hour=2.0, began_at=fired - 30 * MINUTE, active_at=fired, fired_at=fired,
        resolved_at=None if lasts is None else fired + lasts, seen_at=fired,
    )  # fmt: skip


def outcomes(
    of: Policy, alerts: Sequence[Alert], subjects: Sequence[PolicySubject] | None = None
) -> list[PolicyTrial]:
    return tried(
        of, alerts, subjects or [PolicySubject(node=a.labels["node"]) for a in alerts], UNTIL
    )


def test_an_alert_that_ends_in_the_wait_is_spared_and_one_that_lasts_meets_the_act() -> None:
    before, spared, acted, waits = outcomes(
        policy(after_s=600),
        [
            alert(0 * HOUR, 5 * MINUTE, 0),
            alert(0 * HOUR, HOUR, 1),
            alert(0 * HOUR, 3 * HOUR, 2),
            alert(47 * HOUR + 30 * MINUTE, None, 3),
        ],
    )
    assert (before.outcome, before.first_at) == (Outcome.ENDED, None)
    assert (spared.outcome, spared.first_at) == (Outcome.SPARED, NOW + 10 * MINUTE)
    assert (acted.outcome, acted.act_at) == (Outcome.ACTED, NOW + 70 * MINUTE)
    assert waits.outcome is Outcome.WAITS


def test_only_what_matches_is_tried_and_what_is_protected_is_left() -> None:
    alerts = [alert(0 * HOUR, 3 * HOUR, gpu) for gpu in range(3)]
    subjects = [
        PolicySubject(username="ada"),
        PolicySubject(username="bob"),
        PolicySubject(username="bea", job="prod-1"),
    ]
    found = tried(
        policy(match={"username": "b*"}, protect=({"job": "prod-*"},)), alerts, subjects, UNTIL
    )
    assert [one.outcome for one in found] == [Outcome.ACTED, Outcome.PROTECTED]


def test_an_act_ends_a_job_on_all_of_its_gpus() -> None:
    alerts = [
        alert(0 * HOUR, 9 * HOUR, 0),
        alert(10 * MINUTE, 9 * HOUR, 1),
        alert(20 * HOUR, 9 * HOUR, 2),
    ]
    first, second, later = outcomes(policy(), alerts, [PolicySubject(job="7")] * 3)
    assert (first.outcome, first.act_at) == (Outcome.ACTED, NOW + HOUR)
    assert (second.outcome, second.act_at) == (Outcome.WITH_OTHERS, NOW + HOUR)
    # It began after the act: the job came back.
    assert (later.outcome, later.act_at) == (Outcome.ACTED, NOW + 21 * HOUR)


def test_a_drained_node_ends_what_all_its_gpus_do() -> None:
    steps = (PolicyStep(StepKind.DRAIN_NODE, 0),)
    found = outcomes(policy(steps=steps), [alert(0 * HOUR, 9 * HOUR, gpu) for gpu in (0, 1, 8)])
    assert [one.outcome for one in found] == [Outcome.ACTED, Outcome.WITH_OTHERS, Outcome.ACTED]


def test_a_limit_holds_acts_back_and_a_storm_is_left_to_a_person() -> None:
    alerts = [alert(0 * HOUR, 150 * MINUTE, gpu) for gpu in range(4)]
    found = outcomes(policy(an_hour=1), alerts)
    assert [one.act_at for one in found] == [NOW + HOUR, NOW + 2 * HOUR, None, None]
    assert [one.outcome for one in found][2:] == [Outcome.LIMITED] * 2
    assert {one.outcome for one in outcomes(policy(at_once=3), alerts)} == {Outcome.MANY}
    assert {one.outcome for one in outcomes(policy(at_once=4), alerts)} == {Outcome.ACTED}
    # What an act has ended does not count, though its alert still fires in the history.
    turns = [alert(begins * HOUR, 30 * HOUR, begins) for begins in (0, 5, 10)]
    assert {one.outcome for one in outcomes(policy(at_once=1), turns)} == {Outcome.ACTED}


gpus = st.lists(
    st.tuples(st.integers(0, 2000), st.one_of(st.none(), st.integers(1, 2000)), st.integers(0, 5)),
    max_size=12,
)


@given(
    gpus,
    st.one_of(st.none(), st.integers(1, 3)),
    st.one_of(st.none(), st.just(HOURS)),
    st.integers(0, 90),
    st.integers(0, 180),
)
def test_no_act_breaks_a_wait_a_limit_or_the_hours(
    given_alerts: list[tuple[int, int | None, int]],
    an_hour: int | None,
    hours: OfficeHours | None,
    after: int,
    wait: int,
) -> None:
    steps = (PolicyStep(StepKind.ASK_OWNER, 60.0 * wait), PolicyStep(StepKind.CANCEL_JOB, 0))
    of = policy(an_hour=an_hour, hours=hours, after_s=60.0 * after, steps=steps)
    alerts = [
        alert(begins * MINUTE, None if lasts is None else lasts * MINUTE, number)
        for number, (begins, lasts, _) in enumerate(given_alerts)
    ]
    subjects = [PolicySubject(job=f"{job}" if job else "") for *_, job in given_alerts]
    found = tried(of, alerts, subjects, UNTIL)
    assert len(found) == len(alerts)
    acts = sorted(one.act_at for one in found if one.outcome is Outcome.ACTED and one.act_at)
    for one in found:
        assert (one.act_at is not None) == (one.outcome in (Outcome.ACTED, Outcome.WITH_OTHERS))
        if one.act_at is None:
            continue
        assert one.act_at <= UNTIL
        assert one.alert.resolved_at is None or one.act_at < one.alert.resolved_at
        if one.outcome is Outcome.ACTED:
            assert one.alert.fired_at is not None
            assert one.act_at >= one.alert.fired_at + (after + wait) * MINUTE
            assert hours is None or hours.next_at(one.act_at) == one.act_at
        else:
            assert one.act_at in acts
    if an_hour is not None:
        for first, last in zip(acts, acts[an_hour:], strict=False):
            assert last - first >= HOUR


def test_an_act_saves_what_came_after_it_and_is_wrong_if_its_job_worked_again() -> None:
    alerts = [alert(0 * HOUR, 4 * HOUR, gpu) for gpu in range(3)]
    alerts.append(alert(46 * HOUR + 30 * MINUTE, None, 3))
    found = outcomes(
        policy(),
        alerts,
        [PolicySubject(job="7"), PolicySubject(job="8"), PolicySubject(), PolicySubject()],
    )
    facts = [ActFacts("7"), ActFacts("9"), ActFacts(busy_again_at=NOW + 90 * MINUTE), ActFacts()]
    saved, changed, wrong, young = judged(policy(), found, facts, UNTIL)
    assert (saved.saved_usd, saved.is_wrong, saved.is_judged) == (6.0, False, True)
    assert (changed.outcome, changed.act_at, changed.saved_usd) == (Outcome.CHANGED, None, None)
    assert wrong.is_wrong
    assert (young.outcome, young.saved_usd, young.is_judged) == (Outcome.ACTED, 1.0, False)
    # Jobs of a node that is drained end by themselves.
    drains = policy(steps=(PolicyStep(StepKind.DRAIN_NODE, 0),))
    assert judged(drains, found, facts, UNTIL) == found


async def test_jobs_and_work_are_read_of_the_time_of_the_act(database) -> None:
    """GPU 0: ada's job, which ends. GPU 1: bob's job, busy again 20 minutes after the act. GPU 2: a job that had left.
    GPU 3: allocated to a job without a process."""
    row = {"node": "n0", "simulated": False}
    node = {
        "node": "n0",
        "simulated": False,
        "labels": '{"team": "vision"}',
        "agent_id": "a",
        "boot_id": "b",
        "agent_version": "1",
    }
    seen = {"first_seen_at": NOW - 9 * HOUR, "last_seen_at": UNTIL}
    database.insert("nodes", [{**node, **seen}])
    database.insert("gpus", [{**row, **seen, "gpu": g, "gpu_uuid": f"GPU-{g}"} for g in range(4)])
    owners = {0: ("7", "ada"), 1: ("8", "bob"), 2: ("9", "bob")}
    database.insert(
        "process_1m",
        [
            {
                **row, "ts": NOW + at * MINUTE, "gpu": gpu, "gpu_uuid": f"GPU-{gpu}", "pid": 7, "process_name": "python",
                "job": job, "username": username, "samples": 6,
            }
            for gpu, (job, username) in owners.items()
            for at in range(-20, 30 if gpu == 2 else 200)
        ],
    )  # fmt: skip
    database.insert(
        "gpu_1m",
        [
            {
                **row, "ts": NOW + at * MINUTE, "gpu": gpu, "gpu_uuid": f"GPU-{gpu}", "samples": 60,
                "detail_samples": 0, "health_samples": 0,
                "busy_seconds": 50.0 if (gpu == 1 and at >= 80) or gpu == 2 else 0.0, "idle_seconds": 10.0, "unknown_seconds": 0.0,
            }
            for gpu in range(4)
            for at in range(-20, 200)
        ],
    )  # fmt: skip
    database.insert(
        "allocation_samples",
        [
            {
                **row, "ts": NOW + at * MINUTE, "gpu": 3, "gpu_uuid": "GPU-3", "scheduler": "slurm",
                "job": "12", "username": "eve",
            }
            for at in range(-20, 200)
        ],
    )  # fmt: skip
    alerts = tuple(alert(0 * HOUR, 3 * HOUR, gpu) for gpu in range(4))
    (rule,) = [one for one in builtin_rules() if one.name == "gpu_idle_held"]
    replay = Replay(rule, NOW - 9 * HOUR, UNTIL, 300, 60, 1, 1, alerts)
    places = await locations(database)
    done = await dry_run(policy(match={"team": "vision"}), replay, places, database)
    ada, bob, gone, given_out = done.trials
    assert [(t.subject.job, t.subject.username) for t in done.trials] == [
        ("7", "ada"), ("8", "bob"), ("9", "bob"), ("12", "eve"),
    ]  # fmt: skip
    assert (ada.outcome, ada.saved_usd, ada.is_wrong) == (Outcome.ACTED, 4.0, False)
    assert (bob.is_wrong, bob.busy_again_at) == (True, NOW + 80 * MINUTE)
    assert gone.outcome is Outcome.CHANGED
    assert (given_out.outcome, given_out.is_wrong) == (Outcome.ACTED, False)
    assert done.saved_usd == 8.0
    assert {username: len(several) for username, several in done.by_user().items()} == {"ada": 1, "bob": 1, "eve": 1}  # fmt: skip
    nothing = replace(replay, episodes=())
    assert (await dry_run(policy(), nothing, places, database)).trials == ()
    assert WRONG_WITHIN == HOUR
