"""Computes how much memory a query process may have.

DuckDB keeps to its own limit for what it buffers, not for a single value, a list or a text, nor for what
the result needs as Python's values: the kernel's limit is for these, and above DuckDB's.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpuwarden.lifecycle import StartError

IDLE_BYTES = 256 * 1024 * 1024
"""What a process has before its first query, 210 MiB as the kernel counts it, and some room."""
_SHARE = 8
_LIMIT_BYTES_MAX = 1024 * 1024 * 1024
_LIMIT_BYTES_MIN = 64 * 1024 * 1024
_BESIDE = 2.5
_RECENT_BYTES_MAX = 128 * 1024 * 1024
"""With more a process would be replaced soon: see `RSS_BYTES_MAX` in `worker.py`."""
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(B|[KMGT]I?B?)\s*", re.IGNORECASE)


def limits(memory_limit: str | None, data_bytes_max: int | None) -> tuple[str, int]:
    """DuckDB's limit and the kernel's for a query process, as chosen or as this machine has memory for.

    Raises StartError.
    """
    if memory_limit is None:
        size = max(_LIMIT_BYTES_MIN, min(_LIMIT_BYTES_MAX, machine_bytes() // _SHARE))
        memory_limit = f"{size >> 20}MiB"
    if data_bytes_max is None:
        data_bytes_max = IDLE_BYTES + int(_BESIDE * size_bytes(memory_limit))
    return memory_limit, data_bytes_max


def recent_bytes_max(memory_limit: str) -> int:
    """Most memory for rows that a process keeps for rules, a part of DuckDB's limit. Raises StartError."""
    return min(_RECENT_BYTES_MAX, size_bytes(memory_limit) // 4)


def size_bytes(text: str) -> int:
    """A size as DuckDB has it, such as 512MiB or 8GB. Raises StartError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise StartError(f"query_memory_limit is {text!r}: give a size such as 512MiB or 4GiB")
    unit = found[2].upper().rstrip("B")
    base = 1024 if unit.endswith("I") else 1000
    return int(float(found[1]) * base ** " KMGT".index(unit[:1] or " "))


def machine_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can have: the machine's, or less where its control group has less."""
    known = [_total_bytes(root), *_group_bytes(root)]
    return min(known)


def _total_bytes(root: Path) -> int:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    # Not there where a service may see processes alone.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _group_bytes(root: Path) -> Iterator[int]:
    """Limits of the control group and of those that it is in, of both versions of the interface."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max" is no number
                    yield int((folder / name).read_text())
                if folder == top:
                    break
