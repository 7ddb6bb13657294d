"""Reads the time; all other code takes a Clock."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time and monotonic time."""

    def now(self) -> datetime:
        """Wall clock, aware, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences are meaningful."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that a test moves by hand; `step` moves the wall clock alone, as an admin would."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back; no time passes."""
        self._now += timedelta(seconds=seconds)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_ms(instant: datetime) -> int:
    """Milliseconds since the epoch of an aware datetime, rounded down."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def from_ms(ts_ms: int) -> datetime:
    """The aware UTC datetime of milliseconds since the epoch."""
    return EPOCH + timedelta(milliseconds=ts_ms)


def iso_text(instant: datetime) -> str:
    """RFC 3339 with milliseconds: `2026-01-01T12:00:00.000Z`."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
