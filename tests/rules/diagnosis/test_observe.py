"""From rows to verdicts: every class at short and long steps, and what happens where data are absent."""

from collections.abc import Callable, Hashable, Mapping
from itertools import product
from typing import Any

import pytest
from tests.rules.diagnosis.scenes import END, NO_WORKERS, Scene, loop, paused

from gpuwarden.diagnosis import INPUT_BOUND, Bottleneck
from gpuwarden.query import QueryError
from gpuwarden_rules.diagnosis import observe as observing
from gpuwarden_rules.diagnosis.classify import Verdict, classify
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.service import judged_of
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_simulator import Fault, FaultKind, Workload
from gpuwarden_simulator.faults.kinds import SPECS

STEPS = (0.3, 5.0)
BUSY = {"loader_cpu_percent": 97.0, "loader_saturated_percent": 95.0, "cpu_percent": 830.0}


async def verdicts(
    database: MemoryDatabase, scenes: Mapping[Hashable, Scene]
) -> dict[Hashable, Verdict]:
    """Of each scene, on a node of its own: to make a database takes longer than to ask it."""
    names = {}
    for number, (key, scene) in enumerate(scenes.items()):
        scene.node = f"n{number:04}"
        scene.insert(database)
        names[scene.node] = key
    seen = await observe(database, END)
    assert len(seen) == len(scenes)
    return {names[one.place.node]: classify(one.place, one.features) for one in seen}


async def verdict(database: MemoryDatabase, scene: Scene) -> Verdict:
    (found,) = (await verdicts(database, {"": scene})).values()
    return found


def rate(per_second: float) -> Callable[[int], int]:
    return lambda second: int(second * per_second)


STARVED: dict[Bottleneck, dict[str, Any]] = {
    Bottleneck.LOADER_WORKERS: {"process": {"loader_workers": 2, **BUSY, "cpu_percent": 240.0}},
    Bottleneck.LOADER_CORES: {
        "process": {**BUSY, "cpus_allowed": 8, "loader_cpus_allowed": 8},
        "host": {"psi_cpu_some_percent": 60.0},
    },
    Bottleneck.LOADER_AFFINITY: {
        "process": {
            "loader_cpu_percent": 12.0,
            "loader_idle_percent": 90.0,
            "loader_cpus_allowed": 1,
        }
    },
    Bottleneck.LOADER_MAIN: {
        "process": {**NO_WORKERS, "main_cpu_percent": 97.0, "cpu_percent": 110.0}
    },
    Bottleneck.LOADER_THREADS: {
        "process": {**NO_WORKERS, "main_cpu_percent": 50.0, "cpu_percent": 700.0}
    },
    Bottleneck.STORAGE_DISK: {
        "process": {
            "loader_cpu_percent": 12.0,
            "loader_blocked_percent": 60.0,
            "read_bytes_total": rate(200e6),
        },
        "host": {"psi_io_some_percent": 70.0, "disk_busy_percent": 95.0},
    },
    Bottleneck.STORAGE_NETWORK: {
        "process": {
            "loader_cpu_percent": 12.0,
            "loader_blocked_percent": 60.0,
            "read_bytes_total": 0,
        },
        "host": {
            "network_rx_bytes_total": rate(80e6),
            "nfs_reads_total": rate(400),
            "nfs_read_seconds_total": rate(16),
            "nfs_read_bytes_total": rate(70e6),
        },
    },
    Bottleneck.PIN_COPY: {"process": {"pin_cpu_percent": 98.0}},
    Bottleneck.HOST_BOUND: {
        "process": {
            "main_cpu_percent": 99.0,
            "loader_cpu_percent": 4.0,
            "loader_idle_percent": 100.0,
        },
        "power": 0.5,
    },
    Bottleneck.MAIN_THREAD: {
        "process": {
            **NO_WORKERS,
            "main_cpu_percent": 99.0,
            "cpu_percent": 105.0,
            "read_chars_total": 0,
        },
    },
}
"""What a loop that is busy 40 % of the time is held up by."""


async def test_a_starved_loop_is_explained_at_any_pace(database: MemoryDatabase) -> None:
    scenes = {(b, s): Scene(loop(s, 0.4), **STARVED[b]) for b, s in product(STARVED, STEPS)}
    found = await verdicts(database, scenes)
    assert {key: v.bottleneck for key, v in found.items()} == {key: key[0] for key in scenes}
    assert min(v.confidence for v in found.values()) >= 0.5


