"""Answers queries that come again from rows that are kept in memory (`storage/recent_rows.py`).

What a query needs is read from its plan. Where two plans tell that its bounds move with time, the next moment needs the
same, later, and it is planned no more. A query is for it if every table of samples that it reads has a lower bound
of `ts`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb

from gpuwarden.clock import Clock
from gpuwarden.query import ExpectedQuery
from gpuwarden.schema import UPSERTED
from gpuwarden_collector.query.table_reads import QueryPlanner
from gpuwarden_collector.storage.recent_rows import RecentRows, Wanted
from gpuwarden_collector.storage.segment import TABLE_NAMES

_LIVE = timedelta(minutes=1)
"""So near to now `$now` is where a query is asked again and again; one of another moment is planned each time."""
_KNOWN_MAX = 512

_MOVED_MIN = timedelta(seconds=10)
"""Two plans tell whether bounds move with time where so much lies between them."""
_UNEVEN_MAX = timedelta(seconds=2)
"""What bounds of `now()` may have moved more or less than `$now`."""

Spans = Mapping[str, tuple[frozenset[str], timedelta]]
"""Columns, and how far back from `$now`, by table."""


@dataclass(slots=True)
class _Planned:
    """What is known of a text with certain parameters."""

    now: datetime
    spans: Spans | None
    """As of `now`; None: it needs rows of any time, or what it needs is not known."""
    moves: bool | None = None
    """Whether what it needs moves with time; None: that is not known yet."""


class RecentQueries:
    """A source of queries for one thread: see `QuerySource` in `execute.py`."""

    def __init__(self, rows: RecentRows, planner: Callable[[], QueryPlanner], clock: Clock) -> None:
        self._rows = rows
        self._planner = planner
        self._clock = clock
        self._known: dict[tuple[str, str], _Planned] = {}

    def take(self, sql: str, params: Mapping[str, Any]) -> bool:
        """Have the rows that a query needs; False: it is to be asked otherwise."""
        wall = self._clock.now().replace(tzinfo=None)
        now = params.get("now", wall)
        if not isinstance(now, datetime):
            return False
        is_live = abs(now - wall) < _LIVE
        spans = self._live_spans(sql, params, now) if is_live else self._spans(sql, params, now)
        if spans is None:
            return False
        # What a query says of `now()` may be up to so much before what it says of `$now`.
        return self._rows.take(
            {name: Wanted(columns, now - span - _LIVE) for name, (columns, span) in spans.items()}
        )

    def expect(self, queries: Sequence[ExpectedQuery]) -> None:
        """Have a table that is kept hold at once what all of these need of it."""
        expected: dict[str, tuple[frozenset[str], timedelta]] = {}
        for query in queries:
            now = query.params.get("now")
            if not isinstance(now, datetime):
                continue
            for name, (columns, span) in (
                self._live_spans(query.sql, query.params, now) or {}
            ).items():
                known, longest = expected.get(name, (frozenset(), timedelta()))
                longest = max(longest, span + timedelta(seconds=query.before_s) + _LIVE)
                expected[name] = known | columns, longest
        self._rows.expect(expected)

    def _live_spans(self, sql: str, params: Mapping[str, Any], now: datetime) -> Spans | None:
        """As `_spans`, of what is asked again and again: planned until it is known that its bounds move with time."""
        key = sql, repr(sorted((name, value) for name, value in params.items() if name != "now"))
        known = self._known.get(key)
        if known is not None and (known.moves or known.spans is None):
            return known.spans
        spans = self._spans(sql, params, now)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = _Planned(now, spans)
        elif known.moves is None and now - known.now >= _MOVED_MIN:
            known.moves = spans is not None and _are_alike(known.spans, spans)
        return spans

    def cursor(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """As of `RecentRows`."""
        return self._rows.cursor()

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As of `RecentRows`."""
        self._rows.begin(cursor, names)

    def _spans(self, sql: str, params: Mapping[str, Any], now: datetime) -> Spans | None:
        """None: it needs rows of any time, or what it needs is not known."""
        try:
            reads = self._planner().reads(sql, params)
        except duckdb.Error:
            return None  # who runs it says what is wrong
        found: dict[str, tuple[frozenset[str], timedelta]] = {}
        for read in reads:
            if read.table in UPSERTED:
                continue
            if read.since is None or read.table not in TABLE_NAMES:
                return None
            columns, span = found.get(read.table, (frozenset({"ts"}), timedelta.min))
            found[read.table] = columns | read.columns, max(span, now - read.since)
        return found


def _are_alike(before: Spans | None, now: Spans) -> bool:
    """Whether two plans need the same, each as far back from its own moment."""
    return (
        before is not None
        and before.keys() == now.keys()
        and all(abs(before[name][1] - span) <= _UNEVEN_MAX for name, (_, span) in now.items())
    )
