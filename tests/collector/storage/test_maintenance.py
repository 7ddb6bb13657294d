"""The lake keeps itself: what is old goes, small files become one, and a kill undoes nothing."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.collector.made_up_store import put

from gpuwarden.clock import ManualClock
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch, Stored
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage import lake_maintenance as maintain
from gpuwarden_collector.storage.address import FILES, FOLDER, METADATA
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.disk import Budget, DiskMonitor, folder_bytes
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.lake import MERGE_BYTES_MAX, seal, sealed_segment
from gpuwarden_collector.storage.lake_files import ASIDE
from gpuwarden_collector.storage.lake_maintenance import Lake, Leaving
from gpuwarden_collector.storage.maintenance import (
    Diary,
    Maintainer,
    MaintenancePolicy,
    MaintenanceState,
    Task,
    next_task,
)
from gpuwarden_collector.storage.retention import Excess, LakeDay, Reason, Tier
from gpuwarden_collector.storage.seal import Sealer, SealPolicy

POLICY = MaintenancePolicy(
    {Tier.SAMPLES: 14, Tier.QUERIES: 30, Tier.MINUTES: 90, Tier.HOURS: 730, Tier.EVENTS: 365},
    query_timeout_s=30,
)
NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NAIVE = NOW.replace(tzinfo=None)


def part(days_ago: int, table: str = "gpu_samples", small: int = 0) -> LakeDay:
    return LakeDay(table, NOW.date() - timedelta(days=days_ago), 10, 1000, max(1, small), small)


def state(
    *parts: LakeDay,
    leaving: Leaving | None = None,
    excess: Excess | None = None,
    snapshot_age_h: float = 1,
    **values: Any,
) -> MaintenanceState:
    oldest = NAIVE - timedelta(hours=snapshot_age_h)
    return MaintenanceState(Lake(parts, leaving or Leaving(), oldest), excess or Excess(), **values)


def tasks(state: MaintenanceState, diary: Diary | None = None, now_s: float = 0.0) -> list[Any]:
    """What would be done, one after the other, each marked as done."""
    diary = diary or Diary()
    found = []
    while task := next_task(state, diary, POLICY, NOW, now_s):
        found.append(task)
        diary.done_s[task.key] = now_s
        if task.name == "drop":
            diary.put_off_s[task.key] = now_s
        assert len(found) < 20
    return found


DAILY = [Task("flush"), Task("delete_orphans", before=NOW - timedelta(hours=24))]


def test_a_start_does_what_may_have_been_missed_and_then_rests() -> None:
    diary = Diary()
    assert tasks(state(), diary) == DAILY
    assert tasks(state(), diary) == []
    assert tasks(state(), diary, now_s=86_400) == DAILY


def test_files_that_may_be_what_the_lake_lacks_stay() -> None:
    assert tasks(state(is_whole=False)) == [Task("flush")]


def test_days_that_are_too_old_go_before_other_tasks() -> None:
    going = tasks(state(part(20), part(0)))[0]
    assert [(d.part, d.reason) for d in going.drops] == [(part(20), Reason.AGE)]


def test_nothing_goes_by_age_while_nobody_has_confirmed_the_clock() -> None:
    found = tasks(state(part(20), part(0), is_clock_trusted=False))
    assert {"drop", "delete_orphans"}.isdisjoint(task.name for task in found)


def test_a_day_that_is_over_is_merged_and_today_is_not() -> None:
    diary = Diary()
    merging = state(part(0, small=5), part(1, "host_samples", 2), part(2, "events", 1))
    assert [t for t in tasks(merging, diary) if t.name == "merge"] == [
        Task("merge", "host_samples")
    ]
    assert tasks(merging, diary, now_s=6 * 3_600 - 1) == []
    assert tasks(merging, diary, now_s=6 * 3_600) == [Task("merge", "host_samples")]


@pytest.mark.parametrize(("age_h", "is_due"), [(23, False), (25, True)])
def test_snapshots_are_kept_for_a_day(age_h: float, is_due: bool) -> None:
    due = Task("expire", before=NOW - timedelta(hours=24)) in tasks(state(snapshot_age_h=age_h))
    assert due is is_due


@pytest.mark.parametrize(
    ("age_s", "is_short", "is_due"),
    [(3_599, False, False), (3_601, False, True), (39, True, False), (41, True, True)],
)
def test_files_stay_for_as_long_as_a_query_may_read_them(
    age_s: float, is_short: bool, is_due: bool
) -> None:
    leaving = Leaving(0, 1, 100, NAIVE - timedelta(seconds=age_s))
    found = tasks(state(leaving=leaving, is_short=is_short))
    assert ("clean_up" in [task.name for task in found]) is is_due


def test_for_want_of_room_old_snapshots_do_not_hold_files() -> None:
    found = tasks(state(leaving=Leaving(held_bytes=5), is_short=True), now_s=1)[:1]
    assert found == [Task("expire", before=NOW)]
    assert Task("expire", before=NOW) not in tasks(state(leaving=Leaving(held_bytes=5)))


@pytest.mark.parametrize(
    ("is_short", "snapshot_age_h", "name", "every_s"),
    [(True, 1, "expire", 5), (True, 1, "clean_up", 5), (False, 25, "expire", 3_600)],
)
def test_snapshots_and_files_go_again_after_a_pause(
    is_short: bool, snapshot_age_h: float, name: str, every_s: float
) -> None:
    leaving = Leaving(held_bytes=5, since=NAIVE - timedelta(hours=2))
    repeated = state(leaving=leaving, is_short=is_short, snapshot_age_h=snapshot_age_h)
    diary = Diary()
    assert name in [t.name for t in tasks(repeated, diary)]
    assert name not in [t.name for t in tasks(repeated, diary, now_s=every_s - 1)]
    assert name in [t.name for t in tasks(repeated, diary, now_s=every_s)]


def test_files_of_mended_rows_are_rewritten_once_a_day_table_by_table() -> None:
    lake = Lake((), Leaving(), NAIVE, mended_files={"gpu_1m": 3, "gpu_1h": 1})
    diary = Diary(put_off_s={"rewrite gpu_1h": 0.0})
    rewriting = replace(state(), lake=lake)
    assert [t for t in tasks(rewriting, diary) if t.name == "rewrite"] == [
        Task("rewrite", "gpu_1m")
    ]
    assert tasks(rewriting, diary, now_s=86_399) == [Task("rewrite", "gpu_1h")]
    assert Task("rewrite", "gpu_1m") in tasks(rewriting, diary, now_s=86_400)


@pytest.mark.parametrize(("is_short", "kept_s"), [(False, 3_600), (True, 40)])
def test_no_file_goes_that_a_query_may_read(is_short: bool, kept_s: float) -> None:
    leaving = Leaving(0, 1, 100, NAIVE - timedelta(days=1))
    found = tasks(state(leaving=leaving, is_short=is_short))
    assert [t for t in found if t.name == "clean_up"] == [
        Task("clean_up", before=NOW - timedelta(seconds=kept_s))
    ]


def test_a_day_is_merged_half_an_hour_after_its_end() -> None:
    midnight = datetime(2026, 3, 2, tzinfo=UTC)
    day_before = state(part(0, small=2))
    for minutes, is_due in ((29, False), (30, True)):
        now = midnight + timedelta(minutes=minutes)
        diary = Diary(done_s={"flush": 0.0, "delete_orphans": 0.0, "expire": 0.0})
        found = next_task(day_before, diary, POLICY, now, 1.0)
        assert (found == Task("merge", "gpu_samples")) is is_due


def test_what_failed_does_not_hold_up_the_rest() -> None:
    diary = Diary(put_off_s={"drop": 0.0})
    assert tasks(state(part(20), part(0)), diary, 3_599) == DAILY
    assert next_task(state(part(20), part(0)), diary, POLICY, NOW, 3_600).name == "drop"


class Store:
    """A database with what maintains it."""

    def __init__(self, database: Database, wire: Any, clock: ManualClock) -> None:
        self.database = database
        self.wire = wire
        self.clock = clock
        self.stats = Stats()
        self.room_bytes = 100 * 2**30
        self.free_of: Path | None = None
        self.writer = Writer(database, load_known(database, clock.now()), self.stats, clock)
        self.sealer = Sealer(database, self.writer, self.stats, clock, SealPolicy(3600, 10**9))
        self.disk = DiskMonitor(database.data_dir, Budget(0, 2**30), free=self.free)
        self.maintainer = Maintainer(
            database, self.writer, self.stats, clock, self.sealer, self.disk, POLICY
        )

    def free(self, folder: Path) -> int:
        """A file system that has only the lake."""
        return self.room_bytes - folder_bytes(self.free_of or folder / FOLDER / FILES)

    def fill(self) -> None:
        """Somebody else takes room, a little too much."""
        self.room_bytes = 2 * 2**30 - 100 + folder_bytes(self.database.data_dir / FOLDER / FILES)

    async def seal(self, days_ago: Iterable[int], rows: int = 200) -> None:
        """One segment in the lake, with so many rows of each of these days."""
        midnight = self.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        for days in days_ago:
            made = [
                {
                    "ts": midnight - timedelta(days=days) + timedelta(seconds=n),
                    "node": "n1",
                    "gpu_uuid": f"GPU-{n % 4}",
                    "simulated": True,
                }
                for n in range(rows)
            ]
            table = self.wire.table("gpu_samples", made)
            commit(self.database, Changes(appended={"gpu_samples": table}))
        await self.sealer.run_once(is_forced=True)

    def days(self) -> dict[str, int]:
        """Rows of each day, as a query sees them."""
        with self.database.reading() as cursor:
            return {
                str(day): rows
                for day, rows in cursor.execute(
                    "SELECT ts::DATE, count(*) FROM gpu_samples GROUP BY 1 ORDER BY 1"
                ).fetchall()
            }

    def files(self) -> list[Path]:
        return sorted((self.database.data_dir / FOLDER / FILES).rglob("*.parquet"))

    def age_files(self, seconds: float) -> None:
        """As if files had been deleted this long ago, by the catalogue's own clock."""
        with self.database.maintaining() as cursor:
            cursor.execute(
                f"UPDATE {METADATA}.ducklake_files_scheduled_for_deletion "
                "SET schedule_start = "
                f"(schedule_start::TIMESTAMPTZ - to_seconds({seconds}))::VARCHAR"
            )


