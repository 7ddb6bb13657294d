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
    selected = events.select(["ts", "node", "details"]).take(pa.array(rows, pa.int64())).to_pylist()
    for row, event in zip(rows, selected, strict=True):
        bus_id = _bus_id(event["details"])
        if bus_id is None:
            continue
        gpu = find((event["node"], bus_id), event["ts"])
        named[row] = place_uuid(bus_id, event["node"]) if gpu is None else gpu["gpu_uuid"]
        if gpus[row] is None and gpu is not None:
            gpus[row] = gpu.get("gpu")
    for name, values in (("gpu", gpus), ("gpu_uuid", named)):
        at = events.schema.get_field_index(name)
        events = events.set_column(at, events.schema.field(at), pa.array(values, events[name].type))
    return events


def _bus_id(details: str | None) -> str | None:
    try:
        document = json.loads(details or "null")
    except (ValueError, RecursionError):
        return None
    pci_bus_id = document.get("pci_bus_id") if isinstance(document, dict) else None
    return pci_bus_id if isinstance(pci_bus_id, str) and pci_bus_id else None


def places_of(gpus: Iterable[Row]) -> dict[Place, list[Row]]:
    """Whole GPUs by node and PCI address, in the order in which they were first seen there."""
    by_place: dict[Place, list[Row]] = {}
    for row in gpus:
        if (place := place_of(dict(row))) is not None:
            by_place.setdefault(place, []).append(row)
    for rows in by_place.values():
        rows.sort(key=_first_seen)
    return by_place


def at_that_time(rows: Sequence[Row], ts: datetime) -> Row | None:
    """The last of these GPUs that was first seen by `ts`; the first GPU if `ts` is before all of them."""
    before = [row for row in rows if _first_seen(row) <= ts]
    return before[-1] if before else rows[0] if rows else None


def _first_seen(row: Row) -> datetime:
    at: datetime = row["first_seen_at"]
    return at.replace(tzinfo=None)
