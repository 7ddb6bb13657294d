"""Answers queries that come again from rows that are kept in memory (`storage/recent_rows.py`).

A query is for it if every table of samples that it reads has a lower bound of `ts`.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta

import duckdb

from gpuwarden.query import ExpectedQuery
from gpuwarden_collector.query.needs import SLACK, Needs, QueryNeeds
from gpuwarden_collector.storage.recent_rows import RecentRows, Wanted


class RecentQueries:
    """A source of queries for one thread: see `QuerySource` in `execute.py`."""

    def __init__(self, rows: RecentRows, needs: QueryNeeds) -> None:
        self._rows = rows
        self._needs = needs

    def take(self, now: datetime, needs: Needs) -> bool:
        """Have the rows that a query of that moment needs; False: it is to be asked otherwise."""
        wanted = {
            name: Wanted(need.columns, now - need.back - SLACK)
            for name, need in needs.items()
            if need.back is not None
        }
        return len(wanted) == len(needs) and self._rows.take(wanted)

    def expect(self, queries: Sequence[ExpectedQuery]) -> None:
        """Have a table that is kept hold at once what all of these need of it."""
        expected: dict[str, tuple[frozenset[str], timedelta]] = {}
        for query in queries:
            now = query.params.get("now")
            if not isinstance(now, datetime):
                continue
            for name, need in (self._needs.live(query.sql, query.params, now) or {}).items():
                if need.back is None:
                    continue
                known, longest = expected.get(name, (frozenset(), timedelta()))
                back = need.back + timedelta(seconds=query.before_s) + SLACK
                expected[name] = known | need.columns, max(longest, back)
        self._rows.expect(expected)

    def cursor(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """As of `RecentRows`."""
        return self._rows.cursor()

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As of `RecentRows`."""
        self._rows.begin(cursor, names)
