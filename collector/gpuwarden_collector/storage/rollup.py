"""Rolls samples up: computes new windows as they close, and windows with late rows again.

New rollup rows are appended like samples, in a frame that also has the progress of rollups. Windows with
late rows are noted in the state file before those rows are acknowledged, and computed again when the lake
holds the rows that they replace. A window of a node (a unit) is always computed and replaced whole, so
repeating it changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from gpuwarden.clock import EPOCH
from gpuwarden.idleness import IDLE_1M
from gpuwarden.rollups import LOOKBACK_MINUTES, ROLLUPS, Rollup
from gpuwarden.schema import ALLOCATION_SAMPLES
from gpuwarden.waste import FORGOTTEN_AFTER_DAYS, WASTE_1H
from gpuwarden_collector.storage.address import METADATA
from gpuwarden_collector.storage.errors import translating
from gpuwarden_collector.storage.idle_minutes import (
    ALLOCATION_COLUMNS,
    Advanced,
    States,
    advance_minutes,
    remake,
    states_at,
)
from gpuwarden_collector.storage.lake_files import durable_transaction
from gpuwarden_collector.storage.minutes import (
    COVERAGE_COLUMNS,
    columns_of,
    counters_of,
    part_rows,
    rollup_rows,
)
from gpuwarden_collector.storage.rollup_sql import WindowSpan, between, rollup_sql
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_collector.storage.sql import scalar
from gpuwarden_collector.storage.views import hot_table

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ROLLUP_TABLES = (*ROLLUPS, IDLE_1M.name, WASTE_1H.table.name)
ROWS_MAX = 1_000_000
"""Most samples of one table in one step; they bound its memory."""
WINDOWS_MAX = 60

_MINUTES = tuple(r for r in ROLLUPS.values() if r.made_of is None)
_HOURS = (*(r for r in ROLLUPS.values() if r.made_of is not None), WASTE_1H)
_SAMPLES = tuple(dict.fromkeys(part.table for rollup in _MINUTES for part in rollup.parts))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far samples are rolled up. Instants are naive UTC; None: not yet."""

    closed_until: datetime | None = None
    """Rows of earlier instants are late, and their windows are noted."""
    minutes_until: datetime | None = None
    hours_until: datetime | None = None
    late_number: int = 0
    """Number of the newest late window; 0: none."""
    oldest_late_number: int = 0


@dataclass(frozen=True, slots=True)
class Rolled:
    """Rows that a step has computed, to be appended in one commit."""

    tables: Mapping[str, Any]
    """Arrow tables by name."""
    progress: Mapping[str, datetime]
    """Progress of rollups with these rows."""
    readings: "Readings | None" = None
    """Readings that the next minutes look back at."""
    states: States | None = None
    """Idleness of GPUs, from which the next minutes go on; None: not read yet."""


@dataclass(frozen=True, slots=True)
class Readings:
    """The last readings of counters before an instant, so that samples need not be read again."""

    until: datetime
    tables: Mapping[tuple[str, str, tuple[int, int]], Any]
    """Arrow tables by rollup, table of samples and share of the nodes."""


SOURCES = (*_SAMPLES, "coverage", ALLOCATION_SAMPLES.name, *ROLLUP_TABLES)
"""Tables that rollups are computed from."""


