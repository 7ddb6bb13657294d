"""Each workload has the signature that a rule or a diagnosis looks for."""

import random
from collections.abc import Mapping
from itertools import pairwise
from statistics import mean

import pytest

from gpuwarden_simulator.jobs.workload import Demand, Job, Workload, demand


@pytest.fixture
def run(runs: Mapping, request: pytest.FixtureRequest):
    return runs[request.param]


def of(workload: Workload):
    return pytest.mark.parametrize("run", [workload], indirect=True, ids=[workload.value])


def quantile(run, column: str, share: float) -> float:
    values = sorted(row[column] for row in run.gpu)
    return values[int(share * (len(values) - 1))]


@of(Workload.FREE)
def test_a_free_gpu_idles_in_p0_at_low_clock_without_processes(run) -> None:
    assert run.process == []
    for row in run.gpu:
        assert (row["util_percent"], row["memory_used_bytes"]) == (0.0, 0)
        assert (row["sm_clock_mhz"], row["pstate"], row["clocks_event_reasons"]) == (345, 0, 0x1)
        assert 60 <= row["power_watts"] <= 80


@of(Workload.IDLE_HELD)
def test_an_idle_held_gpu_has_a_process_with_memory_and_no_utilization(run) -> None:
    assert {row["util_percent"] for row in run.gpu} == {0.0}
    assert all(row["gpu_memory_bytes"] > 500 * 1024**2 for row in run.process)
    assert all(row["cpu_percent"] < 10 for row in run.process)
    assert all(row["username"] for row in run.process)


@of(Workload.TRAINING)
def test_healthy_training_keeps_the_gpu_busy_at_full_clock(run) -> None:
    assert run.mean("util_percent") > 95
    assert quantile(run, "util_percent", 0.05) >= 80
    assert run.mean("sm_clock_mhz") == 1980
    assert run.mean("loader_saturated_percent") < 10
    assert run.growth("hw_thermal_seconds_total") == 0


@of(Workload.TRAINING)
def test_training_pauses_for_a_checkpoint_and_writes_it(run) -> None:
    pauses = [second for second, row in enumerate(run.gpu) if row["util_percent"] < 10]
    lengths = [0]
    for before, second in pairwise([-9, *pauses]):
        lengths = [*lengths[:-1], lengths[-1] + 1] if second == before + 1 else [*lengths, 1]
    assert 1 <= len(lengths) - 1 <= 3
    assert 7 <= max(lengths) <= 20
    written = run.host[-1]["disk_write_bytes_total"] - run.host[0]["disk_write_bytes_total"]
    assert written > 5e9


@of(Workload.INFERENCE)
def test_inference_follows_requests_in_bursts_without_loader_workers(run) -> None:
    assert 30 < run.mean("util_percent") < 70
    assert quantile(run, "util_percent", 0.95) - quantile(run, "util_percent", 0.05) > 30
    assert run.mean("loader_workers") == 0
    assert run.mean("main_cpu_percent") < 80
    assert all(row["pod"] and row["job"] == row["pod"] for row in run.process)


@of(Workload.INPUT_BOUND_CPU)
def test_too_few_workers_saturate_while_the_gpu_starves(run) -> None:
    assert 25 <= run.mean("util_percent") <= 45
    assert quantile(run, "util_percent", 0.95) >= 5
    assert run.mean("loader_saturated_percent") >= 60
    assert run.mean("loader_blocked_percent") < 10
    row = run.process[-1]
    assert row["loader_workers"] >= 1
    # There are cores to spare, so the advice is more workers.
    assert row["cpus_allowed"] - row["cpu_percent"] / 100 >= 1


@of(Workload.INPUT_BOUND_STORAGE)
def test_slow_storage_blocks_workers_and_shows_in_iowait_and_pressure(run) -> None:
    assert 25 <= run.mean("util_percent") <= 45
    assert run.mean("loader_blocked_percent") >= 40
    assert run.mean("loader_cpu_percent") <= 60
    assert run.mean("cpu_iowait_percent") >= 10
    assert run.mean("psi_io_some_percent") >= 20
    assert run.mean("disk_busy_percent") >= 80
    assert run.mean("tasks_blocked") >= 3


@of(Workload.INPUT_BOUND_MAIN)
def test_without_workers_the_main_thread_is_busy_and_worker_columns_are_absent(run) -> None:
    assert 25 <= run.mean("util_percent") <= 45
    assert run.mean("main_cpu_percent") >= 90
    for row in run.process:
        assert row["loader_workers"] == 0
        assert "loader_cpu_percent" not in row
    read = run.process[-1]["read_chars_total"] - run.process[0]["read_chars_total"]
    assert read / 1800 > 1e6


