"""Runs the fork server of a hurried collector, and records when each operation of its store begins and ends.

`GPUWARDEN_CHAOS_DISK` names the folder of a `RecordedDisk`, which gets the file of marks.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

from bench.chaos.recorded_disk import POSITION, Position

from gpuwarden_collector import forked
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.storage import (
    backup,
    lake_files,
    lake_maintenance,
    maintenance,
    rollup_schedule,
    seal,
)
from gpuwarden_collector.storage import process as storage_process

VARIABLE = "GPUWARDEN_CHAOS_DISK"
MARKS = "marks"
DEFECT = "GPUWARDEN_CHAOS_DEFECT"
"""Names a defect to put back: a test checks that the campaign finds it."""
OPERATIONS: dict[str, tuple[Any, str]] = {
    "seal": (seal.Sealer, "_copy"),
    "drop segments": (seal.Sealer, "_keep_lost"),
    "roll up": (rollup_schedule, "roll_minutes"),
    "mend": (rollup_schedule, "mend"),
    "merge": (lake_maintenance, "merge"),
    "rewrite": (lake_maintenance, "rewrite"),
    "flush": (lake_maintenance, "flush"),
    "expire": (lake_maintenance, "expire"),
    "clean up": (lake_maintenance, "clean_up"),
    "backup": (backup, "_copied"),
}
"""Operations that are marked: module or class, and name of the function."""


@contextmanager
def marked(folder: Path, name: str) -> Iterator[None]:
    """Note the positions of the disk between which the block ran."""
    position = Position(folder / POSITION)
    begin = position.now
    try:
        yield
    finally:
        with (folder / MARKS).open("a") as file:
            file.write(f"{name}\t{begin}\t{position.now}\n")


@dataclass(frozen=True, slots=True)
class Mark:
    """An operation ran between two positions of the disk."""

    name: str
    begin: int
    end: int


def marks(folder: Path) -> list[Mark]:
    """All that ended."""
    lines = (folder / MARKS).read_text().splitlines()
    return [Mark(name, int(begin), int(end)) for name, begin, end in (x.split("\t") for x in lines)]


def mark_all(folder: Path) -> None:
    """Mark what this process does from now on."""

    def noting(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def noted(*arguments: Any, **named: Any) -> Any:
            with marked(folder, name):
                return work(*arguments, **named)

        return noted

    for name, (place, function) in OPERATIONS.items():
        setattr(place, function, noting(name, getattr(place, function)))


def hurry() -> None:
    """Run within seconds what normally runs by the hour or day."""
    storage_process.MAINTAIN_LOOK_S = 0.25
    maintenance.LOOK_EVERY_S = 0.25
    maintenance.HOURLY_S = maintenance.DAILY_S = maintenance.MERGE_EVERY_S = 2.0
    maintenance.SHORTLY_S = maintenance.PUT_OFF_S = 1.0
    maintenance.SNAPSHOTS_KEPT = timedelta(seconds=2)
    # Not shorter than the reader's queries take.
    maintenance.FILES_KEPT = maintenance.ORPHANS_KEPT = timedelta(seconds=30)


if __name__ == "__main__":
    hurry()
    storage_process.ROLL_LOOK_S = 1.0
    mark_all(Path(os.environ[VARIABLE]))
    if os.environ.get(DEFECT) == "unsynced":
        # As it once was: the lake's catalogue was on disk before its files.
        lake_files._make_durable = lambda before, now: None
    forkserver.main(forked.works)
