"""What acts led to: work of others counts, a user who came back at once was wronged, and nothing is said without data."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.each import each

from gpuwarden_rules.policies.cases import CaseState, PolicyCase
from gpuwarden_rules.policies.language import StepKind
from gpuwarden_rules.policies.results import (
    JUDGED_AFTER,
    REUSED_WITHIN,
    judged,
    record_of,
    results_of,
    to_judge,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
ENDED = PolicyCase(
    id="a", policy="cull", act=StepKind.CANCEL_JOB, fingerprint="f0", active_at=NOW - HOUR, node="n0", username="ada",
    job="7", summary="idle", began_at=NOW - 2 * HOUR, state=CaseState.DONE, act_at=NOW, ended_at=NOW,
    usd_per_hour=3.0, rule="gpu_idle_held", gpu_uuid="GPU-0", team="vision",
)  # fmt: skip


def of_gpu(gpu: int, **more: Any) -> PolicyCase:
    return replace(ENDED, id=f"{gpu}", gpu_uuid=f"GPU-{gpu}", **more)


def minute(gpu: int, at: int, busy: float) -> dict[str, Any]:
    return {
        "node": "n0", "simulated": False, "ts": NOW + at * MINUTE, "gpu": gpu, "gpu_uuid": f"GPU-{gpu}", "samples": 60,
        "detail_samples": 0, "health_samples": 0, "busy_seconds": busy, "idle_seconds": 60 - busy, "unknown_seconds": 0.0,
    }  # fmt: skip


def process(gpu: int, at: int, job: str, username: str) -> dict[str, Any]:
    return {
        "node": "n0", "simulated": False, "ts": NOW + at * MINUTE, "gpu": gpu, "gpu_uuid": f"GPU-{gpu}", "pid": 7,
        "process_name": "python", "job": job, "username": username, "samples": 6,
    }  # fmt: skip


async def test_work_of_others_is_saved_and_a_user_who_comes_back_at_once_was_wronged(
    database: Any,
) -> None:
    """GPU 0: bob works from minute 30 for two hours. GPU 1: ada's next job from minute 20. GPU 2: nobody. GPU 3: the job
    itself works on, as its end failed after all. GPU 4: ada comes back after two hours."""
    work = [(0, 30, 150, "8", "bob"), (1, 20, 80, "9", "ada"), (3, 0, 60, "7", "ada"), (4, 120, 180, "9", "ada")]  # fmt: skip
    minutes = [
        (g, at, job, username) for g, begin, end, job, username in work for at in range(begin, end)
    ]
    database.insert("gpu_1m", [minute(g, at, 50.0) for g, at, _, _ in minutes])
    database.insert("gpu_1m", [minute(2, at, 5.0) for at in range(300)])
    database.insert(
        "process_1m", [process(g, at, job, username) for g, at, job, username in minutes]
    )
    cases = [of_gpu(g) for g in range(5)]
    reused, wronged, unused, failed, later = await judged(cases, database, NOW + 6 * HOUR)
    assert (reused.reused_hours, reused.saved_usd, reused.busy_again_at) == (2.0, 6.0, None)
    assert wronged.busy_again_at == NOW + 20 * MINUTE and wronged.saved_usd is None
    assert (unused.reused_hours, unused.saved_usd) == (0.0, 0.0)
    assert failed.reused_hours == 0.0 and failed.busy_again_at == NOW + MINUTE
    assert (later.reused_hours, later.busy_again_at) == (1.0, None)
    assert {case.judged_until for case in (reused, later)} == {NOW + 6 * HOUR - JUDGED_AFTER}


async def test_without_a_user_nobody_can_come_back_and_without_a_price_nothing_is_saved(
    database: Any,
) -> None:
    database.insert("gpu_1m", [minute(0, at, 50.0) for at in range(60)])
    (found,) = await judged([of_gpu(0, username="", usd_per_hour=None)], database, NOW + 6 * HOUR)
    assert (found.reused_hours, found.saved_usd, found.busy_again_at) == (1.0, None, None)


@each(
    "case",
    [
        of_gpu(0, act=StepKind.DRAIN_NODE),
        of_gpu(0, state=CaseState.FAILED),
        of_gpu(0, state=CaseState.SPARED),
        replace(ENDED, gpu_uuid=""),
        of_gpu(0, state=CaseState.ACTING, ended_at=None),
        of_gpu(0, judged_until=NOW + REUSED_WITHIN),
        of_gpu(0, state=CaseState.WITH_OTHERS, with_case="first"),
        of_gpu(0, state=CaseState.WITH_OTHERS, with_case="gone"),
    ],
)
def test_what_no_act_ended_is_not_judged(case: PolicyCase) -> None:
    first = replace(ENDED, id="first", state=CaseState.FAILED, gpu_uuid="")
    assert to_judge({case.id: case, first.id: first}, NOW + 40 * HOUR) == []


def test_an_act_is_judged_until_a_day_is_known_and_with_those_that_it_ended_too() -> None:
    other = of_gpu(1, state=CaseState.WITH_OTHERS, with_case=ENDED.id)
    cases = {ENDED.id: ENDED, other.id: other}
    assert to_judge(cases, NOW + JUDGED_AFTER) == []
    assert to_judge(cases, NOW + JUDGED_AFTER + MINUTE) == [ENDED, other]
    partly = {ENDED.id: replace(ENDED, judged_until=NOW + 23 * HOUR)}
    assert to_judge(partly, NOW + 40 * HOUR) == [*partly.values()]


async def test_results_have_the_waste_before_the_first_act_and_since(database: Any) -> None:
    """The rule's alerts cost 2 USD an hour for 7 days before the act, and 1 USD an hour of the 2 days since."""
    now = datetime.now(UTC).replace(microsecond=0)
    at = now - timedelta(days=2)
    seen = {"first_seen_at": at - timedelta(days=7), "last_seen_at": now}
    database.insert("gpus", [{"node": "n0", "gpu": 0, "gpu_uuid": "GPU-0", "simulated": False, **seen}])  # fmt: skip
    known = {
        "rule": "gpu_idle_held", "severity": "warning", "consequence": "waste", "labels": "{}", "summary": "",
        "remedy": "", "simulated": False,
    }  # fmt: skip
    before = {
        "began_at": at - timedelta(days=7),
        "active_at": at - timedelta(days=7),
        "resolved_at": at,
    }
    since = {"began_at": at, "active_at": at, "resolved_at": None}
    database.insert(
        "alerts",
        [
            {**known, **before, "fingerprint": "f0", "state": "resolved", "fired_at": before["began_at"], "seen_at": at, "usd_per_hour": 2.0},
            {**known, **since, "fingerprint": "f1", "state": "firing", "fired_at": at, "seen_at": now, "usd_per_hour": 1.0},
            {**known, **since, "fingerprint": "f2", "state": "pending", "fired_at": None, "seen_at": now, "usd_per_hour": 9.0},
            {**known, **since, "fingerprint": "f3", "state": "firing", "fired_at": at, "seen_at": now, "usd_per_hour": 9.0, "rule": "gpu_hot"},
        ],
    )  # fmt: skip
    done = replace(
        ENDED, act_at=at, ended_at=at, reused_hours=10.0, judged_until=at + REUSED_WITHIN
    )
    wrong = replace(done, id="b", team="", busy_again_at=at + MINUTE)
    spared = replace(done, id="c", state=CaseState.SPARED, act_at=None, reused_hours=None)
    resumed = replace(done, id="d", policy="", act=StepKind.RESUME_NODE, reused_hours=None)
    database.insert("policy_cases", [record_of(case) for case in (done, wrong, spared, resumed)])
    (found,) = await results_of(database)
    assert (found["acts"], found["wrong"], found["reused_hours"], found["saved_usd"]) == (2, 1, 10.0, 30.0)  # fmt: skip
    assert round(found["usd_a_week_before"], 3) == 336.0
    assert round(found["usd_a_week_since"]) == 168
    assert [(team["team"], team["acts"], team["saved_usd"]) for team in found["teams"]] == [("vision", 1, 30.0), (None, 1, None)]  # fmt: skip
