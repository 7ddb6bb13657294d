"""Reads recordings of labelled loops as rows of the public tables that end at one time, with losses applied."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.diagnosis.scenarios import SCENARIOS, Scenario

from gpuwarden.clock import from_ms, to_ms
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_simulator.recordings.format import Described, Samples, entries_of

END = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When every recording ends, as they are judged."""
EARLIER = timedelta(hours=2)
"""Starts of processes are moved back by this: a process in its first minutes is not judged."""
MINUTE = timedelta(minutes=1)
STILL_MIN, PAST_MIN = 20, 60
"""Minutes for which a hung loop has hung, and minutes that are looked back."""
USD_PER_HOUR = 3.0
SUFFIX = ".jsonl.gz"

Row = dict[str, Any]
Tables = dict[str, list[Row]]


@dataclass(frozen=True, slots=True)
class Run:
    """The name of a recording: node, seconds a step, seed, other load."""

    name: str

    @property
    def is_loaded(self) -> bool:
        return self.name.endswith("-loaded")


@dataclass(frozen=True, slots=True)
class Recording:
    """The rows of one run, and what is true of each of its GPUs."""

    run: Run
    tables: Tables
    scenarios: Mapping[str, Scenario]
    """By UUID of the GPU."""


def load(path: Path) -> Recording:
    """Read one. Raises RecordingError."""
    run = Run(path.name.removesuffix(SUFFIX))
    entries = list(entries_of(path))
    last_ms = max(entry.ts_ms for entry in entries)
    shift_ms = to_ms(END) - last_ms
    tables: Tables = {}
    scenarios: dict[str, Scenario] = {}
    for entry in entries:
        if not isinstance(entry, (Samples, Described)):
            continue
        for table, rows in entry.rows.items():
            kept = tables.setdefault(table, [])
            if isinstance(entry, Described) and kept and table == "nodes":
                continue
            for row in rows:
                kept.append(
                    _row(
                        row,
                        run,
                        None if isinstance(entry, Described) else entry.ts_ms + shift_ms,
                        shift_ms,
                    )
                )
                if table == "gpus":
                    scenarios[kept[-1]["gpu_uuid"]] = SCENARIOS[entry.probe.partition(":")[2]]
    tables["gpus"] = list({row["gpu_uuid"]: row for row in tables["gpus"]}.values())
    return Recording(run, tables, scenarios)


def _row(row: Mapping[str, Any], run: Run, ts_ms: int | None, shift_ms: int) -> Row:
    made: Row = {**row, "node": run.name, "simulated": True}
    if ts_ms is not None:
        made["ts"] = from_ms(ts_ms)
    if "gpu_uuid" in made:
        made["gpu_uuid"] = f"{run.name} {made['gpu_uuid']}"
    if "started_at" in made:
        made["started_at"] = from_ms(made["started_at"] + shift_ms) - EARLIER
    return made


def past(recording: Recording) -> Iterator[Row]:
    """Minutes of the hour before, for the loops whose label says what it was."""
    for uuid, scenario in recording.scenarios.items():
        if scenario.past == "none":
            continue
        for minute in range(1, PAST_MIN):
            is_still = minute <= STILL_MIN
            still = 100.0 if scenario.past == "spun" else 0.0
            low, high = (still, still) if is_still else (60.0, 100.0)
            yield {
                "ts": END - minute * MINUTE,
                "node": recording.run.name,
                "gpu_uuid": uuid,
                "simulated": True,
                "samples": 60,
                "detail_samples": 0,
                "health_samples": 0,
                "util_percent_min": low,
                "util_percent_max": high,
                "util_percent_p95": high,
            }


Keep = Callable[[str, Row], Row | None]
"""Reduces a row of a table; None: the row is missing."""

OF_IO = frozenset({"read_bytes_total", "read_chars_total", "write_bytes_total"})
OF_DRIVER = frozenset({"ts", "node", "simulated", "gpu", "gpu_uuid", "pid", "gpu_memory_bytes", "process_type"})  # fmt: skip


def _all(table: str, row: Row) -> Row:
    return row


def _no_io(table: str, row: Row) -> Row:
    if table != "process_samples":
        return row
    return {name: value for name, value in row.items() if name not in OF_IO}


def _only_driver(table: str, row: Row) -> Row:
    if table != "process_samples":
        return row
    return {name: value for name, value in row.items() if name in OF_DRIVER}


def _no_processes(table: str, row: Row) -> Row | None:
    return None if table == "process_samples" else row


def _every_ten(table: str, row: Row) -> Row | None:
    is_slow = table in ("gpu_samples", "host_samples") and row["ts"].second % 10
    return None if is_slow else row


LOSSES: Mapping[str, Keep] = {
    "all data": _all,
    "no /proc/PID/io": _no_io,
    "driver's view only": _only_driver,
    "no process data": _no_processes,
    "every 10 s": _every_ten,
}
"""What an agent may lack: rights to read another user's I/O, a /proc that hides it (hidepid), host
pids, readings each second."""


def database_of(recordings: Iterable[Recording], keep: Keep = _all) -> MemoryDatabase:
    """The public tables with what is left of the recordings."""
    database = MemoryDatabase()
    for recording in recordings:
        for table, rows in _with_facts(recording).items():
            database.insert(table, [left for row in rows if (left := keep(table, row)) is not None])
        database.insert("gpu_1m", list(past(recording)))
    return database


def _with_facts(recording: Recording) -> Mapping[str, Sequence[Row]]:
    """Inventory with what a collector adds."""
    facts = {"catalogue_model": "H100-SXM-80GB", "usd_per_hour": USD_PER_HOUR}
    return {
        **recording.tables,
        "gpus": [{**row, **facts} for row in recording.tables["gpus"]],
        "nodes": [{**row, "agent_id": "a", "boot_id": "b"} for row in recording.tables["nodes"]],
    }
