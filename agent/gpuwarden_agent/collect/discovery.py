"""Finds the devices of this host and makes its probes: GPUs, their processes, and the host itself."""

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import platform as sys_platform
from typing import TYPE_CHECKING

from gpuwarden.clock import Clock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.accelerators import AcceleratorProbe, Host
from gpuwarden_agent.collect.amd.discovery import AmdHost
from gpuwarden_agent.collect.amd.gpu import SYS, AmdGpuProbe, Card, driver_version, find_cards
from gpuwarden_agent.collect.amd.processes import amd_process_probe
from gpuwarden_agent.collect.cloud import cloud_host
from gpuwarden_agent.collect.host.bmc import Bmc
from gpuwarden_agent.collect.host.infiniband import infiniband_probe
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.collect.jetson.source import chip_here
from gpuwarden_agent.collect.kubernetes import SERVICE_ACCOUNT
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
from gpuwarden_agent.collect.vendors import INDEXES_EACH, find_accelerators
from gpuwarden_agent.events.kernel_log import DEVICE, kmsg_probe
from gpuwarden_agent.events.xid_ledger import XidLedger
from gpuwarden_agent.probe import Probe, Value
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.worker import within

if TYPE_CHECKING:
    from gpuwarden_agent.collect.kubernetes.directory import PodDirectory

DRIVER_LIMIT_S = 60.0
"""Eight GPUs without persistence mode take half of it to wake up."""

NO_ANSWER = -1
"""Code of an NvmlUnavailable without an NVML return code."""

__all__ = ["Discovery", "discover"]


@dataclass(slots=True)
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
    allocations: Probe | None = None
    """The probe of schedulers' allocations; None without a scheduler, and once it was returned."""
    amd: AmdHost | None = None
    """AMD's GPUs, for rediscovery; None: not used."""
    _make_log_probe: Callable[[], Probe | None] = lambda: None
    """None once the kernel's log is read."""
    _make_ports: Callable[[], Probe | None] = lambda: None
    """Makes the probe of InfiniBand and RoCE ports, as long as there are none."""

    def all_probes(
        self,
        state_dir: Path | None,
        clock: Clock | None = None,
        module: Path = MODULE,
        kmsg: Path = DEVICE,
        sys: Path = SYS,
    ) -> list[Probe]:
        """All probes: also those of InfiniBand and RoCE ports, of NVIDIA's driver and of the kernel's log,
        for Xids. The position in the log is kept in `state_dir`; None: it is not kept.
        """
        gpu_count = sum(isinstance(probe, GpuProbe) for probe in self.probes)
        probes = list(self.probes)
        if self.nvidia is not None and (probe := self.nvidia.probe()):
            probes.append(probe)
        self._make_log_probe = lambda: kmsg_probe(
            state_dir,
            clock or SystemClock(),
            self.bus_ids,
            gpu_count=gpu_count,
            path=kmsg,
            ledger=self.ledger,
        )
        probes += self._allocations_with(probes)
        self._make_ports = lambda: infiniband_probe(sys)
        probes += self._ports()
        return [*probes, *self._log_probe(gpu_count > 0 or module.exists())]

    def rediscover(self) -> Sequence[Probe]:
        """Probes of devices that came since `all_probes`, or the last call: GPUs, their processes, the
        driver's events, the kernel's log, network adapters. Call it every few seconds, on one thread at a
        time.

        If nothing changed, it reads two small files, or one without a driver, and lists graphics cards. It
        blocks while the driver is opened (again), for seconds if GPUs wake up; the driver calls of probes wait, too. A
        GPU that comes back keeps its probe, which is not returned again.
        """
        found = self._ports()
        if self.nvidia is None:
            return found
        found += self.nvidia.rediscover()
        if self.amd is not None:
            of_amd = self.amd.rediscover(self.nvidia.taken, is_alone=not self.nvidia.has_gpus)
            for probe in of_amd:
                if isinstance(probe, AmdGpuProbe):
                    self.nvidia.other_came(probe.gpu)
            found += of_amd
        return [*found, *self._allocations_with(found), *self._log_probe(self.nvidia.is_there)]

    def _ports(self) -> list[Probe]:
        if (probe := self._make_ports()) is None:
            return []
        self._make_ports = lambda: None
        return [probe]

    def _allocations_with(self, probes: Sequence[Probe]) -> list[Probe]:
        """The probe of allocations, returned with the first GPU."""
        if not any(
            isinstance(probe, GpuProbe | AmdGpuProbe | AcceleratorProbe) for probe in probes
        ):
            return []
        probe, self.allocations = self.allocations, None
        return [probe] if probe else []

    def _log_probe(self, has_driver: bool) -> list[Probe]:
        if not has_driver:
            return []
        make, self._make_log_probe = self._make_log_probe, lambda: None
        probe = make()
        return [probe] if probe else []


