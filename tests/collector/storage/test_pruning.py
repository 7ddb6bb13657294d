"""A question about one GPU or one hour reads little of the store: EXPLAIN ANALYZE says how little."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.collector.made_up_store import move_all, put

from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

GPUS, SECONDS = 40, 3600
ONE_GPU = "gpu_uuid = 'GPU-' || md5('5')"


def fill(database: Database, day: int) -> None:
    put(
        database,
        "gpu_samples",
        f"SELECT TIMESTAMP '2026-03-0{day}' + to_seconds(s) AS ts, 'n' || (g // 8) AS node, "
        "(g % 8)::INT AS gpu, 'GPU-' || md5(g::VARCHAR) AS gpu_uuid, "
        "((g + s) % 100)::INT AS util_percent, true AS simulated "
        f"FROM range({SECONDS}) a(s), range({GPUS}) b(g)",
    )


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Database]:
    """An hour of two days in the lake, and an hour of the third that is hot."""
    folder = tmp_path_factory.mktemp("days")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    database = Database.open(folder, EngineLimits(threads=1))
    for day in (1, 2):
        fill(database, day)
        move_all(database)
    fill(database, 3)
    yield database
    database.close()


def scans(database: Database, where: str) -> list[dict[str, Any]]:
    """The scans of gpu_samples that a question came to, as DuckDB measured them."""
    with database.reading() as cursor:
        sql = f"EXPLAIN (ANALYZE, FORMAT JSON) SELECT avg(util_percent) FROM gpu_samples WHERE {where}"
        profile = json.loads(cursor.execute(sql).fetchall()[0][1])

    def found(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        info = node.get("extra_info", {})
        if "gpu_samples" in str(info.get("Table", "")) or info.get("Function") == "ARROW_SCAN":
            yield node
        for child in node["children"]:
            yield from found(child)

    return list(found(profile))


def files_read(found: list[dict[str, Any]]) -> int:
    return sum(int(node["extra_info"].get("Total Files Read", 0)) for node in found)


def hot_rows_read(found: list[dict[str, Any]]) -> int:
    """Rows that Arrow, which filters by itself, hands over."""
    (hot,) = (node for node in found if node["extra_info"].get("Function") == "ARROW_SCAN")
    return int(hot["operator_cardinality"])


def window(day: int, hour: str = "00:30:00", minutes: int = 10) -> str:
    begin = f"TIMESTAMP '2026-03-0{day} {hour}'"
    return f"ts >= {begin} AND ts < {begin} + INTERVAL {minutes} MINUTE"


def test_a_day_in_the_lake_is_one_file_and_nothing_hot(days: Database) -> None:
    found = scans(days, window(2))
    assert files_read(found) == 1
    assert hot_rows_read(found) == 0
    assert sum(node["operator_cardinality"] for node in found) == 600 * GPUS


def test_the_newest_minutes_read_no_file_and_the_hot_rows_of_them(days: Database) -> None:
    found = scans(days, f"{ONE_GPU} AND {window(3)}")
    assert files_read(found) == 0
    assert hot_rows_read(found) == 600


def test_one_gpu_of_the_lake_is_within_one_row_group(days: Database) -> None:
    """The least and the greatest of each row group, by which DuckDB's own scan skips, are narrow."""
    lake = Path(days.lake_root)
    file = next(lake.rglob("**/gpu_samples/**/day=2/*.parquet"))
    wanted = duckdb.sql("SELECT 'GPU-' || md5('5')").fetchall()[0][0]
    groups = duckdb.sql(
        "SELECT row_group_id, row_group_num_rows, stats_min_value, stats_max_value "
        f"FROM parquet_metadata('{file}') WHERE path_in_schema = 'gpu_uuid'"
    ).fetchall()
    assert sum(rows for _, rows, _, _ in groups) == GPUS * SECONDS
    read = [rows for _, rows, least, most in groups if least <= wanted <= most]
    assert len(read) == 1
    assert len(groups) > 1
    found = scans(days, f"{ONE_GPU} AND {window(2)}")
    assert files_read(found) == 1
    assert sum(node["operator_cardinality"] for node in found) == 600


def test_an_hour_that_the_store_does_not_have_reads_nothing(days: Database) -> None:
    found = scans(days, window(1, "05:00:00", minutes=60))
    assert files_read(found) == 0
    assert hot_rows_read(found) == 0
