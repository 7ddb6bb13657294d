"""Starts the storage process, answers what it asks for, and replaces it when it ends.

While it is away batches are stored as ever; segments wait to be sealed.
"""

import asyncio
import logging
import socket
from datetime import UTC
from functools import partial
from typing import Any

from gpuwarden import lifecycle
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.processes.channel import Channel, ChannelError
from gpuwarden_collector.processes.forkserver import ProcessHandle, spawn_storage
from gpuwarden_collector.storage.commit import UpkeepWriter
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.process import StorageSettings
from gpuwarden_collector.storage.process_calls import Peer, RemoteError
from gpuwarden_collector.storage.stats import Effort, StorageStats

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often its counters are read, and whether it lives."""
END_S = 5.0
"""Most time that a killed one may take to be gone."""
STOP_S = 20.0
"""Most time that it gets to end what it does."""
ANSWER_S = 30.0
"""Most time that it may take to give its counters: who takes longer is stopped, or stuck, and is replaced."""
OPEN_S = 300.0
"""Most time that it may do nothing while it opens the store."""
STALLED_S = 900.0
"""So long without a look at what is to move to the lake, while it does nothing, and rows pile up in segments."""
STUCK_S = 3_600.0
"""So long, and a step never ends. The process is replaced; what it did is undone, and done again."""
ENDLESS_S = 6 * 3_600.0
"""Most time of a step that works all along: longer is trouble, twice as long has the process replaced."""
EFFORT_S = 20.0
"""Time over which it is judged whether it works."""
LONG_STEP_S = 60.0
"""Rollups that wait for a step of so long are not late by their own fault."""
_CPU_SHARE = 0.1
_WAITS_PER_S = 50.0
"""It works where it has either: one whose step waits for ever has a tenth of it, from what it does by the clock."""
ROLLUPS_LATE_S = 900.0
"""Age of the newest minute that is rolled up from which rollups must get on."""
_AGAIN_S_MAX = 60.0


def again_after_s(failures: int) -> float:
    """Least time between two starts, after so many in a row of which nothing came."""
    return min(_AGAIN_S_MAX, 2.0 ** min(failures, 10) - 1.0)


def has_worked(since: Effort, now: Effort, elapsed_s: float) -> bool:
    """Whether it did more in that time than wait."""
    cpu_s, waits = now.cpu_s - since.cpu_s, now.waits - since.waits
    return cpu_s >= _CPU_SHARE * elapsed_s or waits >= _WAITS_PER_S * elapsed_s


def replaced_for(step_s: float, idle_s: float, *, is_answering: bool) -> str | None:
    """Why a process that was started is to be replaced; None: it works. `step_s`: since its last look at
    what is to move to the lake, or since its start; `idle_s`: of it, since it was last seen to work."""
    if not is_answering:
        return "it does not answer"
    if idle_s > STUCK_S or step_s > 2 * ENDLESS_S:
        return f"a step has not ended for {step_s / 60:.0f} min"
    return None


def trouble_of(
    step_s: float,
    idle_s: float,
    rollup_lag_s: float | None,
    rollup_idle_s: float,
    *,
    is_open: bool,
) -> str | None:
    """Why rows do not move to the lake or are not rolled up, in a sentence; None: they are.

    A long step that works is no trouble, nor are rollups that are late after an outage and get on. `step_s`,
    `idle_s`: as of `replaced_for`; `rollup_idle_s`: since rollups got on, but for a step that runs.
    """
    if not is_open and idle_s > ANSWER_S:
        return f"the storage process does not start since {idle_s:.0f} s; see the collector's log"
    if idle_s > STALLED_S or step_s > ENDLESS_S:
        return f"rows have not moved to the lake for {step_s / 60:.0f} min; see the collector's log"
    is_late = rollup_lag_s is not None and rollup_lag_s > ROLLUPS_LATE_S
    if is_late and rollup_idle_s > STALLED_S:
        return f"rollups have not got on for {rollup_idle_s / 60:.0f} min; see the collector's log"
    return None


class StorageProcess:
    """The process and its way to the writer. `look` is to be called each LOOK_S."""

    def __init__(
        self, settings: StorageSettings, stats: StorageStats, group: asyncio.TaskGroup
    ) -> None:
        """`group`: of what runs for as long as the process does."""
        self._settings = settings
        self._stats = stats
        self._group = group
        self._writer: UpkeepWriter | None = None
        self._peer: Peer | None = None
        self._handle: ProcessHandle | None = None
        self.pid = 0
        self._seen = StorageStats()
        self._failures = 0
        """Starts in a row that have not come to a look at the store."""
        self._started_s = 0.0
        self._is_open = False
        self._looked_s = asyncio.get_running_loop().time()
        """When it was last seen to have looked at what is to move to the lake."""
        self._worked_s = self._looked_s
        """When it was last seen to work."""
        self._effort = (self._looked_s, Effort())
        """What it had done at a time, from which its work is judged."""
        self._rolled_s = self._looked_s
        """When rollups were last seen to have got on."""
        self._clock_confirmed_s: float | None = None
        self._is_stopping = False

    @property
    def trouble(self) -> str | None:
        """Why rows do not move to the lake, in a sentence; None: they do."""
        now_s = asyncio.get_running_loop().time()
        # One that ends again and again before it is open has worked for nothing.
        worked_s = self._worked_s if self._failures < 2 else self._looked_s
        return trouble_of(
            now_s - self._looked_s,
            now_s - max(self._looked_s, worked_s),
            self.rollup_lag_s,
            self._looked_s - self._rolled_s,
            is_open=self._is_open,
        )

    @property
    def rollup_lag_s(self) -> float | None:
        """Age of the end of the newest minute that is rolled up; None: there is none yet."""
        until = self._stats.rolled_until
        if until is None:
            return None
        return max(0.0, (self._settings.clock.now() - until.replace(tzinfo=UTC)).total_seconds())

    @property
    def late_jobs(self) -> tuple[str, ...]:
        """What it does by the clock and does not end."""
        return self._stats.late_jobs

    async def start(self) -> int:
        """Start it; the newest segment that the lake holds. Raises StartError."""
        ours, theirs = socket.socketpair()
        try:
            self.pid = await asyncio.to_thread(spawn_storage, theirs.detach())
            self._handle = ProcessHandle(self.pid)
        except OSError as error:
            ours.close()
            raise StartError(f"the storage process could not be started: {error}") from error
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_connection(Channel, sock=ours)
        of_writer = ("freeze", "save", "write", "close_windows", "forget_silent")
        handlers = {name: partial(self._of_writer, name) for name in of_writer}
        peer = self._peer = Peer(channel, {**handlers, "log": self._log})
        self._group.create_task(peer.run(), name="storage process")
        self._seen = StorageStats()
        self._started_s = loop.time()
        self._effort = (self._started_s, Effort())
        sealed: int = await self._ask_while_it_works("open", self._settings)
        return sealed

    async def begin(self, writer: UpkeepWriter) -> None:
        """Let it do its work. Raises StartError."""
        self._writer = writer
        await self._ask_while_it_works("begin", self._clock_confirmed_s)
        self._is_open = True

    async def _ask_while_it_works(self, name: str, *arguments: Any) -> Any:
        """As `_ask`, for as long as it takes. Raises StartError, also when it does nothing for OPEN_S."""
        try:
            async with asyncio.timeout(OPEN_S) as limit:
                watching = self._group.create_task(self._extend(limit), name=f"storage {name}")
                try:
                    return await self._ask(name, *arguments)
                finally:
                    watching.cancel()
        except TimeoutError as error:
            raise StartError(
                f"the storage process does nothing: `{name}` was given up after "
                f"{asyncio.get_running_loop().time() - self._started_s:.0f} s"
            ) from error
        except StoreUnavailableError as error:
            raise StartError(str(error)) from error

    async def _extend(self, limit: asyncio.Timeout) -> None:
        """Put a limit off for as long as the process works, and that of whoever started the collector."""
        loop = asyncio.get_running_loop()
        while self._peer is not None:
            await asyncio.sleep(min(LOOK_S, EFFORT_S))
            before_s = self._worked_s
            try:
                async with asyncio.timeout(ANSWER_S):
                    self._note_effort((await self._peer.call("stats")).effort)
            except TimeoutError:
                limit.reschedule(loop.time())
                return
            except (ChannelError, RemoteError):
                return  # whoever waits is told as well
            if self._worked_s != before_s:
                limit.reschedule(loop.time() + OPEN_S)
                lifecycle.notify(f"EXTEND_TIMEOUT_USEC={OPEN_S * 1e6:.0f}")

    async def look(self) -> None:
        """Read its counters; start it anew if it has ended, does not answer or is not open."""
        if self._is_stopping or self._peer is None:
            return
        if not self._is_open:
            await self._restart()
            return
        loop = asyncio.get_running_loop()
        is_answering = True
        try:
            async with asyncio.timeout(ANSWER_S):
                self._take(await self._call("stats"))
        except TimeoutError:
            is_answering = False
        except StoreUnavailableError:
            if not self._is_stopping:
                await self._restart("it has ended")
            return
        since_s = max(self._looked_s, self._started_s)
        now_s = loop.time()
        idle_s = now_s - max(since_s, self._worked_s)
        why = replaced_for(now_s - since_s, idle_s, is_answering=is_answering)
        if why is not None and not self._is_stopping:
            await self._restart(why)

    def _note_effort(self, now: Effort) -> None:
        now_s = asyncio.get_running_loop().time()
        since_s, since = self._effort
        if now_s - since_s >= EFFORT_S:
            if has_worked(since, now, now_s - since_s):
                self._worked_s = now_s
            self._effort = (now_s, now)

    def _take(self, now: StorageStats) -> None:
        now_s = asyncio.get_running_loop().time()
        self._note_effort(now.effort)
        if now.seal_looks != self._seen.seal_looks and now_s - self._looked_s > LONG_STEP_S:
            self._rolled_s = max(self._rolled_s, now_s)  # rollups have waited for a long step
        if now.seal_looks != self._seen.seal_looks:
            self._looked_s = now_s
            self._failures = 0
        if now.rolled_until != self._stats.rolled_until:
            self._rolled_s = now_s
        self._stats.add(self._seen, now)
        self._seen = now

    async def seal(self) -> int:
        """Move to the lake what is hot; rows. Raises StoreUnavailableError, RowsRefusedError."""
        rows: int = await self._call("seal")
        await self.look()
        return rows

    async def backup(self) -> dict[str, Any]:
        """For the control socket: where the copy is, or why there is none."""
        return await self._answer("backup")

    async def maintain(self) -> dict[str, Any]:
        """For the control socket: what was done."""
        return await self._answer("maintain")

    def limit_spill(self, bytes_max: int) -> None:
        """Let it spill no more than that."""
        if self._peer is not None:
            self._peer.tell("limit_spill", bytes_max)

    def trust_clock(self, confirmed_s: float | None) -> None:
        """What it may drop by age on: as `ClockCheck.confirmed_s`. Who comes in its place begins with it."""
        self._clock_confirmed_s = confirmed_s
        if self._peer is not None:
            self._peer.tell("trust_clock", confirmed_s)

    async def stop(self) -> None:
        """End it in good order."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(STOP_S):
                await self._ask("stop")
        except (TimeoutError, StoreUnavailableError):
            log.error("the storage process did not end in time; what it did is undone")
        await self._end()

    async def _restart(self, why: str = "it did not start") -> None:
        """What is not open when this ends is started again by a later look."""
        self._is_open = False
        await self._end()
        if asyncio.get_running_loop().time() - self._started_s < again_after_s(self._failures):
            return
        self._failures += 1
        self._stats.storage_restarts += 1
        extra = {"pid": self.pid, "why": why}
        log.error("the storage process is started again", extra=extra)
        try:
            await self.start()
            await self._ask_while_it_works("begin", self._clock_confirmed_s)
            self._is_open = True
        except StartError as error:
            self._is_open = False
            await self._end()
            log.error("the storage process does not start", extra={"reason": str(error)})

    async def _end(self) -> None:
        if self._peer is not None:
            self._peer.close()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.kill()
            try:
                # Not on the event loop: it may be in the kernel, waiting for a disk.
                await asyncio.to_thread(handle.wait_ended, END_S)
            finally:
                handle.close()

    async def _call(self, name: str, *arguments: Any) -> Any:
        """As `_ask`, once it does its work."""
        if not self._is_open:
            raise StoreUnavailableError("the storage process is being started")
        return await self._ask(name, *arguments)

    async def _ask(self, name: str, *arguments: Any) -> Any:
        """Raises StoreUnavailableError when it has ended, and what it raises of the store's errors."""
        if self._peer is None:
            raise StoreUnavailableError("the storage process was not started")
        try:
            return await self._peer.call(name, *arguments)
        except (ChannelError, RemoteError) as error:
            raise StoreUnavailableError(f"the storage process: {error}") from error

    async def _answer(self, name: str) -> dict[str, Any]:
        try:
            said: dict[str, Any] = await self._call(name)
        except StoreUnavailableError as error:
            return {"error": str(error)}
        await self.look()
        return said

    async def _of_writer(self, name: str, *arguments: Any) -> Any:
        """Call a method of `UpkeepWriter`."""
        assert self._writer is not None, "nothing is asked for before `begin`"
        return await getattr(self._writer, name)(*arguments)

    async def _log(self, said: dict[str, Any]) -> None:
        record = logging.makeLogRecord(said)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
