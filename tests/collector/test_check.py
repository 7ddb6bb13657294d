"""A damaged store: what is said, what goes on, and what `check` repairs."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gpuwarden.life import StartError
from gpuwarden.query import QueryError
from gpuwarden_collector.store.address import CATALOGUE, FILES, FOLDER
from gpuwarden_collector.store.check import ASIDE, Report, check
from gpuwarden_collector.store.commit import Changes, commit
from gpuwarden_collector.store.database import FILE_NAME, Database, Limits
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.store.lake import SEALED_TABLES, seal
from gpuwarden_collector.store.reading import Reading

LIMITS = Limits(memory="512MiB", threads=1)
DAY_S = 86_400


def put(database: Database, wire: Any, first_s: int, rows: int = 40) -> None:
    made = wire.gpu_rows(4, range(first_s, first_s + rows // 4))
    commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", made)}))


def sealed(database: Database) -> None:
    """All that is hot moves to the lake."""
    generation = database.roll()
    with database.maintaining() as cursor:
        sources = {name: hot_table(name, generation) for name in SEALED_TABLES}
        seal(cursor, database.collector, generation, sources)
    database.drop(generation)


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
    sealed(database)
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


def repaired(store: Path) -> Report:
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
    assert f"{FILE_NAME}: 40 rows that have not moved to the lake" in report.facts
    assert any(fact.startswith("lake: 2 files, 80 rows") for fact in report.facts)
    assert count(store) == 120


def test_a_store_from_before_a_table_was_added_has_no_problem(store: Path) -> None:
    Database.open(store, LIMITS).close()
    with duckdb.connect(store / FILE_NAME) as db:
        (newest,) = db.execute("SELECT max(generation) FROM internal.generations").fetchone() or ()
        db.execute("DROP VIEW main.collector_samples")
        db.execute(f"DROP TABLE {hot_table('collector_samples', newest)}")
    assert check(store).problems == []


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="has no store"):
        check(tmp_path)


def test_a_store_in_use_is_left_alone(store: Path) -> None:
    script = f"import duckdb; c = duckdb.connect({str(store / FILE_NAME)!r}); print(1, flush=True)"
    held = subprocess.Popen(
        [sys.executable, "-c", f"{script}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert held.stdout and held.stdin
    held.stdout.readline()
    try:
        with pytest.raises(StartError, match=rf"in use by process {held.pid}"):
            check(store)
    finally:
        held.communicate(b"\n")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def swap(path: Path) -> None:
    """Some bytes of the first pages, which only reading all of them finds."""
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(b ^ 0xFF for b in content[60:90])
    path.write_bytes(content)


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
    with pytest.raises(StartError, match="is missing, which says what the files"):
        Database.open(store, LIMITS)
    assert repaired(store).problems == []
    assert count(store) == 40, "what was hot"
    assert len(list((store / ASIDE).rglob("*.parquet"))) == 2


@pytest.mark.parametrize("name", [FILE_NAME, f"{FOLDER}/{CATALOGUE}"])
def test_a_damaged_database_is_one_line_and_the_other_one_lives(store: Path, name: str) -> None:
    Database.open(store, LIMITS).close()  # the log goes into the file
    path = store / name
    path.write_bytes(bytes(8192) + path.read_bytes()[8192:])
    with pytest.raises(StartError, match="`gpuwarden collector check --data-dir") as raised:
        Database.open(store, LIMITS)
    assert "\n" not in str(raised.value)
    repaired(store)
    assert count(store) == (80 if name == FILE_NAME else 40)
    assert check(store).problems == []


@pytest.mark.parametrize("name", [f"{FILE_NAME}.wal", f"{FOLDER}/{CATALOGUE}.wal"])
def test_a_torn_log_is_what_was_committed_before(store: Path, name: str) -> None:
    log = store / name
    whole = log.read_bytes()
    chance = random.Random(name)
    for _ in range(4):
        copy = Path(shutil.copytree(store, store.with_name("torn"), dirs_exist_ok=True))
        (copy / name).write_bytes(whole[: chance.randrange(len(whole))])
        seen = count(copy)
        assert seen % 40 == 0, "whole commits"
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", [f"{FILE_NAME}.wal", f"{FOLDER}/{CATALOGUE}.wal"])
def test_a_damaged_log_is_cut_where_it_is_damaged(store: Path, name: str) -> None:
    log = store / name
    content = bytearray(log.read_bytes())
    at = len(content) - 100
    content[at : at + 3] = bytes(b ^ 0xFF for b in content[at : at + 3])
    log.write_bytes(content)
    with pytest.raises(StartError, match="Corrupt WAL file"):
        Database.open(store, LIMITS)
    (problem,) = check(store).problems
    assert "is damaged at byte" in problem.what
    assert problem.repair is not None
    problem.repair()
    assert count(store) % 40 == 0


def test_a_lost_database_leaves_the_lake(store: Path) -> None:
    (store / FILE_NAME).unlink()
    (store / f"{FILE_NAME}.wal").unlink()
    (problem,) = check(store).problems
    assert "is missing" in problem.what
    assert count(store) == 80


def test_a_database_older_than_its_lake_loses_nothing_that_comes_after(
    store: Path, wire: Any
) -> None:
    """An older copy put back writes a generation that the lake has already."""
    older = {p.name: p.read_bytes() for p in store.glob(f"{FILE_NAME}*")}
    database = Database.open(store, LIMITS)
    sealed(database)
    put(database, wire, 200)
    sealed(database)
    database.close()
    for path in store.glob(f"{FILE_NAME}*"):
        path.unlink()
    for name, content in older.items():
        (store / name).write_bytes(content)
    assert any("older than the lake" in fact for fact in check(store).facts)
    database = Database.open(store, LIMITS)
    put(database, wire, 300)
    for generation in database.generations[:-1]:
        database.drop(generation)
    sealed(database)
    database.close()
    assert count(store) == 200
    assert check(store).problems == []


def test_a_gap_between_lake_and_database_is_found(store: Path) -> None:
    """The catalogue lost a seal that its disk had promised, after the rows were let go of."""
    before = {p.name: p.read_bytes() for p in (store / FOLDER).glob(f"{CATALOGUE}*")}
    database = Database.open(store, LIMITS)
    sealed(database)
    database.close()
    for path in (store / FOLDER).glob(f"{CATALOGUE}*"):
        path.unlink()
    for name, content in before.items():
        (store / FOLDER / name).write_bytes(content)
    report = check(store)
    assert [p.repair for p in report.problems] == [None]
    assert "what was between them is in neither" in report.problems[0].what
    assert any("1 files that the catalogue does not know" in fact for fact in report.facts)


def test_a_ledger_that_makes_no_sense_is_found(store: Path) -> None:
    database = Database.open(store, LIMITS)
    database.writing.execute(
        "INSERT INTO internal.ledger BY NAME SELECT '' AS sender, 'a' AS agent_id, unnest(['b', 'c']) AS boot_id,"
        " 5 AS floor, unnest(['7-9 3-4', '6-']) AS ranges, now()::TIMESTAMP AS heard_at"
    )
    database.close()
    assert len(check(store).problems) == 2
