"""Asks a device, learns what it cannot answer, counts what failed, and tells the end from a gap.

Three kinds of bad answer are told apart. A reading that the device does not have is absent and not
asked for again for ten minutes: some calls are slow to say no. A reading that failed is absent and
counted. An answer that means that the whole device or driver is out of order ends the read with a
ProbeError, because every further call would fail too, or take long to.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from gpuwarden.clock import Clock
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.probes import nvml_driver as nvml
from gpuwarden_agent.probes.nvml_driver import NvmlError

log = logging.getLogger(__name__)
T = TypeVar("T")

LEARNED_FOR_S = 600.0
"""How long a reading that the device does not have is not asked for again."""

_NOT_THERE = frozenset(
    {
        nvml.NOT_SUPPORTED,
        nvml.FUNCTION_NOT_FOUND,
        nvml.ARGUMENT_VERSION_MISMATCH,
        nvml.DEPRECATED,
    }
)

_THE_END: dict[int, tuple[str, str]] = {
    nvml.GPU_IS_LOST: ("gpu_lost", "is lost: it fell off the bus; drain the node and reboot it"),
    nvml.GPU_NOT_FOUND: ("gpu_lost", "is gone: the driver no longer lists it"),
    nvml.RESET_REQUIRED: (
        "gpu_reset_required",
        "must be reset: drain it and nvidia-smi --gpu-reset",
    ),
    nvml.DRIVER_NOT_LOADED: ("driver_not_loaded", "has no driver: load the nvidia kernel module"),
    nvml.UNINITIALIZED: ("driver_not_loaded", "has no driver any more: restart the agent"),
    nvml.LIB_RM_VERSION_MISMATCH: (
        "driver_mismatch",
        "cannot be read: library and kernel module of the driver differ in version; reboot",
    ),
    nvml.TIMEOUT: ("driver_timeout", "did not answer its driver in time"),
}
"""Return code to kind of event, and what to say of the GPU."""


def probe_error(error: NvmlError, gpu: int) -> ProbeError:
    """What a return code means for a whole GPU."""
    kind, words = _THE_END.get(error.code, ("probe_failed", "cannot be read"))
    return ProbeError(f"GPU {gpu} {words} ({error})", kind=kind)


class Asker:
    """What one device was found to have. Not thread-safe: one thread, one asker."""

    def __init__(self, gpu: int, clock: Clock) -> None:
        self.failed: Counter[str] = Counter()
        """Failed readings by "CALL: RETURN CODE"."""
        self._gpu = gpu
        self._clock = clock
        self._not_there_until: dict[object, float] = {}

    def ask(self, *calls: Callable[[], T]) -> T | None:
        """The first answer of calls that give the same reading, newest first; None: absent.

        Raises ProbeError when the device or the driver is out of order.
        """
        for call in calls:
            name = call.__name__
            if not self.is_there(name):
                continue
            try:
                return call()
            except NvmlError as error:
                self.note(error, name)
        return None

    def is_there(self, reading: object) -> bool:
        """False for ten minutes after the device said that it does not have the reading."""
        return self._clock.monotonic() >= self._not_there_until.get(reading, -float("inf"))

    def note(self, error: NvmlError, reading: object) -> None:
        """Learn from a return code. Raises ProbeError when it is the end."""
        if error.code in _THE_END:
            raise probe_error(error, self._gpu) from error
        if error.code in _NOT_THERE:
            self._not_there_until[reading] = self._clock.monotonic() + LEARNED_FOR_S
            return
        self.failed[str(error)] += 1
        if self.failed[str(error)] == 1:
            log.warning("reading failed", extra={"gpu": self._gpu, "error": str(error)})

    def forget(self) -> None:
        """The device is not what it was: ask for everything again."""
        self._not_there_until.clear()
