"""Defines the interface of a host reader, and what it returns: the counters at one instant."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuwarden_agent.probe import Value

CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True, slots=True)
class HostReading:
    """One reading; values that the system does not have are absent."""

    gauges: Mapping[str, Value]
    """Columns that do not need an earlier reading."""
    cpu_times: Mapping[str, float] = field(default_factory=dict)
    """Time since boot of all CPUs, in any unit, by CPU_STATES; `user` and `nice` include guests."""
    disk_busy_ms: Mapping[str, int] = field(default_factory=dict)
    """By disk."""
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By column, the counter of each disk, interface or mount."""


class HostReader(Protocol):
    """Reads the counters of a host, without differences over time."""

    source: str
    """Where it reads from, for people."""
    lacks: str
    """Readings that this system does not have, for people; empty: it has all."""
    failed: Counter[str]
    """Failed readings, by name."""

    def read(self, *, mounts: bool) -> HostReading:
        """Read all counters. `mounts`: shared memory and NFS, too."""
        ...

    def facts(self) -> Mapping[str, Value]:
        """Columns of `nodes`; also lists disks and interfaces again."""
        ...
