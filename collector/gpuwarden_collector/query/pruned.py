"""Reads of the lake only the files that can hold the rows of a time that a query names.

A query is for it if it reads one table, in one place, and says in that place's WHERE from when or until
when rows are. That costs less than its plan, which `known_lake.py` asks for.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb

from gpuwarden_collector.query.guard import nodes_of
from gpuwarden_collector.query.known_lake import with_hot
from gpuwarden_collector.query.time_bounds import bounds_of, conditions
from gpuwarden_collector.query.whole_store import WholeStore
from gpuwarden_collector.storage.engine import Engine, hot_table
from gpuwarden_collector.storage.lake_reader import create_view
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES

_ROUNDED = timedelta(seconds=1)
"""More than what is lost where instants are made microseconds."""
_LATER = timedelta(hours=1)
"""More than passes between asking for `now()` here and in the query."""
_INSTANTS = frozenset({"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "VARCHAR"})


@dataclass(frozen=True, slots=True)
class QueryTimeSpan:
    """What a query says of the time of its rows."""

    table: str
    sql: str
    """SELECT of pairs: the later one of a lower and an upper bound, with the type of each."""
    parameters: frozenset[str]
    bounds: tuple[bool, ...]
    """Of each bound whether it is a lower one."""


def span_of(tree: Mapping[str, Any], cursor: duckdb.DuckDBPyConnection) -> QueryTimeSpan | None:
    """From the syntax tree of a query; None: it is not for this. Raises duckdb.Error."""
    nodes = list(nodes_of(tree))
    tables = [node for node in nodes if node.get("type") in ("BASE_TABLE", "SHOW_REF")]
    selects = [node for node in nodes if node.get("from_table") in tables]
    if len(tables) != 1 or len(selects) != 1:
        return None
    table = tables[0]
    name = str(table.get("table_name", "")).lower()
    is_plain = table["type"] == "BASE_TABLE" and name in TABLE_NAMES
    if not is_plain or any(table.get(key) for key in _BESIDE):
        return None
    bounds = [
        bound for part in conditions(selects[0].get("where_clause")) for bound in bounds_of(part)
    ]
    if not bounds:
        return None
    names = {
        node["identifier"]
        for _, expression in bounds
        for node in nodes_of(expression)
        if node.get("class") == "PARAMETER"
    }
    select = json.loads(cursor.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()[0][0])
    texts = []
    for _, expression in bounds:
        select["statements"][0]["node"]["select_list"] = [expression]
        row = cursor.execute(
            "SELECT json_deserialize_sql($1::JSON)", [json.dumps(select)]
        ).fetchall()[0]
        texts.append(str(row[0]).removeprefix("SELECT "))
    sql = "SELECT " + ", ".join(f"typeof({t}), CAST({t} AS TIMESTAMP)" for t in texts)
    return QueryTimeSpan(name, sql, frozenset(names), tuple(is_lower for is_lower, _ in bounds))


_BESIDE = ("schema_name", "catalog_name", "sample", "at_clause", "column_name_alias")


class PrunedLake(WholeStore):
    """The store, of which the files of one table are read that a query's bounds leave."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._span: tuple[datetime | None, datetime | None] = (None, None)
        self._shown: dict[str, str] = {}

    def take(self, span: QueryTimeSpan, params: Mapping[str, Any]) -> bool:
        """Have the next query, of that span, read only files that matter; False: it is to be asked otherwise."""
        if self._engine.lake is None:
            return False
        try:
            bounds = self._bounds(span, params)
            if bounds is None:
                return False
            lower, upper = bounds
            self._span = lower and lower - _ROUNDED, upper and upper + _LATER
        except OverflowError:  # there is no such instant
            self._span = None, None
        except duckdb.Error:
            return False
        return True

    def _bounds(
        self, span: QueryTimeSpan, params: Mapping[str, Any]
    ) -> tuple[datetime | None, datetime | None] | None:
        """From when and until when; None: that is not known."""
        cursor = self.held()
        bound = {name: params[name] for name in span.parameters}
        row = cursor.execute(span.sql, bound).fetchall()[0]
        lower: datetime | None = None
        upper: datetime | None = None
        for at, is_lower in enumerate(span.bounds):
            kind, instant = row[2 * at], row[2 * at + 1]
            if kind not in _INSTANTS or not isinstance(instant, datetime):
                return None
            if is_lower:
                lower = max(lower or instant, instant)
            else:
                upper = min(upper or instant, instant)
        return lower, upper

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        """Have the cursor see these files as the table, before the view of the database."""
        for name in names:
            assert self._engine.lake is not None
            of_lake, _ = self._engine.lake.rows_sql(cursor, name, *self._span)
            sql = with_hot(name, of_lake)
            if self._shown.get(name) == sql:
                continue
            self._shown.pop(name, None)
            if name not in self._shown_rows:
                self._shown_rows[name] = SCHEMAS[name].empty_table()
                cursor.register(hot_table(name), self._shown_rows[name])
            if create_view(cursor, f"TEMP VIEW {name}", name, sql):
                self._shown[name] = sql

    def let_go(self) -> None:
        """Hold no rows."""
        super().let_go()
        self._shown = {}
