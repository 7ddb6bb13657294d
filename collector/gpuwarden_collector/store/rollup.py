"""Rolls samples up: new windows as they close, and again those that rows came late for.

How far this is stands in `internal.rollup`, changed in the transaction that adds the rows; windows
that rows came late for stand in `internal.late`, written by the transaction that adds those rows.
Rows of rollups are written to the generation that is written, and move to the lake with it. A window
of a node (a unit) is always computed and replaced whole, wherever it stands, so doing it again
changes nothing.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb

from gpuwarden.clock import EPOCH
from gpuwarden.rollups import LOOKBACK_MINUTES, ROLLUPS, Rollup
from gpuwarden.schema import ALLOCATION_SAMPLES
from gpuwarden.waste import FORGOTTEN_AFTER_DAYS, WASTE_1H
from gpuwarden_collector.store.files import sync_files
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.store.lake import METADATA
from gpuwarden_collector.store.rollup_sql import Span, between, rollup_sql
from gpuwarden_collector.store.transaction import transaction, translating

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ROWS_MAX = 2_000_000
"""Samples of one table that are rolled up at once; what it needs in memory follows from it."""
WINDOWS_MAX = 60
LATE_MAX = 4_000
"""Late windows that are computed again at once."""

_MINUTES = tuple(r for r in ROLLUPS.values() if r.made_of is None)
_HOURS = (*(r for r in ROLLUPS.values() if r.made_of is not None), WASTE_1H)
_SAMPLES = tuple(part.table for rollup in _MINUTES for part in rollup.parts)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far samples are rolled up. Instants are naive UTC, None before the first time."""

    closed_until: datetime | None = None
    """Rows from before that are late: their windows are noted."""
    minutes_until: datetime | None = None
    hours_until: datetime | None = None
    late_number: int = 0
    """Number of the newest late window; 0: there is none."""
    oldest_late_number: int = 0


def read_progress(connection: duckdb.DuckDBPyConnection) -> Progress:
    """How far it is. Raises StoreUnavailableError."""
    with translating():
        row = connection.execute(
            "SELECT closed_until, minutes_until, hours_until, "
            "(SELECT coalesce(max(number), 0) FROM internal.late), "
            "(SELECT coalesce(min(number), 0) FROM internal.late) FROM internal.rollup"
        ).fetchone()
    assert row is not None
    return Progress(*row)


def close_windows(connection: duckdb.DuckDBPyConnection, until: datetime) -> None:
    """Have it stand that rows from before `until` are late. Raises StoreUnavailableError."""
    with translating():
        connection.execute("UPDATE internal.rollup SET closed_until = $1", [until])


def roll_minutes(
    cursor: duckdb.DuckDBPyConnection, generation: int, progress: Progress
) -> dict[str, int]:
    """Roll up the first closed minutes that are not yet; rows by table.

    `generation`: the one that is written; it must not be frozen meanwhile. Raises
    StoreUnavailableError, and then has changed nothing.
    """
    closed_until = progress.closed_until
    assert closed_until is not None
    with transaction(cursor):
        begin = progress.minutes_until
        if begin is None or closed_until - begin > WINDOWS_MAX * MINUTE:
            found = (_first(cursor, name, begin, closed_until) for name in _SAMPLES)
            begin = min((ts for ts in found if ts is not None), default=closed_until)
        if begin >= closed_until:
            _set(cursor, minutes_until=closed_until)
            return {}
        begin = begin.replace(second=0, microsecond=0)
        end, shares = _next_chunk(cursor, begin, closed_until)
        held_in = generation if _is_hot(cursor, begin) else None
        rows = {}
        for rollup in _MINUTES:
            name = rollup.table.name
            rows[name] = 0
            for share in range(shares):
                span = Span(begin, end, (share, shares), generation=held_in)
                rows[name] += _insert(cursor, hot_table(name, generation), rollup, span)
        hours_until = progress.hours_until or begin.replace(minute=0)
        _set(cursor, minutes_until=end, hours_until=hours_until)
    return rows