@of(Workload.HOST_BOUND)
def test_a_host_bound_job_has_idle_workers_and_a_busy_main_thread(run) -> None:
    assert 30 <= run.mean("util_percent") <= 90
    assert quantile(run, "util_percent", 0.95) - quantile(run, "util_percent", 0.05) < 15
    assert run.mean("loader_cpu_percent") < 20
    assert run.mean("main_cpu_percent") >= 90
    power = (run.mean("power_watts") - 70) / (700 - 70)
    assert power <= 0.5


@of(Workload.THROTTLED_THERMAL)
def test_bad_cooling_trips_both_thermal_limits_and_lowers_the_clock(run) -> None:
    assert run.share_with_bit(0x20) >= 0.5
    assert run.share_with_bit(0x40) >= 0.02
    assert run.growth("sw_thermal_seconds_total") >= 0.5 * 1800
    assert run.growth("hw_thermal_seconds_total") >= 0.02 * 1800
    assert run.growth("thermal_violation_seconds_total") >= run.growth("sw_thermal_seconds_total")
    assert run.mean("sm_clock_mhz") < 0.85 * 1980
    assert run.mean("util_percent") > 90


@of(Workload.THROTTLED_POWER_BRAKE)
def test_the_power_brake_halves_the_clock_two_thirds_of_the_time(run) -> None:
    assert run.share_with_bit(0x80) == pytest.approx(2 / 3, abs=0.05)
    assert run.growth("hw_power_brake_seconds_total") == pytest.approx(1200, abs=90)
    braked = [row for row in run.gpu if row["clocks_event_reasons"] & 0x80]
    assert all(row["sm_clock_mhz"] <= 990 for row in braked)


@of(Workload.CAPPED)
def test_a_lowered_limit_holds_power_and_clock_down(run) -> None:
    assert {row["power_limit_watts"] for row in run.gpu} == {350.0}
    assert run.share_with_bit(0x4) >= 0.9
    assert run.growth("power_violation_seconds_total") >= 0.9 * 1800
    assert run.mean("sm_clock_mhz") < 0.85 * 1980


def test_only_the_throttled_kinds_trip_severe_limits(runs: Mapping) -> None:
    severe = 0x8 | 0x20 | 0x40 | 0x80
    tripped = {kind for kind, run in runs.items() if run.share_with_bit(severe)}
    assert tripped == {Workload.THROTTLED_THERMAL, Workload.THROTTLED_POWER_BRAKE}


def test_only_the_input_bound_kinds_show_evidence_of_a_slow_loader(runs: Mapping) -> None:
    """A data-loader rule must stay quiet about every other kind of job."""
    suspects = set()
    for kind, run in runs.items():
        for row in run.process:
            saturated = row.get("loader_saturated_percent", 0) >= 60
            blocked = row.get("loader_blocked_percent", 0) >= 20
            alone = row["loader_workers"] == 0 and row["main_cpu_percent"] >= 80
            if saturated or blocked or alone:
                suspects.add(kind)
    assert suspects == {
        Workload.INPUT_BOUND_CPU,
        Workload.INPUT_BOUND_STORAGE,
        Workload.INPUT_BOUND_MAIN,
    }


def asked_of(workload: Workload, level: float) -> list[Demand]:
    job = Job(workload, (0,), 0, None, level, "python3", (7,))
    rng = random.Random(0)
    return [demand(job, 10_000_000 + 1000 * second, rng) for second in range(600)]


@pytest.mark.parametrize("level", [0.0, 0.35, 0.7, 0.999])
@pytest.mark.parametrize(
    "workload",
    [Workload.INPUT_BOUND_CPU, Workload.INPUT_BOUND_STORAGE, Workload.INPUT_BOUND_MAIN],
)
def test_every_starved_job_starves_alike_wherever_it_sits_in_its_range(
    workload: Workload, level: float
) -> None:
    asked = asked_of(workload, level)
    assert 25 <= mean(one.gpu.util_percent for one in asked) <= 45
    trees = [one.tree for one in asked]
    match workload:
        case Workload.INPUT_BOUND_CPU:
            assert mean(tree.loader_saturated_percent for tree in trees) >= 80
        case Workload.INPUT_BOUND_STORAGE:
            assert mean(tree.loader_blocked_percent for tree in trees) >= 40
        case _:
            assert min(tree.main_cpu_percent for tree in trees) >= 90


@of(Workload.SMALL)
def test_a_small_model_uses_little_of_the_gpu_and_waits_for_no_data(run) -> None:
    assert 8 <= run.mean("util_percent") <= 18
    assert max(row["memory_used_bytes"] for row in run.gpu) < 8e9
    assert max(row["loader_cpu_percent"] for row in run.process) < 40


@of(Workload.COMM_BOUND)
def test_communication_looks_busy_and_draws_little(run) -> None:
    assert run.mean("util_percent") > 95
    assert run.mean("power_watts") < 0.45 * 700


@of(Workload.BLOCKED)
def test_a_blocked_process_waits_in_the_kernel_and_its_gpu_stands_still(run) -> None:
    assert {row["util_percent"] for row in run.gpu} == {0.0}
    assert {row["state"] for row in run.process} == {"D"}
