"""Decodes and admits bodies in threads, all that wait at once: values are checked column by column.

Looking at forty columns of forty rows costs as much as looking at forty columns of four thousand,
so the bodies that arrived meanwhile are read and checked together, and their rows stay in the same
tables on the way to the store. Only if that finds fault is each decoded and checked by itself, so
one wrong batch never decides about another.

No thread can be ended: one that does not come back in time is left to itself and counted, another takes
its place, and its bodies are to be sent again. What hung among others is then decoded by itself; what hung
by itself is not tried again while that thread is still at it.
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
from gpuwarden_collector.ingest.coalesce import CoalescedStreams, Openings, Stream, plain_streams
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
"""Most time that a thread may take for what it decodes together: less than agents wait for an answer."""
HUNG_MAX = 8
"""So many threads that do not come back, and nothing more is decoded: the process is to be replaced."""
DECODES_MAX = 2
"""Threads that decode; each may hold several times `DECODED_BYTES_MAX`."""
_TOGETHER_BYTES_MAX = 2 * 1024 * 1024
"""Bodies are decoded together up to so many bytes, as sent."""
_GATHER_S_MIN, _GATHER_S_MAX = 0.01, 0.1
_GATHER_S_PER_BODY = 0.002
"""A body waits for others, the longer the more there were lately: a fraction of what it then waits
for its commit."""
_HELD_BYTES_MAX = 32 * 1024 * 1024
"""Decoded bytes at which a thread hands over what it has: small bodies can be large once decoded."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body as received, and its Content-Encoding ("" for none)."""

    content: bytes
    encoding: str
    is_import: bool = False
    """Whether its rows may be of any age."""
    node: str | None = None
    """The only node that its rows may be of; None: any."""


def admit(
    bodies: Sequence[Body],
    admitted: Window,
    openings: Openings | None = None,
    faults: Faults | None = None,
) -> list[Decoded | RefusedBody]:
    """Each body decoded and admitted, or why not. `openings` is what earlier calls have learned.

    Ends early, but not before the first, once the decoded tables hold much memory; the rest of the
    bodies has no result then.
    """
    openings, faults = openings or Openings(), faults or Faults()
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
        results = _together(contents, admitted, openings)
        if results is not None:
            return _of_own_nodes(bodies, results)
    except Exception as error:  # noqa: BLE001  whichever body it comes from, the others are good
        if len(bodies) > 1:
            faults.note("decode_together", error)
    return _alone(bodies, contents, admitted, openings, faults)


def _guarded(faults: Faults, work: Callable[[], T | RefusedBody]) -> T | RefusedBody:
    """What is found of one body; its refusal where looking at it raises an exception.

    422, though the fault is the collector's: it would come again however often the body did, and the
    agent would never get to what it has to send after it. Only memory may be there another time.
    """
    try:
        return work()
    except MemoryError as error:
        faults.note("decode", error)
        return RefusedBody(503, "the collector had no memory for the batch: give it more")
    except Exception as error:  # noqa: BLE001  one body must not decide about the next
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


def _alone(
    bodies: Sequence[Body],
    contents: Sequence[bytes | RefusedBody],
    admitted: Window,
    openings: Openings,
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
            result = _guarded(faults, partial(_one, body, content, admitted, openings))
        if isinstance(result, Decoded):
            held_bytes += result.memory_bytes
        results.append(result)
    return results


def _one(body: Body, content: bytes, admitted: Window, openings: Openings) -> Decoded | RefusedBody:
    result = decode_content(content)
    if isinstance(result, Decoded):
        found = checked(result.tables, admitted)
        if isinstance(found, RefusedBody):
            result = found
        else:
            result = Decoded.of(found, result.memory_bytes, result.unknown_columns)
    if isinstance(result, Decoded):
        openings.learn(content)
    return _of_own_nodes([body], [result])[0]


def _together(
    contents: Sequence[bytes | RefusedBody], admitted: Window, openings: Openings
) -> list[Decoded | RefusedBody] | None:
    """All of them at once; None when one of them must be at fault, or they hold much memory."""
    group = _Group()
    for number, content in enumerate(contents):
        if isinstance(content, RefusedBody):
            group.refused[number] = content
        elif (plain := plain_streams(content, openings)) is not None:
            group.plain[number] = len(content), plain
            group.joined.add(content, plain)
        else:
            match decode_content(content):
                case RefusedBody() as refused:
                    group.refused[number] = refused
                case decoded:
                    group.others[number] = decoded
    held_bytes = sum(batch.memory_bytes for batch in group.others.values())
    found = None if held_bytes > _HELD_BYTES_MAX else group.decoded(admitted)
    if found is None:
        return None
    for number, content in enumerate(contents):
        if number in group.others and isinstance(content, bytes):
            openings.learn(content)
    return [found.get(number) or group.refused[number] for number in range(len(contents))]


@dataclass(slots=True)
class _Group:
    """Bodies by number: those that are read as one, those that were read alone, and the rest."""

    plain: dict[int, tuple[int, list[Stream]]] = field(default_factory=dict)
    """Bytes, and streams."""
    joined: CoalescedStreams = field(default_factory=CoalescedStreams)
    others: dict[int, Decoded] = field(default_factory=dict)
    refused: dict[int, RefusedBody] = field(default_factory=dict)

    def decoded(self, admitted: Window) -> dict[int, Decoded] | None:
        """All good bodies as parts of the same tables; None when not every one is admitted."""
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
        found: dict[int, Decoded] = {}
        for number, (size_bytes, streams) in self.plain.items():
            parts: dict[str, BatchRows] = {}
            for stream in streams:
                source = self.joined.source_of(stream)
                parts[source.table] = BatchRows(wholes[source.table], at[source], stream.rows)
                at[source] += stream.rows
            found[number] = Decoded(parts, size_bytes)
        for number, batch in self.others.items():
            own = {
                n: BatchRows(wholes[n], starts[number][n], p.rows) for n, p in batch.parts.items()
            }
            found[number] = Decoded(own, batch.memory_bytes, batch.unknown_columns)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    body: Body
    answer: "asyncio.Future[Decoded | RefusedBody]"

    def settle(self, result: Decoded | RefusedBody) -> None:
        if not self.answer.done():  # or the request was cancelled meanwhile
            self.answer.set_result(result)


class _DecodeThread:
    """Does one thing at a time. Daemonic: a process does not wait at its end for one that hangs."""

    def __init__(self) -> None:
        """Raises RuntimeError: there can be no more threads."""
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="decode", daemon=True).start()

    def do(self, work: Callable[[], None]) -> None:
        """Have it do that next."""
        self._works.put(work)

    def end(self) -> None:
        """Have it end when it has done what it does."""
        self._works.put(None)

    def _run(self) -> None:
        while (work := self._works.get()) is not None:
            work()


