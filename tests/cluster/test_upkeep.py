"""Upkeep of a lake whose catalogue is PostgreSQL and whose files are in an object store."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.collector.made_up_store import move_all, put

from gpuwarden_collector.storage import lake_maintenance as maintain
from gpuwarden_collector.storage.address import address_of
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.retention import DropDay, Reason

ROWS = 20
FIRST = date(2026, 1, 1)


def seal_days(database: Database, days: int) -> None:
    """So many days of rows, in a segment that is sealed."""
    for day in range(days):
        start = datetime(2026, 1, 1 + day)  # noqa: DTZ001  as columns are: naive UTC
        put(
            database,
            "gpu_samples",
            "SELECT $1::TIMESTAMP + to_seconds(s) AS ts, 'n' AS node, 'GPU-0' AS gpu_uuid, "
            "true AS simulated FROM range($2) t(s)",
            [start, ROWS],
        )
    move_all(database)


def counted(database: Database) -> Any:
    with database.reading() as cursor:
        return cursor.execute("SELECT count(*), min(ts)::DATE FROM gpu_samples").fetchone()


def test_days_are_dropped_files_merged_and_what_is_over_deleted(
    tmp_path: Path, conninfo: str, s3: dict[str, str]
) -> None:
    address = address_of(tmp_path, f"postgres:{conninfo}", "s3://lake/upkeep", s3)
    database = Database.open(tmp_path, EngineLimits("512MiB", threads=1), address)
    seal_days(database, 2)
    seal_days(database, 2)
    later = datetime.now(UTC) + timedelta(hours=1)
    with database.maintaining() as cursor:
        lake = maintain.read_lake(cursor, database.lake_root)
        assert [(p.day.day, p.rows, p.small_files) for p in lake.parts] == [(1, 40, 2), (2, 40, 2)]
        gone = [DropDay(part, Reason.AGE) for part in lake.parts if part.day == FIRST]
        assert maintain.drop(cursor, gone, later) == 2 * ROWS
        assert counted(database) == (40, date(2026, 1, 2))
        maintain.flush(cursor, database.lake_root)
        maintain.merge(cursor, database.lake_root, "gpu_samples")
        maintain.expire(cursor, later)
        assert maintain.forget_seals(cursor, later) == 1
        lake = maintain.read_lake(cursor, database.lake_root)
        assert [(p.day.day, p.rows, p.small_files) for p in lake.parts] == [(2, 40, 1)]
        assert maintain.clean_up(cursor, later) == 4
        assert maintain.remove_orphans(cursor, database.lake_root, tmp_path, later) == 0
    assert counted(database) == (40, date(2026, 1, 2))
    seal_days(database, 3)
    assert counted(database) == (40 + 3 * ROWS, FIRST)
    database.close()
