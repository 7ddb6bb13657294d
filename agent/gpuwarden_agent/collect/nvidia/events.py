"""Turns NVML's events and the state of the driver into rows of `events`.

Each second it reads the queued events of each GPU. Xids go through the node's ledger, which matches them
with lines of the kernel's log; other errors become events of their own. A GPU is registered once its own
probe has opened it, so that a dead or hung GPU does not affect the others. While the whole driver cannot
be used, the probe fails with the reason.
"""

import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.clock import Clock, to_ms
from gpuwarden.xids import CRITICAL, WARNING
from gpuwarden_agent.collect.nvidia import event_source as types
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.nvml import Driver, EventSource, GpuEvent, NvmlCalls, NvmlError
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.events.xid_ledger import XidLedger, XidReport
from gpuwarden_agent.events.xid_lines import Xid
from gpuwarden_agent.events.xid_rows import row_of_event
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Row, Value

log = logging.getLogger(__name__)

LOCKS_WAIT_S = 0.3
"""Total time to wait, in one read, for GPUs that are in a call of their own probe."""
REGISTER_AGAIN_S = 3.0
"""Pause after the events of a GPU failed."""

_MEANINGS: Mapping[int, tuple[str, str, str]] = {
    types.DOUBLE_BIT_ECC: (
        "ecc_double_bit",
        CRITICAL,
        "memory error that ECC could not correct; restart what ran on it, reset it when it is idle",
    ),
    types.SINGLE_BIT_ECC_STORM: (
        "ecc_storm",
        WARNING,
        "so many corrected memory errors that the driver calls it a storm; watch its remapped rows",
    ),
    types.DRAM_RETIREMENT: (
        "dram_retirement",
        WARNING,
        "memory is taken out of use; reset the GPU when it is idle",
    ),
    types.DRAM_RETIREMENT_FAILURE: (
        "dram_retirement_failed",
        CRITICAL,
        "bad memory could not be taken out of use; drain the GPU and have the board replaced",
    ),
    types.POISON: (
        "poison",
        WARNING,
        "poisoned data was found and contained; restart what ran on it",
    ),
    types.FATAL_POISON: (
        "poison",
        CRITICAL,
        "poisoned data was used; everything on it ends: drain and reset it",
    ),
    types.GPU_UNAVAILABLE: (
        "gpu_unavailable",
        CRITICAL,
        "not available any more; drain the node, then reset the GPU or reboot",
    ),
    types.RECOVERY_ACTION: (
        "recovery_action_changed",
        WARNING,
        "the driver asks for another recovery than before; recovery_action and Xid 154 say which",
    ),
}
"""Type of NVML's event to kind, severity and text."""


@dataclass(slots=True)
class DriverState:
    """State shared by rediscovery and the probe, which run on different threads. Values are replaced as a
    whole; only the queue is changed in place.
    """

    driver: Driver | None = None
    devices: Sequence[NvmlCalls] = ()
    generation: int = 0
    """How often the driver was opened; earlier event sets are gone."""
    trouble: tuple[str, str] | None = None
    """Kind of event and message while the driver cannot be used."""
    facts: Mapping[str, Value] = field(default_factory=dict)
    """Columns of `nodes` that come from the driver."""
    news: "deque[Row]" = field(default_factory=deque)
    """Events about the driver."""


@dataclass(slots=True)
class _Watched:
    """A registered GPU; `source` None: it has no events."""

    pci_bus_id: str
    source: EventSource | None
    drained_s: float


