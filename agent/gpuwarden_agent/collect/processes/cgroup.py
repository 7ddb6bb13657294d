"""Reads the limits of control groups: version 2, version 1, and both at once.

Limits of all groups up the tree apply, so the smallest one counts; memory use and throttled time are
those of the group with that limit. Groups are found by the mounts of this process, which may not start at
the root of the hierarchy: in a container, paths contain `..`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.files import read_text

NO_LIMIT_BYTES = 1 << 60
"""Version 1 says "no limit" as the largest number of pages."""

V2 = ""
"""Key of the unified hierarchy; version 1 has a controller's name there."""


@dataclass(frozen=True, slots=True)
class CgroupMount:
    """Where a hierarchy can be read."""

    folder: str
    root: str
    """The group of the hierarchy at this folder."""


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """Limits of a process; None: no limit, or unknown."""

    cpu_cores: float | None = None
    throttled_seconds: float | None = None
    """Summed over CPUs."""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None


def parse_mounts(mountinfo: str) -> dict[str, CgroupMount]:
    """/proc/PID/mountinfo: mounts by controller, V2 for the unified hierarchy."""
    mounts: dict[str, CgroupMount] = {}
    for line in mountinfo.splitlines():
        place, separator, system = line.partition(" - ")
        fields, kind = place.split(), system.split()
        if not separator or len(fields) < 5 or len(kind) < 3:
            continue
        names = [V2] if kind[0] == "cgroup2" else kind[2].split(",") if kind[0] == "cgroup" else []
        for name in names:
            mounts.setdefault(name, CgroupMount(_unescaped(fields[4]), _unescaped(fields[3])))
    return mounts


def _unescaped(text: str) -> str:
    for octal, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, plain)
    return text


def parse_paths(cgroup: str) -> dict[str, str]:
    """/proc/PID/cgroup: the process's group by controller, V2 for the unified hierarchy."""
    paths: dict[str, str] = {}
    for line in cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for name in parts[1].split(",") if parts[1] else [V2]:
                paths[name] = parts[2]
    return paths


def main_path(paths: Mapping[str, str]) -> str | None:
    """The most specific path of a process; None: there is none."""
    order = [paths[name] for name in (V2, "memory", "cpu", "name=systemd") if name in paths]
    return next((path for path in order if path != "/"), order[0] if order else None)


def folders_of(path: str, mount: CgroupMount) -> list[str]:
    """Folders of a group and of all groups above it in the mount, the group's own first.

    Empty if the mount has another part of the hierarchy.
    """
    parts, root = _parts(path), _parts(mount.root)
    if parts[: len(root)] != root:
        return []
    below = parts[len(root) :]
    if ".." in below:
        return []
    return ["/".join([mount.folder, *below[:depth]]) for depth in range(len(below), -1, -1)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


Read = Callable[[str], str | None]
"""Text of a file; None if it cannot be read."""


def cpu_max(text: str | None) -> float | None:
    """cpu.max in cores: "200000 100000" is 2."""
    quota, _, period = (text or "").partition(" ")
    return _ratio(quota, period)


def cpu_quota(quota: str | None, period: str | None) -> float | None:
    """cpu.cfs_quota_us and cpu.cfs_period_us in cores."""
    return _ratio(quota or "", period or "")


def _ratio(quota: str, period: str) -> float | None:
    share, of = number(quota), number(period)
    return share / of if share is not None and of else None


def number(text: str | None) -> int | None:
    """A file that holds one number; None for "max", -1 and anything else."""
    word = (text or "").strip()
    return int(word) if word.isascii() and word.isdigit() else None


def keyed(text: str | None, key: str) -> int | None:
    """The number after a key in a file of "KEY NUMBER" lines."""
    lines = (line.split() for line in (text or "").splitlines())
    return next((number(line[1]) for line in lines if len(line) == 2 and line[0] == key), None)


@dataclass(frozen=True, slots=True)
class _Version:
    """How to read a folder in one version of control groups."""

    cpu: str
    memory: str
    cores: Callable[[Read, str], float | None]
    throttled_s: Callable[[Read, str], float | None]
    limit: Callable[[Read, str], int | None]
    used: Callable[[Read, str], int | None]


def _v2_throttled_s(read: Read, folder: str) -> float | None:
    micros = keyed(read(f"{folder}/cpu.stat"), "throttled_usec")
    return None if micros is None else micros / 1e6


def _v1_throttled_s(read: Read, folder: str) -> float | None:
    nanos = keyed(read(f"{folder}/cpu.stat"), "throttled_time")
    return None if nanos is None else nanos / 1e9


def _v1_memory_limit(read: Read, folder: str) -> int | None:
    limit = number(read(f"{folder}/memory.limit_in_bytes"))
    return None if limit is None or limit >= NO_LIMIT_BYTES else limit


_V2 = _Version(
    cpu=V2,
    memory=V2,
    cores=lambda read, folder: cpu_max(read(f"{folder}/cpu.max")),
    throttled_s=_v2_throttled_s,
    limit=lambda read, folder: number(read(f"{folder}/memory.max")),
    used=lambda read, folder: number(read(f"{folder}/memory.current")),
)
_V1 = _Version(
    cpu="cpu",
    memory="memory",
    cores=lambda read, folder: cpu_quota(
        read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us")
    ),
    throttled_s=_v1_throttled_s,
    limit=_v1_memory_limit,
    used=lambda read, folder: number(read(f"{folder}/memory.usage_in_bytes")),
)


def limits_of(
    paths: Mapping[str, str], mounts: Mapping[str, CgroupMount], read: Read
) -> CgroupLimits:
    """The limits of a process in these groups."""

    def folders(controller: str) -> list[str]:
        mount, path = mounts.get(controller), paths.get(controller)
        return folders_of(path, mount) if mount and path else []

    # A controller is in one hierarchy: version 1's where it is mounted there.
    cpu = _V1 if "cpu" in paths else _V2
    memory = _V1 if "memory" in paths else _V2
    cores, cpu_folder = _tightest(folders(cpu.cpu), lambda folder: cpu.cores(read, folder))
    limit, memory_folder = _tightest(
        folders(memory.memory), lambda folder: memory.limit(read, folder)
    )
    own = next(iter(folders(memory.memory)), None)
    measured = memory_folder or own
    return CgroupLimits(
        cpu_cores=cores,
        throttled_seconds=cpu.throttled_s(read, cpu_folder) if cpu_folder else None,
        memory_bytes=None if limit is None else int(limit),
        memory_used_bytes=memory.used(read, measured) if measured else None,
    )


def _tightest(
    folders: Sequence[str], limit_of: Callable[[str], float | None]
) -> tuple[float | None, str | None]:
    """The smallest limit and its folder; of equal limits the outermost, which more processes share, so
    it is reached first.
    """

    def limits() -> Iterator[tuple[float, int]]:
        for depth, folder in enumerate(folders):
            limit = limit_of(folder)
            if limit is not None:
                yield limit, -depth

    found = min(limits(), default=None)
    return (None, None) if found is None else (found[0], folders[-found[1]])


class CgroupFs:
    """Reads control groups as this process's mounts show them."""

    def __init__(self, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
        try:
            self.mounts = parse_mounts(mountinfo.read_text(errors="replace"))
        except OSError:
            self.mounts = {}

    def limits(self, paths: Mapping[str, str]) -> CgroupLimits:
        """The limits of a process in these groups."""
        return limits_of(paths, self.mounts, read_text)
