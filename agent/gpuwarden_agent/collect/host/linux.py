"""Reads CPU, memory, pressure, disks, network and mounts from /proc and /sys of Linux.

Each file is read and parsed by itself: if this kernel does not have it, only its columns are absent.
Parsers are functions on text.

Bytes are counted once. Disks: only those with hardware, because the bytes of partitions, loop devices,
device mapper and md pass through them. Network: interfaces with hardware that are not stacked on
others; in a container, which has none, every interface that is not stacked on others.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuwarden.clock import Clock
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.collect.files import read_text
from gpuwarden_agent.collect.host.energy import RaplReader, node_watts
from gpuwarden_agent.collect.host.mounts import (
    Mount,
    by_superblock,
    parse_mountinfo,
    parse_mountstats,
)
from gpuwarden_agent.collect.host.reader import CPU_STATES, HostReading
from gpuwarden_agent.collect.nvidia.fabric_manager import FabricManager, kernel_module
from gpuwarden_agent.probe import Value

T = TypeVar("T")

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, for every sector size of a disk."""

_NFS = tuple(name for name in WIRE_TABLES["host_samples"].names if name.startswith("nfs_"))


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


def parse_stat(text: str) -> Stat:
    """/proc/stat. Old kernels have fewer states in `ticks`."""
    ticks: dict[str, int] = {}
    tasks: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            ticks = dict(zip(CPU_STATES, map(int, rest.split()), strict=False))
        elif name in ("procs_running", "procs_blocked"):
            tasks[name] = int(rest)
    return Stat(ticks, tasks.get("procs_running"), tasks.get("procs_blocked"))


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


def parse_net_dev(text: str) -> dict[str, tuple[int, int]]:
    """/proc/net/dev: bytes received and sent by interface."""
    interfaces: dict[str, tuple[int, int]] = {}
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")
        fields = rest.split()
        if colon and len(fields) >= 16:
            interfaces[name.strip()] = (int(fields[0]), int(fields[8]))
    return interfaces


