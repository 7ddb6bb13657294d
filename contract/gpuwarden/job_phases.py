"""Names the phases of a job, from the readings of its GPUs and processes, for its page and the command.

`phases_of` is a pure function. Phases cover the job's time without overlap and without a gap. Where readings do not
tell what the job did, it is `running`. Thresholds are those of the diagnosis (docs/diagnosis.md) where it has one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import TypeVar

from gpuwarden.idleness import HELD_BYTES
from gpuwarden.rollups import IDLE_BELOW_PERCENT

_K = TypeVar("_K")


class Phase(StrEnum):
    """What a job did."""

    QUEUE = "queue"
    LOADING = "loading"
    WARM_UP = "warm-up"
    TRAINING = "training"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    RUNNING = "running"
    IDLE = "idle"
    HUNG = "hung"
    END = "end"


PHASES: dict[Phase, str] = {
    Phase.QUEUE: "Slurm had the job, and had no GPUs for it yet.",
    Phase.LOADING: "No kernel runs yet: the processes read, compute on CPUs or fill the GPUs' memory.",
    Phase.WARM_UP: "Kernels run, and utilization or power is not yet what it is later: compilation, caches, first steps.",
    Phase.TRAINING: "Kernels run, and data-loader workers or checkpoints show that it trains.",
    Phase.CHECKPOINT: "The GPUs pause while the job's processes write.",
    Phase.EVALUATION: "The job is between steps of training: its GPUs work with less power and exchange nearly nothing, "
    "or pause while the main thread computes.",
    Phase.RUNNING: "Kernels run, or nothing is known: the readings do not tell more.",
    Phase.IDLE: "No kernel runs.",
    Phase.HUNG: "A job that had worked stands still, or its GPUs spin at little power.",
    Phase.END: "Nothing runs any more, until the job gives its GPUs back.",
}
"""Meanings, in the order of a legend."""

PAUSE_MIN_S = 5.0
"""The diagnosis counts what a pause wrote from here too; it asks for one of 8 s in its window, since it judges all of
the window by it, and here one step is judged, by a length that follows from a mean."""
PAUSED_BELOW_PERCENT = 10.0
WRITES_FROM = 30e6
"""Bytes a second that processes write during a pause: a checkpoint."""
READS_FROM = 1e6
"""Bytes a second that processes read: they load."""
MAIN_BUSY_PERCENT = 50.0
"""Of a main thread in a pause. The diagnosis asks for 80 % from one that is the limit while kernels run."""
TREE_IDLE_PERCENT = 10.0
WARM_UP_MAX_S = 600.0
HUNG_FROM_S = 900.0
SPIN_FROM_S = 300.0
SPIN_FROM_PERCENT = 95.0
"""All of these are also thresholds of the diagnosis, which agents do not load."""
SPIN_POWER = 0.5
"""Share of the usual power. The diagnosis knows idle power and limit; here what the job drew before is known."""
STEADY = 0.9
"""Share of the usual utilization and power from which warm-up is over."""
LITTLE_LINK = 0.1
LINK_FROM = 1e8
"""Bytes a second over NVLink from which GPUs of a job exchange data: a gradient of 1 GB each ten seconds."""
EVALUATION_POWER = 0.9
"""Share of the usual power: a forward pass alone does a third of the arithmetic of a step."""
COARSE_S = 300.0
"""In longer steps pauses of seconds cannot be seen."""
SHORT_PAUSE_S = 120.0
"""A shorter pause without evidence belongs to what is around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """A step of time: means of a job's GPUs, sums of its processes; None: not reported."""

    begin: datetime
    seconds: float
    util_percent: float | None = None
    util_min_percent: float | None = None
    """Mean of the GPUs' least."""
    memory_bytes: float | None = None
    power_watts: float | None = None
    sm_active_percent: float | None = None
    link_bytes_per_second: float | None = None
    """Received over NVLink or xGMI."""
    throttled_share: float | None = None
    """Time slowed down by heat or the power supply."""
    main_cpu_percent: float | None = None
    """Main thread, mean of the processes; 100 is one core."""
    cpu_percent: float | None = None
    """Process tree, mean of the processes."""
    loader_workers: float | None = None
    """Mean of the processes."""
    read_bytes_per_second: float | None = None
    """All processes, page cache and network file systems included."""
    write_bytes_per_second: float | None = None


