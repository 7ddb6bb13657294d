"""Keeps the waste of the current hours, so that queries of the view `waste` need not compute it each time.

`query/stored.py` computes the rows when `is_due` says so: at each new step of the window, and sooner if
queries read them. If there are none, or they are too old, the view's definition answers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden.collector_metrics import SOURCES
from gpuwarden.schema import view_words
from gpuwarden.waste import COUNTED_MINUTES
from gpuwarden_collector.storage.arrow_files import ArrowFiles

RUNNING = "running_waste"
"""The name under which a query process sees the rows."""
FRESH_S = 15.0
"""Rows that queries read are computed again after this time, or after `REST` times the computing time."""
REST = 20
KEPT_S = 2 * 60.0 * COUNTED_MINUTES
"""Age from which rows are not read any more."""

Bounds = tuple[datetime, datetime]


def _readers() -> dict[str, frozenset[str]]:
    found = {"waste": frozenset[str]()}
    for name, words in view_words():
        if found.keys() & words and name not in found:
            found[name] = words.union(*(found[word] for word in found.keys() & words))
    return {name: words - found.keys() for name, words in found.items()}


READERS = _readers()
"""The view `waste`, and the views that read it; with the words of their SQL, which include what else they read."""
METRICS = frozenset(
    metric.name
    for source in SOURCES.values()
    if READERS.keys() & {*re.findall(r"\w+", source.sql)}
    for metric in source.metrics
)
"""Metrics that are made of it. A query of PromQL has their names, and no names of views."""
_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(READERS.keys() | METRICS))})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Computed:
    """The last computation. Times are of a monotonic clock."""

    bounds: Bounds
    at_s: float
    """When it began."""
    took_s: float
    is_empty: bool
    """Whether it found no rows: the first GPU may have come since then."""


def is_due(before: Computed | None, bounds: Bounds, asked_at_s: float, now_s: float) -> bool:
    """Whether to compute rows again. `asked_at_s`: when a query last read them."""
    if before is None or before.bounds != bounds:
        return True
    age_s = now_s - before.at_s
    return asked_at_s > before.at_s and age_s >= max(FRESH_S, REST * before.took_s)


class RunningWaste:
    """The newest rows, and when to compute them again."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """`folder`: for the file. Raises OSError."""
        folder.mkdir(exist_ok=True)
        self.parts = 1
        """Number of queries that compute the rows."""
        self._files = ArrowFiles(folder / RUNNING)
        self._clock = clock
        self._computed: Computed | None = None
        self._asked_at_s = clock.monotonic()

    def files(self, sql: str) -> Mapping[str, str]:
        """The file by `RUNNING`, if the query may read it and it is not too old; else nothing."""
        if not _NAMES.search(sql):
            return {}
        now_s = self._asked_at_s = self._clock.monotonic()
        path = self._files.newest
        computed = self._computed
        if computed is None or path is None or computed.is_empty or now_s - computed.at_s > KEPT_S:
            return {}
        return {RUNNING: str(path)}

    def begin(self, bounds: Bounds) -> float | None:
        """The time, if the rows must be computed now; None: not due."""
        now_s = self._clock.monotonic()
        return now_s if is_due(self._computed, bounds, self._asked_at_s, now_s) else None

    def take(self, rows: Sequence[Any], bounds: Bounds, began_s: float) -> None:
        """Write Arrow tables of rows that were computed since `begin`. Raises OSError."""
        self._files.write(rows)
        took_s = self._clock.monotonic() - began_s
        self._computed = Computed(
            bounds, began_s, took_s, is_empty=not any(len(part) for part in rows)
        )
