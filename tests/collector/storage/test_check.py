"""A damaged store: what is said, what continues, and what `check` repairs."""

import os
import random
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.collector.made_up_store import LIMITS, move_all

from gpuwarden.lifecycle import StartError
from gpuwarden.query import QueryError
from gpuwarden_collector.query.execute import Reading
from gpuwarden_collector.storage.address import CATALOGUE, FILES, FOLDER
from gpuwarden_collector.storage.check import CheckReport, check
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.lake_files import ASIDE
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import read_header, segment_path
from gpuwarden_collector.storage.segment_log import held
from gpuwarden_collector.storage.state import FILE_NAME

DAY_S = 86_400
SEGMENT = f"{SEGMENTS}/000000000002.seg"


def put(database: Database, wire: Any, first_s: int, rows: int = 40) -> None:
    made = wire.gpu_rows(4, range(first_s, first_s + rows // 4))
    commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", made)}))


@pytest.fixture(scope="module")
def kept_store(
    tmp_path_factory: pytest.TempPathFactory, empty_store: Path, wire_maker: Any
) -> Path:
    """40 rows of yesterday and 40 of today in the lake, 40 hot, as a kill leaves them."""
    wire = wire_maker()
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    database = Database.open(folder, LIMITS)
    put(database, wire, -DAY_S)
    put(database, wire, 0)
    move_all(database)
    put(database, wire, 100)
    killed = tmp_path_factory.mktemp("killed")
    shutil.copytree(folder, killed, dirs_exist_ok=True)
    database.close()
    return killed


@pytest.fixture
def store(kept_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept_store, tmp_path / "store"))


def files(store: Path) -> list[Path]:
    return sorted((store / FOLDER / FILES).rglob("*.parquet"))


def repaired(store: Path) -> CheckReport:
    """Repair all; what is left."""
    for problem in check(store).problems:
        assert problem.repair is not None
        problem.repair()
    return check(store)


def count(store: Path, where: str = "true") -> int:
    database = Database.open(store, LIMITS)
    try:
        reading = Reading(database)
        with reading.opened():
            rows = reading.run(f"SELECT count(util_percent) FROM gpu_samples WHERE {where}", {}, 1)
        return int(rows.data.column(0)[0].as_py())
    finally:
        database.close()


def test_a_store_that_was_killed_has_no_problem(store: Path) -> None:
    report = check(store, reads_all=True)
    assert report.problems == []
    assert f"{SEGMENTS}: 1 files, 40 rows" in report.facts
    assert any(fact.startswith("lake: 2 files, 80 rows") for fact in report.facts)
    assert count(store) == 120


def test_a_folder_without_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="has no store"):
        check(tmp_path)


def test_a_store_in_use_is_left_alone(store: Path) -> None:
    with held(store), pytest.raises(StartError, match=rf"in use by process {os.getpid()}"):
        check(store)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def swap(path: Path) -> None:
    """Some bytes of the first pages, which only reading all of them finds."""
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(b ^ 0xFF for b in content[60:90])
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [(Path.unlink, "is missing"), (cut, "bytes, not"), (swap, "cannot be read")],
)
def test_a_lost_file_costs_its_rows_and_no_more(
    store: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(files(store)[0])
    (problem,) = check(store, reads_all=True).problems
    assert words in problem.what
    assert "40 rows of gpu_samples until 2026-02-28 12:00:09 are lost" in problem.todo
    assert count(store, "ts >= '2026-03-01'") == 80, "queries that do not need it"
    with pytest.raises(QueryError, match=r"\.parquet is missing or damaged: `gpuwarden collector"):
        count(store, "ts < '2026-03-01'")
    problem.repair()
    assert check(store, reads_all=True).problems == []
    assert count(store) == 80
    assert len(list((store / ASIDE).glob("*"))) == (damage is not Path.unlink)


def test_a_collector_does_not_begin_a_new_catalogue_over_the_files_of_a_lost_one(
    store: Path,
) -> None:
    for path in (store / FOLDER).glob(f"{CATALOGUE}*"):
        path.unlink()
    with pytest.raises(StartError, match="the catalogue of the files in"):
        Database.open(store, LIMITS)
    assert repaired(store).problems == []
    assert count(store) == 40, "what was hot"
    assert len(list((store / ASIDE).rglob("*.parquet"))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [FILE_NAME, f"{FOLDER}/{CATALOGUE}"])
def test_a_damaged_database_is_one_line_and_the_other_one_lives(store: Path, name: str) -> None:
    Database.open(store, LIMITS).close()  # its log goes into the file
    path = store / name
    path.write_bytes(bytes(8192) + path.read_bytes()[8192:])
    with pytest.raises(StartError, match="`gpuwarden collector check --data-dir") as raised:
        Database.open(store, LIMITS)
    assert "\n" not in str(raised.value)
    repaired(store)
    assert count(store) == (120 if name == FILE_NAME else 40)
    assert check(store).problems == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [(f"{FILE_NAME}-wal", 120), (f"{FOLDER}/{CATALOGUE}-wal", 40), (SEGMENT, 80)],
)
def test_a_torn_log_is_what_was_committed_before(store: Path, name: str, least: int) -> None:
    # A segment's header was on disk before anything followed it.
    kept = read_header(store / name).end if name == SEGMENT else 0
    whole = (store / name).read_bytes()
    chance = random.Random(name)
    seen = set()
    for cut_at in (kept, *(chance.randrange(kept, len(whole)) for _ in range(3)), len(whole)):
        copy = Path(shutil.copytree(store, store.with_name("torn")))
        (copy / name).write_bytes(whole[:cut_at])
        seen.add(count(copy))
        shutil.rmtree(copy)
    assert (min(seen), max(seen)) == (least, 120), seen
    assert all(rows % 40 == 0 for rows in seen), "whole commits"


