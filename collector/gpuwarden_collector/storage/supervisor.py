"""Starts the storage process, answers its calls, and replaces it when it ends or hangs.

Batches are stored without it; segments wait to be sealed.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from datetime import UTC
from functools import partial
from typing import Any

from gpuwarden import lifecycle
from gpuwarden.alert import SharedSilence
from gpuwarden.cluster import ClusterAnswer, ClusterAsk
from gpuwarden.lifecycle import StartError
from gpuwarden.query import QueryError
from gpuwarden_collector.processes.channel import Channel, ChannelError
from gpuwarden_collector.processes.forkserver import STORAGE, ProcessHandle, spawn
from gpuwarden_collector.storage.commit import UpkeepWriter
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.process import StorageSettings
from gpuwarden_collector.storage.process_calls import Peer, RemoteError
from gpuwarden_collector.storage.stats import Effort, StorageStats

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Interval at which the process's counters are read."""
END_S = 5.0
"""Longest wait for a killed process to end."""
STOP_S = 20.0
"""Longest wait for an orderly stop."""
ANSWER_S = 30.0
"""Longest wait for its counters; a process that takes longer is stopped or hangs, and is replaced."""
OPEN_S = 300.0
"""Longest idle time while it opens the store."""
STALLED_S = 900.0
"""Idle time within a step from which rows count as stalled: they pile up in segments."""
STUCK_S = 3_600.0
"""Idle time within a step from which the process is replaced; the next one repeats the step."""
ENDLESS_S = 6 * 3_600.0
"""Longest step of a process that works: a longer one is reported, one of twice that time has the process replaced."""
EFFORT_S = 20.0
"""Time over which its work is measured."""
LONG_STEP_S = 60.0
"""A step of at least this length excuses rollups that waited for it."""
_CPU_SHARE = 0.1
_WAITS_PER_S = 50.0
"""A process works if it reaches either. Its scheduled jobs alone reach a tenth of it."""
ROLLUPS_LATE_S = 900.0
"""Age of the newest rolled-up minute from which rollups are late."""
_AGAIN_S_MAX = 60.0


def again_after_s(failures: int) -> float:
    """Least time between two starts, after this many failures in a row."""
    return min(_AGAIN_S_MAX, 2.0 ** min(failures, 10) - 1.0)


def has_worked(since: Effort, now: Effort, elapsed_s: float) -> bool:
    """Whether the process did more than wait in that time."""
    cpu_s, waits = now.cpu_s - since.cpu_s, now.waits - since.waits
    return cpu_s >= _CPU_SHARE * elapsed_s or waits >= _WAITS_PER_S * elapsed_s


def replaced_for(step_s: float, idle_s: float, *, is_answering: bool) -> str | None:
    """Why to replace a started process; None: it works. `step_s`: time since its last check for rows to seal,
    or since its start; `idle_s`: the part of it since the process last worked."""
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
    """Why rows are not sealed or not rolled up, in a sentence; None: they are.

    A long step that works is fine, and so are late rollups that advance after an outage. `step_s`, `idle_s`: as
    for `replaced_for`; `rollup_idle_s`: time since rollups last advanced, without the step that runs.
    """
    if not is_open and idle_s > ANSWER_S:
        return f"the storage process has not started for {idle_s:.0f} s; see the collector's log"
    if idle_s > STALLED_S or step_s > ENDLESS_S:
        return f"rows have not moved to the lake for {step_s / 60:.0f} min; see the collector's log"
    is_late = rollup_lag_s is not None and rollup_lag_s > ROLLUPS_LATE_S
    if is_late and rollup_idle_s > STALLED_S:
        return (
            f"rollups have not advanced for {rollup_idle_s / 60:.0f} min; see the collector's log"
        )
    return None


