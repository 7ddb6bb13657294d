"""Backs up a store, running or not, and restores it.

A running collector makes a copy of one moment in its own folder. The command, with the rights of its user,
moves the copy to its destination and checks it. A copy that fails the check is not a backup.

While the copy is made nothing is sealed, merged or dropped, so files may be copied one after the other. Segments
come before the state file: a commit writes the state file first, so a copy of it that is ahead of the segments
is like the state after a kill. The lake's files never change, so a hard link is a copy. Files of notifications and
policies come first: an incident that they do not know yet is sent again, as after a kill. What is copied is in
`gpuwarden.data_folder`.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.clock import Clock
from gpuwarden.data_folder import COPIED_NAMES, OWN_FILES, copied_files
from gpuwarden.files import sync_folder, sync_tree
from gpuwarden.lifecycle import StartError
from gpuwarden.sizes import size_text
from gpuwarden_collector.processes.control_socket import NAME, ask
from gpuwarden_collector.storage.address import CATALOGUE, FILES, FOLDER
from gpuwarden_collector.storage.check import CheckReport, check
from gpuwarden_collector.storage.database import RESTORING, Database, Store, is_restore_cut_off
from gpuwarden_collector.storage.disk import free_bytes
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.errors import StoreUnavailableError, translated
from gpuwarden_collector.storage.lake_files import is_remote, live_files
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import segment_numbers, segment_path
from gpuwarden_collector.storage.state import FILE_NAME

ASK_S = 6 * 3_600.0
"""Longest wait for the collector's copy: as long as the longest step (`supervisor.py`)."""
LEFT_FOR = timedelta(days=1)
"""Age at which a copy that was not moved away is removed."""


class BackupError(StartError):
    """The backup or restore failed; the message says why, in one line."""


class Copier:
    """Makes copies of the running store, one at a time, and not during sealing or maintenance."""

    def __init__(self, database: Store, clock: Clock, turn: asyncio.Lock) -> None:
        self._database = database
        self._clock = clock
        self._turn = turn

    def remove_staged(self) -> None:
        """Remove copies of earlier runs: their hard links keep dropped files on the disk."""
        shutil.rmtree(self._database.data_dir / FOLDER / STAGING, ignore_errors=True)

    async def copy(self) -> dict[str, Any]:
        """Make a copy: `path`, or `error`; for the control socket."""
        async with self._turn:
            try:
                path = await asyncio.to_thread(_copied, self._database, self._clock)
            except (StoreUnavailableError, BackupError) as error:
                return {"error": str(error)}
        return {"path": str(path)}


def _copied(database: Store, clock: Clock) -> Path:
    folder = database.data_dir / FOLDER / STAGING
    now = clock.now()
    for left in folder.glob("*"):
        if left.stat().st_mtime < (now - LEFT_FOR).timestamp():
            shutil.rmtree(left, ignore_errors=True)
    need, free = 2 * database.size_bytes, free_bytes(database.data_dir)
    if free < need:
        raise BackupError(
            f"the copy may need {size_text(need)} in {folder}, and only {size_text(free)} are free"
        )
    return snapshot(database, f"{now:%Y%m%dT%H%M%S%f}")


Step = Callable[[str], None]
"""Receives the description of each step, for a progress display."""


def backup(
    data_dir: Path, destination: Path, clock: Clock, step: Step = lambda text: None
) -> CheckReport:
    """Copy the store in a folder to another, and check the copy. Raises StartError."""
    _check_empty(destination)
    step("copying the store")
    try:
        answer = ask(data_dir, "backup", ASK_S)
    except (OSError, ValueError) as error:
        raise BackupError(
            f"{data_dir / NAME}: {error}: run this as the collector's user"
        ) from error
    if answer is None:
        staged = _offline(data_dir, clock)
    elif "error" in answer:
        raise BackupError(f"the collector made no copy: {answer['error']}")
    else:
        staged = Path(answer["path"])
    step(f"moving the copy to {destination}")
    try:
        _take(staged, destination)
    except OSError as error:
        raise BackupError(f"{error.filename or destination}: {error.strerror}") from error
    step("checking it")
    return _checked(destination)


