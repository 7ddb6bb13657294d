"""Decodes and admits bodies in threads, all waiting bodies together.

To check forty columns of forty rows takes as long as forty columns of four thousand rows. So all bodies that have
arrived are read and checked together, and their rows stay in the same tables on the way to the store. Only if that
finds something wrong is each body decoded and checked by itself, so that one wrong batch never affects another.

A thread cannot be stopped. One that does not finish in time is abandoned and counted, another replaces it, and the
agents must send its bodies again. A body that hung together with others is then decoded by itself; one that hung by
itself is refused while its thread still runs.
"""

import asyncio
import hashlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden_collector.ingest.admit import Window, checked, window
from gpuwarden_collector.ingest.coalesce import (
    CoalescedStreams,
    KnownSchemas,
    Stream,
    plain_streams,
)
from gpuwarden_collector.ingest.decode import (
    BatchRows,
    Decoded,
    RefusedBody,
    content_of,
    decode_content,
    first_line,
)
from gpuwarden_collector.ingest.node_owners import NodeColumns
from gpuwarden_collector.stats import Faults, Stats

log = logging.getLogger(__name__)
T = TypeVar("T")

DECODE_S = 8.0
"""Most time that a thread may take for a group of bodies: less than agents wait for an answer."""
HUNG_MAX = 8
"""With this many hung threads nothing more is decoded: the process must be restarted."""
DECODES_MAX = 2
"""Threads that decode at the same time; each may hold several times `DECODED_BYTES_MAX`."""
_TOGETHER_BYTES_MAX = 2 * 1024 * 1024
"""Size of a group of bodies, as sent."""
_GATHER_S_MIN, _GATHER_S_MAX = 0.01, 0.1
_GATHER_S_PER_BODY = 0.002
"""A body waits for others, longer the more there were in the last group: a fraction of the time that it waits
for its commit."""
_HELD_BYTES_MAX = 32 * 1024 * 1024
"""Decoded bytes after which a thread returns its results: small bodies can become large."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body as received, and its Content-Encoding ("" for none)."""

    content: bytes
    encoding: str
    is_import: bool = False
    """Whether its rows may be of any age."""
    node: str | None = None
    """The only node whose rows it may have; None: any."""


def admit(
    bodies: Sequence[Body],
    admitted: Window,
    schemas: KnownSchemas | None = None,
    faults: Faults | None = None,
) -> list[Decoded | RefusedBody]:
    """Each body decoded and admitted, or why it is refused. `schemas`: known from earlier calls.

    Stops early once the decoded tables take much memory, but not before the first; then the remaining bodies have no
    result.
    """
    schemas, faults = schemas or KnownSchemas(), faults or Faults()
    contents: list[bytes | RefusedBody] = []
    held_bytes = 0
    for body in bodies:
        content = _guarded(faults, partial(content_of, body.content, body.encoding))
        contents.append(content)
        if not isinstance(content, RefusedBody):
            held_bytes += len(content)
        if held_bytes > _HELD_BYTES_MAX:
            break
    try:
        results = _decode_together(contents, admitted, schemas)
        if results is not None:
            return _of_own_nodes(bodies, results)
    except Exception as error:  # noqa: BLE001  one body is at fault, and the others are decoded alone
        if len(bodies) > 1:
            faults.note("decode_together", error)
    return _decode_alone(bodies, contents, admitted, schemas, faults)


def _guarded(faults: Faults, work: Callable[[], T | RefusedBody]) -> T | RefusedBody:
    """The result for one body, or a refusal if `work` raises an exception.

    422, although the fault is the collector's: the same body would fail again, and the agent could never send the
    batches after it. Only a lack of memory may pass.
    """
    try:
        return work()
    except MemoryError as error:
        faults.note("decode", error)
        return RefusedBody(503, "the collector had not enough memory for the batch: give it more")
    except Exception as error:  # noqa: BLE001  one body must not affect the next
        faults.note("decode", error)
        return RefusedBody(
            422,
            f"the collector failed on the batch ({type(error).__name__}: {first_line(error)}): "
            "please report this with the stack trace in its log",
        )


def _of_own_nodes(
    bodies: Sequence[Body], results: Sequence[Decoded | RefusedBody]
) -> list[Decoded | RefusedBody]:
    columns = NodeColumns()
    return [
        (columns.refusal(result, body.node) or result)
        if body.node is not None and isinstance(result, Decoded)
        else result
        for body, result in zip(bodies, results, strict=False)
    ]


def _decode_alone(
    bodies: Sequence[Body],
    contents: Sequence[bytes | RefusedBody],
    admitted: Window,
    schemas: KnownSchemas,
    faults: Faults,
) -> list[Decoded | RefusedBody]:
    results: list[Decoded | RefusedBody] = []
    held_bytes = 0
    for body, content in zip(bodies, contents, strict=False):
        if held_bytes > _HELD_BYTES_MAX:
            break
        result: Decoded | RefusedBody
        if isinstance(content, RefusedBody):
            result = content
        else:
            result = _guarded(faults, partial(_one, body, content, admitted, schemas))
        if isinstance(result, Decoded):
            held_bytes += result.memory_bytes
        results.append(result)
    return results


