"""Phases of a job: they cover its time, whatever was reported, and say only what readings tell."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden import job_phases
from gpuwarden.job_phases import (
    JobPhase,
    JobReading,
    Phase,
    missing_readings,
    phases_of,
    shares,
)
from gpuwarden_rules.diagnosis import shape
from gpuwarden_rules.diagnosis.thresholds import THRESHOLDS

BEGIN = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WORKING = JobReading(
    begin=BEGIN, seconds=60, util_percent=98, util_min_percent=90, memory_bytes=60e9, power_watts=600,
    link_bytes_per_second=4e10, main_cpu_percent=60, cpu_percent=400, loader_workers=8, read_bytes_per_second=1e8,
    write_bytes_per_second=1e4,
)  # fmt: skip
STILL = replace(
    WORKING, util_percent=0.0, util_min_percent=0.0, power_watts=90.0, link_bytes_per_second=0.0, main_cpu_percent=0.0,
    cpu_percent=1.0, read_bytes_per_second=0.0,
)  # fmt: skip
PAUSED = replace(
    WORKING, util_percent=80.0, util_min_percent=0.0, write_bytes_per_second=2e8, power_watts=500.0
)
LOADS = replace(STILL, main_cpu_percent=95.0, read_bytes_per_second=5e8, memory_bytes=2e10)


def told(*minutes: tuple[JobReading, int], is_over: bool = True) -> list[tuple[Phase, int]]:
    """Phases and their minutes, of readings that hold so many minutes each."""
    readings, at = [], BEGIN
    for reading, count in minutes:
        for _ in range(count):
            readings.append(replace(reading, begin=at))
            at += MINUTE
    found = phases_of(readings, BEGIN, at, is_over=is_over)
    return [(one.phase, round(one.seconds / 60)) for one in found]


@pytest.mark.parametrize(
    ("minutes", "phases"),
    [
        ([(LOADS, 2), (WORKING, 30), (STILL, 2)], [(Phase.LOADING, 2), (Phase.TRAINING, 30), (Phase.END, 2)]),
        (
            [(WORKING, 10), (PAUSED, 1), (WORKING, 10)],
            [(Phase.TRAINING, 10), (Phase.CHECKPOINT, 1), (Phase.TRAINING, 10)],
        ),
        # A warm-up ends when utilization and power are as usual.
        ([(replace(WORKING, util_percent=40.0, power_watts=300.0), 3), (WORKING, 20)], [(Phase.WARM_UP, 3), (Phase.TRAINING, 20)]),
        # It stood still for a quarter of an hour after it had worked, and its processes did nothing.
        ([(WORKING, 10), (STILL, 15), (WORKING, 5)], [(Phase.TRAINING, 10), (Phase.HUNG, 15), (Phase.TRAINING, 5)]),
        ([(WORKING, 10), (replace(STILL, cpu_percent=None), 15), (WORKING, 5)], [(Phase.TRAINING, 10), (Phase.IDLE, 15), (Phase.TRAINING, 5)]),
        ([(STILL, 30)], [(Phase.IDLE, 30)]),
        # Its GPUs spin: full utilization at little power, and nothing over the links.
        ([(WORKING, 20), (replace(WORKING, util_min_percent=100.0, util_percent=100.0, power_watts=120.0, link_bytes_per_second=0.0), 6), (WORKING, 1)],
         [(Phase.TRAINING, 20), (Phase.HUNG, 6), (Phase.TRAINING, 1)]),
        # A forward pass alone: less power, nothing exchanged; or the main thread computes alone.
        ([(WORKING, 20), (replace(WORKING, power_watts=420.0, link_bytes_per_second=1e8), 3), (WORKING, 9)],
         [(Phase.TRAINING, 20), (Phase.EVALUATION, 3), (Phase.TRAINING, 9)]),
        ([(WORKING, 20), (replace(STILL, main_cpu_percent=90.0, cpu_percent=95.0), 3), (WORKING, 9)],
         [(Phase.TRAINING, 20), (Phase.EVALUATION, 3), (Phase.TRAINING, 9)]),
        # Nothing shows that it trains.
        ([(replace(WORKING, loader_workers=0.0), 20)], [(Phase.RUNNING, 20)]),
        ([(replace(WORKING, loader_workers=None), 20)], [(Phase.RUNNING, 20)]),
        # One short pause is a part of what is around it.
        ([(WORKING, 5), (STILL, 1), (WORKING, 5)], [(Phase.TRAINING, 11)]),
        # The processes are gone, and loading begins again.
        ([(WORKING, 5), (replace(LOADS, memory_bytes=1e9), 3), (WORKING, 5)], [(Phase.TRAINING, 5), (Phase.LOADING, 3), (Phase.TRAINING, 5)]),
        # They fill the memory until it is as usual.
        ([(WORKING, 5), (replace(LOADS, memory_bytes=1e9), 1), (replace(LOADS, memory_bytes=6e10), 1), (WORKING, 5)], [(Phase.TRAINING, 5), (Phase.LOADING, 2), (Phase.TRAINING, 5)]),
    ],
)  # fmt: skip
def test_what_readings_tell_is_named(
    minutes: list[tuple[JobReading, int]], phases: list[tuple[Phase, int]]
) -> None:
    assert told(*minutes) == phases


def test_a_lack_of_readings_is_running_with_no_evidence() -> None:
    readings = [WORKING, replace(WORKING, begin=BEGIN + 5 * MINUTE)]
    found = phases_of(readings, BEGIN, BEGIN + 6 * MINUTE)
    assert [one.phase for one in found] == [Phase.TRAINING, Phase.RUNNING, Phase.TRAINING]
    assert (found[1].confidence, found[1].evidence) == (0.0, "no readings of its GPUs")
    assert found[0].confidence > 0.6
    assert "GPUs busy 98 % of the time, 600 W each" in found[0].evidence


def test_the_queue_comes_first_where_the_start_of_the_job_is_shown() -> None:
    submitted = BEGIN - timedelta(hours=3)
    whole = phases_of([WORKING], BEGIN, BEGIN + MINUTE, submitted=submitted)
    assert (whole[0].phase, whole[0].seconds) == (Phase.QUEUE, 10_800)
    later = phases_of([WORKING], BEGIN, BEGIN + MINUTE, submitted=submitted, is_from_start=False)
    assert [one.phase for one in later] == [Phase.TRAINING]
    assert phases_of([], BEGIN, BEGIN) == []


def test_of_a_checkpoint_the_pause_counts_and_the_rest_of_its_step_is_training() -> None:
    found = [
        JobPhase(Phase.TRAINING, BEGIN, BEGIN + MINUTE, 1, ""),
        JobPhase(Phase.CHECKPOINT, BEGIN + MINUTE, BEGIN + 2 * MINUTE, 1, "", 12.0),
    ]
    assert shares(found) == {Phase.TRAINING: 108.0, Phase.CHECKPOINT: 12.0}
    paused = phases_of(
        [WORKING, replace(PAUSED, begin=BEGIN + MINUTE)], BEGIN, BEGIN + 2 * MINUTE, is_over=False
    )
    assert paused[1].paused_seconds == pytest.approx(60 * 18 / 98, abs=0.1)


def test_what_no_reading_has_is_said() -> None:
    assert missing_readings(
        [replace(WORKING, link_bytes_per_second=None, loader_workers=None), STILL]
    ) == ["SM activity"]
    assert "NVLink traffic" in missing_readings([replace(WORKING, link_bytes_per_second=None)])


@pytest.mark.parametrize("seconds", [3600.0, 600.0])
def test_a_step_that_is_long_hides_pauses(seconds: float) -> None:
    reading = replace(PAUSED, seconds=seconds)
    found = phases_of([reading], BEGIN, BEGIN + timedelta(seconds=seconds))
    assert [one.phase for one in found] == [Phase.TRAINING]


known = st.none() | st.floats(0, 100)
rates = st.none() | st.floats(0, 1e11)
reading = st.builds(
    JobReading,
    begin=st.integers(-20, 300).map(lambda minutes: BEGIN + minutes * MINUTE / 2),
    seconds=st.sampled_from([10.0, 60.0, 3600.0]),
    util_percent=known, util_min_percent=known, memory_bytes=rates, power_watts=st.none() | st.floats(0, 1000),
    sm_active_percent=known, link_bytes_per_second=rates, throttled_share=st.none() | st.floats(0, 1),
    main_cpu_percent=known, cpu_percent=known, loader_workers=st.none() | st.floats(0, 16),
    read_bytes_per_second=rates, write_bytes_per_second=rates,
)  # fmt: skip


@settings(max_examples=50)
@given(
    st.lists(reading, max_size=40),
    st.integers(0, 200),
    st.integers(0, 200),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_phases_cover_the_time_once_in_any_order_of_rows(
    readings, begins, lasts, is_from_start, is_over, rng
) -> None:
    begin = BEGIN + begins * MINUTE / 3
    end = begin + lasts * MINUTE / 3
    found = phases_of(readings, begin, end, is_from_start=is_from_start, is_over=is_over)
    assert sum((one.end - one.begin for one in found), timedelta()) == end - begin
    at = begin
    for one in found:
        assert one.begin == at < one.end
        assert 0 <= one.confidence <= 1
        assert one.paused_seconds is None or 0 < one.paused_seconds <= one.seconds
        at = one.end
    assert at == end or not found
    assert sum(shares(found).values()) == pytest.approx((end - begin).total_seconds())
    rng.shuffle(readings)
    assert phases_of(readings, begin, end, is_from_start=is_from_start, is_over=is_over) == found


def test_thresholds_that_the_diagnosis_has_too_are_equal() -> None:
    repeated = {
        "PAUSE_MIN_S": shape.LONG_PAUSE_S,
        "PAUSED_BELOW_PERCENT": shape.GAP_BELOW,
        "WRITES_FROM": THRESHOLDS.pause_write,
        "READS_FROM": THRESHOLDS.reads,
        "MAIN_BUSY_PERCENT": THRESHOLDS.pause_main,
        "TREE_IDLE_PERCENT": THRESHOLDS.idle_tree,
        "HELD_BYTES": THRESHOLDS.held_bytes,
        "WARM_UP_MAX_S": THRESHOLDS.warm_up,
        "HUNG_FROM_S": THRESHOLDS.hung_s,
        "SPIN_FROM_S": THRESHOLDS.spin_s,
        "SPIN_FROM_PERCENT": THRESHOLDS.always,
        "IDLE_BELOW_PERCENT": THRESHOLDS.idle_percent,
    }
    assert {name: getattr(job_phases, name) for name in repeated} == repeated
