"""Starts the forwarding process, reads its counters, answers its queries, and replaces it when it ends or does not
answer."""

import asyncio
import logging
import socket
from typing import Any

from gpuwarden_collector.forwarding.port import ReceiverState
from gpuwarden_collector.forwarding.process import ForwardingSettings
from gpuwarden_collector.forwarding.queries import RowExport, pass_rows
from gpuwarden_collector.processes.channel import Channel, ChannelError
from gpuwarden_collector.processes.forkserver import FORWARDING, ProcessHandle, spawn
from gpuwarden_collector.storage.process_calls import Peer, RemoteError

log = logging.getLogger(__name__)

LOOK_S = 2.0
ANSWER_S = 60.0
_AGAIN_S_MAX = 60.0


class Forwarder:
    """The process and its counters. Call `look` every LOOK_S."""

    def __init__(
        self, settings: ForwardingSettings, export: RowExport, group: asyncio.TaskGroup
    ) -> None:
        """`export`: runs its queries; `group`: runs the tasks of the connection."""
        self._settings = settings
        self._export = export
        self._group = group
        self._peer: Peer | None = None
        self._handle: ProcessHandle | None = None
        self._seen: dict[str, ReceiverState] = {}
        self._failures = 0
        self._not_before_s = 0.0
        self._down_since_s: float | None = None
        """When the first of its failures in a row was; None: it answers."""
        self._is_stopping = False
        self.states = {name: ReceiverState() for name in settings.plan.names}
        """By receiver, since the collector's start."""
        self.pid = 0
        self.restarts = 0

    async def look(self) -> None:
        """Read the counters; start the process if it does not run."""
        if self._is_stopping:
            return
        try:
            if self._peer is None:
                await self._start()
                return
            async with asyncio.timeout(ANSWER_S):
                found: dict[str, ReceiverState] = await self._peer.call("states")
        except (OSError, TimeoutError, ChannelError, RemoteError) as error:
            if not self._is_stopping:
                await self._note_failure(str(error) or "it does not answer")
            return
        self._failures, self._down_since_s = 0, None
        for name, now in found.items():
            self.states[name].add(self._seen.get(name, ReceiverState()), now)
        self._seen = found

    async def stop(self) -> None:
        """Kill the process: a later run repeats what the receivers may lack."""
        self._is_stopping = True
        await self._end()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s:
            return
        ours, theirs = socket.socketpair()
        try:
            self.pid = await asyncio.to_thread(spawn, [theirs.detach()], FORWARDING)
            self._handle = ProcessHandle(self.pid)
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        _, channel = await loop.create_connection(Channel, sock=ours)

        async def query(number: int, sql: str) -> tuple[int, str | None]:
            return await pass_rows(self._export, peer, number, sql)

        peer = self._peer = Peer(channel, {"log": _log, "query": query})
        self._seen = {}
        self._group.create_task(peer.run(), name="forwarding process")
        async with asyncio.timeout(ANSWER_S):
            await peer.call("begin", self._settings)

    async def _note_failure(self, why: str) -> None:
        await self._end()
        now_s = asyncio.get_running_loop().time()
        if self._down_since_s is None:
            self._down_since_s = now_s
        for state in self.states.values():
            state.problem = (
                f"the process that sends to it has ended: {why}; see the collector's log"
            )
            state.failing_s = now_s - self._down_since_s
        self._failures += 1
        self.restarts += 1
        wait_s = min(_AGAIN_S_MAX, 2.0 ** min(self._failures, 10) - 1.0)
        self._not_before_s = now_s + wait_s
        extra = {"pid": self.pid, "reason": why}
        log.error("the process that forwards rows is started again", extra=extra)

    async def _end(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.kill()
            try:
                await asyncio.to_thread(handle.wait_ended, 5.0)
            finally:
                handle.close()


async def _log(fields: dict[str, Any]) -> None:
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
