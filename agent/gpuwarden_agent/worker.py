"""Runs blocking calls, of a driver or of SQLite, on daemon threads.

concurrent.futures joins its threads when the interpreter exits, so one driver call that never
returns would keep the process from ending. The process leaves a daemon thread behind instead.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class WorkerBusyError(RuntimeError):
    """More calls wait for the thread than its queue may hold."""


class Worker:
    """Runs calls one after another on its thread; started by the first call."""

    def __init__(self, name: str, *, calls_max: int = 64) -> None:
        self._name = name
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(calls_max)
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Queue a call; its future belongs to the running loop.

        Cancelling the future does not stop the call. Raises WorkerBusyError when the queue is full.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  # the caller handles it
                _settle(loop, future, _fail, error)
            else:
                _settle(loop, future, _succeed, result)

        try:
            self._calls.put_nowait(run)
        except queue.Full:
            raise WorkerBusyError(f"{self._name}: {self._calls.maxsize} calls wait") from None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """End the thread after the calls in its queue; does not wait for a stuck call."""
        if self._thread is not None:
            try:
                self._calls.put_nowait(None)
            except queue.Full:
                return  # stuck, with a full queue: the thread ends with the process

    def _work(self) -> None:
        while (run := self._calls.get()) is not None:
            run()


def _settle(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    settle: Callable[[asyncio.Future[Any], Any], None],
    value: Any,
) -> None:
    try:
        loop.call_soon_threadsafe(settle, future, value)
    except RuntimeError:
        return  # the loop is closed: nobody waits for the result any more


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def within(limit_s: float, call: Callable[[], T], name: str) -> T:
    """Return what `call` returns, or raise what it raises. Raises TimeoutError after `limit_s`; the
    call then continues in a daemon thread called `name`.
    """
    answers: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # raised again by the waiting caller
            failure = error

            def fail() -> T:
                raise failure

            answers.put(fail)
        else:
            answers.put(lambda: result)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        answer = answers.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"it has not answered for {limit_s:g} s") from None
    return answer()
