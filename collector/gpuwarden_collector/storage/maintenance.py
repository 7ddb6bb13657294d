"""Keeps the lake in order by the clock: drops what is old or has no room, merges, cleans up.

`next_task` decides, from what there is; each task is one transaction or may be done again, so a kill
at any point leaves nothing but the same task to do. Sealing and maintenance take turns.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_collector.storage import lake_maintenance as maintain
from gpuwarden_collector.storage.commit import WriterStopped
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.disk import DiskMonitor, size_text
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.lake_files import is_remote
from gpuwarden_collector.storage.lake_maintenance import Lake
from gpuwarden_collector.storage.retention import (
    DropDay,
    Excess,
    Reason,
    Tier,
    drops,
)
from gpuwarden_collector.storage.state import StateFile
from gpuwarden_collector.storage.stats import StorageStats

log = logging.getLogger(__name__)

SNAPSHOTS_KEPT = timedelta(hours=24)
FILES_KEPT = timedelta(hours=1)
"""How long a file outlives its last snapshot: longer than any query takes."""
SET_ASIDE_KEPT = timedelta(days=30)
ORPHANS_KEPT = timedelta(hours=24)
"""Least age of a file without a catalogue's entry, which somebody may be about to enter."""
DAY_IS_OVER_AFTER = timedelta(minutes=30)
MERGE_EVERY_S = 6 * 3_600.0
"""Least time between two merges of a table: late rows make small files of old days for a while."""
HOURLY_S = 3_600.0
DAILY_S = 86_400.0
SHORTLY_S = 5.0
COMPACT_EVERY_S = 60.0
COMPACT_AT_BYTES = 16 * 1024 * 1024
"""Size of segments and state from which they are sealed sooner when the disk is near full."""
PUT_OFF_S = 3_600.0
"""A task that failed is left alone for so long, so that it does not hold up the others."""
LOOK_EVERY_S = 60.0
"""How often it is looked what the lake needs while the disk has room."""
_TASKS_MAX = 200


