"""Counts the Xids that came since the agent's start, and which was the last of each GPU."""

import json
from collections import Counter
from dataclasses import dataclass

from gpuwarden_agent.probe import Row, Value

KINDS_MAX = 512
"""GPUs times codes; a node that brings more has other worries."""


@dataclass(frozen=True, slots=True)
class XidKind:
    """What Xids are counted by."""

    node: Value
    gpu: Value
    gpu_uuid: Value
    """None where it is not known which GPU has the bus id."""
    pci_bus_id: Value
    """Only where the UUID is not known."""
    simulated: Value
    code: int | None
    """None where the event does not tell."""


class XidCounts:
    """Xids by GPU and code. `take` is the only way in."""

    def __init__(self) -> None:
        self.by_kind: Counter[XidKind] = Counter()
        self.last: dict[Value, XidKind] = {}
        """The last one with a code of each GPU, by UUID."""

    def take(self, row: Row) -> bool:
        """Count an `events` row of kind xid; False: there are too many kinds of them already."""
        kind = _kind(row)
        if kind not in self.by_kind and len(self.by_kind) >= KINDS_MAX:
            return False
        self.by_kind[kind] += 1
        if kind.code is not None and kind.gpu_uuid is not None:
            self.last[kind.gpu_uuid] = kind
        return True


def _kind(row: Row) -> XidKind:
    details = _details(row)
    code, gpu_uuid = details.get("xid"), row.get("gpu_uuid")
    return XidKind(
        node=row["node"],
        gpu=row.get("gpu"),
        gpu_uuid=gpu_uuid,
        pci_bus_id=details.get("pci_bus_id") if gpu_uuid is None else None,
        simulated=row.get("simulated"),
        code=code if type(code) is int else None,
    )


def _details(row: Row) -> dict[str, Value]:
    """What there is in the details, a JSON object; of its values the scalars."""
    try:
        details = json.loads(str(row.get("details")))
    except ValueError:
        return {}
    if not isinstance(details, dict):
        return {}
    return {name: v for name, v in details.items() if not isinstance(v, dict | list)}
