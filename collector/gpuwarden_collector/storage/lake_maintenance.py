"""Implements the maintenance tasks of the lake, one transaction each: drop, flush, merge, expire, clean up.

A day is dropped in the catalogue alone: the last snapshot of its files is set, as the format (DuckLake 1.0)
describes for a file that is deleted whole. DuckLake's DELETE reads and sorts every row of the day: 21 s for
17 million rows, where this takes milliseconds.

`METADATA` is DuckLake's name of the catalogue's tables. A transaction writes either to them or to the
lake's tables, never to both.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path

import duckdb

from gpuwarden_collector.storage.address import METADATA
from gpuwarden_collector.storage.errors import transaction, translating
from gpuwarden_collector.storage.lake import SEALED_TABLES
from gpuwarden_collector.storage.lake_files import (
    ASIDE,
    durable_transaction,
    is_remote,
    live_files,
    set_aside,
)
from gpuwarden_collector.storage.retention import DropDay, LakeDay
from gpuwarden_collector.storage.sql import scalar

SMALL_FILE_BYTES = 16 * 1024 * 1024
"""Larger files are not merged: that reads and sorts many rows and gains little."""
REWRITE_DELETED = 0.1
"""Share of deleted rows from which a file is rewritten without them; DuckLake merges no file with deleted rows."""

# The day of a file is the day of its newest row: when that row is old enough to drop, all are.
_FILES_SQL = f"""
SELECT t.table_name, CAST(s.max_value AS TIMESTAMP)::DATE AS day,
    f.table_id, f.data_file_id, f.record_count, f.file_size_bytes
FROM {METADATA}.ducklake_data_file f
JOIN {METADATA}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
JOIN {METADATA}.ducklake_column c
    ON c.table_id = f.table_id AND c.column_name = 'ts' AND c.end_snapshot IS NULL
JOIN {METADATA}.ducklake_file_column_stats s
    ON s.data_file_id = f.data_file_id AND s.column_id = c.column_id
WHERE f.end_snapshot IS NULL AND s.max_value IS NOT NULL
"""

_PARTS_SQL = f"""
SELECT table_name, day, sum(record_count)::BIGINT, sum(file_size_bytes)::BIGINT, count(*),
    count(*) FILTER (file_size_bytes < {SMALL_FILE_BYTES})
FROM ({_FILES_SQL}) GROUP BY 1, 2 ORDER BY 1, 2
"""

_DROPPED_SQL = f"""
CREATE TABLE IF NOT EXISTS {METADATA}.gpuwarden_dropped (
    table_name VARCHAR, day DATE, "rows" BIGINT, bytes BIGINT, reason VARCHAR, dropped_at TIMESTAMP
)
"""


_MENDED_SQL = f"""
SELECT t.table_name, count(*)
FROM {METADATA}.ducklake_delete_file d
JOIN {METADATA}.ducklake_data_file f USING (data_file_id)
JOIN {METADATA}.ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
WHERE d.end_snapshot IS NULL AND f.end_snapshot IS NULL
    AND d.delete_count >= {REWRITE_DELETED} * f.record_count
GROUP BY 1
"""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Files that the newest snapshot does not have."""

    held_bytes: int = 0
    """Size of files that only older snapshots have."""
    scheduled: int = 0
    """Number of files that no snapshot has; they are deleted when no query can be reading them."""
    scheduled_bytes: int = 0
    since: datetime | None = None
    """When the first of these files was scheduled for deletion."""

    @property
    def bytes(self) -> int:
        """Bytes that become free without dropping more days."""
        return self.held_bytes + self.scheduled_bytes


@dataclass(frozen=True, slots=True)
class Lake:
    """The state of the lake, from its catalogue."""

    parts: tuple[LakeDay, ...]
    leaving: Leaving
    oldest_snapshot_at: datetime
    mended_files: Mapping[str, int] = field(default_factory=dict)
    """Number of files to rewrite without their deleted rows, by table."""


def read_lake(cursor: duckdb.DuckDBPyConnection, root: str) -> Lake:
    """Read the state of the lake. `root`: the folder or prefix of its files. Instants are naive UTC.

    Raises StoreUnavailableError.
    """
    with translating():
        rows = cursor.execute(_PARTS_SQL).fetchall()
        parts = tuple(LakeDay(*row) for row in rows)
        held = scalar(
            cursor,
            f"SELECT coalesce(sum(file_size_bytes), 0)::BIGINT FROM {METADATA}.ducklake_data_file "
            "WHERE end_snapshot IS NOT NULL",
        )
        scheduled = cursor.execute(
            f"SELECT path, path_is_relative, schedule_start::TIMESTAMP "
            f"FROM {METADATA}.ducklake_files_scheduled_for_deletion"
        ).fetchall()
        oldest = scalar(
            cursor, f"SELECT min(snapshot_time::TIMESTAMP) FROM {METADATA}.ducklake_snapshot"
        )
        mended = dict(cursor.execute(_MENDED_SQL).fetchall())
    sizes = [_size(Path(root, path) if relative else Path(path)) for path, relative, _ in scheduled]
    since = min((at for _, _, at in scheduled), default=None)
    return Lake(parts, Leaving(held, len(scheduled), sum(sizes), since), oldest, mended)


