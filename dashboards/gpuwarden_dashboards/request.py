"""Reads the parameters of a request."""

from collections.abc import Collection
from datetime import UTC, datetime

from aiohttp import web

from gpuwarden.clock import from_ms

_LATEST_MS = 253_402_300_799_000
"""The last second of the year 9999."""


class ParameterError(ValueError):
    """The request is wrong; the text says what to give instead."""


class NotKnownError(LookupError):
    """There is nothing of that name; the text says so, and why that may be."""


def choice(request: web.Request, name: str, usual: str, among: Collection[str]) -> str:
    """A parameter that is one of a few words; raises ParameterError, which names them."""
    value = request.query.get(name, usual)
    if value not in among:
        raise ParameterError(f"{name} must be one of {', '.join(among)}")
    return value


def whole(request: web.Request, name: str, usual: int) -> int:
    """A parameter that is a whole number, at most the last second of the year 9999."""
    text = request.query.get(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdecimal() or int(text[:16]) > _LATEST_MS:
        raise ParameterError(f"{name} must be a whole number; times are milliseconds since 1970")
    return int(text[:16])


def instant(request: web.Request, name: str, usual: datetime) -> datetime:
    """A parameter that is ISO 8601 (UTC where it says nothing) or milliseconds since 1970; raises ParameterError."""
    text = request.query.get(name, "").strip()
    if not text:
        return usual
    if text.isascii() and text.isdecimal():
        return from_ms(whole(request, name, 0))
    try:
        given = datetime.fromisoformat(text)
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ParameterError(f"{name} must be a time: 2026-03-01T12:00") from None
