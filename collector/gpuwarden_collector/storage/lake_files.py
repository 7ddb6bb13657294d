"""The files that the lake's catalogue names, and how they get onto the disk for good.

DuckDB calls fsync for the catalogue's log but not for Parquet files (seen with strace, DuckDB 1.5.5):
before the rows that a file holds go from anywhere else, the file itself must be synced.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.lake import METADATA


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of the lake as the catalogue has it."""

    id: int
    table: str
    path: str
    rows: int
    bytes: int
    newest: str | None
    """Its newest instant; None: unknown."""
    is_deletes: bool = False
    """Whether it says which rows of another file are deleted."""


def live_files(
    connection: duckdb.DuckDBPyConnection, root: str, *, after: int = -1
) -> list[LakeFile]:
    """The files of the newest snapshot with an id above `after`. `root`: the folder or prefix of
    the lake's files. Raises duckdb.Error."""
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
                file_size_bytes, false AS is_deletes
            FROM {METADATA}.ducklake_data_file WHERE end_snapshot IS NULL
            UNION ALL
            SELECT delete_file_id, table_id, path, path_is_relative, delete_count,
                file_size_bytes, true
            FROM {METADATA}.ducklake_delete_file WHERE end_snapshot IS NULL
        ) f
        JOIN {METADATA}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
        JOIN {METADATA}.ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
        WHERE f.id > $1 ORDER BY f.id
        """,
        [after],
    ).fetchall()
    return [
        LakeFile(r[0], r[1], _joined(root, (r[2:4], r[4:6], r[6:8])), r[8], r[9], r[11], r[10])
        for r in rows
    ]


def sync_files(cursor: duckdb.DuckDBPyConnection, root: str, after: int) -> int:
    """Have the disk take files with an id above `after`, and their folders; the newest id.

    An object store has what it has answered for. Raises StoreUnavailableError.
    """
    if is_remote(root):
        return after
    try:
        files = live_files(cursor, root, after=after)
    except duckdb.Error as error:
        raise StoreUnavailableError(one_line(error)) from error
    paths = [Path(file.path) for file in files]
    folders = {up for path in paths for up in path.parents if up.is_relative_to(root)}
    try:
        sync(paths)
        sync(sorted(folders))
    except OSError as error:
        raise StoreUnavailableError(f"{error.filename}: {error.strerror}") from error
    return max((file.id for file in files), default=after)


def sync(paths: Iterable[Path]) -> None:
    """fsync files and folders; what is gone needs none. Raises OSError."""
    for path in paths:
        try:
            number = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(number)
        finally:
            os.close(number)


def is_remote(root: str) -> bool:
    """Whether the lake's files are in an object store."""
    return "://" in root


def _joined(root: str, pieces: Iterable[tuple[str, bool]]) -> str:
    path = root
    for piece, is_relative in pieces:
        path = f"{path.rstrip('/')}/{piece}" if is_relative else piece
    return path
