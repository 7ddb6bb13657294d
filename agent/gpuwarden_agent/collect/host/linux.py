"""Reads CPU, memory, pressure, disks and network of the node from /proc and /sys, every second.

Each file is read and parsed by itself: one that this kernel does not have leaves its columns out
and the others in. Parsing and arithmetic are functions on text and counters; `HostProbe` only reads
files and keeps the last look, from which the percentages are taken.

Bytes are counted once. Disks: those with hardware behind them, so partitions, loop devices, device
mapper and md, whose bytes pass through those disks, are left out. Network: interfaces with hardware
that no other interface is stacked under; in a container, which has none, every interface that is
not stacked on others.

/dev/shm and the NFS client are looked at every ten seconds (and by who asks for everything): their
columns are in that second's row alone.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.host import mounts
from gpuwarden_agent.collect.nvidia.fabric_manager import FabricManager, kernel_module
from gpuwarden_agent.probe import ProbeError, Reading, Value

T = TypeVar("T")

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the disk's own sector size."""

SLOW_MS = 10_000
"""Between two looks at mounts."""

CPU_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")

_NFS_COUNTERS = {
    column: column.replace("_seconds_total", "_ms")
    for column in (
        "nfs_reads_total",
        "nfs_read_seconds_total",
        "nfs_read_bytes_total",
        "nfs_writes_total",
        "nfs_write_seconds_total",
        "nfs_write_bytes_total",
        "nfs_metadata_total",
        "nfs_metadata_seconds_total",
        "nfs_retransmissions_total",
    )
}
"""Column to the counter that it is the sum of."""


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/stat: CPU ticks by state since boot, and tasks. `user` and `nice` include guests."""

    ticks: Mapping[str, int]
    running: int | None
    blocked: int | None


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Counters of one disk since boot."""

    read_bytes: int
    write_bytes: int
    busy_ms: int


@dataclass(frozen=True, slots=True)
class HostReading:
    """What the next read compares with."""

    monotonic_s: float
    stat: Stat | None
    disks: Mapping[str, DiskCounters]


def parse_stat(text: str) -> Stat:
    """/proc/stat. Old kernels have fewer states; those are missing from `ticks`."""
    ticks: dict[str, int] = {}
    tasks: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            ticks = dict(zip(CPU_STATES, map(int, rest.split()), strict=False))
        elif name in ("procs_running", "procs_blocked"):
            tasks[name] = int(rest)
    return Stat(ticks, tasks.get("procs_running"), tasks.get("procs_blocked"))


def cpu_percents(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Value]:
    """Shares of the time between two looks; they add up to 100. Empty when no time passed.

    A state's counter may fall (iowait does, and CPUs go offline): that counts as no time in it.
    """
    spent = {state: max(0, after[state] - before.get(state, 0)) for state in after}
    total = sum(spent.values())
    if total == 0:
        return {}
    share = {state: 100 * ticks / total for state, ticks in spent.items()}
    values: dict[str, Value] = {
        f"cpu_{state}_percent": share[state]
        for state in ("user", "nice", "system", "iowait", "steal", "idle")
        if state in share
    }
    if "irq" in share and "softirq" in share:
        values["cpu_irq_percent"] = share["irq"] + share["softirq"]
    busy = sum(part for state, part in share.items() if state not in ("idle", "iowait"))
    values["cpu_util_percent"] = min(100.0, busy)  # shares that add up to a hair more
    return values


def parse_loadavg(text: str) -> dict[str, Value]:
    """/proc/loadavg."""
    one, five, fifteen = text.split()[:3]
    return {"load_1m": float(one), "load_5m": float(five), "load_15m": float(fifteen)}


