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


def naive_utc(instant: datetime) -> datetime:
    """An aware instant as tables have it: UTC, without a time zone."""
    return instant.astimezone(UTC).replace(tzinfo=None)


def from_ms(ts_ms: int) -> datetime:
    """The aware UTC datetime of milliseconds since the epoch."""
    return EPOCH + timedelta(milliseconds=ts_ms)


INSTANT_MAX_MS = to_ms(datetime(9999, 1, 1, tzinfo=UTC)) - 1
"""The last millisecond that a request may name. Adding a span to it stays within the years of `datetime`, as does
taking one from 1970."""


def instant_of(text: str) -> datetime:
    """The aware UTC datetime of a request's parameter: milliseconds since 1970, or ISO 8601 (UTC without a zone).

    Raises ValueError; its message continues a sentence that begins with the parameter's name.
    """
    try:
        if text.isascii() and text.isdecimal():
            at = from_ms(int(text))
        else:
            given = datetime.fromisoformat(text)
            at = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
        if EPOCH <= at <= from_ms(INSTANT_MAX_MS):
            return at
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        "must be a time from 1970 to 9998: 2026-03-01T12:00Z, or milliseconds since 1970"
    )


def iso_text(instant: datetime) -> str:
    """RFC 3339 with milliseconds: `2026-01-01T12:00:00.000Z`."""
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
