"""Asks a slow tool in a thread of its own, so that a reading never waits for it."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuwarden.clock import Clock
from gpuwarden_agent.probe import ProbeError

T = TypeVar("T")

FIRST_S = 1.5
"""Longest wait for the first answer: below the deadline of a probe's call."""
PAUSE_S_MIN = 0.1


class Poller(Generic[T]):
    """The newest answer of a call that takes a while; asked from the start on, every `every_s`."""

    def __init__(
        self,
        name: str,
        ask: Callable[[], T],
        clock: Clock,
        every_s: float,
        first_s: float = FIRST_S,
    ) -> None:
        """`first_s`: longest wait of `newest` for the first answer."""
        self._first_s = first_s
        self._name = name
        self._ask = ask
        self._clock = clock
        self._every_s = every_s
        self._changed = threading.Condition()
        self._answer: tuple[float, T] | None = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        """Whether the first call has not ended."""
        with self._changed:
            return self._answer is None and self._error is None

    def newest(self, age_s_max: float) -> T:
        """The newest answer. Raises ProbeError when there is none, it is too old, or the last call failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._answer or self._error, self._first_s)
            answer, error = self._answer, self._error
        if error is not None:
            raise error
        if answer is None:
            raise ProbeError(f"{self._name} has given no answer yet")
        asked_at, value = answer
        if self._clock.monotonic() - asked_at > age_s_max:
            raise ProbeError(f"{self._name} has given no answer for {age_s_max:g} s")
        return value

    def close(self) -> None:
        """Ask no more. A call that runs ends at its own deadline."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            began = self._clock.monotonic()
            try:
                answer = self._ask()
            except Exception as error:  # noqa: BLE001  # the next reading raises it
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
            else:
                with self._changed:
                    self._answer, self._error = (self._clock.monotonic(), answer), None
                    self._changed.notify_all()
            took = self._clock.monotonic() - began
            self._ended.wait(max(self._every_s - took, PAUSE_S_MIN))