def pinned(
    cursor: duckdb.DuckDBPyConnection, root: str, parts: Sequence[LakeDay]
) -> tuple[LakeDay, ...]:
    """The days with the bytes that would stay on the disk if they were dropped. Raises StoreUnavailableError."""
    held: Counter[tuple[str, str]] = Counter()
    with translating():
        files = live_files(cursor, root)
    for file in files:
        if file.newest is not None and _links(Path(file.path)) > 1:
            held[file.table, file.newest[:10]] += file.bytes
    return tuple(replace(p, pinned_bytes=held[p.table, p.day.isoformat()]) for p in parts)


def _links(path: Path) -> int:
    try:
        return path.stat().st_nlink
    except OSError:
        return 0


def drop(cursor: duckdb.DuckDBPyConnection, chosen: Sequence[DropDay], now: datetime) -> int:
    """Drop days of tables in one transaction; the number of rows. Their files are deleted later.

    Dropped days are noted in the catalogue's table `gpuwarden_dropped`. Raises StoreUnavailableError.
    """
    chosen_days = {(d.part.table, d.part.day) for d in chosen}
    with translating():
        cursor.execute(_DROPPED_SQL)
    with transaction(cursor):
        files = cursor.execute(_FILES_SQL).fetchall()
        going = [
            (table_id, file_id, rows)
            for table, day, table_id, file_id, rows, _ in files
            if (table, day) in chosen_days
        ]
        if going:
            _end_files(cursor, {file_id for _, file_id, _ in going}, {t for t, _, _ in going})
            _note(cursor, chosen, now)
    return sum(rows for _, _, rows in going)


def _end_files(cursor: duckdb.DuckDBPyConnection, files: set[int], tables: set[int]) -> None:
    """Add a snapshot of the lake without these files of these tables."""
    cursor.execute(
        f"INSERT INTO {METADATA}.ducklake_snapshot "
        "SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id "
        f"FROM {METADATA}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
    )
    snapshot = scalar(cursor, f"SELECT max(snapshot_id) FROM {METADATA}.ducklake_snapshot")
    for name in ("ducklake_data_file", "ducklake_delete_file"):
        cursor.execute(
            f"UPDATE {METADATA}.{name} SET end_snapshot = $1 "
            "WHERE end_snapshot IS NULL AND data_file_id IN (SELECT unnest($2))",
            [snapshot, sorted(files)],
        )
    cursor.execute(
        f"INSERT INTO {METADATA}.ducklake_snapshot_changes "
        "(snapshot_id, changes_made, author, commit_message) VALUES ($1, $2, 'gpuwarden', $3)",
        [
            snapshot,
            ",".join(f"deleted_from_table:{table}" for table in sorted(tables)),
            "days dropped",
        ],
    )


def _note(cursor: duckdb.DuckDBPyConnection, chosen: Sequence[DropDay], now: datetime) -> None:
    at = now.replace(tzinfo=None)
    cursor.executemany(
        f"INSERT INTO {METADATA}.gpuwarden_dropped VALUES ($1, $2, $3, $4, $5, $6)",
        [[d.part.table, d.part.day, d.part.rows, d.part.bytes, d.reason.value, at] for d in chosen],
    )


def flush(cursor: duckdb.DuckDBPyConnection, root: str) -> None:
    """Write rows of sealed tables that are inlined in the catalogue to files; `collectors` stays, as its readers expect."""
    with durable_transaction(cursor, root):
        inlined = cursor.execute(
            f"SELECT t.table_name, i.table_name FROM {METADATA}.ducklake_inlined_data_tables i "
            f"JOIN {METADATA}.ducklake_table t "
            "ON t.table_id = i.table_id AND t.end_snapshot IS NULL"
        ).fetchall()
        for name, rows in inlined:
            count = f"SELECT count(*) FROM {METADATA}.{rows} WHERE end_snapshot IS NULL"
            if name in SEALED_TABLES and scalar(cursor, count):
                cursor.execute(f"CALL ducklake_flush_inlined_data('lake', table_name => '{name}')")