async def test_a_loop_that_keeps_up_is_never_called_input_bound(database: MemoryDatabase) -> None:
    """Busy workers, a full disk or a busy main thread hurt nobody while the GPU is busy."""
    scenes = {(b, s): Scene(loop(s, 0.98), **STARVED[b]) for b, s in product(STARVED, STEPS)}
    found = await verdicts(database, scenes)
    assert {key: v for key, v in found.items() if v.bottleneck in INPUT_BOUND} == {}


async def test_readings_every_ten_seconds_carry_what_needs_no_shape(
    database: MemoryDatabase,
) -> None:
    scenes = {
        s: Scene(loop(0.3, 0.4), every_s=s, **STARVED[Bottleneck.LOADER_WORKERS]) for s in (2, 10)
    }
    found = await verdicts(database, scenes)
    assert {one.bottleneck for one in found.values()} == {Bottleneck.LOADER_WORKERS}
    assert {one.features.gaps for one in await observe(database, END)} == {None}


OF_PROCESS = ("loader_blocked_percent", "loader_saturated_percent", "loader_workers")


async def test_without_rights_in_proc_it_is_the_same_or_unknown(database: MemoryDatabase) -> None:
    scenes = {}
    for bottleneck, absent in product(STARVED, OF_PROCESS):
        scene = STARVED[bottleneck]
        process = {**scene["process"], absent: None}
        scenes[bottleneck, absent] = Scene(loop(0.3, 0.4), **{**scene, "process": process})
    found = await verdicts(database, scenes)
    wrong = {
        (bottleneck, absent): v
        for (bottleneck, absent), v in found.items()
        if v.bottleneck not in (bottleneck, Bottleneck.UNKNOWN)
    }
    assert wrong == {}
    blind = {
        b: Scene(loop(0.3, 0.4), node=f"b{n}", **{**STARVED[b], "process": None})
        for n, b in enumerate(STARVED)
    }
    database.clear()
    for found_one in (await verdicts(database, blind)).values():
        assert found_one.bottleneck is Bottleneck.UNKNOWN
        assert "no processes" in (found_one.reason or "")


def main_cpu_in_pause(second: int) -> float:
    return 100.0 * len(set(range(second - 9, second + 1)) & set(range(60, 74))) / 10


def asleep(main_cpu: float, reads: float) -> Scene:
    """The main thread of a loop without workers, which is busy for 40 % of the time."""
    process = {"main_cpu_percent": main_cpu, "cpu_percent": main_cpu + 2}
    return Scene(loop(0.3, 0.4), process={**NO_WORKERS, **process, "read_chars_total": rate(reads)})


def with_idle_cores(idle_cores: float) -> Scene:
    process = {"loader_workers": 2, **BUSY, "cpu_percent": 240.0}
    host = {"cpu_util_percent": 100 * (1 - idle_cores / 64)}
    return Scene(loop(0.3, 0.4), host=host, process=process)


def pinned_to(cores: int) -> Scene:
    """Sixteen workers of a process that may use eight cores."""
    load = {"loader_cpu_percent": 100.0 * cores / 16, "cpu_percent": 100.0 * cores + 50}
    allowed = {"cpus_allowed": 8, "loader_cpus_allowed": cores}
    process = {**BUSY, "loader_workers": 16, "loader_saturated_percent": 0.0, **load, **allowed}
    host = {"psi_cpu_some_percent": 60.0, "cpu_util_percent": 99.5}
    return Scene(loop(0.3, 0.4), host=host, process=process)


def two_workers(saturated: float) -> Scene:
    """Every sixth batch takes long and always meets the same of two workers."""
    cpu = {"loader_cpu_percent": 57.0, "loader_saturated_percent": saturated}
    series = [100.0 if second % 8 < 6 else 10.0 for second in range(140)]
    return Scene(series, process={"loader_workers": 2, "loader_idle_percent": 0.0, **cpu})


