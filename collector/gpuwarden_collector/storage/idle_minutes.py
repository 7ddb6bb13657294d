"""Advances the idleness of GPUs with their minutes: rows of DuckDB and Arrow around `gpuwarden.idleness`, which is pure."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.idleness import (
    FORGOTTEN_AFTER_MINUTES,
    IDLE_1M,
    INSTANTS,
    Idleness,
    Minute,
    advanced,
    minutes_sql,
)
from gpuwarden.schema import ALLOCATION_SAMPLES
from gpuwarden_collector.storage.rollup_sql import between
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_collector.storage.sql import scalar
from gpuwarden_collector.storage.views import hot_table

States = Mapping[tuple[str, str], Idleness]
"""By node and `gpu_uuid`."""
ALLOCATION_COLUMNS = ("node", "gpu_uuid", "ts", "job", "username", "processes")
_HOUR = timedelta(hours=1)
_FORGOTTEN = timedelta(minutes=FORGOTTEN_AFTER_MINUTES)
_NAME = IDLE_1M.name
_COLUMNS = ", ".join(f"epoch_us({name})" if name in INSTANTS else name for name in IDLE_1M.names)


@dataclass(frozen=True, slots=True)
class Advanced:
    """Rows of `idle_1m` of some minutes, and the states after them."""

    rows: Any
    """Arrow table in the stored types."""
    states: dict[tuple[str, str], Idleness]


def advance_minutes(
    cursor: duckdb.DuckDBPyConnection,
    gpus: Any,
    processes: Any,
    allocations: Any,
    begin: datetime,
    states: States,
) -> Advanced:
    """Advance the states of GPUs through new minutes from `begin` on: Arrow tables of gpu_1m, process_1m and
    allocation_samples. Those of nodes without any in `states` are read: of a shared lake another collector had them."""
    for name, rows in {"gpus": gpus, "processes": processes, "allocations": allocations}.items():
        cursor.register(f"idle_{name}", rows)
    minutes = _minutes(cursor, "idle_gpus", "idle_processes", "idle_allocations")
    oldest_us = _us(begin - _FORGOTTEN)
    current = {key: state for key, state in states.items() if state.ts >= oldest_us}
    moved = {m.node for m in minutes if m.work_seconds is not None} - {node for node, _ in current}
    if moved:
        current |= _last_states(cursor, moved, begin)
    rows, after = advanced(current, minutes)
    return Advanced(_table(rows), after)


def remake(
    cursor: duckdb.DuckDBPyConnection, units: str, until: datetime, note: Callable[[Any], None]
) -> States:
    """Compute rows of `idle_1m` again in the lake, from the first of the windows of nodes in the table `units` on, until the
    states are what they were, at most to `until`.

    Rows that are still behind the lake cannot be replaced: `note` gets the windows from which on they are wrong, as Arrow
    table of `node` and `ts`, before anything is committed. Returns the states at `until` that changed.
    """
    spans = cursor.execute(f"SELECT node, min(ts), max(ts) FROM {units} GROUP BY node").fetchall()
    if not spans:
        return {}
    nodes = {str(node) for node, _, _ in spans}
    begin, units_end = min(first for _, first, _ in spans), max(last for _, _, last in spans)
    hot_from = scalar(cursor, f"SELECT epoch_us(min(ts)) FROM {hot_table(_NAME)}")
    states = _last_states(cursor, nodes, begin)
    stored_states = dict(states)
    wrong: dict[str, int] = {}
    while nodes and begin < until:
        end = min(begin.replace(minute=0) + _HOUR, until)
        stored, minutes = _stored(cursor, nodes, begin, end), _minutes_of(cursor, nodes, begin, end)
        if not stored and not minutes:
            # After a leap of the clock years are empty.
            begin = _next_row(cursor, nodes, end, until) or until
            continue
        rows, states = advanced(states, minutes)
        changed = _changed(stored, rows)
        _replace(cursor, [row for row in rows if _key(row) in changed], changed, hot_from)
        for node, _, ts in changed:
            if hot_from is not None and ts >= hot_from:
                wrong[node] = min(ts, wrong.get(node, ts))
        stored_states |= {(row.node, row.gpu_uuid): row for row in stored}
        if end > units_end:
            nodes = {key[0] for key, state in states.items() if state != stored_states.get(key)}
        states = {key: state for key, state in states.items() if key[0] in nodes}
        begin = end
    if wrong:
        ts = pa.array(list(wrong.values()), pa.int64()).cast(pa.timestamp("us"))
        note(pa.table({"node": list(wrong), "ts": ts.cast(pa.timestamp("ms"))}))
    return states


def _minutes(
    cursor: duckdb.DuckDBPyConnection, gpus: str, processes: str, allocations: str
) -> list[Minute]:
    rows = cursor.execute(minutes_sql(gpus, processes, allocations)).fetchall()
    return [Minute._make(row) for row in rows]


def _minutes_of(
    cursor: duckdb.DuckDBPyConnection, nodes: Iterable[str], begin: datetime, end: datetime
) -> list[Minute]:
    """Minutes of nodes, of the rows that the cursor sees."""
    _register_nodes(cursor, nodes)
    chosen = f"{between(begin, end)} AND node IN (SELECT node FROM idle_nodes)"
    names = ("gpu_1m", "process_1m", ALLOCATION_SAMPLES.name)
    gpus, processes, allocations = (f"(SELECT * FROM main.{name} WHERE {chosen})" for name in names)
    return _minutes(cursor, gpus, processes, allocations)


def _register_nodes(cursor: duckdb.DuckDBPyConnection, nodes: Iterable[str]) -> None:
    cursor.register("idle_nodes", pa.table({"node": pa.array(nodes, pa.string())}))


def states_at(cursor: duckdb.DuckDBPyConnection, at: datetime) -> dict[tuple[str, str], Idleness]:
    """The states of all GPUs that are not forgotten."""
    return _newest(cursor, between(at - _FORGOTTEN, at))


def _last_states(
    cursor: duckdb.DuckDBPyConnection, nodes: Iterable[str], before: datetime
) -> dict[tuple[str, str], Idleness]:
    """The states of the GPUs of nodes."""
    _register_nodes(cursor, nodes)
    span = between(before - _FORGOTTEN, before)
    return _newest(cursor, f"{span} AND node IN (SELECT node FROM idle_nodes)")


def _newest(cursor: duckdb.DuckDBPyConnection, chosen: str) -> dict[tuple[str, str], Idleness]:
    """The newest of the chosen rows of each GPU."""
    rows = cursor.execute(
        f"SELECT {_COLUMNS} FROM main.{_NAME} SEMI JOIN (SELECT node, gpu_uuid, max(ts) AS ts FROM main.{_NAME} "
        f"WHERE {chosen} GROUP BY ALL) USING (node, gpu_uuid, ts) WHERE {chosen}"
    ).fetchall()
    return {(state.node, state.gpu_uuid): state for state in map(Idleness._make, rows)}


def _stored(
    cursor: duckdb.DuckDBPyConnection, nodes: Iterable[str], begin: datetime, end: datetime
) -> list[Idleness]:
    """The rows of nodes that are stored, in the order of time."""
    _register_nodes(cursor, nodes)
    rows = cursor.execute(
        f"SELECT {_COLUMNS} FROM main.{_NAME} WHERE {between(begin, end)} "
        "AND node IN (SELECT node FROM idle_nodes) ORDER BY ts"
    ).fetchall()
    return [Idleness._make(row) for row in rows]


def _next_row(
    cursor: duckdb.DuckDBPyConnection, nodes: Iterable[str], begin: datetime, end: datetime
) -> datetime | None:
    """Time of the first row of nodes that `remake` reads or replaces; None: there is none."""
    _register_nodes(cursor, nodes)
    rows = " UNION ALL ".join(
        f"SELECT ts FROM main.{name} WHERE {between(begin, end)} AND node IN (SELECT node FROM idle_nodes)"
        for name in ("gpu_1m", _NAME)
    )
    first: datetime | None = scalar(cursor, f"SELECT min(ts) FROM ({rows})")
    return first


def _key(row: Idleness) -> tuple[str, str, int]:
    return row.node, row.gpu_uuid, row.ts


def _changed(stored: Sequence[Idleness], rows: Sequence[Idleness]) -> set[tuple[str, str, int]]:
    """Node, GPU and time of the rows that differ, or stand twice."""
    before = {_key(row): row for row in stored}
    after = {_key(row): row for row in rows}
    changed = {key for key, row in after.items() if before.get(key) != row}
    changed |= before.keys() - after.keys()
    if len(before) < len(stored):
        counts = Counter(map(_key, stored))
        changed |= {key for key, count in counts.items() if count > 1}
    return changed


def _replace(
    cursor: duckdb.DuckDBPyConnection,
    rows: Sequence[Idleness],
    changed: Collection[tuple[str, str, int]],
    hot_from: int | None,
) -> None:
    """Replace the changed rows that are in the lake."""
    keys = [key for key in changed if hot_from is None or key[2] < hot_from]
    if not keys:
        return
    ts = [key[2] for key in keys]
    cursor.register(
        "idle_changed",
        pa.table(
            {
                "node": [key[0] for key in keys],
                "gpu_uuid": [key[1] for key in keys],
                "ts": pa.array(ts, pa.int64()).cast(pa.timestamp("us")),
            }
        ),
    )
    cursor.execute(
        f"DELETE FROM lake.main.{_NAME} WHERE ts >= make_timestamp({min(ts)}) AND ts <= make_timestamp({max(ts)}) "
        "AND (node, gpu_uuid, ts) IN (SELECT (node, gpu_uuid, ts) FROM idle_changed)"
    )
    cursor.register("idle_computed", _table(rows))
    cursor.execute(
        f"INSERT INTO lake.main.{_NAME} BY NAME SELECT * FROM idle_computed "
        "WHERE (node, gpu_uuid, ts) IN (SELECT (node, gpu_uuid, ts) FROM idle_changed) "
        f"ORDER BY {', '.join(IDLE_1M.key)}"
    )


def _table(rows: Sequence[Idleness]) -> Any:
    """An Arrow table in the stored types."""
    schema = SCHEMAS[_NAME]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [
        pa.array(values, pa.int64()).cast(pa.timestamp("us"))
        if pa.types.is_timestamp(field.type)
        else pa.array(values, field.type)
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.table(arrays, names=schema.names).cast(schema)


def _us(at: datetime) -> int:
    return int(at.replace(tzinfo=UTC).timestamp() * 1_000_000)
