"""Batches that two collectors may both have stored, and how their rows end up once.

An agent says of a batch that it was sent before and not answered (`Gpuwarden-Sent-Before`). The
collector that gets it stores it as any other and notes it as doubtful: its node, and the time that its
rows span. Who else has the batch seals it, or has sealed it, as a whole, so its rows are in the lake
all or none: what stands in the lake within such a span is left out here when it is sealed. A batch
that was not sent before is with nobody else, so of two copies one at least is noted, by whoever
seals first in the lake itself (`lake.main.doubtful`), where the other finds it.

Two that seal at the same moment would not see each other: `Coordination.sealing` lets whoever has
noted something seal alone.
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
"""Two events may share their key: one instant, one GPU, one kind."""

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
    """A number that grows with each seal by others, whatever older ones are forgotten. Raises StoreUnavailableError."""
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
    """Note for `once_sql` where others may have the same rows; whether there is any such place.

    `doubtful`: Arrow table of this collector's own doubtful batches; `first`, `last`: instants of all
    rows to be sealed. Raises StoreUnavailableError.
    """
    with translating():
        cursor.register("doubtful_here", doubtful)
        cursor.execute(_SPANS_SQL, {"collector": collector, "first": first, "last": last})
        return bool(scalar(cursor, "SELECT count(*) FROM spans"))


def once_sql(name: str, hot: str) -> str:
    """SELECT of the rows of `hot` that no other collector has in the lake; after `find_spans`."""
    if name not in _TABLES:
        return f"SELECT * FROM {hot}"
    # A GPU is named by whoever sends: the same instant of it from another node is no double.
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
    """Note in the lake what was doubtful. In the transaction that seals it. Raises duckdb.Error."""
    if doubtful.num_rows:
        cursor.register("doubtful_here", doubtful)
        names = ", ".join(doubtful.schema.names)
        cursor.execute(
            f"INSERT INTO lake.main.doubtful SELECT $1, $2, {names} FROM doubtful_here",
            [collector, segment],
        )
