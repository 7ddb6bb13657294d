"""Serves `POST /v1/enroll`: registers the token that a node has made for itself, by its hash."""

import asyncio
import json
from collections.abc import Callable, Collection
from pathlib import Path

from aiohttp import web

from gpuwarden.access import DIGEST, ENROLL_PATH, ID
from gpuwarden.clock import Clock
from gpuwarden.node_name import check_node_name
from gpuwarden_collector.auth import token_file
from gpuwarden_collector.auth.gate import GRANT
from gpuwarden_collector.auth.routes import BODY_BYTES_MAX, BODY_S, error_answer
from gpuwarden_collector.auth.token_file import TokenFileError
from gpuwarden_collector.auth.token_store import TokenEntry, TokenStore, TokenStoreError


def enrolment_route(
    tokens: Path,
    clock: Clock,
    changed: Callable[[], None],
    stored_nodes: Callable[[], Collection[str]],
) -> web.AbstractRouteDef:
    """Make the route, which calls `changed` after it has written the file of tokens. `stored_nodes`: the nodes that have
    rows."""

    async def enroll(request: web.Request) -> web.Response:
        grant = request.get(GRANT)
        if grant is None:
            return error_answer(409, "this collector requires no tokens: only set collector_url")
        try:
            node, name, digest = await _asked(request)
        except ValueError as error:
            return error_answer(400, str(error))
        now, stored = clock.now(), stored_nodes()

        def change(store: TokenStore) -> tuple[TokenStore, TokenEntry]:
            return store.enrolled(grant.entry.id, node, name, digest, now, stored)

        try:
            entry = await asyncio.to_thread(token_file.edit, tokens, change)
        except TokenStoreError as error:
            return error_answer(409, str(error))
        except TokenFileError as error:
            return error_answer(503, str(error))
        changed()
        return web.json_response({"id": entry.id, "node": entry.node}, status=201)

    return web.post(ENROLL_PATH, enroll)


async def _asked(request: web.Request) -> tuple[str, str, str]:
    """Node, and the id and hash of its token. Raises ValueError."""
    if (request.content_length or BODY_BYTES_MAX + 1) > BODY_BYTES_MAX:
        raise ValueError(f"the body must be JSON of at most {BODY_BYTES_MAX} bytes")
    try:
        async with asyncio.timeout(BODY_S):
            document = json.loads(await request.content.readexactly(request.content_length or 0))
        node, name, digest = (document[key] for key in ("node", "id", "sha256"))
    except (TimeoutError, ValueError, TypeError, KeyError, EOFError, RecursionError) as error:
        raise ValueError("the body must be JSON with node, id and sha256") from error
    if not isinstance(name, str) or not ID.fullmatch(name):
        raise ValueError("id must be 12 small letters and digits")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise ValueError("sha256 must be 64 hexadecimal digits")
    return check_node_name(node), name, digest
