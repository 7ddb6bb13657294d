"""Finds the GPU of Xids that only have a PCI bus id; pure.

The driver logs a bus id. An agent that started after the GPU fell off the bus, and an imported log, do not know the GPU;
the inventory may. An unknown bus id becomes `pci-<bus id>@<node>`, so that Xids of several GPUs of a node stay
apart.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.table import place_uuid
from gpuwarden_collector.ingest.inventory import Place, place_of

Row = Mapping[str, Any]
"""A row of `gpus`."""
FindGpu = Callable[[Place, datetime], Row | None]
"""Finds the GPU at a node and PCI address at a time (naive UTC); None: unknown."""


def with_gpus(events: Any, find: FindGpu) -> Any:
    """The rows of `events`; Xids get `gpu_uuid`, and `gpu` if the inventory has it."""
    uuids = events["gpu_uuid"]
    is_placed = pc.fill_null(pc.starts_with(uuids, "pci-"), True)
    rows = pc.indices_nonzero(pc.and_(pc.equal(events["kind"], "xid"), is_placed)).to_pylist()
    if not rows:
        return events
    gpus, named = events["gpu"].to_pylist(), uuids.to_pylist()
    wanted = events.select(["ts", "node", "details"]).take(pa.array(rows, pa.int64())).to_pylist()
    for row, said in zip(rows, wanted, strict=True):
        bus_id = _bus_id(said["details"])
        if bus_id is None:
            continue
        gpu = find((said["node"], bus_id), said["ts"])
        named[row] = place_uuid(bus_id, said["node"]) if gpu is None else gpu["gpu_uuid"]
        if gpus[row] is None and gpu is not None:
            gpus[row] = gpu.get("gpu")
    for name, values in (("gpu", gpus), ("gpu_uuid", named)):
        at = events.schema.get_field_index(name)
        events = events.set_column(at, events.schema.field(at), pa.array(values, events[name].type))
    return events


def _bus_id(details: str | None) -> str | None:
    try:
        found = json.loads(details or "null")
    except (ValueError, RecursionError):
        return None
    said = found.get("pci_bus_id") if isinstance(found, dict) else None
    return said if isinstance(said, str) and said else None


def places_of(gpus: Iterable[Row]) -> dict[Place, list[Row]]:
    """Whole GPUs by node and PCI address, in the order in which they were first seen there."""
    found: dict[Place, list[Row]] = {}
    for row in gpus:
        if (place := place_of(dict(row))) is not None:
            found.setdefault(place, []).append(row)
    for rows in found.values():
        rows.sort(key=_first_seen)
    return found


def at_that_time(rows: Sequence[Row], ts: datetime) -> Row | None:
    """The last of these GPUs that was first seen by `ts`; the first GPU if `ts` is before all of them."""
    before = [row for row in rows if _first_seen(row) <= ts]
    return before[-1] if before else rows[0] if rows else None


def _first_seen(row: Row) -> datetime:
    at: datetime = row["first_seen_at"]
    return at.replace(tzinfo=None)
