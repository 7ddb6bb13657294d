"""Chooses rollups instead of samples where the step of a query allows it.

With a step of a minute or more the collector answers as a Prometheus that scrapes once a minute: a rollup's row is a
reading at the end of its minute or hour. What is not rolled up yet is read from samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpuwarden.rollups import ROLLUPS, Rollup, RollupPart

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
OF_INSTANTS = ("last", "avg", "max")
"""Summaries that stand for a gauge's reading at the end of a row's window: the first that the rollup has."""
LONG_MS = 3 * HOUR_MS
"""Time span from which minutes are read for steps shorter than a minute."""


@dataclass(frozen=True, slots=True)
class RolledUntil:
    """Ends of the last minute and hour that are rolled up, in milliseconds; 0: none is."""

    minutes_ms: int = 0
    hours_ms: int = 0

    def of(self, window_ms: int) -> int:
        """The end for rollups with this window."""
        return self.minutes_ms if window_ms < HOUR_MS else min(self.hours_ms, self.minutes_ms)


@dataclass(frozen=True, slots=True)
class RolledMetric:
    """Columns of a metric in a rollup."""

    table: str
    window_ms: int
    count: str
    """Column with the number of samples of the window."""
    columns: Mapping[str, Sequence[str]]
    """By summary (`avg`, `min`, `max`, `last`, `delta`): a column for each column of the metric."""

    def one(self, *hows: str) -> str:
        """The column of the first of these summaries that exists; "": none does."""
        return next((self.columns[how][0] for how in hows if how in self.columns), "")


@cache
def rolled_metrics(
    table: str, columns: tuple[str, ...], needed: frozenset[str]
) -> tuple[RolledMetric, ...]:
    """Rollups of the columns of a table of samples, by length; `needed`: columns of keys and labels."""
    found = [
        RolledMetric(rollup.table.name, rollup.window_s * 1000, part.count.name, summaries)
        for rollup in ROLLUPS.values()
        if needed <= set(rollup.table.names)
        for part in rollup.parts
        if part.table == table
        if (summaries := dict(_summaries(rollup, part, columns)))
    ]
    return tuple(sorted(found, key=lambda rolled: rolled.window_ms))


def _summaries(
    rollup: Rollup, part: RollupPart, columns: tuple[str, ...]
) -> Iterator[tuple[str, Sequence[str]]]:
    for how in ("avg", "min", "max", "last", "delta"):
        names = [
            next((s.column.name for s in part.summaries if s.source == c and s.how == how), "")
            for c in columns
        ]
        if all(names):
            yield how, names


def of_instants(
    rolled: Sequence[RolledMetric], step_ms: int, steps: int, *, is_rate: bool
) -> tuple[RolledMetric, ...]:
    """Rollups whose rows are readings for the steps, by length; none: samples. `is_rate`: of counters' growth.

    Over some hours minutes are enough also for shorter steps, as with a Prometheus that scrapes once a minute.
    """
    if steps == 1:
        return ()
    longest_ms = step_ms
    if (steps - 1) * step_ms >= LONG_MS:
        longest_ms = max(step_ms, MINUTE_MS)
    needed = ("delta",) if is_rate else OF_INSTANTS
    return tuple(r for r in rolled if r.window_ms <= longest_ms and r.one(*needed))


@dataclass(frozen=True, slots=True)
class StepSpan:
    """Steps that are answered from a rollup, or from samples (None)."""

    first: int
    last: int
    rolled: RolledMetric | None


def step_spans(
    usable: Sequence[RolledMetric], start_ms: int, step_ms: int, steps: int, known: RolledUntil
) -> list[StepSpan]:
    """The steps of a grid: from hours as far as they are rolled up, then minutes, then samples."""
    found, first = [], 0
    for rolled in reversed(usable):
        until_ms = known.of(rolled.window_ms) // rolled.window_ms * rolled.window_ms
        last = min((until_ms - start_ms) // step_ms, steps - 1)
        if last >= first:
            found.append(StepSpan(first, last, rolled))
            first = last + 1
    if first < steps:
        found.append(StepSpan(first, steps - 1, None))
    return found


OF_FUNCTIONS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "avg_over_time": (("avg",),),
    "sum_over_time": (("avg",),),
    "count_over_time": (("avg", "last", "max"),),
    "present_over_time": (("avg", "last", "max"),),
    "min_over_time": (("min",),),
    "max_over_time": (("max",),),
    "last_over_time": (("last", "avg"),),
    "rate": (("delta",),),
    "increase": (("delta",),),
}
"""Functions of windows that rollups can answer: the summaries that each needs, one of each group."""


def of_windows(
    rolled: Sequence[RolledMetric], function: str, window_ms: int, step_ms: int, steps: int
) -> tuple[RolledMetric, ...]:
    """Rollups with at least four rows a window, if step or window allow them, by length; none: samples."""
    groups = OF_FUNCTIONS.get(function)
    if groups is None:
        return ()
    return tuple(
        r
        for r in rolled
        if 4 * r.window_ms <= window_ms
        and ((steps > 1 and r.window_ms <= step_ms) or 96 * r.window_ms <= window_ms)
        and all(r.one(*group) for group in groups)
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a time span, its start excluded, and where its readings are: a rollup, or samples (None)."""

    after_ms: int
    until_ms: int
    rolled: RolledMetric | None


def pieces(
    usable: Sequence[RolledMetric], after_ms: int, until_ms: int, known: RolledUntil
) -> list[Piece]:
    """The pieces of a time span: hours as far as they are rolled up, then minutes, then samples."""
    found = []
    for rolled in reversed(usable):
        split_ms = min(until_ms, known.of(rolled.window_ms)) // rolled.window_ms * rolled.window_ms
        if split_ms > after_ms:
            found.append(Piece(after_ms, split_ms, rolled))
            after_ms = split_ms
    if until_ms > after_ms:
        found.append(Piece(after_ms, until_ms, None))
    return found
