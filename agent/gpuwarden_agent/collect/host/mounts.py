"""Reads the list of mounts and the counters of the NFS client from /proc.

It never accesses a mount, because a server that is gone blocks every access for hours. Formats
are those of proc(5) (mountinfo) and of nfs_show_stats and rpc_clnt_show_stats in the kernel
(mountstats); all of NFS 3, 4.0 to 4.2 write the same lines with other names of operations.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_NFS = re.compile(r"device .* mounted on (.*) with fstype nfs4? statvers=")
_OPERATION = re.compile(r"[A-Z][A-Z0-9_]*")
_METADATA = ("LOOKUP", "GETATTR", "ACCESS", "OPEN", "READDIR")
"""What the names of the counted metadata operations begin with: also LOOKUPP, OPEN_NOATTR,
READDIRPLUS. OPEN_CONFIRM and OPEN_DOWNGRADE open nothing."""
_NOT_METADATA = frozenset({"OPEN_CONFIRM", "OPEN_DOWNGRADE"})


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of mountinfo."""

    device: str
    """Number of the superblock, "0:45": the same for every mount of it."""
    place: str
    fstype: str


@dataclass(frozen=True, slots=True)
class NfsMount:
    """The counters of one mount since it was made, by the catalogue's names."""

    place: str
    counters: Mapping[str, float]


def parse_mountinfo(lines: Iterable[str]) -> Iterator[Mount]:
    """/proc/PID/mountinfo. Raises ValueError for a line in another format."""
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 6 or not after.strip():
            raise ValueError(f"not a line of mountinfo: {line[:80]!r}")
        yield Mount(device=fields[2], place=fields[4], fstype=after.split()[0])


def parse_mountstats(text: str) -> list[NfsMount]:
    """NFS mounts of /proc/PID/mountstats, in its order. Raises ValueError for invalid counters."""
    mounts: list[NfsMount] = []
    counters: dict[str, float] | None = None
    for line in text.splitlines():
        if line.startswith(("device ", "no device ")):
            counters = None
            if found := _NFS.match(line):
                counters = {}
                mounts.append(NfsMount(found[1], counters))
        elif counters is not None:
            name, _, rest = line.strip().partition(":")
            if name == "bytes":
                fields = _numbers(line, rest, at_least=6)
                _add(counters, "nfs_read_bytes_total", fields[4])
                _add(counters, "nfs_write_bytes_total", fields[5])
            elif _OPERATION.fullmatch(name):
                _count(counters, name, _numbers(line, rest, at_least=8))
    return mounts


def by_superblock(
    mounts: Iterable[Mount], stats: Iterable[NfsMount]
) -> dict[str, Mapping[str, float]]:
    """The counters by superblock: a bind mount, or a second mount of the same export, has those of the
    first one.

    A place that is mounted over occurs twice; both files have the mounts in the same order.
    """
    devices: dict[str, list[str]] = {}
    for mount in mounts:
        devices.setdefault(mount.place, []).append(mount.device)
    found: dict[str, Mapping[str, float]] = {}
    for stat in stats:
        # A mount made between the two readings counts from the next time on.
        if waiting := devices.get(stat.place):
            found[waiting.pop(0)] = stat.counters
    return found


def _count(counters: dict[str, float], operation: str, fields: list[int]) -> None:
    """Fields: operations, transmissions, timeouts, bytes sent and received, and milliseconds in the
    queue, on the network, and in total.
    """
    done, sent, all_s = fields[0], fields[1], fields[7] / 1000
    _add(counters, "nfs_retransmissions_total", max(0, sent - done))
    if operation in ("READ", "WRITE"):
        _add(counters, f"nfs_{operation.lower()}s_total", done)
        _add(counters, f"nfs_{operation.lower()}_seconds_total", all_s)
    elif operation.startswith(_METADATA) and operation not in _NOT_METADATA:
        _add(counters, "nfs_metadata_total", done)
        _add(counters, "nfs_metadata_seconds_total", all_s)


def _add(counters: dict[str, float], name: str, number: float) -> None:
    counters[name] = counters.get(name, 0) + number


def _numbers(line: str, text: str, at_least: int) -> list[int]:
    fields = text.split()[:at_least]
    if len(fields) < at_least or not all(each.isascii() and each.isdecimal() for each in fields):
        raise ValueError(f"not counters of NFS: {line.strip()[:80]!r}")
    return [int(each) for each in fields]
