"""Runs the storage process, which seals segments, rolls up, maintains and backs up the lake on cores of its own.

It appends no frame itself: it sends computed rows to the process that acknowledges batches. So a seal
that needs too much memory, or a fault here, loses no batch; the process is started again and repeats
what is not done.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuwarden.alert import SharedSilence
from gpuwarden.clock import Clock
from gpuwarden.cluster import ClusterAnswer, ClusterAsk
from gpuwarden_collector.processes.channel import Channel, ChannelError
from gpuwarden_collector.processes.footprint import GIVE_BACK_S, Memory
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.backup import Copier
from gpuwarden_collector.storage.commit import WriterStopped
from gpuwarden_collector.storage.database import Store, starting
from gpuwarden_collector.storage.disk import Budget, DiskMonitor
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.maintenance import Maintainer
from gpuwarden_collector.storage.maintenance import MaintenancePolicy as KeptPolicy
from gpuwarden_collector.storage.process_calls import Handler, LogSender, Peer, RemoteError
from gpuwarden_collector.storage.retention import shows_as_confirmed
from gpuwarden_collector.storage.rollup_schedule import Roller
from gpuwarden_collector.storage.seal import Sealer, SealPolicy
from gpuwarden_collector.storage.state import FILE_NAME, StateFile
from gpuwarden_collector.storage.stats import Effort, StorageStats
from gpuwarden_collector.timetable import Timetable

DISK_LOOK_S = 2.0
"""Interval between two readings of free space."""
ROLL_LOOK_S = 15.0
"""Interval between two checks for closed windows."""
JOIN_LOOK_S = 10.0
"""Interval at which rows of segments are joined for query processes."""
MAINTAIN_LOOK_S = 5.0
"""Least interval between two runs of maintenance."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of the storage process."""

    data_dir: Path
    address: LakeAddress
    limits: EngineLimits
    spill_dir: Path
    seal: SealPolicy
    kept: KeptPolicy
    budget: Budget
    clock: Clock
    log_level: int


