"""Compares the ranks of a job: a starved or slow one is the cause, those that wait for it are victims."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND, Bottleneck
from gpuwarden_rules.diagnosis.advice import HEALTHY_STALL
from gpuwarden_rules.diagnosis.classify import Verdict
from gpuwarden_rules.diagnosis.features import ObservedGpu

CAUSES = INPUT_BOUND | {
    Bottleneck.THROTTLED,
    Bottleneck.CHECKPOINT,
    Bottleneck.EVALUATION,
    Bottleneck.HOST_BOUND,
    Bottleneck.MAIN_THREAD,
    Bottleneck.STRAGGLER,
}
"""Classes of a rank that makes others wait."""
WAITING = frozenset(
    {
        Bottleneck.NOT_WORKING,
        Bottleneck.COMM_BOUND,
        Bottleneck.BUSY,
        Bottleneck.HUNG_SPIN,
        Bottleneck.UNKNOWN,
    }
)
"""Classes of a rank that may wait in a collective: busy at low power."""
WAITING_DUTY_MIN = 0.9
WAITING_POWER_MAX = 0.5
STRAGGLER_RANKS_MIN = 4
STRAGGLER_CLOCK = 0.9
"""A rank below this share of the median SM clock is a straggler."""
STRAGGLER_POWER_GAP = 0.15
STRAGGLER_Z = 3.5
MAD_TO_SIGMA = 0.6745


@dataclass(frozen=True, slots=True)
class Judged:
    """A GPU, its verdict, and the UUID of the GPU that it waits for, if any."""

    seen: ObservedGpu
    verdict: Verdict
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job on several GPUs."""

    name: str
    ranks: Sequence[Judged]
    bottleneck: Bottleneck
    confidence: float
    causes: Sequence[Judged]
    """Ranks that make the others wait."""
    efficiency: float | None
    """Mean share of the time in which its GPUs work; a rank that waits counts like its cause."""
    usd_per_hour: float | None
    """Loss an hour of all its GPUs; None: no price is known."""

    @property
    def victims(self) -> int:
        """Number of ranks that wait for another."""
        return sum(rank.cause is not None for rank in self.ranks)


def judge_jobs(judged: Sequence[Judged]) -> tuple[list[Judged], list[JobView]]:
    """Verdicts that take the other ranks into account, in the same order, and the jobs of several GPUs."""
    jobs: dict[str, list[int]] = defaultdict(list)
    for at, one in enumerate(judged):
        if one.seen.place.work is not None:
            jobs[one.seen.place.work].append(at)
    after, views = list(judged), []
    for name, places in jobs.items():
        if len(places) < 2:
            continue
        ranks = _attributed([after[at] for at in places])
        for at, rank in zip(places, ranks, strict=True):
            after[at] = rank
        views.append(_view(name, ranks))
    return after, views


def _attributed(ranks: Sequence[Judged]) -> list[Judged]:
    """The ranks, with victims that refer to their cause, if there is one."""
    ranks = _with_straggler(ranks)
    causes = [rank for rank in ranks if rank.verdict.bottleneck in CAUSES]
    victims = [rank for rank in ranks if _waits(rank)]
    if not causes or not victims:
        return list(ranks)
    worst = max(causes, key=lambda rank: rank.seen.features.stall or 0)
    cause = worst.seen.place
    waits = Verdict(
        Bottleneck.WAITS_FOR_PEER,
        worst.verdict.confidence,
        (),
        f"it waits for GPU {cause.gpu} of {cause.node}, which is {worst.verdict.bottleneck.value}",
    )
    return [
        replace(rank, verdict=replace(waits, evidence=rank.verdict.evidence), cause=cause.gpu_uuid)
        if _waits(rank)
        else rank
        for rank in ranks
    ]


def _waits(rank: Judged) -> bool:
    """Whether the rank may wait in a collective: busy at low power."""
    features = rank.seen.features
    return (
        rank.verdict.bottleneck in WAITING
        and (features.duty or 0) >= WAITING_DUTY_MIN
        and features.power_share is not None
        and features.power_share < WAITING_POWER_MAX
    )


