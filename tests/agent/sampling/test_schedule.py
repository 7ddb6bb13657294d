"""Ticks are due at the right second: clocks that jump, stall and were wrong."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.sampling.schedule import (
    AHEAD_MS_MAX,
    Schedule,
    TickPlan,
    is_due,
    next_tick,
    wait_s,
)

T0 = 1_700_000_000_000


def look(*looks: tuple[int, float], last: int | None = None) -> list[TickPlan]:
    """Plans of one look after another at (wall clock ms after T0, monotonic seconds)."""
    state, plans = Schedule(1000, None if last is None else T0 + last), []
    for wall_ms, monotonic_s in looks:
        state, plan = next_tick(state, T0 + wall_ms, monotonic_s)
        plans.append(plan)
    return plans


def test_a_busy_node_misses_ticks_and_they_are_counted() -> None:
    assert look((0, 0.0), (4300, 4.3))[1] == TickPlan(T0 + 4000, missed=3)


def test_a_clock_set_forward_misses_nothing() -> None:
    assert look((0, 0.0), (3_601_000, 1.0))[1] == TickPlan(T0 + 3_601_000, stepped_ms=3_600_000)


def test_a_clock_that_drifts_by_less_than_half_a_second_was_not_set() -> None:
    assert look((0, 0.0), (1499, 1.0))[1] == TickPlan(T0 + 1000)
    assert look((0, 0.0), (1500, 1.0))[1] == TickPlan(T0 + 1000, stepped_ms=500)


def test_a_clock_set_back_pauses_until_it_has_caught_up() -> None:
    plans = look((10_000, 0.0), (5_000, 1.0), (10_900, 6.9), (11_000, 7.0))
    assert plans[1] == TickPlan(None, stepped_ms=-6000, waits_ms=6000)
    assert plans[2:] == [TickPlan(None), TickPlan(T0 + 11_000, missed=0)]


def test_a_clock_that_was_years_ahead_does_not_silence_the_node() -> None:
    years = 9 * 365 * 86_400_000
    plans = look((years, 0.0), (1000, 1.0), (2000, 2.0))
    assert plans[1] == TickPlan(T0 + 1000, stepped_ms=-years)
    assert plans[2] == TickPlan(T0 + 2000)


def test_the_first_tick_comes_after_the_last_one_of_the_run_before() -> None:
    assert look((500, 0.0), (1000, 0.5), last=0) == [TickPlan(None), TickPlan(T0 + 1000)]


def test_a_start_with_a_clock_behind_the_last_tick_says_so() -> None:
    assert look((0, 0.0), last=60_000) == [TickPlan(None, stepped_ms=-60_000, waits_ms=61_000)]
    bound = AHEAD_MS_MAX
    assert look((0, 0.0), last=bound) == [TickPlan(None, stepped_ms=-bound, waits_ms=bound + 1000)]
    far = bound + 1000
    assert look((0, 0.0), last=far) == [TickPlan(T0, stepped_ms=-far)]


def test_a_gap_between_two_runs_is_no_missed_tick() -> None:
    assert look((90_000, 0.0), last=0) == [TickPlan(T0 + 90_000)]


@given(
    steps=st.lists(
        st.tuples(st.floats(0.0, 20.0), st.integers(-200_000, 200_000) | st.just(0)), max_size=40
    )
)
def test_timestamps_only_grow_while_the_clock_is_off_by_less_than_the_bound(
    steps: list[tuple[float, int]],
) -> None:
    state, wall_ms, monotonic_s = Schedule(1000), float(T0), 0.0
    highest_ms = 0.0
    given_out: list[int] = []
    for passed_s, step_ms in steps:
        wall_ms += passed_s * 1000
        monotonic_s += passed_s
        if highest_ms - (wall_ms + step_ms) < AHEAD_MS_MAX - 1000:
            wall_ms += step_ms
        highest_ms = max(highest_ms, wall_ms)
        state, plan = next_tick(state, int(wall_ms), monotonic_s)
        assert plan.missed >= 0
        if plan.ts_ms is not None:
            assert plan.ts_ms % 1000 == 0
            assert 0 <= wall_ms - plan.ts_ms < 1001
            given_out.append(plan.ts_ms)
    assert given_out == sorted(set(given_out))


@given(passed=st.lists(st.floats(0.001, 5.0), min_size=1, max_size=60))
def test_every_second_is_sampled_or_counted_as_missed(passed: list[float]) -> None:
    state, _ = next_tick(Schedule(1000), T0, 0.0)
    elapsed_s, ticks, missed = 0.0, 0, 0
    for seconds in passed:
        elapsed_s += seconds
        state, plan = next_tick(state, T0 + int(elapsed_s * 1000), elapsed_s)
        ticks += plan.ts_ms is not None
        missed += plan.missed
    assert ticks + missed == int(elapsed_s * 1000) // 1000


def test_the_wait_ends_at_the_next_tick() -> None:
    assert wait_s(1000, T0) == 1.0
    assert wait_s(1000, T0 + 990) == 0.01


def test_a_probe_of_ten_seconds_is_read_once_in_each_ten_also_when_a_tick_is_missed() -> None:
    last: int | None = None
    read = []
    for second in [7, 8, 9, 11, 12, 20, 29, 30, 31]:
        if is_due(10, T0 + second * 1000, last, 1000):
            read.append(second)
            last = T0 + second * 1000
    assert read == [7, 11, 20, 30]


def test_a_probe_of_two_seconds_is_read_at_every_other_tick() -> None:
    assert [is_due(2, T0 + second * 1000, T0, 1000) for second in (1, 2, 3)] == [False, True, True]


def test_a_probe_of_one_second_is_read_at_every_tick_of_a_short_interval() -> None:
    assert is_due(1, T0 + 250, T0, 250)
