"""Runs the forwarding process: the protocol's work, and the deletion of kept segments that all receivers have.

It only reads the store, so a receiver that is slow or away delays no batch. A segment that is sealed before a receiver
has its rows is kept, up to `keep_bytes_max` and while the disk has room; then the oldest is deleted, and the rows that
were not sent are counted and logged.
"""

import asyncio
import importlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpuwarden.clock import Clock, to_ms
from gpuwarden.collector_metrics import MINUTE_MS
from gpuwarden.sizes import size_text
from gpuwarden_collector.forwarding.feed import SegmentFeed
from gpuwarden_collector.forwarding.minutes import MinuteFile, minutes_folder
from gpuwarden_collector.forwarding.port import ForwardingPlan, ReceiverState
from gpuwarden_collector.forwarding.queries import RemoteQueries
from gpuwarden_collector.processes.channel import Channel
from gpuwarden_collector.processes.footprint import GIVE_BACK_S, Memory
from gpuwarden_collector.storage.disk import free_bytes
from gpuwarden_collector.storage.kept_segments import kept_bytes, kept_folder
from gpuwarden_collector.storage.process_calls import Handler, LogSender, Peer
from gpuwarden_collector.storage.segment import segment_path
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

log = logging.getLogger(__name__)

TIDY_S = 5.0


@dataclass(frozen=True, slots=True)
class ForwardingSettings:
    """Settings of the forwarding process."""

    data_dir: Path
    plan: ForwardingPlan
    work: str
    free_bytes_min: int
    """Free space below which kept segments are deleted."""
    clock: Clock
    log_level: int
    started_at: datetime


class _Context:
    """Implements `ForwardingContext`."""

    def __init__(
        self, settings: ForwardingSettings, query: Callable[[str], Awaitable[Any]]
    ) -> None:
        self._query = query
        self._data_dir = settings.data_dir
        self._state: StateFile | None = None
        self.settings = settings.plan.settings
        self.clock = settings.clock
        self.started_at = settings.started_at
        self.states: Mapping[str, ReceiverState] = {n: ReceiverState() for n in settings.plan.names}
        self.feeds: dict[str, SegmentFeed] = {}

    def feed(self, name: str, tables: frozenset[str]) -> SegmentFeed:
        """As of ForwardingContext."""
        feed = SegmentFeed(self._data_dir, name, tables, self.states[name])
        self.feeds[name] = feed
        return feed

    def inventory(self, name: str) -> Sequence[Mapping[str, Any]]:
        """As of ForwardingContext."""
        if self._state is None:
            self._state = StateFile(self._data_dir / FILE_NAME, is_read_only=True)
        return self._state.rows(name)

    def minutes(self, name: str, source: str) -> MinuteFile:
        """As of ForwardingContext."""
        now_ms = to_ms(self.clock.now())
        path = minutes_folder(self._data_dir, name) / f"{source}.json"
        return MinuteFile(path, now_ms - now_ms % MINUTE_MS)

    async def query(self, sql: str) -> Any:
        """As of ForwardingContext."""
        return await self._query(sql)


class _Process:
    """The calls that it answers."""

    def __init__(self, channel: Channel, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._context: _Context | None = None
        self._queries = RemoteQueries()
        own: dict[str, Handler] = {"begin": self._begin, "states": self._states}
        self.peer = Peer(channel, {**own, **self._queries.handlers})

    async def _begin(self, settings: ForwardingSettings) -> None:
        root = logging.getLogger()
        root.handlers[:] = [LogSender(self.peer)]
        root.setLevel(settings.log_level)
        module, _, name = settings.work.partition(":")
        work = getattr(await asyncio.to_thread(importlib.import_module, module), name)
        context = self._context = _Context(settings, partial(self._queries.run, self.peer))
        self._group.create_task(work(context), name="forward")
        self._group.create_task(self._tidy(settings, context), name="tidy")

    async def _states(self) -> dict[str, ReceiverState]:
        return {} if self._context is None else dict(self._context.states)

    async def _tidy(self, settings: ForwardingSettings, context: _Context) -> None:
        memory = Memory()
        looks = 0
        while True:
            await asyncio.sleep(TIDY_S)
            if len(context.feeds) == len(settings.plan.names):
                await asyncio.to_thread(tidy, settings, context.feeds, context.states)
            looks += 1
            if looks % max(1, round(GIVE_BACK_S / TIDY_S)) == 0:
                await asyncio.to_thread(memory.give_back_if_grown)


def tidy(
    settings: ForwardingSettings,
    feeds: Mapping[str, SegmentFeed],
    states: Mapping[str, ReceiverState],
) -> None:
    """Delete kept segments that every receiver has, and the oldest while they need too much room."""
    sizes = kept_bytes(settings.data_dir)
    needed = min(feed.needed for feed in feeds.values())
    try:
        for number in [n for n in sizes if n < needed]:
            segment_path(kept_folder(settings.data_dir), number).unlink(missing_ok=True)
            del sizes[number]
        while sizes and (why := _too_many(settings, sum(sizes.values()))):
            oldest = min(sizes)
            for name, feed in feeds.items():
                if rows := feed.skip(oldest):
                    log.error(
                        "rows were not forwarded and are not kept for it any longer",
                        extra={"receiver": name, "segment": oldest, "rows": rows, "reason": why},
                    )
            segment_path(kept_folder(settings.data_dir), oldest).unlink(missing_ok=True)
            del sizes[oldest]
    except OSError as error:
        log.error("kept segments cannot be deleted", extra={"reason": str(error)})
    for state in states.values():
        state.waiting_bytes = sum(sizes.values())


def _too_many(settings: ForwardingSettings, size: int) -> str | None:
    """Why kept segments need too much room; None: they do not."""
    if size > settings.plan.keep_bytes_max:
        return f"kept segments have {size_text(size)}, more than keep_bytes_max"
    if free_bytes(settings.data_dir) < settings.free_bytes_min:
        return f"the disk has less than {size_text(settings.free_bytes_min)} free"
    return None


def work(sock: socket.socket) -> None:
    """Run as the forwarding process until the other side closes the socket."""
    asyncio.run(_serve(sock))


async def _serve(sock: socket.socket) -> None:
    sock.setblocking(False)
    _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=sock)
    try:
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                await _Process(channel, group).peer.run()
                os._exit(0)  # the other side has ended; threads may wait for a disk
    except Exception:
        log.exception("forwarding failed")
        await asyncio.sleep(0.1)  # the log is sent by the loop
        os._exit(1)
