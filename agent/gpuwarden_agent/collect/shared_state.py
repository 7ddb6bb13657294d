"""Shares what one probe of a node has read with the others. Entries expire.

Each probe has a thread of its own. What was seen is replaced as a whole by its only writer, so that
readers need no lock, and counts for a while only: a probe that hangs must not speak for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_S = 35.0
"""How long what was seen counts: three looks may fail."""


@dataclass(frozen=True, slots=True)
class SharedReading(Generic[T]):
    """What a look found of each GPU or MIG device, by UUID."""

    at_s: float
    by_gpu: Mapping[str, T]


class SharedState:
    """The board that probes write on. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.processes: SharedReading[int] | None = None
        """How many processes are on a GPU; written by the probe of processes."""
        self.pods: SharedReading[frozenset[str]] | None = None
        """Which pods ("namespace/pod") have a GPU; written by the probe of allocations."""

    def processes_on(self, gpu_uuid: str, now_s: float) -> int | None:
        """None: not known now."""
        return _now(self.processes, gpu_uuid, now_s)

    def only_pod_on(self, gpu_uuid: str, now_s: float) -> str | None:
        """The pod that has the GPU; None where none has it, several share it, or nobody knows."""
        pods = _now(self.pods, gpu_uuid, now_s)
        return next(iter(pods)) if pods and len(pods) == 1 else None


def _now(seen: SharedReading[T] | None, gpu_uuid: str, now_s: float) -> T | None:
    if seen is None or now_s - seen.at_s > KEPT_S:
        return None
    return seen.by_gpu.get(gpu_uuid)
