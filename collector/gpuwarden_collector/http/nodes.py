"""Serves `DELETE /v1/nodes/{node}`: takes a node as one that has left. docs/api.md is the full text."""

import logging
from collections.abc import Iterable

from aiohttp import web

from gpuwarden_collector.http.app import error_response
from gpuwarden_collector.ingest.writer import NodeForgotten, Writer
from gpuwarden_collector.storage.commit import WriterStopped
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError

log = logging.getLogger(__name__)


def node_routes(writer: Writer) -> Iterable[web.AbstractRouteDef]:
    """For the application."""

    async def forget(request: web.Request) -> web.Response:
        node = request.match_info["node"]
        try:
            outcome = await writer.forget_node(node)
        except (StoreUnavailableError, RowsRefusedError, WriterStopped) as error:
            return error_response(503, f"the store cannot take it now: {error}", 5)
        match outcome:
            case NodeForgotten.UNKNOWN:
                return error_response(404, f"there is no node {node!r}")
            case NodeForgotten.SENDS:
                return error_response(
                    409, f"{node} sends data: stop its agent first, and it leaves by itself"
                )
        log.info("node forgotten", extra={"node": node})
        return web.Response(status=204)

    return [web.delete("/v1/nodes/{node}", forget)]
