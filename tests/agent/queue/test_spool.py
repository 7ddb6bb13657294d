"""The spool: named after its invariants, and compared with a list."""

import asyncio
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.wire import BatchId
from gpuwarden_agent.daemon import close_spool
from gpuwarden_agent.queue.spool import (
    REFUSED_SHARE,
    RESERVE_BYTES,
    SealedBatch,
    Spool,
    SpoolError,
    open_spool,
    refused_in,
    settle_refused,
)
from gpuwarden_agent.worker import Worker

BYTES_MAX = 1000


def opened(folder: Path, *, boot: str = "boot-1", bytes_max: int = BYTES_MAX) -> Spool:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    return open_spool(folder, bytes_max=bytes_max, clock=clock, boot=boot)


def boot_of(batch: SealedBatch) -> str:
    return BatchId("agent", batch.boot_id, batch.sequence).kernel_boot_id


def test_batches_come_out_oldest_first_with_what_was_put(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    assert [spool.put(body, 3).sequence for body in (b"a", b"bb")] == [1, 2]
    first, second = spool.oldest(5)
    assert (first.sequence, first.body, first.rows, boot_of(first)) == (1, b"a", 3, "boot-1")
    assert (second.sequence, second.oldest_sequence) == (2, 1)
    assert spool.newest(1)[0].sequence == 2
    assert spool.oldest(5, skip=[1])[0].sequence == 2
    assert spool.oldest(5, skip=[1, 2]) == []
    assert (spool.count, spool.size_bytes) == (2, 3)


def test_a_spool_that_was_set_back_within_a_boot_gives_no_identity_twice(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    spool.put(b"waits", 1)
    spool.close()
    shutil.copytree(tmp_path / "spool", tmp_path / "snapshot")
    identities = set()
    for folder, body in (("spool", b"lost"), ("snapshot", b"new")):
        spool = opened(tmp_path / folder)
        sequence = spool.put(body, 1).sequence
        assert sequence == 2
        waits, fresh = spool.oldest(9)
        assert (waits.body, waits.oldest_sequence, fresh.oldest_sequence) == (b"waits", 1, 2)
        identities |= {(spool.agent_id, b.boot_id, b.sequence) for b in (waits, fresh)}
        spool.close()
    assert len(identities) == 3, "what waited keeps its identity, each new batch has its own"


def test_a_refused_batch_that_is_sent_again_has_an_identity_of_its_own(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put(b"a", 1)
    [before] = spool.oldest()
    spool.refuse(1, "no")
    assert settle_refused(tmp_path, [1], is_resent=True) == 1
    [after] = spool.oldest()
    assert boot_of(after) == boot_of(before) == "boot-1"
    assert after.boot_id != before.boot_id


def test_acknowledging_twice_says_so_and_changes_nothing(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put(b"abc", 1)
    assert spool.acknowledge(1)
    assert not spool.acknowledge(1)
    assert (spool.count, spool.size_bytes) == (0, 0)


def test_a_full_spool_gives_up_the_oldest_and_says_which(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=10)
    spool.put(b"12345", 7)
    spool.put(b"67890", 8)
    put = spool.put(b"x", 9)
    assert [(d.sequence, d.rows) for d in put.dropped] == [(1, 7)]
    assert [b.sequence for b in spool.oldest(9)] == [2, 3]
    assert spool.size_bytes == 6


def test_the_oldest_sequence_is_that_of_the_same_boot(tmp_path: Path) -> None:
    spool = opened(tmp_path, boot="boot-1")
    spool.put(b"a", 1)
    spool.close()
    spool = opened(tmp_path, boot="boot-2")
    spool.put(b"b", 1)
    spool.put(b"c", 1)
    assert [(boot_of(b), b.oldest_sequence) for b in spool.oldest(9)] == [
        ("boot-1", 1),
        ("boot-2", 2),
        ("boot-2", 2),
    ]


def test_refused_batches_are_set_aside_within_a_bound_the_oldest_go(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=80 * REFUSED_SHARE)
    for number in range(10):
        sequence = spool.put(b"a" * 20, 1).sequence
        assert spool.refuse(sequence, f"400: reason {number}")
    assert spool.count == 0
    assert [(b.sequence, b.reason) for b in spool.refused()] == [
        (number + 1, f"400: reason {number}") for number in range(6, 10)
    ]
    assert spool.refused_dropped == 6
    assert spool.refuse(spool.put(b"a" * 1_000, 1).sequence, "413")
    assert [b.bytes for b in spool.refused()] == [1_000]  # the newest is kept however large


def test_refused_batches_are_sent_again_as_new_ones_while_the_agent_runs(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    bodies = [b"a", b"b", b"c"]
    for body in bodies:
        spool.refuse(spool.put(body, 1).sequence, "422: too old")
    assert [b.sequence for b in refused_in(tmp_path)] == [1, 2, 3]
    assert settle_refused(tmp_path, [1, 3, 99], is_resent=True) == 2
    assert settle_refused(tmp_path, [2], is_resent=False) == 1
    assert refused_in(tmp_path) == []
    spool.put(b"d", 1)
    assert spool.count == 3
    assert [(b.sequence, b.body) for b in spool.oldest(9)] == [(4, b"a"), (5, b"c"), (6, b"d")]


def test_a_folder_without_a_spool_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--state-dir"):
        refused_in(tmp_path)


def test_the_agent_keeps_its_identity_and_knows_how_it_ended(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.last_run.last_ts_ms is None
    first.put(b"a", 1, last_ts_ms=5000)
    first.put(b"b", 1, last_ts_ms=6000, is_last=True)
    first.close()
    second = opened(tmp_path)
    assert second.agent_id == first.agent_id
    assert second.last_run.same_boot
    assert (second.last_run.last_ts_ms, second.last_run.stopped_cleanly) == (6000, True)
    second.close()  # without a last batch, as after a crash
    third = opened(tmp_path, boot="boot-2")
    assert not third.last_run.stopped_cleanly
    assert not third.last_run.same_boot


def test_a_second_agent_on_the_same_folder_is_told_who_has_it(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with pytest.raises(StartError, match=rf"in use by process {os.getpid()}.*--state-dir"):
        opened(tmp_path)
    spool.close()
    opened(tmp_path).close()


@pytest.mark.parametrize(
    "junk", [b"not a database at all" * 400, b"SQLite format 3\0" + b"\xff" * 9000]
)
def test_a_file_that_is_no_spool_is_set_aside_and_kept(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "spool.sqlite").write_bytes(junk)
    spool = opened(tmp_path)
    assert spool.set_aside is not None
    assert spool.set_aside.read_bytes() == junk
    assert spool.put(b"a", 1).sequence == 1


def test_a_damaged_page_is_found_at_the_start(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=10**6)
    for _ in range(50):
        spool.put(os.urandom(3000), 1)
    spool.close()
    path = tmp_path / "spool.sqlite"
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 16] = b"\xff" * 16
    path.write_bytes(content)
    spool = opened(tmp_path)
    assert spool.set_aside is not None
    assert spool.count == 0


def test_a_file_with_other_tables_is_set_aside(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "spool.sqlite")
    db.executescript("CREATE TABLE other (x); PRAGMA user_version = 1;")
    db.close()
    assert opened(tmp_path).set_aside is not None


def test_a_file_in_a_format_that_sqlite_does_not_know_is_set_aside(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with (tmp_path / "spool.sqlite").open("r+b") as file:
        file.seek(44)  # the number of the schema's format
        file.write(b"\0\0\0\x09")
    assert opened(tmp_path).set_aside is not None


def test_a_new_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    opened(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode & 0o007 == 0


def test_an_empty_file_is_a_new_spool(tmp_path: Path) -> None:
    (tmp_path / "spool.sqlite").touch()
    spool = opened(tmp_path)
    assert spool.set_aside is None
    assert spool.put(b"a", 1).sequence == 1


def test_a_spool_of_a_newer_gpuwarden_is_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).close()
    db = sqlite3.connect(tmp_path / "spool.sqlite")
    db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StartError, match="newer gpuwarden"):
        opened(tmp_path)
    assert [p.name for p in tmp_path.glob("*corrupt*")] == []


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"cannot be written: Not a directory; .*--state-dir") as e:
        opened(tmp_path / "file" / "state")
    assert "\n" not in str(e.value)


def test_a_full_disk_changes_nothing_and_passes_when_there_is_room(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=10**9)
    spool.put(b"a", 1)
    pages = spool._db.execute("PRAGMA page_count").fetchone()[0]
    spool._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(SpoolError, match="full"):
        spool.put(os.urandom(100_000), 1)
    assert (spool.count, spool.size_bytes) == (1, 1)
    spool._db.execute("PRAGMA max_page_count = 100000")
    assert spool.put(b"b", 1).sequence == 2


@contextmanager
def a_disk_that_is_full(file_bytes_max: int) -> Iterator[None]:
    """No file may grow above the size: what is written there fails as on a disk without space."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_the_spool_filled_keeps_no_batch_from_leaving(tmp_path: Path) -> None:
    """Deleting takes room as well: without a reserve the spool would be stuck for ever."""
    spool = opened(tmp_path, bytes_max=10**9)
    while (tmp_path / "spool.sqlite-wal").stat().st_size < 500_000:
        spool.put(os.urandom(20_000), 1)
    with a_disk_that_is_full((tmp_path / "spool.sqlite-wal").stat().st_size):
        with pytest.raises(SpoolError):
            for _ in range(100):
                spool.put(os.urandom(20_000), 1)
        for sequence in range(1, spool.count + 1):
            assert (
                spool.refuse(sequence, "400") if sequence % 8 == 0 else spool.acknowledge(sequence)
            )
        assert spool.count == 0
    assert spool.put(b"x", 1).sequence > 0


def test_new_batches_do_not_get_the_reserve(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put(b"a", 1)
    reserve = tmp_path / "spool.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    spool.close()
    spool = opened(tmp_path)
    reserve.unlink(missing_ok=True)
    with a_disk_that_is_full(RESERVE_BYTES - 1), pytest.raises(SpoolError, match="2 MiB"):
        spool.put(b"b", 1)
    assert spool.put(b"b", 1).sequence == 2
    assert reserve.exists()


def test_a_file_that_is_deleted_under_the_agent_ends_it_with_one_line(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put(b"a", 1)
    (tmp_path / "spool.sqlite").unlink()
    with pytest.raises(StartError, match=r"spool\.sqlite was deleted or replaced.*start it again"):
        spool.put(b"b", 1)


def test_a_file_that_is_damaged_under_the_agent_ends_it_and_is_set_aside(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=10**9)
    for _ in range(100):
        spool.put(os.urandom(20_000), 1)
    spool._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    spool._db.execute("PRAGMA cache_size = 0").fetchall()
    path = tmp_path / "spool.sqlite"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    with pytest.raises(StartError, match="damaged while the agent ran.*start it again"):
        for _ in range(100):
            spool.acknowledge(spool.oldest()[0].sequence)
    spool.close()
    assert opened(tmp_path).set_aside is not None


@pytest.mark.parametrize(
    "junk",
    [
        "UPDATE batches SET boot_id = 'b' || char(10)",
        "UPDATE batches SET boot_id = CAST(x'62ff' AS TEXT)",
        "UPDATE meta SET value = 'a:b' WHERE key = 'agent_id'",
        "UPDATE meta SET value = 'soon' WHERE key = 'last_ts_ms'",
    ],
)
def test_a_flipped_bit_in_an_identity_is_found_at_the_start(tmp_path: Path, junk: str) -> None:
    """It would become a header that no request may have, and stop the shipper permanently."""
    spool = opened(tmp_path)
    spool.put(b"a", 1, last_ts_ms=1000)
    spool.close()
    db = sqlite3.connect(tmp_path / "spool.sqlite")
    db.execute(junk)
    db.commit()
    db.close()
    spool = opened(tmp_path)
    assert spool.set_aside is not None
    assert spool.put(b"a", 1).sequence == 1


def test_no_flipped_byte_of_the_header_or_schema_crashes_the_start(tmp_path: Path) -> None:
    spool = opened(tmp_path / "good")
    spool.put(b"a" * 100, 1)
    spool.close()
    good = (tmp_path / "good" / "spool.sqlite").read_bytes()
    for offset in [*range(16, 100, 7), *range(3000, 4096, 97)]:
        folder = tmp_path / str(offset)
        folder.mkdir()
        flipped = bytes([*good[:offset], good[offset] ^ 0xC1, *good[offset + 1 :]])
        (folder / "spool.sqlite").write_bytes(flipped)
        try:
            spool = opened(folder)
        except StartError as error:
            assert "newer gpuwarden" in str(error) or "read-only" in str(error)
        else:
            assert spool.put(b"b", 1).sequence > 0
            spool.close()


def test_an_emptied_spool_gives_its_disk_space_back(tmp_path: Path) -> None:
    spool = opened(tmp_path, bytes_max=10**9)
    for _ in range(100):
        spool.put(os.urandom(20_000), 1)
    for sequence in range(1, 101):
        spool.acknowledge(sequence)
    spool.close()
    assert (tmp_path / "spool.sqlite").stat().st_size < 200_000


def test_a_close_beside_a_running_call_is_safe_and_later_calls_are_refused(tmp_path: Path) -> None:
    """A cancelled caller leaves its call running; SQLite alone would crash the process here."""
    for round_ in range(2):
        spool = opened(tmp_path / str(round_), bytes_max=10**9)
        for _ in range(20):
            spool.put(b"x" * 20_000, 1)
        outcome: list[Exception] = []
        began = threading.Event()

        def read(spool: Spool = spool, outcome: Any = outcome, began: Any = began) -> None:
            try:
                while True:
                    spool.oldest(50)
                    began.set()
            except SpoolError as error:
                outcome.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert began.wait(30)
        spool.close()
        reader.join(30)
        assert "closed" in str(outcome[0])
        spool.close()


def _put_for_ever(folder: Path, pipe: Connection) -> None:
    spool = open_spool(folder, bytes_max=10**9, clock=SystemClock())
    while True:
        pipe.send(spool.put(b"x" * 5000, 1).sequence)


def test_a_power_cut_leaves_the_agent_its_identity(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.put(b"a", 1)
    kept = tmp_path / "kept"
    kept.mkdir()
    shutil.copy(
        tmp_path / "spool.sqlite", kept
    )  # and nothing of the log, which is not synced at each batch
    agent_id = spool.agent_id
    spool.close()
    assert opened(kept, boot="boot-2").agent_id == agent_id


def test_what_was_put_survives_kill_9(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=_put_for_ever, args=(tmp_path, there), daemon=True
    )
    child.start()
    promised = 0
    while promised < 50:
        promised = here.recv()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    while here.poll():
        promised = here.recv()
    spool = opened(tmp_path, bytes_max=10**9)
    kept = [b.sequence for b in spool.oldest(10**6)]
    assert spool.set_aside is None
    assert kept[:promised] == list(range(1, promised + 1))
    assert len(kept) - promised <= 1  # the one that was put and not yet told


class SpoolAgainstAList(RuleBasedStateMachine):
    """Any order of puts, acknowledgements, kills and starts leaves what a list would hold."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="spool-model-"))
        self.life = 0
        self.model: list[tuple[int, bytes]] = []
        self.last_sequence = 0
        self.folder = self.root / "0"
        self.spool = opened(self.folder)

    @rule(body=st.binary(min_size=1, max_size=400) | st.just(b"x" * (BYTES_MAX + 1)))
    def put(self, body: bytes) -> None:
        put = self.spool.put(body, 1)
        assert put.sequence > self.last_sequence
        self.last_sequence = put.sequence
        self.model.append((put.sequence, body))
        dropped = []
        while sum(len(b) for _, b in self.model) > BYTES_MAX and len(self.model) > 1:
            dropped.append(self.model.pop(0)[0])
        assert [d.sequence for d in put.dropped] == dropped

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.model) - 1))
        sequence, _ = self.model.pop(index)
        assert self.spool.acknowledge(sequence)

    @precondition(lambda self: self.model)
    @rule()
    def refuse_oldest(self) -> None:
        sequence, _ = self.model.pop(0)
        assert self.spool.refuse(sequence, "400: no")

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = opened(self.folder)

    @rule()
    def kill(self) -> None:
        """What is on disk now, WAL included, is what the next start finds."""
        self.life += 1
        copy = self.root / str(self.life)
        shutil.copytree(self.folder, copy)
        self.spool.close()
        self.folder = copy
        self.spool = opened(copy)
        assert self.spool.set_aside is None

    @invariant()
    def holds_what_the_list_holds(self) -> None:
        if not hasattr(self, "spool"):
            return
        kept = self.spool.oldest(1000)
        assert [(b.sequence, b.body) for b in kept] == self.model
        assert self.spool.count == len(self.model)
        assert self.spool.size_bytes == sum(len(b) for _, b in self.model)

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()
            shutil.rmtree(self.root)


TestSpoolAgainstAList = SpoolAgainstAList.TestCase
TestSpoolAgainstAList.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)


async def test_closing_waits_for_a_call_whose_caller_gave_up(tmp_path: Path) -> None:
    spool, worker = open_spool(tmp_path, bytes_max=100, clock=SystemClock()), Worker("s")
    giving_up = asyncio.ensure_future(worker.submit(spool.put, b"a", 1, last_ts_ms=None))
    await asyncio.sleep(0)
    giving_up.cancel()
    await close_spool(spool, worker)
    again = open_spool(tmp_path, bytes_max=100, clock=SystemClock())
    assert again.count == 1
    again.close()
