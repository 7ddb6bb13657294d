"""The store opens with clear words, writes all or nothing, and survives what goes wrong."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gpuwarden.life import StartError
from gpuwarden.query import QueryError
from gpuwarden.schema import TABLES
from gpuwarden_collector.decode import STORED_SCHEMAS
from gpuwarden_collector.store.commit import Changes, commit, is_usable, load_rows
from gpuwarden_collector.store.database import FILE_NAME, SCHEMA_VERSION, Database, Limits
from gpuwarden_collector.store.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.store.reading import Interrupted, Reading

LIMITS = Limits(memory="512MiB", threads=1)


def count(database: Database, table: str = "gpu_samples") -> int:
    row = database.writing.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def test_a_new_folder_gets_all_tables_and_views(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "deep" / "er", LIMITS)
    shown = database.writing.execute("SHOW TABLES").fetchall()
    views = {"gpus_now", "gpu_health_now", "links_now", "nodes_now", "alerts_now", "waste"}
    assert set(TABLES) | views == {row[0] for row in shown}
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


def test_a_database_that_another_process_holds_is_named_with_its_process(tmp_path: Path) -> None:
    script = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('open', flush=True); "
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / FILE_NAME)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin and holder.stdout
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StartError) as refused:
            Database.open(tmp_path, LIMITS)
    finally:
        holder.stdin.close()
        holder.wait(20)
    assert f"is in use by process {holder.pid} (" in str(refused.value)
    assert str(refused.value).endswith("stop it or choose another --data")


def test_a_folder_that_cannot_be_made_is_a_start_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="choose another with --data"):
        Database.open(tmp_path / "file" / "data", LIMITS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_a_start_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StartError, match="not writable"):
        Database.open(tmp_path, LIMITS)


def test_a_file_that_is_no_database_is_a_start_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 1000)
    with pytest.raises(StartError, match="cannot be opened"):
        Database.open(tmp_path, LIMITS)


def test_a_full_disk_is_a_start_error_that_asks_for_room(
    tmp_path: Path, files_of_at_most: Any
) -> None:
    Database.open(tmp_path, LIMITS).close()
    with files_of_at_most(0), pytest.raises(StartError, match="make room on its disk"):
        Database.open(tmp_path, LIMITS)
    Database.open(tmp_path, LIMITS).close()


def test_a_newer_schema_is_a_start_error_that_says_so(tmp_path: Path) -> None:
    database = Database.open(tmp_path, LIMITS)
    database.writing.execute("UPDATE internal.schema_version SET version = version + 1")
    database.close()
    with pytest.raises(StartError, match=f"schema version {SCHEMA_VERSION + 1}.*knows up to"):
        Database.open(tmp_path, LIMITS)


def test_columns_that_came_later_are_added_to_a_database_that_is_there(
    tmp_path: Path, wire: Any
) -> None:
    database = Database.open(tmp_path, LIMITS)
    commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", [wire.gpu_row()])}))
    # As an older version made it: without two columns in the middle.
    for column in ("util_percent", "power_watts"):
        for table in (hot_table("gpu_samples", 1), "lake.main.gpu_samples"):
            database.writing.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    database.close()

    database = Database.open(tmp_path, LIMITS)
    newer = wire.table("gpu_samples", [wire.gpu_row(second=1, power_watts=300.0)])
    commit(database, Changes(appended={"gpu_samples": newer}))
    rows = database.writing.execute(
        "SELECT gpu_uuid, util_percent, power_watts FROM gpu_samples ORDER BY ts"
    ).fetchall()
    assert rows == [("GPU-0", None, None), ("GPU-0", 50.0, 300.0)]
    database.close()


def test_a_database_of_version_1_is_brought_up_to_date(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / FILE_NAME)) as old:
        old.execute("CREATE SCHEMA internal")
        old.execute("CREATE TABLE internal.schema_version (version INTEGER NOT NULL)")
        old.execute("INSERT INTO internal.schema_version VALUES (1)")
        old.execute(
            "CREATE TABLE gpu_samples (ts TIMESTAMP, node VARCHAR, gpu_uuid VARCHAR, "
            "simulated BOOLEAN, power_watts FLOAT)"
        )
        old.execute("INSERT INTO gpu_samples VALUES ('2026-03-01', 'n1', 'GPU-0', true, 300)")
        old.execute("CREATE VIEW gpus_now AS SELECT * FROM gpu_samples")
        old.execute(
            "CREATE TABLE internal.ledger (agent_id VARCHAR NOT NULL, boot_id VARCHAR NOT NULL, floor BIGINT"
            " NOT NULL, ranges VARCHAR NOT NULL, heard_at TIMESTAMP NOT NULL, PRIMARY KEY (agent_id, boot_id))"
        )
        old.execute("INSERT INTO internal.ledger VALUES ('a', 'b', 7, '9-9', '2026-03-01')")
    for _ in range(2):
        database = Database.open(tmp_path, LIMITS)
        rows = database.writing.execute(
            "SELECT node, power_watts, util_percent FROM gpu_samples"
        ).fetchall()
        assert rows == [("n1", 300.0, None)]
        assert database.writing.execute("FROM internal.schema_version").fetchall() == [
            (SCHEMA_VERSION,)
        ]
        ledger = load_rows(database, "internal.ledger")
        assert [tuple(row.values())[:5] for row in ledger] == [("", "a", "b", 7, "9-9")]
        database.close()


def test_a_wrong_memory_limit_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be opened"):
        Database.open(tmp_path, Limits(memory="lots"))


def test_a_folder_may_have_any_name_and_holds_what_spills(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    opened = Database.open(folder, Limits(threads=1))
    try:
        with opened.reading() as cursor:
            row = cursor.execute("SELECT current_setting('temp_directory')").fetchone()
            assert cursor.execute("SELECT count(*) FROM gpu_samples").fetchone() == (0,)
    finally:
        opened.close()
    assert row is not None
    assert Path(row[0]).parent == folder / "spill"
    assert not (folder / "spill").exists(), "it was emptied and closed"


def test_a_commit_is_all_or_nothing(database: Database, wire: Any) -> None:
    good = wire.table("gpu_samples", wire.gpu_rows(2, [0]))
    nameless = pa.Table.from_pylist([{"node": "n1"}], schema=STORED_SCHEMAS["gpus"])
    with pytest.raises(RowsRefusedError, match="NOT NULL"):
        commit(database, Changes(appended={"gpu_samples": good}, upserted={"gpus": nameless}))
    assert count(database) == 0
    commit(database, Changes(appended={"gpu_samples": good}))
    assert count(database) == 2


def test_what_is_committed_is_there_after_opening_again(tmp_path: Path, wire: Any) -> None:
    database = Database.open(tmp_path, LIMITS)
    rows = wire.table("gpu_samples", wire.gpu_rows(8, range(5)))
    commit(database, Changes(appended={"gpu_samples": rows}))
    stored = database.writing.execute("SELECT * FROM gpu_samples").to_arrow_table()
    database.close()
    again = Database.open(tmp_path, LIMITS)
    assert again.writing.execute("SELECT * FROM gpu_samples").to_arrow_table() == stored
    assert stored["util_percent"].to_pylist() == rows["util_percent"].to_pylist()
    again.close()


def test_an_upsert_replaces_the_row_of_the_key(database: Database) -> None:
    def gpu(node: str) -> Changes:
        row = {"gpu_uuid": "GPU-0", "node": node, "simulated": True}
        table = pa.Table.from_pylist([row], schema=STORED_SCHEMAS["gpus"])
        return Changes(upserted={"gpus": table})

    commit(database, gpu("n1"))
    commit(database, gpu("n2"))
    assert [row["node"] for row in load_rows(database, "gpus")] == ["n2"]


def test_heard_of_nodes_get_their_time(database: Database) -> None:
    row = {"node": "n1", "agent_id": "a", "boot_id": "b", "simulated": True}
    node = pa.Table.from_pylist([row], schema=STORED_SCHEMAS["nodes"])
    commit(database, Changes(upserted={"nodes": node}))
    at = datetime(2026, 3, 1, tzinfo=UTC)
    keys = pa.table({"node": ["n1", "unknown"]})
    commit(database, Changes(heard={"nodes": keys}, heard_at=at))
    assert [r["last_seen_at"] for r in load_rows(database, "nodes")] == [at.replace(tzinfo=None)]


def test_readers_see_what_is_committed_and_not_what_is_not(database: Database, wire: Any) -> None:
    rows = wire.table("gpu_samples", wire.gpu_rows(3, [0]))
    reading = Reading(database)
    with reading.opened():
        before = reading.run("SELECT count(*) FROM gpu_samples", {}, 10)
        commit(database, Changes(appended={"gpu_samples": rows}))
        same = reading.run("SELECT count(*) FROM gpu_samples", {}, 10)
    with reading.opened():
        after = reading.run("SELECT count(*) FROM gpu_samples", {}, 10)
    assert [r.data.column(0).to_pylist() for r in (before, same, after)] == [[0], [0], [3]]


def test_a_reading_that_is_interrupted_before_it_begins_does_not_begin(database: Database) -> None:
    reading = Reading(database)
    reading.interrupt()
    with reading.opened(), pytest.raises(Interrupted):
        reading.run("SELECT 1", {}, 10)


def test_a_reader_that_has_just_closed_its_cursor_can_be_interrupted(database: Database) -> None:
    """The writer interrupts readers to make room; a fault there would end it."""
    with database.reading() as cursor:
        cursor.close()
        assert database.interrupt_readers() == 1
    assert database.interrupt_readers() == 0


def test_a_result_too_large_is_an_error_and_not_a_flood(database: Database) -> None:
    reading = Reading(database)
    with reading.opened(), pytest.raises(QueryError, match="larger than 64 MiB"):
        reading.run("SELECT repeat('x', 10000) FROM range(100000)", {}, 1_000_000)


def test_what_fails_beside_the_writer_is_the_stores_own_error(tmp_path: Path) -> None:
    """As the look at what is sealed, while a query has the memory: it is looked again."""
    database = Database.open(tmp_path, Limits(memory="64MiB", temp="0B", threads=1))
    with pytest.raises(StoreUnavailableError, match="Out of Memory"):  # noqa: SIM117
        with database.maintaining() as cursor:
            cursor.execute("SELECT list(x) FROM range(100000000) t(x)").fetchall()
    database.close()


def test_a_query_that_needs_too_much_memory_says_so_and_harms_nothing(
    tmp_path: Path, wire: Any
) -> None:
    database = Database.open(tmp_path, Limits(memory="64MiB", temp="1MiB", threads=1))
    reading = Reading(database)
    with reading.opened(), pytest.raises(QueryError, match="needs more memory"):
        reading.run("SELECT list(x) FROM range(100000000) t(x)", {}, 10)
    rows = wire.table("gpu_samples", wire.gpu_rows(3, [0]))
    commit(database, Changes(appended={"gpu_samples": rows}))
    assert count(database) == 3
    database.close()


def test_the_store_takes_rows_again_when_a_full_disk_has_space(
    tmp_path: Path, wire: Any, files_of_at_most: Any
) -> None:
    database = Database.open(tmp_path, LIMITS)
    rows = Changes(appended={"gpu_samples": wire.table("gpu_samples", wire.gpu_rows(100, [0]))})
    commit(database, rows)
    with files_of_at_most(database.size_bytes), pytest.raises(StoreUnavailableError):
        commit(database, rows)
    if not is_usable(database):
        database.recover()
    commit(database, rows)
    assert count(database) == 200
    database.close()


def test_a_database_that_duckdb_declares_invalid_is_opened_again(
    tmp_path: Path, wire: Any, files_of_at_most: Any
) -> None:
    database = Database.open(tmp_path, LIMITS)
    rows = Changes(appended={"gpu_samples": wire.table("gpu_samples", wire.gpu_rows(100, [0]))})
    commit(database, rows)
    with files_of_at_most(database.size_bytes), pytest.raises(StoreUnavailableError):
        database.checkpoint()
    assert not is_usable(database)
    database.recover()
    assert is_usable(database)
    commit(database, rows)
    assert count(database) == 200
    database.close()


@pytest.mark.parametrize("name", ["cursor", "params", "pa"])
def test_a_name_in_a_query_is_no_variable_of_the_process(database: Database, name: str) -> None:
    reading = Reading(database)
    with reading.opened(), pytest.raises(QueryError, match=f"{name} does not exist"):
        reading.run(f"SELECT * FROM {name}", {}, 10)
