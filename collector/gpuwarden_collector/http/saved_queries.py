"""Serves `/v1/queries`: SQL that people have saved under a name; docs/api.md describes it.

Scope read may save queries, so their number and size are bounded, in all and for each token.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from aiohttp import web

from gpuwarden.access import Scope
from gpuwarden.clock import Clock, iso_text
from gpuwarden_collector.auth.gate import GRANT
from gpuwarden_collector.http.app import error_response, store_busy
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.state import SavedQuery, StateFile

QUERIES_MAX = 200
QUERIES_OF_ONE_MAX = 50
NAME_CHARACTERS_MAX = 80
SQL_CHARACTERS_MAX = 20_000
_BODY_BYTES_MAX = 256 * 1024
_BODY_S = 10.0


class _RequestError(ValueError):
    """The request is wrong; the message says what to change, and `status` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def refusal(query: SavedQuery, kept: Sequence[SavedQuery], *, is_admin: bool) -> str | None:
    """Why a query cannot be saved in addition to `kept`; None: it can."""
    others = [one for one in kept if one.name != query.name]
    if len(others) < len(kept):
        (old,) = (one for one in kept if one.name == query.name)
        if not is_admin and old.saved_by != query.saved_by:
            return f"{query.name} is saved by {old.author or 'somebody else'}: choose another name"
    if len(others) >= QUERIES_MAX:
        return f"{QUERIES_MAX} queries are saved, which is the limit: delete one first"
    if sum(one.saved_by == query.saved_by for one in others) >= QUERIES_OF_ONE_MAX:
        return f"you have saved {QUERIES_OF_ONE_MAX} queries, which is the limit: delete one first"
    return None


def query_routes(state: StateFile, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """The routes for the application."""

    async def listed(request: web.Request) -> web.Response:
        saver, is_admin, _ = _caller(request)
        kept = await asyncio.to_thread(state.saved_queries)
        found = [
            {
                "name": one.name,
                "sql": one.sql,
                "author": one.author,
                "saved_at": iso_text(one.saved_at),
                "mine": is_admin or one.saved_by == saver,
            }
            for one in kept
        ]
        return web.json_response({"queries": found})

    async def save(request: web.Request) -> web.Response:
        name, sql = await _asked(request)
        saver, is_admin, author = _caller(request)
        query = SavedQuery(name, sql, saver, author, clock.now())

        def saved() -> str | None:
            with state.writing() as writing:
                reason = refusal(query, state.saved_queries(), is_admin=is_admin)
                if reason is None:
                    writing.save_query(query)
                return reason

        if (reason := await asyncio.to_thread(saved)) is not None:
            return error_response(409, reason)
        return web.json_response({"name": name}, status=201)

    async def delete(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        saver, is_admin, _ = _caller(request)

        def deleted() -> web.Response:
            with state.writing() as writing:
                found = [one for one in state.saved_queries() if one.name == name]
                if not found:
                    return error_response(404, f"no query {name!r} is saved")
                if not is_admin and found[0].saved_by != saver:
                    return error_response(
                        403, "only the token that saved it and an admin may delete it"
                    )
                writing.delete_query(name)
            return web.Response(status=204)

        return await asyncio.to_thread(deleted)

    return [
        web.get("/v1/queries", _answering(listed)),
        web.post("/v1/queries", _answering(save)),
        web.delete("/v1/queries/{name}", _answering(delete)),
    ]


Handler = Callable[[web.Request], Awaitable[web.Response]]


def _answering(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except _RequestError as error:
            return error_response(error.status, str(error))
        except (StoreUnavailableError, RowsRefusedError) as error:
            return store_busy(error)

    return answer


def _caller(request: web.Request) -> tuple[str | None, bool, str | None]:
    """The token of the request (its first id), whether it is an admin's, and its name."""
    grant = request.get(GRANT)
    if grant is None:
        return None, True, None
    entry = grant.entry
    return entry.first_id, entry.scope is Scope.ADMIN, entry.name


async def _asked(request: web.Request) -> tuple[str, str]:
    """Read name and SQL from the body. Raises _RequestError."""
    # A page of another site can send a form without a preflight request, but not JSON.
    if request.content_type != "application/json":
        raise _RequestError(415, "the body must be JSON, with Content-Type application/json")
    if (request.content_length or _BODY_BYTES_MAX + 1) > _BODY_BYTES_MAX:
        raise _RequestError(
            413, f"the body must have a Content-Length of at most {_BODY_BYTES_MAX} bytes"
        )
    try:
        async with asyncio.timeout(_BODY_S):
            document: Any = json.loads(await request.read())
        name, sql = document["name"].strip(), document["sql"].strip()
        sql.encode()
    except (TimeoutError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _RequestError(400, "the body must be JSON with name and sql, both text") from error
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise _RequestError(400, f"name must have 1 to {NAME_CHARACTERS_MAX} printable characters")
    if not 0 < len(sql) <= SQL_CHARACTERS_MAX or "\0" in sql:
        raise _RequestError(400, f"sql must have 1 to {SQL_CHARACTERS_MAX} characters, without NUL")
    return name, sql
