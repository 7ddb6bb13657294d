"""Bounds of `ts` are of its own type, and a query's bounds come from its text."""

import json

import duckdb
import pytest
from tests.collector.made_up_store import put

from gpuwarden.query import QueryError
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.time_bounds import with_cast_bounds
from gpuwarden_collector.storage.database import Database


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 'é', 1 FROM a WHERE 'é' = x AND ts > NOW( ) - INTERVAL 1 HOUR",
         "SELECT 'é', 1 FROM a WHERE 'é' = x AND ts > NOW( )::TIMESTAMP - INTERVAL 1 HOUR"),
        ("SELECT 1 FROM a WHERE a.ts BETWEEN now() - INTERVAL 2 DAY AND now()",
         "SELECT 1 FROM a WHERE a.ts BETWEEN now()::TIMESTAMP - INTERVAL 2 DAY AND now()::TIMESTAMP"),
        ("WITH q AS (FROM a WHERE date_trunc('hour', now()) <= ts) FROM q WHERE ts < current_timestamp",
         "WITH q AS (FROM a WHERE date_trunc('hour', now()::TIMESTAMP) <= ts) FROM q WHERE ts < current_timestamp"),
        ("SELECT ts > now() FROM a WHERE ts >= '2026-01-01'", None),
        ("SELECT 1 FROM a WHERE ts > now() OR x", None),
        ("SELECT 1 FROM a WHERE ts > now() - to_seconds(x)", None),
        ("SELECT 1 FROM a WHERE seen_at > now()", None),
    ],
)  # fmt: skip
def test_only_bounds_of_conditions_are_cast(sql: str, expected: str | None) -> None:
    with duckdb.connect() as db:
        (text,) = db.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()[0]
    assert with_cast_bounds(json.loads(text)["statements"], sql) == expected


async def test_rows_names_and_errors_are_those_of_the_text(
    querier: SqlQuerier, database: Database
) -> None:
    put(
        database,
        "gpu_samples",
        "SELECT now()::TIMESTAMP - to_minutes(m) AS ts, 'n' AS node, 'g' AS gpu_uuid, true AS simulated "
        "FROM range(0, 180, 10) r(m)",
    )
    found = await querier.query(
        "SELECT count(*), now() > ts FROM gpu_samples WHERE ts > now() - INTERVAL 65 MINUTE GROUP BY ALL"
    )
    assert (found.rows, found.columns) == ([(7, True)], ("count_star()", "(now() > ts)"))
    wrong = "SELECT 1 FROM gpu_samples WHERE ts > now() - INTERVAL 1 HOUR AND nod = 'n'"
    with pytest.raises(QueryError, match="did you mean node") as raised:
        await querier.query(wrong)
    assert raised.value.offset == wrong.index("nod")
