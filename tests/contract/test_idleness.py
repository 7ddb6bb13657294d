"""An idle time begins with the end of work, goes on over pokes and idle gaps, and ends with work."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.idleness import (
    GAP_MINUTES,
    HELD_BYTES,
    MINUTE_US,
    SETTLED_MINUTES,
    WINDOW_MINUTES,
    Idleness,
    Minute,
    advance,
    advanced,
)

IDLE_WATTS = 70.0


def minute(at: int, work: int | None = 0, **values: Any) -> Minute:
    empty = dict.fromkeys(Minute._fields)
    identity = {"ts": at * MINUTE_US, "node": "n1", "gpu_uuid": "GPU-a", "simulated": False}
    return Minute(**empty | identity | {"work_seconds": work, "held_bytes": 0} | values)


def after(minutes: Sequence[Minute]) -> Idleness:
    _, states = advanced({}, minutes)
    (state,) = states.values()
    return state


def minutes_of(work: Sequence[int | None]) -> list[Minute]:
    return [minute(at, seconds) for at, seconds in enumerate(work)]


def idle_since(work: Sequence[int | None]) -> int | None:
    since = after(minutes_of(work)).idle_since
    return None if since is None else since // MINUTE_US


@pytest.mark.parametrize(
    ("work", "since"),
    [
        ([0] * 5, 0),
        ([0] * 4, None),
        ([60] * 90 + [0] * 5, 90),
        ([60] * 90 + [0] * 4, None),
        ([60, 0] * 40 + [0] * 5, 79),
        ([60] * 9 + [0] * 10 + [2] + [0] * 20, 9),
        ([60] * 9 + [0] * 10 + [60, 0, 0, 60] + [0] * 20, 23),
        ([0] * 60 + [60] + [0] * 9 + [60, 60] + [0] * 60, 0),
        ([0] * 60 + [60] * 5 + [0] * 30, 65),
        ([0] * 40 + [3] * 360, None),
        ([3] * 360, None),
        ([0] * 60 + [1, *[0] * 9] * 30, 0),
    ],
    ids=[
        "five quiet minutes begin it",
        "four do not",
        "at the end of the work",
        "and not before five minutes",
        "light work is work",
        "a poke moves nothing",
        "more than a poke within the first half hour does",
        "an hour of idleness forgives three minutes",
        "and not five",
        "a server with a request in every minute ends it",
        "and never begins it",
        "a monitor that pokes every ten minutes does not end it",
    ],
)
def test_an_idle_time_has_one_begin(work: list[int], since: int | None) -> None:
    assert idle_since(work) == since


HISTORIES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 3, 30, 60, None]), st.integers(1, 45)), max_size=12
).map(lambda runs: [work for work, count in runs for _ in range(count)])


@given(HISTORIES)
@settings(max_examples=100)
def test_no_idle_time_holds_more_work_than_it_forgives(work: list[int | None]) -> None:
    rows, _ = advanced({}, minutes_of(work))
    for row in rows:
        at = row.ts // MINUTE_US + 1
        window = [seconds or 0 for seconds in work[max(0, at - WINDOW_MINUTES) : at]]
        assert row.work_seconds == sum(window)
        assert row.work_minutes == sum(seconds > 0 for seconds in window)
        if row.idle_since is not None:
            since = row.idle_since // MINUTE_US
            own = [seconds or 0 for seconds in work[max(since, at - WINDOW_MINUTES) : at]]
            assert sum(own) <= 270 and sum(seconds > 0 for seconds in own) <= 9
            assert at - since >= SETTLED_MINUTES
            assert since == 0 or work[since - 1] != 0 or row.gap_seconds == 0
            assert row.idle_since == row.quiet_since


@given(HISTORIES)
@settings(max_examples=100)
def test_what_works_all_the_time_is_not_idle_and_what_never_works_is(
    work: list[int | None],
) -> None:
    busy, idle = [*work, *[60] * 5], [*work, *[0] * WINDOW_MINUTES]
    assert idle_since(busy) is None
    since = idle_since(idle)
    assert since is not None and since <= len(work)


@given(HISTORIES, st.data())
@settings(max_examples=100)
def test_a_state_is_all_that_the_next_minutes_need(
    work: list[int | None], data: st.DataObject
) -> None:
    """Rows that come twice, and a clock that goes back, change nothing."""
    minutes = minutes_of(work)
    rows, _ = advanced({}, minutes)
    if not rows:
        return
    place = data.draw(st.integers(0, len(rows) - 1))
    restored = Idleness(*rows[place])
    rest = [one for one in minutes if one.ts > restored.ts]
    twice = sorted([*minutes[:5], *rest, *rest], key=lambda one: one.ts)
    again, _ = advanced({("n1", "GPU-a"): restored}, twice)
    assert again == rows[place + 1 :]


def idle_around(gap: int, *, watts: float = IDLE_WATTS, **values: Any) -> list[Minute]:
    """An hour of idling on both sides of a gap, in which the GPU took so much power."""
    joules = 5e6
    minutes = []
    for at in [*range(60), *range(60 + gap, 120 + gap)]:
        passed = 1 if not minutes else at - minutes[-1].ts // MINUTE_US
        joules += 60 * (IDLE_WATTS + (passed - 1) * watts)
        reading = {"energy_joules": joules, "power_watts": IDLE_WATTS}
        minutes.append(minute(at, **reading | (values if at >= 60 else {})))
    return minutes


def test_an_idle_time_goes_on_over_a_gap_whose_energy_is_that_of_idling() -> None:
    state = after(idle_around(180))
    assert (state.idle_since, state.gap_seconds) == (0, 180 * 60)


@pytest.mark.parametrize(
    ("minutes", "reason"),
    [
        (idle_around(180, watts=90.0), "it took more power"),
        (idle_around(180, watts=20.0), "it took less: a counter of another boot"),
        (idle_around(180, energy_joules=None), "there is no counter"),
        (idle_around(180, energy_joules=1000.0), "the counter began anew"),
        (idle_around(180, power_watts=None), "nobody knows what idling takes"),
        (idle_around(25 * 60), "it was away for a day"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_it_begins_anew_after_another_gap(minutes: list[Minute], reason: str) -> None:
    state = after(minutes)
    assert (state.idle_since, state.gap_seconds) == (minutes[60].ts, 0), reason


def test_some_minutes_without_samples_need_no_counter_and_are_counted() -> None:
    minutes = [minute(at) for at in [*range(20), *range(20 + GAP_MINUTES, 60)]]
    assert (after(minutes).idle_since, after(minutes).gap_seconds) == (0, GAP_MINUTES * 60)


def test_unknown_utilization_carries_the_state_and_has_none_alone() -> None:
    assert advance(None, minute(0, None)) is None
    state = after([*minutes_of([0] * 20), *(minute(at, None) for at in range(20, 25))])
    assert (state.idle_since, state.known_until) == (0, 20 * MINUTE_US)
    assert state.recent_work.endswith("0.....")


def test_memory_is_held_since_its_process_began_and_by_whom_it_is_held_now() -> None:
    big = HELD_BYTES + 1
    alone = [minute(at, held_bytes=big, started_at=-9 * MINUTE_US) for at in range(9)]
    assert after(alone).held_since == -9 * MINUTE_US
    other = minute(9, held_bytes=big, started_at=9 * MINUTE_US)
    assert after([*alone, other]).held_since == 9 * MINUTE_US
    unseen = minute(9, held_bytes=big)
    assert after([*alone, unseen]).held_since == -9 * MINUTE_US
    assert after([*alone, minute(9, held_bytes=None)]).held_since == -9 * MINUTE_US
    assert after([*alone, minute(9, held_bytes=HELD_BYTES)]).held_since is None


def test_a_gpu_is_free_from_the_end_of_its_last_allocation_and_memory() -> None:
    given_out = [minute(at, allocated_job="55") for at in range(9)]
    later = [minute(at) for at in range(9, 20)]
    states, _ = advanced({}, [*given_out, *later])
    assert [state.allocated_since for state in states[:13]] == [0] * 13
    assert [state.free_since for state in states[:14]] == [None] * 14
    assert (states[14].allocated_since, states[14].free_since) == (None, 9 * MINUTE_US)
    assert after([minute(0, held_bytes=HELD_BYTES + 1), minute(1)]).free_since == MINUTE_US
    assert after([minute(0, held_bytes=None)]).free_since is None


def test_another_job_is_another_allocation_and_the_same_after_a_gap_is_not() -> None:
    first, again = minute(0, allocated_job="55"), minute(99, allocated_job="55")
    assert after([first, again]).allocated_since == 0
    assert after([first, minute(1, allocated_job="56")]).allocated_since == MINUTE_US
