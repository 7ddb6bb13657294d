"""Decodes and admits bodies in threads, all that wait at once: values are checked column by column.

Looking at forty columns of forty rows costs as much as looking at forty columns of four thousand,
so the bodies that arrived meanwhile are read and checked together, and their rows stay in the same
tables on the way to the store. Only if that finds fault is each decoded and checked by itself, so
one wrong batch never decides about another.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden_collector.auth.node_rows import NodeColumns
from gpuwarden_collector.ingest.admit import Window, checked, refusal, window
from gpuwarden_collector.ingest.coalesce import CoalescedStreams, Openings, Stream, plain_streams
from gpuwarden_collector.ingest.decode import (
    BatchRows,
    Decoded,
    RefusedBody,
    content_of,
    decode_content,
    first_line,
)
from gpuwarden_collector.ops.faults import Faults

T = TypeVar("T")

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
    if len(contents) > 1:
        try:
            results = _together(contents, admitted, openings)
            if results is not None:
                return _of_own_nodes(bodies, results)
        except Exception as error:  # noqa: BLE001  whichever body it comes from, the others are good
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
        result = refusal(result.tables, admitted) or result
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
                source = stream.source
                parts[source.table] = BatchRows(wholes[source.table], at[source], stream.rows)
                at[source] += stream.rows
            found[number] = Decoded(parts, size_bytes)
        for number, batch in self.others.items():
            own = {
                n: BatchRows(wholes[n], starts[number][n], p.rows) for n, p in batch.parts.items()
            }
            found[number] = Decoded(own, batch.memory_bytes, batch.unknown_columns)
        return found


_Waiting = tuple[Body, "asyncio.Future[Decoded | RefusedBody]"]


class DecodePool:
    """Hands bodies to the threads and their results back; belongs to the event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        ts_past_max_s: float,
        ts_future_max_s: float,
        faults: Faults | None = None,
    ) -> None:
        self._clock = clock
        self._faults = faults or Faults()
        self._ts_past_max_s = ts_past_max_s
        self._ts_future_max_s = ts_future_max_s
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._gather_s = _GATHER_S_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._running = 0
        self._openings = Openings()
        self._threads = ThreadPoolExecutor(DECODES_MAX, "decode")

    async def admit(self, body: Body) -> Decoded | RefusedBody:
        """The decoded batch, or why it is refused."""
        answer: asyncio.Future[Decoded | RefusedBody] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, answer))
        self._waiting_bytes += len(body.content)
        self._start_soon()
        return await answer

    def close(self) -> None:
        """End the threads; what runs is finished first."""
        self._threads.shutdown(wait=False)

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
            admitted = window(self._clock.now(), self._ts_past_max_s, self._ts_future_max_s)
            if taken[0][0].is_import:
                admitted = Window(0, admitted.most_ms)
            self._running += 1
            bodies = [body for body, _ in taken]
            job = asyncio.get_running_loop().run_in_executor(
                self._threads, admit, bodies, admitted, self._openings, self._faults
            )
            job.add_done_callback(partial(self._finish, taken))

    def _take(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        size_bytes = len(taken[0][0].content)
        while self._waiting and size_bytes < _TOGETHER_BYTES_MAX:
            # One window is for all that are looked at together.
            if self._waiting[0][0].is_import != taken[0][0].is_import:
                break
            taken.append(self._waiting.popleft())
            size_bytes += len(taken[-1][0].content)
        self._waiting_bytes -= size_bytes
        self._gather_s = min(_GATHER_S_MAX, _GATHER_S_MIN + _GATHER_S_PER_BODY * len(taken))
        return taken

    def _finish(
        self, taken: Sequence[_Waiting], job: "asyncio.Future[list[Decoded | RefusedBody]]"
    ) -> None:
        self._running -= 1
        if fault := job.exception():
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(fault)
        else:
            results = job.result()
            for (_, answer), result in zip(taken, results, strict=False):
                if not answer.done():  # or the request was cancelled meanwhile
                    answer.set_result(result)
            again = taken[len(results) :]
            self._waiting.extendleft(reversed(again))
            self._waiting_bytes += sum(len(body.content) for body, _ in again)
        self._start_soon()