NEEDED: dict[str, str] = {
    "util_percent": "GPU utilization",
    "memory_bytes": "GPU memory",
    "power_watts": "power",
    "sm_active_percent": "SM activity",
    "link_bytes_per_second": "NVLink traffic",
    "main_cpu_percent": "CPU of the main threads",
    "loader_workers": "data-loader workers",
    "read_bytes_per_second": "what its processes read",
    "write_bytes_per_second": "what its processes wrote",
}
"""Readings that phases are told from, in words."""


@dataclass(frozen=True, slots=True)
class JobPhase:
    """A part of a job's time."""

    phase: Phase
    begin: datetime
    end: datetime
    confidence: float
    """0 to 1: the share of the evidence that agrees; what was not reported counts half against."""
    evidence: str
    paused_seconds: float | None = None
    """Of a checkpoint: how long the GPUs paused in it, which may be shorter than a step of the readings."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True, slots=True)
class _Usual:
    """What the job does when its GPUs work."""

    util: float
    power: float | None
    link: float | None
    memory: float | None
    has_workers: bool | None
    has_checkpoints: bool


@dataclass(frozen=True, slots=True)
class _Step:
    begin: datetime
    end: datetime
    reading: JobReading | None
    phase: Phase | None = None
    """None: not named yet."""
    checks: tuple[bool | None, ...] = ()
    paused_s: float | None = None

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()

    @property
    def util(self) -> float | None:
        return None if self.reading is None else self.reading.util_percent

    @property
    def is_quiet(self) -> bool:
        return self.util is not None and self.util < IDLE_BELOW_PERCENT

    def named(self, phase: Phase, *checks: bool | None) -> "_Step":
        return replace(self, phase=phase, checks=checks)


def phases_of(
    readings: Iterable[JobReading],
    begin: datetime,
    end: datetime,
    *,
    submitted: datetime | None = None,
    is_from_start: bool = True,
    is_over: bool = True,
) -> Sequence[JobPhase]:
    """The phases from `begin` to `end`, in order, after the queue where `submitted` is known.

    `is_from_start`: the job began at `begin`, not before. `is_over`: it ended at `end`. The order of readings does
    not matter; of several at one time the longest counts.
    """
    queued = []
    if submitted is not None and is_from_start and submitted < begin:
        said = "from its submission to its start, by Slurm"
        queued = [JobPhase(Phase.QUEUE, submitted, begin, 1.0, said)]
    if begin >= end:
        return queued
    steps = _laid_out(readings, begin, end)
    usual = _usual(steps)
    steps = [_checkpoint(step, usual) for step in steps]
    usual = replace(usual, has_checkpoints=any(one.phase is Phase.CHECKPOINT for one in steps))
    steps = _spinning(steps, usual)
    steps = _quiet(steps, usual, is_from_start=is_from_start, is_over=is_over)
    steps = _evaluating(steps, usual)
    steps = _warming_up(steps, usual, is_from_start=is_from_start)
    steps = [_at_work(step, usual) for step in steps]
    return [*queued, *_joined(steps)]


def missing_readings(readings: Iterable[JobReading]) -> Sequence[str]:
    """What no reading has, in words: phases that need it are not told."""
    known = list(readings)
    return [
        words
        for name, words in NEEDED.items()
        if all(getattr(reading, name) is None for reading in known)
    ]


def shares(phases: Iterable[JobPhase]) -> dict[Phase, float]:
    """Seconds by phase. Of a checkpoint only the pause counts; the rest of its step is training."""
    found: dict[Phase, float] = {}
    for one in phases:
        counted = one.seconds if one.paused_seconds is None else one.paused_seconds
        found[one.phase] = found.get(one.phase, 0.0) + counted
        if counted < one.seconds:
            found[Phase.TRAINING] = found.get(Phase.TRAINING, 0.0) + one.seconds - counted
    return {phase: found[phase] for phase in Phase if found.get(phase)}


def _laid_out(readings: Iterable[JobReading], begin: datetime, end: datetime) -> list[_Step]:
    """Steps that cover the time, with None where no reading is."""
    ordered = sorted(readings, key=lambda one: (one.begin, -one.seconds, repr(one)))
    steps: list[_Step] = []
    at = begin
    for one in ordered:
        until = min(one.begin + timedelta(seconds=one.seconds), end)
        since = max(one.begin, at)
        if until <= since:
            continue
        if since > at:
            steps.append(_Step(at, since, None))
        steps.append(_Step(since, until, one))
        at = until
    if at < end:
        steps.append(_Step(at, end, None))
    return steps


def _usual(steps: Sequence[_Step]) -> _Usual:
    working = [step.reading for step in steps if step.reading and not step.is_quiet]
    utils = sorted(one.util_percent for one in working if one.util_percent is not None)
    util = utils[3 * len(utils) // 4] if utils else 0.0
    full = [one for one in working if (one.util_percent or 0.0) >= 0.8 * util]

    def middle(name: str) -> float | None:
        known = [value for one in full if (value := getattr(one, name)) is not None]
        return sorted(known)[len(known) // 2] if known else None

    workers = middle("loader_workers")
    return _Usual(
        util,
        middle("power_watts"),
        middle("link_bytes_per_second"),
        middle("memory_bytes"),
        None if workers is None else workers >= 1,
        has_checkpoints=False,
    )


def _checkpoint(step: _Step, usual: _Usual) -> _Step:
    """Named, if the GPUs paused for five seconds or more and what was written would fill the pause."""
    reading = step.reading
    if (
        reading is None
        or reading.util_percent is None
        or reading.seconds > COARSE_S
        or not usual.util
    ):
        return step
    missing = max(0.0, 1 - reading.util_percent / usual.util)
    pause_s = missing * reading.seconds
    least = reading.util_percent if reading.util_min_percent is None else reading.util_min_percent
    written = reading.write_bytes_per_second
    if pause_s < PAUSE_MIN_S or least >= PAUSED_BELOW_PERCENT or written is None:
        return step
    if written * reading.seconds / pause_s < WRITES_FROM:
        return step
    held = reading.memory_bytes is not None and reading.memory_bytes >= HELD_BYTES
    found = step.named(Phase.CHECKPOINT, True, True, held or None)
    return replace(found, paused_s=min(pause_s, step.seconds))


def _runs(steps: Sequence[_Step], of: Callable[[_Step], _K]) -> list[tuple[_K, list[_Step]]]:
    return [(value, list(run)) for value, run in groupby(steps, key=of)]


def _length(run: Sequence[_Step]) -> float:
    return sum(step.seconds for step in run)


def _spinning(steps: Sequence[_Step], usual: _Usual) -> list[_Step]:
    """Runs of five minutes or more at full utilization and little power, after the job had drawn more."""

    def spins(step: _Step) -> bool:
        one = step.reading
        if one is None or step.phase or usual.power is None or one.power_watts is None:
            return False
        least = one.util_percent if one.util_min_percent is None else one.util_min_percent
        is_still = one.link_bytes_per_second is None or one.link_bytes_per_second < LINK_FROM
        return least is not None and least >= SPIN_FROM_PERCENT and is_still and one.power_watts < SPIN_POWER * usual.power  # fmt: skip

    made: list[_Step] = []
    for is_it, run in _runs(steps, spins):
        has_worked = any(one.util is not None and not one.is_quiet for one in made)
        if is_it and has_worked and _length(run) >= SPIN_FROM_S:
            links = [one.reading.link_bytes_per_second for one in run if one.reading]
            run = [
                step.named(Phase.HUNG, True, True, None if None in links else True) for step in run
            ]
        made += run
    return made


def _quiet(
    steps: Sequence[_Step], usual: _Usual, *, is_from_start: bool, is_over: bool
) -> list[_Step]:
    """Names steps in which no kernel ran, by what the processes did then."""
    made: list[_Step] = []
    runs = _runs(steps, lambda step: step.phase is None and step.is_quiet)
    for number, (is_it, run) in enumerate(runs):
        if not is_it:
            made += run
            continue
        has_worked = not is_from_start or any(
            one.util is not None and not one.is_quiet for one in made
        )
        is_last = number == len(runs) - 1
        made += _quiet_run(run, usual, has_worked=has_worked, is_end=is_last and is_over)
    return made


def _quiet_run(
    run: Sequence[_Step], usual: _Usual, *, has_worked: bool, is_end: bool
) -> Sequence[_Step]:
    first = [step.reading for step in run if step.reading]
    memory = [one.memory_bytes for one in first if one.memory_bytes is not None]
    released = bool(memory) and usual.memory is not None and memory[-1] < usual.memory / 2
    # Memory that was given back is filled again: processes started again.
    emptied = bool(memory) and usual.memory is not None and min(memory) < usual.memory / 2
    if has_worked and is_end and (released or _length(run) <= HUNG_FROM_S):
        return [step.named(Phase.END, True, released if memory else None) for step in run]
    if not has_worked or emptied:
        loading = [step.named(*_loading(step.reading, usual)) for step in run]
        return _filled(loading, Phase.LOADING)
    main = _mean(first, "main_cpu_percent")
    tree = _mean(first, "cpu_percent")
    if _length(run) >= HUNG_FROM_S:
        is_still = None if tree is None else tree < TREE_IDLE_PERCENT
        if is_still:
            return [step.named(Phase.HUNG, True, True) for step in run]
        return [step.named(Phase.IDLE, True, None if tree is None else True) for step in run]
    if main is not None and main >= MAIN_BUSY_PERCENT and _length(run) >= PAUSE_MIN_S:
        return [step.named(Phase.EVALUATION, True, None) for step in run]
    if _length(run) < SHORT_PAUSE_S:
        return run  # a pause within what is around it
    return [step.named(Phase.IDLE, True, None if tree is None else True) for step in run]


def _filled(run: Sequence[_Step], phase: Phase) -> Sequence[_Step]:
    """Steps between two of a phase are of that phase."""
    at = [number for number, step in enumerate(run) if step.phase is phase]
    if not at:
        return run
    return [
        step.named(phase, *run[at[0]].checks) if at[0] <= number <= at[-1] else step
        for number, step in enumerate(run)
    ]


def _loading(reading: JobReading | None, usual: _Usual) -> tuple[Phase, *tuple[bool | None, ...]]:
    """Loading, if it reads, computes on CPUs, or fills the memory; idle otherwise."""
    if reading is None:
        return Phase.IDLE, None
    read, main, memory = (
        reading.read_bytes_per_second,
        reading.main_cpu_percent,
        reading.memory_bytes,
    )
    signs: tuple[bool | None, ...] = (
        None if read is None else read >= READS_FROM,
        None if main is None else main >= MAIN_BUSY_PERCENT,
        None if memory is None or usual.memory is None else memory >= HELD_BYTES,
    )
    if any(signs[:2]):
        return Phase.LOADING, *signs
    return Phase.IDLE, *(None if sign is None else not sign for sign in signs[:2])


def _mean(readings: Sequence[JobReading], name: str) -> float | None:
    known = [value for one in readings if (value := getattr(one, name)) is not None]
    return sum(known) / len(known) if known else None


def _evaluating(steps: Sequence[_Step], usual: _Usual) -> list[_Step]:
    """Runs in which GPUs of a job that exchange data work at less power and exchange nearly none."""
    if usual.link is None or usual.link < LINK_FROM or usual.power is None:
        return list(steps)
    usual_link, usual_power = usual.link, usual.power

    def evaluates(step: _Step) -> bool:
        one = step.reading
        return (
            one is not None
            and step.phase is None
            and not step.is_quiet
            and one.link_bytes_per_second is not None
            and one.power_watts is not None
            and one.link_bytes_per_second < LITTLE_LINK * usual_link
            and one.power_watts < EVALUATION_POWER * usual_power
        )

    made: list[_Step] = []
    for is_it, run in _runs(steps, evaluates):
        # Before training, these are the first steps of warm-up.
        has_trained = any((one.util or 0.0) >= STEADY * usual.util for one in made)
        if is_it and has_trained:
            is_after = any(one.phase is Phase.CHECKPOINT for one in made[-2:])
            run = [step.named(Phase.EVALUATION, True, True, is_after or None) for step in run]
        made += run
    return made


def _warming_up(steps: Sequence[_Step], usual: _Usual, *, is_from_start: bool) -> list[_Step]:
    """Names the first steps with kernels after the start or after loading, until they are as usual."""
    made: list[_Step] = []
    left_s = WARM_UP_MAX_S if is_from_start else 0.0
    for step in steps:
        if step.phase is Phase.LOADING:
            left_s = WARM_UP_MAX_S
        elif step.phase is None and step.reading is not None and left_s > 0:
            if _is_steady(step.reading, usual) is not False:
                left_s = 0.0
            else:
                power = step.reading.power_watts
                step = step.named(Phase.WARM_UP, True, None if power is None else True)
                left_s -= step.seconds
        made.append(step)
    # All of a job that never became as usual is not warm-up.
    is_only = all(step.phase is not None or step.reading is None for step in made)
    return list(steps) if is_only else made


def _is_steady(reading: JobReading, usual: _Usual) -> bool | None:
    """Whether utilization and power are as usual; None: neither is known."""
    known = [
        value >= STEADY * mean
        for value, mean in ((reading.util_percent, usual.util), (reading.power_watts, usual.power))
        if value is not None and mean
    ]
    return all(known) if known else None


def _at_work(step: _Step, usual: _Usual) -> _Step:
    """What is left: training, if something shows that it trains."""
    if step.phase is not None:
        return step
    if step.reading is None or step.reading.util_percent is None:
        return step.named(Phase.RUNNING)
    signs = (usual.has_workers, usual.has_checkpoints or None)
    if any(signs):
        return step.named(Phase.TRAINING, True, *signs)
    return step.named(Phase.RUNNING, True, None)


def _joined(steps: Sequence[_Step]) -> list[JobPhase]:
    """Neighbours of one phase as one; a lack of readings stays apart from what is known."""
    made = []
    for (phase, _), run in _runs(steps, lambda step: (step.phase, step.util is None)):
        assert phase is not None
        confidence = sum(_confidence(step.checks) * step.seconds for step in run) / _length(run)
        paused = [step.paused_s for step in run if step.paused_s is not None]
        made.append(
            JobPhase(
                phase,
                run[0].begin,
                run[-1].end,
                round(confidence, 2),
                _evidence(phase, run),
                sum(paused) if paused else None,
            )
        )
    return made


def _confidence(checks: Sequence[bool | None]) -> float:
    if not checks:
        return 0.0
    unseen = sum(check is None for check in checks)
    return sum(check is True for check in checks) / (len(checks) - unseen / 2)


def _evidence(phase: Phase, run: Sequence[_Step]) -> str:
    """What was measured, in words."""
    readings = [step.reading for step in run if step.reading]
    util = _mean(readings, "util_percent")
    if util is None:
        return "no readings of its GPUs"
    said = [
        f"GPUs busy {util:.0f} % of the time" if util >= IDLE_BELOW_PERCENT else "no kernel ran"
    ]
    power = _mean(readings, "power_watts")
    if power is not None:
        said.append(f"{power:.0f} W each")
    active = _mean(readings, "sm_active_percent")
    if active is not None and util >= IDLE_BELOW_PERCENT:
        said.append(f"SMs active {active:.0f} %")
    paused = [step.paused_s for step in run if step.paused_s is not None]
    if paused:
        said.append(f"paused about {sum(paused):.0f} s")
    said += _process_evidence(phase, readings)
    throttled = _mean(readings, "throttled_share")
    if throttled is not None and throttled >= 0.05:
        said.append(f"slowed down by heat or power supply {100 * throttled:.0f} % of the time")
    return ", ".join(said)


def _process_evidence(phase: Phase, readings: Sequence[JobReading]) -> list[str]:
    said = []
    for name, words, phases in (
        ("write_bytes_per_second", "wrote", (Phase.CHECKPOINT,)),
        ("read_bytes_per_second", "read", (Phase.LOADING, Phase.IDLE)),
        ("link_bytes_per_second", "received over NVLink", (Phase.EVALUATION, Phase.HUNG)),
    ):
        value = _mean(readings, name)
        if value is not None and phase in phases:
            said.append(f"{words} {value / 1e6:,.0f} MB/s")
    main = _mean(readings, "main_cpu_percent")
    if main is not None and phase in (Phase.LOADING, Phase.IDLE, Phase.HUNG, Phase.EVALUATION):
        said.append(f"main thread at {main:.0f} % of a core")
    workers = _mean(readings, "loader_workers")
    if workers is not None and workers >= 1 and phase in (Phase.TRAINING, Phase.WARM_UP):
        said.append(f"{workers:.0f} data-loader workers for each process")
    return said