PAUSED = paused(loop(0.3, 0.98), {60: 14})
EVALUATES = {"main_cpu_percent": 95.0, "loader_cpu_percent": 10.0, "write_bytes_total": 5}
QUIET = {"loader_cpu_percent": 10.0}
DETAIL = {"sm_active_percent": 80.0, "tensor_active_percent": 45.0, "dram_active_percent": 40.0}
SMALL = {"main_cpu_percent": 50.0, "loader_cpu_percent": 5.0, "loader_idle_percent": 100.0}
SCENES: dict[str, tuple[Scene, Bottleneck]] = {
    "a pause with writes is a checkpoint": (
        Scene(PAUSED, writes={60: 900e6}, process=QUIET), Bottleneck.CHECKPOINT),
    "also of long steps": (
        Scene(paused(loop(5.0, 0.98), {60: 14}), writes={60: 900e6}, process=QUIET), Bottleneck.CHECKPOINT),
    "and to slow storage": (
        Scene(paused(loop(0.3, 0.98), {60: 20}), writes={60: 45e6, 70: 45e6}, process=QUIET), Bottleneck.CHECKPOINT),
    "a second core that is nearly idle has room for a worker": (
        Scene(loop(0.3, 0.6), process={**BUSY, "loader_workers": 1, "cpu_percent": 108.0, "cpus_allowed": 2, "loader_cpus_allowed": 2}),
        Bottleneck.LOADER_WORKERS),
    "most of a core has it": (with_idle_cores(0.9), Bottleneck.LOADER_WORKERS),
    "half of one does not": (with_idle_cores(0.5), Bottleneck.LOADER_CORES),
    "workers on few of the cores of their process are pinned": (pinned_to(2), Bottleneck.LOADER_AFFINITY),
    "on six of eight the job lacks cores": (pinned_to(6), Bottleneck.LOADER_CORES),
    "an evaluation computes in the main thread": (Scene(PAUSED, process=EVALUATES), Bottleneck.EVALUATION),
    "also where that sleeps while the GPU works": (
        Scene(PAUSED, process={**EVALUATES, "main_cpu_percent": main_cpu_in_pause}), Bottleneck.EVALUATION),
    "a main thread as busy as the GPU waits computes meanwhile": (asleep(62.0, 50e6), Bottleneck.LOADER_MAIN),
    "as busy as the GPU works it may spin, but who else reads?": (asleep(40.0, 50e6), Bottleneck.LOADER_MAIN),
    "saturated threads of a loader are not the main thread": (
        Scene(loop(0.3, 0.4), process={**NO_WORKERS, "main_cpu_percent": 97.0, "cpu_percent": 195.0}), Bottleneck.LOADER_THREADS),
    "idle workers on a full node lack no cores, and the traffic of others is not blamed": (
        Scene(loop(0.3, 0.4),
              host={"cpu_util_percent": 100.0, "psi_cpu_some_percent": 95.0, "network_rx_bytes_total": rate(80e6)},
              process={"loader_cpu_percent": 1.0, "loader_idle_percent": 100.0, "read_bytes_total": 0}), Bottleneck.UNKNOWN),
    "a disk that others keep busy is not blamed": (
        Scene(loop(0.3, 0.4), host={"psi_io_some_percent": 80.0, "disk_busy_percent": 98.0}), Bottleneck.UNKNOWN),
    "workers of whom some are full are fed unevenly": (two_workers(50.0), Bottleneck.PREFETCH),
    "and are not where none is": (two_workers(0.0), Bottleneck.UNKNOWN),
    "uneven batches want more prefetching": (
        Scene(loop(1.7, 0.72, jitter=0.95), process={"loader_cpu_percent": 62.0, "loader_saturated_percent": 20.0}), Bottleneck.PREFETCH),
    "a server that nobody knows is not called a small batch": (
        Scene([40.0 * (s // 7 % 3 == 0) + 10 * (s % 2) for s in range(140)], power=0.5,
              process={**NO_WORKERS, "main_cpu_percent": 8.0, "cpu_percent": 12.0}), Bottleneck.UNKNOWN),
    "small batches leave everything idle": (
        Scene(loop(0.3, 0.45), power=0.3, process=SMALL, detail={**DETAIL, "sm_active_percent": 9.0, "tensor_active_percent": 1.0}),
        Bottleneck.SMALL_BATCH),
    "workers started in every pause are epochs": (
        Scene(paused(loop(0.3, 0.98), {25: 8, 55: 8, 85: 8, 115: 8}), started=dict.fromkeys((26, 56, 86, 116), 8)),
        Bottleneck.EPOCH_RESTART),
}  # fmt: skip


async def test_what_is_seen_has_its_name(database: MemoryDatabase) -> None:
    found = await verdicts(database, {claim: scene for claim, (scene, _) in SCENES.items()})
    assert {claim: one.bottleneck for claim, one in found.items()} == {
        claim: expected for claim, (_, expected) in SCENES.items()
    }


async def test_a_main_thread_that_spins_is_not_taken_for_one_that_loads(
    database: MemoryDatabase,
) -> None:
    found = await verdicts(database, {"no reads": asleep(40.0, 1e3), "idle": asleep(5.0, 50e6)})
    assert Bottleneck.LOADER_MAIN not in {one.bottleneck for one in found.values()}


async def test_cores_are_shared_by_those_that_would_take_them(database: MemoryDatabase) -> None:
    """An idle GPU, a server that sleeps and a core that waits for a disk leave all that is idle to the one that loads."""
    host = {"cpu_util_percent": 90.0, "cpu_iowait_percent": 9.0}
    busy = {"loader_cpu_percent": 98.0, "loader_saturated_percent": 100.0}
    asleep = {**NO_WORKERS, "main_cpu_percent": 1.0, "cpu_percent": 2.0}
    Scene(loop(0.3, 0.4), host=host, process=busy).insert(database)
    Scene([0.0] * 140, host=host, process=busy, index=1).insert(database)
    Scene(loop(0.3, 0.4), host=host, process=asleep, index=2).insert(database)
    cores = {s.place.gpu: s.features.idle_cores for s in await observe(database, END)}
    assert cores[0] == pytest.approx(0.1 * 64)


async def test_a_reading_without_utilization_is_absent_and_not_full(
    database: MemoryDatabase,
) -> None:
    def sometimes(second: int) -> float | None:
        return None if second % 5 == 0 else 0.0

    Scene([0.0] * 140, gpu={"util_percent": sometimes}).insert(database)
    (seen,) = await observe(database, END)
    assert seen.features.duty == 0


async def test_workers_started_between_few_readings_may_have_cost_a_pause(
    database: MemoryDatabase,
) -> None:
    """Seen each second there is none; seen each ten nobody knows."""

    def restarted(every_s: int, *at: int) -> Scene:
        started = dict.fromkeys(at, 8)
        return Scene(loop(0.3, 0.98), every_s=every_s, started=started, power=0.9)

    often = (26, 56, 86, 116)
    scenes = {"few": restarted(10, *often), "once": restarted(10, 26), "all": restarted(1, *often)}
    found = await verdicts(database, scenes)
    assert [one.bottleneck for one in found.values()] == [
        Bottleneck.UNKNOWN, Bottleneck.COMPUTE_BOUND, Bottleneck.COMPUTE_BOUND,
    ]  # fmt: skip
    assert "workers were restarted in 4 readings, and" in (found["few"].reason or "")


BUSY_KINDS: dict[Bottleneck, dict[str, Any]] = {
    Bottleneck.COMPUTE_BOUND: {"power": 0.9, "detail": DETAIL},
    Bottleneck.BUSY: {"power": 0.6},
    Bottleneck.MEMORY_BOUND: {
        "power": 0.6,
        "detail": {**DETAIL, "tensor_active_percent": 10.0, "dram_active_percent": 75.0},
    },
    Bottleneck.NOT_WORKING: {
        "power": 0.2,
        "detail": {**DETAIL, "sm_active_percent": 8.0, "tensor_active_percent": 0.0},
    },
    Bottleneck.THROTTLED: {"gpu": {"clocks_event_reasons": 0x40, "sm_clock_mhz": 900}},
}


async def test_busy_gpus_are_told_apart(database: MemoryDatabase) -> None:
    scenes = {(b, s): Scene(loop(s, 0.99), **BUSY_KINDS[b]) for b, s in product(BUSY_KINDS, STEPS)}
    found = await verdicts(database, scenes)
    assert {key: v.bottleneck for key, v in found.items()} == {key: key[0] for key in scenes}


async def test_a_gpu_without_work_is_free_or_held(database: MemoryDatabase) -> None:
    nothing = [0.0] * 140
    Scene(nothing, process=None, gpu={"memory_used_bytes": 0}).insert(database)
    Scene(nothing, index=1, process={"cpu_percent": 0.5, "main_cpu_percent": 0.1}).insert(database)
    first, second = await observe(database, END)
    assert classify(first.place, first.features).bottleneck is Bottleneck.IDLE_FREE
    assert classify(second.place, second.features).bottleneck is Bottleneck.IDLE_HELD


async def test_a_young_process_and_a_shared_gpu_are_not_judged(database: MemoryDatabase) -> None:
    young = Scene(loop(0.3, 0.4), age_s=60, **STARVED[Bottleneck.LOADER_WORKERS])
    found = await verdict(database, young)
    assert found.bottleneck is Bottleneck.UNKNOWN and "warm up" in (found.reason or "")
    two = Scene(loop(0.3, 0.4), index=1, process={"pid": 7, "username": "ann"})
    two.insert(database)
    database.execute(
        "INSERT INTO process_samples BY NAME SELECT * REPLACE (8 AS pid, 'bob' AS username) "
        "FROM process_samples WHERE pid = 7"
    )
    seen = (await observe(database, END))[1]
    found = classify(seen.place, seen.features)
    assert found.bottleneck is Bottleneck.UNKNOWN and "share" in (found.reason or "")


EXPECTED = {
    Workload.FREE: {Bottleneck.IDLE_FREE},
    Workload.IDLE_HELD: {Bottleneck.IDLE_HELD},
    Workload.TRAINING: {Bottleneck.COMPUTE_BOUND, Bottleneck.BUSY, Bottleneck.CHECKPOINT},
    Workload.INFERENCE: {Bottleneck.SERVING},
    Workload.INPUT_BOUND_CPU: {Bottleneck.LOADER_WORKERS},
    Workload.INPUT_BOUND_STORAGE: {Bottleneck.STORAGE_DISK},
    Workload.INPUT_BOUND_MAIN: {Bottleneck.LOADER_MAIN},
    Workload.HOST_BOUND: {Bottleneck.HOST_BOUND},
    Workload.THROTTLED_THERMAL: {Bottleneck.THROTTLED},
    Workload.THROTTLED_POWER_BRAKE: {Bottleneck.THROTTLED},
    Workload.CAPPED: {Bottleneck.COMPUTE_BOUND, Bottleneck.BUSY, Bottleneck.CHECKPOINT},
}


async def test_the_simulators_workloads_are_told_by_their_names(
    database: MemoryDatabase, simulate: Callable[..., None]
) -> None:
    for seed in range(2):
        simulate(*EXPECTED, seed=seed, name=f"n{seed}")
    seen = await observe(database, END)
    found = {
        (one.place.node, kind): classify(one.place, one.features).bottleneck
        for one, kind in zip(seen, list(EXPECTED) * 2, strict=True)
    }
    assert {key: b for key, b in found.items() if b not in EXPECTED[key[1]]} == {}


async def test_only_the_nodes_that_are_asked_for(database: MemoryDatabase) -> None:
    for node in ("n1", "n2"):
        Scene(loop(0.3, 0.9), node=node).insert(database)
    assert [s.place.node for s in await observe(database, END, nodes=["n2"])] == ["n2"]
    assert await observe(database, END, nodes=["' OR true --"]) == []
    assert await observe(database, END, nodes=[]) == []


async def test_more_gpus_than_an_answer_holds_are_an_error(
    database: MemoryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "ROWS_MAX", 1)
    for index in range(2):
        Scene(loop(0.3, 0.9), index=index).insert(database)
    with pytest.raises(QueryError, match="more than 1 GPUs"):
        await observe(database, END)


def fault(kind: FaultKind, gpu: int, **options: Any) -> Fault:
    defaults = {name: option.default for name, option in SPECS[kind].options.items()}
    return Fault(kind, 0, None, gpu, {**defaults, **options})


async def test_a_job_of_the_simulator_that_hangs_and_one_that_waits_for_a_slow_rank(
    database: MemoryDatabase, simulate: Callable[..., None]
) -> None:
    ranks = [Workload.TRAINING] * 4
    simulate(*ranks, together=True, name="hung", script=(fault(FaultKind.HANG, 0),))
    simulate(*ranks, together=True, name="slow", script=(fault(FaultKind.STRAGGLER, 2),))
    database.execute(
        "INSERT INTO gpu_1m BY NAME SELECT TIMESTAMP '2026-01-01 11:50' + to_minutes(m) AS ts, node, gpu, "
        "gpu_uuid, true AS simulated, 60 AS samples, 6 AS detail_samples, 1 AS health_samples, "
        "100 AS util_percent_max, 100 AS util_percent_min, 100 AS util_percent_p95 "
        "FROM gpus, range(9) r(m)"
    )
    judged, views = judged_of(await observe(database, END))
    said: dict[str, list[Bottleneck]] = {}
    for one in judged:
        said.setdefault(one.seen.place.node, []).append(one.verdict.bottleneck)
    assert said["hung"] == [Bottleneck.HUNG_SPIN] * 4
    assert said["slow"][2] is Bottleneck.STRAGGLER
    assert {v.bottleneck for v in views} == {Bottleneck.HUNG_SPIN, Bottleneck.STRAGGLER}
