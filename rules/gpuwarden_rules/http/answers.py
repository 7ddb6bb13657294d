"""Makes HTTP responses: JSON, instants in ISO 8601, one format of errors."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from gpuwarden.clock import iso_text
from gpuwarden_rules.evaluation.reload import RuleReloader

Handler = Callable[[web.Request, RuleReloader], Awaitable[web.Response]]
Guarded = Callable[[Handler], Callable[[web.Request], Awaitable[web.Response]]]
"""Wraps a handler that needs the rules: responds 503 while there are none."""


class RequestError(ValueError):
    """The request is wrong; the message says what to change."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


async def document_of(request: web.Request) -> Any:
    """The JSON of a body. Raises RequestError."""
    # Against CSRF: a page of another site can post a form, but not JSON.
    if request.content_type != "application/json":
        raise RequestError("the body must be JSON, with that Content-Type", 415)
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error


def answer(document: Mapping[str, Any], status: int = 200) -> web.Response:
    """A JSON response: instants in ISO 8601, durations in seconds, other types as text, NaN as null."""
    return web.json_response(document, status=status, dumps=_dumps)


def error_answer(status: int, reason: str) -> web.Response:
    """An error as JSON."""
    return answer({"error": reason, "status": status}, status)


def instant(at: datetime | None) -> str | None:
    """ISO 8601."""
    return iso_text(at) if at else None


def _dumps(document: Any) -> str:
    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {str(key): plain(inner) for key, inner in value.items()}
            case list() | tuple():
                return [plain(inner) for inner in value]
            case datetime():
                return instant(value)
            case timedelta():
                return value.total_seconds()
            case float() if not math.isfinite(value):
                return None
            case None | bool() | int() | float() | str():
                return value
            case _:
                return str(value)

    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False)