@dataclass(slots=True, eq=False)
class _Decoding:
    """What a thread decodes together."""

    taken: Sequence[_Waiting]
    thread: _DecodeThread
    deadline: asyncio.TimerHandle | None = None
    digests: frozenset[bytes] = frozenset()
    """Of its bodies, once it is late."""

    @property
    def is_late(self) -> bool:
        return bool(self.digests)


class DecodePool:
    """Hands bodies to the threads and their results back; belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        ts_past_max_s: float,
        ts_future_max_s: float,
        stats: Stats | None = None,
    ) -> None:
        self._clock = clock
        self._stats = stats or Stats()
        self._faults = self._stats.faults
        self._ts_past_max_s = ts_past_max_s
        self._ts_future_max_s = ts_future_max_s
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._gather_s = _GATHER_S_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._running = 0
        self._idle: list[_DecodeThread] = []
        self._openings = Openings()
        self._is_closed = False
        self._hung: set[_Decoding] = set()

    @property
    def hung(self) -> int:
        """Threads that have still not come back."""
        return len(self._hung)

    @property
    def is_alive(self) -> bool:
        """Whether bodies can be decoded."""
        return self.hung < HUNG_MAX

    async def admit(self, body: Body) -> Decoded | RefusedBody:
        """The decoded batch, or why it is refused."""
        answer: asyncio.Future[Decoded | RefusedBody] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(body, answer))
        self._waiting_bytes += len(body.content)
        self._start_soon()
        return await answer

    def close(self) -> None:
        """End the threads; what runs is finished first."""
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
            # One window is for all that are looked at together.
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
        """What hangs and has this body."""
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
                waiting.settle(RefusedBody(503, f"the collector has no thread for it: {error}"))
            return
        decoding, loop = _Decoding(taken, thread), asyncio.get_running_loop()

        def work() -> None:
            found: list[Decoded | RefusedBody] | BaseException
            try:
                bodies = [waiting.body for waiting in taken]
                found = admit(bodies, admitted, self._openings, self._faults)
            except BaseException as error:  # noqa: BLE001  raised by whoever waits
                found = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._finish, decoding, found)

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
            "a thread that decodes batches does not come back; they are to be sent again",
            extra={"batches": len(decoding.taken), "hung": self.hung, "after_s": DECODE_S},
        )
        for waiting in decoding.taken:
            waiting.settle(RefusedBody(503, _HANGS))
        self._start_soon()

    def _finish(
        self, decoding: _Decoding, found: "list[Decoded | RefusedBody] | BaseException"
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
        if isinstance(found, BaseException):
            for waiting in taken:
                if not waiting.answer.done():
                    waiting.answer.set_exception(found)
        else:
            for waiting, result in zip(taken, found, strict=False):
                waiting.settle(result)
            again = taken[len(found) :]
            self._waiting.extendleft(reversed(again))
            self._waiting_bytes += sum(len(waiting.body.content) for waiting in again)
        self._start_soon()


_HANGS = "the batch was not decoded in time; the collector's log has more"


def _digest(body: Body) -> bytes:
    return hashlib.blake2b(body.content, digest_size=16).digest()
