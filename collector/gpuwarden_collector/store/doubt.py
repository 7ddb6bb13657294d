"""Batches that two collectors may both have stored, and how their rows end up once.

An agent says of a batch that it was sent before and not answered (`Gpuwarden-Sent-Before`). The
collector that gets it stores it as any other and notes it as doubtful: its node, and the time that its
rows span. Who else has the batch seals it, or has sealed it, as a whole, so its rows are in the lake
all or none: what stands in the lake within such a span is removed here before it is sealed. A batch
that was not sent before is with nobody else, so of two copies one at least is noted, by whoever
seals first in the lake itself (`lake.main.doubtful`), where the other finds it.

Two that seal at the same moment would not see each other: `Coordination.sealing` lets whoever has
noted something seal alone.
"""

from typing import Any

import duckdb

from gpuwarden.schema import EVENTS, WIRE_TABLES
from gpuwarden_collector.store.transaction import transaction, translating

HOT_SQL = """
CREATE TABLE IF NOT EXISTS internal.doubtful (
    generation BIGINT NOT NULL, agent_id VARCHAR NOT NULL, boot_id VARCHAR NOT NULL,
    sequence BIGINT NOT NULL, node VARCHAR NOT NULL,
    first_ts TIMESTAMP NOT NULL, last_ts TIMESTAMP NOT NULL
);
"""
LAKE_SQL = """CREATE TABLE lake.main.doubtful (
    collector VARCHAR NOT NULL, generation BIGINT NOT NULL,
    agent_id VARCHAR NOT NULL, boot_id VARCHAR NOT NULL, sequence BIGINT NOT NULL,
    node VARCHAR NOT NULL, first_ts TIMESTAMP NOT NULL, last_ts TIMESTAMP NOT NULL
)"""

_TABLES = tuple(name for name, table in WIRE_TABLES.items() if table.names[0] == "ts")
_MORE_KEY = {EVENTS.name: ("message", "details")}
"""Two events may share their key: one instant, one GPU, one kind."""

# Spans of a node that nearly touch become one: an agent's backlog is many batches in a row.
_SPANS_SQL = """
CREATE OR REPLACE TEMP TABLE spans AS
WITH found AS (
    SELECT node, first_ts, last_ts FROM internal.doubtful WHERE generation = $generation
    UNION ALL
    SELECT node, first_ts, last_ts FROM lake.main.doubtful
    WHERE collector != $collector AND last_ts >= $first AND first_ts <= $last
), marked AS (
    SELECT *, coalesce(first_ts > max(last_ts) OVER (
        PARTITION BY node ORDER BY first_ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) + INTERVAL 1 MINUTE, true) AS is_new FROM found
), numbered AS (
    SELECT *, count(*) FILTER (is_new) OVER (
        PARTITION BY node ORDER BY first_ts ROWS UNBOUNDED PRECEDING
    ) AS number FROM marked
)
SELECT node, min(first_ts) AS first_ts, max(last_ts) AS last_ts FROM numbered GROUP BY node, number
"""


def has_doubtful(cursor: duckdb.DuckDBPyConnection, generation: int) -> bool:
    """Whether a generation has batches that another collector may have. Raises
    StoreUnavailableError."""
    with translating():
        row = cursor.execute(
            "SELECT count(*) FROM internal.doubtful WHERE generation = $1", [generation]
        ).fetchone()
    return bool(row and row[0])


def news_of_doubles(cursor: duckdb.DuckDBPyConnection, collector: str) -> tuple[int, int]:
    """Two numbers, one of which grows when there may be more to remove. Raises
    StoreUnavailableError."""
    with translating():
        row = cursor.execute(
            "SELECT (SELECT count(*) FROM internal.doubtful), "
            "(SELECT count(*) FROM lake.main.collectors WHERE collector != $1)",
            [collector],
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def remove_doubles(cursor: duckdb.DuckDBPyConnection, collector: str, generation: int) -> int:
    """Remove from a generation that is not sealed what the lake has of others; rows.

    Raises StoreUnavailableError, and then has changed nothing.
    """
    removed = 0
    with translating():
        span = _span_of(cursor, generation)
        if span is None:
            return 0
        first, last = span
        cursor.execute(
            _SPANS_SQL,
            {"generation": generation, "collector": collector, "first": first, "last": last},
        )
        bounds = cursor.execute("SELECT min(first_ts), max(last_ts) FROM spans").fetchone()
    if bounds is None or bounds[0] is None:
        return 0
    with transaction(cursor):
        for name in _TABLES:
            row = cursor.execute(_remove_sql(name, generation), list(bounds)).fetchone()
            removed += int(row[0]) if row else 0
    return removed


def tell_doubtful(cursor: duckdb.DuckDBPyConnection, collector: str, generation: int) -> None:
    """Note in the lake what is doubtful in a generation. In the transaction that seals it. Raises
    duckdb.Error."""
    if has_doubtful(cursor, generation):
        cursor.execute(
            "INSERT INTO lake.main.doubtful SELECT $1, * FROM internal.doubtful "
            "WHERE generation = $2",
            [collector, generation],
        )


def _span_of(cursor: duckdb.DuckDBPyConnection, generation: int) -> tuple[Any, Any] | None:
    """First and last instant of a generation's rows, which DuckDB takes from its statistics."""
    every = " UNION ALL ".join(
        f"SELECT min(ts) AS first, max(ts) AS last FROM hot.{name}_{generation}" for name in _TABLES
    )
    row = cursor.execute(f"SELECT min(first), max(last) FROM ({every})").fetchone()
    return None if row is None or row[0] is None else (row[0], row[1])


def _remove_sql(name: str, generation: int) -> str:
    hot = f"hot.{name}_{generation}"
    # A GPU is named by whoever sends: the same instant of it from another node is no double.
    key = dict.fromkeys(("node", *WIRE_TABLES[name].key, *_MORE_KEY.get(name, ())))
    same = " AND ".join(f"there.{column} IS NOT DISTINCT FROM here.{column}" for column in key)
    return f"""
        DELETE FROM {hot} WHERE rowid IN (
            SELECT here.rowid FROM {hot} here
            JOIN spans ON here.node = spans.node AND here.ts BETWEEN first_ts AND last_ts
            WHERE EXISTS (
                SELECT 1 FROM lake.main.{name} there
                WHERE there.ts BETWEEN $1 AND $2 AND {same}
            )
        )"""