Open = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture
def real_clock() -> ManualClock:
    """Snapshots carry the machine's own time, which the catalogue gives them."""
    return ManualClock(datetime.now(UTC) + timedelta(seconds=15))


@pytest.fixture
def opened(database: Database, wire: Any, real_clock: ManualClock) -> Open:
    @asynccontextmanager
    async def opening() -> AsyncIterator[Store]:
        store = Store(database, wire, real_clock)
        store.writer.start()
        try:
            yield store
        finally:
            await store.maintainer.stop()
            await store.sealer.stop()
            await store.writer.stop()

    return opening


def day(clock: ManualClock, ago: int) -> str:
    return str(clock.now().date() - timedelta(days=ago))


async def test_old_days_go_and_the_rest_stays(opened: Open, real_clock: ManualClock) -> None:
    async with opened() as store:
        await store.seal([0, 1, 14, 15, 16])
        await store.maintainer.run_once()
        assert store.days() == {day(real_clock, ago): 200 for ago in (14, 1, 0)}
        assert store.stats.dropped_rows == {("gpu_samples", "age"): 400}
        with store.database.maintaining() as cursor:
            noted = cursor.execute(
                f"SELECT table_name, day::DATE, rows, reason FROM {METADATA}.gpuwarden_dropped ORDER BY 2"
            ).fetchall()
        assert noted == [
            ("gpu_samples", date.fromisoformat(day(real_clock, ago)), 200, "age")
            for ago in (16, 15)
        ]