def parse_meminfo(text: str) -> dict[str, Value]:
    """/proc/meminfo, as psutil 7 and free(1) read it: used is what is not available."""
    kib: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.strip():
            kib[name] = int(rest.split()[0])

    def bytes_of(*names: str, less: str | None = None) -> int | None:
        if any(name not in kib for name in (*names, *([less] if less else []))):
            return None
        kept = sum(kib[name] for name in names) - (kib[less] if less else 0)
        # In LXC containers more may be available than there is.
        return 1024 * kept if kept >= 0 else None

    return {
        "memory_total_bytes": bytes_of("MemTotal"),
        "memory_available_bytes": bytes_of("MemAvailable"),
        "memory_used_bytes": bytes_of("MemTotal", less="MemAvailable"),
        "memory_cached_bytes": bytes_of("Cached", "SReclaimable"),
        "swap_used_bytes": bytes_of("SwapTotal", less="SwapFree"),
    }


def parse_pressure(resource: str, text: str) -> dict[str, Value]:
    """/proc/pressure/RESOURCE. Kernels before 5.13 have no `full` line for cpu."""
    values: dict[str, Value] = {}
    for line in text.splitlines():
        extent, *pairs = line.split()
        numbers = dict(pair.split("=", 1) for pair in pairs)
        if extent in ("some", "full"):
            values[f"psi_{resource}_{extent}_percent"] = float(numbers["avg10"])
            values[f"psi_{resource}_{extent}_seconds_total"] = int(numbers["total"]) / 1e6
    return values


def parse_diskstats(text: str) -> dict[str, DiskCounters]:
    """/proc/diskstats, every line that has the counters: disks, partitions, everything."""
    disks: dict[str, DiskCounters] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 14:
            disks[fields[2]] = DiskCounters(
                read_bytes=int(fields[5]) * SECTOR_BYTES,
                write_bytes=int(fields[9]) * SECTOR_BYTES,
                busy_ms=int(fields[12]),
            )
    return disks


def busiest_percent(
    before: Mapping[str, DiskCounters], after: Mapping[str, DiskCounters], dt_s: float
) -> float | None:
    """Busy share of the busiest disk that both looks have; None where there is none."""
    shares = [
        (disk.busy_ms - before[name].busy_ms) / (10 * dt_s)
        for name, disk in after.items()
        if name in before and disk.busy_ms >= before[name].busy_ms and dt_s > 0
    ]
    # The kernel books I/O in ticks, so that a saturated disk may read as a little over 100.
    return min(100.0, max(shares)) if shares else None


def parse_net_dev(text: str) -> dict[str, tuple[int, int]]:
    """/proc/net/dev: bytes received and sent by interface."""
    interfaces: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")
        fields = rest.split()
        if colon and len(fields) >= 16:
            interfaces[name.strip()] = (int(fields[0]), int(fields[8]))
    return interfaces


