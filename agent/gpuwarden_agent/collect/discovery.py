"""Finds the devices of this host and makes its probes: GPUs, their processes, and the host itself."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import Clock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.amd.gpu import SYS, AmdGpuProbe, Card, driver_version, find_cards
from gpuwarden_agent.collect.amd.processes import amd_process_probe
from gpuwarden_agent.collect.host.infiniband import infiniband_probe
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.collect.nvidia.device import open_driver
from gpuwarden_agent.collect.nvidia.discovery import MODULE, Makers, NvidiaHost, Signs, read_signs
from gpuwarden_agent.collect.nvidia.events import DriverState, NvmlProbe
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.collect.nvidia.nvml import (
    LIBRARY_NOT_FOUND,
    Driver,
    NvmlCalls,
    NvmlError,
    NvmlUnavailable,
)
from gpuwarden_agent.collect.processes.trees import ProcessProbe
from gpuwarden_agent.collect.schedulers.allocations import allocation_probe
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.shared_state import SharedState
from gpuwarden_agent.events.kernel_log import DEVICE, kmsg_probe
from gpuwarden_agent.events.xid_ledger import XidLedger
from gpuwarden_agent.probe import Probe, Value
from gpuwarden_agent.settings import PodSource
from gpuwarden_agent.worker import within

if TYPE_CHECKING:
    from gpuwarden_agent.collect.kubernetes.directory import PodDirectory

DRIVER_LIMIT_S = 60.0
"""Eight GPUs without persistence mode take half of it to wake up."""

NO_ANSWER = -1
"""Code of an NvmlUnavailable without an NVML return code."""

__all__ = ["Discovery", "discover"]


@dataclass(slots=True)
class _Kmsg:
    """How to make the probe of the kernel's log, and whether that was done."""

    make: Callable[[], Probe | None] | None = None
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Discovery:
    """The devices and probes of this host."""

    probes: Sequence[Probe]
    message: str
    """One line for people: what is watched, or why no GPU is watched."""
    gpus: int
    """Number of GPUs that the drivers count, dead ones included."""
    bus_ids: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Index and UUID of NVIDIA GPUs by PCI bus id, as their probes learn them."""
    nvidia: NvidiaHost | None = None
    """NVIDIA's driver and GPUs, for rediscovery; None: not used."""
    ledger: XidLedger = field(default_factory=lambda: XidLedger(has_log=DEVICE.exists()))
    """Matches Xids of the kernel's log with those of NVML."""
    allocations: list[Probe] = field(default_factory=list)
    """The probe of schedulers' allocations; empty without a scheduler, and once it was returned."""
    _kmsg: _Kmsg = field(default_factory=_Kmsg)

    def all_probes(
        self,
        state_dir: Path,
        clock: Clock | None = None,
        module: Path = MODULE,
        kmsg: Path = DEVICE,
        sys: Path = SYS,
    ) -> list[Probe]:
        """All probes: also those of InfiniBand and RoCE ports, of NVIDIA's driver and of the kernel's log,
        for Xids. The position in the log is kept in `state_dir`.
        """
        gpu_count = sum(isinstance(probe, GpuProbe) for probe in self.probes)
        probes = list(self.probes)
        if self.nvidia is not None and (probe := self.nvidia.probe()):
            probes.append(probe)
        self._kmsg.make = lambda: kmsg_probe(
            state_dir,
            clock or SystemClock(),
            self.bus_ids,
            gpu_count=gpu_count,
            path=kmsg,
            ledger=self.ledger,
        )
        probes += self._allocations_with(probes)
        if ports := infiniband_probe(sys):
            probes.append(ports)
        return [*probes, *self._log_probe(gpu_count > 0 or module.exists())]

    def rediscover(self) -> Sequence[Probe]:
        """Probes of devices that came since `all_probes`, or the last call: GPUs, their processes, the
        driver's events, the kernel's log. Call it every few seconds, on one thread at a time.

        If nothing changed, it reads two small files, or one without a driver. It blocks while the
        driver is opened (again), for seconds if GPUs wake up; the driver calls of probes wait, too. A
        GPU that comes back keeps its probe, which is not returned again.
        """
        if self.nvidia is None:
            return []
        found = self.nvidia.rediscover()
        return [*found, *self._allocations_with(found), *self._log_probe(self.nvidia.is_there)]

    def _allocations_with(self, probes: Sequence[Probe]) -> list[Probe]:
        """The probe of allocations, returned with the first GPU."""
        has_gpu = any(isinstance(probe, GpuProbe | AmdGpuProbe) for probe in probes)
        return [self.allocations.pop()] if has_gpu and self.allocations else []

    def _log_probe(self, has_driver: bool) -> list[Probe]:
        if not has_driver or self._kmsg.is_read or self._kmsg.make is None:
            return []
        self._kmsg.is_read = True
        probe = self._kmsg.make()
        return [probe] if probe else []


