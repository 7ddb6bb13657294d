"""Reads small JSON bodies of people's own objects, and answers their errors: saved queries, annotations."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from aiohttp import web

from gpuwarden.access import Scope
from gpuwarden_collector.auth.gate import GRANT
from gpuwarden_collector.http.app import error_response, store_busy
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError

_BODY_S = 10.0

Handler = Callable[[web.Request], Awaitable[web.Response]]


class JsonBodyError(ValueError):
    """The request is wrong; the message says what to change, and `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class TokenOwner(NamedTuple):
    """Who sent a request."""

    id: str | None
    """Id of the token, the first one if it was rotated; None: no tokens are required."""
    is_admin: bool
    name: str | None
    """The token's comment or id, for people."""


def owner_of(request: web.Request) -> TokenOwner:
    """The owner of the request's token."""
    grant = request.get(GRANT)
    if grant is None:
        return TokenOwner(None, True, None)
    entry = grant.entry
    return TokenOwner(entry.first_id, entry.scope is Scope.ADMIN, entry.name)


def answering_errors(handler: Handler) -> Handler:
    """Answer JsonBodyError with its status, and 503 while the store is busy."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except JsonBodyError as error:
            return error_response(error.status, str(error))
        except (StoreUnavailableError, RowsRefusedError) as error:
            return store_busy(error)

    return answer


async def json_body(request: web.Request, bytes_max: int, expected: str) -> Any:
    """The decoded body; `expected` is the sentence for a body that is not JSON. Raises JsonBodyError."""
    # A page of another site can send a form without a preflight request, but not JSON.
    if request.content_type != "application/json":
        raise JsonBodyError(415, "the body must be JSON, with Content-Type application/json")
    if request.content_length is None or request.content_length > bytes_max:
        raise JsonBodyError(
            413, f"the body must have a Content-Length of at most {bytes_max} bytes"
        )
    try:
        async with asyncio.timeout(_BODY_S):
            return json.loads(await request.read())
    except (TimeoutError, ValueError, RecursionError) as error:
        raise JsonBodyError(400, expected) from error
