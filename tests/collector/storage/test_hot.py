"""Every row is seen once, while it is written, sealed and deleted, by every reader."""

from pathlib import Path

import pytest
from tests.collector import segment_writer
from tests.collector.made_up_store import LIMITS, counted, move_all, put

from gpuwarden_collector.storage import hot as hot_rows
from gpuwarden_collector.storage import joined_rows as joined
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.hot import CHUNK_ROWS, HotRows, MissingSegmentError
from gpuwarden_collector.storage.lake import seal
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS

ROW = "SELECT TIMESTAMP '2026-03-01' + to_seconds(n) AS ts, 'n' AS node, 'g' AS gpu_uuid, true AS simulated"


def test_a_join_may_leave_out_rows_that_are_not_sealed(data_dir: Path) -> None:
    """DuckDB puts a filter into the scan of the larger side, which a scan of Arrow must be able to take."""
    database = Database.open(data_dir, LIMITS)
    of_many = ROW.replace("'g'", "'g' || lpad((n % 40)::VARCHAR, 2, '0')")
    put(database, "gpu_samples", f"{of_many} FROM range(3000) r(n)")
    move_all(database)
    put(database, "gpu_samples", f"{of_many} FROM range(3000, 5000) r(n)")
    chosen = "SELECT gpu_uuid FROM gpu_samples WHERE gpu_uuid > 'g32'"
    with database.reading() as cursor:
        for among in (chosen, f"{chosen} GROUP BY ALL", f"SELECT 'g' || x FROM ({chosen}) s(x)"):
            sql = f"SELECT count(*) FROM gpu_samples WHERE gpu_uuid IN ({among})"
            expected = 0 if "||" in among else 125 * 7
            assert cursor.execute(sql).fetchone() == (expected,), among
    database.close()


def test_a_reader_keeps_what_it_sees_when_segments_go(database: Database) -> None:
    put(database, "gpu_samples", f"{ROW} FROM range({CHUNK_ROWS}) r(n)")  # mapped, not copied
    with database.reading() as cursor:
        assert cursor.execute("SELECT count(ts) FROM gpu_samples").fetchone() == (CHUNK_ROWS,)
        segment = database.freeze()
        with database.maintaining(["gpu_samples"], until=segment) as other:
            seal(
                other,
                database.lake_root,
                database.collector,
                segment,
                {"gpu_samples": "FROM hot_gpu_samples"},
            )
        database.drop(segment)
        again = cursor.execute("SELECT count(ts), count(DISTINCT ts) FROM gpu_samples").fetchone()
        assert again == (CHUNK_ROWS, CHUNK_ROWS)
    assert counted(database) == (CHUNK_ROWS, CHUNK_ROWS)


def test_small_frames_are_joined_to_few_chunks(
    database: Database, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_rows, "_ONE_CHUNK_ROWS", 500)
    hot = HotRows(data_dir / SEGMENTS)
    for number in range(60):
        rows = segment_writer.rows(1 + segment_writer.ROWS * number)
        commit(database, Changes(appended={"gpu_samples": rows}))
        if number % 3 == 0:
            few = hot.tables(["gpu_samples"], 0)["gpu_samples"]
            assert few.num_rows > 500 or few["memory_used_bytes"].num_chunks == 1
    column = hot.tables(["gpu_samples"], 0)["gpu_samples"]["memory_used_bytes"]
    assert column.to_pylist() == list(range(1, 1 + 60 * segment_writer.ROWS)), "in their order"
    assert column.num_chunks <= 8


