"""Runs read-only SQL in query processes: `gpuwarden.query.Querier`, and streams of encoded rows.

A pool has a fixed number of processes, started when they are needed. A process that ignores an interrupt,
has used up its memory or has grown large is killed, and the next query gets a new one.
"""

import asyncio
import io
import itertools
import logging
import os
import pickle
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from gpuwarden.access import CALLER, Scope
from gpuwarden.clock import Clock, naive_utc
from gpuwarden.query import (
    QUERY_SEND_S,
    ExpectedQuery,
    LakeAwayError,
    QueryError,
    QueryTimeoutError,
    Result,
)
from gpuwarden.teams import Team
from gpuwarden_collector.processes.channel import Channel, ChannelError, packed
from gpuwarden_collector.processes.forkserver import QUERY, TEAM, TEAM_ROWS, ProcessHandle, spawn
from gpuwarden_collector.query.encode import ResultRows, decoded, python_rows
from gpuwarden_collector.query.execute import RESULT_BYTES_MAX
from gpuwarden_collector.query.fair_queue import Rank, Turns
from gpuwarden_collector.query.guard import ALL, NOBODY
from gpuwarden_collector.query.team_rows import Reader, lend, pair
from gpuwarden_collector.query.worker import QueryRequest, TeamSettings, WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.newest_rows import LatestRows, named_views
from gpuwarden_collector.storage.running_waste import RunningWaste
from gpuwarden_collector.supervision import task_group

log = logging.getLogger(__name__)

START_S = 30.0
"""Longest time for a query process to start and open the store."""
TAKEN_S = 5.0
"""Longest time for a process to acknowledge a query; one that takes longer is stopped, or hangs."""
INTERRUPT_S = 1.0
"""Time for an interrupted query to end before its process is killed."""
END_S = 10.0
"""Longest time for a killed process to end: it may have much memory to free."""
_STOPS = "the query was interrupted: the collector stops"
_FAULT = (
    "the query failed within DuckDB, and its process was replaced; the collector's log has the error: write the query "
    "in another way"
)
_FAULT_CHARACTERS_MAX = 4_000
ROWS_MAX = 100_000
"""Rows of an answer, unless more are asked for."""
EXPORT_ROWS_MAX = 20_000_000
"""Most rows that a query may ask for."""
IDLE_S = 60.0
"""Time without a query after which a process is ended."""
LAKE_LOOK_S = 10.0
"""Interval at which an unreadable lake is tried again."""
REFUSE_S = 1.0
"""How long no process is started after one could not open the store."""


class StoreUnreadableError(QueryError):
    """The process can no longer read the store; another one may."""


class NotOpenedError(QueryError):
    """The process cannot open the store."""


class NotStartedError(QueryError):
    """No process opened the store in time: its catalogue does not answer, or this host is too busy."""