class Total:
    """Sum of counters that come and go: it never falls, also when one vanishes or starts anew."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._before_restarts = 0

    def of(self, counters: Mapping[str, int]) -> int | None:
        """The sum with these counters; None before there was any."""
        for name, now in counters.items():
            last = self._last.get(name, 0)
            if now < last:
                self._before_restarts += last
            self._last[name] = now
        return self._before_restarts + sum(self._last.values()) if self._last else None


class HostProbe:
    """The node's own metrics, and what the node is."""

    name = "host"
    simulated = False
    blocking = True  # files of /proc and /sys rarely block, but they can
    tables: Mapping[str, int] = {"host_samples": 1}
    gpu_uuid: str | None = None

    def __init__(
        self,
        clock: Clock,
        node: Mapping[str, Value] | None = None,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        etc: Path = Path("/etc"),
        shm: Path = Path("/dev/shm"),
    ) -> None:
        """`node`: columns of `nodes` that others know, the driver's version above all."""
        self.failed: Counter[str] = Counter()
        """Files that could not be read or parsed, by name."""
        self._clock = clock
        self._node = dict(node or {})
        self._disk_names: dict[str, bool] = {}
        self._interfaces: tuple[frozenset[str], Sequence[str]] | None = None
        self._proc, self._sys, self._etc, self._shm = proc, sys, etc, shm
        self._fabric_manager = FabricManager(clock, proc)
        self._last: HostReading | None = None
        self._slow_at: int | None = None
        self._totals = {
            column: Total()
            for column in (
                "disk_read_bytes_total",
                "disk_write_bytes_total",
                "network_rx_bytes_total",
                "network_tx_bytes_total",
                *_NFS_COUNTERS,
            )
        }

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        now = self._clock.monotonic()
        stat = self._parsed("stat", parse_stat)
        disks = self._disks()
        values: dict[str, Value] = {}
        if stat is not None:
            values |= {"tasks_running": stat.running, "tasks_blocked": stat.blocked}
        values |= self._parsed("loadavg", parse_loadavg) or {}
        values |= self._parsed("meminfo", parse_meminfo) or {}
        for resource in ("cpu", "io", "memory"):
            values |= self._pressure(resource)
        values |= self._disk_totals(disks) | self._network_totals()
        if due is None or self._slow_at != ts_ms // SLOW_MS:
            self._slow_at = ts_ms // SLOW_MS
            values |= self._mount_values()
        if self._last is not None:
            values |= self._rates(self._last, now, stat, disks)
        self._last = HostReading(now, stat, disks)
        row = coerce("host_samples", values)
        if not row:
            raise ProbeError(f"nothing in {self._proc} could be read")
        return {"host_samples": [row]}

    def describe(self) -> Reading:
        # What is stacked on what can change under the same names; a minute is soon enough.
        self._disk_names, self._interfaces = {}, None
        uname = os.uname()
        cpu = self._parsed("cpuinfo", parse_cpuinfo) or {}
        memory = self._parsed("meminfo", parse_meminfo) or {}
        values: dict[str, Value] = {
            "kernel": uname.release,
            "os": self._os_name(),
            "cpu_model": cpu.get("model name"),
            "cpus": os.cpu_count(),
            "cpu_cores": self._cpu_cores(),
            "memory_total_bytes": memory.get("memory_total_bytes"),
            "kernel_module": self._parsed("driver/nvidia/version", kernel_module),
            **self._fabric_manager.facts(),
            **self._node,
        }
        return {"nodes": [coerce("nodes", values)]}

    def _cpu_cores(self) -> int | None:
        """Physical cores: the threads of one have the same list of siblings."""
        siblings = {
            _text(cpu / "topology/core_cpus_list") or _text(cpu / "topology/thread_siblings_list")
            for cpu in (self._sys / "devices/system/cpu").glob("cpu[0-9]*")
        }
        return len(siblings - {""}) or None

    def close(self) -> None:
        """Nothing to give back."""

    def _rates(
        self, last: HostReading, now: float, stat: Stat | None, disks: Mapping[str, DiskCounters]
    ) -> dict[str, Value]:
        values: dict[str, Value] = {
            "disk_busy_percent": busiest_percent(last.disks, disks, now - last.monotonic_s)
        }
        if stat is not None and last.stat is not None:
            values |= cpu_percents(last.stat.ticks, stat.ticks)
        return values

    def _pressure(self, resource: str) -> dict[str, Value]:
        def parse(text: str) -> dict[str, Value]:
            return parse_pressure(resource, text)

        # A kernel booted with psi=0 has the files but does not let them be read.
        return self._parsed(f"pressure/{resource}", parse) or {}

    def _disks(self) -> dict[str, DiskCounters]:
        disks = self._parsed("diskstats", parse_diskstats) or {}
        for name in disks.keys() - self._disk_names.keys():
            self._disk_names[name] = self._is_physical_disk(name)
        return {name: disk for name, disk in disks.items() if self._disk_names[name]}

    def _is_physical_disk(self, name: str) -> bool:
        # sysfs has a partition only below its disk, `device` only with hardware behind it, and
        # `hidden` set on the paths of a multipath disk. It writes "/" of a name as "!".
        block = self._sys / "block" / name.replace("/", "!")
        return (block / "device").exists() and _text(block / "hidden").strip() != "1"

    def _disk_totals(self, disks: Mapping[str, DiskCounters]) -> dict[str, Value]:
        read = {name: disk.read_bytes for name, disk in disks.items()}
        written = {name: disk.write_bytes for name, disk in disks.items()}
        return {
            "disk_read_bytes_total": self._totals["disk_read_bytes_total"].of(read),
            "disk_write_bytes_total": self._totals["disk_write_bytes_total"].of(written),
        }

    def _network_totals(self) -> dict[str, Value]:
        interfaces = self._parsed("net/dev", parse_net_dev) or {}
        counted = self._counted_interfaces(interfaces)
        received = {name: interfaces[name][0] for name in counted}
        sent = {name: interfaces[name][1] for name in counted}
        return {
            "network_rx_bytes_total": self._totals["network_rx_bytes_total"].of(received),
            "network_tx_bytes_total": self._totals["network_tx_bytes_total"].of(sent),
        }

    def _mount_values(self) -> dict[str, Value]:
        # A node of containers has thousands of mounts; those that matter are few.
        marks = (" - nfs", f" {self._shm} ")

        def parse(text: str) -> list[mounts.Mount]:
            lines = (line for line in text.splitlines() if any(mark in line for mark in marks))
            return list(mounts.parse_mountinfo(lines))

        found = self._parsed("self/mountinfo", parse) or []
        values: dict[str, Value] = {}
        if any(m.place == str(self._shm) and m.fstype == "tmpfs" for m in found):
            values |= self._shm_values()
        nfs = [mount for mount in found if mount.fstype in ("nfs", "nfs4")]
        stats = self._parsed("self/mountstats", mounts.parse_mountstats) if nfs else []
        if stats is not None:
            values |= self._nfs_totals(mounts.by_superblock(nfs, stats))
        return values

    def _shm_values(self) -> dict[str, Value]:
        try:
            size = os.statvfs(self._shm)
        except OSError:
            self.failed[self._shm.name] += 1
            return {}
        if not size.f_blocks:  # a tmpfs without a limit
            return {}
        return {
            "shm_total_bytes": size.f_blocks * size.f_frsize,
            "shm_used_bytes": (size.f_blocks - size.f_bfree) * size.f_frsize,
        }

    def _nfs_totals(self, superblocks: Mapping[str, Mapping[str, int]]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for column, counter in _NFS_COUNTERS.items():
            counted = {
                key: counts[counter] for key, counts in superblocks.items() if counter in counts
            }
            total = self._totals[column].of(counted)
            is_time = counter.endswith("_ms")
            values[column] = total / 1000 if is_time and total is not None else total
        return values

    def _counted_interfaces(self, names: Mapping[str, object]) -> Sequence[str]:
        # A node of containers has hundreds of interfaces: sysfs is asked when they change.
        if self._interfaces is None or self._interfaces[0] != names.keys():
            self._interfaces = (frozenset(names), self._not_stacked(names))
        return self._interfaces[1]

    def _not_stacked(self, names: Mapping[str, object]) -> Sequence[str]:
        net = self._sys / "class" / "net"
        # A bond, bridge or VLAN has `lower_*` links to the interfaces that carry its bytes.
        single = [n for n in names if n != "lo" and not any((net / n).glob("lower_*"))]
        physical = [n for n in single if (net / n / "device").exists()]
        return physical or single

    def _os_name(self) -> str | None:
        for line in _text(self._etc / "os-release").splitlines():
            key, _, value = line.partition("=")
            if key == "PRETTY_NAME":
                return value.strip().strip("\"'") or None
        return None

    def _parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """None, and counted, where the file is not there or not in its format."""
        try:
            return parse((self._proc / name).read_text(errors="replace"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError):
            self.failed[name] += 1
            return None


def parse_cpuinfo(text: str) -> dict[str, str]:
    """/proc/cpuinfo: the first CPU's lines. Arm has no "model name"."""
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _text(path: Path) -> str:
    """Text of a file; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
