"""Reads from a query's plan which tables it reads and from which time on.

DuckDB moves conditions that every row of a table must meet into the scan of that table, also those that a view or a join
has, with the values of parameters. So the scan of `ts > $now - INTERVAL 5 MINUTE` has a bound, and one without a lower
bound of `ts` may need rows of any time. The plan is made over empty tables in an instance of its own: nothing of the store
is read for it. The bounds are remembered as distances from now, so that a query that comes again needs no plan.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb

from gpuwarden.clock import Clock
from gpuwarden.schema import TABLES, UPSERTED, create_sql, stored_columns, views_sql
from gpuwarden_collector.storage.segment import TABLE_NAMES

SLACK = timedelta(minutes=1)
"""What a query says of `now()` may be up to so much before what it says of `$now`. So near to now `$now` is where a query
is asked again and again; one of another moment is planned each time."""
_MOVED_MIN = timedelta(seconds=10)
"""Two plans tell whether bounds move with time where so much lies between them."""
_UNEVEN_MAX = timedelta(seconds=2)
"""What bounds of `now()` may have moved more or less than `$now`."""
_KNOWN_MAX = 512


_BOUND = re.compile(r"ts>=?'([^']+)'::TIMESTAMP(?:_NS|_MS)?")
_NOT_TRUE_OF_EMPTY_TABLES = "statistics_propagation,late_materialization,join_filter_pushdown"
"""Optimizers by which a plan over empty tables is another one: what has no rows is left out of it."""


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """Rows of a table that a query needs."""

    table: str
    columns: frozenset[str]
    since: datetime | None
    """Rows of after that, or of that instant (naive UTC); None: of any time."""


class QueryPlanner:
    """Plans queries, and runs none; for one thread."""

    def __init__(self) -> None:
        """Raises duckdb.Error."""
        self._connection = duckdb.connect(
            config={"threads": 1, "memory_limit": "64MiB", "enable_external_access": False}
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            self._connection.execute(create_sql(table))
        self._connection.execute(views_sql())
        self._connection.execute(f"SET disabled_optimizers = '{_NOT_TRUE_OF_EMPTY_TABLES}'")
        self._connection.execute("SET lock_configuration = true")

    def reads(self, sql: str, params: Mapping[str, Any]) -> Sequence[PlannedRead]:
        """What a query that may run reads of the store. Raises duckdb.Error."""
        asked = f"EXPLAIN (FORMAT JSON) {sql}"
        cursor = self._connection.cursor()
        try:
            found = cursor.execute(asked, dict(params)) if params else cursor.execute(asked)
            return reads_of(str(found.fetchall()[0][1]))
        finally:
            cursor.close()


def reads_of(plan: str) -> Sequence[PlannedRead]:
    """From a plan as JSON."""
    return [_read(name, scan) for name, scan in _scans(json.loads(plan))]


def earliest_of(reads: Sequence[PlannedRead]) -> datetime | None:
    """From when rows are needed (naive UTC), datetime.max where none are; None: of any time."""
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
        said = plan.get("extra_info")
        if isinstance(said, dict) and (table := said.get("Table")):
            yield str(table).rpartition(".")[2], said
        yield from _scans(plan.get("children", []))


def _read(name: str, said: Mapping[str, Any]) -> PlannedRead:
    filters, projected = _texts(said.get("Filters")), _texts(said.get("Projections"))
    words = {word for text in (*filters, *projected) for word in re.findall(r"\w+", text)}
    known = {column.name for column in stored_columns(TABLES[name])} if name in TABLES else set()
    return PlannedRead(name, frozenset(words & known), _lower_bound(filters))


def _texts(said: Any) -> list[str]:
    return [said] if isinstance(said, str) else [str(one) for one in said or ()]


def _lower_bound(conditions: Sequence[str]) -> datetime | None:
    # What is joined by OR, or only helps to skip rows (`optional: ...`), bounds nothing.
    parts = [part for text in conditions if " OR " not in text for part in text.split(" AND ")]
    bounds = [match[1] for part in parts if (match := _BOUND.fullmatch(part.strip())) is not None]
    try:
        return max((datetime.fromisoformat(text) for text in bounds), default=None)
    except ValueError:
        return None


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
