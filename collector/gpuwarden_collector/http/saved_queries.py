"""Serves `/v1/queries`: SQL that people have saved under a name; docs/api.md describes it.

Scope read may save queries, so their number and size are bounded, in all and for each token. Each token has names of its own,
so that no answer tells which names others use.
"""

import asyncio
from collections.abc import Iterable, Sequence

from aiohttp import web

from gpuwarden.access import CALLER
from gpuwarden.clock import Clock, iso_text
from gpuwarden_collector.http.app import error_response
from gpuwarden_collector.http.json_bodies import (
    JsonBodyError,
    answering_errors,
    json_body,
    owner_of,
)
from gpuwarden_collector.storage.state import SavedQuery, StateFile

QUERIES_MAX = 200
QUERIES_OF_ONE_MAX = 50
NAME_CHARACTERS_MAX = 80
SQL_CHARACTERS_MAX = 20_000
_BODY_BYTES_MAX = 256 * 1024


def refusal(query: SavedQuery, kept: Sequence[SavedQuery]) -> str | None:
    """Why a query cannot be saved in addition to `kept`; None: it can."""
    key = (query.saved_by, query.name)
    others = [one for one in kept if (one.saved_by, one.name) != key]
    if len(others) >= QUERIES_MAX:
        return f"{QUERIES_MAX} queries are saved, which is the limit: delete one first"
    if sum(one.saved_by == query.saved_by for one in others) >= QUERIES_OF_ONE_MAX:
        return f"you have saved {QUERIES_OF_ONE_MAX} queries, which is the limit: delete one first"
    return None


def query_routes(state: StateFile, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """The routes for the application."""

    async def listed(request: web.Request) -> web.Response:
        saver, is_admin, _ = _saver(request)
        of_team = CALLER.get().team is not None  # queries may name things of other teams
        kept = await asyncio.to_thread(state.saved_queries)
        found = [
            {
                "name": one.name,
                "sql": one.sql,
                "author": one.author,
                "saved_by": one.saved_by,
                "saved_at": iso_text(one.saved_at),
                "mine": is_admin or one.saved_by == saver,
            }
            for one in kept
            if not of_team or one.saved_by == saver
        ]
        return web.json_response({"queries": found})

    async def save(request: web.Request) -> web.Response:
        name, sql = await _asked(request)
        saver, _, author = _saver(request)
        query = SavedQuery(saver, name, sql, author, clock.now())

        def saved() -> str | None:
            with state.writing() as writing:
                reason = refusal(query, state.saved_queries())
                if reason is None:
                    writing.save_query(query)
                return reason

        if (reason := await asyncio.to_thread(saved)) is not None:
            return error_response(409, reason)
        return web.json_response({"name": name}, status=201)

    async def delete(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        saver, is_admin, _ = _saver(request)
        saved_by = request.query.get("saved_by", saver)

        def deleted() -> bool:
            with state.writing() as writing:
                return writing.delete_query(saved_by, name)

        if (saved_by != saver and not is_admin) or not await asyncio.to_thread(deleted):
            return error_response(404, f"you have saved no query {name!r}")
        return web.Response(status=204)

    return [
        web.get("/v1/queries", answering_errors(listed)),
        web.post("/v1/queries", answering_errors(save)),
        web.delete("/v1/queries/{name}", answering_errors(delete)),
    ]


def _saver(request: web.Request) -> tuple[str, bool, str | None]:
    """Id of the request's token, whether it is an admin's, and the name for people."""
    token, is_admin, name = owner_of(request)
    return token or "", is_admin, name


async def _asked(request: web.Request) -> tuple[str, str]:
    """Read name and SQL from the body. Raises JsonBodyError."""
    wrong = "the body must be JSON with name and sql, both text"
    document = await json_body(request, _BODY_BYTES_MAX, wrong)
    try:
        name, sql = document["name"].strip(), document["sql"].strip()
        sql.encode()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JsonBodyError(400, wrong) from error
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or not name.isprintable():
        raise JsonBodyError(400, f"name must have 1 to {NAME_CHARACTERS_MAX} printable characters")
    if not 0 < len(sql) <= SQL_CHARACTERS_MAX or "\0" in sql:
        raise JsonBodyError(400, f"sql must have 1 to {SQL_CHARACTERS_MAX} characters, without NUL")
    return name, sql