def roll_minutes(
    cursor: duckdb.DuckDBPyConnection,
    hot: Mapping[str, Any],
    progress: Progress,
    readings: Readings | None = None,
    states: States | None = None,
) -> Rolled:
    """Compute the first closed minutes that are not rolled up yet. `hot`: Arrow tables of the rows behind
    the lake, which the cursor sees too. `readings`: of the last call, if no late rows came since then; `states`:
    idleness before these minutes; None: it is read. Raises StoreUnavailableError."""
    closed_until = progress.closed_until
    assert closed_until is not None
    with translating():
        begin = progress.minutes_until
        if begin is None or closed_until - begin > WINDOWS_MAX * MINUTE:
            found = (_first(cursor, name, begin, closed_until) for name in _SAMPLES)
            begin = min((ts for ts in found if ts is not None), default=closed_until)
        if begin >= closed_until:
            return Rolled({}, {"minutes_until": closed_until}, states=states)
        begin = begin.replace(second=0, microsecond=0)
        end, shares = _next_chunk(cursor, begin, closed_until)
        is_hot = _is_hot(cursor, begin)
        spans = [WindowSpan(begin, end, (share, shares), is_hot=is_hot) for share in range(shares)]
        source = _Source(cursor, hot)
        known = readings.tables if readings is not None and readings.until == begin else {}
        kept: dict[tuple[str, str, tuple[int, int]], Any] = {}
        tables = {
            rollup.table.name: _stored(
                rollup, [_minutes(source, rollup, span, known, kept) for span in spans]
            )
            for rollup in _MINUTES
        }
        before = states_at(cursor, begin) if states is None else states
        idleness = _idleness(source, tables, spans, before)
        tables[IDLE_1M.name] = idleness.rows
    hours_until = progress.hours_until or begin.replace(minute=0)
    until = {"minutes_until": end, "hours_until": hours_until}
    return Rolled(tables, until, Readings(end, kept), idleness.states)


def _idleness(
    source: "_Source", tables: Mapping[str, Any], spans: Sequence[WindowSpan], states: States
) -> Advanced:
    """Idleness in the minutes of spans, of which `tables` has the rollups."""
    begin, end = spans[0].begin, spans[0].end
    allocations = pa.concat_tables(
        [
            source.read(ALLOCATION_SAMPLES.name, ALLOCATION_COLUMNS, begin, end, span)
            for span in spans
        ]
    )
    return advance_minutes(
        source.cursor, tables["gpu_1m"], tables["process_1m"], allocations, begin, states
    )