def _one(
    body: Body, content: bytes, admitted: Window, schemas: KnownSchemas
) -> Decoded | RefusedBody:
    result = decode_content(content)
    if isinstance(result, Decoded):
        outcome = checked(result.tables, admitted)
        if isinstance(outcome, RefusedBody):
            result = outcome
        else:
            result = Decoded.of(outcome, result.memory_bytes, result.unknown_columns)
    if isinstance(result, Decoded):
        schemas.learn(content)
    return _of_own_nodes([body], [result])[0]


def _decode_together(
    contents: Sequence[bytes | RefusedBody], admitted: Window, schemas: KnownSchemas
) -> list[Decoded | RefusedBody] | None:
    """All bodies at once; None: at least one is wrong, or they take much memory."""
    group = _Group()
    for number, content in enumerate(contents):
        if isinstance(content, RefusedBody):
            group.refused[number] = content
        elif (plain := plain_streams(content, schemas)) is not None:
            group.plain[number] = len(content), plain
            group.joined.add(content, plain)
        else:
            match decode_content(content):
                case RefusedBody() as refused:
                    group.refused[number] = refused
                case decoded:
                    group.others[number] = decoded
    held_bytes = sum(batch.memory_bytes for batch in group.others.values())
    by_number = None if held_bytes > _HELD_BYTES_MAX else group.decoded(admitted)
    if by_number is None:
        return None
    for number, content in enumerate(contents):
        if number in group.others and isinstance(content, bytes):
            schemas.learn(content)
    return [by_number.get(number) or group.refused[number] for number in range(len(contents))]


@dataclass(slots=True)
class _Group:
    """Bodies by number: those that are read together, those that were read alone, and refused ones."""

    plain: dict[int, tuple[int, list[Stream]]] = field(default_factory=dict)
    """Size and streams."""
    joined: CoalescedStreams = field(default_factory=CoalescedStreams)
    others: dict[int, Decoded] = field(default_factory=dict)
    refused: dict[int, RefusedBody] = field(default_factory=dict)

    def decoded(self, admitted: Window) -> dict[int, Decoded] | None:
        """All bodies that are not refused, as parts of the same tables; None: one of them is not admitted."""
        tables = self.joined.read()
        if tables is None:
            return None
        pieces: dict[str, list[Any]] = {}
        rows: dict[str, int] = {}

        def place(name: str, table: Any) -> int:
            start = rows.get(name, 0)
            pieces.setdefault(name, []).append(table)
            rows[name] = start + table.num_rows
            return start

        at = {source: place(source.table, table) for source, table in tables.items()}
        starts = {
            number: {name: place(name, table) for name, table in batch.tables.items()}
            for number, batch in self.others.items()
        }
        wholes = checked({name: pa.concat_tables(p) for name, p in pieces.items()}, admitted)
        if isinstance(wholes, RefusedBody):
            return None
        decoded: dict[int, Decoded] = {}
        for number, (size_bytes, streams) in self.plain.items():
            parts: dict[str, BatchRows] = {}
            for stream in streams:
                source = self.joined.source_of(stream)
                parts[source.table] = BatchRows(wholes[source.table], at[source], stream.rows)
                at[source] += stream.rows
            decoded[number] = Decoded(parts, size_bytes)
        for number, batch in self.others.items():
            own = {
                n: BatchRows(wholes[n], starts[number][n], p.rows) for n, p in batch.parts.items()
            }
            decoded[number] = Decoded(own, batch.memory_bytes, batch.unknown_columns)
        return decoded


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    body: Body
    answer: "asyncio.Future[Decoded | RefusedBody]"

    def settle(self, result: Decoded | RefusedBody) -> None:
        if not self.answer.done():  # or the request was cancelled meanwhile
            self.answer.set_result(result)


class _DecodeThread:
    """Runs one function at a time. It is a daemon thread, so the process can exit while it hangs."""

    def __init__(self) -> None:
        """Raises RuntimeError when the system has no more threads."""
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="decode", daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        """Run `work` next."""
        self._works.put(work)

    def end(self) -> None:
        """End the thread after its current work."""
        self._works.put(None)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()


@dataclass(slots=True, eq=False)
class _Decoding:
    """A group of bodies that a thread decodes."""

    taken: Sequence[_Waiting]
    thread: _DecodeThread
    deadline: asyncio.TimerHandle | None = None
    digests: frozenset[bytes] = frozenset()
    """Digests of its bodies, once it is late."""

    @property
    def is_late(self) -> bool:
        return bool(self.digests)


