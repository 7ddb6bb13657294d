"""The real probes: GPUs through the driver, their processes, and the host itself.

`discover` is the only thing that the rest of the agent needs from here.
"""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuwarden.clock import Clock, SystemClock
from gpuwarden.life import StartError
from gpuwarden_agent.probe import Probe, Value
from gpuwarden_agent.probes.amd import SYS, AmdGpuProbe, Card, driver_version, find_cards
from gpuwarden_agent.probes.gpu import GpuProbe
from gpuwarden_agent.probes.host import HostProbe
from gpuwarden_agent.probes.kmsg import kmsg_probe
from gpuwarden_agent.probes.nvml_driver import (
    LIBRARY_NOT_FOUND,
    Driver,
    NvmlError,
    NvmlUnavailable,
    open_driver,
)
from gpuwarden_agent.probes.processes import ProcessProbe

DRIVER_LIMIT_S = 60.0
"""Eight GPUs without persistence mode take half of it to wake up."""

NO_ANSWER = -1
"""Code of an NvmlUnavailable that no NVML call gave."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia")

log = logging.getLogger(__name__)

__all__ = ["Discovery", "discover"]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What there is to read on this host."""

    probes: Sequence[Probe]
    message: str
    """One line for people: what is watched, or why no GPU is."""
    gpus: int
    """GPUs that the drivers count; a dead one is among them."""
    backend: str
    """Column `backend` of `nodes`: "nvml", "amdgpu", "amdgpu+nvml" or "none"."""
    bus_ids: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Index and UUID of NVIDIA GPUs by PCI bus id, as their probes learn them."""

    def all_probes(
        self, state_dir: Path, clock: Clock | None = None, nvidia: Path = NVIDIA_DRIVER
    ) -> list[Probe]:
        """The probes, and where NVIDIA's kernel module is loaded the kernel's log, for Xids; its
        position is kept in `state_dir`.
        """
        nvidia_gpus = sum(isinstance(probe, GpuProbe) for probe in self.probes)
        if not nvidia_gpus and not nvidia.exists():
            return list(self.probes)
        kmsg = kmsg_probe(state_dir, clock or SystemClock(), self.bus_ids, gpu_count=nvidia_gpus)
        return [*self.probes, *([kmsg] if kmsg else [])]


@dataclass(frozen=True, slots=True)
class _Amd:
    """AMD GPUs of this host."""

    cards: Sequence[Card]
    version: str | None
    node: str

    def probes(self, first: int, clock: Clock) -> list[Probe]:
        """One for each GPU; their indices begin at `first`."""
        return [AmdGpuProbe(card, first + n, clock, self.node) for n, card in enumerate(self.cards)]

    @property
    def counted(self) -> str:
        return f"{_gpus(len(self.cards), 'AMD ')}, amdgpu driver {self.version or 'of the kernel'}"


def discover(
    backend: str,
    clock: Clock | None = None,
    open_driver: Callable[[], Driver | NvmlUnavailable] = open_driver,
    limit_s: float = DRIVER_LIMIT_S,
    *,
    node: str | None = None,
    sys: Path = SYS,
) -> Discovery:
    """The probes of this host.

    `backend` "auto": NVIDIA's GPUs, then AMD's; host metrics alone where there is no usable driver.
    "nvml": NVIDIA's GPUs only, and no usable driver is a StartError; "none": host metrics alone. No
    GPU is opened here, each is by its probe's first call; but loading NVIDIA's driver can take
    seconds. Blocks for at most `limit_s`. `node` (default: the hostname) is part of the identity of
    AMD GPUs without a unique id.
    """
    clock = clock or SystemClock()
    if backend == "none":
        return Discovery((HostProbe(clock),), "host metrics only", 0, "none")
    cards = find_cards(sys) if backend == "auto" else []
    version = driver_version(sys) if cards else None
    amd = _Amd(cards, version, node or socket.gethostname())
    found = _within(limit_s, lambda: _asked(open_driver, clock, amd))
    if isinstance(found, Discovery):
        return found
    if backend == "nvml":
        raise StartError(f"backend nvml: {found.reason}")
    if cards:
        return _amd_alone(amd, clock, found)
    return Discovery((HostProbe(clock),), _host_only(found), 0, "none")


def _asked(
    open_driver: Callable[[], Driver | NvmlUnavailable], clock: Clock, amd: _Amd
) -> Discovery | NvmlUnavailable:
    driver = open_driver()
    if isinstance(driver, NvmlUnavailable):
        return driver
    try:
        return _with_driver(driver, clock, amd)
    except NvmlError as error:
        return NvmlUnavailable(f"its GPUs cannot be counted: {error}", error.code)


def _within(
    limit_s: float, ask: Callable[[], Discovery | NvmlUnavailable]
) -> Discovery | NvmlUnavailable:
    """What `ask` finds; a driver that does not answer in time is left to a daemon thread."""
    answers: queue.SimpleQueue[Discovery | NvmlUnavailable | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
            answers.put(error)

    threading.Thread(target=run, name="open driver", daemon=True).start()
    try:
        answer = answers.get(timeout=limit_s)
    except queue.Empty:
        return NvmlUnavailable(f"it has not answered for {limit_s:g} s", NO_ANSWER)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _with_driver(driver: Driver, clock: Clock, amd: _Amd) -> Discovery:
    devices = driver.devices()
    if not devices and amd.cards:
        return _amd_alone(amd, clock, None)
    gpus = len(devices) + len(amd.cards)
    node: dict[str, Value] = {"gpus": gpus}
    version = _version(driver.driver_version)
    if version:
        node["driver_version"] = version
    if cuda := _version(driver.cuda_version):
        node["cuda_version"] = cuda
    host = HostProbe(clock, node)
    named = f"NVIDIA driver {version or 'of unknown version'}"
    if not devices:
        return Discovery((host,), f"{named} here, but no GPU: host metrics only", 0, "nvml")
    bus_ids: dict[str, tuple[int, str]] = {}
    probes: list[Probe] = [GpuProbe(device, clock, bus_ids=bus_ids) for device in devices]
    probes += amd.probes(1 + max(device.index for device in devices), clock)
    message = f"{_gpus(len(devices))}, {named}"
    if amd.cards:
        message = f"{message}; {amd.counted}"
    backend = "amdgpu+nvml" if amd.cards else "nvml"
    return Discovery((*probes, ProcessProbe(devices, clock), host), message, gpus, backend, bus_ids)


def _amd_alone(amd: _Amd, clock: Clock, nvidia: NvmlUnavailable | None) -> Discovery:
    """`nvidia`: why there is no driver of NVIDIA's; None: there is one, without a GPU."""
    node: dict[str, Value] = {"gpus": len(amd.cards), "driver_version": amd.version}
    known = {name: value for name, value in node.items() if value is not None}
    message = amd.counted
    # No driver of NVIDIA's is nothing to tell on such a host; one that is broken is.
    if nvidia is not None and nvidia.code != LIBRARY_NOT_FOUND:
        message = f"{message}; NVIDIA driver not usable ({nvidia.reason})"
    probes = (*amd.probes(0, clock), HostProbe(clock, known))
    return Discovery(probes, message, len(amd.cards), "amdgpu")


def _gpus(count: int, vendor: str = "") -> str:
    return f"{count} {vendor}GPU{'s' if count > 1 else ''}"


def _version(ask: Callable[[], str]) -> str | None:
    try:
        return ask()
    except NvmlError as error:
        log.warning("driver does not tell a version", extra={"error": str(error)})
        return None


def _host_only(driver: NvmlUnavailable) -> str:
    if driver.code == LIBRARY_NOT_FOUND:
        return "no NVIDIA driver here (libnvidia-ml.so.1 not found): host metrics only"
    return f"NVIDIA driver not usable ({driver.reason}): host metrics only"