@dataclass(frozen=True, slots=True)
class DropDays:
    """Let go of days of tables."""

    drops: tuple[DropDay, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Forget snapshots older than that."""

    before: datetime


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Delete files that nobody has needed since then."""

    before: datetime


@dataclass(frozen=True, slots=True)
class Flush:
    """Write rows that stand in the catalogue to files."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Make one file of a table's small ones."""

    table: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write a table's files anew without their deleted rows."""

    table: str


@dataclass(frozen=True, slots=True)
class DeleteOrphans:
    """Delete files that the catalogue does not know."""

    before: datetime


Task = DropDays | Expire | CleanUp | Flush | Merge | Rewrite | DeleteOrphans


def name_of(task: Task) -> str:
    """The task's name in figures and the log."""
    match task:
        case DropDays():
            return "drop"
        case Expire():
            return "expire"
        case CleanUp():
            return "clean_up"
        case Flush():
            return "flush"
        case Merge():
            return "merge"
        case Rewrite():
            return "rewrite"
        case DeleteOrphans():
            return "delete_orphans"


@dataclass(frozen=True, slots=True)
class MaintenanceState:
    """What there is."""

    lake: Lake
    excess: Excess
    """What must still be dropped; what leaves the disk anyway is taken off."""
    is_short: bool = False
    """Whether the disk is near full now."""
    is_clock_trusted: bool = True
    is_whole: bool = True
    """Whether the lake has all that segments once gave it. If not, files that it does not know
    may be what it lacks."""


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """How long rows are kept, in days by tier, and how long a query may need a file."""

    kept_days: Mapping[Tier, int]
    query_timeout_s: float = 30.0


@dataclass(slots=True)
class Diary:
    """When something was done last, or failed, by the monotonic clock. It begins empty: what it has
    forgotten is done once more."""

    done_s: dict[str, float] = field(default_factory=dict)
    put_off_s: dict[str, float] = field(default_factory=dict)

    def is_due(self, name: str, every_s: float, now_s: float) -> bool:
        """Whether it was not done for so long."""
        done_s = self.done_s.get(name)
        return done_s is None or now_s - done_s >= every_s

    def is_put_off(self, name: str, now_s: float) -> bool:
        """Whether it failed lately."""
        failed_s = self.put_off_s.get(name)
        return failed_s is not None and now_s - failed_s < PUT_OFF_S


def next_task(
    state: MaintenanceState, diary: Diary, policy: MaintenancePolicy, now: datetime, now_s: float
) -> Task | None:
    """What to do next; None: nothing. `now_s`: the monotonic clock."""
    tasks = _due(state, diary, policy, now, now_s)
    return next((task for task in tasks if not diary.is_put_off(key_of(task), now_s)), None)


def key_of(task: Task) -> str:
    """What the diary knows the task by."""
    name = name_of(task)
    return f"{name} {task.table}" if isinstance(task, Merge | Rewrite) else name


def _due(
    state: MaintenanceState, diary: Diary, policy: MaintenancePolicy, now: datetime, now_s: float
) -> Iterator[Task]:
    parts, leaving = state.lake.parts, state.lake.leaving
    today = now.date() if state.is_clock_trusted else None
    if going := drops(parts, policy.kept_days, today, state.excess):
        yield DropDays(tuple(going))
    files_kept = FILES_KEPT
    if state.is_short:
        # What was dropped for room leaves the disk as soon as no query can be reading it.
        files_kept = timedelta(seconds=policy.query_timeout_s + 10)
        if leaving.held_bytes and diary.is_due("expire", SHORTLY_S, now_s):
            yield Expire(now)
    is_over = leaving.since is not None and aware(leaving.since) < now - files_kept
    if is_over and diary.is_due("clean_up", SHORTLY_S, now_s):
        yield CleanUp(now - files_kept)
    if diary.is_due("flush", DAILY_S, now_s):
        yield Flush()
    for table in sorted(state.lake.mended_files):
        if diary.is_due(f"rewrite {table}", DAILY_S, now_s):
            yield Rewrite(table)
    today_since = (now - DAY_IS_OVER_AFTER).date()
    for table in sorted({p.table for p in parts if p.day < today_since and p.small_files > 1}):
        if diary.is_due(f"merge {table}", MERGE_EVERY_S, now_s):
            yield Merge(table)
    is_old = aware(state.lake.oldest_snapshot_at) < now - SNAPSHOTS_KEPT
    if is_old and diary.is_due("expire", HOURLY_S, now_s):
        yield Expire(now - SNAPSHOTS_KEPT)
    is_known = state.is_whole and state.is_clock_trusted
    if is_known and diary.is_due("delete_orphans", DAILY_S, now_s):
        yield DeleteOrphans(now - ORPHANS_KEPT)


def aware(instant: datetime) -> datetime:
    """A naive UTC instant, aware."""
    return instant.replace(tzinfo=UTC)


async def _nothing() -> None:
    """Moves nothing."""


async def _nobody(before: datetime) -> Mapping[str, int]:
    """Forgets nobody."""
    return {}


def forget_alerts(state: StateFile, before: datetime) -> dict[str, int]:
    """Delete alerts, incidents, diagnoses and silences that were over before that; rows of each table.

    Raises StoreUnavailableError.
    """
    over = {
        "alerts": "state = 'resolved' AND resolved_at < ?",
        "incident_alerts": "ended_at < ? AND incident NOT IN (SELECT id FROM incidents WHERE state = 'open')",
        "incidents": "state <> 'open' AND resolved_at < ?",
        "diagnoses": "ended_at < ?",
        "silences": "ends_at < ?",
    }
    with state.writing() as writing:
        return {table: writing.delete(table, is_over, before) for table, is_over in over.items()}


class Maintainer:
    """Does the tasks that are due."""

    def __init__(
        self,
        database: Store,
        stats: StorageStats,
        clock: Clock,
        disk: DiskMonitor,
        policy: MaintenancePolicy,
        turn: asyncio.Lock,
        *,
        seal: Callable[[], Awaitable[None]] = _nothing,
        leads: Callable[[], bool] = lambda: True,
        trusts_clock: Callable[[], bool] = lambda: True,
        forget_silent: Callable[[datetime], Awaitable[Mapping[str, int]]] = _nobody,
    ) -> None:
        """`turn`: held by whoever writes the lake. `seal`: moves to the lake what is hot. `leads`:
        whether it is this collector that maintains the lake, where others share it; it may block.
        `trusts_clock`: whether anything may go by age (`clock_check.py`). `forget_silent`: forgets GPUs and nodes
        that were last heard of before an instant; how many, by table."""
        self._database = database
        self._stats = stats
        self._clock = clock
        self._disk = disk
        self._policy = policy
        self._turn = turn
        self._seal = seal
        self._leads = leads
        self._trusts_clock = trusts_clock
        self._forget_silent = forget_silent
        self._diary = Diary()
        self._looked_s: float | None = None
        self._is_stopping = False

    async def look_at_disk(self) -> None:
        """Read free space and decide whether batches are taken; for a scheduler."""
        await asyncio.to_thread(self._disk.look)

    async def run_due(self) -> None:
        """`run_once` for a scheduler, now and then or at once when the disk is near full."""
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
        """Do all tasks that are due, one at a time; those that were done or have failed.

        What fails is logged and counted, and tried again later. Raises WriterStopped.
        """
        done: list[Task] = []
        for _ in range(_TASKS_MAX):
            if self._disk.is_short:
                await self._compact()
            # Sealing may go between two tasks.
            async with self._turn:
                if self._is_stopping or not await asyncio.to_thread(self._leads):
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
        """Hot rows take several times the room that they take in the lake: before any day goes, that is
        given back."""
        now_s = self._clock.monotonic()
        has_grown = self._database.size_bytes > COMPACT_AT_BYTES
        is_due = self._diary.is_due("compact", SHORTLY_S if has_grown else COMPACT_EVERY_S, now_s)
        if self._is_stopping or not is_due:
            return
        self._diary.done_s["compact"] = now_s
        await self._seal()
        await asyncio.to_thread(self._disk.look, is_thorough=True)

    async def run_as_asked(self) -> dict[str, Any]:
        """All that is due or was put off, for the control socket; what was done."""
        self._diary = Diary()
        try:
            done = await self.run_once()
        except WriterStopped as error:
            return {"error": str(error)}
        return {"tasks": [key_of(task) for task in done], "put_off": list(self._diary.put_off_s)}

    async def stop(self) -> None:
        """End the task that runs: it is undone, and done again after the next start."""
        self._is_stopping = True
        self._database.interrupt_maintenance()
        async with self._turn:
            pass

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
        name, key = name_of(task), key_of(task)
        try:
            told = await asyncio.to_thread(self._do, task, now)
        except (StoreUnavailableError, RowsRefusedError, OSError) as error:
            if not self._is_stopping:
                self._failed(name, key, str(error))
            return task
        ended_s = self._clock.monotonic()
        # Of a merge there may be more: seals go between, and it goes on until it finds nothing.
        if not (isinstance(task, Merge) and told.get("files")):
            self._diary.done_s[key] = ended_s
        self._diary.put_off_s.pop(key, None)
        self._stats.maintenance_seconds[name] += ended_s - now_s
        self._stats.maintenance_tasks[name] += 1
        if isinstance(task, DropDays):
            self._tell_dropped(task)
        else:
            log.log(
                logging.INFO if told else logging.DEBUG,
                "the lake was kept in order",
                extra={"task": key, **told, "s": round(ended_s - now_s, 1)},
            )
        return task

    async def _state(self) -> MaintenanceState:
        # Dropping what is elsewhere makes no room here.
        is_here = not is_remote(self._database.lake_root)
        lake, sealed = await asyncio.to_thread(self._read, is_short=self._disk.is_short and is_here)
        self._stats.lake = lake
        self._tell_pinned(lake)
        return MaintenanceState(
            lake,
            self._disk.excess(lake.leaving.bytes) if is_here else Excess(),
            is_short=self._disk.is_short and is_here,
            is_clock_trusted=self._trusts_clock(),
            is_whole=self._database.oldest_segment <= sealed + 1,
        )

    def _read(self, *, is_short: bool) -> tuple[Lake, int]:
        root = self._database.lake_root
        with self._database.maintaining() as cursor:
            lake = maintain.read_lake(cursor, root)
            if is_short:
                lake = replace(lake, parts=maintain.pinned(cursor, root, lake.parts))
            return lake, self._database.sealed(cursor)

    def _tell_pinned(self, lake: Lake) -> None:
        pinned_bytes = sum(part.pinned_bytes for part in lake.parts)
        if pinned_bytes and not self._stats.pinned_bytes:
            log.error(
                "room is short, and dropping days would not free it: other names hold their files, such as a backup"
                " on the same file system; move that elsewhere, or make room",
                extra={"held": size_text(pinned_bytes)},
            )
        self._stats.pinned_bytes = pinned_bytes

    def _do(self, task: Task, now: datetime) -> dict[str, int]:
        """Do it, in a thread; what to say about it."""
        root = self._database.lake_root
        with self._database.maintaining() as cursor:
            match task:
                case DropDays(going):
                    return {"rows": maintain.drop(cursor, going, now)}
                case Expire(before):
                    maintain.expire(cursor, before)
                    maintain.forget_seals(cursor, now - FILES_KEPT)
                case CleanUp(before):
                    deleted = maintain.clean_up(cursor, before)
                    maintain.remove_empty_folders(root, now.date())
                    # What has left no longer counts as leaving: the free space must be today's.
                    self._disk.look(is_thorough=True)
                    return {"files": deleted} if deleted else {}
                case Flush():
                    maintain.flush(cursor, root)
                case Merge(table):
                    return {"files": maintain.merge(cursor, root, table)}
                case Rewrite(table):
                    return {"files": maintain.rewrite(cursor, root, table)}
                case DeleteOrphans(before):
                    data_dir = self._database.data_dir
                    moved = maintain.remove_orphans(cursor, root, data_dir, before)
                    forgotten = maintain.forget_set_aside(data_dir, now - SET_ASIDE_KEPT)
                    found = {"files": moved, "forgotten": forgotten}
                    return {name: count for name, count in found.items() if count}
        return {}

    def _tell_dropped(self, task: DropDays) -> None:
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
        log.error("maintenance failed and is put off", extra={"task": key, "reason": reason})

    async def _forget_past(self) -> None:
        """Delete what is over, and forget GPUs and nodes of which neither samples nor minutes are kept."""
        state, kept_days = self._database.state, self._policy.kept_days

        async def alerts(before: datetime) -> Mapping[str, int]:
            return await asyncio.to_thread(forget_alerts, state, before)

        await self._forget("alerts", alerts, kept_days[Tier.EVENTS])
        days = max(kept_days[Tier.SAMPLES], kept_days[Tier.MINUTES])
        await self._forget("silent", self._forget_silent, days)

    async def _forget(
        self, name: str, forget: Callable[[datetime], Awaitable[Mapping[str, int]]], days: int
    ) -> None:
        """Once a day."""
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
                log.info("what was over was dropped by age", extra=extra)
