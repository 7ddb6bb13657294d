"""Maintains the lake on a schedule: drops days by age or for room, merges small files, cleans up.

`next_task` decides what to do from the lake's state. Each task is one transaction, or can be repeated, so
after a kill the same task is due again. Sealing and maintenance take turns.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Literal

from gpuwarden.clock import Clock
from gpuwarden.sizes import size_text
from gpuwarden_collector.storage import lake_maintenance as maintain
from gpuwarden_collector.storage.commit import UpkeepWriter, WriterStopped
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.disk import DiskMonitor
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.lake_files import is_remote
from gpuwarden_collector.storage.lake_job import LakeJob
from gpuwarden_collector.storage.lake_maintenance import Lake
from gpuwarden_collector.storage.retention import DropDay, Excess, Reason, Tier, drops
from gpuwarden_collector.storage.seal import Sealer
from gpuwarden_collector.storage.state import StateFile
from gpuwarden_collector.storage.stats import StorageStats

log = logging.getLogger(__name__)

SNAPSHOTS_KEPT = timedelta(hours=24)
FILES_KEPT = timedelta(hours=1)
"""How long a file stays after its last snapshot: longer than any query takes."""
SET_ASIDE_KEPT = timedelta(days=30)
ORPHANS_KEPT = timedelta(hours=24)
"""Least age of a file that the catalogue does not name: a younger one may belong to a transaction that runs."""
DAY_IS_OVER_AFTER = timedelta(minutes=30)
MERGE_EVERY_S = 6 * 3_600.0
"""Least time between two merges of a table: late rows add small files to old days for a while."""
HOURLY_S = 3_600.0
DAILY_S = 86_400.0
SHORTLY_S = 5.0
COMPACT_EVERY_S = 60.0
COMPACT_AT_BYTES = 16 * 1024 * 1024
"""Size of segments and state file from which they are sealed sooner when the disk is near full."""
PUT_OFF_S = 3_600.0
"""How long a failed task is put off, so that it does not delay the others."""
LOOK_EVERY_S = 60.0
"""Interval between two checks of the lake while the disk has room."""
_TASKS_MAX = 200


@dataclass(frozen=True, slots=True)
class Task:
    """A task, one transaction or one that can be repeated."""

    name: Literal["drop", "expire", "clean_up", "flush", "merge", "rewrite", "delete_orphans"]
    """drop: days of tables. expire: snapshots. clean_up: delete files that no snapshot needs. flush: write rows inlined
    in the catalogue to files. merge: a table's small files. rewrite: a table's files without their deleted rows.
    delete_orphans: set aside files that the catalogue does not name."""
    table: str = ""
    """Of merge and rewrite."""
    before: datetime | None = None
    """Age of what expire, clean_up and delete_orphans concern."""
    drops: tuple[DropDay, ...] = ()

    @property
    def key(self) -> str:
        """Its key in the diary."""
        return f"{self.name} {self.table}" if self.table else self.name


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """What `next_task` decides from."""

    lake: Lake
    excess: Excess
    """What must still be dropped, without the files that leave the disk anyway."""
    is_short: bool = False
    """Whether the disk is near full now."""
    is_clock_trusted: bool = True
    is_whole: bool = True
    """Whether the lake holds every sealed segment. If not, files that it does not name may hold the
    missing rows."""


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """How long rows are kept, in days by tier, and how long a query may need a file."""

    kept_days: Mapping[Tier, int]
    query_timeout_s: float = 30.0


@dataclass(slots=True)
class Diary:
    """When each task was last done, or failed, by the monotonic clock. It is empty after a start, so each
    periodic task then runs once."""

    done_s: dict[str, float] = field(default_factory=dict)
    put_off_s: dict[str, float] = field(default_factory=dict)

    def is_due(self, name: str, every_s: float, now_s: float) -> bool:
        """Whether the task was last done at least `every_s` ago."""
        done_s = self.done_s.get(name)
        return done_s is None or now_s - done_s >= every_s

    def is_put_off(self, name: str, now_s: float) -> bool:
        """Whether the task failed less than `PUT_OFF_S` ago."""
        failed_s = self.put_off_s.get(name)
        return failed_s is not None and now_s - failed_s < PUT_OFF_S


def next_task(
    state: MaintenanceState, diary: Diary, policy: MaintenancePolicy, now: datetime, now_s: float
) -> Task | None:
    """The next task; None: nothing is due. `now_s`: the monotonic clock."""
    tasks = _due(state, diary, policy, now, now_s)
    return next((task for task in tasks if not diary.is_put_off(task.key, now_s)), None)


def _due(
    state: MaintenanceState, diary: Diary, policy: MaintenancePolicy, now: datetime, now_s: float
) -> Iterator[Task]:
    parts, leaving = state.lake.parts, state.lake.leaving
    today = now.date() if state.is_clock_trusted else None
    if going := drops(parts, policy.kept_days, today, state.excess):
        yield Task("drop", drops=tuple(going))
    files_kept = FILES_KEPT
    if state.is_short:
        # Files that were dropped for room leave the disk as soon as no query can be reading them.
        files_kept = timedelta(seconds=policy.query_timeout_s + 10)
        if leaving.held_bytes and diary.is_due("expire", SHORTLY_S, now_s):
            yield Task("expire", before=now)
    is_over = leaving.since is not None and aware(leaving.since) < now - files_kept
    if is_over and diary.is_due("clean_up", SHORTLY_S, now_s):
        yield Task("clean_up", before=now - files_kept)
    if diary.is_due("flush", DAILY_S, now_s):
        yield Task("flush")
    for table in sorted(state.lake.mended_files):
        if diary.is_due(f"rewrite {table}", DAILY_S, now_s):
            yield Task("rewrite", table)
    today_since = (now - DAY_IS_OVER_AFTER).date()
    for table in sorted({p.table for p in parts if p.day < today_since and p.small_files > 1}):
        if diary.is_due(f"merge {table}", MERGE_EVERY_S, now_s):
            yield Task("merge", table)
    is_old = aware(state.lake.oldest_snapshot_at) < now - SNAPSHOTS_KEPT
    if is_old and diary.is_due("expire", HOURLY_S, now_s):
        yield Task("expire", before=now - SNAPSHOTS_KEPT)
    is_known = state.is_whole and state.is_clock_trusted
    if is_known and diary.is_due("delete_orphans", DAILY_S, now_s):
        yield Task("delete_orphans", before=now - ORPHANS_KEPT)


def aware(instant: datetime) -> datetime:
    """A naive UTC instant, aware."""
    return instant.replace(tzinfo=UTC)


def forget_alerts(state: StateFile, before: datetime) -> dict[str, int]:
    """Delete alerts, incidents, diagnoses, cases of policies, silences and annotations that ended before that; the number by
    table.

    Raises StoreUnavailableError.
    """
    incident = "state <> 'open' AND resolved_at < ?"
    over = {
        # A team sees an incident if all its alerts are the team's: they are kept as long as it is.
        "incident_alerts": f"incident IN (SELECT id FROM incidents WHERE {incident})",
        "incidents": incident,
        "alerts": "state = 'resolved' AND resolved_at < ? AND fingerprint NOT IN (SELECT fingerprint FROM incident_alerts)",
        "diagnoses": "ended_at < ?",
        "policy_cases": "ended_at < ?",
        "silences": "ends_at < ?",
        "annotations": "coalesce(ended_at, began_at) < ?",
    }
    with state.writing() as writing:
        return {table: writing.delete(table, is_over, before) for table, is_over in over.items()}


class Maintainer(LakeJob):
    """Does the tasks that are due."""

    def __init__(
        self,
        store: Store,
        writer: UpkeepWriter,
        stats: StorageStats,
        clock: Clock,
        sealer: Sealer,
        disk: DiskMonitor,
        policy: MaintenancePolicy,
        *,
        trusts_clock: Callable[[], bool] = lambda: True,
    ) -> None:
        """`trusts_clock`: whether rows may be dropped by age (`clock_check.py`)."""
        super().__init__(store, stats, clock, sealer.turn)
        self._writer = writer
        self._sealer = sealer
        self._disk = disk
        self._policy = policy
        self._trusts_clock = trusts_clock
        self._diary = Diary()
        self._looked_s: float | None = None

    async def look_at_disk(self) -> None:
        """Read free space and decide whether batches are taken; for a scheduler."""
        await asyncio.to_thread(self._disk.look)

    async def run_due(self) -> None:
        """Run `run_once` for a scheduler: each `LOOK_EVERY_S`, and at each call while the disk is near full."""
        now_s = self._clock.monotonic()
        is_due = self._looked_s is None or now_s - self._looked_s >= LOOK_EVERY_S
        if not is_due and not self._disk.is_short:
            return
        self._looked_s = now_s
        try:
            await self.run_once()
        except WriterStopped:
            log.debug("maintenance ends with the writer")

    async def run_once(self) -> list[Task]:
        """Do all tasks that are due, one at a time; the tasks that were done or failed.

        Failures are logged and counted, and put off. Raises WriterStopped.
        """
        done: list[Task] = []
        for _ in range(_TASKS_MAX):
            if self._disk.is_short:
                await self._compact()
            # Sealing may go between two tasks.
            async with self.turn:
                is_leader = self._store.coordination.is_leader
                if self._is_stopping or not await asyncio.to_thread(is_leader):
                    break
                task = await self._step()
            if task is None:
                break
            done.append(task)
        if done and not self._is_stopping:
            await asyncio.to_thread(self._disk.look, is_thorough=True)
        await self._forget_past()
        return done

    async def _compact(self) -> None:
        """Seal hot rows, which take several times less room in the lake, before any day is dropped."""
        now_s = self._clock.monotonic()
        has_grown = self._store.size_bytes > COMPACT_AT_BYTES
        is_due = self._diary.is_due("compact", SHORTLY_S if has_grown else COMPACT_EVERY_S, now_s)
        if self._is_stopping or not is_due:
            return
        self._diary.done_s["compact"] = now_s
        await self._sealer.seal_due(is_forced=True)
        await asyncio.to_thread(self._disk.look, is_thorough=True)

    async def run_as_asked(self) -> dict[str, Any]:
        """Do all tasks that are due or put off, for the control socket; the tasks that were done."""
        self._diary = Diary()
        try:
            done = await self.run_once()
        except WriterStopped as error:
            return {"error": str(error)}
        return {"tasks": [task.key for task in done], "put_off": list(self._diary.put_off_s)}

    async def _step(self) -> Task | None:
        try:
            state = await self._state()
        except StoreUnavailableError as error:
            self._failed("look", "look", str(error))
            return None
        now, now_s = self._clock.now(), self._clock.monotonic()
        task = next_task(state, self._diary, self._policy, now, now_s)
        if task is None:
            return None
        name, key = task.name, task.key
        try:
            told = await asyncio.to_thread(self._do, task, now)
        except (StoreUnavailableError, RowsRefusedError, OSError) as error:
            if not self._is_stopping:
                self._failed(name, key, str(error))
            return task
        ended_s = self._clock.monotonic()
        # A merge is repeated until it finds no small files; seals run in between.
        if not (name == "merge" and told.get("files")):
            self._diary.done_s[key] = ended_s
        self._diary.put_off_s.pop(key, None)
        self._stats.maintenance_seconds[name] += ended_s - now_s
        self._stats.maintenance_tasks[name] += 1
        if name == "drop":
            self._count_dropped(task)
        else:
            log.log(
                logging.INFO if told else logging.DEBUG,
                "the lake was maintained",
                extra={"task": key, **told, "s": round(ended_s - now_s, 1)},
            )
        return task

    async def _state(self) -> MaintenanceState:
        # Dropping days in an object store frees no room on this disk.
        is_here = not is_remote(self._store.lake_root)
        lake, sealed = await asyncio.to_thread(self._read, is_short=self._disk.is_short and is_here)
        self._stats.lake = lake
        self._note_pinned(lake)
        return MaintenanceState(
            lake,
            self._disk.excess(lake.leaving.bytes) if is_here else Excess(),
            is_short=self._disk.is_short and is_here,
            is_clock_trusted=self._trusts_clock(),
            is_whole=self._store.oldest_segment <= sealed + 1,
        )

    def _read(self, *, is_short: bool) -> tuple[Lake, int]:
        root = self._store.lake_root
        with self._store.maintaining() as cursor:
            lake = maintain.read_lake(cursor, root)
            if is_short:
                lake = replace(lake, parts=maintain.pinned(cursor, root, lake.parts))
            return lake, self._store.sealed(cursor)

    def _note_pinned(self, lake: Lake) -> None:
        pinned_bytes = sum(part.pinned_bytes for part in lake.parts)
        if pinned_bytes and not self._stats.pinned_bytes:
            log.error(
                "the disk is nearly full, and dropping days would not free it: hard links to their files exist, such as"
                " a backup on the same file system; move the backup elsewhere, or make room",
                extra={"held": size_text(pinned_bytes)},
            )
        self._stats.pinned_bytes = pinned_bytes

    def _do(self, task: Task, now: datetime) -> dict[str, int]:
        """Do a task, in a thread; figures for the log."""
        root, before = self._store.lake_root, task.before or now
        with self._store.maintaining() as cursor:
            match task.name:
                case "drop":
                    return {"rows": maintain.drop(cursor, task.drops, now)}
                case "expire":
                    maintain.expire(cursor, before)
                    maintain.forget_seals(cursor, now - FILES_KEPT)
                case "clean_up":
                    deleted = maintain.clean_up(cursor, before)
                    maintain.remove_empty_folders(root, now.date())
                    # Deleted files no longer count as leaving, so read the free space again.
                    self._disk.look(is_thorough=True)
                    return {"files": deleted} if deleted else {}
                case "flush":
                    maintain.flush(cursor, root)
                case "merge":
                    return {"files": maintain.merge(cursor, root, task.table)}
                case "rewrite":
                    return {"files": maintain.rewrite(cursor, root, task.table)}
                case "delete_orphans":
                    data_dir = self._store.data_dir
                    moved = maintain.remove_orphans(cursor, root, data_dir, before)
                    forgotten = maintain.forget_set_aside(data_dir, now - SET_ASIDE_KEPT)
                    found = {"files": moved, "forgotten": forgotten}
                    return {name: count for name, count in found.items() if count}
        return {}

    def _count_dropped(self, task: Task) -> None:
        for (reason, day), group in groupby(task.drops, key=lambda d: (d.reason, d.part.day)):
            parts = [d.part for d in group]
            for part in parts:
                self._stats.dropped_rows[part.table, reason.value] += part.rows
            log.log(
                logging.WARNING if reason is Reason.ROOM else logging.INFO,
                "the oldest day was dropped to make room"
                if reason is Reason.ROOM
                else "a day was dropped by age",
                extra={
                    "day": str(day),
                    "tables": ",".join(part.table for part in parts),
                    "rows": sum(part.rows for part in parts),
                    "size": size_text(sum(part.bytes for part in parts)),
                },
            )

    def _failed(self, name: str, key: str, reason: str) -> None:
        self._stats.maintenance_failures[name] += 1
        self._diary.put_off_s[key] = self._clock.monotonic()
        log.error("a maintenance task failed and is put off", extra={"task": key, "reason": reason})

    async def _forget_past(self) -> None:
        """Delete ended alerts and similar rows, and GPUs and nodes of which no samples or minutes are left."""
        state, kept_days = self._store.state, self._policy.kept_days

        async def alerts(before: datetime) -> Mapping[str, int]:
            return await asyncio.to_thread(forget_alerts, state, before)

        await self._forget("alerts", alerts, kept_days[Tier.EVENTS])
        days = max(kept_days[Tier.SAMPLES], kept_days[Tier.MINUTES])
        await self._forget("silent", self._writer.forget_silent, days)

    async def _forget(
        self, name: str, forget: Callable[[datetime], Awaitable[Mapping[str, int]]], days: int
    ) -> None:
        """Run `forget` once a day, with the instant `days` ago."""
        now_s = self._clock.monotonic()
        is_due = self._diary.is_due(name, DAILY_S, now_s)
        if self._is_stopping or not is_due or not self._trusts_clock():
            return
        self._diary.done_s[name] = now_s
        before = self._clock.now() - timedelta(days=days)
        try:
            gone = await forget(before)
        except (StoreUnavailableError, RowsRefusedError) as error:
            self._failed(name, name, str(error))
            return
        for table, rows in gone.items():
            if rows:
                self._stats.dropped_rows[table, Reason.AGE.value] += rows
                extra = {"table": table, "rows": rows, "before": str(before)}
                log.info("rows were deleted by age", extra=extra)
