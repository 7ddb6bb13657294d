"""The store opens with clear words, writes all or nothing, and survives what goes wrong."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.collector.made_up_store import LIMITS, asked, asked_in, move_all

from gpuwarden.lifecycle import StartError
from gpuwarden.schema import TABLES, public_views
from gpuwarden_collector.query.execute import Interrupted, Reading
from gpuwarden_collector.storage import segment
from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.extensions import load_extension
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS
from gpuwarden_collector.storage.state import FILE_NAME


def count(database: Database, table: str = "gpu_samples") -> int:
    return int(asked(database, f"SELECT count(*) FROM {table}")[0][0])


def test_a_new_folder_gets_all_tables_and_views(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "deep" / "er", LIMITS)
    shown = asked(
        database,
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_catalog = 'gpuwarden' AND table_schema = 'main' AND table_name NOT LIKE 'hot%'",
    )
    views = {view.name for view in public_views()}
    assert set(TABLES) | views <= {row[0] for row in shown}
    database.close()


def test_time_is_utc_in_every_cursor_wherever_the_machine_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    database = Database.open(tmp_path, LIMITS)
    with database.reading() as cursor:
        row = cursor.execute("SELECT current_setting('TimeZone')").fetchone()
    assert row == ("UTC",)
    database.close()


def test_a_store_that_another_process_holds_is_named_with_its_process(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys; from gpuwarden_collector.storage.database import Database; "
        "from gpuwarden_collector.storage.engine import EngineLimits; "
        "database = Database.open(pathlib.Path(sys.argv[1]), EngineLimits()); "
        "print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StartError) as refused:
            Database.open(tmp_path, LIMITS)
        holder.kill()
        holder.wait(20)
        Database.open(tmp_path, LIMITS).close()
    finally:
        holder.kill()
        holder.communicate()
    assert str(refused.value) == (
        f"{tmp_path} is in use by process {holder.pid}: stop it or choose another --data"
    )


def test_a_folder_that_cannot_be_made_is_a_start_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="choose another with --data"):
        Database.open(tmp_path / "file" / "data", LIMITS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_a_start_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StartError, match="not writable"):
        Database.open(tmp_path, LIMITS)


def test_a_full_disk_is_a_start_error_that_asks_for_room(
    tmp_path: Path, files_of_at_most: Any
) -> None:
    Database.open(tmp_path, LIMITS).close()
    with files_of_at_most(0), pytest.raises(StartError, match="make room on its disk"):
        Database.open(tmp_path, LIMITS)
    Database.open(tmp_path, LIMITS).close()


def test_columns_that_came_later_are_null_in_the_rows_that_are_there(
    tmp_path: Path, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the lake, in segments and in the state file."""
    gone = {"util_percent", "power_watts", "serial"}

    def before(name: str) -> Any:
        return pa.schema([field for field in segment.SCHEMAS[name] if field.name not in gone])

    gpu = {"gpu_uuid": "GPU-0", "node": "n1", "simulated": True, "serial": "s"}
    gpus = pa.Table.from_pylist([gpu], schema=STORED_SCHEMAS["gpus"])
    database = Database.open(tmp_path, LIMITS)
    for second in (0, 1):
        # As an older version wrote it: without two columns in the middle.
        with monkeypatch.context() as older:
            schemas = {name: before(name) for name in segment.SCHEMAS}
            older.setattr(segment, "SCHEMAS", schemas)
            database.freeze()
            rows = wire.table("gpu_samples", [wire.gpu_row(second=second)])
            frame = segment.Frame({"gpu_samples": rows.select(schemas["gpu_samples"].names).cast(
                schemas["gpu_samples"])})  # fmt: skip
            database.append(frame)
        if second == 0:
            move_all(database)
    commit(database, Changes(upserted={"gpus": gpus}))
    database.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as state:
        state.execute("ALTER TABLE gpus DROP COLUMN serial")
    lake = duckdb.connect()
    load_extension(lake, "ducklake")
    load_extension(lake, "sqlite_scanner")
    lake.execute(f"ATTACH 'ducklake:sqlite:{tmp_path}/{FOLDER}/{CATALOGUE}' AS lake")
    for column in ("util_percent", "power_watts"):
        lake.execute(f"ALTER TABLE lake.main.gpu_samples DROP COLUMN {column}")
    lake.close()

    database = Database.open(tmp_path, LIMITS)
    newer = wire.table("gpu_samples", [wire.gpu_row(second=2, power_watts=300.0)])
    commit(database, Changes(appended={"gpu_samples": newer}))
    rows = asked(
        database, "SELECT gpu_uuid, util_percent, power_watts FROM gpu_samples ORDER BY ts"
    )
    assert rows == [("GPU-0", None, None), ("GPU-0", None, None), ("GPU-0", 50.0, 300.0)]
    assert asked(database, "SELECT gpu_uuid, serial FROM gpus") == [("GPU-0", None)]
    database.close()


