"""Follows NVIDIA's driver and GPUs while the agent runs: added, lost, and back again.

Every few seconds `NvidiaHost.rediscover` reads two things of the kernel, which is cheap and wakes no
GPU: the version of the loaded module, and the GPUs bound to it. The driver is opened (again) only when
something new is there, or when no GPU answers any more. `decide` is that decision, pure.
"""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia.events import DriverState
from gpuwarden_agent.collect.nvidia.nvml import (
    DRIVER_NOT_LOADED,
    IN_USE,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    Driver,
    NvmlCalls,
    NvmlError,
    NvmlUnavailable,
)
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.probe import Probe, Value
from gpuwarden_agent.worker import within

log = logging.getLogger(__name__)

MODULE = Path("/proc/driver/nvidia")
BOUND = Path("/sys/bus/pci/drivers/nvidia")

RETRY_S = 3.0
RETRY_S_MAX = 60.0
RESET_AFTER_S = 60.0
"""Time without failures after which the backoff starts again."""
TRIES_FOR_NEW = 4
"""How often the driver is opened for a GPU that the kernel has and NVML does not list: a GPU that is
being initialised appears later, one that we may not use never does.
"""
OPEN_LIMIT_S = 20.0
"""Time limit for the UUID of a GPU; a GPU that wakes up needs seconds."""

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_KINDS = {
    DRIVER_NOT_LOADED: "driver_not_loaded",
    LIBRARY_NOT_FOUND: "driver_not_loaded",
    LIB_RM_VERSION_MISMATCH: "driver_mismatch",
}

OpenDriver = Callable[[], Driver | NvmlUnavailable]


@dataclass(frozen=True, slots=True)
class Signs:
    """What the kernel shows about NVIDIA's driver."""

    module: str | None
    """Text of the module's version; None: it is not loaded."""
    gpus: frozenset[str] = frozenset()
    """PCI bus ids that are bound to it."""


def read_signs(module: Path = MODULE, bound: Path = BOUND) -> Signs:
    """Read the signs: two small reads, or one if there is no driver."""
    try:
        version = (module / "version").read_text(errors="replace")
    except OSError:
        return Signs(None)
    try:
        names = [path.name for path in bound.iterdir()]
    except OSError:
        names = []
    return Signs(version, frozenset(name for name in names if _BUS_ID.fullmatch(name)))


@dataclass(frozen=True, slots=True)
class RediscoveryState:
    """The last signs, and when to open the driver next."""

    signs: Signs
    tries: int = 0
    """How often the driver was opened since the last change of the signs."""
    not_before_s: float = float("-inf")
    awaits_gpu: bool = False
    """A GPU came that has no probe yet."""


def decide(
    state: RediscoveryState, signs: Signs, *, is_well: bool, now_s: float, has_module: bool = True
) -> tuple[RediscoveryState, bool]:
    """Whether to open the driver (again) now.

    At once when a GPU came or another module was loaded; else, while not `is_well`, or while a new GPU
    has no probe, after 3, 6, 12 seconds and so on up to a minute. Never while the module is not
    loaded, unless `has_module` is False: the host does not show its module.
    """
    if signs.module is None and has_module:
        return RediscoveryState(signs), False
    came = bool(signs.gpus - state.signs.gpus)
    if came or signs.module != state.signs.module:
        return RediscoveryState(signs, 1, now_s + RETRY_S, awaits_gpu=came), True
    awaits_gpu = state.awaits_gpu and state.tries < TRIES_FOR_NEW
    if now_s < state.not_before_s or (is_well and not awaits_gpu):
        if now_s - state.not_before_s >= RESET_AFTER_S:
            return RediscoveryState(signs), False
        return RediscoveryState(signs, state.tries, state.not_before_s, awaits_gpu), False
    wait_s = min(RETRY_S * 2.0 ** min(state.tries, 10), RETRY_S_MAX)
    return RediscoveryState(signs, state.tries + 1, now_s + wait_s, awaits_gpu), True