def discover(
    backend: str,
    clock: Clock | None = None,
    open_driver: Callable[[], Driver | NvmlUnavailable] = open_driver,
    limit_s: float = DRIVER_LIMIT_S,
    *,
    node: str | None = None,
    sys: Path = SYS,
    signs: Callable[[], Signs] = read_signs,
    settings: AgentSettings | None = None,
    accelerators: Callable[[Host, int], Sequence[AcceleratorProbe]] = find_accelerators,
) -> Discovery:
    """The probes of this host.

    `backend` "auto": NVIDIA's GPUs, then AMD's, then other vendors' accelerators; host metrics alone where there is no usable driver.
    "nvml": NVIDIA's GPUs only, and no usable driver is a StartError; "none": host metrics alone. No
    GPU is opened here, each is by its probe's first call; but loading NVIDIA's driver can take
    seconds. Blocks for at most `limit_s`. `node` (default: the hostname) is part of the identity of
    AMD GPUs without a unique id. `signs`: what the kernel shows about NVIDIA's driver.
    `settings`: of the source of names of pods, and of the cloud's metadata; None: neither is asked.
    """
    clock = clock or SystemClock()
    directory = _pod_directory(settings, clock)
    if backend == "none":
        host = HostProbe(clock)
        return Discovery((host,), f"host metrics only{_without(host)}", 0)
    if backend == "auto" and chip_here(sys) is not None:
        # NVML lists the GPU of a Jetson up to Orin, too, and reads nothing of it.
        open_driver, signs = _no_nvml, _no_signs
    found = _opened(open_driver, limit_s)
    if isinstance(found, NvmlUnavailable) and backend == "nvml":
        raise StartError(f"backend nvml: {found.reason}")
    devices = () if isinstance(found, NvmlUnavailable) else found[1]
    first = 1 + max((device.index for device in devices), default=-1)
    shared, state, bus_ids = SharedState(), DriverState(), dict[str, tuple[int, str]]()
    cards = find_cards(sys) if backend == "auto" else []
    name = node or socket.gethostname()
    of_amd = _amd_host(sys, clock, name, shared, directory, first, cards)
    amd = of_amd.gpus
    ledger = XidLedger(has_log=DEVICE.exists())
    makers = Makers(
        gpu=lambda device: GpuProbe(device, clock, bus_ids=bus_ids),
        processes=lambda devices: ProcessProbe(devices, clock, shared=shared, pods=directory),
        nvml=lambda: NvmlProbe(state, ledger, clock),
    )
    place = Host(clock, name, shutil.which, sys, platform=sys_platform)
    of_vendors = accelerators(place, first + len(amd)) if backend == "auto" else ()
    others = range(first, first + len(amd) + len(of_vendors) * INDEXES_EACH)
    nvidia = NvidiaHost(clock, open_driver, makers, state, other_gpus=others, look=signs)
    processes = makers.processes(devices) if devices else None
    if isinstance(found, NvmlUnavailable):
        nvidia.begin_without(found)
    else:
        nvidia.begin(found[0], devices, processes)
    version = driver_version(sys) if cards else None
    facts = {} if isinstance(found, NvmlUnavailable) else state.facts
    if amd and not devices:
        known = {"gpus": len(amd), "driver_version": version}
        facts = {column: value for column, value in known.items() if value is not None}
    node_probe = _host_probe(clock, facts, sys, settings)
    of_others = _process_probe(of_vendors, clock, shared, directory)
    several = [
        *map(makers.gpu, devices),
        *amd,
        *of_vendors,
        of_amd.processes,
        of_others,
        processes,
        node_probe,
    ]
    names = GpuNames(
        bus_ids,
        # Those that have been awake.
        others=lambda: {g.pci_bus_id.lower(): (g.gpu, g.gpu_uuid) for g in amd if g.gpu_uuid},
    )
    of_amdgpu = f"{_gpus(len(amd), 'AMD ')}, amdgpu driver {version or 'of the kernel'}"
    named = [of_amdgpu] if amd else []
    named += [probe.named for probe in of_vendors]
    return Discovery(
        [probe for probe in several if probe is not None],
        _message(found, state, "; ".join(named), node_probe),
        len(devices) + len(amd) + sum(probe.count for probe in of_vendors),
        bus_ids,
        nvidia,
        ledger,
        allocation_probe(names, clock, shared, pods=directory),
        of_amd if backend == "auto" else None,
    )


