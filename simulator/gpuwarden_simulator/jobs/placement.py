"""Places jobs on the GPUs of a node over time.

A placement is a group of GPUs with one permanent workload, or with jobs drawn from `SHARES`. Drawn jobs
are a function of seed and UTC time: each day is filled from its own random stream, so that every
instant can be computed, and a restarted simulator finds the same jobs.

Shares follow AcmeTrace (InternLM, two A100 clusters): about a quarter of GPU time idle, most of the
rest busy training.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuwarden_simulator.jobs.workload import Job, Workload

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

REQUIRED: tuple[Workload, ...] = (
    Workload.IDLE_HELD,
    Workload.TRAINING,
    Workload.INPUT_BOUND_CPU,
    Workload.THROTTLED_THERMAL,
    Workload.TRAINING,
    Workload.TRAINING,
    Workload.INFERENCE,
    Workload.FREE,
)
"""Permanent workloads of the first GPUs, most useful first, so that a small simulation shows something."""

SHARES: dict[Workload, float] = {
    Workload.TRAINING: 0.47,
    Workload.FREE: 0.17,
    Workload.INFERENCE: 0.12,
    Workload.IDLE_HELD: 0.08,
    Workload.INPUT_BOUND_CPU: 0.05,
    Workload.INPUT_BOUND_STORAGE: 0.03,
    Workload.INPUT_BOUND_MAIN: 0.03,
    Workload.HOST_BOUND: 0.02,
    Workload.CAPPED: 0.01,
    Workload.THROTTLED_THERMAL: 0.01,
    Workload.THROTTLED_POWER_BRAKE: 0.01,
}
"""Shares of GPU time of the drawn jobs."""

_LEVELS: dict[Workload, tuple[float, float]] = {
    Workload.THROTTLED_THERMAL: (0.75, 1.0),
    Workload.CAPPED: (0.75, 1.0),
}
"""Narrower ranges of `Job.level`: only a job that draws much power meets a limit."""

_USERS = ("amina", "bjorn", "chen", "divya", "elif", "farid", "goran", "hana", "ines", "jonas")


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs of a node that are allocated together."""

    gpus: tuple[int, ...]
    workload: Workload | None
    """Their permanent workload; None: jobs come and go."""


def default_workloads(gpus: int, seed: int, required: int = 0) -> tuple[Placement, ...]:
    """A believable mix for one node: `REQUIRED` on its first GPUs, then jobs that come and go.

    `required`: how many of `REQUIRED` other nodes of the fleet already have.
    """
    if gpus < 1:
        raise ValueError(f"a simulated node has at least one GPU, not {gpus}")
    fixed = REQUIRED[required : required + gpus]
    placements = list(_fixed_placements(fixed))
    rng = random.Random(f"placements/{seed}")
    first = len(fixed)
    while first < gpus:
        size = min(rng.choice((1, 1, 2, 4, 8)), gpus - first)
        placements.append(Placement(tuple(range(first, first + size)), None))
        first += size
    return tuple(placements)


def _fixed_placements(workloads: Sequence[Workload]) -> Iterator[Placement]:
    """One placement for each GPU, but neighbours that train share a job."""
    first = 0
    while first < len(workloads):
        workload, after = workloads[first], first + 1
        while workload is Workload.TRAINING and workloads[after : after + 1] == (workload,):
            after += 1
        yield Placement(tuple(range(first, after)), workload)
        first = after


def check_placements(placements: Sequence[Placement], gpus: int) -> None:
    """Raises ValueError unless every GPU from 0 to `gpus` - 1 is in exactly one placement."""
    placed = sorted(gpu for placement in placements for gpu in placement.gpus)
    if placed != list(range(gpus)):
        raise ValueError(f"placements must name each of {gpus} GPUs once, they name {placed}")


class Timeline:
    """The jobs of one placement, by time."""

    def __init__(self, placement: Placement, seed: str) -> None:
        self._placement = placement
        self._seed = f"{seed}/{placement.gpus[0]}"
        # Not all nodes change jobs at midnight: each placement's day has its own offset.
        self._offset_ms = random.Random(f"offset/{self._seed}").randrange(DAY_MS)
        self._job: Job | None = None

    def job_at(self, at_ms: int) -> Job:
        """The job that holds the GPUs at that instant. Cheap while it is the same job."""
        job = self._job
        if job is None or at_ms < job.started_ms or (job.ends_ms and at_ms >= job.ends_ms):
            job = self._job = self._find(at_ms)
        return job

    def _find(self, at_ms: int) -> Job:
        if self._placement.workload is not None:
            return self._lasting_job(self._placement.workload, at_ms)
        day = (at_ms + self._offset_ms) // DAY_MS
        return next(job for job in self._jobs_of_day(day) if at_ms < (job.ends_ms or 0))

    def _lasting_job(self, workload: Workload, at_ms: int) -> Job:
        """A job that started some hours before this week, so that a restart finds the same start."""
        rng = random.Random(f"lasting/{self._seed}")
        started_ms = at_ms // WEEK_MS * WEEK_MS - int(rng.uniform(3, 60) * HOUR_MS)
        return make_job(workload, self._placement.gpus, started_ms, None, rng)

    def _jobs_of_day(self, day: int) -> Iterator[Job]:
        rng = random.Random(f"day/{self._seed}/{day}")
        started_ms = day * DAY_MS - self._offset_ms
        end_of_day_ms = started_ms + DAY_MS
        while started_ms < end_of_day_ms:
            (workload,) = rng.choices(tuple(SHARES), tuple(SHARES.values()))
            minutes = min(max(rng.lognormvariate(4.4, 0.9), 10.0), 600.0)
            ends_ms = min(started_ms + int(minutes * MINUTE_MS), end_of_day_ms)
            yield make_job(workload, self._placement.gpus, started_ms, ends_ms, rng)
            started_ms = ends_ms


def make_job(
    workload: Workload,
    gpus: tuple[int, ...],
    started_ms: int,
    ends_ms: int | None,
    rng: random.Random,
) -> Job:
    """A job with its own owner, processes and level."""
    level = rng.uniform(*_LEVELS.get(workload, (0.0, 1.0)))
    user = rng.choice(_USERS)
    first_pid = rng.randrange(2_000, 4_000_000, 64)
    number = rng.randrange(100_000, 999_999)
    container = f"{rng.getrandbits(256):064x}"
    pids = tuple(first_pid + i for i in range(len(gpus)))
    job = (workload, gpus, started_ms, ends_ms, level)
    match workload:
        case Workload.FREE:
            return Job(*job, "", ())
        case Workload.UNUSED:
            return Job(*job, "", (), user, slurm_job_id=str(number))
        case Workload.INFERENCE:
            pod = f"serving/{user}-llm-{number % 1000}"
            return Job(*job, "vllm", pids, "root", container_id=container, pod=pod)
        case _:
            return Job(*job, "python3.11", pids, user, slurm_job_id=str(number))
