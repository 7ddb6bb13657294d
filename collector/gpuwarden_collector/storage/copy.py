"""Makes a consistent copy of an open store, while batches are being stored.

The caller sees to it that nothing is sealed, merged or dropped meanwhile: then all may be copied one
after the other. Segments come before the state file, as a commit writes that one first: a copy of it
that is ahead of the segments is what a kill leaves. The lake's files are never changed once they are
written, so a hard link is a copy of them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb

from gpuwarden.files import sync_tree
from gpuwarden_collector.storage.address import CATALOGUE, FILES, FOLDER
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.errors import StoreUnavailableError, translated
from gpuwarden_collector.storage.lake_files import is_remote, live_files
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import segment_numbers, segment_path
from gpuwarden_collector.storage.state import FILE_NAME

STAGING = "backup"
"""Within the lake's folder: copies that nobody has taken yet."""

# In a process of its own: this one reaches the catalogue through DuckDB's copy of SQLite, whose locks
# would be dropped when a second one lets go of the file.
_COPY = """
import sqlite3, sys
source, target = (sqlite3.connect(path) for path in sys.argv[1:])
source.backup(target)
target.execute("PRAGMA journal_mode = WAL")
target.close()
"""


def snapshot(database: Store, name: str) -> Path:
    """A copy of the store in a folder of its own within it.

    Raises StoreUnavailableError, and then leaves nothing.
    """
    if is_remote(database.lake_root):
        raise StoreUnavailableError(
            "the lake is in an object store: back up that and PostgreSQL with their own tools"
        )
    staging = database.data_dir / FOLDER / STAGING / name
    try:
        (staging / FOLDER / FILES).mkdir(parents=True)
        (staging / SEGMENTS).mkdir()
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
    """Copy an SQLite file as it is at one moment. Raises StoreUnavailableError, OSError."""
    done = subprocess.run(
        [sys.executable, "-c", _COPY, str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        raise StoreUnavailableError(f"{source} could not be copied: {said}")


def _link(cursor: duckdb.DuckDBPyConnection, root: str, target: Path) -> None:
    for file in live_files(cursor, root):
        path = Path(file.path)
        link_or_copy(path, target / path.relative_to(root))


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that never changes, or a copy on another file system. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