class QueryProcess:
    """A query process and its connection."""

    def __init__(
        self, handle: ProcessHandle, channel: Channel, spill: Path, gate: socket.socket | None
    ) -> None:
        self.pid = handle.pid
        self.team: Team | None = None
        """The team whose rows it shows; None: all rows."""
        self._gate = gate
        self.open = 0
        """Of a process that reads the store for teams: the queries that it reads for."""
        self.rows: QueryProcess | None = None
        """Of a process of a team with a query: the process that reads its rows."""
        self.is_lake_away = False
        """Whether it answers without the lake."""
        self.confined_by: Sequence[str] = ()
        """Kernel mechanisms that confine it, as `sandbox.confine` gives them."""
        self._handle: ProcessHandle | None = handle
        self._channel = channel
        self._spill = spill
        self.expects = 0
        """Version of the expected queries that it knows; 0: none."""
        self.asked_number = 0
        """Number of its last query."""
        self._is_spent = False
        self.is_asked = False
        """Whether it has not answered its query yet."""

    @classmethod
    async def started(
        cls, settings: WorkerSettings | TeamSettings, kind: bytes = QUERY
    ) -> "QueryProcess":
        """Start a process that opens the store. `kind`: of the fork server. Raises QueryError."""
        try:
            async with asyncio.timeout(START_S):
                return await cls._opened(settings, kind)
        except TimeoutError as error:
            reason = f"no query process could be started within {START_S:g} s"
            raise NotStartedError(reason) from error

    @classmethod
    async def _opened(cls, settings: WorkerSettings | TeamSettings, kind: bytes) -> "QueryProcess":
        gate: socket.socket | None = None
        with ExitStack() as stack:
            try:
                ours, theirs = socket.socketpair()
                stack.callback(ours.close)
                ends = [theirs.detach()]
                if kind in (TEAM, TEAM_ROWS):
                    gate, their_gate = pair()
                    stack.callback(gate.close)
                    ends.append(their_gate.detach())
                # The thread closes the other ends even if this task is cancelled.
                pid = await asyncio.to_thread(spawn, ends, kind)
                handle = ProcessHandle(pid)
            except OSError as error:
                raise QueryError(f"no query process could be started: {error}") from error
            stack.pop_all()
        ours.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=ours)
        process = cls(handle, channel, settings.spill, gate)
        try:
            process._send({}, pickle.dumps(settings))
            header, _ = await channel.receive()
            if header["kind"] != "ready":
                raise NotOpenedError(f"the store cannot be read now: {header.get('reason')}")
        except ChannelError as error:
            await process.end()
            raise QueryError("a query process ended before it had opened the store") from error
        except BaseException:
            await asyncio.shield(process.end())
            raise
        process.confined_by = header["held"]
        process.team = settings.team if isinstance(settings, TeamSettings) else None
        return process

    def lend(self, sock: socket.socket, reader: Reader | None = None) -> None:
        """Send a process of a team, or of its rows, one end of a query's sockets. Raises OSError."""
        if self._gate is None:
            raise ConnectionError("the process has ended")
        lend(self._gate, sock, reader)

    @property
    def is_spent(self) -> bool:
        """Whether it must not get another query."""
        return self._is_spent or self._channel.is_closed

    async def ask(self, request: QueryRequest) -> bool:
        """Send a query; False: the process did not acknowledge it, and was killed. Call `end_query` to give up the
        answer."""
        self.asked_number = request.number
        self.is_asked = True
        self._send({"kind": "query"}, pickle.dumps(request))
        try:
            async with asyncio.timeout(TAKEN_S):
                await self.receive()
        except (TimeoutError, ChannelError):
            self.kill()
            return False
        return True

    async def end_query(self) -> None:
        """Interrupt the query, or kill the process if that does not help."""
        self._send({"kind": "interrupt", "number": self.asked_number})
        try:
            async with asyncio.timeout(INTERRUPT_S):
                while self.is_asked:
                    await self.receive()
        except (TimeoutError, ChannelError):
            self.kill()

    def kill(self) -> None:
        """Kill the process; `end` waits for it."""
        self._is_spent = True
        if self._handle is not None:
            self._handle.kill()
        if self._channel.transport is not None:
            self._channel.transport.abort()

    async def end(self) -> None:
        """Kill the process, wait for its end, and remove its spill folder."""
        self.kill()
        if self._gate is not None:
            self._gate.close()
        handle, self._handle = self._handle, None
        if handle is not None:
            await asyncio.to_thread(_wait_and_clean, handle, self._spill)

    async def receive(self) -> tuple[dict[str, Any], bytes | bytearray]:
        """The next message of the answer. Raises ChannelError when the process has ended."""
        while True:
            header, body = await self._channel.receive()
            if header.get("number") == self.asked_number:
                break
        if header["kind"] not in ("taken", "part"):
            self.is_asked = False
            self._is_spent = self._is_spent or bool(header.get("is_spent"))
        return header, body

    def _send(self, header: dict[str, Any], body: bytes = b"") -> None:
        if self._channel.transport is not None:
            self._channel.transport.write(packed(header, body))