class NvmlProbe(HostedProbe):
    """NVML's events and the driver's state."""

    name = "nvml"
    tables: Mapping[str, int] = {"events": 1}

    def __init__(self, state: DriverState, ledger: XidLedger, clock: Clock) -> None:
        self.failed: Counter[str] = Counter()
        """GPUs whose events could not be read, by reason."""
        self._state = state
        self._ledger = ledger
        self._clock = clock
        self._generation = state.generation
        self._watched: dict[NvmlCalls, _Watched] = {}
        self._not_before_s: dict[NvmlCalls, float] = {}

    def describe(self) -> Reading:
        """Versions of the driver, and how many GPUs there are."""
        facts = dict(self._state.facts)
        return {"nodes": [facts]} if facts else {}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """Events queued since the last call."""
        if self._generation != self._state.generation:
            self._generation = self._state.generation
            self._watched.clear()
            self._not_before_s.clear()
        rows: list[Row] = []
        while self._state.news:
            rows.append(self._state.news.popleft())
        rows += self._taken()
        trouble = self._state.trouble
        if trouble and not rows:
            kind, message = trouble
            raise ProbeError(message, kind=kind)
        return {"events": rows}

    def close(self) -> None:
        """Close all event sets."""
        for watched in self._watched.values():
            if watched.source is not None:
                watched.source.close()
        self._watched.clear()

    def _taken(self) -> list[Row]:
        rows: list[Row] = []
        reports: list[XidReport] = []
        until_s = self._clock.monotonic() + LOCKS_WAIT_S
        for device in self._state.devices:
            watched = self._watched.get(device) or self._register(device, until_s)
            if watched is None or watched.source is None:
                continue
            try:
                events = watched.source.drain()
            except NvmlError as error:
                self._give_up(device, error)
                continue
            now_s, now_ms = self._clock.monotonic(), to_ms(self._clock.now())
            bus_id = watched.pci_bus_id
            for found in events:
                if found.type == types.XID:
                    row = _xid_row(device, bus_id, found, now_ms)
                    reports.append(XidReport(bus_id, found.data, watched.drained_s, now_s, row))
            others = [found for found in events if found.type != types.XID]
            rows += _other_rows(device, others, now_ms)
            watched.drained_s = now_s
        return rows + self._ledger.take_events(reports, self._clock.monotonic())

    def _register(self, device: NvmlCalls, until_s: float) -> _Watched | None:
        """Register for the events of a GPU; None: not possible now."""
        now_s = self._clock.monotonic()
        driver = self._state.driver
        if driver is None or device.uuid is None or now_s < self._not_before_s.get(device, now_s):
            return None
        if not device.lock.acquire(timeout=max(0.0, until_s - now_s)):
            return None
        try:
            bus_id = device.ask(ROWS["pci_bus_id"])
            source = driver.events_of(device)
        except NvmlError as error:
            self._give_up(device, error)
            return None
        finally:
            device.lock.release()
        if source is None:
            log.info("the driver tells no events of this GPU", extra={"gpu": device.index})
        watched = self._watched[device] = _Watched(bus_id, source, self._clock.monotonic())
        return watched

    def _give_up(self, device: NvmlCalls, error: NvmlError) -> None:
        """Pause the events of a GPU; its own probe reports what is wrong with the GPU."""
        watched = self._watched.pop(device, None)
        if watched is not None and watched.source is not None:
            watched.source.close()
        self.failed[f"GPU {device.index}: {error}"] += 1
        self._not_before_s[device] = self._clock.monotonic() + REGISTER_AGAIN_S


def _xid_row(device: NvmlCalls, bus_id: str, found: GpuEvent, now_ms: int) -> Row:
    xid = Xid(found.data, bus_id, "", gpu_instance=found.gpu_instance)
    return {**row_of_event(xid, {bus_id: (device.index, device.uuid or "")}), "ts": now_ms}


def _other_rows(device: NvmlCalls, found: Sequence[GpuEvent], now_ms: int) -> list[Row]:
    """One row for all events of the same type in one read."""
    rows = []
    for number, count in Counter(one.type for one in found).items():
        kind, severity, words = _MEANINGS.get(
            number, ("nvml_event", WARNING, f"an event of type {number:#x}, which is unknown")
        )
        times = f" ({count} times)" if count > 1 else ""
        row = event(
            kind,
            f"GPU {device.index}: {words}{times}",
            severity=severity,
            gpu=device.index,
            gpu_uuid=device.uuid,
            details={"count": count, "nvml_event_type": number},
        )
        rows.append({**row, "ts": now_ms})
    return rows
