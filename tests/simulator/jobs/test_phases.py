"""The phases that readings tell are those that the simulator planned."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.job_phases import Phase, phases_of
from gpuwarden.job_readings import read_job_readings
from gpuwarden.models import SIMULATED
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_simulator.jobs.placement import Placement, Timeline
from gpuwarden_simulator.jobs.workload import Job, Stage, Workload, stage
from gpuwarden_simulator.node import SimulatedNode

START_MS = 1_795_651_200_000
EACH_MS = 2_000
H100 = next(model for model in SIMULATED if "H100-SXM" in model.name)
TABLES = ("gpu_samples", "process_samples", "gpu_detail_samples")
TO_MINUTES = """
INSERT INTO gpu_1m BY NAME SELECT time_bucket(INTERVAL 1 MINUTE, ts) AS ts, node, gpu_uuid, any_value(gpu) AS gpu,
    true AS simulated, count(*) AS samples, 0 AS detail_samples, 0 AS health_samples,
    avg(util_percent)::FLOAT AS util_percent_avg, min(util_percent) AS util_percent_min,
    avg(memory_used_bytes)::FLOAT AS memory_used_bytes_avg, avg(power_watts)::FLOAT AS power_watts_avg,
    (SELECT avg(nvlink_rx_bytes_per_second) FROM gpu_detail_samples d WHERE d.gpu_uuid = s.gpu_uuid
        AND d.ts > time_bucket(INTERVAL 1 MINUTE, s.ts)
        AND d.ts <= time_bucket(INTERVAL 1 MINUTE, s.ts) + INTERVAL 1 MINUTE)::FLOAT AS nvlink_rx_bytes_per_second_avg
FROM gpu_samples s GROUP BY ALL;
INSERT INTO process_1m BY NAME SELECT time_bucket(INTERVAL 1 MINUTE, ts - INTERVAL 1 SECOND) AS ts, node, gpu_uuid, pid,
    any_value(gpu) AS gpu, any_value(job) AS job, true AS simulated, count(*) AS samples,
    avg(main_cpu_percent)::FLOAT AS main_cpu_percent_avg, avg(cpu_percent)::FLOAT AS cpu_percent_avg,
    avg(loader_workers)::FLOAT AS loader_workers_avg, sum(read) AS read_chars_delta, sum(written) AS write_bytes_delta
FROM (SELECT *, read_chars_total - lag(read_chars_total) OVER w AS read, write_bytes_total - lag(write_bytes_total) OVER w AS written
    FROM process_samples WINDOW w AS (PARTITION BY gpu_uuid, pid ORDER BY ts)) GROUP BY ALL;
DELETE FROM gpu_samples; DELETE FROM process_samples; DELETE FROM gpu_detail_samples;
"""


def job_of(workload: Workload, level: float, gpus: int, minutes: int) -> Job:
    """A job on all GPUs of a node."""
    pids = tuple(4000 + gpu for gpu in range(gpus))
    ends_ms = START_MS + minutes * 60_000
    owner = ("python3.11", pids, "ada", "7")
    return Job(workload, tuple(range(gpus)), START_MS, ends_ms, level, *owner)


def stored(job: Job, db: MemoryDatabase, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Store what a node with that job reports; its GPUs."""
    monkeypatch.setattr(Timeline, "job_at", lambda *_: job)
    node = SimulatedNode("n1", len(job.gpus), H100, 3, [Placement(job.gpus, None)], host=False)
    rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    assert job.ends_ms is not None
    for at_ms in range(START_MS, job.ends_ms + 1, EACH_MS):
        found = node.read(at_ms)
        for table in TABLES:
            for row in found.get(table, ()):
                of_row = {name: value for name, value in row.items() if name != "started_at"}
                rows[table].append(
                    {"node": "n1", "simulated": True, "ts": from_ms(at_ms), **of_row}
                )
    for table, of_table in rows.items():
        db.insert(table, of_table)
    return sorted({row["gpu_uuid"] for row in rows["gpu_samples"]})


async def told(job: Job, gpus: list[str], db: MemoryDatabase) -> list[tuple[datetime, Phase]]:
    """The phase at each step of ten seconds, as pages tell it."""
    begin, end = from_ms(job.started_ms), from_ms(job.ends_ms or 0)
    found = await read_job_readings(db, "7", gpus, begin, end)
    phases = phases_of(found.readings, begin, end, is_over=False)
    at, made = begin, []
    while at < end:
        made.append((at, next(one.phase for one in phases if one.begin <= at < one.end)))
        at += timedelta(seconds=10)
    return made


def planned(job: Job, begin: datetime, seconds: int) -> Phase:
    """What the simulator meant for a step: a pause of five seconds makes it a checkpoint, else what held longest."""
    at_ms = to_ms(begin)
    count = Counter(stage(job, at_ms + 1000 * second) for second in range(1, seconds + 1))
    if count[Stage.CHECKPOINT] >= 5:
        return Phase.CHECKPOINT
    return Phase(count.most_common(1)[0][0].value)


@pytest.mark.parametrize(("gpus", "step_s"), [(1, 60), (2, 10)])
async def test_steps_are_named_as_the_simulator_planned_them(
    gpus: int, step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(Workload.TRAINING, 0.05, gpus, 68)
    db = MemoryDatabase()
    uuids = stored(job, db, monkeypatch)
    if step_s == 60:
        db.execute(TO_MINUTES)
    named = await told(job, uuids, db)
    db.close()
    right, wanted, claimed = Counter[Phase](), Counter[Phase](), Counter[Phase]()
    for at, phase in named:
        whole = at.replace(second=0) if step_s == 60 else at
        meant = planned(job, whole, step_s)
        wanted[meant] += 1
        claimed[phase] += 1
        right[meant] += phase is meant
    assert right.total() >= 0.97 * wanted.total()  # measured: 97.8 % to 100 %
    for phase in (Phase.LOADING, Phase.WARM_UP, Phase.CHECKPOINT):
        assert right[phase] >= 0.85 * wanted[phase] > 0, phase
    # Where GPUs exchange no data, and where it is shorter than a step, an evaluation looks like training.
    can_be_seen = gpus == 2 and step_s == 10
    assert right[Phase.EVALUATION] == claimed[Phase.EVALUATION]
    assert (right[Phase.EVALUATION] == wanted[Phase.EVALUATION] > 0) == can_be_seen


@pytest.mark.parametrize(
    ("workload", "phase"),
    [
        (Workload.INPUT_BOUND_CPU, Phase.TRAINING),
        (Workload.INPUT_BOUND_MAIN, Phase.RUNNING),
        (Workload.INFERENCE, Phase.RUNNING),
        (Workload.IDLE_HELD, Phase.IDLE),
        (Workload.BLOCKED, Phase.IDLE),
    ],
)
async def test_other_jobs_are_named_as_far_as_their_readings_tell(
    workload: Workload, phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(workload, 0.5, 1, 20)
    db = MemoryDatabase()
    named = await told(job, stored(job, db, monkeypatch), db)
    db.close()
    count = Counter(one for _, one in named)
    assert count[phase] >= 0.95 * len(named), count