def _wait_and_clean(handle: ProcessHandle, spill: Path) -> None:
    try:
        handle.wait_ended(END_S)
    finally:
        handle.close()
    shutil.rmtree(spill, ignore_errors=True)


class QueryStream:
    """The answer to one query: encoded rows, part by part.

    The query process waits until the next part is taken. A query's time limit counts only the time of the
    process; waiting has a limit of its own.
    """

    def __init__(
        self,
        process: QueryProcess,
        limit_s: float,
        wait_s: float,
        failed: Callable[[], QueryError],
        give_back: Callable[[], None],
    ) -> None:
        """`limit_s`: time limit of the query; `wait_s`: most time that it waits for its rows to be taken; `failed`:
        makes the error when the process has ended; `give_back`: called when the process is free."""
        self._process = process
        self._limit_s = limit_s
        self._left_s, self._wait_left_s = limit_s, wait_s
        self._failed = failed
        self._give_back: Callable[[], None] | None = give_back
        self._first: bytes | bytearray | None = None
        self._is_whole = False
        """Whether the last part ends a group of rows that were encoded together."""
        self._taken_s: float | None = None
        self.columns: tuple[str, ...] = ()
        self.types: tuple[str, ...] = ()
        self.is_ended = False
        """Whether all parts have come, so that the next two are set."""
        self.truncated = False
        self.rows = 0
        self.memory_bytes: int | None = None
        """New peak memory of its process; None: the peak did not grow."""

    async def begin(self) -> None:
        """Wait for the columns and the first part. Raises QueryError."""
        header, self._first = await self._received()
        self.columns, self.types = tuple(header["names"]), tuple(header["types"])

    async def close(self) -> None:
        """Interrupt the query if it runs, and give the process back."""
        if self._give_back is not None:
            try:
                if self._process.is_asked:
                    await self._process.end_query()
            finally:
                self._release()

    def _release(self) -> None:
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes | bytearray:
        """The next part. Raises QueryError."""
        if self._first is not None:
            part, self._first = self._first, None
            return part
        if self.is_ended:
            raise StopAsyncIteration
        return (await self._received())[1]

    async def whole(self) -> bytes | bytearray:
        """The next parts that were encoded together, which end with a whole row; empty: the end. Raises QueryError."""
        parts = []
        async for part in self:
            parts.append(part)
            if self._is_whole and part:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def batches(self) -> AsyncIterator[Any]:
        """Record batches of rows that are encoded as `arrow`. Raises QueryError."""
        batches = _Batches()
        while part := await self.whole():
            for batch in await asyncio.to_thread(batches.read_all, bytes(part)):
                yield batch

    async def _received(self) -> tuple[dict[str, Any], bytes | bytearray]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if self._taken_s is not None:
            self._wait_left_s -= began_s - self._taken_s
        if self._wait_left_s < 0:
            raise QueryTimeoutError(
                "the rows were not taken in time: take them faster, or select fewer"
            )
        try:
            async with asyncio.timeout(self._left_s):
                header, body = await self._process.receive()
        except TimeoutError as error:
            raise QueryTimeoutError(
                f"the query took longer than {self._limit_s:g} s: select a shorter time, or aggregate"
            ) from error
        except ChannelError as error:
            raise self._failed() from error
        self._taken_s = loop.time()
        self._left_s -= self._taken_s - began_s
        self._is_whole = bool(header.get("is_whole", True))
        if header["kind"] != "part":
            self._release()
        match header["kind"]:
            case "part":
                pass
            case "end":
                self.is_ended = True
                self.truncated, self.rows = bool(header["truncated"]), int(header["rows"])
                self.memory_bytes = header.get("memory_bytes")
            case "interrupted":
                raise QueryTimeoutError(_STOPS)
            case "fault":
                text = str(header.get("reason"))[:_FAULT_CHARACTERS_MAX]
                log.error(
                    "DuckDB failed in a query; its process is replaced", extra={"error": text}
                )
                raise QueryError(_FAULT)
            case "away":
                raise LakeAwayError(str(header.get("reason")))
            case "unreadable":
                raise StoreUnreadableError(str(header.get("reason")))
            case _:
                raise QueryError(
                    str(header.get("reason")), offset=header.get("offset"), hint=header.get("hint")
                )
        return header, body


