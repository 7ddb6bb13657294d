"""Runs SQLite transactions, and moves damaged database files aside."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

NOTIFICATIONS = "notify.sqlite"
"""In the collector's data folder: what notifications were sent, and those that wait."""


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit everything in the block, or roll it back. The connection must have `isolation_level=None`. Raises
    sqlite3.Error.
    """
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def move_aside(path: Path, now_ms: int) -> Path:
    """Rename the file and its WAL to unused names. Raises OSError."""
    target = path.with_name(f"{path.name}.corrupt-{now_ms}")
    while target.exists():
        now_ms += 1
        target = path.with_name(f"{path.name}.corrupt-{now_ms}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return target
