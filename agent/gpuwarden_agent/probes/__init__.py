"""The real probes: GPUs through the driver, their processes, and the host itself.

`discover` is the only thing that the rest of the agent needs from here.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwarden.clock import Clock, SystemClock
from gpuwarden.life import StartError
from gpuwarden_agent.probe import Probe, Value
from gpuwarden_agent.probes.gpu import GpuProbe
from gpuwarden_agent.probes.host import HostProbe
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

log = logging.getLogger(__name__)

__all__ = ["Discovery", "discover"]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What there is to read on this host."""

    probes: Sequence[Probe]
    message: str
    """One line for people: what is watched, or why no GPU is."""
    gpus: int
    """GPUs that the driver counts; a dead one is among them."""
    backend: str
    """Column `backend` of `nodes`: "nvml" or "none"."""


def discover(
    backend: str,
    clock: Clock | None = None,
    open_driver: Callable[[], Driver | NvmlUnavailable] = open_driver,
    limit_s: float = DRIVER_LIMIT_S,
) -> Discovery:
    """The probes of this host.

    `backend` "auto": host metrics alone where there is no usable driver; "nvml": that is a
    StartError; "none": host metrics alone. No GPU is opened here, each is by its probe's first
    call; but loading the driver can take seconds. Blocks for at most `limit_s`.
    """
    clock = clock or SystemClock()
    if backend == "none":
        return Discovery((HostProbe(clock),), "host metrics only", 0, "none")
    found = _within(limit_s, lambda: _asked(open_driver, clock))
    if isinstance(found, Discovery):
        return found
    if backend == "nvml":
        raise StartError(f"backend nvml: {found.reason}")
    return Discovery((HostProbe(clock),), _host_only(found), 0, "none")


def _asked(
    open_driver: Callable[[], Driver | NvmlUnavailable], clock: Clock
) -> Discovery | NvmlUnavailable:
    driver = open_driver()
    if isinstance(driver, NvmlUnavailable):
        return driver
    try:
        return _with_driver(driver, clock)
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


def _with_driver(driver: Driver, clock: Clock) -> Discovery:
    devices = driver.devices()
    node: dict[str, Value] = {"gpus": len(devices)}
    version = _version(driver.driver_version)
    if version:
        node["driver_version"] = version
    if cuda := _version(driver.cuda_version):
        node["cuda_version"] = cuda
    host = HostProbe(clock, node)
    named = f"NVIDIA driver {version or 'of unknown version'}"
    if not devices:
        return Discovery((host,), f"{named} here, but no GPU: host metrics only", 0, "nvml")
    probes: list[Probe] = [GpuProbe(device, clock) for device in devices]
    counted = f"{len(devices)} GPU{'s' if len(devices) > 1 else ''}"
    return Discovery(
        (*probes, ProcessProbe(devices, clock), host), f"{counted}, {named}", len(devices), "nvml"
    )


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