@pytest.mark.slow
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_damaged_frame_costs_its_rows_and_those_behind_it_stay(
    store: Path, wire: Any, is_frozen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database.open(store, LIMITS)
    segment = database.segment_number
    begin = database.segment_bytes
    put(database, wire, 200)
    middle = database.segment_bytes
    put(database, wire, 300)
    if is_frozen:
        database.freeze()
        put(database, wire, 400)
    database.close()
    path = segment_path(store / SEGMENTS, segment)
    with path.open("r+b") as file:
        file.seek(read_header(path).end + (begin + middle) // 2)
        file.write(b"rot!")
    (problem,) = check(store).problems
    assert f"{path.name} is damaged from byte" in problem.what
    assert problem.repair is None, "there is nothing to set aside"
    assert count(store) == (200 if is_frozen else 160)
    assert check(store).problems != []
    database = Database.open(store, LIMITS)
    with database.reading():
        (damage,) = database.new_damage()
    assert damage.number == segment
    assert database.new_damage() == [], "said once"
    move_all(database)
    database.close()
    assert count(store) == (200 if is_frozen else 160)
    assert check(store).problems == []


def test_a_segment_with_a_damaged_header_is_set_aside(store: Path) -> None:
    path = store / SEGMENT
    path.write_bytes(b"rubbish" + path.read_bytes()[7:])
    with pytest.raises(StartError, match="`gpuwarden collector check --data-dir"):
        Database.open(store, LIMITS)
    assert repaired(store).problems == []
    assert count(store) == 80
    assert len(list((store / ASIDE).glob("*.seg.*"))) == 1


def test_a_lost_state_file_leaves_all_rows(store: Path) -> None:
    for path in store.glob(f"{FILE_NAME}*"):
        path.unlink()
    (problem,) = check(store).problems
    assert "is missing" in problem.what
    assert count(store) == 120


def test_a_store_older_than_its_lake_loses_nothing_that_comes_after(store: Path, wire: Any) -> None:
    """An older copy of all except the lake, put back, does not write segments that the lake has already."""
    older = Path(shutil.copytree(store, store.with_name("older")))
    database = Database.open(store, LIMITS)
    move_all(database)
    for first_s in (200, 300):
        put(database, wire, first_s)
        move_all(database)
    database.close()
    shutil.rmtree(store / SEGMENTS)
    shutil.copytree(older / SEGMENTS, store / SEGMENTS)
    for path in store.glob(f"{FILE_NAME}*"):
        path.unlink()
    for path in older.glob(f"{FILE_NAME}*"):
        shutil.copy(path, store)
    assert any("the lake holds all segments" in fact for fact in check(store).facts)
    database = Database.open(store, LIMITS)
    put(database, wire, 400)
    move_all(database)
    put(database, wire, 500)
    database.close()
    assert count(store) == 120 + 4 * 40
    assert check(store).problems == []


def test_a_gap_between_lake_and_segments_is_found(
    store: Path, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalogue lost a seal that its disk had promised, after the rows were deleted."""
    before = {p.name: p.read_bytes() for p in (store / FOLDER).glob(f"{CATALOGUE}*")}
    database = Database.open(store, LIMITS)
    move_all(database)
    put(database, wire, 200)
    database.close()
    for path in (store / FOLDER).glob(f"{CATALOGUE}*"):
        path.unlink()
    for name, content in before.items():
        (store / FOLDER / name).write_bytes(content)
    report = check(store)
    assert [p.repair for p in report.problems] == [None]
    assert "are missing" in report.problems[0].what
    assert any("1 files that the catalogue does not name" in fact for fact in report.facts)
    assert count(store) == 120, "the rest can be read"
    said = [record for record in caplog.records if "rows are lost" in record.getMessage()]
    assert len(said) == 1


def test_a_ledger_that_makes_no_sense_is_found(store: Path) -> None:
    database = Database.open(store, LIMITS)
    with database.state.writing() as writing:
        at = datetime(2026, 3, 1)  # noqa: DTZ001  as the store has it
        writing.save_ledger([("", "a", "b", 5, "7-9 3-4", at), ("", "a", "c", 5, "6-", at)])
    database.close()
    assert len(check(store).problems) == 2
