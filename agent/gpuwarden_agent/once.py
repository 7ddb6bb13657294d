"""Reads every probe once, for `gpuwarden agent once`.

Every probe describes itself and is read twice, a second apart, because rates need two readings. All
run at the same time, each on its own thread, so that a probe that hangs loses only its own rows.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from gpuwarden.clock import Clock, to_ms
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.probe import Probe, ProbeError, Reading, Row
from gpuwarden_agent.queue.rows import impossible_columns

T = TypeVar("T")

PROBE_LIMIT_S = 5.0
"""Time limit for a call of a probe; after it a problem is reported instead of rows."""

BETWEEN_READS_S = 1.0

INVENTORY = ("nodes", "gpus")


@runtime_checkable
class CountsFailures(Protocol):
    """A probe that counts the readings that failed while others succeeded, by reason."""

    @property
    def failed(self) -> Mapping[str, int]:
        """Number of failures by reason."""
        ...


@dataclass(frozen=True, slots=True)
class Once:
    """Rows by table, in the tables' column order, and a line for each failure."""

    tables: dict[str, list[Row]]
    problems: list[str]


def read_once(
    probes: Sequence[Probe],
    clock: Clock,
    *,
    node: str | None = None,
    limit_s: float = PROBE_LIMIT_S,
    between_s: float = BETWEEN_READS_S,
) -> Once:
    """Return inventory and the second of two samples of every probe.

    Rows get ts, node (default: the hostname) and simulated; absent cells are removed. A probe that fails, or does not answer within `limit_s`, becomes a problem and no error.
    Blocks for up to 3 x `limit_s` + `between_s`.
    """
    problems: list[str] = []
    described = _readings(probes, lambda p: p.describe(), limit_s, problems)
    first_ms = to_ms(clock.now())
    looked = _readings([p for p, _ in described], lambda p: p.read(first_ms), limit_s, problems)
    time.sleep(between_s)
    ts_ms = to_ms(clock.now())
    read = _readings([p for p, _ in looked], lambda p: p.read(ts_ms), limit_s, problems)
    tables: dict[str, list[Row]] = {}
    for probe, _ in read:
        if isinstance(probe, CountsFailures):
            problems += [f"{probe.name}: {reason}" for reason in probe.failed]
    for probe, reading in [*described, *read]:
        stamp: Row = {"node": node or socket.gethostname(), "simulated": probe.simulated}
        for table, rows in reading.items():
            time_of = {} if table in INVENTORY else {"ts": ts_ms}
            tables.setdefault(table, []).extend(time_of | stamp | row for row in rows)
    for table in tables.keys() - set(INVENTORY):
        for row in tables[table]:
            _leave_out_impossible(table, row, problems)
    if "nodes" in tables:
        tables["nodes"] = [_merged(tables["nodes"])]
    return Once(_ordered(tables), problems)


def call_all(
    probes: Sequence[Probe], call: Callable[[Probe], T], limit_s: float
) -> dict[str, T | ProbeError]:
    """Call all probes at the same time. Returns the results by name, without those of probes that do
    not answer within `limit_s`.
    """
    results: dict[str, T | ProbeError] = {}

    def run(probe: Probe) -> None:
        try:
            results[probe.name] = call(probe)
        except ProbeError as error:
            results[probe.name] = error
        except Exception as error:  # noqa: BLE001  one probe's fault must not hide the others
            results[probe.name] = ProbeError(f"{type(error).__name__}: {error}")

    # Daemon threads: a call that never returns must not block the end of the command.
    threads = [threading.Thread(target=run, args=(probe,), daemon=True) for probe in probes]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(results)


def _readings(
    probes: Sequence[Probe],
    call: Callable[[Probe], Reading],
    limit_s: float,
    problems: list[str],
) -> list[tuple[Probe, Reading]]:
    """Readings of the probes that gave one; adds the failures of the others to `problems`."""
    done = call_all(probes, call, limit_s)
    readings: list[tuple[Probe, Reading]] = []
    for probe in probes:
        match done.get(probe.name):
            case None:
                problems.append(f"{probe.name}: no answer within {limit_s:g} s")
            case ProbeError() as error:
                problems.append(f"{probe.name}: {error}")
            case reading:
                readings.append((probe, reading))
    return readings


def _leave_out_impossible(table: str, row: Row, problems: list[str]) -> None:
    """Remove values outside the limits, as the sampler does."""
    problems += [
        f"{table}.{name} = {row.pop(name)} cannot be true: left out"
        for name in impossible_columns(table, row)
    ]


def _merged(rows: Sequence[Row]) -> Row:
    merged: Row = {}
    for row in rows:
        merged |= row
    return merged


def _ordered(tables: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Inventory first, and cells in the order of the schema."""
    names = [*INVENTORY, *(name for name in WIRE_TABLES if name not in INVENTORY)]
    return {
        name: [_in_order(WIRE_TABLES[name].names, row) for row in tables[name]]
        for name in names
        if name in tables
    }


def _in_order(columns: Sequence[str], row: Row) -> Row:
    ordered = {column: row[column] for column in columns if row.get(column) is not None}
    return ordered | {column: value for column, value in row.items() if column not in columns}
