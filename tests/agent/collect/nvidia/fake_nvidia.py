"""A driver that changes under the agent: devices, events, and whether it works at all."""

from collections.abc import Sequence
from typing import Any

from tests.agent.collect.nvidia.fake_driver import Fails, FakeDevice

from gpuwarden_agent.collect.nvidia.nvml import GpuEvent, NvmlError, NvmlUnavailable


class FakeEvents:
    """What a driver has queued for one GPU; a `Fails` in the queue is raised once."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.is_closed = False

    def drain(self) -> Sequence[GpuEvent]:
        assert not self.is_closed
        taken, self.queue = self.queue, []
        for found in taken:
            if isinstance(found, Fails):
                raise NvmlError(found.code, "nvmlEventSetWait_v2")
        return taken

    def close(self) -> None:
        self.is_closed = True


class FakeDriver:
    """A driver with these devices, which a test may change.

    `events` has the newest event set of each GPU that was registered, `registering` what to answer
    instead; `has_ended_now` and `unavailable` are what the driver reports about itself.
    """

    def __init__(self, *devices: FakeDevice, version: Any = "590.48.01") -> None:
        self.listed: Sequence[FakeDevice] = devices
        self.version = version
        self.events: dict[FakeDevice, FakeEvents] = {}
        self.registering: dict[FakeDevice, Any] = {}
        self.has_ended_now = False
        self.unavailable: NvmlUnavailable | None = None
        self.renewals = 0

    def driver_version(self) -> str:
        if isinstance(self.version, Fails):
            raise NvmlError(self.version.code, "nvmlSystemGetDriverVersion")
        return str(self.version)

    def cuda_version(self) -> str:
        return "13.1"

    def devices(self) -> Sequence[Any]:
        return self.listed

    def events_of(self, device: Any) -> FakeEvents | None:
        assert device.lock.locked()
        answer = self.registering.get(device)
        if isinstance(answer, Fails):
            raise NvmlError(answer.code, "nvmlDeviceRegisterEvents")
        if device in self.registering:
            return None
        self.events[device] = FakeEvents()
        return self.events[device]

    def has_ended(self) -> bool:
        return self.has_ended_now

    def renew(self) -> NvmlUnavailable | None:
        self.renewals += 1
        if self.unavailable is None:
            self.has_ended_now = False
        return self.unavailable