async def test_a_day_that_is_over_becomes_one_sorted_file(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        for _ in range(3):
            await store.seal([1])
        assert len(store.files()) == 3
        over = day(real_clock, 1)
        real_clock.advance(3_600)  # maybe past midnight
        done = await store.maintainer.run_once()
        assert Task("merge", "gpu_samples") in done
        assert store.days() == {over: 600}
        store.age_files(3_601)
        real_clock.advance(10)
        await store.maintainer.run_once()
        (file,) = store.files()
        with store.database.maintaining() as cursor:
            keys = cursor.execute(f"SELECT gpu_uuid, ts FROM '{file}'").fetchall()
        assert keys == sorted(keys)


async def test_files_with_deleted_rows_become_one_as_well(
    opened: Open, real_clock: ManualClock
) -> None:
    """Windows that late rows came for are replaced: rows of their files are deleted."""
    async with opened() as store:
        for _ in range(3):
            await store.seal([1])
        with store.database.maintaining() as cursor:
            cursor.execute("DELETE FROM lake.main.gpu_samples WHERE gpu_uuid = 'GPU-1'")
            lake = maintain.read_lake(cursor, store.database.lake_root)
        assert lake.mended_files == {"gpu_samples": 3}
        over = day(real_clock, 1)
        real_clock.advance(3_600)  # maybe past midnight
        done = await store.maintainer.run_once()
        assert Task("rewrite", "gpu_samples") in done
        assert store.days() == {over: 450}
        with store.database.maintaining() as cursor:
            lake = maintain.read_lake(cursor, store.database.lake_root)
        assert [part.files for part in lake.parts if part.table == "gpu_samples"] == [1]
        assert lake.mended_files == {}


def test_a_day_of_many_files_is_merged_in_steps_of_a_bounded_size(database: Database) -> None:
    with database.maintaining() as cursor:
        for hour in range(20):
            cursor.execute(
                "INSERT INTO lake.main.gpu_samples BY NAME SELECT $1::TIMESTAMP + to_hours($2) + to_seconds(s) AS ts, "
                "'n' AS node, 'GPU-0' AS gpu_uuid, true AS simulated FROM range(100) t(s)",
                [NAIVE, hour % 10],
            )
        size = 15 << 20
        cursor.execute(f"UPDATE {METADATA}.ducklake_data_file SET file_size_bytes = {size}")
        steps = [maintain.merge(cursor, database.lake_root, "gpu_samples") for _ in range(3)]
        rows = cursor.execute("SELECT count(*) FROM lake.main.gpu_samples").fetchall()
    assert (steps[-1], rows) == (0, [(2_000,)])
    # The file of the first step is as small as it is.
    assert 15 <= steps[0] <= MERGE_BYTES_MAX / size + 1
    assert sum(steps) == 21


def test_of_each_collector_the_newest_seal_is_remembered(database: Database) -> None:
    """The table is read by each query: it must not grow with the age of the store."""
    for collector in ("one", "other"):
        for segment in range(1, 6):
            with database.maintaining() as cursor:
                seal(cursor, database.lake_root, collector, segment, {})
    later = datetime.now(UTC) + timedelta(seconds=1)
    with database.maintaining() as cursor:
        assert maintain.forget_seals(cursor, later - timedelta(hours=1)) == 0
        assert maintain.forget_seals(cursor, later) == 8
        assert maintain.forget_seals(cursor, later) == 0
        found = cursor.execute("SELECT collector, segment FROM lake.main.collectors ORDER BY 1")
        assert found.fetchall() == [("one", 5), ("other", 5)]
        assert [sealed_segment(cursor, name) for name in ("one", "other")] == [5, 5]
        seal(cursor, database.lake_root, "one", 6, {})
        assert sealed_segment(cursor, "one") == 6


async def test_dropped_files_leave_the_disk_when_nobody_can_read_them(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        await store.seal([0, 20])
        await store.maintainer.run_once()
        assert len(store.files()) == 2, "an older snapshot has it still"
        real_clock.advance(86_400 * 2)
        assert "expire" in [task.name for task in await store.maintainer.run_once()]
        assert len(store.files()) == 1
        assert sum(store.days().values()) == 200
        assert not [p for p in store.files()[0].parent.parent.iterdir() if not any(p.iterdir())]


async def test_a_full_disk_costs_the_oldest_days_and_gets_their_room_soon(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        await store.seal([0, 1, 2])
        await store.maintainer.run_once()
        store.fill()
        store.disk.look(is_thorough=True)
        await store.maintainer.run_once()
        assert list(store.days()) == [day(real_clock, 1), day(real_clock, 0)]
        assert store.stats.dropped_rows == {("gpu_samples", "room"): 200}
        assert len(store.files()) == 3
        store.age_files(41)
        real_clock.advance(10)
        await store.maintainer.run_once()
        assert len(store.files()) == 2
        assert len(store.days()) == 2, "what was on its way counted"


async def test_no_day_goes_for_room_that_other_names_hold(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup on the same file system has hard links to the files."""
    async with opened() as store:
        await store.seal([0, 1, 2])
        await store.maintainer.run_once()
        links = tmp_path / "backup"
        links.mkdir()
        for file in store.files():
            (links / file.name).hardlink_to(file)
        store.fill()
        store.disk.look(is_thorough=True)
        await store.maintainer.run_once()
        await store.maintainer.run_once()
        assert len(store.days()) == 3
        assert store.stats.dropped_rows == {}
        assert store.stats.pinned_bytes == sum(file.stat().st_size for file in store.files())
        assert caplog.text.count("hard links to their files exist") == 1
        shutil.rmtree(links)
        await store.maintainer.run_once()
        assert len(store.days()) == 2
        assert store.stats.pinned_bytes == 0


async def test_room_is_first_sought_in_segments(opened: Open, real_clock: ManualClock) -> None:
    """Hot rows take more than the days that would go for them."""
    async with opened() as store:
        await store.seal([1])
        put(
            store.database,
            "gpu_samples",
            "SELECT $1::TIMESTAMP + to_seconds(range % 80000) AS ts, "
            "uuid()::VARCHAR AS node, 'GPU-1' AS gpu_uuid, true AS simulated FROM range(200000)",
            [real_clock.now().replace(tzinfo=None, hour=0, minute=0)],
        )
        used = store.database.size_bytes
        store.free_of = store.database.data_dir
        store.room_bytes = 2 * 2**30 + folder_bytes(store.free_of) - 2**16
        store.disk.look(is_thorough=True)
        assert store.disk.is_short
        await store.maintainer.run_once()
        assert not store.disk.is_short
        assert store.database.size_bytes < used / 2
        assert store.stats.dropped_rows == {}
        assert sum(store.days().values()) == 200_200


async def test_sealing_goes_on_after_days_went(opened: Open, real_clock: ManualClock) -> None:
    """The catalogue written by hand is one that DuckLake itself continues with."""
    async with opened() as store:
        await store.seal([0, 20])
        await store.maintainer.run_once()
        await store.seal([0, 1, 20])
        assert store.days() == {day(real_clock, 20): 200, day(real_clock, 1): 200,
                                day(real_clock, 0): 400}  # fmt: skip
        with store.database.maintaining() as cursor:
            cursor.execute("DELETE FROM lake.main.gpu_samples WHERE gpu_uuid = 'GPU-1'")
        await store.maintainer.run_once()
        assert store.days() == {day(real_clock, 1): 150, day(real_clock, 0): 300}


async def test_a_failed_task_is_counted_put_off_and_done_later(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        for _ in range(2):
            await store.seal([1], rows=2000)
        real_clock.advance(3_600)
        lost = store.files()[0]
        aside = lost.rename(lost.with_suffix(".aside"))
        done = await store.maintainer.run_once()
        assert "delete_orphans" in [task.name for task in done], "the rest is done"
        aside.rename(lost)
        assert store.stats.maintenance_failures["merge"] == 1
        assert sum(store.days().values()) == 4000
        await store.maintainer.run_once()
        assert store.stats.maintenance_tasks["merge"] == 0
        real_clock.advance(3_600)
        await store.maintainer.run_once()
        assert store.stats.maintenance_tasks["merge"] == 1
        assert sum(store.days().values()) == 4000


async def test_files_of_an_unfinished_seal_go_after_a_day(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        await store.seal([0])
        (file,) = store.files()
        orphan = file.with_name("ducklake-orphan.parquet")
        orphan.write_bytes(file.read_bytes())
        await store.maintainer.run_once()
        assert orphan.exists(), "somebody may be about to enter it"
        real_clock.advance(86_400 + 60)
        await store.maintainer.run_once()
        assert store.files() == [file]
        (kept,) = (store.database.data_dir / ASIDE).iterdir()
        assert kept.read_bytes() == file.read_bytes(), "it may be of a catalogue that was put back"
        real_clock.advance(31 * 86_400)
        await store.maintainer.run_once()
        assert not kept.exists()


async def test_gpus_and_nodes_are_forgotten_once_nothing_that_is_kept_can_name_them(
    opened: Open, database: Database, real_clock: ManualClock, wire: Any
) -> None:
    """One that comes back meanwhile, is billed while it is silent, or that only history names stays."""
    now = real_clock.now().replace(tzinfo=None)
    gpus = {
        "gone": (91, 0),
        "back": (91, 0),
        "billed": (91, 92),
        "kept": (89, 0),
        "told": (None, 0),
    }
    for name, (days, billed_days) in gpus.items():
        at = None if days is None else now - timedelta(days=days)
        select = f"SELECT '{name}' AS node, true AS simulated, $1::TIMESTAMP AS last_seen_at, $2::TIMESTAMP AS first_seen_at"
        put(database, "nodes", f"{select}, 'a' AS agent_id, 'b' AS boot_id", [at, at or now])
        billed = f"{billed_days * 86_400}::DOUBLE AS billed_silent_s"
        put(database, "gpus", f"{select}, 'GPU-{name}' AS gpu_uuid, 0 AS gpu, {billed}", [at, at or now])  # fmt: skip
    async with opened() as store:
        row = {**wire.gpu_row(), "node": "back", "gpu_uuid": "GPU-back"}
        rows = {"gpu_samples": wire.table("gpu_samples", [row])}
        stored = await store.writer.store(Batch(BatchId("a", "b", 1, 0), Decoded.of(rows, 9)))
        assert isinstance(stored, Stored)
        await store.maintainer.run_once()
        assert store.stats.dropped_rows == {("gpus", "age"): 1, ("nodes", "age"): 1}
    left = ["back", "billed", "kept", "told"]
    with database.reading() as cursor:
        assert cursor.execute("SELECT node FROM nodes ORDER BY 1").fetchall() == [
            (n,) for n in left
        ]
        found = cursor.execute("SELECT gpu_uuid FROM gpus ORDER BY 1").fetchall()
        assert found == [(f"GPU-{n}",) for n in left]
    assert sorted(load_known(database, real_clock.now()).items["gpus"]) == [
        f"GPU-{n}" for n in left
    ]


async def test_past_incidents_alerts_and_silences_go_by_age_and_those_that_go_on_stay(
    opened: Open, real_clock: ManualClock
) -> None:
    now = real_clock.now().replace(tzinfo=None)
    async with opened() as store:

        def alert(fingerprint: str, at: datetime, state: str = "resolved") -> None:
            put(
                store.database,
                "alerts",
                "SELECT $1 AS fingerprint, $2 AS state, 'r' AS rule, 'info' AS severity, 'waste' AS consequence, "
                "'{}' AS labels, 's' AS summary, 'r' AS remedy, true AS simulated, $3 AS began_at, $3 AS active_at, "
                "$4 AS resolved_at, $3 AS seen_at",
                [fingerprint, state, at, at if state == "resolved" else None],
            )

        alert("firing", now - timedelta(days=999), "firing")
        for name, status, age in (
            ("old", "resolved", 366),
            ("new", "merged", 364),
            ("on", "open", 999),
        ):
            at = now - timedelta(days=age)
            alert(name, at)
            put(
                store.database,
                "incidents",
                "SELECT $1 AS id, $2 AS state, 'f' AS root, 'r' AS rule, 'info' AS severity, 'waste' AS "
                "consequence, 's' AS summary, 'r' AS remedy, '' AS place, '{}' AS labels, 1 AS nodes, 1 AS roots, "
                "1 AS alerts, 0 AS firing, true AS simulated, $3 AS began_at, $3 AS opened_at, $4 AS resolved_at",
                [name, status, at, None if status == "open" else at],
            )
            put(
                store.database,
                "incident_alerts",
                "SELECT $1 AS incident, $1 AS fingerprint, $2 AS active_at, 'r' AS rule, '{}' AS labels, "
                "$2 AS joined_at, $2 AS ended_at",
                [name, at],
            )
        for silence_id, age in {
            "old": 366,
            "old acknowledgement": 366,
            "new": 364,
            "on": -1,
        }.items():
            put(
                store.database,
                "silences",
                "SELECT $1 AS id, '[]' AS matchers, $2 AS fingerprint, 'alice' AS author, 0 AS changes, "
                "'' AS comment, $3 AS starts_at, $4 AS ends_at",
                [
                    silence_id,
                    "f" if " " in silence_id else None,
                    now - timedelta(days=400),
                    now - timedelta(days=age),
                ],
            )
        await store.maintainer.run_once()
        assert store.stats.dropped_rows == {
            ("incidents", "age"): 1, ("incident_alerts", "age"): 1, ("alerts", "age"): 1, ("silences", "age"): 2,
        }  # fmt: skip
        for table, column, more in (
            ("incidents", "id", []),
            ("incident_alerts", "incident", []),
            ("alerts", "fingerprint", ["firing"]),
            ("silences", "id", []),
        ):
            with store.database.reading() as cursor:
                left = cursor.execute(f"SELECT {column} FROM {table} ORDER BY 1").fetchall()
            assert [name for (name,) in left] == [*more, "new", "on"], table


async def test_sealing_and_maintenance_take_turns(opened: Open, real_clock: ManualClock) -> None:
    async with opened() as store:
        await store.seal([0, 1, 20])
        real_clock.advance(3_600)
        await asyncio.gather(
            store.maintainer.run_once(), store.seal([0]), store.maintainer.run_due()
        )
        assert store.stats.maintenance_failures == {}
        assert sum(store.days().values()) == 600


async def test_maintenance_looks_now_and_then_and_at_once_when_the_disk_is_short(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        await store.maintainer.run_due()
        await store.seal([0, 20])
        real_clock.advance(30)
        await store.maintainer.run_due()
        assert len(store.days()) == 2
        store.fill()
        await store.maintainer.look_at_disk()
        await store.maintainer.run_due()
        assert len(store.days()) == 1


async def test_a_kill_between_unlinking_and_the_catalogue_is_made_good(
    opened: Open, real_clock: ManualClock
) -> None:
    async with opened() as store:
        await store.seal([0, 20])
        await store.maintainer.run_once()
        with store.database.maintaining() as cursor:
            maintain.expire(cursor, real_clock.now() + timedelta(days=1))
            today = f"day={real_clock.now().day}"
            (dropped,) = (file for file in store.files() if today not in file.parts)
            dropped.unlink()
            assert maintain.clean_up(cursor, real_clock.now() + timedelta(days=1)) == 1
            assert maintain.clean_up(cursor, real_clock.now() + timedelta(days=1)) == 0
        assert sum(store.days().values()) == 200


def test_a_catalogue_that_cannot_be_read_is_said(database: Database) -> None:
    with database.maintaining() as cursor:
        cursor.execute("DETACH lake")
        with pytest.raises(StoreUnavailableError):
            maintain.read_lake(cursor, database.lake_root)
