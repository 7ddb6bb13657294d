"""Makes rows of our tables from the readings of other programs; pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpuwarden.schema import EVENTS, WIRE_TABLES
from gpuwarden.xids import xid_info
from gpuwarden_collector.ingest.port import Before, Cells, JoinedRow, Value
from gpuwarden_prometheus.received.identity import OWNER
from gpuwarden_prometheus.received.names import MAX, combinations, terms

BEFORE_MAX_MS = 300_000
"""Shares of time are computed from counters that are at most this far apart."""
_CPU_STATES = {"wait": "iowait", "interrupt": "irq", "softirq": "irq"}
"""States of a CPU's time by the names of node_exporter and OpenTelemetry that differ from ours."""
_PRESSURE = tuple(
    f"psi_{resource}_{extent}" for resource in ("cpu", "io", "memory") for extent in ("some", "full")
)  # fmt: skip
_PART_FACTS = ("mig_instance", "parent_gpu_uuid", "vendor")
_GPU_FACTS = ("model", "vendor", "serial", "pci_bus_id", "vbios_version", "compute_capability")  # fmt: skip


class SeriesRowMaker:
    """A `RowMaker`."""

    def made(
        self, joined: JoinedRow, before: Before | None
    ) -> Iterator[tuple[str, Mapping[str, Value]]]:
        """The rows: the sample, and the facts in its labels about GPU, node and owner."""
        facts = joined.facts
        node = facts.get("nodename") or joined.source
        same: dict[str, Value] = {"ts": joined.ts_ms, "node": node, "simulated": _flag(facts)}
        values = _values(joined.table, joined.cells)
        if joined.table == "host_samples":
            values = _host_values(joined, before) | values
        known = WIRE_TABLES[joined.table].names
        own: dict[str, Value] = {name: text for name, text in facts.items() if name in known}
        readings: dict[str, Value] = {
            name: value for name, value in values.items() if name in known
        }
        if readings or joined.table == "process_samples":
            yield joined.table, {**own, **readings, **same}
        if "gpu_uuid" in facts:
            yield from _gpu_rows(joined, same)
        elif joined.table == "host_samples":
            total = values.get("memory_total_bytes")
            yield "nodes", {**_chosen(facts, "kernel", "os"), "memory_total_bytes": total, **same}
        if event := _xid_event(joined, same, before):
            yield EVENTS.name, event

    def carried(self, joined: JoinedRow) -> Cells:
        """Counters of which shares of time are computed, and the last Xid."""
        if joined.table == "host_samples":
            kept = ("cpu.", "disk_busy#", *(f"{name}_seconds_total" for name in _PRESSURE))
            return {n: v for n, v in joined.cells.items() if n.startswith(kept)}
        return {n: v for n, v in joined.cells.items() if n == "xid"}


def _gpu_rows(
    joined: JoinedRow, same: Mapping[str, Value]
) -> Iterator[tuple[str, Mapping[str, Value]]]:
    facts = joined.facts
    uuid, index = facts["gpu_uuid"], facts.get("gpu")
    total = joined.cells.get("memory_total_bytes")
    inventory = {"gpu_uuid": uuid, "gpu": index, "memory_total_bytes": total, **same}
    # Board and model of a MIG device are its GPU's.
    names = _PART_FACTS if "mig_instance" in facts else _GPU_FACTS
    yield "gpus", {**_chosen(facts, *names), **inventory}
    yield "nodes", {**_chosen(facts, "driver_version", "cuda_version"), **same}
    if joined.table != "gpu_samples":
        return
    owners = {name.removeprefix(OWNER) for name in facts if name.startswith(OWNER)}
    if (job := joined.cells.get("slurm_job", 0.0)) > 0:  # of Jobstats, whose value it is
        owners.add(json.dumps(["slurm", f"{job:.0f}", "", ""]))
    for name in sorted(owners):
        owner = _allocation(*json.loads(name))
        yield "allocation_samples", {"gpu_uuid": uuid, "gpu": index, **owner, **same}


def _allocation(scheduler: str, first: str, second: str, third: str) -> dict[str, Value]:
    if scheduler == "slurm":
        return {
            "scheduler": scheduler,
            "job": first,
            "username": second or None,
        }
    return {
        "scheduler": scheduler,
        "job": f"{first}/{second}",
        "namespace": first,
        "pod": f"{first}/{second}",
        "container": third or None,
    }


