"""Lists the files that the lake's catalogue names, and syncs new files before the catalogue names them.

DuckDB calls fsync for the catalogue's log but not for Parquet files (seen with strace, DuckDB 1.5.5), so code
that writes files uses a `durable_transaction`.
"""

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gpuwarden.files import sync_folder
from gpuwarden_collector.storage.address import METADATA
from gpuwarden_collector.storage.errors import StoreUnavailableError, transaction

ASIDE = "lost"
"""Folder in the data folder for files that are set aside."""
_MAGIC = b"PAR1"
_LEAST_BYTES = 12


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file in the lake's catalogue."""

    id: int
    table: str
    path: str
    rows: int
    bytes: int
    newest: str | None
    """Its newest instant; None: unknown."""
    is_deletes: bool = False
    """Whether it is a delete file, which lists deleted rows of another file."""


def live_files(
    connection: duckdb.DuckDBPyConnection, root: str, *, of: Sequence[int] | None = None
) -> list[LakeFile]:
    """The files of the newest snapshot. `root`: the folder or prefix of the lake's files; `of`: only files that
    these snapshots added. Raises duckdb.Error."""
    rows = connection.execute(
        f"""
        SELECT f.id, t.table_name, s.path, s.path_is_relative, t.path, t.path_is_relative,
            f.path, f.path_is_relative, f.record_count, f.file_size_bytes, f.is_deletes,
            (SELECT any_value(x.max_value) FROM {METADATA}.ducklake_file_column_stats x
             JOIN {METADATA}.ducklake_column c ON c.column_id = x.column_id
                AND c.table_id = f.table_id AND c.column_name = 'ts' AND c.end_snapshot IS NULL
             WHERE x.data_file_id = f.id AND NOT f.is_deletes)
        FROM (
            SELECT data_file_id AS id, table_id, path, path_is_relative, record_count,
                file_size_bytes, false AS is_deletes, begin_snapshot
            FROM {METADATA}.ducklake_data_file WHERE end_snapshot IS NULL
            UNION ALL
            SELECT delete_file_id, table_id, path, path_is_relative, delete_count,
                file_size_bytes, true, begin_snapshot
            FROM {METADATA}.ducklake_delete_file WHERE end_snapshot IS NULL
        ) f
        JOIN {METADATA}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
        JOIN {METADATA}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
        WHERE $1 IS NULL OR f.begin_snapshot IN (SELECT unnest($1::BIGINT[])) ORDER BY f.id
        """,
        [of],
    ).fetchall()
    return [
        LakeFile(r[0], r[1], joined(root, (r[2:4], r[4:6], r[6:8])), r[8], r[9], r[11], r[10])
        for r in rows
    ]


def set_aside(data_dir: Path, path: Path) -> Path:
    """Move a file or folder to `lost/`, under a unique name; its new path. Raises OSError."""
    folder = data_dir / ASIDE
    folder.mkdir(exist_ok=True)
    target = folder / f"{path.name}.{path.stat().st_mtime_ns:x}"
    path.rename(target)
    for changed in (folder, path.parent, data_dir):
        sync_folder(changed)
    return target


@contextmanager
def durable_transaction(cursor: duckdb.DuckDBPyConnection, root: str) -> Iterator[None]:
    """A `transaction` that syncs new files below `root`, and reads them back, before COMMIT.

    An object store needs no sync. Raises StoreUnavailableError, RowsRefusedError.
    """
    with transaction(cursor):
        before = {} if is_remote(root) else _names(root)
        yield
        if is_remote(root):
            return
        try:
            _make_durable(before, _names(root))
        except OSError as error:
            where = error.filename or root
            raise StoreUnavailableError(f"{where}: {error.strerror or error}") from error


def _names(root: str) -> dict[str, frozenset[str]]:
    """Names of folders and files by folder."""
    found = os.walk(root)
    return {folder: frozenset((*folders, *files)) for folder, folders, files in found}


def _make_durable(before: Mapping[str, frozenset[str]], now: Mapping[str, frozenset[str]]) -> None:
    """Sync new files and folders, and read the files back. Raises OSError."""
    new = {folder: names - before.get(folder, frozenset()) for folder, names in now.items()}
    changed = sorted((folder for folder, names in new.items() if names), key=len, reverse=True)
    # From the bottom up, so that a name on disk points to content on disk.
    for folder in changed:
        for name in new[folder]:
            if name.endswith(".parquet"):
                _sync_and_read_back(Path(folder, name))
        sync_folder(Path(folder))


def _sync_and_read_back(path: Path) -> None:
    """Sync a Parquet file, and check its magic bytes on the disk. Raises OSError."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # another collector has deleted a file that it did not commit
    try:
        os.fsync(number)
        size = os.fstat(number).st_size
        if sys.platform == "linux":
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        is_whole = size >= _LEAST_BYTES and os.pread(number, 4, 0) == _MAGIC
        if not is_whole or os.pread(number, 4, size - 4) != _MAGIC:
            raise OSError(errno.EIO, "the file does not read back as it was written", str(path))
    finally:
        os.close(number)


def is_remote(root: str) -> bool:
    """Whether the lake's files are in an object store."""
    return "://" in root


def joined(root: str, pieces: Iterable[tuple[str, bool]]) -> str:
    """The path of a file. `pieces`: of its path in the catalogue, each with whether it is relative to the last."""
    path = root
    for piece, is_relative in pieces:
        path = f"{path.rstrip('/')}/{piece}" if is_relative else piece
    return path
