"""Defines the interface of a host reader, and what it returns: the counters at one instant."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuwarden_agent.probe import Value

CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True, slots=True)
class HostReading:
    """One look. What the system does not have is absent."""

    gauges: Mapping[str, Value]
    """Columns that need no earlier reading."""
    cpu_times: Mapping[str, float] = field(default_factory=dict)
    """Time since boot of all CPUs, in any unit, by CPU_STATES; `user` and `nice` include guests."""
    disk_busy_ms: Mapping[str, int] = field(default_factory=dict)
    """By disk."""
    counters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Column to what each disk, interface or mount has counted."""


class HostReader(Protocol):
    """Reads the counters of a host; does no arithmetic over time."""

    source: str
    """Where it reads, for people."""
    lacks: str
    """What it cannot read on this system, for people; empty: nothing."""
    failed: Counter[str]
    """Readings that went wrong, by name."""

    def read(self, *, mounts: bool) -> HostReading:
        """`mounts`: shared memory and NFS too."""
        ...

    def facts(self) -> Mapping[str, Value]:
        """Columns of `nodes`; looks anew at which disks and interfaces there are."""
        ...