def roll_hour(
    cursor: duckdb.DuckDBPyConnection, generation: int, progress: Progress
) -> dict[str, int]:
    """Roll up the first complete hour that is not yet. As `roll_minutes`."""
    begin = progress.hours_until
    assert begin is not None and progress.minutes_until is not None
    complete_until = progress.minutes_until.replace(minute=0)
    with transaction(cursor):
        if complete_until - begin > HOUR:
            first = _first(cursor, _HOURS[0].made_of, begin, complete_until) or complete_until
            silent = _first_silent(cursor, begin) or complete_until
            begin = min(first, silent, complete_until - HOUR).replace(minute=0)
        end = begin + HOUR
        shares = -(-60 * _one(cursor, "SELECT count(*) FROM main.gpus") // ROWS_MAX) or 1
        rows = {}
        for rollup in _HOURS:
            name = rollup.table.name
            rows[name] = sum(
                _insert(
                    cursor, hot_table(name, generation), rollup, Span(begin, end, (share, shares))
                )
                for share in range(shares)
            )
        _set(cursor, hours_until=end)
    return rows


@dataclass(frozen=True, slots=True)
class Mended:
    """What `mend` did: windows of nodes that were computed again, and late ones that were left as
    they are because samples of theirs have been dropped."""

    windows: int
    left: int


def mend(
    cursor: duckdb.DuckDBPyConnection,
    generation: int,
    progress: Progress,
    number: int,
    lake_root: str,
) -> Mended:
    """Compute some windows again that rows came late for: of those up to `number`, of the oldest
    hour. The written generation must be the only one meanwhile. Raises StoreUnavailableError; what
    is not done then is done by the next call.
    """
    with translating():
        hour = _one(
            cursor,
            "SELECT date_trunc('hour', min(ts)) FROM internal.late WHERE number <= $1",
            [number],
        )
        if hour is None:
            return Mended(0, 0)
        cursor.execute(
            "CREATE OR REPLACE TEMP TABLE late AS SELECT DISTINCT node, ts FROM internal.late "
            f"WHERE number <= $1 AND {between(hour, hour + HOUR)} ORDER BY node, ts "
            f"LIMIT {LATE_MAX}",
            [number],
        )
        whole_from = _whole_from(cursor)
        left = _one(cursor, "SELECT count(*) FROM late WHERE ts < $1", [whole_from])
        # The first readings of the minutes after it gain from the last of a window.
        _make_units(
            cursor,
            f"ts + to_minutes(after) AS ts FROM late, range({LOOKBACK_MINUTES + 1}) r(after) "
            "WHERE ts + to_minutes(after) >= $1 AND ts + to_minutes(after) < $2",
            [whole_from, progress.minutes_until],
        )
        windows = _one(cursor, "SELECT count(*) FROM units")
        newest = _one(
            cursor,
            f"SELECT next_file_id - 1 FROM {METADATA}.ducklake_snapshot "
            "ORDER BY snapshot_id DESC LIMIT 1",
        )
    for rollup in _MINUTES:
        _replace(cursor, generation, rollup)
    with translating():
        _make_units(
            cursor,
            "date_trunc('hour', ts) AS ts FROM units WHERE date_trunc('hour', ts) < $1",
            [progress.hours_until],
        )
    for rollup in _HOURS:
        _replace(cursor, generation, rollup)
    sync_files(cursor, lake_root, newest)
    with transaction(cursor):
        cursor.execute(
            "DELETE FROM internal.late WHERE number <= $1 "
            "AND (node, ts) IN (SELECT (node, ts) FROM late)",
            [number],
        )
    return Mended(windows, left)


def doubles(cursor: duckdb.DuckDBPyConnection, generation: int) -> Any | None:
    """Windows of nodes that stand twice in the lake, of those in a sealed generation, as
    `Changes.late` wants them; None: none. Raises StoreUnavailableError.

    Of a lake that collectors share, each rolls up what it sees: a node that went from one to the
    other has a row of each, to be computed again from the samples of both.
    """
    found = []
    with translating():
        for rollup in (*ROLLUPS.values(), WASTE_1H):
            name = rollup.table.name
            key, is_double = ", ".join(rollup.table.key), "count(*) > 1"
            if rollup is WASTE_1H:
                key, is_double = "node, gpu_uuid, ts", "sum(seconds) > 3600.5"
            hot = hot_table(name, generation)
            begin, end = cursor.execute(f"SELECT min(ts), max(ts) FROM {hot}").fetchone() or (
                None,
                None,
            )
            if begin is not None:
                found.append(
                    f"SELECT node, ts FROM lake.main.{name} WHERE {between(begin, end + MINUTE)} "
                    f"GROUP BY {key} HAVING {is_double}"
                )
        if not found:
            return None
        table = cursor.execute(" UNION ".join(found)).to_arrow_table()
    return table if table.num_rows else None


def _make_units(cursor: duckdb.DuckDBPyConnection, select: str, parameters: list[Any]) -> None:
    cursor.execute(f"CREATE TEMP TABLE new_units AS SELECT DISTINCT node, {select}", parameters)
    cursor.execute("DROP TABLE IF EXISTS units")
    cursor.execute("ALTER TABLE new_units RENAME TO units")


def _replace(cursor: duckdb.DuckDBPyConnection, generation: int, rollup: Rollup) -> None:
    """Compute the units again, each where its rows are: in the lake, or else hot."""
    name = rollup.table.name
    with translating():
        begin, end = cursor.execute("SELECT min(ts), max(ts) FROM units").fetchone() or (None, None)
        if begin is None:
            return
        end += timedelta(seconds=rollup.window_s)
        held_in = generation if _is_hot(cursor, begin) else None
        chosen = f"{between(begin, end)} AND (node, ts) IN (SELECT (node, ts) FROM"
        in_lake = f"lake.main.{name} WHERE {chosen} units)" if held_in is None else "units LIMIT 0"
        cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE sealed_units AS SELECT DISTINCT node, ts FROM {in_lake}"
        )
        cursor.execute(
            "CREATE OR REPLACE TEMP TABLE hot_units AS FROM units EXCEPT FROM sealed_units"
        )
    targets = {"sealed_units": f"lake.main.{name}", "hot_units": hot_table(name, generation)}
    for units, target in targets.items():
        with translating():
            if not _one(cursor, f"SELECT count(*) FROM {units}"):
                continue
        with transaction(cursor):
            cursor.execute(f"DELETE FROM {target} WHERE {chosen} {units})")
            _insert(cursor, target, rollup, Span(begin, end, units=units, generation=held_in))


