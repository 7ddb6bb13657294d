"""What a power cut leaves of a store: an image of its disk, taken at an instant and mounted again.

Only what was synced is on the image: the file system writes nothing back by itself within the test.
"""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.collector.made_up_store import LIMITS, asked, move
from tests.collector.made_up_store import put as made_up

from gpuwarden.clock import SystemClock
from gpuwarden_collector.storage import lake_maintenance as maintain
from gpuwarden_collector.storage.backup import backup, restore
from gpuwarden_collector.storage.check import check
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.rollup import SOURCES, Progress, mend
from gpuwarden_collector.storage.segment import BatchKey
from gpuwarden_collector.storage.segment_log import SegmentLog

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0
        or not Path("/dev/loop-control").exists()
        or not shutil.which("mkfs.ext4"),
        reason="needs root, loop devices and mkfs.ext4",
    ),
]

IMAGE_BYTES = 128 * 1024 * 1024
ROWS = 1_000
EVENT = """
SELECT TIMESTAMP '2026-01-01' AS ts, 'n1' AS node, 'agent_started' AS kind, 'info' AS severity,
    'started' AS message, false AS simulated
"""


class LoopDisk:
    """An ext4 file system in a file."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._file = folder / "disk"
        self._images = 0
        self._file.touch()
        os.truncate(self._file, IMAGE_BYTES)
        run("mkfs.ext4", "-q", str(self._file))
        self.path = self._mounted(self._file, "commit=300")

    def after_a_power_cut(self) -> Path:
        """The file system as it would be found."""
        self._images += 1
        image = self._folder / f"image-{self._images}"
        run("cp", "--sparse=always", str(self._file), str(image))
        return self._mounted(image)

    def _mounted(self, file: Path, *options: str) -> Path:
        place = file.with_suffix(".mounted")
        place.mkdir()
        run("mount", "-o", ",".join(("loop", *options)), str(file), str(place))
        self._stack.callback(run, "umount", "--lazy", str(place))
        return place


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with ExitStack() as stack:
        yield LoopDisk(tmp_path, stack)


@contextmanager
def opened(folder: Path) -> Iterator[Database]:
    database = Database.open(folder, LIMITS)
    try:
        yield database
    finally:
        database.close()


def put(database: Database, wire: Any, first_s: int) -> None:
    rows = wire.gpu_rows(4, range(first_s, first_s + ROWS // 4))
    commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", rows)}))


def counted(database: Database, table: str = "gpu_samples") -> tuple[int, int]:
    sql = f"SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM {table}"
    return asked(database, sql)[0]


def sealed(database: Database) -> int:
    segment = database.freeze()
    move(database, segment)
    return segment


def test_an_image_has_what_was_synced_and_nothing_else(disk: LoopDisk) -> None:
    for name in ("synced", "written"):
        with (disk.path / name).open("wb") as file:
            file.write(b"a" * 10_000)
            if name == "synced":
                file.flush()
                os.fsync(file.fileno())
    found = disk.after_a_power_cut()
    assert (found / "synced").read_bytes() == b"a" * 10_000
    written = found / "written"
    assert not written.exists() or not written.stat().st_size


def test_rows_of_a_seal_that_was_committed_are_there(disk: LoopDisk, wire: Any) -> None:
    """The segment goes after the commit, also at the start that finds it."""
    with opened(disk.path / "store") as database:
        put(database, wire, 0)
        segment = sealed(database)
        found = disk.after_a_power_cut() / "store"
        with database.state.writing() as writing:
            writing.set_meta({"ledger_until": segment})
        database.drop(segment)
        without_segment = disk.after_a_power_cut() / "store"
    for folder in (found, without_segment):
        with opened(folder) as database:
            database.drop(segment)
            assert counted(database) == (ROWS, ROWS)
        assert check(folder).problems == []


MAINTENANCE: list[Callable[[Any, str], object]] = [
    lambda cursor, root: maintain.merge(cursor, root, "gpu_samples"),
    lambda cursor, root: maintain.flush(cursor, root),
]


@pytest.mark.parametrize("work", MAINTENANCE, ids=["merge", "flush"])
def test_rows_that_maintenance_has_moved_are_there(
    work: Callable[[Any, str], object], disk: LoopDisk, wire: Any
) -> None:
    with opened(disk.path / "store") as database:
        for first_s in range(0, 750, 250):
            put(database, wire, first_s)
            made_up(database, "events", EVENT)
            database.drop(sealed(database))
        with database.maintaining() as cursor:
            work(cursor, database.lake_root)
        found = disk.after_a_power_cut() / "store"
    with opened(found) as database:
        assert counted(database) == (3 * ROWS, 3 * ROWS)
        assert asked(database, "SELECT count(*) FROM events") == [(3,)]
    assert check(found).problems == []


def test_windows_that_were_computed_again_are_there(disk: LoopDisk, wire: Any) -> None:
    with opened(disk.path / "store") as database:
        put(database, wire, 0)
        sealed(database)
        first = asked(
            database, "SELECT node, date_trunc('minute', min(ts)) FROM gpu_samples GROUP BY 1"
        )
        node, minute = first[0]
        late = pa.table(
            {"node": [node] * 9, "ts": [minute + timedelta(minutes=m) for m in range(9)]}
        )
        until = minute + timedelta(hours=2)
        with database.maintaining(SOURCES) as cursor:
            mend(cursor, late, Progress(until, until, until), database.lake_root, lambda _: None)
        rows = counted(database, "gpu_1m")
        assert rows[0] > 0
        found = disk.after_a_power_cut() / "store"
    with opened(found) as database:
        assert counted(database, "gpu_1m") == rows
    assert check(found).problems == []


def killed_at_fdatasync(folder: Path, changes: Changes, *, error: OSError | None = None) -> None:
    """Another process writes a frame that does not get to the disk; it is killed there, or continues after `error`."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return

    def fdatasync(number: int) -> None:
        if error is None:
            os._exit(0)
        raise error

    try:
        log = SegmentLog(folder)
        log.begin(0)
        os.fdatasync = fdatasync
        with pytest.raises(StoreUnavailableError):
            commit(log, changes)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize(
    "error", [None, OSError(errno.EIO, "Input/output error")], ids=["kill", "EIO"]
)
def test_a_frame_that_was_found_is_on_disk_before_it_counts_as_stored(
    error: OSError | None, disk: LoopDisk, wire: Any
) -> None:
    """The batch comes again and is answered as stored: it was in the page cache alone."""
    folder = disk.path / "store"
    with opened(folder) as database:
        put(database, wire, 0)
    rows = wire.table("gpu_samples", wire.gpu_rows(4, [9_000]))
    key = BatchKey("", "agent", "boot", 7, 0)
    killed_at_fdatasync(folder, Changes(appended={"gpu_samples": rows}, batches=[key]), error=error)
    for _ in range(2):  # a second start finds the frame where the first has put it
        with opened(folder) as database:
            assert counted(database) == (ROWS + 4, ROWS + 4)
            assert database.tail.batches == [key]
            image = disk.after_a_power_cut() / "store"
        with opened(image) as database:
            assert counted(database) == (ROWS + 4, ROWS + 4)
            assert database.tail.batches == [key]


def test_a_backup_and_what_was_restored_from_it_are_there_when_the_command_has_ended(
    disk: LoopDisk, wire: Any
) -> None:
    with opened(disk.path / "store") as database:
        put(database, wire, 0)
        database.drop(sealed(database))
        put(database, wire, 1_000)
    backup(disk.path / "store", disk.path / "backup", SystemClock())
    found = disk.after_a_power_cut() / "backup"
    assert check(found).problems == []
    restore(disk.path / "backup", disk.path / "restored")
    with opened(disk.after_a_power_cut() / "restored") as database:
        assert counted(database) == (2 * ROWS, 2 * ROWS)
