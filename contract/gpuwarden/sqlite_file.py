"""Writes a part's SQLite file in whole transactions, and moves a damaged one out of the way."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All that is done within is kept, or nothing. The connection begins none of its own
    (`isolation_level=None`). Raises sqlite3.Error.
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
    """Rename the file and its WAL, which belongs to it, to names that are not taken. Raises OSError."""
    target = path.with_name(f"{path.name}.corrupt-{now_ms}")
    while target.exists():
        now_ms += 1
        target = path.with_name(f"{path.name}.corrupt-{now_ms}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return target