def restore(source: Path, data_dir: Path, step: Step = lambda text: None) -> CheckReport:
    """Create a store in a folder from a backup, which does not change. Raises StartError."""
    step("checking the backup")
    _checked(source)
    partial = data_dir / RESTORING
    is_again = is_restore_cut_off(data_dir)
    for name in COPIED_NAMES:
        if (data_dir / name).exists() and not is_again:
            raise BackupError(
                f"{data_dir / name} exists: move it away, or restore to another --data-dir"
            )
    step(f"copying it to {data_dir}")
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # Remove `partial` last: it marks the others as parts of an interrupted restore.
        for left in (data_dir / FOLDER, data_dir / SEGMENTS, partial):
            if left.exists():
                shutil.rmtree(left)
        _copy_store(source, partial)
        sync_tree(partial)
        # The state file comes last: without it there is no store.
        for folder in (FOLDER, SEGMENTS):
            (partial / folder).rename(data_dir / folder)
        for name in OWN_FILES:
            _move_files(partial, name, data_dir)
        sync_folder(data_dir)
        _move_files(partial, FILE_NAME, data_dir)
        partial.rmdir()
        sync_folder(data_dir)
        sync_folder(data_dir.absolute().parent)
    except OSError as error:
        raise BackupError(f"{error.filename}: {error.strerror}") from error
    step("checking the store")
    return _checked(data_dir)


def _move_files(source: Path, name: str, target: Path) -> None:
    """Move an SQLite file after its WAL and index, if it is there. Replaces what an interrupted restore left."""
    for path in sorted(source.glob(f"{name}*"), reverse=True):
        path.rename(target / path.name)


def _offline(data_dir: Path, clock: Clock) -> Path:
    if not (data_dir / FILE_NAME).exists():
        raise BackupError(f"{data_dir} has no store: choose another with --data-dir")
    database = Database.open(data_dir, EngineLimits())
    try:
        return _copied(database, clock)
    except StoreUnavailableError as error:
        raise BackupError(f"{data_dir}: {error}") from error
    finally:
        database.close()


def _take(staged: Path, destination: Path) -> None:
    """Move the staged copy: by renaming within a file system, else by copying."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if destination.exists():
        destination.rmdir()
    try:
        staged.rename(destination)
    except OSError:
        partial = destination.with_name(f"{destination.name}.partial")
        shutil.copytree(staged, partial)
        sync_tree(partial)
        partial.rename(destination)
        shutil.rmtree(staged, ignore_errors=True)
    sync_folder(destination.absolute().parent)


def _copy_store(source: Path, target: Path) -> None:
    for path in copied_files(source):
        copied = target / path
        if path.suffix == ".parquet":
            link_or_copy(source / path, copied)
        else:
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, copied)
    for folder in (FOLDER, SEGMENTS):
        (target / folder).mkdir(parents=True, exist_ok=True)


def _check_empty(destination: Path) -> None:
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise BackupError(f"{destination} exists and is not empty: name a new folder")


def _checked(folder: Path) -> CheckReport:
    """Check a store. Raises BackupError for a problem."""
    report = check(folder)
    if report.problems:
        raise BackupError(f"{folder} has a problem: {report.problems[0].what}")
    return report


STAGING = "backup"
"""Folder in the lake's folder for copies that are not moved away yet."""

# In a process of its own: this process opened the catalogue by DuckDB's copy of SQLite, whose locks are
# dropped when another copy closes the file.
_COPY = """
import sqlite3, sys
source, target = (sqlite3.connect(path) for path in sys.argv[1:])
source.backup(target)
target.execute("PRAGMA journal_mode = WAL")
target.close()
"""


def snapshot(database: Store, name: str) -> Path:
    """Copy the store to a folder of its own within the store. On an error no folder is left.

    Raises StoreUnavailableError.
    """
    if is_remote(database.lake_root):
        raise StoreUnavailableError(
            "the lake is in an object store: back up that and PostgreSQL with their own tools"
        )
    staging = database.data_dir / FOLDER / STAGING / name
    try:
        (staging / FOLDER / FILES).mkdir(parents=True)
        (staging / SEGMENTS).mkdir()
        for own in OWN_FILES:
            if (database.data_dir / own).exists():
                copy_sqlite(database.data_dir / own, staging / own)
        with database.maintaining() as cursor:
            _link(cursor, database.lake_root, staging / FOLDER / FILES)
            sealed = database.sealed(cursor)
        copy_sqlite(Path(database.address.catalog), staging / FOLDER / CATALOGUE)
        folder = database.data_dir / SEGMENTS
        for number in segment_numbers(folder):
            if number > sealed:
                shutil.copy2(segment_path(folder, number), segment_path(staging / SEGMENTS, number))
        database.state.backup(staging / FILE_NAME)
        sync_tree(staging)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, duckdb.Error):
            raise translated(error) from error
        if isinstance(error, OSError):
            raise StoreUnavailableError(f"{error.filename}: {error.strerror}") from error
        raise
    return staging


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy one moment of an SQLite file. Raises StoreUnavailableError, OSError."""
    done = subprocess.run(
        [sys.executable, "-c", _COPY, str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise StoreUnavailableError(f"{source} could not be copied: {reason}")


def _link(cursor: duckdb.DuckDBPyConnection, root: str, target: Path) -> None:
    for file in live_files(cursor, root):
        path = Path(file.path)
        link_or_copy(path, target / path.relative_to(root))


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file that never changes, or copy it to another file system. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
