"""Runs coroutines in a time of its own: nothing waits, and the same seed takes the same steps.

What asyncio would give to a thread is done at once, between two callbacks.
"""

import asyncio
import selectors
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 3, 1, tzinfo=UTC)


class _NoWaiting(selectors.SelectSelector):
    """Lets time pass instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        self._idle = _NoWaiting()
        super().__init__(self._idle)

    def time(self) -> float:
        return self._idle.now_s

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except BaseException as error:  # noqa: BLE001  # its awaiter handles it
            future.set_exception(error)
            future.exception()
        return future


class HostClock:
    """A host's clock: the loop's time, and how wrong its wall clock is."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.wrong_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time() + self.wrong_s)

    def monotonic(self) -> float:
        return self._loop.time()
