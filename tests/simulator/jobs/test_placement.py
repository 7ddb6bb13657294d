"""Placements cover the node, required things are there for hours, drawn jobs follow the shares."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_simulator.jobs.placement import (
    DAY_MS,
    HOUR_MS,
    SHARES,
    WEEK_MS,
    Placement,
    Timeline,
    check_placements,
    default_workloads,
)
from gpuwarden_simulator.jobs.workload import Workload


@given(gpus=st.integers(1, 64), seed=st.integers(), required=st.integers(0, 20))
def test_placements_name_every_gpu_once(gpus: int, seed: int, required: int) -> None:
    check_placements(default_workloads(gpus, seed, required), gpus)


@given(seed=st.integers(), gpus=st.integers(8, 16))
def test_eight_gpus_always_show_idle_starved_throttled_and_healthy(seed: int, gpus: int) -> None:
    kinds = Counter(p.workload for p in default_workloads(gpus, seed))
    assert kinds[Workload.IDLE_HELD] == 1
    assert kinds[Workload.INPUT_BOUND_CPU] == 1
    assert kinds[Workload.THROTTLED_THERMAL] == 1
    assert kinds[Workload.TRAINING] == 2


def test_a_lasting_job_began_before_the_first_look_and_never_ends(start_ms: int) -> None:
    timeline = Timeline(Placement((0,), Workload.IDLE_HELD), "s")
    job = timeline.job_at(start_ms)
    assert job.started_ms <= start_ms - 3 * HOUR_MS
    assert timeline.job_at(start_ms + 40 * DAY_MS) is job


@given(hours=st.integers(0, 7 * 24 - 1))
def test_a_simulator_started_again_within_the_week_finds_the_same_lasting_job(hours: int) -> None:
    week_ms = 2900 * WEEK_MS
    placement = Placement((3,), Workload.TRAINING)
    first = Timeline(placement, "s").job_at(week_ms)
    assert Timeline(placement, "s").job_at(week_ms + hours * HOUR_MS) == first


@given(seed=st.text(max_size=5), hours=st.lists(st.integers(0, 24 * 400), min_size=2, max_size=6))
def test_drawn_jobs_depend_on_the_time_alone(seed: str, hours: list[int]) -> None:
    placement = Placement((2, 3), None)
    one = Timeline(placement, seed)
    asked = [one.job_at(hour * HOUR_MS) for hour in hours]
    for hour, job in zip(hours, asked, strict=True):
        assert Timeline(placement, seed).job_at(hour * HOUR_MS) == job
        assert job.started_ms <= hour * HOUR_MS
        assert job.ends_ms is not None
        assert hour * HOUR_MS < job.ends_ms
        assert len(job.pids) == (0 if job.workload is Workload.FREE else 2)


def test_drawn_jobs_follow_each_other_without_gap_or_overlap(start_ms: int) -> None:
    timeline = Timeline(Placement((0,), None), "s")
    job = timeline.job_at(start_ms)
    for _ in range(200):
        assert job.ends_ms is not None
        following = timeline.job_at(job.ends_ms)
        assert following.started_ms == job.ends_ms
        job = following


def test_shares_of_gpu_time_come_out_as_drawn(start_ms: int) -> None:
    looks = Counter(
        Timeline(Placement((0,), None), str(slot)).job_at(start_ms + hour * HOUR_MS).workload
        for slot in range(40)
        for hour in range(0, 24 * 30, 8)
    )
    for workload, share in SHARES.items():
        assert looks[workload] / looks.total() == pytest.approx(share, abs=0.04)
