"""Xids that name a PCI bus id alone get the GPU that the inventory has there, or the place."""

import json
from datetime import timedelta
from typing import Any

from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch, Known, apply, plan
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.prices import PriceBook

DAY = timedelta(days=1)
BUS = "0000:3b:00.0"


class Told:
    """Batches one after another; the events of each as they are stored."""

    def __init__(self, wire: Any) -> None:
        self.wire, self.known, self.now, self._sequence = wire, Known(), wire.now, 0

    def __call__(self, *, is_import: bool = False, **tables: list[dict[str, Any]]) -> list[Any]:
        self._sequence += 1
        stamped = {
            name: self.wire.table(
                name, [{"ts": self.now, "node": "n1", "simulated": False} | row for row in rows]
            )
            for name, rows in tables.items()
        }
        batch_id = BatchId("a", "b", self._sequence, is_import=is_import)
        made = plan(self.known, [Batch(batch_id, Decoded.of(stamped, 9))], PriceBook(), self.now)
        apply(self.known, made)
        events = made.changes.appended.get("events")
        return [(row["gpu"], row["gpu_uuid"]) for row in events.to_pylist()] if events else []


def xid(bus_id: str, **more: Any) -> dict[str, Any]:
    details = json.dumps({"xid": 79, "pci_bus_id": bus_id})
    return {"kind": "xid", "severity": "critical", "message": "Xid 79", "details": details} | more


def gpu(uuid: str, bus_id: str = BUS, index: int = 3, node: str = "n1") -> dict[str, Any]:
    return {"node": node, "gpu_uuid": uuid, "gpu": index, "pci_bus_id": bus_id}


def test_each_xid_has_the_gpu_of_its_place_or_the_place_itself(wire: Any) -> None:
    told = Told(wire)
    events = [
        xid(BUS),
        xid("0000:5e:00.0"),
        xid("0000:5e:00.0", gpu_uuid="pci-0000:5e:00.0@n1"),
        xid(BUS, gpu_uuid="GPU-z", gpu=7),
        xid("", details="{"),
        {"kind": "sxid", "severity": "warning", "message": "m", "details": f'{{"pci_bus_id": "{BUS}"}}'},
    ]  # fmt: skip
    place = (None, "pci-0000:5e:00.0@n1")
    rest = [(7, "GPU-z"), (None, None), (None, None)]
    assert told(events=events) == [(None, f"pci-{BUS}@n1"), place, place, *rest]
    # The same batch may bring the inventory, and another node's board is another's.
    both = [gpu("GPU-a"), gpu("GPU-b", "0000:5e:00.0", node="n2")]
    assert told(gpus=both, events=events) == [(3, "GPU-a"), place, place, *rest]


def test_a_log_of_last_week_is_of_the_board_that_was_there_then(wire: Any) -> None:
    told = Told(wire)
    told(gpus=[gpu("GPU-old")])
    told.now += 10 * DAY
    # What comes with the new board is of the new board, though it is older than the first word of it.
    xids = [xid(BUS, ts=told.now - timedelta(minutes=1))]
    assert told(gpus=[gpu("GPU-new")], events=xids) == [(3, "GPU-new")]
    told.now += DAY
    assert told(events=[xid(BUS)]) == [(3, "GPU-new")]
    log = [xid(BUS, ts=wire.now + days * DAY) for days in (-5, 5, 10.5)]
    found = told(is_import=True, events=log)
    assert [uuid for _, uuid in found] == ["GPU-old", "GPU-old", "GPU-new"]
