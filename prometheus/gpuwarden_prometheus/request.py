"""The text of a Prometheus query as query processes and the query log get it: PromQL after a comment with its times.

`# range START END STEP LOOKBACK MINUTES HOURS`, `# instant AT LOOKBACK MINUTES HOURS` (ends of what is rolled up), `# series START END`, `# federate AT LOOKBACK`, `# labels START END` or
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


def range_text(query: str, grid: Grid, end_ms: int, lookback_ms: int, rolled: RolledUntil) -> str:
    """The text of a range query."""
    known = f"{rolled.minutes_ms} {rolled.hours_ms}"
    return f"# range {grid.start_ms} {end_ms} {grid.step_ms} {lookback_ms} {known}\n{query}"


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
