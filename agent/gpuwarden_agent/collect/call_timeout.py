"""Waits for a blocking call for a limited time."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, call: Callable[[], T], name: str) -> T:
    """What `call` gives or raises; after `limit_s` a TimeoutError, and the call is left to a daemon
    thread called `name`.
    """
    answers: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  # raised again by whoever waits
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
