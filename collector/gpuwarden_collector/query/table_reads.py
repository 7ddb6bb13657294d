"""Reads from a query's plan which rows it needs: of which tables, which columns, and from when on.

DuckDB puts conditions that every row of a table must meet into the scan of that table, also those that a
view or a join has, with the values of parameters. So the scan of `ts > $now - INTERVAL 5 MINUTE` has a
bound, and one without a lower bound of `ts` may need rows of any time.

The plan is made over empty tables in an instance of its own: nothing of the store is read for it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb

from gpuwarden.schema import TABLES, create_sql, stored_columns, views_sql

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