class LinuxReader:
    """Reads the files. Its only state is which disks and interfaces to count."""

    source = "/proc"
    lacks = ""

    def __init__(
        self,
        clock: Clock,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        etc: Path = Path("/etc"),
        shm: Path = Path("/dev/shm"),
    ) -> None:
        self.failed: Counter[str] = Counter()
        """Files that could not be read or parsed, by name."""
        self._proc, self._sys, self._etc, self._shm = proc, sys, etc, shm
        self._fabric_manager = FabricManager(clock, proc)
        self._rapl = RaplReader(sys, self.failed)
        self._disk_names: dict[str, bool] = {}
        self._interfaces: tuple[frozenset[str], Sequence[str]] | None = None

    def read(self, *, mounts: bool) -> HostReading:
        stat = self._parsed("stat", parse_stat) or Stat({}, None, None)
        disks = self._disks()
        interfaces = self._counted_interfaces()
        gauges: dict[str, Value] = {"tasks_running": stat.running, "tasks_blocked": stat.blocked}
        gauges |= self._parsed("loadavg", parse_loadavg) or {}
        gauges |= self._parsed("meminfo", parse_meminfo) or {}
        for resource in ("cpu", "io", "memory"):
            # A kernel booted with psi=0 has the files, but they cannot be read.
            gauges |= self._parsed(f"pressure/{resource}", partial(parse_pressure, resource)) or {}
        counters: dict[str, Mapping[str, float]] = {
            "disk_read_bytes_total": {name: disk.read_bytes for name, disk in disks.items()},
            "disk_write_bytes_total": {name: disk.write_bytes for name, disk in disks.items()},
            "network_rx_bytes_total": {
                name: received for name, (received, _) in interfaces.items()
            },
            "network_tx_bytes_total": {name: sent for name, (_, sent) in interfaces.items()},
        }
        counters |= self._rapl.read()
        if mounts:
            gauges["host_power_watts"] = node_watts(self._sys)
            found = self._mounts()
            gauges |= self._shm_gauges(found)
            counters |= self._nfs_counters(found)
        busy_ms = {name: disk.busy_ms for name, disk in disks.items()}
        return HostReading(gauges, stat.ticks, busy_ms, counters)

    def facts(self) -> Mapping[str, Value]:
        # Stacking can change under the same names; once a minute is enough.
        self._disk_names, self._interfaces = {}, None
        cpu = self._parsed("cpuinfo", parse_cpuinfo) or {}
        memory = self._parsed("meminfo", parse_meminfo) or {}
        return {
            "os": self._os_name(),
            "cpu_model": cpu.get("model name"),
            "cpu_cores": self._cpu_cores(),
            "memory_total_bytes": memory.get("memory_total_bytes"),
            "kernel_module": self._parsed("driver/nvidia/version", kernel_module),
            **self._fabric_manager.facts(),
        }

    def _cpu_cores(self) -> int | None:
        """Physical cores: the threads of one have the same list of siblings."""
        siblings = {
            _text_of(cpu / "topology/core_cpus_list")
            or _text_of(cpu / "topology/thread_siblings_list")
            for cpu in (self._sys / "devices/system/cpu").glob("cpu[0-9]*")
        }
        return len(siblings - {""}) or None

    def _disks(self) -> dict[str, DiskCounters]:
        disks = self._parsed("diskstats", parse_diskstats) or {}
        for name in disks.keys() - self._disk_names.keys():
            self._disk_names[name] = self._is_physical_disk(name)
        return {name: disk for name, disk in disks.items() if self._disk_names[name]}

    def _is_physical_disk(self, name: str) -> bool:
        # sysfs has a partition only below its disk, `device` only with hardware behind it, and
        # `hidden` set on the paths of a multipath disk. It writes "/" of a name as "!".
        block = self._sys / "block" / name.replace("/", "!")
        return (block / "device").exists() and _text_of(block / "hidden").strip() != "1"

    def _mounts(self) -> list[Mount]:
        # A node with containers has thousands of mounts, of which only a few are needed.
        marks = (" - nfs", f" {self._shm} ")

        def parse(text: str) -> list[Mount]:
            lines = (line for line in text.splitlines() if any(mark in line for mark in marks))
            return list(parse_mountinfo(lines))

        return self._parsed("self/mountinfo", parse) or []

    def _shm_gauges(self, found: Iterable[Mount]) -> dict[str, Value]:
        if not any(m.place == str(self._shm) and m.fstype == "tmpfs" for m in found):
            return {}
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

    def _nfs_counters(self, found: Iterable[Mount]) -> dict[str, dict[str, float]]:
        nfs = [mount for mount in found if mount.fstype in ("nfs", "nfs4")]
        stats = self._parsed("self/mountstats", parse_mountstats) if nfs else []
        if stats is None:
            return {}
        superblocks = by_superblock(nfs, stats)
        return {
            column: {name: c[column] for name, c in superblocks.items() if column in c}
            for column in _NFS
        }

    def _counted_interfaces(self) -> dict[str, tuple[int, int]]:
        found = self._parsed("net/dev", parse_net_dev) or {}
        # A node with containers has hundreds of interfaces: sysfs is read only when they change.
        if self._interfaces is None or self._interfaces[0] != found.keys():
            self._interfaces = (frozenset(found), self._not_stacked(found))
        return {name: found[name] for name in self._interfaces[1]}

    def _not_stacked(self, names: Mapping[str, object]) -> Sequence[str]:
        net = self._sys / "class" / "net"
        # A bond, bridge or VLAN has `lower_*` links to the interfaces that carry its bytes.
        single = [n for n in names if n != "lo" and not any((net / n).glob("lower_*"))]
        physical = [n for n in single if (net / n / "device").exists()]
        return physical or single

    def _os_name(self) -> str | None:
        for line in _text_of(self._etc / "os-release").splitlines():
            key, _, value = line.partition("=")
            if key == "PRETTY_NAME":
                return value.strip().strip("\"'") or None
        return None

    def _parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Parse a file of /proc; None if it is missing, or if it fails, which is counted."""
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


def _text_of(path: Path) -> str:
    return read_text(path) or ""
