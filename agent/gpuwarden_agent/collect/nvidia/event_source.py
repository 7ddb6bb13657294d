"""Registers for NVML's events of one GPU, and reads them from the driver.

Each GPU has its own event set, because a wait on a set fails as soon as one of its GPUs is lost. The
driver queues events after registration; they have no time.
"""

from collections.abc import Sequence
from typing import Any

from gpuwarden_agent.collect.nvidia.nvml import (
    NOT_SUPPORTED,
    TIMEOUT,
    EventSource,
    GpuEvent,
    NvmlError,
)
from gpuwarden_agent.collect.nvidia.session import NvmlPointer, call, hold

XID = 0x8
DOUBLE_BIT_ECC = 0x2
SINGLE_BIT_ECC_STORM = 0x200
DRAM_RETIREMENT = 0x400
DRAM_RETIREMENT_FAILURE = 0x800
POISON = 0x1000
FATAL_POISON = 0x2000
GPU_UNAVAILABLE = 0x4000
RECOVERY_ACTION = 0x8000

ASKED_FOR = (
    XID
    | DOUBLE_BIT_ECC
    | SINGLE_BIT_ECC_STORM
    | DRAM_RETIREMENT
    | DRAM_RETIREMENT_FAILURE
    | POISON
    | FATAL_POISON
    | GPU_UNAVAILABLE
    | RECOVERY_ACTION
)
"""Without changes of clocks and P-states, which come thousands of times a minute under load."""

WAIT_MS = 1
"""Queued events come at once. The documentation of 0 differs: in some versions it waits for ever."""
EVENTS_MAX = 200
"""Limit for one call, so that a storm of events cannot hold it; the rest stays in the driver."""
NO_INSTANCE = 0xFFFF_FFFF


def nvml_events(handle: NvmlPointer) -> EventSource | None:
    """Register for the events that the GPU supports; None where it supports none of them. Raises
    NvmlError.
    """
    try:
        supported = call("nvmlDeviceGetSupportedEventTypes", handle)
        if not supported & ASKED_FOR:
            return None
        events = hold("nvmlEventSetCreate")
        try:
            call("nvmlDeviceRegisterEvents", handle, supported & ASKED_FOR, events)
        except NvmlError:
            call("nvmlEventSetFree", events)
            raise
    except NvmlError as error:
        if error.code == NOT_SUPPORTED:
            return None
        raise
    return _NvmlEvents(events)


class _NvmlEvents:
    def __init__(self, events: NvmlPointer) -> None:
        self._events = events

    def drain(self) -> Sequence[GpuEvent]:
        taken: list[GpuEvent] = []
        while len(taken) < EVENTS_MAX:
            try:
                data = call("nvmlEventSetWait_v2", self._events, WAIT_MS)
            except NvmlError as error:
                # Return the events read so far first; the error comes again.
                if error.code == TIMEOUT or taken:
                    break
                raise
            taken.append(_event(data))
        return taken

    def close(self) -> None:
        try:
            call("nvmlEventSetFree", self._events)
        except NvmlError:
            return  # a set of an earlier generation of the library is gone


def _event(data: Any) -> GpuEvent:
    instance = None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId)
    return GpuEvent(int(data.eventType), int(data.eventData), instance)