def _amd_host(
    sys: Path,
    clock: Clock,
    name: str,
    shared: SharedState,
    pods: "PodDirectory | None",
    first: int,
    cards: Sequence[Card],
) -> AmdHost:
    return AmdHost(
        sys,
        lambda card, gpu: AmdGpuProbe(card, gpu, clock, name, sys),
        lambda gpus: amd_process_probe(gpus, clock, sys, shared=shared, pods=pods),
        first,
        cards,
    )


def _process_probe(
    accelerators: Sequence[AcceleratorProbe],
    clock: Clock,
    shared: SharedState,
    pods: "PodDirectory | None",
) -> ProcessProbe | None:
    """The probe of the processes on other vendors' devices; None: there are none."""
    if not any(probe.tells_processes for probe in accelerators):
        return None
    processes = ProcessProbe((), clock, name="accelerator_processes", shared=shared, pods=pods)
    for probe in accelerators:
        if probe.tells_processes:
            probe.on_device = processes.watch_other
    return processes


def _message(
    found: tuple[Driver, Sequence[NvmlCalls]] | NvmlUnavailable,
    state: DriverState,
    others: str,
    host: HostProbe,
) -> str:
    """What is watched; `others`: the same of other vendors' devices, if there are any."""
    if isinstance(found, NvmlUnavailable):
        # A missing NVIDIA driver is normal beside other devices; a broken one is reported.
        if found.code == LIBRARY_NOT_FOUND:
            return others or (
                "no NVIDIA driver here (libnvidia-ml.so.1 not found): host metrics only"
                f"{_without(host)}"
            )
        broken = f"NVIDIA driver not usable ({found.reason})"
        return f"{others}; {broken}" if others else f"{broken}: host metrics only{_without(host)}"
    named = f"NVIDIA driver {state.facts.get('driver_version', 'of unknown version')}"
    if not found[1]:
        return others or f"{named} here, but no GPU: host metrics only"
    return f"{_gpus(len(found[1]))}, {named}{f'; {others}' if others else ''}"


def _no_nvml() -> NvmlUnavailable:
    return NvmlUnavailable("the GPU of this Jetson is read from /sys", LIBRARY_NOT_FOUND)


def _no_signs() -> Signs:
    return Signs(None)


def _host_probe(
    clock: Clock, facts: Mapping[str, Value], sys: Path, settings: AgentSettings | None
) -> HostProbe:
    """The host with the instance of a cloud that it is, and its BMC. Raises StartError."""
    ask_metadata = settings is not None and settings.cloud_metadata
    instance = cloud_host(sys, clock, ask_metadata=ask_metadata)
    return HostProbe(
        clock, facts, cloud=instance.row if instance else dict, bmc=_bmc(clock, settings)
    )


def _bmc(clock: Clock, settings: AgentSettings | None) -> Bmc | None:
    """None: not to be asked. Raises StartError."""
    if settings is None or not settings.ipmi:
        return None
    tool = shutil.which("ipmitool") or shutil.which("ipmitool", path="/usr/sbin:/sbin")
    if tool is None:
        raise StartError("ipmi = true: ipmitool is not installed")
    return Bmc(tool, clock)


def _pod_directory(settings: AgentSettings | None, clock: Clock) -> "PodDirectory | None":
    """None outside of Kubernetes; then its modules are not loaded. Raises StartError."""
    if settings is None or settings.kubernetes == "off" or not SERVICE_ACCOUNT.is_dir():
        return None
    from gpuwarden_agent.collect.kubernetes.directory import pod_directory

    try:
        return pod_directory(settings, clock)
    except ValueError as error:
        raise StartError(str(error)) from error


def _opened(
    open_driver: Callable[[], Driver | NvmlUnavailable], limit_s: float
) -> tuple[Driver, Sequence[NvmlCalls]] | NvmlUnavailable:
    try:
        return within(limit_s, lambda: _asked(open_driver), "open driver")
    except TimeoutError as error:
        return NvmlUnavailable(str(error), NO_ANSWER)


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


def _gpus(count: int, vendor: str = "") -> str:
    return f"{count} {vendor}GPU{'s' if count > 1 else ''}"


def _without(host: HostProbe) -> str:
    return f", without {host.lacks}, which this system does not tell" if host.lacks else ""