@dataclass(frozen=True, slots=True)
class Makers:
    """Functions that make the probes."""

    gpu: Callable[[NvmlCalls], Probe]
    processes: Callable[[Sequence[NvmlCalls]], Probe]
    nvml: Callable[[], Probe]


class NvidiaHost:
    """NVIDIA's driver and GPUs on this host. Used by one thread at a time."""

    def __init__(
        self,
        clock: Clock,
        open_driver: OpenDriver,
        makers: Makers,
        state: DriverState,
        *,
        other_gpus: Collection[int] = (),
        look: Callable[[], Signs] = read_signs,
    ) -> None:
        """`other_gpus`: indices of GPUs of other makers."""
        self._clock = clock
        self._open_driver = open_driver
        self._makers = makers
        self._state = state
        self._other_gpus = frozenset(other_gpus)
        self._look = look
        self._rediscovery = RediscoveryState(look())
        self._has_module = True
        self._processes: Probe | None = None
        self._has_probe = False

    def begin(self, driver: Driver, devices: Sequence[NvmlCalls], processes: Probe | None) -> None:
        """Start with a driver and GPUs that already have probes."""
        self._state.driver, self._state.devices = driver, devices
        self._state.facts = self._facts(driver) if self._is_ours() else {}
        self._processes = processes
        # In WSL or a sandbox a driver works without a visible module.
        self._has_module = self._rediscovery.signs.module is not None

    def begin_without(self, unavailable: NvmlUnavailable) -> None:
        """Start without a driver; reports why a driver that is installed does not work."""
        if unavailable.code != LIBRARY_NOT_FOUND or self._rediscovery.signs.module is not None:
            self._state.trouble = _trouble(unavailable)
        self._rediscovery = RediscoveryState(
            self._rediscovery.signs, tries=1, not_before_s=self._clock.monotonic() + RETRY_S
        )

    @property
    def is_there(self) -> bool:
        """Whether there is, or was, a driver of NVIDIA."""
        state = self._state
        return bool(state.driver or state.trouble or self._rediscovery.signs.module is not None)

    @property
    def taken(self) -> frozenset[int]:
        """Indices of its GPUs, and of those of other makers."""
        return self._other_gpus | {device.index for device in self._state.devices}

    @property
    def has_gpus(self) -> bool:
        """Whether it has, or had, a GPU."""
        return bool(self._state.devices)

    def other_came(self, index: int) -> None:
        """A GPU of another maker took an index."""
        self._other_gpus |= {index}

    def probe(self) -> Probe | None:
        """The probe of the driver, once; None: no driver, or already returned."""
        if self._has_probe or not self.is_there:
            return None
        self._has_probe = True
        return self._makers.nvml()

    def rediscover(self) -> list[Probe]:
        """Open the driver (again) if it is time; returns the probes of new devices. Blocks."""
        is_well = self._state.driver is not None and self._state.trouble is None
        if self._state.driver is not None and self._state.driver.has_ended():
            is_well = False
        self._rediscovery, is_time = decide(
            self._rediscovery,
            self._look(),
            is_well=is_well,
            now_s=self._clock.monotonic(),
            has_module=self._has_module,
        )
        found = self._open() if is_time else []
        probe = self.probe()
        return [*found, *([probe] if probe else [])]

    def _open(self) -> list[Probe]:
        state, driver = self._state, self._state.driver
        if driver is None:
            opened = self._open_driver()
            unavailable = opened if isinstance(opened, NvmlUnavailable) else None
            driver = None if isinstance(opened, NvmlUnavailable) else opened
        else:
            unavailable = driver.renew()
        if unavailable is not None or driver is None:
            assert unavailable is not None
            log.warning("driver not usable", extra={"reason": unavailable.reason})
            state.trouble = _trouble(unavailable)
            return []
        state.driver = driver
        state.generation += 1
        try:
            listed = driver.devices()
        except NvmlError as error:
            state.trouble = ("probe_failed", f"NVIDIA's GPUs cannot be counted: {error}")
            return []
        state.trouble = None
        new = self._new_among(listed)
        state.devices = [*state.devices, *new]
        self._tell_opened(driver)
        probes = [self._makers.gpu(device) for device in new]
        if new or len(listed) >= len(self._rediscovery.signs.gpus):
            self._rediscovery = replace(self._rediscovery, awaits_gpu=False)
        return [*probes, *self._watch_processes(new)]

    def _watch_processes(self, new: Sequence[NvmlCalls]) -> list[Probe]:
        if not new:
            return []
        if self._processes is None:
            self._processes = self._makers.processes(new)
            return [self._processes]
        watch = getattr(self._processes, "watch", None)
        for device in new:
            if watch is not None:
                watch(device)
        return []

    def _new_among(self, listed: Sequence[NvmlCalls]) -> list[NvmlCalls]:
        """GPUs without a probe, each with a free index."""
        known = list(self._state.devices)
        uuids = {device.uuid for device in known}
        # A GPU that was not opened yet is opened by index, by its own probe.
        theirs = {device.index for device in known if device.uuid is None}
        taken = {device.index for device in known} | self._other_gpus
        new: list[NvmlCalls] = []
        for device in listed:
            if device.index in theirs:
                continue
            uuid = _uuid_of(device)
            if uuid in uuids and uuid is not None:
                continue
            if device.index in taken:
                if uuid is None:
                    continue  # it cannot be distinguished from the earlier GPU with this index
                device.index = 1 + max(taken)
            taken.add(device.index)
            uuids.add(uuid)
            new.append(device)
        return new

    def _tell_opened(self, driver: Driver) -> None:
        before, facts = self._state.facts, self._facts(driver)
        self._state.facts = facts if self._is_ours() else {}
        version, was = facts.get("driver_version"), before.get("driver_version")
        what = "was opened" if not before else "was opened again"
        change = f" instead of {was}" if was and was != version else ""
        log.info("driver opened", extra={"version": version, "before": was})
        self._state.news.append(
            event(
                "driver_opened",
                f"NVIDIA driver {version or 'of unknown version'}{change} {what}"
                f" with {facts['gpus']} GPU{'' if facts['gpus'] == 1 else 's'}",
                details={"version": version, "before": was, "gpus": facts["gpus"]},
            )
        )

    def _is_ours(self) -> bool:
        """Whether the driver of the node's row is NVIDIA's: the node does not have other GPUs only."""
        return bool(self._state.devices or not self._other_gpus)

    def _facts(self, driver: Driver) -> dict[str, Value]:
        facts: dict[str, Value] = {
            "gpus": len(self._state.devices) + len(self._other_gpus),
            "driver_version": _told(driver.driver_version),
            "cuda_version": _told(driver.cuda_version),
        }
        return {name: value for name, value in facts.items() if value is not None}


def _told(ask: Callable[[], str]) -> str | None:
    try:
        return ask()
    except NvmlError as error:
        log.warning("driver does not tell a version", extra={"error": str(error)})
        return None


def _trouble(unavailable: NvmlUnavailable) -> tuple[str, str]:
    if unavailable.code == IN_USE:
        return "probe_failed", f"NVIDIA driver cannot be opened again: {unavailable.reason}"
    kind = _KINDS.get(unavailable.code, "probe_failed")
    return kind, f"NVIDIA driver not usable: {unavailable.reason}"


def _uuid_of(device: NvmlCalls) -> str | None:
    """UUID of a GPU; None: it is dead, or does not answer in time."""
    try:
        return within(OPEN_LIMIT_S, device.open, "open GPU")
    except (NvmlError, TimeoutError) as error:
        log.info("a GPU cannot be opened", extra={"gpu": device.index, "error": str(error)})
        return None