class DecodePool:
    """Gives bodies to the threads and returns their results. Call it on the event loop only."""

    def __init__(
        self,
        clock: Clock,
        *,
        ts_past_max_s: float,
        ts_future_max_s: float,
        stats: Stats,
    ) -> None:
        self._clock = clock
        self._stats = stats
        self._faults = stats.faults
        self._ts_past_max_s = ts_past_max_s
        self._ts_future_max_s = ts_future_max_s
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._gather_s = _GATHER_S_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._running = 0
        self._idle: list[_DecodeThread] = []
        self._schemas = KnownSchemas()
        self._is_closed = False
        self._hung: set[_Decoding] = set()

    @property
    def hung(self) -> int:
        """Number of threads that hang."""
        return len(self._hung)

    @property
    def is_alive(self) -> bool:
        """Whether bodies are decoded: few enough threads hang."""
        return self.hung < HUNG_MAX

    async def admit(self, body: Body) -> Decoded | RefusedBody:
        """The decoded batch, or why it is refused."""
        answer: asyncio.Future[Decoded | RefusedBody] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(body, answer))
        self._waiting_bytes += len(body.content)
        self._start_soon()
        return await answer

    def close(self) -> None:
        """End the threads after their current work."""
        self._is_closed = True
        for thread in self._idle:
            thread.end()
        self._idle.clear()

    def _start_soon(self) -> None:
        if self._waiting_bytes >= _TOGETHER_BYTES_MAX:
            self._start()
        elif self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._gather_s, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._running < DECODES_MAX:
            taken = self._take()
            if taken:
                self._decode(taken)

    def _take(self) -> list[_Waiting]:
        first = self._waiting.popleft()
        taken, size_bytes = [first], len(first.body.content)
        suspects = self._suspects(first.body)
        if not self.is_alive or any(len(late.taken) == 1 for late in suspects):
            first.settle(RefusedBody(503, _HANGS))
            taken = []
        while taken and not suspects and self._waiting and size_bytes < _TOGETHER_BYTES_MAX:
            # A group has one window of timestamps, which is another one for imports.
            if self._waiting[0].body.is_import != first.body.is_import:
                break
            if self._suspects(self._waiting[0].body):
                break
            taken.append(self._waiting.popleft())
            size_bytes += len(taken[-1].body.content)
        self._waiting_bytes -= size_bytes
        self._gather_s = min(_GATHER_S_MAX, _GATHER_S_MIN + _GATHER_S_PER_BODY * len(taken))
        return taken

    def _suspects(self, body: Body) -> list[_Decoding]:
        """Hung groups that contain this body."""
        if not self._hung:
            return []
        digest = _digest(body)
        return [late for late in self._hung if digest in late.digests]

    def _decode(self, taken: Sequence[_Waiting]) -> None:
        admitted = window(self._clock.now(), self._ts_past_max_s, self._ts_future_max_s)
        if taken[0].body.is_import:
            admitted = Window(0, admitted.most_ms)
        try:
            thread = self._idle.pop() if self._idle else _DecodeThread()
        except RuntimeError as error:
            self._faults.note("decode", error)
            for waiting in taken:
                waiting.settle(
                    RefusedBody(503, f"the collector cannot start a thread to decode it: {error}")
                )
            return
        decoding, loop = _Decoding(taken, thread), asyncio.get_running_loop()

        def work() -> None:
            results: list[Decoded | RefusedBody] | BaseException
            try:
                bodies = [waiting.body for waiting in taken]
                results = admit(bodies, admitted, self._schemas, self._faults)
            except BaseException as error:  # noqa: BLE001  raised where the result is awaited
                results = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._finish, decoding, results)

        self._running += 1
        decoding.deadline = loop.call_later(DECODE_S, self._give_up, decoding)
        thread.do(work)

    def _give_up(self, decoding: _Decoding) -> None:
        self._running -= 1
        self._stats.decode_hangs += 1
        decoding.digests = frozenset(_digest(waiting.body) for waiting in decoding.taken)
        self._hung.add(decoding)
        decoding.thread.end()
        log.error(
            "a decoding thread hangs; agents must send its batches again",
            extra={"batches": len(decoding.taken), "hung": self.hung, "after_s": DECODE_S},
        )
        for waiting in decoding.taken:
            waiting.settle(RefusedBody(503, _HANGS))
        self._start_soon()

    def _finish(
        self, decoding: _Decoding, results: "list[Decoded | RefusedBody] | BaseException"
    ) -> None:
        if decoding.is_late:
            self._hung.discard(decoding)
            return
        self._running -= 1
        if decoding.deadline is not None:
            decoding.deadline.cancel()
        if self._is_closed:
            decoding.thread.end()
        else:
            self._idle.append(decoding.thread)
        taken = decoding.taken
        if isinstance(results, BaseException):
            for waiting in taken:
                if not waiting.answer.done():
                    waiting.answer.set_exception(results)
        else:
            for waiting, result in zip(taken, results, strict=False):
                waiting.settle(result)
            again = taken[len(results) :]
            self._waiting.extendleft(reversed(again))
            self._waiting_bytes += sum(len(waiting.body.content) for waiting in again)
        self._start_soon()


_HANGS = "the batch was not decoded in time; the collector's log has more"


def _digest(body: Body) -> bytes:
    return hashlib.blake2b(body.content, digest_size=16).digest()
