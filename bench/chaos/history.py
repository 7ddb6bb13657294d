"""Records the disk of a collector under load: seals, merges, mends, backups, restores, upgrades, kills.

Agents send each batch until it is acknowledged, and note the position of the disk then. After a power cut at any
position, the store must have what was acknowledged before it.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import aiohttp
from bench.chaos import batches
from bench.chaos.batches import KnownBatches
from bench.chaos.marked import VARIABLE, Mark, marked, marks
from bench.chaos.recorded_disk import Position, RecordedDisk

from gpuwarden.clock import SystemClock
from gpuwarden_collector.storage.backup import backup, restore
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

AGENTS = 6
STORE = "store"
OPTIONS = ("commit=300", "commit=1", "")
"""Mount options of ext4 by seed: how long it may delay writes that nobody syncs."""
COUNT_SQL = (
    "SELECT gpu_uuid, count(*), count(DISTINCT ts), min(ts), max(ts) FROM gpu_samples GROUP BY 1"
)
FREE_BYTES_MIN = 32 * 1024 * 1024
LIMITS = EngineLimits(memory="512MiB", threads=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a history is made."""

    pause_s: float = 2.5
    """Between two operations, on average."""
    rest_s: float = 0.0
    """Of an agent, between two batches."""


USUAL = Pace()


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch: between which positions of the disk it was sent first, and acknowledged."""

    first: int
    acknowledged: int


@dataclass(slots=True)
class Copy:
    """A backup or a store restored from one: complete from a position on."""

    folder: str
    begin: int
    complete: int
    rows: int
    source: str | None = None
    """The backup's folder, for a restored store."""


@dataclass(slots=True)
class History:
    """What the store must have after a power cut at any position of the disk."""

    made: KnownBatches
    batches: list[list[Sent]] = field(default_factory=lambda: [[] for _ in range(AGENTS)])
    """By agent, in order: the first has sequence 1."""
    copies: list[Copy] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    end: int = 0
    wrong: list[str] = field(default_factory=list)


async def serve(data_dir: Path) -> None:
    """A collector in a hurry, until it is killed or stdin closes; the first line is its URL."""
    log = logging.StreamHandler()
    log.setFormatter(logging.Formatter("%(message)s %(reason)s", defaults={"reason": ""}))
    logging.basicConfig(level=logging.ERROR, handlers=[log])
    await batches.serve(data_dir, "bench.chaos.marked", disk_free_bytes_min=FREE_BYTES_MIN)


class Recording:
    """Makes a history."""

    def __init__(self, disk: RecordedDisk, seed: int, pace: Pace) -> None:
        self._disk = disk
        self._pace = pace
        self._store = disk.path / STORE
        self._random = Random(seed)
        self._url: str | None = None
        self._is_over = False
        self._copies = 0
        self.history = History(KnownBatches(datetime.now(UTC).replace(microsecond=0)))

    @property
    def _position(self) -> Position:
        return self._disk.position

    async def make(self, rounds: int) -> History:
        """Make the history. A round has every operation once, in an order that the seed decides."""
        async with asyncio.TaskGroup() as group, aiohttp.ClientSession() as session:
            work = [group.create_task(self._send(n, session)) for n in range(AGENTS)]
            with marked(self._disk.folder, "first start"):
                process = await self._start()
            for _ in range(rounds):
                steps = ["kill", "upgrade", "backup", "backup"]
                self._random.shuffle(steps)
                for step in steps:
                    await asyncio.sleep(self._pace.pause_s * self._random.uniform(0.4, 1.6))
                    if step == "backup":
                        await asyncio.to_thread(self._back_up_and_restore)
                        continue
                    self._url = None
                    await self._end(process, is_kill=step == "kill")
                    if step == "upgrade":
                        await asyncio.to_thread(self._make_older)
                    with marked(self._disk.folder, step):
                        process = await self._start()
            await asyncio.sleep(1.2 * self._pace.pause_s)
            self._is_over = True
            await asyncio.wait(work)
            await self._end(process, is_kill=False)
        self.history.end = self._position.now
        self.history.marks = marks(self._disk.folder)
        return self.history

    async def _start(self) -> asyncio.subprocess.Process:
        env = os.environ | {VARIABLE: str(self._disk.folder)}
        process, self._url = await batches.start(__name__, str(self._store), env=env)
        return process

    async def _end(self, process: asyncio.subprocess.Process, *, is_kill: bool) -> None:
        if is_kill:
            process.kill()
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()

    async def _send(self, agent: int, session: aiohttp.ClientSession) -> None:
        sent = self.history.batches[agent]
        while not self._is_over:
            request = self.history.made.request(agent, len(sent) + 1)
            first = self._position.now
            while not await self._post(session, request):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            sent.append(Sent(first, self._position.now))
            await asyncio.sleep(self._pace.rest_s)

    async def _post(
        self, session: aiohttp.ClientSession, request: tuple[bytes, dict[str, str]]
    ) -> bool:
        is_acknowledged, refusal = await batches.post(session, self._url, request)
        if refusal:
            self.history.wrong.append(refusal)
        return is_acknowledged

    def _back_up_and_restore(self) -> None:
        """Back up and restore as the commands do, and count the rows of both."""
        self._copies += 1
        saved, restored = (f"{kind}-{self._copies}" for kind in ("backup", "restored"))
        for folder, source in ((saved, None), (restored, saved)):
            target, begin = self._disk.path / folder, self._position.now
            with marked(self._disk.folder, "backup" if source is None else "restore"):
                if source is None:
                    backup(self._store, target, SystemClock())
                else:
                    restore(self._disk.path / source, target)
            complete = self._position.now
            self.history.copies.append(Copy(folder, begin, complete, 0, source))
        rows = rows_in(self._disk.path / restored)
        for copy in self.history.copies[-2:]:
            copy.rows = rows

    def _make_older(self) -> None:
        """Drop a column, as in a store of an older version."""
        with opened(self._store) as database, database.maintaining() as cursor:
            cursor.execute("ALTER TABLE lake.main.events DROP COLUMN details")


class opened(ExitStack):  # noqa: N801  a context manager
    """Opens a store that no collector has open."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __enter__(self) -> Database:  # type: ignore[override]
        super().__enter__()
        database = Database.open(self._folder, LIMITS)
        self.callback(database.close)
        return database


def rows_in(folder: Path) -> int:
    """Samples of a store that is not running; each must be there once."""
    with opened(folder) as database, database.reading() as cursor:
        found = cursor.execute(
            "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"
        ).fetchone()
    assert found is not None
    if found[0] != found[1]:
        raise AssertionError(f"{folder} has {found[0]} rows, {found[1]} of them distinct")
    return int(found[0])


@asynccontextmanager
async def recorded(
    folder: Path, seed: int, rounds: int, pace: Pace = USUAL
) -> AsyncIterator[History]:
    """A history on a disk in a folder; when the block begins the disk is unmounted."""
    with ExitStack() as stack:
        disk = RecordedDisk(folder, stack, OPTIONS[seed % len(OPTIONS)])
        history = await Recording(disk, seed, pace).make(rounds)
    yield history


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