@dataclass(frozen=True, slots=True)
class _Amd:
    """AMD GPUs of this host."""

    cards: Sequence[Card]
    version: str | None
    node: str
    sys: Path
    commands: str
    pods: "PodDirectory | None"
    shared: SharedState
    gpus: list[AmdGpuProbe] = field(default_factory=list)

    def probes(self, first: int, clock: Clock) -> list[Probe]:
        """A probe for each GPU, with indices from `first` on, and one for their processes. Call it once."""
        self.gpus.extend(
            AmdGpuProbe(card, first + n, clock, self.node) for n, card in enumerate(self.cards)
        )
        processes = amd_process_probe(
            self.gpus, clock, self.sys, commands=self.commands, shared=self.shared, pods=self.pods
        )
        return [*self.gpus, *([processes] if processes else [])]

    def bus_ids(self) -> Mapping[str, tuple[int, str]]:
        """Index and UUID by PCI bus id of GPUs that have been awake."""
        return {g.pci_bus_id.lower(): (g.gpu, g.gpu_uuid) for g in self.gpus if g.gpu_uuid}

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
    signs: Callable[[], Signs] = read_signs,
    commands: str = "arguments",
    pods: PodSource | None = None,
) -> Discovery:
    """The probes of this host.

    `backend` "auto": NVIDIA's GPUs, then AMD's; host metrics alone where there is no usable driver.
    "nvml": NVIDIA's GPUs only, and no usable driver is a StartError; "none": host metrics alone. No
    GPU is opened here, each is by its probe's first call; but loading NVIDIA's driver can take
    seconds. Blocks for at most `limit_s`. `node` (default: the hostname) is part of the identity of
    AMD GPUs without a unique id. `signs`: what the kernel shows about NVIDIA's driver.
    `commands`: the setting of that name. `pods`: source of the names of pods.
    """
    clock = clock or SystemClock()
    directory = _pod_directory(pods, clock)
    if backend == "none":
        host = HostProbe(clock)
        return Discovery((host,), f"host metrics only{_without(host)}", 0)
    cards = find_cards(sys) if backend == "auto" else []
    version = driver_version(sys) if cards else None
    name = node or socket.gethostname()
    amd = _Amd(cards, version, name, sys, commands, directory, SharedState())
    try:
        found = within(limit_s, lambda: _asked(open_driver), "open driver")
    except TimeoutError as error:
        found = NvmlUnavailable(str(error), NO_ANSWER)
    if isinstance(found, NvmlUnavailable) and backend == "nvml":
        raise StartError(f"backend nvml: {found.reason}")
    return _Found(clock, open_driver, amd, signs, commands=commands).discovery(found)


def _pod_directory(source: PodSource | None, clock: Clock) -> "PodDirectory | None":
    """None outside of Kubernetes; then its modules are not loaded. Raises StartError."""
    if source is None or source.ask == "off" or not source.service_account.is_dir():
        return None
    from gpuwarden_agent.collect.kubernetes.directory import pod_directory

    try:
        return pod_directory(source, clock)
    except ValueError as error:
        raise StartError(str(error)) from error


def _asked(
    open_driver: Callable[[], Driver | NvmlUnavailable],
) -> tuple[Driver, Sequence[NvmlCalls]] | NvmlUnavailable:
    driver = open_driver()
    if isinstance(driver, NvmlUnavailable):
        return driver
    try:
        return driver, driver.devices()
    except NvmlError as error:
        return NvmlUnavailable(f"its GPUs cannot be counted: {error}", error.code)