def test_a_segment_that_is_missing_is_not_passed_over_unsaid(
    database: Database, data_dir: Path
) -> None:
    for number in range(3):
        put(database, "gpu_samples", f"{ROW} FROM range({number}, {number + 1}) r(n)")
        frozen = database.freeze()
    hot = HotRows(data_dir / SEGMENTS)
    assert hot.tables(["gpu_samples"], 0)["gpu_samples"].num_rows == 3
    assert hot.tables(["gpu_samples"], 0, frozen - 1)["gpu_samples"].num_rows == 2
    assert hot.tables(["gpu_samples"], 1, frozen - 1)["gpu_samples"].num_rows == 1
    (data_dir / SEGMENTS / f"{frozen - 1:012d}.seg").unlink()
    fresh = HotRows(data_dir / SEGMENTS)
    with pytest.raises(MissingSegmentError):
        fresh.tables(["gpu_samples"], 0)
    assert fresh.tables(["gpu_samples"], 0, is_strict=False)["gpu_samples"].num_rows == 2
    assert fresh.tables(["gpu_samples"], frozen - 1)["gpu_samples"].num_rows == 1


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two or three frames of `segment_writer.rows`."""
    monkeypatch.setattr(joined, "BLOCK_BYTES", segment_writer.BLOCK_BYTES)
    monkeypatch.setattr(hot_rows, "_ONE_CHUNK_ROWS", 0)


def store_frames(database: Database, first: int, until: int) -> None:
    for frame in range(first, until):
        rows = segment_writer.rows(1 + segment_writer.ROWS * frame)
        commit(database, Changes(appended={"gpu_samples": rows}))


def joined_files(data_dir: Path) -> list[str]:
    return sorted(path.name for path in (data_dir / SEGMENTS).glob("*.rows"))


@pytest.mark.usefixtures("small_blocks")
def test_rows_are_the_same_when_they_come_from_joined_files(
    database: Database, data_dir: Path
) -> None:
    reader, early = HotRows(data_dir / SEGMENTS), HotRows(data_dir / SEGMENTS)
    store_frames(database, 0, 12)
    before = early.tables(["gpu_samples", "events"], 0)
    assert database.join_hot() == 0, "it may be in the lake soon"
    written = database.join_hot()
    assert written > 2
    assert len(joined_files(data_dir)) == written
    for rows in (reader, early):
        after = rows.tables(["gpu_samples", "events"], 0)
        assert after == before
        assert after["gpu_samples"].column(0).num_chunks <= written + 2
    store_frames(database, 12, 30)
    database.join_hot()
    assert database.join_hot() > 0
    numbers = early.tables(["gpu_samples"], 0)["gpu_samples"]["memory_used_bytes"].to_pylist()
    assert numbers == list(range(1, 1 + 30 * segment_writer.ROWS))


@pytest.mark.usefixtures("small_blocks")
def test_the_whole_of_a_segment_that_has_ended_is_joined_and_goes_with_it(
    database: Database, data_dir: Path
) -> None:
    store_frames(database, 0, 7)
    frozen = database.freeze()
    store_frames(database, 7, 14)
    database.join_hot()
    database.join_hot()
    of_frozen = [name for name in joined_files(data_dir) if int(name.partition("-")[0]) == frozen]
    assert of_frozen
    table = HotRows(data_dir / SEGMENTS).tables(["gpu_samples"], frozen - 1, frozen)["gpu_samples"]
    assert table.num_rows == 7 * segment_writer.ROWS
    assert table.column(0).num_chunks == len(of_frozen)
    database.drop(frozen)
    assert not set(of_frozen) & set(joined_files(data_dir))


@pytest.mark.usefixtures("small_blocks")
def test_joined_files_that_are_damaged_or_of_an_earlier_run_change_no_rows(
    database: Database, data_dir: Path
) -> None:
    store_frames(database, 0, 12)
    database.join_hot()
    database.join_hot()
    names = joined_files(data_dir)
    (data_dir / SEGMENTS / names[0]).write_bytes(b"")
    (data_dir / SEGMENTS / names[1]).write_bytes(bytes(100))
    numbers = HotRows(data_dir / SEGMENTS).tables(["gpu_samples"], 0)["gpu_samples"]
    assert numbers["memory_used_bytes"].to_pylist() == list(range(1, 1 + 12 * segment_writer.ROWS))
    database.close()
    assert joined_files(data_dir) == []
    (data_dir / SEGMENTS / names[2]).write_bytes(bytes(100))
    Database.open(data_dir, LIMITS).close()
    assert joined_files(data_dir) == []
