"""Slow calls are found by their median and move one tier; timings are kept in bounded memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.collect.nvidia.timing import (
    KEPT,
    SLOW_BATCH_MS,
    SLOW_MS,
    TIERS_S,
    TRIAL_CALLS,
    CallTimes,
    slow_fields,
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


@settings(max_examples=50)
@given(st.sampled_from(TIERS_S), st.lists(st.floats(0, 100)))
def test_no_call_becomes_faster(tier_s: int, timings: list[float]) -> None:
    assert tier_after_trial(tier_s, timings) in (tier_s, slower(tier_s))


def test_the_slowest_fields_leave_a_batch_until_the_rest_is_fast() -> None:
    """The timings of an H200: 83 is the energy, 75 a violation's time, 186 the instant power."""
    alone = {83: [4.1, 4.0, 17.0], 75: [0.6, 0.6, 0.7], 186: [0.02, 0.01, 0.02]}
    assert slow_fields(6.0, alone) == {83}
    assert slow_fields(SLOW_BATCH_MS + 4.5, alone) == {83, 75}
    assert slow_fields(SLOW_BATCH_MS, alone) == frozenset()


def test_no_field_leaves_where_each_call_is_as_slow_as_the_batch() -> None:
    assert slow_fields(20.0, {83: [20.0], 75: [20.0], 186: [20.0]}) == frozenset()
    assert slow_fields(20.0, {}) == frozenset()


@settings(max_examples=40)
@given(
    st.floats(0, 100),
    st.dictionaries(st.integers(1, 300), st.lists(st.floats(0, 100), min_size=1, max_size=3)),
)
def test_a_batch_keeps_a_field_and_no_field_that_leaves_is_faster_than_one_that_stays(
    batch_ms: float, alone: dict[int, list[float]]
) -> None:
    slow = slow_fields(batch_ms, alone)
    stay = alone.keys() - slow
    assert not slow or (stay and batch_ms > SLOW_BATCH_MS)
    medians = {field: sorted(timings)[(len(timings) - 1) // 2] for field, timings in alone.items()}
    if all(len(timings) == 1 for timings in alone.values()) and slow:
        assert min(medians[f] for f in slow) >= max(medians[f] for f in stay)


def test_the_newest_timings_are_kept() -> None:
    times = CallTimes(1)
    for duration in range(3 * KEPT + 5):
        times.add(duration, 0)
    assert times.count == 3 * KEPT + 5
    assert sorted(times.timings_ms) == list(range(2 * KEPT + 5, 3 * KEPT + 5))
