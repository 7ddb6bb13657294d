"""Reads the parameters of a request."""

from collections.abc import Collection

from aiohttp import web

_LATEST_MS = 253_402_300_799_000
"""The last second of the year 9999."""


class ParameterError(ValueError):
    """The request is wrong; the text says what to give instead."""


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