def roll_hour(cursor: duckdb.DuckDBPyConnection, progress: Progress) -> Rolled:
    """Compute the first complete hour that is not rolled up yet, as `roll_minutes`."""
    begin = progress.hours_until
    assert begin is not None and progress.minutes_until is not None
    complete_until = progress.minutes_until.replace(minute=0)
    with translating():
        if complete_until - begin > HOUR:
            first = _first(cursor, _HOURS[0].made_of, begin, complete_until) or complete_until
            silent = _first_silent(cursor, begin) or complete_until
            begin = min(first, silent, complete_until - HOUR).replace(minute=0)
        end = begin + HOUR
        shares = -(-60 * _gpus_since(cursor, begin) // ROWS_MAX) or 1
        spans = [WindowSpan(begin, end, (share, shares)) for share in range(shares)]
        tables = {rollup.table.name: _computed(cursor, rollup, spans) for rollup in _HOURS}
    return Rolled(tables, {"hours_until": end})


@dataclass(frozen=True, slots=True)
class Mended:
    """Windows of nodes that `mend` computed again, and late ones that it left because their samples were
    dropped."""

    windows: int
    left: int
    states: States = field(default_factory=dict)
    """Idleness that is another one now at the end of the minutes that are rolled up."""


def mendable_before(cursor: duckdb.DuckDBPyConnection) -> datetime | None:
    """The instant before which late windows, and the windows computed from them, are in the lake; None: all are.

    Raises StoreUnavailableError.
    """
    minutes = [hot_table(name) for name in (*(r.table.name for r in _MINUTES), IDLE_1M.name)]
    hours = [hot_table(rollup.table.name) for rollup in _HOURS]
    with translating():
        minute, hour = (
            scalar(cursor, f"SELECT min(ts) FROM ({' UNION ALL '.join(_ts_of(names))})")
            for names in (minutes, hours)
        )
    found = [hour, minute and minute - LOOKBACK_MINUTES * MINUTE]
    return min((at for at in found if at is not None), default=None)


def _ts_of(names: Iterable[str]) -> Iterator[str]:
    return (f"SELECT ts FROM {name}" for name in names)


def mend(
    cursor: duckdb.DuckDBPyConnection,
    late: Any,
    progress: Progress,
    lake_root: str,
    note: Callable[[Any], None],
) -> Mended:
    """Compute windows with late rows again, in one transaction. `late`: Arrow table of `node` and `ts`, of one
    hour. `note`: as for `remake`. Raises StoreUnavailableError; the next call repeats it."""
    with translating():
        cursor.register("late", late)
        whole_from = _whole_from(cursor)
        left = scalar(cursor, "SELECT count(*) FROM late WHERE ts < $1", [whole_from])
        # The gain of the next minutes starts from the last reading of a window.
        _make_windows(
            cursor,
            "units",
            f"ts + to_minutes(after) AS ts FROM late, range({LOOKBACK_MINUTES + 1}) r(after) "
            "WHERE ts + to_minutes(after) >= $1 AND ts + to_minutes(after) < $2",
            [whole_from, progress.minutes_until],
        )
        _make_windows(
            cursor,
            "units_read",
            f"ts - to_minutes(before) AS ts FROM units, range({LOOKBACK_MINUTES + 1}) r(before)",
        )
        _make_windows(
            cursor,
            "hour_units",
            "date_trunc('hour', ts) AS ts FROM units WHERE date_trunc('hour', ts) < $1",
            [progress.hours_until],
        )
        windows = scalar(cursor, "SELECT count(*) FROM units")
    states: States = {}
    if windows and progress.minutes_until is not None:
        with durable_transaction(cursor, lake_root):
            for rollup in _MINUTES:
                _replace(cursor, rollup, "units")
            states = remake(cursor, "units", progress.minutes_until, note)
            for rollup in _HOURS:
                _replace(cursor, rollup, "hour_units")
    return Mended(windows, left, states)


def doubles(cursor: duckdb.DuckDBPyConnection) -> Any | None:
    """Windows of nodes that appear twice in the lake, among those that the cursor sees hot, in the form of
    `Changes.late`; None: none. Raises StoreUnavailableError.

    In a shared lake each collector rolls up the samples it has. A node that moved from one to the other has a
    row of each, to be computed again from the samples of both.
    """
    found = []
    with translating():
        for table in (*(r.table for r in ROLLUPS.values()), IDLE_1M, WASTE_1H.table):
            name = table.name
            key, is_double = ", ".join(table.key), "count(*) > 1"
            if table is WASTE_1H.table:
                key, is_double = "node, gpu_uuid, ts", "sum(seconds) > 3600.5"
            bounds = cursor.execute(f"SELECT min(ts), max(ts) FROM {hot_table(name)}").fetchone()
            begin, end = bounds or (None, None)
            if begin is not None:
                found.append(
                    f"SELECT node, ts FROM lake.main.{name} WHERE {between(begin, end + MINUTE)} "
                    f"GROUP BY {key} HAVING {is_double}"
                )
        if not found:
            return None
        windows = cursor.execute(" UNION ".join(found)).to_arrow_table()
    return windows if windows.num_rows else None


def _make_windows(
    cursor: duckdb.DuckDBPyConnection, name: str, select: str, parameters: Sequence[Any] = ()
) -> None:
    """Create a table of windows of nodes."""
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT DISTINCT node, {select}", list(parameters)
    )


def _replace(cursor: duckdb.DuckDBPyConnection, rollup: Rollup, units: str) -> None:
    """Compute windows of nodes again, in the lake."""
    name = rollup.table.name
    begin, end = cursor.execute(f"SELECT min(ts), max(ts) FROM {units}").fetchone() or (None, None)
    if begin is None:
        return
    end += timedelta(seconds=rollup.window_s)
    if rollup in _MINUTES:
        # `units_read` has the minutes that are looked back at, too; of the result only `units` are right.
        rows = minutes(
            cursor,
            rollup,
            begin,
            end,
            "node IN (SELECT node FROM units)",
            "(node, date_trunc('minute', ts)) IN (SELECT (node, ts) FROM units_read)",
        )
    else:
        rows = _computed(cursor, rollup, [WindowSpan(begin, end, units=units)])
    cursor.register("computed", rows)
    cursor.execute(
        f"DELETE FROM lake.main.{name} "
        f"WHERE {between(begin, end)} AND (node, ts) IN (SELECT (node, ts) FROM {units})"
    )
    cursor.execute(
        f"INSERT INTO lake.main.{name} BY NAME SELECT * FROM computed "
        f"WHERE (node, ts) IN (SELECT (node, ts) FROM {units}) "
        f"ORDER BY {', '.join(rollup.table.key)}"
    )


