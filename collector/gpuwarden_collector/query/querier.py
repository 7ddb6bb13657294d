"""Runs read-only SQL in query processes: `gpuwarden.query.Querier`, and streams of encoded rows.

A pool has a fixed number of processes, made when they are first needed. One that is late and does
not heed an interrupt, that has used up its memory or has grown large is ended, and the next query
gets a new one.
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
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden.query import ExpectedQuery, LakeAwayError, QueryError, QueryTimeoutError, Result
from gpuwarden_collector.processes.channel import Channel, ChannelError, packed
from gpuwarden_collector.processes.forkserver import QUERY, ProcessHandle, spawn
from gpuwarden_collector.query.encode import ResultRows, decoded, python_rows
from gpuwarden_collector.query.execute import RESULT_BYTES_MAX
from gpuwarden_collector.query.fair_queue import Rank, Turns
from gpuwarden_collector.query.guard import NOBODY
from gpuwarden_collector.query.worker import QueryRequest, WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.newest_rows import LatestRows, named_views
from gpuwarden_collector.storage.running_waste import RunningWaste

log = logging.getLogger(__name__)

START_S = 30.0
"""Most time until there is a query process that has opened the store."""
TAKEN_S = 5.0
"""Most time that a process may take to say that it has a query: who takes longer is stopped, or stuck."""
INTERRUPT_S = 1.0
"""Time that an interrupted query gets to end before its process is killed."""
END_S = 10.0
"""Most time that a killed process may take to end: it may have to let go of much memory."""
_STOPS = "the query was ended: the collector stops"
IDLE_S = 60.0
"""A process that has had no query for so long is ended."""
LAKE_LOOK_S = 10.0
"""How often it is tried whether a lake that was away can be read."""
REFUSE_S = 1.0
"""How long no process is started after one could not open the store."""


class StoreUnreadableError(QueryError):
    """A process cannot read the store any more; another may."""


class NotOpenedError(QueryError):
    """A process says that the store cannot be opened."""


class NotStartedError(QueryError):
    """No process opened the store in time: its catalogue does not answer, or this host is too busy."""


class QueryProcess:
    """One process and the way to it."""

    def __init__(self, handle: ProcessHandle, channel: Channel, spill: Path) -> None:
        self.pid = handle.pid
        self.is_lake_away = False
        """Whether it answers without the lake."""
        self.confined_by: Sequence[str] = ()
        """What the kernel holds it to, as `sandbox.confine` has it."""
        self._handle: ProcessHandle | None = handle
        self._channel = channel
        self._spill = spill
        self.expects = 0
        """Number of what it was told to expect; 0: nothing."""
        self.asked_number = 0
        """Number of the query that it was asked last."""
        self._is_spent = False
        self.is_asked = False
        """Whether it has a query that it has not answered."""

    @classmethod
    async def started(cls, settings: WorkerSettings, kind: bytes = QUERY) -> "QueryProcess":
        """A process that has opened the store, of a kind of the fork server. Raises QueryError."""
        try:
            async with asyncio.timeout(START_S):
                return await cls._opened(settings, kind)
        except TimeoutError as error:
            reason = f"no query process could be started within {START_S:g} s"
            raise NotStartedError(reason) from error

    @classmethod
    async def _opened(cls, settings: WorkerSettings, kind: bytes) -> "QueryProcess":
        ours, theirs = socket.socketpair()
        try:
            # The thread closes the other end, also where nobody waits for it any more.
            pid = await asyncio.to_thread(spawn, theirs.detach(), kind)
            handle = ProcessHandle(pid)
        except OSError as error:
            ours.close()
            raise QueryError(f"no query process could be started: {error}") from error
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=ours)
        process = cls(handle, channel, settings.spill)
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
        return process

    @property
    def is_spent(self) -> bool:
        """Whether it is not to be used again."""
        return self._is_spent or self._channel.is_closed

    async def ask(self, asked: QueryRequest) -> bool:
        """Have it run a query; False: it does not take it, and was killed. Whoever does not take the whole
        answer calls `end_query`."""
        self.asked_number = asked.number
        self.is_asked = True
        self._send({"kind": "query"}, pickle.dumps(asked))
        try:
            async with asyncio.timeout(TAKEN_S):
                await self.receive()
        except (TimeoutError, ChannelError):
            self.kill()
            return False
        return True

    async def end_query(self) -> None:
        """End what runs: by an interrupt, or with the process if that does not help."""
        self._send({"kind": "interrupt", "number": self.asked_number})
        try:
            async with asyncio.timeout(INTERRUPT_S):
                while self.is_asked:
                    await self.receive()
        except (TimeoutError, ChannelError):
            self.kill()

    def kill(self) -> None:
        """End it at once; `end` says when it has ended."""
        self._is_spent = True
        if self._handle is not None:
            self._handle.kill()
        if self._channel.transport is not None:
            self._channel.transport.abort()

    async def end(self) -> None:
        """End it, and remove what it has spilled."""
        self.kill()
        handle, self._handle = self._handle, None
        if handle is not None:
            await asyncio.to_thread(_bury, handle, self._spill)

    async def receive(self) -> tuple[dict[str, Any], bytes | bytearray]:
        """The next message of the answer. Raises ChannelError when it ended."""
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


def _bury(handle: ProcessHandle, spill: Path) -> None:
    try:
        handle.wait_ended(END_S)
    finally:
        handle.close()
    shutil.rmtree(spill, ignore_errors=True)


class QueryStream:
    """The answer to one query: encoded rows, part by part as they come.

    While nobody asks for the next part the query process waits. The time of a query is what the process
    takes; how long it waits is bounded by itself.
    """

    def __init__(
        self,
        process: QueryProcess,
        limit_s: float,
        wait_s: float,
        failed: Callable[[], QueryError],
        give_back: Callable[[], None],
    ) -> None:
        """`limit_s`: time left to the query; `wait_s`: time that it may wait for who takes its rows; `failed`:
        what is said when the process has ended; `give_back`: called when it is not needed any more."""
        self._process = process
        self._limit_s = limit_s
        self._left_s, self._wait_left_s = limit_s, wait_s
        self._failed = failed
        self._give_back: Callable[[], None] | None = give_back
        self._first: bytes | bytearray | None = None
        self._is_whole = False
        """Whether with the part that came last what is encoded together has come."""
        self._taken_s: float | None = None
        self.columns: tuple[str, ...] = ()
        self.types: tuple[str, ...] = ()
        self.is_ended = False
        """Whether all parts are there, and the next two hold."""
        self.truncated = False
        self.rows = 0
        self.memory_bytes: int | None = None
        """Most memory of its process; None: less than before."""

    async def begin(self) -> None:
        """Wait for columns and first part. Raises QueryError."""
        header, self._first = await self._received()
        self.columns, self.types = tuple(header["names"]), tuple(header["types"])

    async def close(self) -> None:
        """End what runs: nobody takes more of it."""
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
        """The next parts that were encoded together, which end where a row does; empty: there is no more.

        Raises QueryError.
        """
        parts = []
        async for part in self:
            parts.append(part)
            if self._is_whole and part:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def batches(self) -> AsyncIterator[Any]:
        """Rows that are encoded as `arrow`, as record batches. Raises QueryError."""
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
    """At most `queries_max` queries at a time; each has a deadline and a row limit."""

    def __init__(
        self,
        settings: WorkerSettings,
        stats: Stats,
        clock: Clock,
        *,
        queries_max: int = 2,
        timeout_s: float = 30.0,
        rows_max: int = 100_000,
        export_rows_max: int = 20_000_000,
        take_s: float = 60.0,
        latest: LatestRows | None = None,
        running: RunningWaste | None = None,
        kind: bytes = QUERY,
    ) -> None:
        """`settings`: its processes spill to folders within `settings.spill`. `rows_max`: of those that are
        held, and of streams where nobody says how many, who can ask for `export_rows_max`. `take_s`: most
        time that a stream waits to be taken. `latest`: the newest rows, which queries of views of such may
        be answered from; `running`: likewise the waste of the hours that run. `kind`: of its processes, as the
        fork server has it."""
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._queries_max = queries_max
        self._timeout_s = timeout_s
        self._rows_max = rows_max
        self._export_rows_max = max(rows_max, export_rows_max)
        self._take_s = take_s
        self._latest = latest
        self._running = running
        self._kind = kind
        self._turns = Turns(queries_max)
        self._idle: list[QueryProcess] = []
        self._busy: set[QueryProcess] = set()
        self._numbers = itertools.count(1)
        self._ending: set[asyncio.Task[None]] = set()
        self._refusal: tuple[float, str] | None = None
        self._confined_by: Sequence[str] | None = None
        """As the log has said of its processes."""
        self.lake_away_since: datetime | None = None
        """Since when the lake cannot be read; None: it can, as far as is known."""
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self._spill_bytes_max = 1 << 62
        self._expected: Sequence[ExpectedQuery] = ()
        self._expected_number = 0

    @property
    def pids(self) -> list[int]:
        """Ids of its processes."""
        return sorted(p.pid for p in (*self._idle, *self._busy))

    @property
    def beside(self) -> "QuerierBeside":
        """For queries that nobody waits for: all others go first, and where there is more than one process
        these never have all."""
        return QuerierBeside(self)

    def expect(self, queries: Iterable[ExpectedQuery]) -> None:
        """Have its processes keep what these queries need, in place of what was expected before, if they keep
        rows at all."""
        self._expected = [replace(q, params=_bindable(q.params)) for q in queries]
        self._expected_number += 1

    def limit_spill(self, bytes_max: int) -> None:
        """Let its processes spill no more than that in all, from their next queries on."""
        # In whole MiB, as a process is told of every change.
        self._spill_bytes_max = bytes_max // self._queries_max >> 20 << 20

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        rank: Rank = Rank.FIRST,
    ) -> Result:
        rows = await self.arrow(sql, params, timeout_s=timeout_s, row_limit=row_limit, rank=rank)
        return await asyncio.to_thread(_result, rows)

    async def arrow(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        rank: Rank = Rank.FIRST,
    ) -> ResultRows:
        """As `query`, as an Arrow table."""
        limit = self._rows_max if row_limit is None else min(row_limit, self._rows_max)
        ask = partial(self._parts, sql, params, timeout_s, limit, rank)
        try:
            parts, stream = await ask()
        except StoreUnreadableError:
            parts, stream = await ask()  # of a new process, which may reach what that one did not
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return decoded(body, stream.types, truncated=stream.truncated)

    async def _parts(
        self,
        sql: str,
        params: Mapping[str, Any] | None,
        timeout_s: float | None,
        limit: int,
        rank: Rank,
    ) -> tuple[list[bytes | bytearray], "QueryStream"]:
        async with self._asked(
            "arrow", sql, params, timeout_s, limit, bytes_max=RESULT_BYTES_MAX, rank=rank
        ) as stream:
            return [part async for part in stream], stream

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
    ) -> AsyncIterator[QueryStream]:
        """The rows of the query as they come, encoded as `form` says: as of QueryRequest.

        `timeout_s` can only be shorter than the settings say, `row_limit` at most `export_rows_max`.
        `log_of`: whose rows it may read of what admins read, `ALL`, or `NOBODY`; `dialect`: of the
        SQL, of `WorkerSettings.dialects`; "": DuckDB's. Who leaves before the end ends the query.
        Raises QueryError, here and from the stream.
        """
        rows = min(self._rows_max if row_limit is None else row_limit, self._export_rows_max)
        is_own = row_limit == rows
        async with self._asked(
            form,
            sql,
            params,
            timeout_s,
            rows,
            is_own_limit=is_own,
            log_of=log_of,
            dialect=dialect,
        ) as stream:
            yield stream

    @asynccontextmanager
    async def _asked(
        self,
        form: str,
        sql: str,
        params: Mapping[str, Any] | None,
        timeout_s: float | None,
        row_limit: int,
        *,
        bytes_max: int | None = None,
        is_own_limit: bool = False,
        log_of: str = NOBODY,
        dialect: str = "",
        rank: Rank = Rank.FIRST,
    ) -> AsyncIterator[QueryStream]:
        limit_s = min(timeout_s or self._timeout_s, self._timeout_s)
        started = self._clock.monotonic()
        try:
            asked = QueryRequest(
                next(self._numbers),
                sql,
                _bindable(params or {}),
                row_limit,
                limit_s,
                self._spill_bytes_max,
                bytes_max,
                form,
                is_own_limit,
                log_of,
                {},
                dialect,
            )
            async with self._begun(limit_s, asked, rank) as stream:
                yield stream
        except QueryTimeoutError:
            self._stats.query_errors["timeout"] += 1
            raise
        except QueryError:
            self._stats.query_errors["wrong"] += 1
            raise
        finally:
            self._stats.query_seconds.observe(self._clock.monotonic() - started)

    @asynccontextmanager
    async def _begun(
        self, limit_s: float, asked: QueryRequest, rank: Rank
    ) -> AsyncIterator[QueryStream]:
        """The answer, whose first part is there; its process is another's once all parts are."""
        try:
            async with asyncio.timeout(limit_s):
                await self._turns.take(rank)
        except TimeoutError as error:
            raise QueryTimeoutError(
                f"no query could start within {limit_s:g} s: {self._queries_max} run already"
            ) from error
        try:
            process = await self._taken_by(asked)
        except BaseException:
            self._turns.give_back(rank)
            raise
        loop = asyncio.get_running_loop()
        # Whoever forgets the stream must not keep the process, nor what the lake keeps for its transaction.
        last = loop.call_later(limit_s + self._take_s + INTERRUPT_S, process.kill)
        stream = QueryStream(
            process,
            limit_s,
            self._take_s,
            partial(self._ended, asked),
            partial(self._give_back, process, rank),
        )
        try:
            await stream.begin()
            yield stream
        finally:
            last.cancel()
            await stream.close()

    def _ended(self, asked: QueryRequest) -> QueryError:
        """Why there is no more of an answer of which the process has ended."""
        if self._is_closed:
            return QueryTimeoutError(_STOPS)
        self._stats.query_errors["killed"] += 1
        log.warning("a query process ended; a new one is made", extra={"sql": asked.sql[:200]})
        return QueryError(
            "the query ended its process: it needs more memory or time than a query may have; "
            "select a shorter time or fewer columns, or aggregate"
        )

    async def _newest(self, sql: str) -> Mapping[str, str]:
        """Files of rows that are kept, as of now, from which a query may be answered."""
        running = {} if self._running is None else self._running.files(sql)
        if self._latest is None or not (views := named_views(sql)):
            return running
        files = self._latest.published(views)
        if files is None:
            files = await asyncio.to_thread(self._latest.publish, views)
        return {**running, **files}

    async def _taken_by(self, asked: QueryRequest) -> QueryProcess:
        """A process that has the query, for who has a slot. Raises QueryError."""
        while True:
            while self._idle and self._idle[-1].is_spent:
                await self._idle.pop().end()  # it was killed, or the process that forked it was
            is_new = not self._idle
            process = await self._started() if is_new else self._idle.pop()
            self._busy.add(process)
            has_taken = False
            try:
                if self._is_closed:
                    raise QueryTimeoutError(_STOPS)
                is_told = process.expects == self._expected_number
                expected, process.expects = self._expected, self._expected_number
                newest = await self._newest(asked.sql)
                asked = replace(asked, newest=newest, expected=None if is_told else expected)
                has_taken = await process.ask(asked)
            finally:
                if not has_taken:
                    await asyncio.shield(self._end_soon(process))
                    self._busy.discard(process)
            if has_taken:
                return process
            self._stats.query_restarts += 1
            log.warning("a query process did not take its query; another is asked")
            if is_new:
                raise QueryError("query processes do not answer; see the collector's log")

    async def _started(self) -> QueryProcess:
        now_s = asyncio.get_running_loop().time()
        if self._refusal is not None and now_s < self._refusal[0]:
            raise QueryError(self._refusal[1])
        try:
            process = await self._opened(self._of_its_own())
        except QueryError as error:
            log.warning("no query process", extra={"reason": str(error)})
            self._refusal = asyncio.get_running_loop().time() + REFUSE_S, str(error)
            raise
        self._refusal = None
        if process.confined_by != self._confined_by:
            self._confined_by = process.confined_by
            said = ", ".join(process.confined_by) or "nothing"
            log.info("query processes are confined by the kernel", extra={"confined_by": said})
        return process

    def _of_its_own(self) -> WorkerSettings:
        """Settings of a new process, with a folder of its own to spill to."""
        name = f"{os.getpid()}-{id(self):x}-{next(self._numbers)}"
        return replace(self._settings, spill=self._settings.spill / name)

    async def _opened(self, settings: WorkerSettings) -> QueryProcess:
        """A process on the store, or on what of it is beside the lake where that is away. Raises QueryError."""
        if self.lake_away_since is None:
            try:
                return await QueryProcess.started(settings, self._kind)
            except NotStartedError as error:
                # A catalogue on this host's own disk is there.
                if not settings.address.is_shared:
                    raise
                failure: QueryError = error
            except NotOpenedError as error:
                failure = error
            process = await self._without_lake(settings, failure)
            if self.lake_away_since is None and not self._is_closed:
                self.lake_away_since = self._clock.now()
                log.error(
                    "the lake cannot be read: queries are answered from segments and state",
                    extra={"reason": failure.reason},
                )
                self._looking = asyncio.create_task(self._look_for_lake(), name="look for the lake")
            return process
        return await self._without_lake(settings, None)

    async def _without_lake(
        self, settings: WorkerSettings, failure: QueryError | None
    ) -> QueryProcess:
        try:
            process = await QueryProcess.started(replace(settings, is_lake_away=True), self._kind)
        except QueryError as error:
            raise failure or error from error
        process.is_lake_away = True
        return process

    async def _look_for_lake(self) -> None:
        """Until the lake can be read again: whoever asks is not to wait for that."""
        while not self._is_closed:
            await asyncio.sleep(LAKE_LOOK_S)
            try:
                process = await QueryProcess.started(self._of_its_own(), self._kind)
            except QueryError:
                continue
            await process.end()
            break
        self.lake_away_since = None
        log.warning("the lake can be read again")
        idle, self._idle = self._idle, []
        for one in idle:
            self._end_soon(one)

    def _give_back(self, process: QueryProcess, rank: Rank) -> None:
        """Keep a process for the next query, or end it; the next query has its slot then."""
        is_other = process.is_lake_away and self.lake_away_since is None
        if not (process.is_spent or process.is_asked or is_other or self._is_closed):
            self._busy.discard(process)
            self._idle.append(process)
            self._turns.give_back(rank)
            loop = asyncio.get_running_loop()
            loop.call_later(IDLE_S, self._retire, process, process.asked_number)
            return
        ending = self._end_soon(process)

        def ended(task: "asyncio.Task[None]") -> None:
            self._busy.discard(process)
            self._turns.give_back(rank)

        ending.add_done_callback(ended)

    def _end_soon(self, process: QueryProcess) -> "asyncio.Task[None]":
        ending = asyncio.create_task(process.end())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    def _retire(self, process: QueryProcess, number: int) -> None:
        """End a process that nobody has needed since: it holds memory, and another is made in a moment."""
        if process in self._idle and process.asked_number == number:
            self._idle.remove(process)
            self._end_soon(process)

    async def close(self) -> None:
        """End all processes; queries that run end with an error."""
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        processes = (*self._idle, *self._busy)
        await asyncio.gather(*(process.end() for process in processes), *self._ending)
        self._idle.clear()