def _with_straggler(ranks: Sequence[Judged]) -> list[Judged]:
    """The ranks with a straggler, by `_slow_clock` or `_working_alone`, if none has another cause."""
    clocks = [rank.seen.features.clock_share for rank in ranks]
    powers = [rank.seen.features.power_share for rank in ranks]
    is_alike = all((rank.seen.features.duty or 0) >= WAITING_DUTY_MIN for rank in ranks)
    has_cause = any(rank.verdict.bottleneck in CAUSES for rank in ranks)
    if has_cause or not is_alike or len(ranks) < STRAGGLER_RANKS_MIN:
        return list(ranks)
    slow = _slow_clock(clocks) if None not in clocks else None
    if slow is None and None not in powers and sum(map(_waits, ranks)) >= len(ranks) - 1:
        slow = _working_alone(powers)
    return [
        replace(rank, verdict=Verdict(Bottleneck.STRAGGLER, 0.5, rank.verdict.evidence))
        if at == slow
        else rank
        for at, rank in enumerate(ranks)
    ]


def _slow_clock(clocks: Sequence[float | None]) -> int | None:
    """The rank whose clock is well below that of the others."""
    known = [clock or 0.0 for clock in clocks]
    least = min(range(len(known)), key=known.__getitem__)
    return least if known[least] <= STRAGGLER_CLOCK * median(known) else None


def _working_alone(powers: Sequence[float | None]) -> int | None:
    """The rank that draws power while the others wait."""
    known = [power or 0.0 for power in powers]
    middle = median(known)
    spread = max(median(abs(power - middle) for power in known), 1e-3)
    most = max(range(len(known)), key=known.__getitem__)
    gap = known[most] - middle
    is_apart = gap >= STRAGGLER_POWER_GAP and MAD_TO_SIGMA * gap / spread >= STRAGGLER_Z
    return most if is_apart else None


def _view(name: str, ranks: Sequence[Judged]) -> JobView:
    by_uuid = {rank.seen.place.gpu_uuid: rank for rank in ranks}
    causes = [rank for rank in ranks if rank.verdict.bottleneck in CAUSES]
    stalls = [_stall(rank, by_uuid) for rank in ranks]
    known = [stall for stall in stalls if stall is not None]
    bottleneck, confidence = _verdict_of(ranks, causes)
    prices = [rank.seen.place.usd_per_hour for rank in ranks]
    lost = [
        price * max(0.0, stall - HEALTHY_STALL)
        for price, stall in zip(prices, stalls, strict=True)
        if price is not None and stall is not None
    ]
    return JobView(
        name,
        ranks,
        bottleneck,
        confidence,
        causes,
        1 - fmean(known) if known else None,
        sum(lost) if lost else None,
    )


def _stall(rank: Judged, by_uuid: Mapping[str, Judged]) -> float | None:
    """Share of time that a rank loses; a rank that waits loses as much as its cause."""
    if rank.verdict.bottleneck in (Bottleneck.HUNG_SPIN, Bottleneck.HUNG_BLOCKED):
        return 1.0
    of = by_uuid[rank.cause] if rank.cause else rank
    return of.seen.features.stall


def _verdict_of(ranks: Sequence[Judged], causes: Sequence[Judged]) -> tuple[Bottleneck, float]:
    """Class and confidence of the worst cause, else of most ranks; on a tie healthy classes come last."""
    if causes:
        worst = max(causes, key=lambda rank: rank.seen.features.stall or 0)
        return worst.verdict.bottleneck, worst.verdict.confidence
    counts: dict[Bottleneck, list[float]] = defaultdict(list)
    for rank in ranks:
        counts[rank.verdict.bottleneck].append(rank.verdict.confidence)
    most = max(counts, key=lambda b: (len(counts[b]), b not in HEALTHY, b.value))
    return most, fmean(counts[most])
