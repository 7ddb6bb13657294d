"""Who reads without DuckLake sees the rows that DuckLake gives, whatever was done to the lake; no text of a query runs."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import LIMITS, in_this_process, move_all, put

from gpuwarden.query import QueryError
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.storage import lake_maintenance as maintenance
from gpuwarden_collector.storage.address import local_address
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.lake import sealed_segment
from gpuwarden_collector.storage.lake_reader import LakeReader
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

TABLES = ("events", "gpu_1m", "gpu_samples")
TEXTS = ("", "'; --", "é\n😀", "NULL", "[1, 2]", "x" * 300, "\\x00", '"')
FLOATS = ("NULL", "'nan'::DOUBLE", "'-inf'::DOUBLE", "1e308", "-0.0", "0.1")


@pytest.fixture
def reader(database: Database) -> Iterator[Engine]:
    with_state = StateFile(database.data_dir / FILE_NAME, is_read_only=True)
    engine = opened(database, with_state)
    yield engine
    engine.connection.close()
    with_state.close()


def opened(database: Database, state: StateFile) -> Engine:
    """What a query process reads by."""
    spill = database.data_dir / "spill" / "reader"
    with in_this_process():
        return Engine(
            database.data_dir, database.address, state, LIMITS, reads_alone=True, spill_dir=spill
        )


def fill(database: Database, day: int, rows: int) -> None:
    """Some rows of each table, of all kinds of values."""
    texts = ", ".join("'" + text.replace("'", "''") + "'" for text in TEXTS)
    at = f"TIMESTAMP '2026-03-0{day}' + to_milliseconds(n * 1234)"
    put(
        database,
        "events",
        f"SELECT {at} AS ts, 'n1' AS node, 'xid' AS kind, 'info' AS severity, "
        f"([{texts}])[n % {len(TEXTS)} + 1] AS message, n % 2 = 0 AS simulated FROM range({rows}) r(n)",
    )
    for table, value, more in (
        (
            "gpu_1m",
            "util_percent_avg",
            "1 AS samples, 6 AS expected, 0 AS detail_samples, 0 AS health_samples,",
        ),
        ("gpu_samples", "power_watts", ""),
    ):
        put(
            database,
            table,
            f"SELECT {at} AS ts, 'n1' AS node, 0 AS gpu, 'GPU-' || n AS gpu_uuid, true AS simulated, {more} "
            f"([{', '.join(FLOATS)}])[n % {len(FLOATS)} + 1] AS {value} FROM range({rows}) r(n)",
        )
    move_all(database)


def delete(database: Database, where: str) -> None:
    for table in TABLES:
        with database.maintaining() as cursor:
            cursor.execute(f"DELETE FROM lake.main.{table} WHERE {where}")


def flush(database: Database, _: int) -> None:
    with database.maintaining() as cursor:
        maintenance.flush(cursor, database.lake_root)


def merge(database: Database, _: int) -> None:
    for table in TABLES:
        with database.maintaining() as cursor:
            maintenance.merge(cursor, database.lake_root, table)


def rewrite(database: Database, _: int) -> None:
    for table in TABLES:
        with database.maintaining() as cursor:
            maintenance.rewrite(cursor, database.lake_root, table)


STEPS = {
    "many rows": lambda database, day: fill(database, day, 60),
    "few rows": lambda database, day: fill(database, day, 4),
    "many deleted": lambda database, day: delete(database, "epoch(ts)::BIGINT % 3 = 0"),
    "few deleted": lambda database, day: delete(
        database, f"ts - TIMESTAMP '2026-03-0{day}' BETWEEN INTERVAL 0 SECOND AND INTERVAL 3 SECOND"
    ),
    "flushed": flush,
    "merged": merge,
    "rewritten": rewrite,
}


def rows_of(cursor: Any, table: str) -> list[str]:
    return sorted(map(str, cursor.execute(f"SELECT * FROM main.{table}").fetchall()))


def check(database: Database, engine: Engine) -> int:
    """The rows of both, table by table; how many."""
    count = 0
    with database.reading() as cursor:
        expected = {table: rows_of(cursor, table) for table in TABLES}
    with engine.cursor() as cursor:
        engine.begin(cursor)
        for table, rows in expected.items():
            assert rows_of(cursor, table) == rows, table
            count += len(rows)
        cursor.execute("ROLLBACK")
    return count


def test_each_change_of_the_lake_is_seen(database: Database, reader: Engine) -> None:
    order = (
        "many rows", "few rows", "few deleted", "many deleted", "few rows", "many rows", "flushed", "merged",
        "rewritten",
    )  # fmt: skip
    counts = []
    for at, step in enumerate(order):
        STEPS[step](database, 1 + at % 2)
        counts.append(check(database, reader))
    assert len(set(counts)) > 4
    assert counts[-1] > 100


def test_a_flush_by_a_client_of_the_lake_hides_no_seal(database: Database, reader: Engine) -> None:
    fill(database, 1, 4)
    with database.reading() as cursor:
        sealed = sealed_segment(cursor, database.collector)
    assert reader.lake is not None and sealed > 0
    with database.maintaining() as cursor:
        cursor.execute("CALL ducklake_flush_inlined_data('lake')")
    begun_later = LakeReader(database.address, database.collector)
    for one in (reader.lake, begun_later):
        one.look(())
        assert one.sealed == sealed
    fill(database, 2, 4)
    begun_later.look(())
    assert begun_later.sealed > sealed


def test_files_and_rows_older_than_a_column_have_none_of_it(
    database: Database, reader: Engine
) -> None:
    with database.maintaining() as cursor:
        cursor.execute("ALTER TABLE lake.main.events DROP COLUMN details")
        for rows in (60, 4):
            cursor.execute(
                "INSERT INTO lake.main.events BY NAME SELECT TIMESTAMP '2026-03-01' AS ts, 'n1' AS node, "
                "'xid' AS kind, 'info' AS severity, 'o' || n AS message, false AS simulated "
                f"FROM range({rows}) r(n)"
            )
    with reader.cursor() as cursor:
        reader.begin(cursor)
        assert len(rows_of(cursor, "events")) == 64, "before a collector has added it"
    with database.maintaining() as cursor:
        cursor.execute("ALTER TABLE lake.main.events ADD COLUMN details VARCHAR")
    for step in ("few rows", "many rows", "few deleted", "flushed", "merged"):
        STEPS[step](database, 2)
        assert check(database, reader) > 64


@pytest.mark.slow
@settings(phases=(Phase.generate,), max_examples=8)
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, 3)), max_size=12))
def test_any_history_is_seen_as_ducklake_has_it(
    empty_store: Path, steps: list[tuple[str, int]]
) -> None:

    with TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        shutil.copytree(empty_store, data_dir)
        database = Database.open(data_dir, LIMITS, local_address(data_dir))
        state = StateFile(data_dir / FILE_NAME, is_read_only=True)
        engine = opened(database, state)
        fill(database, 1, 20)
        for step, day in steps:
            with suppress(StoreUnavailableError):  # DuckLake cannot do all that follows on all
                STEPS[step](database, day)
            check(database, engine)
        engine.connection.close()
        state.close()
        database.close()


INJECTED = (
    " OR 1 = 1); CREATE OR REPLACE VIEW gpuwarden.main.gpus_now AS SELECT 'owned' AS node; --"
)


NULS: tuple[tuple[str, dict[str, str]], ...] = (
    ("$nul", {"nul": "a\0"}), ("'a' || chr(0)", {}), ("'a' || decode('\\x00'::BLOB)", {}),
    ("'a' || url_decode('%00')", {}), ("json_extract_string('\"\\u0000\"', '$')", {}),
)  # fmt: skip


async def test_a_nul_character_runs_nothing(querier: SqlQuerier, database: Database) -> None:
    """DuckLake ends a constant of a condition at it and runs what follows, of the next one, as statements."""
    fill(database, 1, 60)
    fill(database, 2, 4)
    text = INJECTED.replace("'", "''")
    before = (await querier.query("SELECT * FROM gpus_now")).rows
    for nul, params in NULS:
        for table in ("slurm_job_samples", "events", "gpu_samples"):
            for how in ("", "EXPLAIN ", "DESCRIBE "):
                sql = f"{how}SELECT * FROM {table} WHERE node = {nul} AND node > '{text}'"
                try:
                    found = await querier.query(sql, params)
                except QueryError as error:
                    assert "NUL" in error.reason or "not allowed" in error.reason, error.reason
                else:
                    assert how or not found.rows
        assert (await querier.query("SELECT * FROM gpus_now")).rows == before, nul
