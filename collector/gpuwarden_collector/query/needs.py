"""Knows which rows the queries of a process need: of which tables, which columns, from when on.

That is read from a query's plan. Where two plans tell that its bounds move with time, the next moment needs the same,
later, and it is planned no more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb

from gpuwarden.clock import Clock
from gpuwarden.schema import UPSERTED
from gpuwarden_collector.query.table_reads import PlannedRead, QueryPlanner
from gpuwarden_collector.storage.segment import TABLE_NAMES

SLACK = timedelta(minutes=1)
"""What a query says of `now()` may be up to so much before what it says of `$now`. So near to now `$now` is where a query
is asked again and again; one of another moment is planned each time."""
_MOVED_MIN = timedelta(seconds=10)
"""Two plans tell whether bounds move with time where so much lies between them."""
_UNEVEN_MAX = timedelta(seconds=2)
"""What bounds of `now()` may have moved more or less than `$now`."""
_KNOWN_MAX = 512


@dataclass(frozen=True, slots=True)
class Need:
    """Rows of a table."""

    columns: frozenset[str]
    back: timedelta | None
    """How far back from the moment that is asked for; None: of any time."""


Needs = Mapping[str, Need]
"""By table behind the lake."""


@dataclass(slots=True)
class _Planned:
    """What is known of a text with certain parameters."""

    now: datetime
    needs: Needs | None
    """As of `now`; None: what it needs is not known."""
    moves: bool | None = None
    """Whether what it needs moves with time; None: that is not known yet."""


class QueryNeeds:
    """For one thread."""

    def __init__(self, clock: Clock, make: Callable[[], QueryPlanner] = QueryPlanner) -> None:
        self._clock = clock
        self._make = make
        self._made_planner: QueryPlanner | None = None
        self._known: dict[tuple[str, str], _Planned] = {}

    def planner(self) -> QueryPlanner:
        """Made when it is first needed. Raises duckdb.Error."""
        if self._made_planner is None:
            self._made_planner = self._make()
        return self._made_planner

    def of(self, sql: str, params: Mapping[str, Any]) -> tuple[datetime, Needs] | None:
        """The moment that a query is of (naive UTC), and what it needs; None: that is not known."""
        wall = self._clock.now().replace(tzinfo=None)
        now = params.get("now", wall)
        if not isinstance(now, datetime):
            return None
        is_live = abs(now - wall) < SLACK
        needs = self.live(sql, params, now) if is_live else self._planned(sql, params, now)
        return None if needs is None else (now, needs)

    def live(self, sql: str, params: Mapping[str, Any], now: datetime) -> Needs | None:
        """What a query needs that is asked again and again."""
        key = sql, repr(sorted((name, value) for name, value in params.items() if name != "now"))
        known = self._known.get(key)
        if known is not None and known.moves:
            return known.needs
        needs = self._planned(sql, params, now)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = _Planned(now, needs)
        elif known.moves is None and abs(now - known.now) >= _MOVED_MIN:
            known.moves = _are_alike(known.needs, needs)
        return needs

    def _planned(self, sql: str, params: Mapping[str, Any], now: datetime) -> Needs | None:
        try:
            return _needs_of(self.planner().reads(sql, params), now)
        except duckdb.Error:
            return None  # who runs it says what is wrong


def _needs_of(reads: Sequence[PlannedRead], now: datetime) -> Needs | None:
    found: dict[str, Need] = {}
    for read in reads:
        if read.table in UPSERTED:
            continue
        if read.table not in TABLE_NAMES:
            return None
        before = found.get(read.table, Need(frozenset({"ts"}), timedelta.min))
        back = None
        if before.back is not None and read.since is not None:
            back = max(before.back, now - read.since)
        found[read.table] = Need(before.columns | read.columns, back)
    return found


def _are_alike(before: Needs | None, now: Needs | None) -> bool:
    """Whether two plans need the same, each as far back from its own moment."""
    if before is None or now is None or before.keys() != now.keys():
        return False
    return all(_is_alike(before[name].back, need.back) for name, need in now.items())


def _is_alike(before: timedelta | None, now: timedelta | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before - now) <= _UNEVEN_MAX