def minutes(
    cursor: duckdb.DuckDBPyConnection,
    rollup: Rollup,
    begin: datetime,
    end: datetime,
    nodes: str = "true",
    chosen: str = "true",
) -> Any:
    """Arrow table of a rollup of minutes, from `begin` to before `end` (naive UTC), over the tables that the cursor
    sees. `nodes`, `chosen`: conditions on the nodes, and on the samples."""
    since = begin - LOOKBACK_MINUTES * MINUTE
    made = []
    for part in rollup.parts:
        rows = cursor.execute(
            f"SELECT {', '.join(columns_of(part, rollup))} FROM main.{part.table} "
            f"WHERE {between(since, end)} AND {nodes} AND {chosen}"
        ).to_arrow_table()
        made.append(part_rows(part, rollup, rows, rows.slice(0, 0), since).rows)
    coverage = None
    if any(part.has_coverage for part in rollup.parts):
        # A row of `coverage` counts the minute that ends at its instant.
        least = timedelta(microseconds=1)
        coverage = cursor.execute(
            f"SELECT {', '.join(COVERAGE_COLUMNS)} FROM main.coverage "
            f"WHERE {between(begin + least, end + least)} AND {nodes}"
        ).to_arrow_table()
    return _between(_stored(rollup, [rollup_rows(rollup, made, coverage)]), begin, end)