@dataclass(frozen=True, slots=True)
class QuerierBeside:
    """See `SqlQuerier.beside`."""

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
            sql, params, timeout_s=timeout_s, row_limit=row_limit, rank=Rank.BESIDE
        )

    async def arrow(self, sql: str) -> ResultRows:
        """As `query`, as an Arrow table."""
        return await self.querier.arrow(sql, rank=Rank.BESIDE)


def _bindable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as DuckDB takes them: instants become naive UTC, to compare with TIMESTAMP."""
    return {name: _bound(name, value) for name, value in params.items()}


def _bound(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise QueryError(f"parameter ${name} is a datetime without time zone: make it aware")
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _result(rows: ResultRows) -> Result:
    names = tuple(rows.data.schema.names)
    return Result(names, rows.types, python_rows(rows), rows.truncated)


class _Batches(io.RawIOBase):
    """An Arrow stream of which every batch is read as soon as it is there."""

    def __init__(self) -> None:
        super().__init__()
        self._there = io.BytesIO()
        self._size = 0
        self._reader: Any = None

    def read_all(self, whole: bytes) -> list[Any]:
        """The batches in these bytes, which hold no part of one."""
        self._there, self._size = io.BytesIO(whole), len(whole)
        if self._reader is None:
            self._reader = pa.ipc.open_stream(self)
        found = []
        try:
            while self._there.tell() < self._size:
                found.append(self._reader.read_next_batch())
        except StopIteration:
            pass
        return found

    def read(self, size: int = -1) -> bytes:
        return self._there.read(size)

    def readable(self) -> bool:
        return True
