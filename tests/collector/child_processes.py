"""Finds the processes of a test's collector."""

from collections.abc import Collection

import psutil


def children(name: str, but: Collection[int] = ()) -> list[int]:
    """Ids of those with a name; what has ended and nobody has waited for is not among them.

    `but` has those of collectors that live longer than a test.
    """
    below = psutil.Process().children(recursive=True)
    return [
        process.pid
        for process in below
        if process.pid not in but
        and process.is_running()
        and process.name() == name
        and process.status() != "zombie"
    ]
