"""A backup is the store at one moment, made while batches come, and a restored one is a store."""

import asyncio
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.collector.made_up_store import LIMITS, asked, asked_in, move_all
from tests.rules.notify.alerts import make_alert, message_of
from tests.rules.policies.test_cases import Follower, live
from tests.rules.policies.test_dry_run import HOUR, NOW, policy

from gpuwarden.clock import ManualClock
from gpuwarden.data_folder import POLICIES
from gpuwarden.lifecycle import StartError
from gpuwarden.sqlite_file import NOTIFICATIONS
from gpuwarden_collector.ingest.deduplicate import StoredSequences
from gpuwarden_collector.ingest.writer import load_known
from gpuwarden_collector.storage import backup as copying
from gpuwarden_collector.storage.address import FILES, FOLDER
from gpuwarden_collector.storage.backup import STAGING, BackupError, backup, restore, snapshot
from gpuwarden_collector.storage.check import check
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.state import FILE_NAME, StateFile
from gpuwarden_rules.notify.outbox import Outbox
from gpuwarden_rules.policies.case_store import CaseStore
from gpuwarden_rules.policies.language import StepKind


def put(database: Database, wire: Any, first_s: int = 0, rows: int = 40) -> None:
    made = wire.gpu_rows(4, range(first_s, first_s + rows // 4))
    commit(database, Changes(appended={"gpu_samples": wire.table("gpu_samples", made)}))


def filled(database: Database, wire: Any) -> None:
    """40 rows in the lake, 40 hot."""
    put(database, wire)
    move_all(database)
    put(database, wire, 100)


def count(folder: Path) -> int:
    return int(asked_in(folder, "SELECT count(util_percent) FROM gpu_samples")[0][0])


def parquet(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER / FILES).rglob("*.parquet"))


@pytest.mark.usefixtures("sealing_each_second")
async def test_a_backup_under_ingest_has_whole_batches_and_all_that_was_answered(
    start: Any,
    post: Any,
    eventually: Any,
    wire: Any,
    clock: ManualClock,
    tmp_path: Path,
    data_dir: Path,
) -> None:
    answered = 0
    stop = asyncio.Event()

    async def send(url: str) -> None:
        nonlocal answered
        while not stop.is_set():
            second = answered % 600
            body = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(4, [-second])))
            status, text, _ = await post(url, body, answered + 1)
            assert status == 204, text
            answered += 1

    destination = tmp_path / "copy"
    async with start() as collector, asyncio.TaskGroup() as group:
        sending = group.create_task(send(collector.url))
        await eventually(lambda: answered >= 5)
        before = answered
        await asyncio.to_thread(backup, data_dir, destination, clock)
        after = answered
        stop.set()
        await sending
    database = Database.open(destination, LIMITS)
    with database.reading() as cursor:
        rows = cursor.execute("SELECT count(*) FROM gpu_samples").fetchall()[0][0]
    entry = load_known(database, clock.now()).ledger.get(("", "agent-1", "boot-1"))
    database.close()
    assert entry is not None
    assert before * 4 <= rows <= (after + 1) * 4
    assert entry.stored == StoredSequences(rows // 4 + 1), "rows and ledger are of one moment"
    assert before < answered


@pytest.mark.slow
def test_a_restored_store_is_the_one_backed_up(
    database: Database, data_dir: Path, wire: Any, clock: ManualClock, tmp_path: Path
) -> None:
    filled(database, wire)
    database.close()
    copy, store = tmp_path / "copy", tmp_path / "restored"
    backup(data_dir, copy, clock)
    assert [p.stat().st_nlink for p in parquet(copy)] == [2], "a hard link"
    restore(copy, store)
    assert count(store) == 80
    again = Database.open(store, LIMITS)
    filled(again, wire)
    again.close()
    assert (count(store), count(data_dir)) == (160, 80)
    assert check(copy).problems == [], "the backup stays as it is"
    assert check(store).problems == []
    assert list((data_dir / FOLDER / STAGING).iterdir()) == []
    shutil.rmtree(data_dir / FOLDER)
    assert check(copy, reads_all=True).problems == [], "it outlives the files of its store"


def test_a_damaged_file_of_notifications_is_found_and_set_aside(
    database: Database, data_dir: Path, clock: ManualClock
) -> None:
    database.close()
    path = data_dir / NOTIFICATIONS
    Outbox(path, clock).close()
    assert check(data_dir).problems == []
    with path.open("r+b") as file:
        file.write(bytes(4096))
    (problem,) = check(data_dir).problems
    assert f"{path} is damaged" in problem.what
    assert problem.repair is not None
    problem.repair()
    assert check(data_dir).problems == []
    assert not path.exists()
    assert any((data_dir / "lost").glob(f"{NOTIFICATIONS}.*"))


def test_messages_that_wait_open_cases_and_the_stop_of_policies_are_restored(
    database: Database, data_dir: Path, clock: ManualClock, tmp_path: Path
) -> None:
    database.close()
    outbox = Outbox(data_dir / NOTIFICATIONS, clock)
    waits = message_of(make_alert())
    outbox.commit({}, {}, [waits], digests={"08:00": 5})
    asks = Follower(policy(name="asks"))
    asks.step(NOW, live(1))
    cases = CaseStore(data_dir / POLICIES)
    cases.save([asks.only], {asks.only.id: StepKind.ASK_OWNER}, NOW)
    secret = cases.question(asks.only, NOW + HOUR)
    cases.stop("ada", NOW)
    report = backup(data_dir, tmp_path / "copy", clock)  # while the collector has the files open
    outbox.commit({}, {}, [], digests={"08:00": 6})
    outbox.close()
    cases.start()
    cases.close()
    assert f"{NOTIFICATIONS}: messages that wait: 1" in report.facts
    assert f"{POLICIES}: open cases: 1, policies are stopped: 1" in report.facts
    restored = tmp_path / "restored"
    restore(tmp_path / "copy", restored)
    outbox = Outbox(restored / NOTIFICATIONS, clock)
    head = outbox.head(waits.receiver)
    assert head is not None
    assert (head.message, outbox.digests()) == (waits, {"08:00": 5})
    outbox.close()
    cases = CaseStore(restored / POLICIES)
    assert cases.cases(NOW) == {asks.only.id: asks.only}
    assert cases.unsaid() == [(asks.only, StepKind.ASK_OWNER)]
    assert cases.asked(secret, NOW) == asks.only
    assert (cases.stopped() or (None, ""))[1] == "ada"
    cases.close()


def test_a_file_that_no_backup_has_is_named_by_the_check(
    database: Database, data_dir: Path
) -> None:
    database.close()
    assert not [fact for fact in check(data_dir).facts if "no backup has" in fact]
    (data_dir / FOLDER / "cases.sqlite").touch()
    (said,) = [fact for fact in check(data_dir).facts if "no backup has" in fact]
    assert said.endswith("1: lake/cases.sqlite")


class CutOffError(BaseException):
    """The power goes."""


def test_a_restore_that_was_cut_off_is_no_store_and_can_be_run_again(
    database: Database,
    data_dir: Path,
    wire: Any,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled(database, wire)
    database.close()
    Outbox(data_dir / NOTIFICATIONS, clock).close()
    copy, store = tmp_path / "copy", tmp_path / "restored"
    backup(data_dir, copy, clock)
    rename = Path.rename
    for renamed in range(4):  # lake, segments, notifications, state
        left = itertools.count(renamed, -1)

        def cut_off(path: Path, target: Path, left: "itertools.count[int]" = left) -> Path:
            if not next(left):
                raise CutOffError
            return rename(path, target)

        with monkeypatch.context() as patched, pytest.raises(CutOffError):
            patched.setattr(Path, "rename", cut_off)
            restore(copy, store)
        with pytest.raises(StartError, match=r"restore .* was interrupted: run it again"):
            Database.open(store, LIMITS)
    restore(copy, store)
    assert count(store) == 80
    assert (store / NOTIFICATIONS).exists()


def test_a_backup_does_not_go_over_anything(
    data_dir: Path, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(BackupError, match="exists and is not empty"):
        backup(data_dir, tmp_path / "full", clock)
    (tmp_path / "empty").mkdir()
    backup(data_dir, tmp_path / "empty", clock)
    with pytest.raises(BackupError, match="exists: move it away"):
        restore(tmp_path / "empty", data_dir)
    Outbox(tmp_path / "other" / NOTIFICATIONS, clock).close()
    with pytest.raises(BackupError, match=f"{NOTIFICATIONS} exists: move it away"):
        restore(tmp_path / "empty", tmp_path / "other")


def test_a_backup_of_nothing_or_a_damaged_one_is_said(
    data_dir: Path, database: Database, wire: Any, clock: ManualClock, tmp_path: Path
) -> None:
    with pytest.raises(BackupError, match="has no store"):
        backup(tmp_path / "nowhere", tmp_path / "copy", clock)
    filled(database, wire)
    database.close()
    backup(data_dir, tmp_path / "copy", clock)
    parquet(tmp_path / "copy")[0].unlink()
    with pytest.raises(BackupError, match=r"has a problem: .*\.parquet is missing"):
        restore(tmp_path / "copy", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_windows_that_copied_rows_came_late_for_are_in_the_copy(
    database: Database, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is stored between the copies of two files."""

    def store(second: int) -> None:
        rows = wire.table("gpu_samples", wire.gpu_rows(4, [second]))
        late = pa.table(
            {"node": ["n1"], "ts": [wire.gpu_row(0, second)["ts"].replace(tzinfo=None)]}
        )
        commit(database, Changes(appended={"gpu_samples": rows}, late=late))

    def with_a_batch_after(copy: Any, seconds: Iterator[int]) -> Any:
        def copied(*arguments: Any) -> Any:
            result = copy(*arguments)
            store(next(seconds))
            return result

        return copied

    seconds = itertools.count()
    store(next(seconds))
    for owner, name in ((StateFile, "backup"), (copying.shutil, "copy2"), (copying, "copy_sqlite")):
        monkeypatch.setattr(owner, name, with_a_batch_after(getattr(owner, name), seconds))
    staged = snapshot(database, "now")
    assert next(seconds) > 3
    copy = Database.open(staged, LIMITS)
    rows = {(row[0],) for row in asked(copy, "SELECT DISTINCT ts FROM gpu_samples")}
    noted = copy.state.late(1 << 62, None, 100)["ts"].to_pylist()
    copy.close()
    assert rows <= {(ts,) for ts in noted}
    assert rows


def test_a_copy_that_fails_leaves_nothing(
    database: Database, data_dir: Path, wire: Any, files_of_at_most: Any
) -> None:
    filled(database, wire)
    with files_of_at_most(10_000), pytest.raises(StoreUnavailableError):
        snapshot(database, "now")
    assert list((data_dir / FOLDER / STAGING).iterdir()) == []
    assert (snapshot(database, "now") / FILE_NAME).exists()