def _computed(
    cursor: duckdb.DuckDBPyConnection, rollup: Rollup, spans: Sequence[WindowSpan]
) -> Any:
    """Arrow table of a rollup's rows over spans, sorted by its key, in the stored types."""
    order = ", ".join(rollup.table.key)
    return _stored(
        rollup,
        [
            cursor.execute(f"{rollup_sql(rollup, span)} ORDER BY {order}").to_arrow_table()
            for span in spans
        ],
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """Reads samples from lake and segments."""

    cursor: duckdb.DuckDBPyConnection
    hot: Mapping[str, Any]
    """Arrow tables of rows behind the lake."""

    def read(
        self, name: str, columns: Sequence[str], begin: datetime, end: datetime, span: WindowSpan
    ) -> Any:
        """Rows from `begin` to before `end` of the span's nodes."""
        is_whole = span.share[1] == 1
        where = f"WHERE {between(begin, end)} AND {span.nodes}"
        found = []
        if is_whole:
            found.append(_between(self.hot[name].select(columns), begin, end))
        if not (is_whole and span.is_hot):
            # Planning takes half as long without the view over lake and segments.
            table = f"lake.main.{name}" if is_whole else f"main.{name}"
            rows = self.cursor.execute(f"SELECT {', '.join(columns)} FROM {table} {where}")
            found.append(rows.to_arrow_table())
        return pa.concat_tables(found)


def _between(table: Any, begin: datetime, end: datetime) -> Any:
    """Rows of an Arrow table in that time; chunks are skipped or taken whole where possible."""
    first, last = (int(np.datetime64(at, "us").astype(np.int64)) for at in (begin, end))
    found = []
    for batch in table.to_batches():
        ts = batch["ts"].cast(pa.int64()).to_numpy()
        is_within = (ts >= first) & (ts < last)
        count = int(np.count_nonzero(is_within))
        if count == len(ts):
            found.append(batch)
        elif count:
            found.append(batch.filter(pa.array(is_within)))
    return pa.Table.from_batches(found, table.schema)


def _minutes(
    source: _Source,
    rollup: Rollup,
    span: WindowSpan,
    known: Mapping[tuple[str, str, tuple[int, int]], Any],
    kept: dict[tuple[str, str, tuple[int, int]], Any],
) -> Any:
    """A rollup of minutes over one span. `known`: readings before it; `kept`: receives readings for the next
    minutes."""
    made = []
    for part in rollup.parts:
        place = rollup.table.name, part.table, span.share
        names = columns_of(part, rollup)
        samples = source.read(part.table, names, span.begin, span.end, span)
        before = known.get(place)
        if before is None:
            since = span.begin - LOOKBACK_MINUTES * MINUTE
            before = source.read(part.table, counters_of(part, rollup), since, span.begin, span)
        computed = part_rows(part, rollup, samples, before, span.begin)
        kept[place] = computed.readings
        made.append(computed.rows)
    # A row of `coverage` counts the minute that ends at its instant.
    least = timedelta(microseconds=1)
    coverage = source.read("coverage", COVERAGE_COLUMNS, span.begin + least, span.end + least, span)
    return rollup_rows(rollup, made, coverage)


def _stored(rollup: Rollup, parts: Sequence[Any]) -> Any:
    """All rows in the stored types."""
    schema = SCHEMAS[rollup.table.name]
    return pa.concat_tables(parts).select(schema.names).cast(schema)


def _first(
    cursor: duckdb.DuckDBPyConnection, table: str | None, since: datetime | None, until: datetime
) -> datetime | None:
    condition = between(since or EPOCH, until)
    found: datetime | None = scalar(cursor, f"SELECT min(ts) FROM main.{table} WHERE {condition}")
    return found


def _first_silent(cursor: duckdb.DuckDBPyConnection, begin: datetime) -> datetime | None:
    """The first hour in which a silent fleet still has rows of waste."""
    row = cursor.execute(
        "SELECT max(last_seen_at), max(last_seen_at + to_seconds(coalesce(billed_silent_s, $1))) "
        "FROM main.gpus",
        [float(FORGOTTEN_AFTER_DAYS * 86_400)],
    ).fetchone()
    last_seen, billed_until = row or (None, None)
    if last_seen is None or begin > billed_until:
        return None
    since: datetime = max(begin, last_seen).replace(minute=0, second=0, microsecond=0)
    return since


def _next_chunk(
    cursor: duckdb.DuckDBPyConnection, begin: datetime, until: datetime
) -> tuple[datetime, int]:
    """The end of the next step, and its number of shares of the nodes."""
    rows = 60 * _gpus_since(cursor, begin)
    if rows > ROWS_MAX:
        return min(begin + MINUTE, until), -(-rows // ROWS_MAX)
    windows = min(WINDOWS_MAX, ROWS_MAX // max(rows, 1))
    return min(begin + windows * MINUTE, until), 1


def _gpus_since(cursor: duckdb.DuckDBPyConnection, begin: datetime) -> int:
    """Number of GPUs that may have rows since then: they were seen or are billed, or were only imported."""
    found: int = scalar(
        cursor,
        "SELECT count(*) FROM main.gpus WHERE last_seen_at IS NULL "
        "OR last_seen_at + to_seconds(coalesce(billed_silent_s, $1)) >= $2",
        [float(FORGOTTEN_AFTER_DAYS * 86_400), begin],
    )
    return found


def _is_hot(cursor: duckdb.DuckDBPyConnection, begin: datetime) -> bool:
    """Whether all rows since `begin`, and those before it that are looked back at, are surely behind the lake."""
    row = cursor.execute(
        f"""
        SELECT max(try_cast(max_value AS TIMESTAMP)), bool_or(max_value IS NULL)
        FROM {METADATA}.ducklake_table_column_stats s
        JOIN {METADATA}.ducklake_column c USING (table_id, column_id)
        JOIN {METADATA}.ducklake_table t USING (table_id)
        WHERE column_name = 'ts' AND c.end_snapshot IS NULL AND t.end_snapshot IS NULL
            AND table_name IN (SELECT unnest($1))
        """,
        [list(SOURCES)],
    ).fetchone()
    newest, is_unknown = row or (None, True)
    if is_unknown:
        return False
    return newest is None or newest < begin - LOOKBACK_MINUTES * MINUTE


def _whole_from(cursor: duckdb.DuckDBPyConnection) -> datetime:
    """The first window whose samples, and those of the minutes that it looks back at, are all kept."""
    gone = None
    # The table is created when a day is dropped for the first time.
    with suppress(duckdb.CatalogException):
        # Rows that came after their day was dropped are kept.
        gone = scalar(
            cursor,
            "SELECT max(least(day::DATE + INTERVAL 1 DAY, dropped_at::TIMESTAMP)) "
            f"FROM {METADATA}.gpuwarden_dropped WHERE table_name IN (SELECT unnest($1))",
            [list(_SAMPLES)],
        )
    whole_from: datetime = (gone or EPOCH.replace(tzinfo=None)) + LOOKBACK_MINUTES * MINUTE
    return whole_from
