"""Serves `/v1/copies`: stores second copies of other collectors' segments; docs/api.md describes it."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from gpuwarden.parameters import whole_number_of
from gpuwarden_collector.auth.gate import sender_of
from gpuwarden_collector.http.app import closing, error_response
from gpuwarden_collector.http.bodies import BodyReader, Busy
from gpuwarden_collector.ingest.decode import RefusedBody
from gpuwarden_collector.storage.disk import NO_ROOM_RETRY_AFTER_S
from gpuwarden_collector.storage.second_copy import (
    PIECE_BYTES_MAX,
    CopyConflictError,
    CopyFolder,
)
from gpuwarden_collector.storage.segment import SegmentError

Handler = Callable[[web.Request], Awaitable[web.Response]]


def copy_routes(
    copies: CopyFolder, bodies: BodyReader, no_room: Callable[[], str | None]
) -> Iterable[web.AbstractRouteDef]:
    """The routes; `no_room`: why the disk has no room, or None."""
    # A sender that timed out may send the same piece again.
    turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def extents(request: web.Request) -> web.Response:
        collector = request.match_info["collector"]
        found = await asyncio.to_thread(copies.extents, collector)
        said = {str(n): {"bytes": size, "salt": salt} for n, (size, salt) in found.items()}
        return web.json_response({"segments": said})

    async def append(request: web.Request) -> web.Response:
        if reason := no_room():
            return error_response(503, reason, NO_ROOM_RETRY_AFTER_S)
        collector = request.match_info["collector"]
        await asyncio.to_thread(copies.claim, collector, sender_of(request))
        segment = _number("segment", request.match_info["segment"])
        offset = _number("offset", request.query.get("offset"))
        oldest = _number("oldest", request.query.get("oldest"))
        body = await bodies.read(request, PIECE_BYTES_MAX)
        match body:
            case RefusedBody(status, reason):
                return closing(request, error_response(status, reason))
            case Busy(reason, retry_after_s, status):
                return closing(request, error_response(status, reason, retry_after_s))
        try:
            async with turns[collector]:
                await asyncio.to_thread(
                    copies.append, collector, segment, offset, body, oldest=oldest
                )
        finally:
            bodies.release(len(body))
        return web.Response(status=204)

    return [
        web.get("/v1/copies/{collector}", _answering(extents)),
        web.put("/v1/copies/{collector}/{segment}", _answering(append)),
    ]


def _answering(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except ValueError as error:
            return error_response(400, str(error))
        except CopyConflictError as error:
            return error_response(409, str(error))
        except (SegmentError, OSError) as error:
            return error_response(503, f"the copy cannot be written: {error}", 5)

    return answer


def _number(name: str, text: str | None) -> int:
    try:
        return whole_number_of(text or "", 0, 10**15 - 1)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
