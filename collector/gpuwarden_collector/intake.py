"""Decodes and admits bodies in threads, all that wait at once: values are checked column by column.

Looking at forty columns of forty rows costs as much as looking at forty columns of four thousand,
so the bodies that arrived meanwhile are checked together. Only if that finds fault is each checked
by itself, so one wrong batch never decides about another.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden_collector.admission import Window, refusal, window
from gpuwarden_collector.decode import Decoded, Refused, decode

DECODES_MAX = 2
"""Threads that decode; each may hold several times `DECODED_BYTES_MAX`."""
_TOGETHER_BYTES_MAX = 1024 * 1024
"""Bodies are decoded together up to so many bytes, as sent."""
_HELD_BYTES_MAX = 32 * 1024 * 1024
"""Decoded bytes at which a thread hands over what it has: small bodies can be large once decoded."""


@dataclass(frozen=True, slots=True)
class Body:
    """A body as received, and its Content-Encoding ("" for none)."""

    content: bytes
    encoding: str


def admit(bodies: Sequence[Body], admitted: Window) -> list[Decoded | Refused]:
    """Each body decoded and admitted, or why not.

    Ends early, but not before the first, once the decoded tables hold much memory; the rest of the
    bodies has no result then.
    """
    results: list[Decoded | Refused] = []
    held_bytes = 0
    for body in bodies:
        results.append(decode(body.content, body.encoding))
        match results[-1]:
            case Decoded(memory_bytes=memory_bytes):
                held_bytes += memory_bytes
        if held_bytes > _HELD_BYTES_MAX:
            break
    good = [result for result in results if isinstance(result, Decoded)]
    if len(good) > 1 and refusal(_together(good), admitted) is None:
        return results
    return [
        result if isinstance(result, Refused) else refusal(result.tables, admitted) or result
        for result in results
    ]


def _together(batches: Sequence[Decoded]) -> dict[str, pa.Table]:
    parts: dict[str, list[pa.Table]] = {}
    for batch in batches:
        for name, table in batch.tables.items():
            parts.setdefault(name, []).append(table)
    return {name: pa.concat_tables(tables) for name, tables in parts.items()}


_Waiting = tuple[Body, "asyncio.Future[Decoded | Refused]"]


class Intake:
    """Hands bodies to the threads and their results back; belongs to the event loop."""

    def __init__(self, clock: Clock, *, ts_past_max_s: float, ts_future_max_s: float) -> None:
        self._clock = clock
        self._ts_past_max_s = ts_past_max_s
        self._ts_future_max_s = ts_future_max_s
        self._waiting: deque[_Waiting] = deque()
        self._running = 0
        self._threads = ThreadPoolExecutor(DECODES_MAX, "decode")

    async def admit(self, body: Body) -> Decoded | Refused:
        """The decoded batch, or why it is refused."""
        answer: asyncio.Future[Decoded | Refused] = asyncio.get_running_loop().create_future()
        self._waiting.append((body, answer))
        self._start()
        return await answer

    def close(self) -> None:
        """End the threads; what runs is finished first."""
        self._threads.shutdown(wait=False)

    def _start(self) -> None:
        while self._waiting and self._running < DECODES_MAX:
            taken = self._take()
            admitted = window(self._clock.now(), self._ts_past_max_s, self._ts_future_max_s)
            self._running += 1
            job = asyncio.get_running_loop().run_in_executor(
                self._threads, admit, [body for body, _ in taken], admitted
            )
            job.add_done_callback(partial(self._finish, taken))

    def _take(self) -> list[_Waiting]:
        taken = [self._waiting.popleft()]
        size_bytes = len(taken[0][0].content)
        while self._waiting and size_bytes < _TOGETHER_BYTES_MAX:
            taken.append(self._waiting.popleft())
            size_bytes += len(taken[-1][0].content)
        return taken

    def _finish(
        self, taken: Sequence[_Waiting], job: "asyncio.Future[list[Decoded | Refused]]"
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
            self._waiting.extendleft(reversed(taken[len(results) :]))
        self._start()
