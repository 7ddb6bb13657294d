"""The storage process: seals segments, rolls up, maintains and backs up the lake, on cores of its own.

It writes no frame itself: what it has computed it hands to the process that acknowledges batches, which
appends it. So a seal that takes all memory, or a fault here, costs no batch; this process is begun anew
and takes up what it finds undone.
"""

import asyncio
import logging
import logging.handlers
import os
import pickle
import queue
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_collector.processes.channel import Channel, ChannelError
from gpuwarden_collector.processes.footprint import GIVE_BACK_S, Memory
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.backup import Copier
from gpuwarden_collector.storage.commit import Changes, WriterStopped
from gpuwarden_collector.storage.database import Store, starting
from gpuwarden_collector.storage.disk import Budget, DiskMonitor
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.maintenance import Maintainer
from gpuwarden_collector.storage.maintenance import MaintenancePolicy as KeptPolicy
from gpuwarden_collector.storage.process_calls import Handler, Peer, RemoteError
from gpuwarden_collector.storage.retention import shows_as_confirmed
from gpuwarden_collector.storage.rollup_schedule import Roller
from gpuwarden_collector.storage.seal import Sealer, SealPolicy
from gpuwarden_collector.storage.state import FILE_NAME, StateFile
from gpuwarden_collector.storage.stats import Effort, StorageStats
from gpuwarden_collector.timetable import Timetable

DISK_LOOK_S = 2.0
"""How often free space is read."""
ROLL_LOOK_S = 15.0
"""How often it is looked whether windows have closed."""
JOIN_LOOK_S = 10.0
"""How often rows of segments are joined for who reads them."""
MAINTAIN_LOOK_S = 5.0
"""How often maintenance may begin."""


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """What the storage process is started with."""

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
    """`UpkeepWriter` of the process that acknowledges batches."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def freeze(self) -> None:
        await self._call("freeze")

    async def save(self) -> None:
        await self._call("save")

    async def write(self, changes: Changes) -> None:
        await self._call("write", changes)

    async def close_windows(self, until: datetime) -> None:
        await self._call("close_windows", until)

    async def forget_silent(self, before: datetime) -> Mapping[str, int]:
        gone: Mapping[str, int] = await self._call("forget_silent", before)
        return gone

    async def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return await self._peer.call(name, *arguments)
        except (ChannelError, RemoteError) as error:
            raise WriterStopped(str(error)) from error


class Upkeep:
    """What the process does, and what it may be called to do."""

    def __init__(self) -> None:
        self._stats = StorageStats()
        self._stack = AsyncExitStack()
        self._timetable = Timetable()
        self._ended = asyncio.Event()
        self.peer: Peer | None = None
        self._store: Store | None = None
        self._memory = Memory()
        self._clock_confirmed_s: float | None = None
        self.handlers: Mapping[str, Handler] = {
            "open": self._open,
            "begin": self._begin,
            "stats": self._told_stats,
            "limit_spill": self._limit_spill,
            "trust_clock": self._trust_clock,
            "seal": self._seal,
            "backup": self._backup,
            "maintain": self._maintain,
            "stop": self.stop,
        }

    async def _open(self, settings: StorageSettings) -> int:
        """The newest segment that the lake holds. Raises StartError."""
        self._settings = settings
        _send_log(self.peer, settings.log_level)
        store = self._store = await asyncio.to_thread(_opened, settings)
        self._stack.callback(store.state.close)
        self._stack.callback(store.close)
        return await asyncio.to_thread(_sealed, store)

    async def _begin(self, clock_confirmed_s: float | None) -> None:
        """Do things by the clock from now on; nothing by age before it was confirmed (`clock_check.py`)."""
        assert self.peer is not None and self._store is not None
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
            stats,
            clock,
            disk,
            settings.kept,
            sealer.turn,
            seal=lambda: sealer.seal_due(is_forced=True),
            leads=store.coordination.is_leader,
            forget_silent=writer.forget_silent,
            trusts_clock=lambda: shows_as_confirmed(self._clock_confirmed_s, clock),
        )
        roller = Roller(store, writer, stats, clock, sealer)
        self._copier = Copier(store, clock, sealer.turn)
        await asyncio.to_thread(self._copier.remove_staged)
        await self._stack.enter_async_context(timetable.running())
        for one in (sealer, maintainer, roller):
            self._stack.push_async_callback(one.stop)
        # Those that take turns at the lake wait for each other; whether the step that runs gets on is for
        # `supervisor.py` to say.
        timetable.every("seal", sealer.look_s, sealer.seal_due, late_s=None)
        timetable.every("disk", DISK_LOOK_S, maintainer.look_at_disk)
        timetable.every("maintain", MAINTAIN_LOOK_S, maintainer.run_due, late_s=None)
        timetable.every("roll_up", ROLL_LOOK_S, roller.roll_due, late_s=None)
        timetable.every("join", JOIN_LOOK_S, self._join, late_s=None)
        timetable.every("memory", GIVE_BACK_S, self._give_back)

    async def _join(self) -> None:
        """In its turn: a seal deletes segments and what was joined of them."""
        assert self._store is not None
        async with self._sealer.turn:
            with suppress(StoreUnavailableError):
                await asyncio.to_thread(self._store.join_hot)

    async def _give_back(self) -> None:
        await asyncio.to_thread(self._memory.give_back_if_grown)

    async def _told_stats(self) -> StorageStats:
        self._stats.effort = Effort.so_far()
        self._stats.late_jobs = tuple(f"storage {name}" for name in self._timetable.late)
        return self._stats

    async def _trust_clock(self, confirmed_s: float | None) -> None:
        self._clock_confirmed_s = confirmed_s

    async def _limit_spill(self, bytes_max: int) -> None:
        """Told every few seconds, also before the store is open."""
        if self._store is not None:
            await asyncio.to_thread(self._store.limit_spill, bytes_max)

    async def _seal(self) -> int:
        """Move to the lake what is hot; rows. Raises StoreUnavailableError, RowsRefusedError."""
        return await self._sealer.run_once(is_forced=True)

    async def _backup(self) -> dict[str, Any]:
        return await self._copier.copy()

    async def _maintain(self) -> dict[str, Any]:
        return await self._maintainer.run_as_asked()

    async def stop(self) -> None:
        """End what runs, which is undone, and let go of the lake."""
        await self._stack.aclose()


def work(sock: socket.socket) -> None:
    """Be the storage process until the other side closes the socket."""
    asyncio.run(_serve(sock))


async def _serve(sock: socket.socket) -> None:
    sock.setblocking(False)
    _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=sock)
    upkeep = Upkeep()
    peer = upkeep.peer = Peer(channel, upkeep.handlers)
    await peer.run()
    with suppress(Exception):
        await upkeep.stop()
    # Threads that DuckDB keeps busy would hold up a process that nobody waits for.
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


class _Told(logging.handlers.QueueHandler):
    """Hands records to the process that keeps the log."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(queue.SimpleQueue())  # not used: see `enqueue`
        self._peer = peer
        self._loop = asyncio.get_running_loop()

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, record)

    def _tell(self, record: logging.LogRecord) -> None:
        try:
            pickle.dumps(record.__dict__)
        except Exception:  # noqa: BLE001  whatever a record holds, its text is told
            record.__dict__ = {k: v for k, v in record.__dict__.items() if isinstance(v, str | int)}
        self._peer.tell("log", record.__dict__)


def _send_log(peer: Peer | None, level: int) -> None:
    if peer is None:
        return
    root = logging.getLogger()
    root.handlers[:] = [_Told(peer)]
    root.setLevel(level)
