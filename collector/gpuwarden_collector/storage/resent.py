"""Deduplicates batches that two collectors of a lake may both have stored.

An agent marks a batch that it sent before without an answer (`Gpuwarden-Sent-Before`). The collector that
gets such a batch stores it and notes it as doubtful: its node, and the time span of its rows. Another
collector with the same batch seals it as a whole, so the lake has all of its rows or none. When this
collector seals, it skips rows that the lake already has within such a span. Of two copies at least one is
marked; a collector that seals its marked copy first notes it in the lake too (`lake.main.doubtful`), and
the other finds the note there.

Two collectors that seal at the same time would not see each other, so a collector with doubtful batches
holds the lock for sealing alone (`Coordination.sealing`).
"""

from typing import Any

import duckdb

from gpuwarden.schema import EVENTS, WIRE_TABLES
from gpuwarden_collector.storage.errors import translating
from gpuwarden_collector.storage.sql import scalar

LAKE_SQL = """CREATE TABLE lake.main.doubtful (
    collector VARCHAR NOT NULL, segment BIGINT NOT NULL,
    agent_id VARCHAR NOT NULL, boot_id VARCHAR NOT NULL, sequence BIGINT NOT NULL,
    node VARCHAR NOT NULL, first_ts TIMESTAMP NOT NULL, last_ts TIMESTAMP NOT NULL
)"""

_TABLES = frozenset(name for name, table in WIRE_TABLES.items() if table.names[0] == "ts")
_MORE_KEY = {EVENTS.name: ("message", "details")}
"""Two events may have the same key: one instant, one GPU, one kind."""

# Spans of a node that nearly touch become one: an agent's backlog is many batches in a row.
_SPANS_SQL = """
CREATE OR REPLACE TEMP TABLE spans AS
WITH found AS (
    SELECT node, first_ts, last_ts FROM doubtful_here
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


def seals_elsewhere(cursor: duckdb.DuckDBPyConnection, collector: str) -> int:
    """A number that grows with each seal of another collector. Raises StoreUnavailableError."""
    with translating():
        newest = scalar(
            cursor,
            "SELECT sum(newest) FROM (SELECT max(segment) AS newest "
            "FROM lake.main.collectors WHERE collector != $1 GROUP BY collector)",
            [collector],
        )
    return int(newest or 0)


def find_spans(
    cursor: duckdb.DuckDBPyConnection, collector: str, doubtful: Any, first: Any, last: Any
) -> bool:
    """Prepare the spans for `once_sql` in which others may have the same rows; whether there are any.

    `doubtful`: Arrow table of this collector's doubtful batches; `first`, `last`: first and last instant of the
    rows to seal. Raises StoreUnavailableError.
    """
    with translating():
        cursor.register("doubtful_here", doubtful)
        cursor.execute(_SPANS_SQL, {"collector": collector, "first": first, "last": last})
        return bool(scalar(cursor, "SELECT count(*) FROM spans"))


def once_sql(name: str, hot: str) -> str:
    """A SELECT of the rows of `hot` that the lake does not have from another collector. Call `find_spans` first."""
    if name not in _TABLES:
        return f"SELECT * FROM {hot}"
    # A sender chooses the GPU's name: the same instant from another node is not a duplicate.
    key = dict.fromkeys(("node", *WIRE_TABLES[name].key, *_MORE_KEY.get(name, ())))
    same = " AND ".join(f"there.{column} IS NOT DISTINCT FROM here.{column}" for column in key)
    return f"""
        SELECT here.* FROM {hot} here
        WHERE NOT EXISTS (
            SELECT 1 FROM lake.main.{name} there
            WHERE there.ts BETWEEN (SELECT min(first_ts) FROM spans) AND (SELECT max(last_ts) FROM spans)
                AND {same}
                AND EXISTS (
                    SELECT 1 FROM spans
                    WHERE there.node = spans.node AND there.ts BETWEEN first_ts AND last_ts
                )
        )"""


def note_doubtful(
    cursor: duckdb.DuckDBPyConnection, collector: str, segment: int, doubtful: Any
) -> None:
    """Note doubtful batches in the lake, in the transaction that seals them. Raises duckdb.Error."""
    if doubtful.num_rows:
        cursor.register("doubtful_here", doubtful)
        names = ", ".join(doubtful.schema.names)
        cursor.execute(
            f"INSERT INTO lake.main.doubtful SELECT $1, $2, {names} FROM doubtful_here",
            [collector, segment],
        )
