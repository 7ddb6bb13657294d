"""Cuts the power: mounts a store's disk as it was at many instants of its history, and starts a collector on it.

Batches whose answer may have been lost are sent again. Then every row that was acknowledged before the instant
is stored once, with no other, and the store is whole.
"""

import asyncio
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from bench.chaos.batches import ROWS
from bench.chaos.history import (
    COUNT_SQL,
    FREE_BYTES_MIN,
    STORE,
    USUAL,
    Copy,
    History,
    Pace,
    recorded,
    rows_in,
)
from bench.chaos.marked import Mark
from bench.chaos.recorded_disk import Images, Left, mounted

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.wire import INGEST_PATH
from gpuwarden_collector import daemon
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.backup import BackupError, restore
from gpuwarden_collector.storage.check import check
from gpuwarden_collector.storage.state import FILE_NAME

AT_ONCE = 2
_POST_S = 30.0
_NEW, _LATER = 200, 0.1
"""For this number of positions a complete backup is always checked, later in this share of the cases."""
_DOUBLED_SQL = "SELECT count(*) - count(DISTINCT (gpu_uuid, ts)) FROM gpu_1m"
APPEND = "append"
"""Name of instants without a marked operation: batches were appended."""


@dataclass(frozen=True, slots=True)
class Instant:
    """When the power is cut, and what of the writes since the last flush is left."""

    position: int
    left: Left
    during: tuple[str, ...]


@dataclass(slots=True)
class Found:
    """What was found on an image."""

    instant: Instant
    acknowledged: int = 0
    """Rows."""
    lost: int = 0
    doubled: int = 0
    start_s: float = 0.0
    """Until the collector listened."""
    wrong: list[str] = field(default_factory=list)


