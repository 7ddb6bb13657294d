"""Makes a consistent copy of an open store, while batches are being committed.

The database and the lake's catalogue are copied as DuckDB sees them in one transaction each; the
caller sees to it that nothing is sealed, merged or dropped between the two. The lake's files are
never changed once they are written, so a hard link is a copy of them.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import duckdb

from gpuwarden_collector.store.address import CATALOGUE, FILES, FOLDER
from gpuwarden_collector.store.database import FILE_NAME, Database
from gpuwarden_collector.store.errors import StoreUnavailableError, translated
from gpuwarden_collector.store.files import is_remote, live_files
from gpuwarden_collector.store.lake import METADATA

STAGING = "backup"
"""Within the lake's folder, where DuckDB may write: copies that nobody has taken yet."""


def snapshot(database: Database, name: str) -> Path:
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
        with database.maintaining() as cursor:
            _copy(cursor, "current_database()", staging / FILE_NAME)
            _copy(cursor, f"'{METADATA}'", staging / FOLDER / CATALOGUE)
            _link(cursor, database.lake_root, staging / FOLDER / FILES)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, duckdb.Error):
            raise translated(error) from error
        if isinstance(error, OSError):
            raise StoreUnavailableError(f"{error.filename}: {error.strerror}") from error
        raise
    return staging


def _copy(cursor: duckdb.DuckDBPyConnection, source: str, path: Path) -> None:
    name = cursor.execute(f"SELECT {source}").fetchall()[0][0]
    text = str(path).replace("'", "''")
    cursor.execute(f"ATTACH '{text}' AS copied")
    try:
        # A transaction of its own, of all tables at one moment; it cannot stand within another.
        cursor.execute(f'COPY FROM DATABASE "{name}" TO copied')
    finally:
        with suppress(duckdb.Error):
            cursor.execute("DETACH copied")


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