def merge(cursor: duckdb.DuckDBPyConnection, root: str, table: str) -> int:
    """Merge small files of a day into one of at most MERGE_BYTES_MAX, sorted by the table's key; how many were
    merged. 0: no day has small files."""
    with durable_transaction(cursor, root):
        rows = cursor.execute(
            f"CALL ducklake_merge_adjacent_files('lake', '{table}', "
            f"max_compacted_files => 1, max_file_size => {SMALL_FILE_BYTES})"
        ).fetchall()
    return sum(int(row[2]) for row in rows)


def rewrite(cursor: duckdb.DuckDBPyConnection, root: str, table: str) -> int:
    """Rewrite files that have many deleted rows, so that they can be merged; how many."""
    with durable_transaction(cursor, root):
        rows = cursor.execute(
            f"CALL ducklake_rewrite_data_files('lake', '{table}', delete_threshold => {REWRITE_DELETED})"
        ).fetchall()
    return sum(int(row[2]) for row in rows)


def expire(cursor: duckdb.DuckDBPyConnection, before: datetime) -> None:
    """Expire snapshots older than that, but never the last. Files that only they had are scheduled for deletion."""
    with translating():
        cursor.execute(
            "CALL ducklake_expire_snapshots('lake', older_than => $1::TIMESTAMP)",
            [before.replace(tzinfo=None)],
        )


def forget_seals(cursor: duckdb.DuckDBPyConnection, before: datetime) -> int:
    """Delete rows of seals before that, except the newest of each collector; how many.

    Each query and each check of the sealer reads all these rows. A query that began before `before` must not run any
    more, as it would find no seal of its collector. The rows are inlined in the catalogue and never flushed. Raises
    StoreUnavailableError.
    """
    with transaction(cursor):
        inlined = cursor.execute(
            f"SELECT i.table_name FROM {METADATA}.ducklake_inlined_data_tables i "
            f"JOIN {METADATA}.ducklake_table t USING (table_id) "
            "WHERE t.table_name = 'collectors' AND t.end_snapshot IS NULL"
        ).fetchall()
        gone = 0
        for (name,) in inlined:
            rows = f'{METADATA}."{name}"'
            sql = (
                f"DELETE FROM {rows} WHERE sealed_at::TIMESTAMP < $1 AND (collector, segment) NOT IN "
                f"(SELECT (collector, max(segment)) FROM {rows} GROUP BY collector)"
            )
            gone += scalar(cursor, sql, [before.replace(tzinfo=None)]) or 0
    return gone


def clean_up(cursor: duckdb.DuckDBPyConnection, before: datetime) -> int:
    """Delete files that were scheduled before that; how many."""
    with translating():
        rows = cursor.execute(
            "CALL ducklake_cleanup_old_files('lake', older_than => $1::TIMESTAMP)",
            [before.replace(tzinfo=None)],
        ).fetchall()
    return len(rows)


def remove_orphans(
    cursor: duckdb.DuckDBPyConnection, root: str, data_dir: Path, before: datetime
) -> int:
    """Set aside files that the catalogue does not name and that last changed before that; how many. In an object
    store they are deleted.

    A kill leaves such files. So does a restore of the catalogue from a backup: then they hold rows that exist
    nowhere else. Raises StoreUnavailableError, OSError.
    """
    is_here = not is_remote(root)
    with translating():
        rows = cursor.execute(
            "CALL ducklake_delete_orphaned_files('lake', dry_run => $1, older_than => $2::TIMESTAMP)",
            [is_here, before.replace(tzinfo=None)],
        ).fetchall()
    if is_here:
        for (path,) in rows:
            set_aside(data_dir, Path(path))
    return len(rows)


def forget_set_aside(data_dir: Path, before: datetime) -> int:
    """Delete Parquet files that were set aside before that; how many. Raises OSError."""
    old = [
        path
        for path in (data_dir / ASIDE).glob("*.parquet.*")
        # Renaming sets ctime; mtime is older.
        if path.stat().st_ctime < before.timestamp()
    ]
    for path in old:
        path.unlink()
    return len(old)


def remove_empty_folders(root: str, before: date) -> None:
    """Remove empty folders of days before that, and months and years that they leave empty."""
    for folder in sorted(Path(root).glob("*/*/year=*/month=*/day=*"), reverse=True):
        year, month, day = (int(part.partition("=")[2]) for part in folder.parts[-3:])
        if date(year, month, day) >= before:
            continue
        with suppress(OSError):
            for empty in (folder, folder.parent, folder.parent.parent):
                empty.rmdir()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
