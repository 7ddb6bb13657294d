"""Registers for NVML's events of one GPU, and takes them from the driver.

Each GPU has an event set of its own: waiting on a set fails as soon as one of its GPUs is lost. The
driver queues events from registration on, each with the data of its own; there is no time in them.
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
"""Not changes of clocks and P-states: there are thousands a minute under load."""

WAIT_MS = 1
"""What is queued comes at once. Documentation of 0 differs: some has it as waiting without end."""
EVENTS_MAX = 200
"""What one call takes, so that a storm cannot hold it; the rest stays in the driver."""
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
                # What was taken is told first; an error comes again.
                if error.code == TIMEOUT or taken:
                    break
                raise
            taken.append(_event(data))
        return taken

    def close(self) -> None:
        try:
            call("nvmlEventSetFree", self._events)
        except NvmlError:
            return  # a set of an earlier life of the library went with it


def _event(data: Any) -> GpuEvent:
    instance = None if data.gpuInstanceId == NO_INSTANCE else int(data.gpuInstanceId)
    return GpuEvent(int(data.eventType), int(data.eventData), instance)
