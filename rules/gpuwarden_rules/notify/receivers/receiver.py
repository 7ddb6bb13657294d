"""Defines the port of receivers: a message is delivered, delayed or refused."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpuwarden.untrusted_text import printable
from gpuwarden_rules.notify.message import Notification

TIMEOUT_S = 15.0
"""Longest time for one attempt, except of mail."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 1.0, 60.0
AFTER_S_MAX = 3600.0
"""Longest pause that a receiver can ask for."""
REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has accepted the message."""

    note: str = ""
    """Its answer, for `gpuwarden notify test`."""
    handle: str | None = None
    """The receiver's handle of the message, so that a later one of the group can replace it."""


@dataclass(frozen=True, slots=True)
class DeliveryDelayed:
    """No answer, or an error that is not about the message: the message is sent again."""

    reason: str
    after_s: float | None = None
    """The pause that the receiver asks for."""


@dataclass(frozen=True, slots=True)
class DeliveryRefused:
    """The receiver will never accept this message."""

    reason: str


Outcome = Delivered | DeliveryDelayed | DeliveryRefused


class Receiver(Protocol):
    """A destination of messages."""

    @property
    def timeout_s(self) -> float | None:
        """After this time the caller cancels `send`; None: `send` has limits of its own, and ends by them."""
        ...

    async def send(self, message: Notification) -> Outcome:
        """Send the message once. Nothing that this returns or raises contains a secret.

        An exception counts as `DeliveryDelayed`.
        """
        ...

    async def close(self) -> None:
        """Close connections and threads."""
        ...


def backoff_s(
    failures: int, after_s: float | None, draw: Callable[[], float] = random.random
) -> float:
    """Pause after this many failures in a row: exponential with jitter, or what the receiver asked for."""
    longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10))
    pause = longest * (0.5 + draw() / 2)
    return pause if after_s is None else max(pause, min(after_s, AFTER_S_MAX))


def shortened(text: str) -> str:
    """The text as one short line."""
    line = " ".join(printable(text).split())
    return line if len(line) <= REASON_CHARACTERS_MAX else line[: REASON_CHARACTERS_MAX - 1] + "…"
