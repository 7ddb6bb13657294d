"""Creates PostgreSQL's catalogue of the public tables, for the queries of its clients.

The catalogue consists of temporary tables and macros of one cursor (`catalog.sql`), which other queries do
not see and DuckDB searches first. Column names, types and comments come from DuckDB.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuwarden.schema import TABLES as STORED
from gpuwarden.schema import public_views, stored_columns
from gpuwarden_collector.query.port import TABLES as PUBLIC
from gpuwarden_collector.query.port import CatalogEngine
from gpuwarden_postgres.types import TYPES, column_type

SERVER_VERSION = "15.0"
"""The version of PostgreSQL with such a catalogue; clients choose their queries by it."""

SETTINGS = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "datestyle": "ISO, MDY",
    "default_table_access_method": "heap",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "extra_float_digits": "1",
    "idle_in_transaction_session_timeout": "0",
    "in_hot_standby": "off",
    "integer_datetimes": "on",
    "intervalstyle": "postgres",
    "is_superuser": "off",
    "jit": "off",
    "lc_collate": "C",
    "lc_ctype": "C",
    "lock_timeout": "0",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "row_security": "off",
    "search_path": "main",
    "server_encoding": "UTF8",
    "server_version": SERVER_VERSION,
    "server_version_num": "150000",
    "session_authorization": "gpuwarden",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "timezone": "UTC",
    "transaction_isolation": "repeatable read",
    "transaction_read_only": "on",
}
"""Settings of SHOW, by name in lower case."""

_SQL = Path(__file__).with_name("catalog.sql").read_text()
_OWN_OIDS = {
    "pg_attrdef": 2604,
    "pg_class": 1259,
    "pg_constraint": 2606,
    "pg_database": 1262,
    "pg_namespace": 2615,
    "pg_proc": 1255,
    "pg_rewrite": 2618,
    "pg_trigger": 2620,
    "pg_type": 1247,
}
"""Object ids of catalogue tables that queries name as regclass."""

_FIRST_OID = 16_384
_OURS = "database_name = current_database() AND schema_name = 'main'"
_COLUMNS = f"""
SELECT table_name, column_name, column_index, data_type, comment FROM duckdb_columns() WHERE {_OURS} ORDER BY ALL
"""
_COUNTS = f"SELECT table_name, count(*) FROM duckdb_columns() WHERE {_OURS} GROUP BY ALL"
_COMMENTS = f"""
SELECT table_name, comment FROM duckdb_tables() WHERE {_OURS} AND comment IS NOT NULL
UNION ALL SELECT view_name, comment FROM duckdb_views() WHERE {_OURS} AND comment IS NOT NULL
"""
_NAMES = re.compile(r"CREATE TEMP (TABLE|MACRO) (\w+)")
_found = _NAMES.findall(_SQL)
TABLES = frozenset(name for kind, name in _found if kind == "TABLE")
"""Tables of pg_catalog, and of information_schema with that prefix."""
FUNCTIONS = frozenset(name for kind, name in _found if kind == "MACRO")


class Catalog:
    """A `QuerySource` of the public tables and the catalogue, for one thread."""

    def __init__(self, engine: CatalogEngine) -> None:
        self._engine = engine
        self._cursor: Any = None

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """The cursor that stays open."""
        if self._cursor is None:
            self._cursor = self._opened()
        yield self._cursor

    def begin(self, cursor: Any, names: Iterable[str] | None = None) -> None:
        """Begin a transaction. Raises StoreUnavailableError."""
        self._engine.begin(cursor, names)

    def _opened(self) -> Any:
        cursor = self._engine.new_cursor()
        for name, table in _given(cursor).items():
            cursor.register(f"given_{name}", table)
            cursor.execute(f"CREATE TEMP TABLE own_{name} AS FROM given_{name}")
            cursor.unregister(f"given_{name}")
        # Not from the table: DuckDB allows no subquery as an argument of a table function.
        pairs = ", ".join(f"'{name}': '{value}'" for name, value in _settings().items())
        cursor.execute(f"CREATE TEMP MACRO own_setting(n) AS MAP {{{pairs}}}[lower(n)]")
        cursor.execute(_SQL)
        return cursor


def _given(cursor: Any) -> dict[str, Any]:
    """The tables from which `catalog.sql` builds the catalogue."""
    relations = _relations(cursor)
    names = [(t.oid, t.name, t.long_name or t.name) for t in TYPES]
    names += [
        (t.array_oid, f"_{t.name}", f"{t.long_name or t.name}[]") for t in TYPES if t.array_oid
    ]
    others = {name: 12_000 + at for at, name in enumerate(sorted(TABLES))}
    oids = {**others, **_OWN_OIDS, **{str(r["name"]): int(str(r["oid"])) for r in relations}}
    types = [(t.oid, t.name, t.array_oid, t.size, t.category) for t in TYPES]
    return {
        "relations": _table(relations),
        "columns": _table(_columns(cursor)),
        "types": _named(("oid", "name", "array_oid", "size", "category"), types),
        "type_names": _named(("oid", "name", "long_name"), names),
        "oids": _named(("name", "oid"), oids.items()),
        "settings": _named(("name", "setting"), _settings().items()),
    }


def _relations(cursor: Any) -> list[dict[str, Any]]:
    """Public tables and views."""
    comments: dict[str, str] = dict(cursor.execute(_COMMENTS).fetchall())
    definitions = {}
    for view in public_views():
        comments.setdefault(view.name, view.meaning)
        definitions[view.name] = f"{view.sql.strip()};"
    for name, table in STORED.items():
        comments.setdefault(name, f"One row per {table.row}.")
    counts: dict[str, int] = dict(cursor.execute(_COUNTS).fetchall())
    return [
        {
            "oid": _FIRST_OID + at,
            "name": name,
            "is_view": name not in STORED,
            "definition": definitions.get(name),
            "columns": counts.get(name, 0),
            "comment": comments.get(name),
        }
        for at, name in enumerate(sorted(PUBLIC))
    ]


def _columns(cursor: Any) -> list[dict[str, Any]]:
    stored = {
        (table.name, column.name): column
        for table in STORED.values()
        for column in stored_columns(table)
    }
    described = []
    for table, name, position, sql_type, comment in cursor.execute(_COLUMNS).fetchall():
        kind, known = column_type(sql_type), stored.get((table, name))
        if table in PUBLIC:
            described.append(
                {
                    "relation": table,
                    "name": name,
                    "position": position,
                    "type_oid": kind.oid,
                    "type_modifier": kind.modifier,
                    "long_name": kind.kind.long_name or kind.kind.name,
                    "is_required": known is not None and known.required,
                    "comment": comment or (known.meaning if known else None),
                }
            )
    return described


def _named(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    return _table([dict(zip(names, row, strict=True)) for row in rows])


def _settings() -> dict[str, str]:
    return {**SETTINGS, "version": f"PostgreSQL {SERVER_VERSION} (gpuwarden, on DuckDB)"}


_ARROW = {
    "comment": pa.string(),
    "definition": pa.string(),
    "position": pa.int32(),
    "type_modifier": pa.int32(),
}


def _table(rows: list[dict[str, Any]]) -> Any:
    fields = []
    for name, value in rows[0].items():
        kind = pa.uint32() if name.endswith("oid") else _ARROW.get(name) or pa.scalar(value).type
        fields.append((name, kind))
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))