class RemoteWriter:
    """The `UpkeepWriter` in the process that acknowledges batches."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.freeze = partial(self._call, "freeze")
        self.save = partial(self._call, "save")
        self.write = partial(self._call, "write")
        self.close_windows = partial(self._call, "close_windows")
        self.forget_silent = partial(self._call, "forget_silent")

    async def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return await self._peer.call(name, *arguments)
        except (ChannelError, RemoteError) as error:
            raise WriterStopped(str(error)) from error


class Upkeep:
    """The jobs of the process, and the calls that it answers."""

    def __init__(self, channel: Channel) -> None:
        self._stats = StorageStats()
        self._stack = AsyncExitStack()
        self._timetable = Timetable()
        self._store: Store | None = None
        self._memory = Memory()
        self._clock_confirmed_s: float | None = None
        handlers: Mapping[str, Handler] = {
            "open": self._open,
            "begin": self._begin,
            "stats": self._current_stats,
            "limit_spill": self._limit_spill,
            "trust_clock": self._trust_clock,
            "seal": lambda: self._sealer.run_once(is_forced=True),
            "backup": lambda: self._copier.copy(),
            "claim": self._claim,
            "share_silences": self._share_silences,
            "exchange": self._exchange,
            "maintain": lambda: self._maintainer.run_as_asked(),
            "stop": self.stop,
        }
        self.peer = Peer(channel, handlers)

    async def _open(self, settings: StorageSettings) -> int:
        """Open the store; the newest segment that the lake holds. Raises StartError."""
        self._settings = settings
        root = logging.getLogger()
        root.handlers[:] = [LogSender(self.peer)]
        root.setLevel(settings.log_level)
        store = self._store = await asyncio.to_thread(_opened, settings)
        self._stack.callback(store.state.close)
        self._stack.callback(store.close)
        return await asyncio.to_thread(_sealed, store)

    async def _begin(self, clock_confirmed_s: float | None) -> None:
        """Start the scheduled jobs. No rows are dropped by age before the clock is confirmed (`clock_check.py`)."""
        assert self._store is not None
        self._clock_confirmed_s = clock_confirmed_s
        settings, store, stats = self._settings, self._store, self._stats
        clock, writer = settings.clock, RemoteWriter(self.peer)
        timetable = self._timetable
        sealer = self._sealer = Sealer(store, writer, stats, clock, settings.seal)
        disk = DiskMonitor(
            settings.data_dir, settings.budget, spill_dir=lambda: store.spill_dir.parent
        )
        await asyncio.to_thread(disk.look)
        maintainer = self._maintainer = Maintainer(
            store,
            writer,
            stats,
            clock,
            sealer,
            disk,
            settings.kept,
            trusts_clock=lambda: shows_as_confirmed(self._clock_confirmed_s, clock),
        )
        roller = Roller(store, writer, stats, clock, sealer)
        self._copier = Copier(store, clock, sealer.turn)
        await asyncio.to_thread(self._copier.remove_staged)
        await self._stack.enter_async_context(timetable.running())
        for job in (sealer, maintainer, roller):
            self._stack.push_async_callback(job.stop)
        # Jobs that take turns at the lake wait for each other; `supervisor.py` detects a step that hangs.
        timetable.every("seal", sealer.look_s, sealer.seal_due, late_s=None)
        timetable.every("disk", DISK_LOOK_S, maintainer.look_at_disk)
        timetable.every("maintain", MAINTAIN_LOOK_S, maintainer.run_due, late_s=None)
        timetable.every("roll_up", ROLL_LOOK_S, roller.roll_due, late_s=None)
        timetable.every("join", JOIN_LOOK_S, self._join, late_s=None)
        timetable.every("memory", GIVE_BACK_S, self._give_back)

    async def _claim(self, name: str) -> bool:
        """Raises StoreUnavailableError."""
        assert self._store is not None
        store = self._store
        return await asyncio.to_thread(store.coordination.claim, name, store.collector)

    async def _share_silences(
        self, asked: tuple[Sequence[SharedSilence], Sequence[str], int]
    ) -> list[SharedSilence]:
        """Raises StoreUnavailableError."""
        assert self._store is not None
        return await asyncio.to_thread(self._store.coordination.share_silences, *asked)

    async def _exchange(self, asked: ClusterAsk) -> ClusterAnswer:
        """Raises StoreUnavailableError."""
        assert self._store is not None
        store = self._store
        return await asyncio.to_thread(store.coordination.exchange, store.collector, asked)

    async def _join(self) -> None:
        """Join rows while no seal runs, which would delete segments and their joined rows."""
        assert self._store is not None
        async with self._sealer.turn:
            with suppress(StoreUnavailableError):
                await asyncio.to_thread(self._store.join_hot)

    async def _give_back(self) -> None:
        await asyncio.to_thread(self._memory.give_back_if_grown)

    async def _current_stats(self) -> StorageStats:
        self._stats.effort = Effort.so_far()
        self._stats.late_jobs = tuple(f"storage {name}" for name in self._timetable.late)
        return self._stats

    async def _trust_clock(self, confirmed_s: float | None) -> None:
        self._clock_confirmed_s = confirmed_s

    async def _limit_spill(self, bytes_max: int) -> None:
        """Called every few seconds, also before the store is open."""
        if self._store is not None:
            await asyncio.to_thread(self._store.limit_spill, bytes_max)

    async def stop(self) -> None:
        """Interrupt the jobs and close the lake."""
        await self._stack.aclose()


def work(sock: socket.socket) -> None:
    """Run as the storage process until the other side closes the socket."""
    asyncio.run(_serve(sock))


async def _serve(sock: socket.socket) -> None:
    sock.setblocking(False)
    _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=sock)
    upkeep = Upkeep(channel)
    await upkeep.peer.run()
    with suppress(Exception):
        await upkeep.stop()
    # A normal exit would wait for busy threads of DuckDB.
    os._exit(0)


def _opened(settings: StorageSettings) -> Store:
    with starting(settings.data_dir):
        state = StateFile(settings.data_dir / FILE_NAME)
        try:
            return Store(
                settings.data_dir, settings.limits, settings.address, state, settings.spill_dir
            )
        except BaseException:
            state.close()
            raise


def _sealed(store: Store) -> int:
    with store.maintaining() as cursor:
        return store.sealed(cursor)
