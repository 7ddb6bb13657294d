"""Shares readings between the probes of a node.

Each probe has its own thread. A reading has one writer, which replaces it as a whole, so that readers
need no lock. Entries expire after 35 s, in case their writer hangs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT_S = 35.0
"""How long a reading is valid: three readings may fail."""


@dataclass(frozen=True, slots=True)
class SharedReading(Generic[T]):
    """A value for each GPU or MIG device, by UUID, and when it was read."""

    at_s: float
    by_gpu: Mapping[str, T]


class SharedState:
    """Readings that probes share. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.processes: SharedReading[int] | None = None
        """How many processes are on a GPU; written by the probe of processes."""
        self.pods: SharedReading[frozenset[str]] | None = None
        """Which pods ("namespace/pod") have a GPU; written by the probe of allocations."""

    def processes_on(self, gpu_uuid: str, now_s: float) -> int | None:
        """Number of processes on a GPU; None: unknown now."""
        return _current(self.processes, gpu_uuid, now_s)

    def only_pod_on(self, gpu_uuid: str, now_s: float) -> str | None:
        """The pod that has the GPU; None: no pod, several pods, or unknown."""
        pods = _current(self.pods, gpu_uuid, now_s)
        return next(iter(pods)) if pods and len(pods) == 1 else None


def _current(shared: SharedReading[T] | None, gpu_uuid: str, now_s: float) -> T | None:
    if shared is None or now_s - shared.at_s > KEPT_S:
        return None
    return shared.by_gpu.get(gpu_uuid)
