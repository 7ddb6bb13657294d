"""Finds in a query's plan which tables it reads, and from which time on.

DuckDB pushes conditions on a table into its scan, also those of views and joins, with the values of parameters. So the
scan for `ts > $now - INTERVAL 5 MINUTE` has a bound, and a scan without a lower bound of `ts` may need rows of any
time. Plans are made over empty tables in a DuckDB instance of its own, without reading the store. The bounds are cached
as distances from now, so that a repeated query needs no plan.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.clock import Clock
from gpuwarden.schema import TABLES, UPSERTED, create_sql, stored_columns
from gpuwarden_collector.storage.segment import TABLE_NAMES
from gpuwarden_collector.storage.views import copy_public, create_public

SLACK = timedelta(minutes=1)
"""Largest difference between `now()` and `$now` for a live query, whose plan is cached; any other query is planned each
time."""
_MOVED_MIN = timedelta(seconds=10)
"""Least time between two plans that are compared to see whether bounds move with time."""
_UNEVEN_MAX = timedelta(seconds=2)
"""Largest difference between the movement of a bound and of `$now`."""
_KNOWN_MAX = 512


_BOUND = re.compile(r"ts>=?'([^']+)'::TIMESTAMP(?:_NS|_MS)?")
_NOT_TRUE_OF_EMPTY_TABLES = "statistics_propagation,late_materialization,join_filter_pushdown"
"""Optimizers that would remove empty tables from the plan."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Rows of a table that a query needs."""

    table: str
    columns: frozenset[str]
    since: datetime | None
    """First instant of the rows (naive UTC); None: of any time."""


class QueryPlanner:
    """Plans queries without running them, for one thread."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for a file that is written and removed here. Raises duckdb.Error."""
        self._connection = duckdb.connect(config={"threads": 1, "memory_limit": "64MiB"})
        self._connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            self._connection.execute(create_sql(table))
        copy_public(self._connection, folder)
        create_public(self._connection, "memory")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute(f"SET disabled_optimizers = '{_NOT_TRUE_OF_EMPTY_TABLES}'")
        self._connection.execute("SET lock_configuration = true")

    def reads(self, sql: str, params: Mapping[str, Any]) -> Sequence[PlannedRead]:
        """The reads of a query that may run. Raises duckdb.Error."""
        explain = f"EXPLAIN (FORMAT JSON) {sql}"
        cursor = self._connection.cursor()
        try:
            plan = cursor.execute(explain, dict(params)) if params else cursor.execute(explain)
            return reads_of(str(plan.fetchall()[0][1]))
        finally:
            cursor.close()


def reads_of(plan: str) -> Sequence[PlannedRead]:
    """The reads in a plan in JSON."""
    return [_read(name, scan) for name, scan in _scans(json.loads(plan))]


def earliest_of(reads: Sequence[PlannedRead]) -> datetime | None:
    """First instant of all reads (naive UTC), datetime.max without reads; None: of any time."""
    earliest = datetime.max  # noqa: DTZ901  naive, as the store has instants
    for read in reads:
        if read.since is None:
            return None
        earliest = min(earliest, read.since)
    return earliest


def _scans(plan: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Scans of tables, each with the table's name."""
    if isinstance(plan, list):
        for node in plan:
            yield from _scans(node)
    elif isinstance(plan, dict):
        scan = plan.get("extra_info")
        if isinstance(scan, dict) and (table := scan.get("Table")):
            yield str(table).rpartition(".")[2], scan
        yield from _scans(plan.get("children", []))


def _read(name: str, scan: Mapping[str, Any]) -> PlannedRead:
    filters, projected = _texts(scan.get("Filters")), _texts(scan.get("Projections"))
    words = {word for text in (*filters, *projected) for word in re.findall(r"\w+", text)}
    known = {column.name for column in stored_columns(TABLES[name])} if name in TABLES else set()
    return PlannedRead(name, frozenset(words & known), _lower_bound(filters))


def _texts(info: Any) -> list[str]:
    return [info] if isinstance(info, str) else [str(one) for one in info or ()]


def _lower_bound(conditions: Sequence[str]) -> datetime | None:
    # Conditions that are joined by OR, or only help to skip rows (`optional: ...`), do not bound.
    parts = [part for text in conditions if " OR " not in text for part in text.split(" AND ")]
    bounds = [match[1] for part in parts if (match := _BOUND.fullmatch(part.strip())) is not None]
    try:
        return max((datetime.fromisoformat(text) for text in bounds), default=None)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Need:
    """Columns and time of the rows that a query needs of a table."""

    columns: frozenset[str]
    back: timedelta | None
    """How far back from the query's moment; None: of any time."""


Needs = Mapping[str, Need]
"""Needs by table of samples or rollups."""


@dataclass(slots=True)
class _Planned:
    """The cached needs of a query with certain parameters."""

    now: datetime
    needs: Needs | None
    """As of `now`; None: unknown."""
    moves: bool | None = None
    """Whether its bounds move with time; None: not known yet."""


class QueryNeeds:
    """Finds what queries need, and caches it, for one thread."""

    def __init__(self, clock: Clock, make: Callable[[], QueryPlanner]) -> None:
        """`make`: makes the planner."""
        self._clock = clock
        self._make = make
        self._made_planner: QueryPlanner | None = None
        self._known: dict[tuple[str, str], _Planned] = {}

    def planner(self) -> QueryPlanner:
        """The planner, created at the first use. Raises duckdb.Error."""
        if self._made_planner is None:
            self._made_planner = self._make()
        return self._made_planner

    def of(self, sql: str, params: Mapping[str, Any]) -> tuple[datetime, Needs] | None:
        """The query's moment (naive UTC) and needs; None: unknown."""
        wall = self._clock.now().replace(tzinfo=None)
        now = params.get("now", wall)
        if not isinstance(now, datetime):
            return None
        is_live = abs(now - wall) < SLACK
        needs = self.live(sql, params, now) if is_live else self._planned(sql, params, now)
        return None if needs is None else (now, needs)

    def live(self, sql: str, params: Mapping[str, Any], now: datetime) -> Needs | None:
        """The needs of a repeated query."""
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
            return None  # running the query reports the error


def _needs_of(reads: Sequence[PlannedRead], now: datetime) -> Needs | None:
    needs: dict[str, Need] = {}
    for read in reads:
        if read.table in UPSERTED:
            continue
        if read.table not in TABLE_NAMES:
            return None
        before = needs.get(read.table, Need(frozenset({"ts"}), timedelta.min))
        back = None
        if before.back is not None and read.since is not None:
            back = max(before.back, now - read.since)
        needs[read.table] = Need(before.columns | read.columns, back)
    return needs


def _are_alike(before: Needs | None, now: Needs | None) -> bool:
    """Whether two plans need the same rows, as far back from their own moments."""
    if before is None or now is None or before.keys() != now.keys():
        return False
    return all(_is_alike(before[name].back, need.back) for name, need in now.items())


def _is_alike(before: timedelta | None, now: timedelta | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before - now) <= _UNEVEN_MAX