class StorageProcess:
    """The process and its connection to the writer. Call `look` every LOOK_S."""

    def __init__(
        self, settings: StorageSettings, stats: StorageStats, group: asyncio.TaskGroup
    ) -> None:
        """`group`: runs the tasks of the connection."""
        self._settings = settings
        self._stats = stats
        self._group = group
        self._writer: UpkeepWriter | None = None
        self._peer: Peer | None = None
        self._handle: ProcessHandle | None = None
        self.pid = 0
        self._seen = StorageStats()
        self._failures = 0
        """Starts in a row after which the process never checked for rows to seal."""
        self._started_s = 0.0
        self._is_open = False
        self._looked_s = asyncio.get_running_loop().time()
        """When its last check for rows to seal was seen."""
        self._worked_s = self._looked_s
        """When it was last seen to work."""
        self._effort = (self._looked_s, Effort())
        """A time, and the effort until then: what is measured against."""
        self._rolled_s = self._looked_s
        """When rollups were last seen to advance."""
        self._clock_confirmed_s: float | None = None
        self._is_stopping = False

    @property
    def trouble(self) -> str | None:
        """Why rows do not move to the lake, in a sentence; None: they do."""
        now_s = asyncio.get_running_loop().time()
        # The work of a process that ended before it was open does not count.
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
        """Age of the end of the newest rolled-up minute; None: there is none yet."""
        until = self._stats.rolled_until
        if until is None:
            return None
        return max(0.0, (self._settings.clock.now() - until.replace(tzinfo=UTC)).total_seconds())

    @property
    def late_jobs(self) -> tuple[str, ...]:
        """Scheduled jobs of the process that take too long."""
        return self._stats.late_jobs

    async def start(self) -> int:
        """Start the process; the newest segment that the lake holds. Raises StartError."""
        ours, theirs = socket.socketpair()
        try:
            self.pid = await asyncio.to_thread(spawn, [theirs.detach()], STORAGE)
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
        sealed: int = await self._call_while_working("open", self._settings)
        return sealed

    async def begin(self, writer: UpkeepWriter) -> None:
        """Start its jobs, which append by `writer`. Raises StartError."""
        self._writer = writer
        await self._begin()

    async def _begin(self) -> None:
        await self._call_while_working("begin", self._clock_confirmed_s)
        self._is_open = True

    async def _call_while_working(self, name: str, *arguments: Any) -> Any:
        """Call for as long as the process works. Raises StartError, also when it is idle for OPEN_S."""
        try:
            async with asyncio.timeout(OPEN_S) as limit:
                watching = self._group.create_task(self._extend(limit), name=f"storage {name}")
                try:
                    return await self._call(name, *arguments)
                finally:
                    watching.cancel()
        except TimeoutError as error:
            raise StartError(
                f"the storage process is idle: `{name}` was given up after "
                f"{asyncio.get_running_loop().time() - self._started_s:.0f} s"
            ) from error
        except StoreUnavailableError as error:
            raise StartError(str(error)) from error

    async def _extend(self, limit: asyncio.Timeout) -> None:
        """Extend a time limit while the process works, and systemd's limit for the collector's start."""
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
                return  # the call itself raises it too
            if self._worked_s != before_s:
                limit.reschedule(loop.time() + OPEN_S)
                lifecycle.notify(f"EXTEND_TIMEOUT_USEC={OPEN_S * 1e6:.0f}")

    async def look(self) -> None:
        """Read the counters; start the process again if it has ended, does not answer or is not open."""
        if self._is_stopping or self._peer is None:
            return
        if not self._is_open:
            await self._restart()
            return
        loop = asyncio.get_running_loop()
        is_answering = True
        try:
            async with asyncio.timeout(ANSWER_S):
                self._take(await self._call_open("stats"))
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
            self._rolled_s = max(self._rolled_s, now_s)  # rollups waited for a long step
        if now.seal_looks != self._seen.seal_looks:
            self._looked_s = now_s
            self._failures = 0
        if now.rolled_until != self._stats.rolled_until:
            self._rolled_s = now_s
        self._stats.add(self._seen, now)
        self._seen = now

    async def seal(self) -> int:
        """Seal all hot rows; how many. Raises StoreUnavailableError, RowsRefusedError."""
        rows: int = await self._call_open("seal")
        await self.look()
        return rows

    async def claim(self, name: str) -> bool:
        """Claim what only one collector of the lake may do; whether it is this one's. Raises QueryError."""
        try:
            return bool(await self._call_open("claim", name))
        except StoreUnavailableError as error:
            raise QueryError(f"no claim can be made: {error}") from error

    async def share_silences(
        self, ours: Sequence[SharedSilence], known: Sequence[str], since_ms: int
    ) -> list[SharedSilence]:
        """As `Coordination.share_silences`. Raises QueryError."""
        try:
            found: list[SharedSilence] = await self._call_open(
                "share_silences", (ours, known, since_ms)
            )
        except StoreUnavailableError as error:
            raise QueryError(f"silences are not shared: {error}") from error
        return found

    async def exchange(self, asked: ClusterAsk) -> ClusterAnswer:
        """As `Coordination.exchange`. Raises QueryError."""
        try:
            found: ClusterAnswer = await self._call_open("exchange", asked)
        except StoreUnavailableError as error:
            raise QueryError(f"moving nodes are not followed: {error}") from error
        return found

    async def backup(self) -> dict[str, Any]:
        """Make a copy for a backup: `path`, or `error`; for the control socket."""
        return await self._answer("backup")

    async def maintain(self) -> dict[str, Any]:
        """Run maintenance: the tasks that were done, or `error`; for the control socket."""
        return await self._answer("maintain")

    def limit_spill(self, bytes_max: int) -> None:
        """Limit the bytes that it may spill."""
        if self._peer is not None:
            self._peer.notify("limit_spill", bytes_max)

    def trust_clock(self, confirmed_s: float | None) -> None:
        """Set `ClockCheck.confirmed_s`, which dropping by age needs; a process started later gets it too."""
        self._clock_confirmed_s = confirmed_s
        if self._peer is not None:
            self._peer.notify("trust_clock", confirmed_s)

    async def stop(self) -> None:
        """Stop the process in an orderly way, or kill it after STOP_S."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(STOP_S):
                await self._call("stop")
        except (TimeoutError, StoreUnavailableError):
            log.error("the storage process did not stop in time; the next start repeats its step")
        await self._end()

    async def _restart(self, why: str = "it did not start") -> None:
        """Start the process again; if that fails, a later `look` tries again."""
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
            await self._begin()
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
                # In a thread: the process may hang in the kernel, on a disk.
                await asyncio.to_thread(handle.wait_ended, END_S)
            finally:
                handle.close()

    async def _call_open(self, name: str, *arguments: Any) -> Any:
        """Call once the process is open; as `_call`."""
        if not self._is_open:
            raise StoreUnavailableError("the storage process is being started")
        return await self._call(name, *arguments)

    async def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the process. Raises the store's errors, StoreUnavailableError when it has ended."""
        if self._peer is None:
            raise StoreUnavailableError("the storage process was not started")
        try:
            return await self._peer.call(name, *arguments)
        except (ChannelError, RemoteError) as error:
            raise StoreUnavailableError(f"the storage process: {error}") from error

    async def _answer(self, name: str) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._call_open(name)
        except StoreUnavailableError as error:
            return {"error": str(error)}
        await self.look()
        return answer

    async def _of_writer(self, name: str, *arguments: Any) -> Any:
        """Call a method of `UpkeepWriter`."""
        assert self._writer is not None, "the process calls the writer only after `begin`"
        return await getattr(self._writer, name)(*arguments)

    async def _log(self, fields: dict[str, Any]) -> None:
        record = logging.makeLogRecord(fields)
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
