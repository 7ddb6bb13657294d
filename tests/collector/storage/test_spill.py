"""Spilled data has a place and a bound of its own, and costs nobody's rows."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.disk import (
    Budget,
    DiskMonitor,
    Usage,
    excess,
    folder_bytes,
    refusal,
)
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.retention import Excess

pytestmark = pytest.mark.slow

MIB = 2**20
SORT = (
    "SELECT a.range + b.range AS x, md5(a.range::VARCHAR) FROM range({0}) a, range({0}) b "
    "ORDER BY x DESC OFFSET {1} LIMIT 1"
)
LARGE = SORT.format(2_500, 3_000_000)
"""Spills some 270 MiB where there are 64 of memory."""


@pytest.fixture
def small(data_dir: Path) -> Iterator[Database]:
    database = Database.open(data_dir, EngineLimits(memory="64MiB", temp="1GiB", threads=1))
    yield database
    database.close()


@contextmanager
def sorting(database: Database, sql: str = LARGE) -> Iterator[tuple[threading.Thread, list[str]]]:
    """A query that spills, in a thread; what it ended with."""
    ended: list[str] = []
    running: list[duckdb.DuckDBPyConnection] = []

    def work() -> None:
        try:
            with database.reading() as cursor:
                running.append(cursor)
                cursor.execute(sql).fetchall()
                running.clear()
            ended.append("done")
        except duckdb.Error as error:
            ended.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread, ended
    finally:
        for cursor in running:
            with suppress(duckdb.Error):
                cursor.interrupt()
        thread.join()


def peak(database: Database, thread: threading.Thread) -> int:
    """Most that was spilled until the thread ended."""
    most = 0
    while thread.is_alive():
        most = max(most, folder_bytes(database.spill_dir))
        thread.join(0.005)
    return most


def test_a_sort_that_spills_makes_no_row_go_and_refuses_no_batch(
    small: Database, data_dir: Path, wire: Any
) -> None:
    rows = wire.table("gpu_samples", wire.gpu_rows(2_000, [0]))
    commit(small, Changes(appended={"gpu_samples": rows}))
    disk_bytes = folder_bytes(data_dir) + 500 * MIB
    disk = DiskMonitor(
        data_dir,
        Budget(bytes_max=folder_bytes(data_dir) + 40 * MIB, free_bytes_min=120 * MIB),
        free=lambda _: disk_bytes - folder_bytes(data_dir),
        spill_dir=lambda: small.spill_dir,
        limit_spill=small.limit_spill,
    )
    spilled = []
    with sorting(small) as (thread, ended):
        while thread.is_alive():
            disk.look(is_thorough=True)
            assert disk.usage is not None
            spilled.append(disk.usage.spill_bytes)
            assert disk.excess(0) == Excess(), disk.usage
            assert disk.refusal is None
            thread.join(0.01)
    assert ended == ["done"]
    assert max(spilled) > 100 * MIB
    assert not list(data_dir.glob("*.tmp"))


def test_queries_leave_free_what_the_store_needs(small: Database, data_dir: Path) -> None:
    least_free = 200 * MIB
    disk_bytes = folder_bytes(data_dir) + 300 * MIB
    free: list[int] = []
    disk = DiskMonitor(
        data_dir,
        Budget(0, least_free),
        free=lambda _: disk_bytes - folder_bytes(data_dir),
        spill_dir=lambda: small.spill_dir,
        limit_spill=small.limit_spill,
    )
    disk.look()
    with sorting(small) as (thread, ended):
        while thread.is_alive():
            disk.look()
            free.append(disk_bytes - folder_bytes(data_dir))
            thread.join(0.005)
    assert "max_temp_directory_size" in ended[0]
    assert least_free - MIB <= min(free) < least_free + 50 * MIB
    disk.look()
    with small.reading() as cursor:
        assert cursor.execute(SORT.format(100, 10)).fetchall()


def test_the_limit_of_the_settings_is_kept_to(data_dir: Path) -> None:
    database = Database.open(data_dir, EngineLimits(memory="64MiB", temp="40MiB", threads=1))
    database.limit_spill(2**50)  # as on a large disk: no more than the settings have it
    with sorting(database) as (thread, ended):
        most = peak(database, thread)
    assert "max_temp_directory_size" in ended[0]
    assert 20 * MIB < most <= 44 * MIB
    database.close()


def test_a_limit_below_what_is_spilled_stops_there_and_one_of_nothing_spills_next_to_nothing(
    small: Database,
) -> None:
    with sorting(small) as (thread, ended):
        while thread.is_alive() and folder_bytes(small.spill_dir) < 30 * MIB:
            thread.join(0.005)
        small.limit_spill(0)
        small.limit_spill(60 * MIB)
        most = peak(small, thread)
    assert "max_temp_directory_size" in ended[0] and most <= 64 * MIB
    small.limit_spill(0)
    with sorting(small) as (thread, ended):
        assert peak(small, thread) < MIB
    assert "max_temp_directory_size" in ended[0]
    small.limit_spill(2**40)
    with sorting(small) as (thread, ended):
        thread.join()
        assert ended == ["done"]


def test_who_queries_cannot_raise_the_limit(small: Database) -> None:
    with small.reading() as cursor:
        for name in ("memory_limit", "temp_directory", "allowed_configs", "threads"):
            with pytest.raises(duckdb.Error):
                cursor.execute(f"SET GLOBAL {name} = '1'")


def test_what_a_killed_process_has_left_goes_at_the_next_start(data_dir: Path) -> None:
    left = data_dir / "spill" / "gpuwarden-elsewhere-x1"
    left.mkdir(parents=True)
    (left / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"x" * 10_000)
    (data_dir / "spill" / "a note").touch()
    database = Database.open(data_dir, EngineLimits(threads=1))
    assert database.spill_dir.is_dir()
    assert sorted(p.name for p in (data_dir / "spill").iterdir()) == [
        "a note",
        database.spill_dir.name,
    ]
    database.close()
    assert [p.name for p in (data_dir / "spill").iterdir()] == ["a note"]


def test_a_second_start_touches_nothing_of_the_first(data_dir: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from gpuwarden_collector.storage.database import Database\n"
        "from gpuwarden_collector.storage.engine import EngineLimits\n"
        "d = Database.open(Path(sys.argv[1]), EngineLimits(threads=1))\n"
        "(d.spill_dir / 'kept').touch(); print(d.spill_dir, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(data_dir)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    try:
        first = Path(process.stdout.readline().strip())
        with pytest.raises(StartError, match="in use"):
            Database.open(data_dir, EngineLimits(threads=1))
        assert [p.name for p in first.parent.iterdir()] == [first.name]
        assert (first / "kept").exists()
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    Database.open(data_dir, EngineLimits(threads=1)).close()
    assert not first.exists()


def test_a_place_that_cannot_be_written_is_told(data_dir: Path) -> None:
    (data_dir / "spill").touch()
    with pytest.raises(StartError, match=r"spill folder .*/spill: "):
        Database.open(data_dir, EngineLimits(threads=1))


def test_a_query_that_ends_between_two_looks_makes_no_disk_short(tmp_path: Path) -> None:
    spill = tmp_path / "spill" / "own"
    spill.mkdir(parents=True)
    file = spill / "x"
    file.write_bytes(b"x" * 3 * MIB)

    def free(_: Path) -> int:
        file.unlink(missing_ok=True)
        return 0

    disk = DiskMonitor(tmp_path, Budget(0, MIB), free=free, spill_dir=lambda: spill)
    disk.look()
    assert disk.usage == Usage(0, 0, 3 * MIB)
    assert disk.excess(0) == Excess()
    disk.look()
    assert disk.excess(0) == Excess(0, 2 * MIB, ceil(1.1 * MIB))


def test_spill_counts_as_free_in_every_decision() -> None:
    budget = Budget(100 * MIB, 10 * MIB)
    spilling = Usage(free_bytes=0, used_bytes=50 * MIB, spill_bytes=20 * MIB)
    assert excess(spilling, 0, budget) == Excess()
    assert refusal(spilling, budget, is_refusing=False) is None
    without = Usage(free_bytes=0, used_bytes=50 * MIB)
    assert excess(without, 0, budget) == Excess(0, 20 * MIB, ceil(1.1 * 10 * MIB))
    assert refusal(without, budget, is_refusing=False)