def _insert(cursor: duckdb.DuckDBPyConnection, target: str, rollup: Rollup, span: Span) -> int:
    count = _one(
        cursor,
        f"INSERT INTO {target} BY NAME {rollup_sql(rollup, span)} "
        f"ORDER BY {', '.join(rollup.table.key)}",
    )
    return int(count or 0)


def _first(
    cursor: duckdb.DuckDBPyConnection, table: str | None, since: datetime | None, until: datetime
) -> datetime | None:
    condition = between(since or EPOCH, until)
    found: datetime | None = _one(cursor, f"SELECT min(ts) FROM main.{table} WHERE {condition}")
    return found


def _first_silent(cursor: duckdb.DuckDBPyConnection, begin: datetime) -> datetime | None:
    """The first hour in which a fleet that says nothing is still expected: it has rows of waste."""
    heard: datetime | None = _one(cursor, "SELECT max(last_seen_at) FROM main.gpus")
    if heard is None or begin > heard + timedelta(days=FORGOTTEN_AFTER_DAYS):
        return None
    return max(begin, heard).replace(minute=0, second=0, microsecond=0)


def _next_chunk(
    cursor: duckdb.DuckDBPyConnection, begin: datetime, until: datetime
) -> tuple[datetime, int]:
    """Until when to roll up at once, and in how many shares of the nodes."""
    rows = 60 * _one(cursor, "SELECT count(*) FROM main.gpus")
    if rows > ROWS_MAX:
        return min(begin + MINUTE, until), -(-rows // ROWS_MAX)
    windows = min(WINDOWS_MAX, ROWS_MAX // max(rows, 1))
    return min(begin + windows * MINUTE, until), 1


def _is_hot(cursor: duckdb.DuckDBPyConnection, begin: datetime) -> bool:
    """Whether all rows since `begin`, and those that it looks back at, are in the generation that is
    written. False where that is not sure."""
    row = cursor.execute(
        f"""
        SELECT max(try_cast(max_value AS TIMESTAMP)), bool_or(max_value IS NULL),
            (SELECT count(*) FROM internal.generations)
        FROM {METADATA}.ducklake_table_column_stats s
        JOIN {METADATA}.ducklake_column c USING (table_id, column_id)
        JOIN {METADATA}.ducklake_table t USING (table_id)
        WHERE column_name = 'ts' AND c.end_snapshot IS NULL AND t.end_snapshot IS NULL
            AND table_name IN (SELECT unnest($1))
        """,
        [[*_SAMPLES, "coverage", ALLOCATION_SAMPLES.name, *ROLLUPS]],
    ).fetchone()
    newest, is_unknown, generations = row or (None, True, 0)
    if is_unknown or generations != 1:
        return False
    return newest is None or newest < begin - LOOKBACK_MINUTES * MINUTE


def _whole_from(cursor: duckdb.DuckDBPyConnection) -> datetime:
    """The first window all of whose samples are there, and of the minutes that it looks back at."""
    gone = None
    # The table is made when a day is dropped for the first time.
    with suppress(duckdb.CatalogException):
        # What came in after a day was dropped is not gone.
        gone = _one(
            cursor,
            "SELECT max(least(day + INTERVAL 1 DAY, dropped_at)) "
            f"FROM {METADATA}.gpuwarden_dropped WHERE table_name IN (SELECT unnest($1))",
            [list(_SAMPLES)],
        )
    whole_from: datetime = (gone or EPOCH.replace(tzinfo=None)) + LOOKBACK_MINUTES * MINUTE
    return whole_from


def _set(cursor: duckdb.DuckDBPyConnection, **instants: datetime) -> None:
    named = ", ".join(f"{name} = ${number}" for number, name in enumerate(instants, 1))
    cursor.execute(f"UPDATE internal.rollup SET {named}", list(instants.values()))


def _one(cursor: duckdb.DuckDBPyConnection, sql: str, parameters: list[Any] | None = None) -> Any:
    row = cursor.execute(sql, parameters or []).fetchone()
    return row[0] if row else None