def instants(history: History, count: int, random: Random) -> list[Instant]:
    """Where to cut: half within each kind in turn of operation, half anywhere, in order."""
    by_name: dict[str, list[Mark]] = defaultdict(list)
    for mark in history.marks:
        by_name[mark.name].append(mark)
    names = sorted(by_name)
    positions = [random.randrange(1, history.end + 1) for _ in range(count - count // 2)]
    for number in range(count // 2):
        mark = random.choice(by_name[names[number % len(names)]])
        positions.append(random.randint(mark.begin, mark.end))
    return [
        Instant(position, random.choice(list(Left)), during(history.marks, position))
        for position in sorted(positions)
    ]


def during(marks: Iterable[Mark], position: int) -> tuple[str, ...]:
    """The operations that ran then."""
    names = sorted({m.name for m in marks if m.begin <= position <= m.end})
    return tuple(names) or (APPEND,)


async def campaign(
    folder: Path, seed: int, rounds: int, count: int, pace: Pace = USUAL
) -> list[Found]:
    """Record a history and cut the power at `count` instants of it."""
    found: list[Found] = []
    random = Random(seed)
    async with recorded(folder / "disk", seed, rounds, pace) as history:
        if history.wrong:
            raise AssertionError(f"batches were refused: {history.wrong[0]}")
        images = Images(folder / "disk")
        turns = asyncio.Semaphore(AT_ONCE)

        def removed(image: Path) -> None:
            image.with_suffix(".mounted").rmdir()
            image.unlink()

        with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:

            async def one(instant: Instant, image: Path) -> None:
                try:
                    with mounted(image, image.with_suffix(".mounted")) as place:
                        loop = asyncio.get_running_loop()
                        found.append(
                            await loop.run_in_executor(pool, verify, place, history, instant)
                        )
                    removed(image)
                finally:
                    turns.release()

            async with asyncio.TaskGroup() as group:
                for instant in instants(history, count, random):
                    await turns.acquire()
                    image = images.at(instant.position, instant.left, random)
                    group.create_task(one(instant, image))
    return found


def verify(disk: Path, history: History, instant: Instant) -> Found:
    """Start a collector on an image, and check what is stored."""
    found = Found(instant)
    try:
        asyncio.run(_verify_store(disk / STORE, history, instant.position, found))
        for problem in check(disk / STORE, reads_all=True).problems:
            found.wrong.append(problem.what)
    except Exception as error:  # noqa: BLE001  whatever goes wrong is what is looked for
        found.wrong.append(repr(error))
    looks = Random(instant.position)
    for copy in history.copies:
        # Nothing touches it once it is complete: a few of the later instants are enough.
        is_new = copy.begin <= instant.position < copy.complete + _NEW
        if is_new or (copy.begin <= instant.position and looks.random() < _LATER):
            found.wrong += _wrong_with(disk, copy, is_owed=copy.complete <= instant.position)
    return found


async def _verify_store(folder: Path, history: History, position: int, found: Found) -> None:
    settings = CollectorSettings(port=0, data_dir=folder, disk_free_bytes_min=FREE_BYTES_MIN)
    owed = []
    began_s = time.monotonic()
    async with daemon.running(settings, SystemClock()) as collector:
        found.start_s = time.monotonic() - began_s
        async with aiohttp.ClientSession() as session:
            for agent, batches in enumerate(history.batches):
                acknowledged = sum(sent.acknowledged <= position for sent in batches)
                found.acknowledged += acknowledged * ROWS
                last = sum(sent.first <= position for sent in batches)
                for sequence in range(max(acknowledged, 1), last + 1):
                    body, headers = history.made.request(agent, sequence)
                    await _post(session, collector.url + INGEST_PATH, body, headers)
                owed.append(max(acknowledged, last))
            rows = await _asked(session, collector.url, COUNT_SQL)
            ((doubled,),) = await _asked(session, collector.url, _DOUBLED_SQL)
    if doubled:
        found.wrong.append(f"{doubled} rows of gpu_1m are doubled")
    by_gpu = {row[0]: row[1:] for row in rows}
    for agent, sequences in enumerate(owed):
        rows_found, distinct, first, last_ts = by_gpu.get(f"GPU-{agent}", (0, 0, None, None))
        found.lost += max(sequences * ROWS - distinct, 0)
        found.doubled += rows_found - distinct
        if sequences and (distinct, _ts(first), _ts(last_ts)) != (
            sequences * ROWS,
            history.made.rows(agent, 1)[0]["ts"],
            history.made.rows(agent, sequences)[-1]["ts"],
        ):
            found.wrong.append(
                f"agent {agent}: {sequences * ROWS} rows are owed and {distinct} there, "
                f"from {first} to {last_ts}"
            )


def _ts(text: object) -> datetime | None:
    return None if text is None else datetime.fromisoformat(str(text)).astimezone(UTC)


async def _post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]
) -> None:
    async with asyncio.timeout(_POST_S):
        while True:
            async with session.post(url, data=body, headers=headers) as answer:
                if answer.status == 204:
                    return
                if answer.status != 503:
                    raise AssertionError(f"{answer.status}: {await answer.text()}")
            await asyncio.sleep(0.1)


async def _asked(session: aiohttp.ClientSession, url: str, sql: str) -> list[list[Any]]:
    async with session.post(f"{url}/v1/sql", data=sql) as answer:
        said = await answer.json()
        if answer.status != 200:
            raise AssertionError(f"{answer.status}: {said}")
        rows: list[list[Any]] = said["rows"]
        return rows


def _wrong_with(disk: Path, copy: Copy, *, is_owed: bool) -> list[str]:
    """Check a backup or a restored store: it is whole, or is not recognised as one."""
    folder = disk / copy.folder
    if not folder.exists():
        return [f"{copy.folder} is gone"] if is_owed else []
    try:
        if copy.source is None:
            target = disk / "restored-of-image"
            try:
                restore(folder, target)
                rows = rows_in(target)
            finally:
                shutil.rmtree(target, ignore_errors=True)
        elif not (folder / FILE_NAME).exists():
            # The command says then that the folder is not empty.
            if is_owed:
                return [f"{copy.folder} has no state file"]
            with suppress(StartError):
                rows = rows_in(folder)
                return _differing(copy, rows)
            return []
        else:
            rows = rows_in(folder)
    except BackupError as error:
        return [f"{copy.folder}: {error}"] if is_owed else []
    except Exception as error:  # noqa: BLE001  as above
        return [f"{copy.folder}: {error!r}"]
    return _differing(copy, rows)


def _differing(copy: Copy, rows: int) -> list[str]:
    if rows == copy.rows:
        return []
    return [f"{copy.folder} has {rows} rows instead of {copy.rows}"]


def counted(found: Sequence[Found]) -> dict[str, int]:
    """Instants by the operation that ran; one with several counts for each."""
    counts: dict[str, int] = defaultdict(int)
    for one in found:
        for name in one.instant.during:
            counts[name] += 1
    return dict(sorted(counts.items()))
