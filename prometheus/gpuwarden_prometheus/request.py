"""The text of a Prometheus query as query processes and the query log get it: PromQL after a comment with its times.

`# range START END STEP LOOKBACK MINUTES HOURS`, `# blocks` with the same and the number of steps that are known already, `# instant AT LOOKBACK MINUTES HOURS` (ends of what is rolled up), `# series START END`, `# federate AT LOOKBACK`, `# labels START END` or
`# values START END LABEL`, in milliseconds; then the expression, or one selector a line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden_prometheus.relations import Grid
from gpuwarden_prometheus.tiers import RolledUntil


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A time span in milliseconds, both ends included."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class RangeTimes:
    """The times of a range query."""

    grid: Grid
    end_ms: int
    """The end that was asked for."""
    lookback_ms: int
    rolled: RolledUntil

    def __str__(self) -> str:
        rolled = self.rolled
        return (
            f"{self.grid.start_ms} {self.end_ms} {self.grid.step_ms} {self.lookback_ms} "
            f"{rolled.minutes_ms} {rolled.hours_ms}"
        )


def range_text(query: str, times: RangeTimes) -> str:
    """The text of a range query."""
    return f"# range {times}\n{query}"


def blocks_text(query: str, times: RangeTimes, known: int) -> str:
    """The text of a range query without its first steps, which are known, to be answered in blocks."""
    return f"# blocks {times} {known}\n{query}"


def instant_text(query: str, at_ms: int, lookback_ms: int, rolled: RolledUntil) -> str:
    """The text of an instant query."""
    return f"# instant {at_ms} {lookback_ms} {rolled.minutes_ms} {rolled.hours_ms}\n{query}"


def series_text(selectors: Sequence[str], span: TimeSpan) -> str:
    """The text of a question for series."""
    return f"# series {span.start_ms} {span.end_ms}\n" + "\n".join(map(_line, selectors))


def federate_text(selectors: Sequence[str], at_ms: int, lookback_ms: int) -> str:
    """The text of a question for the newest values of series."""
    return f"# federate {at_ms} {lookback_ms}\n" + "\n".join(map(_line, selectors))


def labels_text(selectors: Sequence[str], span: TimeSpan, label: str = "") -> str:
    """The text of a question for names of labels, or for values of one."""
    kind = (
        f"values {span.start_ms} {span.end_ms} {label}"
        if label
        else f"labels {span.start_ms} {span.end_ms}"
    )
    return f"# {kind}\n" + "\n".join(map(_line, selectors))


def _line(selector: str) -> str:
    return selector.replace("\n", " ")
