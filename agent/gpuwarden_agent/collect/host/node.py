"""Makes the host's row of each second from the counters of a host reader.

Percentages are differences of two readings. Bytes of disks, interfaces and mounts, which come and go,
become totals that never fall. /dev/shm and the NFS client are read every ten seconds (and when all
tables are read): only that second's row has their columns.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.host.bmc import Bmc
from gpuwarden_agent.collect.host.reader import HostReader, HostReading
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Value

SLOW_MS = 10_000
"""Time between two readings of mounts."""


def cpu_percents(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Value]:
    """Shares of the time between two readings; they add up to 100. Empty when no time passed, or without
    an earlier reading.

    A counter that falls (iowait does, and CPUs go offline) counts as no time in that state.
    """
    if not before:
        return {}
    spent = {state: max(0, after[state] - before.get(state, 0)) for state in after}
    total = sum(spent.values())
    if total == 0:
        return {}
    share = {state: 100 * time / total for state, time in spent.items()}
    values: dict[str, Value] = {
        f"cpu_{state}_percent": share[state]
        for state in ("user", "nice", "system", "iowait", "steal", "idle")
        if state in share
    }
    if "irq" in share and "softirq" in share:
        values["cpu_irq_percent"] = share["irq"] + share["softirq"]
    busy = sum(part for state, part in share.items() if state not in ("idle", "iowait"))
    values["cpu_util_percent"] = min(100.0, busy)  # the sum may be slightly more
    return values


def busiest_percent(
    before: Mapping[str, int], after: Mapping[str, int], dt_s: float
) -> float | None:
    """Busy share of the busiest disk that both readings have; None if there is none."""
    shares = [
        (busy_ms - before[name]) / (10 * dt_s)
        for name, busy_ms in after.items()
        if name in before and busy_ms >= before[name] and dt_s > 0
    ]
    # The kernel counts I/O in ticks, so a saturated disk may show a little more than 100.
    return min(100.0, max(shares)) if shares else None


class Total:
    """Sum of counters that never falls, also when a counter disappears or starts again."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._before_restarts: float = 0

    def of(self, counters: Mapping[str, float]) -> float | None:
        """The sum with these counters; None before the first counter."""
        for name, now in counters.items():
            last = self._last.get(name, 0)
            if now < last:
                self._before_restarts += last
            self._last[name] = now
        return self._before_restarts + sum(self._last.values()) if self._last else None


def host_reader(clock: Clock, system: str = sys.platform) -> HostReader:
    """The reader of this system."""
    if system == "linux":
        from gpuwarden_agent.collect.host.linux import LinuxReader

        return LinuxReader(clock)
    from gpuwarden_agent.collect.host.portable import PsutilReader

    return PsutilReader()


class HostProbe(HostedProbe):
    """The node's own metrics, and what the node is."""

    name = "host"
    tables: Mapping[str, int] = {"host_samples": 1}

    def __init__(
        self,
        clock: Clock,
        node: Mapping[str, Value] | None = None,
        reader: HostReader | None = None,
        cloud: Callable[[], Mapping[str, Value]] = dict,
        bmc: Bmc | None = None,
    ) -> None:
        """`node`: columns of `nodes` from other sources, such as the driver's version; `cloud`: those of the instance.
        `bmc`: None: not asked.
        """
        self._cloud = cloud
        self._bmc = bmc
        self._clock = clock
        self._node = dict(node or {})
        self._reader = reader or host_reader(clock)
        self.failed = self._reader.failed
        self._last: tuple[float, HostReading] | None = None
        self._slow_at: int | None = None
        self._totals: defaultdict[str, Total] = defaultdict(Total)

    @property
    def lacks(self) -> str:
        """Readings that this system does not have, for people; empty: it has all."""
        return self._reader.lacks

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        now = self._clock.monotonic()
        is_slow = due is None or self._slow_at != ts_ms // SLOW_MS
        if is_slow:
            self._slow_at = ts_ms // SLOW_MS
        reading = self._reader.read(mounts=is_slow)
        values = dict(reading.gauges)
        if is_slow:
            values |= self._of_bmc(values)
        for column, counters in reading.counters.items():
            values[column] = self._totals[column].of(counters)
        if self._last is not None:
            since, last = self._last
            values |= cpu_percents(last.cpu_times, reading.cpu_times)
            values["disk_busy_percent"] = busiest_percent(
                last.disk_busy_ms, reading.disk_busy_ms, now - since
            )
        self._last = now, reading
        row = coerce("host_samples", values)
        if not row:
            raise ProbeError(f"nothing in {self._reader.source} could be read")
        return {"host_samples": [row]}

    def _of_bmc(self, values: Mapping[str, Value]) -> Mapping[str, Value]:
        """What the BMC told; the kernel's meter of the node's power goes before it."""
        if self._bmc is None:
            return {}
        try:
            told = self._bmc.gauges()
        except ProbeError as error:
            self.failed[str(error)] += 1
            return {}
        return {name: value for name, value in told.items() if values.get(name) is None}

    def close(self) -> None:
        if self._bmc is not None:
            self._bmc.close()

    def describe(self) -> Reading:
        values: dict[str, Value] = {
            "kernel": os.uname().release,
            "cpus": os.cpu_count(),
            **self._reader.facts(),
            **self._cloud(),
            **self._node,
        }
        return {"nodes": [coerce("nodes", values)]}