class _Found:
    """Makes the probes of the devices found now and later."""

    def __init__(
        self,
        clock: Clock,
        open_driver: Callable[[], Driver | NvmlUnavailable],
        amd: _Amd,
        signs: Callable[[], Signs],
        *,
        commands: str,
    ) -> None:
        self._clock, self._amd = clock, amd
        self._shared, self._pods = amd.shared, amd.pods
        self._bus_ids: dict[str, tuple[int, str]] = {}
        self._ledger = XidLedger(has_log=DEVICE.exists())
        state = DriverState()
        self._makers = Makers(
            gpu=lambda device: GpuProbe(device, clock, bus_ids=self._bus_ids),
            processes=lambda devices: ProcessProbe(
                devices, clock, commands=commands, shared=self._shared, pods=self._pods
            ),
            nvml=lambda: NvmlProbe(state, self._ledger, clock),
        )
        self._open_driver, self._state, self._signs = open_driver, state, signs

    def discovery(self, found: tuple[Driver, Sequence[NvmlCalls]] | NvmlUnavailable) -> Discovery:
        """The discovery for a driver and its GPUs, or for no driver."""
        amd = self._amd
        if isinstance(found, NvmlUnavailable):
            host = self._host(0)
            host.begin_without(found)
            if amd.cards:
                return self._made(_amd_alone(amd, self._clock, found), host)
            node = HostProbe(self._clock)
            message = _host_only(found) + _without(node)
            return self._made(Discovery((node,), message, 0), host)
        driver, devices = found
        first = 1 + max((device.index for device in devices), default=-1)
        host = self._host(first)
        processes = self._makers.processes(devices) if devices else None
        host.begin(driver, devices, processes)
        if not devices and amd.cards:
            return self._made(_amd_alone(amd, self._clock, None), host)
        return self._made(self._with_driver(devices, processes, first), host)

    def _with_driver(
        self, devices: Sequence[NvmlCalls], processes: Probe | None, first: int
    ) -> Discovery:
        amd = self._amd
        facts = self._state.facts
        named = f"NVIDIA driver {facts.get('driver_version', 'of unknown version')}"
        host = HostProbe(self._clock, facts)
        if processes is None:
            return Discovery((host,), f"{named} here, but no GPU: host metrics only", 0)
        probes = [self._makers.gpu(device) for device in devices]
        message = f"{_gpus(len(devices))}, {named}"
        if amd.cards:
            message = f"{message}; {amd.counted}"
        gpus = len(devices) + len(amd.cards)
        return Discovery((*probes, *amd.probes(first, self._clock), processes, host), message, gpus)

    def _host(self, first: int) -> NvidiaHost:
        """`first`: the index of the first AMD GPU."""
        return NvidiaHost(
            self._clock,
            self._open_driver,
            self._makers,
            self._state,
            other_gpus=range(first, first + len(self._amd.cards)),
            look=self._signs,
        )

    def _made(self, discovery: Discovery, host: NvidiaHost) -> Discovery:
        allocations = allocation_probe(
            GpuNames(self._bus_ids, others=self._amd.bus_ids),
            self._clock,
            self._shared,
            pods=self._pods,
        )
        return replace(
            discovery,
            nvidia=host,
            bus_ids=self._bus_ids,
            ledger=self._ledger,
            allocations=[allocations] if allocations else [],
        )


def _amd_alone(amd: _Amd, clock: Clock, nvidia: NvmlUnavailable | None) -> Discovery:
    """`nvidia`: why there is no NVIDIA driver; None: there is one, without a GPU."""
    node: dict[str, Value] = {"gpus": len(amd.cards), "driver_version": amd.version}
    known = {name: value for name, value in node.items() if value is not None}
    message = amd.counted
    # A missing NVIDIA driver is normal on such a host; a broken one is reported.
    if nvidia is not None and nvidia.code != LIBRARY_NOT_FOUND:
        message = f"{message}; NVIDIA driver not usable ({nvidia.reason})"
    probes = (*amd.probes(0, clock), HostProbe(clock, known))
    return Discovery(probes, message, len(amd.cards))


def _gpus(count: int, vendor: str = "") -> str:
    return f"{count} {vendor}GPU{'s' if count > 1 else ''}"


def _without(host: HostProbe) -> str:
    return f", without {host.lacks}, which this system does not tell" if host.lacks else ""


def _host_only(driver: NvmlUnavailable) -> str:
    if driver.code == LIBRARY_NOT_FOUND:
        return "no NVIDIA driver here (libnvidia-ml.so.1 not found): host metrics only"
    return f"NVIDIA driver not usable ({driver.reason}): host metrics only"