def _values(table: str, cells: Cells) -> dict[str, Value]:
    """Readings by column: of several ranks the lowest, of several series their sum or greatest."""
    ranked: dict[str, tuple[int, float]] = {}
    several: dict[str, dict[str, float]] = {}
    for cell, value in cells.items():
        name, _, rank = cell.partition("~")
        column, is_part, part = name.partition("#")
        if is_part:
            several.setdefault(column, {})[part] = value
        elif column not in ranked or int(rank or 0) < ranked[column][0]:
            ranked[column] = int(rank or 0), value
    found: dict[str, Value] = {column: value for column, (_, value) in ranked.items()}
    for column, parts in several.items():
        wanted = terms().get((table, column))
        if wanted is not None and not any(one <= parts.keys() for one in wanted):
            continue
        is_max = combinations().get((table, column)) == MAX
        # In an order of their own: the sum of floats depends on it.
        ordered = [parts[part] for part in sorted(parts)]
        found[column] = max(ordered) if is_max else sum(ordered)
    return found


def _host_values(joined: JoinedRow, before: Before | None) -> dict[str, Value]:
    """Values that follow from others: memory in use, and shares of the time since the row before."""
    found: dict[str, Value] = {}
    cells = joined.cells
    total, available = cells.get("memory_total_bytes"), cells.get("memory_available_bytes")
    if total is not None and available is not None and total >= available:
        found["memory_used_bytes"] = total - available
    if before is None or not 0 < joined.ts_ms - before.ts_ms <= BEFORE_MAX_MS:
        return found
    seconds = (joined.ts_ms - before.ts_ms) / 1000
    grown = {n: v - before.cells[n] for n, v in cells.items() if n in before.cells}
    found |= _cpu_shares(grown)
    for name in _PRESSURE:
        found |= _share(f"{name}_percent", grown.get(f"{name}_seconds_total"), seconds)
    busy = [grown[name] for name in sorted(grown) if name.startswith("disk_busy#")]
    return found | _share("disk_busy_percent", max(busy, default=None), seconds)


def _cpu_shares(grown: Mapping[str, float]) -> dict[str, Value]:
    times: dict[str, float] = {}
    for name in sorted(grown):
        if name.startswith("cpu."):
            state = name.removeprefix("cpu.").partition("#")[0]
            state = _CPU_STATES.get(state, state)
            times[state] = times.get(state, 0.0) + grown[name]
    total = sum(times.values())
    if total <= 0 or min(times.values()) < 0 or "idle" not in times:
        return {}  # a counter was reset, or no time has passed
    found: dict[str, Value] = {f"cpu_{n}_percent": 100 * t / total for n, t in times.items()}
    busy = total - times["idle"] - times.get("iowait", 0.0)
    return {**found, "cpu_util_percent": min(100.0, max(0.0, 100 * busy / total))}


def _share(name: str, grown: float | None, seconds: float) -> dict[str, Value]:
    if grown is None or grown < 0:
        return {}
    return {name: min(100.0, 100 * grown / seconds)}


def _xid_event(
    joined: JoinedRow, same: Mapping[str, Value], before: Before | None
) -> Mapping[str, Value] | None:
    """An event when the last Xid of a GPU has changed; which one was there at the first row is not known to be new."""
    code = int(joined.cells.get("xid", 0))
    if code <= 0 or before is None or "xid" not in before.cells:
        return None
    if code == int(before.cells["xid"]) or before.ts_ms >= joined.ts_ms:
        return None
    info = xid_info(code)
    gpu = joined.facts.get("gpu")
    where = f"GPU {gpu}" if gpu is not None else f"GPU {joined.facts['gpu_uuid']}"
    details: dict[str, Any] = {"xid": code, "action": info.action, "mnemonic": info.mnemonic}
    details |= {"pci_bus_id": joined.facts.get("pci_bus_id"), "source": "dcgm"}
    return {
        "kind": "xid",
        "severity": info.severity,
        "message": f"Xid {code} on {where}: {info.meaning}; {info.remedy}",
        "details": json.dumps({n: v for n, v in details.items() if v is not None}, sort_keys=True),
        "gpu": gpu,
        "gpu_uuid": joined.facts["gpu_uuid"],
        **same,
    }


def _chosen(facts: Mapping[str, str], *names: str) -> dict[str, Value]:
    return {name: facts[name] for name in names if name in facts}


def _flag(facts: Mapping[str, str]) -> float:
    return 1.0 if facts.get("simulated") == "true" else 0.0
