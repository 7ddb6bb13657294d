"""The port to whoever is told: a receiver takes a message, wants it later, or refuses it for good."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpuwarden.untrusted_text import printable
from gpuwarden_rules.notify.message import Notification

TIMEOUT_S = 15.0
"""Longest that a receiver may take to answer."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0
AFTER_S_MAX = 3600.0
"""Longest pause that a receiver may ask for."""
REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has the message."""

    note: str = ""
    """What it said, for a person who tests it."""
    handle: str | None = None
    """What it calls the message, so that a later one of its group can replace it."""


@dataclass(frozen=True, slots=True)
class DeliveryDelayed:
    """No answer, or one that does not speak of the message: it is sent again."""

    reason: str
    after_s: float | None = None
    """The pause that the receiver asked for."""


@dataclass(frozen=True, slots=True)
class DeliveryRefused:
    """The receiver will never take this message."""

    reason: str


Outcome = Delivered | DeliveryDelayed | DeliveryRefused


class Receiver(Protocol):
    """Somewhere to send messages to."""

    async def send(self, message: Notification) -> Outcome:
        """Send it once. No secret of the receiver's address is in what this returns or raises.

        What it raises is taken for `DeliveryDelayed`; it may run for as long as it likes and is cut off.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


def backoff_s(
    failures: int, after_s: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Pause after so many failures in a row: exponential, with jitter, or as the receiver asked."""
    longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10))
    pause = longest * (0.5 + draw() / 2)
    return pause if after_s is None else max(pause, min(after_s, AFTER_S_MAX))


def shortened(text: str) -> str:
    """The text as one line of a log."""
    line = " ".join(printable(text).split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[: REASON_CHARACTERS_MAX - 1] + "…"