class SqlQuerier:
    """Runs at most `queries_max` queries at a time, each with a deadline and a row limit."""

    def __init__(
        self,
        settings: WorkerSettings,
        stats: Stats,
        clock: Clock,
        *,
        queries_max: int = 2,
        timeout_s: float = 30.0,
        rows_max: int = ROWS_MAX,
        latest: LatestRows | None = None,
        running: RunningWaste | None = None,
        kind: bytes = QUERY,
    ) -> None:
        """`settings`: of its processes, which spill to folders within `settings.spill`. `rows_max`: row limit of
        `query` and `arrow`, and default of `stream`, whose largest limit is EXPORT_ROWS_MAX. `latest`, `running`: newest rows and waste of the current hours,
        which queries may read from files. `kind`: of its processes in the fork server."""
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._queries_max = queries_max
        self._timeout_s = timeout_s
        self._rows_max = rows_max
        self._latest = latest
        self._running = running
        self._kind = kind
        self._turns = Turns(queries_max)
        self._idle: list[QueryProcess] = []
        self._busy: set[QueryProcess] = set()
        self._numbers = itertools.count(1)
        self._ending: set[asyncio.Task[None]] = set()
        self._rows: QueryProcess | None = None
        """The process that reads the store for processes of teams."""
        self._rows_lock = asyncio.Lock()
        self._rows_asked = 0
        self._refusal: tuple[float, str] | None = None
        self._confined_by: Sequence[str] | None = None
        """The confinement that was last logged."""
        self.lake_away_since: datetime | None = None
        """Since when the lake cannot be read; None: it can be read."""
        self._closing = asyncio.Event()
        self._open = 0
        """Queries that have begun and not ended."""
        self._none_open = asyncio.Event()
        self._spill_bytes_max = 1 << 62
        self._expected: Sequence[ExpectedQuery] = ()
        self._expected_number = 0

    async def __aenter__(self) -> Self:
        self._tasks = task_group()
        self._group = await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        await self.close()
        while self._open:
            self._none_open.clear()
            await self._none_open.wait()
        return await self._tasks.__aexit__(kind, error, trace)

    @property
    def pids(self) -> list[int]:
        """Ids of its processes."""
        rows = () if self._rows is None else (self._rows,)
        return sorted(p.pid for p in (*self._idle, *self._busy, *rows))

    @property
    def background(self) -> "BackgroundQuerier":
        """A querier for background queries: at most one waits before another, and with several processes one
        stays free."""
        return BackgroundQuerier(self)

    def expect(self, queries: Iterable[ExpectedQuery]) -> None:
        """Let its processes keep the rows that these queries need, in place of the queries expected before, if they
        keep rows at all."""
        self._expected = [replace(q, params=_bindable(q.params)) for q in queries]
        self._expected_number += 1

    def limit_spill(self, bytes_max: int) -> None:
        """Limit the bytes that all its processes may spill, from their next queries on."""
        # In whole MiB, because each change is sent to the processes.
        self._spill_bytes_max = bytes_max // self._queries_max >> 20 << 20

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        rank: Rank = Rank.FIRST,
        team: Team | None = None,
        log_of: str = NOBODY,
    ) -> Result:
        rows = await self.arrow(
            sql,
            params,
            timeout_s=timeout_s,
            row_limit=row_limit,
            rank=rank,
            team=team,
            log_of=log_of,
        )
        return await asyncio.to_thread(_result, rows)

    async def arrow(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        rank: Rank = Rank.FIRST,
        team: Team | None = None,
        log_of: str = NOBODY,
    ) -> ResultRows:
        """Run a query; its rows as an Arrow table. `team`: whose rows it may see; None: all. `log_of`: as `stream`."""
        limit = self._rows_max if row_limit is None else min(row_limit, self._rows_max)
        request = self._request(
            "arrow",
            sql,
            params,
            timeout_s,
            limit,
            bytes_max=RESULT_BYTES_MAX,
            team=team,
            log_of=log_of,
        )
        try:
            return await self._collected(request, rank)
        except StoreUnreadableError:
            return await self._collected(request, rank)  # a new process may read the store

    async def _collected(self, request: QueryRequest, rank: Rank) -> ResultRows:
        async with self._asked(request, rank) as stream:
            parts = [part async for part in stream]
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return decoded(body, stream.types, truncated=stream.truncated)

    @asynccontextmanager
    async def stream(
        self,
        form: str,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        log_of: str = NOBODY,
        dialect: str = "",
        rank: Rank = Rank.FIRST,
        team: Team | None = None,
    ) -> AsyncIterator[QueryStream]:
        """Run a query; its rows as they come, encoded as `form` (see QueryRequest). Leaving the block early
        interrupts it.

        `timeout_s`: at most the limit of the settings; `row_limit`: at most EXPORT_ROWS_MAX. `log_of`: the token
        whose own rows of admins' tables it may read, `ALL`, or `NOBODY`; `dialect`: of the SQL, one of
        `WorkerSettings.dialects`; "": DuckDB's; `team`: whose rows it may see; None: all. Raises QueryError, here and
        from the stream.
        """
        rows = min(self._rows_max if row_limit is None else row_limit, EXPORT_ROWS_MAX)
        is_own_limit = row_limit == rows
        request = self._request(
            form,
            sql,
            params,
            timeout_s,
            rows,
            is_own_limit=is_own_limit,
            log_of=log_of,
            dialect=dialect,
            team=team,
        )
        async with self._asked(request, rank) as stream:
            yield stream

    def _request(
        self,
        form: str,
        sql: str,
        params: Mapping[str, Any] | None,
        timeout_s: float | None,
        row_limit: int,
        **more: Any,
    ) -> QueryRequest:
        limit_s = min(timeout_s or self._timeout_s, self._timeout_s)
        return QueryRequest(0, form, sql, params or {}, row_limit, limit_s, **more)

    @asynccontextmanager
    async def _asked(self, request: QueryRequest, rank: Rank) -> AsyncIterator[QueryStream]:
        """Run a query, and count its time and errors."""
        if self._closing.is_set():
            raise QueryTimeoutError(_STOPS)
        started = self._clock.monotonic()
        self._open += 1
        try:
            numbered = replace(
                request,
                number=next(self._numbers),
                params=_bindable(request.params),
                spill_bytes_max=self._spill_bytes_max,
            )
            async with self._begun(numbered, rank) as stream:
                yield stream
        except QueryTimeoutError:
            self._stats.query_errors["timeout"] += 1
            if request.team is not None and self._settings.address.is_shared:
                self._replace_rows()  # it may wait for a server
            raise
        except QueryError as error:
            self._stats.query_errors["wrong"] += 1
            if request.team is not None and isinstance(error, StoreUnreadableError):
                self._replace_rows()
            raise
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()
            self._stats.query_seconds.observe(self._clock.monotonic() - started)

    @asynccontextmanager
    async def _begun(self, request: QueryRequest, rank: Rank) -> AsyncIterator[QueryStream]:
        """The stream once its first part has come; its process is given back with the last part."""
        limit_s = request.limit_s
        try:
            async with asyncio.timeout(limit_s):
                await self._turns.take(rank)
        except TimeoutError as error:
            raise QueryTimeoutError(
                f"no query could start within {limit_s:g} s: {self._queries_max} run already"
            ) from error
        try:
            process = await self._sent(request)
        except BaseException:
            self._turns.give_back(rank)
            raise
        loop = asyncio.get_running_loop()
        # A forgotten stream must not keep its process, nor the lake's files for its transaction.
        last = loop.call_later(limit_s + QUERY_SEND_S + INTERRUPT_S, process.kill)
        stream = QueryStream(
            process,
            limit_s,
            QUERY_SEND_S,
            partial(self._ended, request),
            partial(self._give_back, process, rank),
        )
        try:
            await stream.begin()
            yield stream
        finally:
            last.cancel()
            await stream.close()

    def _ended(self, request: QueryRequest) -> QueryError:
        """The error of a query whose process has ended."""
        if self._closing.is_set():
            return QueryTimeoutError(_STOPS)
        self._stats.query_errors["killed"] += 1
        log.warning("a query process ended; a new one is started", extra={"sql": request.sql[:200]})
        return QueryError(
            "the query ended its process: it needs more memory or time than a query may have, or nests values too "
            "deeply; select a shorter time or fewer columns, or aggregate"
        )

    async def _newest(self, sql: str) -> Mapping[str, str]:
        """Current files of newest rows and waste that the query may read."""
        running = {} if self._running is None else self._running.files(sql)
        if self._latest is None or not (views := named_views(sql)):
            return running
        files = self._latest.published(views)
        if files is None:
            files = await asyncio.to_thread(self._latest.publish, views)
        return {**running, **files}

    async def _sent(self, request: QueryRequest) -> QueryProcess:
        """Send the query to an idle or new process. The caller holds a slot. Raises QueryError."""
        while True:
            idle = await self._idle_of(request.team)
            is_new = idle is None
            process = await self._started(request.team) if idle is None else idle
            self._busy.add(process)
            has_taken = False
            try:
                if self._closing.is_set():
                    raise QueryTimeoutError(_STOPS)
                is_current = process.expects == self._expected_number
                expected, process.expects = self._expected, self._expected_number
                newest = await self._newest(request.sql) if request.team is None else {}
                if request.team is not None:
                    await self._lend_rows(process, request, request.team)
                request = replace(request, newest=newest, expected=None if is_current else expected)
                has_taken = await process.ask(request)
            finally:
                if not has_taken:
                    self._end_reading(process)
                    await asyncio.shield(self._end_soon(process))
            if has_taken:
                return process
            self._stats.query_restarts += 1
            log.warning("a query process did not acknowledge its query; another one gets it")
            if is_new:
                raise QueryError("query processes do not answer; see the collector's log")

    async def _lend_rows(self, process: QueryProcess, request: QueryRequest, team: Team) -> None:
        """Connect a process of a team to the one that reads the store for it. Raises QueryError."""
        reader = Reader(team, request.log_of, request.spill_bytes_max)
        try:
            ours, theirs = pair()
        except OSError as error:
            raise QueryError(f"no query process could be asked: {error}") from error
        with ours, theirs:
            with suppress(OSError):  # it has ended, and does not acknowledge its query
                process.lend(ours)
            for is_last in (False, True):
                rows = await self._started_rows()
                try:
                    rows.lend(theirs, reader)
                    process.rows = rows
                    rows.open += 1
                    return
                except OSError as error:
                    rows.kill()
                    if is_last:
                        reason = f"the store cannot be read now: {error}"
                        raise StoreUnreadableError(reason) from error

    async def _started_rows(self) -> QueryProcess:
        """Start the process that reads the store for teams, if it does not run. Raises QueryError."""
        async with self._rows_lock:
            rows = self._rows
            if rows is not None and (rows.is_spent or self._is_outdated(rows)):
                self._replace_rows()
            if self._closing.is_set():
                raise QueryTimeoutError(_STOPS)
            if self._rows is None:
                self._rows = await self._checked(self._new_settings(), TEAM_ROWS)
            self._rows_asked += 1
            return self._rows

    def _replace_rows(self) -> None:
        """Let the next query of a team start another process to read the store; end this one after its queries."""
        rows, self._rows = self._rows, None
        if rows is not None and not rows.open:
            self._end_soon(rows)

    def _end_reading(self, process: QueryProcess) -> None:
        """Note that a process of a team has read its rows."""
        rows, process.rows = process.rows, None
        if rows is None:
            return
        rows.open -= 1
        if rows is not self._rows and not rows.open:
            self._end_soon(rows)
        asyncio.get_running_loop().call_later(IDLE_S, self._retire_rows, self._rows_asked)

    def _retire_rows(self, asked: int) -> None:
        """End the process that reads the store for teams, if none has asked since."""
        if self._rows is not None and self._rows_asked == asked and not self._rows.open:
            self._replace_rows()

    def _is_outdated(self, process: QueryProcess) -> bool:
        return process.is_lake_away and self.lake_away_since is None

    async def _idle_of(self, team: Team | None) -> QueryProcess | None:
        """Take an idle process of the team; None: there is none, and there is room for a new one."""
        spent = [process for process in self._idle if process.is_spent]
        self._idle = [process for process in self._idle if not process.is_spent]
        for process in spent:
            await process.end()  # it or the fork server was killed
        for process in reversed(self._idle):
            if process.team == team:
                self._idle.remove(process)
                return process
        if self._idle and len(self._idle) + len(self._busy) >= self._queries_max:
            self._end_soon(self._idle.pop(0))
        return None

    async def _started(self, team: Team | None) -> QueryProcess:
        settings = self._new_settings()
        if team is None:
            return await self._checked(settings, self._kind)
        return await QueryProcess.started(settings.of_team(team), TEAM)

    async def _checked(self, settings: WorkerSettings, kind: bytes) -> QueryProcess:
        """Start a process that opens the store. Raises QueryError."""
        now_s = asyncio.get_running_loop().time()
        if self._refusal is not None and now_s < self._refusal[0]:
            raise QueryError(self._refusal[1])
        try:
            process = await self._opened(settings, kind)
        except QueryError as error:
            log.warning("no query process", extra={"reason": str(error)})
            self._refusal = asyncio.get_running_loop().time() + REFUSE_S, str(error)
            raise
        self._refusal = None
        if process.confined_by != self._confined_by:
            self._confined_by = process.confined_by
            names = ", ".join(process.confined_by) or "nothing"
            log.info("query processes are confined by the kernel", extra={"confined_by": names})
        return process

    def _new_settings(self) -> WorkerSettings:
        """Settings of a new process, with its own spill folder."""
        name = f"{os.getpid()}-{id(self):x}-{next(self._numbers)}"
        return replace(self._settings, spill=self._settings.spill / name)

    async def _opened(self, settings: WorkerSettings, kind: bytes) -> QueryProcess:
        """Start a process on the store, or without the lake if that cannot be read. Raises QueryError."""
        if self.lake_away_since is None:
            try:
                return await QueryProcess.started(settings, kind)
            except NotStartedError as error:
                # A local catalogue cannot be away.
                if not settings.address.is_shared:
                    raise
                failure: QueryError = error
            except NotOpenedError as error:
                failure = error
            process = await self._without_lake(settings, kind, failure)
            if self.lake_away_since is None and not self._closing.is_set():
                self.lake_away_since = self._clock.now()
                log.error(
                    "the lake cannot be read: queries are answered from segments and state",
                    extra={"reason": failure.reason},
                )
                self._group.create_task(self._look_for_lake(), name="look for the lake")
            return process
        return await self._without_lake(settings, kind, None)

    async def _without_lake(
        self, settings: WorkerSettings, kind: bytes, failure: QueryError | None
    ) -> QueryProcess:
        try:
            process = await QueryProcess.started(replace(settings, is_lake_away=True), kind)
        except QueryError as error:
            raise failure or error from error
        process.is_lake_away = True
        return process

    async def _look_for_lake(self) -> None:
        """Try in the background until the lake can be read again, so that queries need not wait."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAKE_LOOK_S):
                    await self._closing.wait()
                return
            try:
                process = await QueryProcess.started(self._new_settings(), self._kind)
            except QueryError:
                continue
            await process.end()
            break
        self.lake_away_since = None
        log.warning("the lake can be read again")
        idle, self._idle = self._idle, []
        for process in idle:
            self._end_soon(process)

    def _give_back(self, process: QueryProcess, rank: Rank) -> None:
        """Keep a process for the next query, or end it; then release its slot."""
        self._end_reading(process)
        is_kept = not (process.is_spent or process.is_asked or self._is_outdated(process))
        if is_kept and not self._closing.is_set():
            self._busy.discard(process)
            self._idle.append(process)
            self._turns.give_back(rank)
            loop = asyncio.get_running_loop()
            loop.call_later(IDLE_S, self._retire, process, process.asked_number)
            return
        self._end_soon(process).add_done_callback(lambda _: self._turns.give_back(rank))

    def _end_soon(self, process: QueryProcess) -> "asyncio.Task[None]":
        ending = self._group.create_task(process.end())
        self._ending.add(ending)

        def ended(task: "asyncio.Task[None]") -> None:
            self._ending.discard(task)
            self._busy.discard(process)

        ending.add_done_callback(ended)
        return ending

    def _retire(self, process: QueryProcess, number: int) -> None:
        """End a process that had no query since, to free its memory; a new one starts in a moment."""
        if process in self._idle and process.asked_number == number:
            self._idle.remove(process)
            self._end_soon(process)

    async def close(self) -> None:
        """End all processes; queries that run end with an error."""
        self._closing.set()
        rows, self._rows = self._rows, None
        reading = {process.rows for process in self._busy} | {rows}
        processes = (*self._idle, *self._busy, *filter(None, reading))
        await asyncio.gather(*(process.end() for process in processes), *self._ending)
        self._idle.clear()


@dataclass(frozen=True, slots=True)
class CallersQuerier:
    """Runs queries of requests: each sees the rows that the caller of the current request may see."""

    querier: SqlQuerier

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        caller = CALLER.get()
        sees_all = caller.scope is Scope.ADMIN and caller.team is None
        log_of = ALL if sees_all else caller.token or NOBODY
        return await self.querier.query(
            sql, params, timeout_s=timeout_s, row_limit=row_limit, team=caller.team, log_of=log_of
        )


@dataclass(frozen=True, slots=True)
class BackgroundQuerier:
    """Runs background queries: see `SqlQuerier.background`."""

    querier: SqlQuerier

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        return await self.querier.query(
            sql, params, timeout_s=timeout_s, row_limit=row_limit, rank=Rank.BACKGROUND
        )

    async def arrow(self, sql: str) -> ResultRows:
        """Run a query; its rows as an Arrow table."""
        return await self.querier.arrow(sql, rank=Rank.BACKGROUND)


def _bindable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for DuckDB: instants become naive UTC, to compare with TIMESTAMP."""
    return {name: _bound(name, value) for name, value in params.items()}


def _bound(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise QueryError(f"parameter ${name} is a datetime without a time zone: make it aware")
        return naive_utc(value)
    return value


def _result(rows: ResultRows) -> Result:
    names = tuple(rows.data.schema.names)
    return Result(names, rows.types, python_rows(rows), rows.truncated)


class _Batches(io.RawIOBase):
    """Reads an Arrow stream that comes in parts, each of whole batches."""

    def __init__(self) -> None:
        super().__init__()
        self._there = io.BytesIO()
        self._size = 0
        self._reader: Any = None

    def read_all(self, whole: bytes) -> list[Any]:
        """The batches in these bytes, which end with a whole batch."""
        self._there, self._size = io.BytesIO(whole), len(whole)
        if self._reader is None:
            self._reader = pa.ipc.open_stream(self)
        batches = []
        try:
            while self._there.tell() < self._size:
                batches.append(self._reader.read_next_batch())
        except StopIteration:
            pass
        return batches

    def read(self, size: int = -1) -> bytes:
        return self._there.read(size)

    def readable(self) -> bool:
        return True
