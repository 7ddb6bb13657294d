"""Slow calls are found by their median and move one tier; timings are kept in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.collect.nvidia.timing import (
    KEPT,
    SLOW_MS,
    TIERS_S,
    TRIAL_CALLS,
    CallTimes,
    slower,
    tier_after_trial,
)

SLOW = [SLOW_MS + 1] * TRIAL_CALLS
FAST = [SLOW_MS] * TRIAL_CALLS


@pytest.mark.parametrize(("tier_s", "moved_s"), [(1, 10), (10, 60), (60, 60)])
def test_a_slow_call_moves_one_tier_and_a_fast_one_stays(tier_s: int, moved_s: int) -> None:
    assert tier_after_trial(tier_s, SLOW) == moved_s
    assert tier_after_trial(tier_s, FAST) == tier_s


def test_a_first_call_that_wakes_the_gpu_up_moves_nothing() -> None:
    assert tier_after_trial(1, [2000.0, *FAST[1:]]) == 1


def test_too_few_calls_decide_nothing() -> None:
    assert tier_after_trial(1, SLOW[1:]) == 1
    assert tier_after_trial(1, []) == 1


@given(st.sampled_from(TIERS_S), st.lists(st.floats(0, 100)))
def test_no_call_becomes_faster(tier_s: int, timings: list[float]) -> None:
    assert tier_after_trial(tier_s, timings) in (tier_s, slower(tier_s))


def test_the_newest_timings_are_kept() -> None:
    times = CallTimes(1)
    for duration in range(3 * KEPT + 5):
        times.add(duration, 0)
    assert times.count == 3 * KEPT + 5
    assert sorted(times.timings_ms) == list(range(2 * KEPT + 5, 3 * KEPT + 5))
