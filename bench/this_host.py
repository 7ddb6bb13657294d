"""Finds what benchmarks and tests need of the host that they run on: free ports, processes below one."""

import socket
from contextlib import suppress
from pathlib import Path


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def children_of(pid: int) -> list[int]:
    """All processes that descend from one, by /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *children_of(child)]
    return found