def test_a_wrong_memory_limit_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be opened"):
        Database.open(tmp_path, EngineLimits(memory="lots"))


def test_a_folder_may_have_any_name_and_holds_what_spills(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    opened = Database.open(folder, EngineLimits(threads=1))
    try:
        with opened.reading() as cursor:
            row = cursor.execute("SELECT current_setting('temp_directory')").fetchone()
            assert cursor.execute("SELECT count(*) FROM gpu_samples").fetchone() == (0,)
    finally:
        opened.close()
    assert row is not None and Path(row[0]).is_relative_to(folder / "spill")


def test_a_commit_is_all_or_nothing(database: Database, wire: Any) -> None:
    good = wire.table("gpu_samples", wire.gpu_rows(2, [0]))
    nameless = pa.Table.from_pylist([{"node": "n1"}], schema=STORED_SCHEMAS["gpus"])
    with pytest.raises(RowsRefusedError, match="NOT NULL"):
        commit(database, Changes(appended={"gpu_samples": good}, upserted={"gpus": nameless}))
    assert count(database) == 0
    commit(database, Changes(appended={"gpu_samples": good}))
    assert count(database) == 2


def test_readers_see_what_is_committed_and_not_what_is_not(database: Database, wire: Any) -> None:
    rows = wire.table("gpu_samples", wire.gpu_rows(3, [0]))
    with database.reading() as cursor:
        counts = [cursor.execute("SELECT count(*) FROM gpu_samples").fetchone()]
        commit(database, Changes(appended={"gpu_samples": rows}))
        counts.append(cursor.execute("SELECT count(*) FROM gpu_samples").fetchone())
    assert [*counts, (count(database),)] == [(0,), (0,), (3,)]


def test_a_reading_that_is_interrupted_before_it_begins_does_not_begin(database: Database) -> None:
    reading = Reading(database)
    reading.interrupt()
    with reading.opened(), pytest.raises(Interrupted):
        reading.run("SELECT 1", {}, 10)


def test_the_store_takes_rows_again_when_a_full_disk_has_space(
    tmp_path: Path, wire: Any, files_of_at_most: Any
) -> None:
    database = Database.open(tmp_path, LIMITS)
    rows = Changes(appended={"gpu_samples": wire.table("gpu_samples", wire.gpu_rows(100, [0]))})
    commit(database, rows)
    before = database.segment_number
    with files_of_at_most(database.size_bytes - 100), pytest.raises(StoreUnavailableError):
        for _ in range(1_000):
            commit(database, rows)
    stored = count(database)
    commit(database, rows)
    assert count(database) == stored + 100
    assert database.segment_number == before + 1, "behind what may be torn"
    database.close()
    assert asked_in(tmp_path, "SELECT count(*) FROM gpu_samples") == [(stored + 100,)]


def test_a_duckdb_that_declares_itself_invalid_is_replaced(database: Database, wire: Any) -> None:
    rows = Changes(appended={"gpu_samples": wire.table("gpu_samples", wire.gpu_rows(100, [0]))})
    commit(database, rows)
    move_all(database)
    commit(database, rows)
    with pytest.raises(duckdb.FatalException), database.reading() as cursor:
        cursor.execute("SELECT count(*) FROM gpu_samples")
        raise duckdb.FatalException("the database has been invalidated")
    assert count(database) == 200


def test_a_store_that_has_lost_its_state_file_is_the_same_collector(
    tmp_path: Path, wire: Any
) -> None:
    """Else rows that the lake holds already, of a segment not yet deleted, would be there twice."""
    database = Database.open(tmp_path, LIMITS)
    rows = wire.table("gpu_samples", wire.gpu_rows(3, [0]))
    commit(database, Changes(appended={"gpu_samples": rows}))
    collector = database.collector
    database.close()
    for path in tmp_path.glob(f"{FILE_NAME}*"):
        path.unlink()
    again = Database.open(tmp_path, LIMITS)
    assert (again.collector, count(again)) == (collector, 3)
    again.close()
