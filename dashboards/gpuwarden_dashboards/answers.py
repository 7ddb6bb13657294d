"""Makes HTTP answers of pages and of their data, and answers what cannot be read."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from gpuwarden.query import QueryError
from gpuwarden_dashboards.request import NotKnownError, ParameterError
from gpuwarden_dashboards.templates import Templates

SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy: names of nodes and jobs come from outside; none of them may run."""
_HEADERS = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TITLES = {400: "Not understood", 404: "Not known here", 503: "Not now"}
Handler = Callable[[web.Request], Awaitable[web.Response]]


def html(content: str) -> web.Response:
    """A page."""
    answer = web.Response(text=content, content_type="text/html", headers=_HEADERS)
    answer.enable_compression()
    return answer


def data(content: Any) -> web.Response:
    """JSON for the script of a page."""
    body = json.dumps(content, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    answer = web.Response(text=body, content_type="application/json", headers=headers)
    answer.enable_compression()
    return answer


def answering(templates: Templates, handler: Handler) -> Handler:
    """Answers 400 where a handler refuses what it was asked, 404 where nothing is known of it, 503 where the
    fleet cannot be read now: for people as a page, under `/v1/` as JSON."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except ParameterError as error:
            status, reason = 400, str(error)
        except NotKnownError as error:
            status, reason = 404, str(error)
        except QueryError as error:
            status, reason = 503, f"the fleet cannot be read now: {error}"
        if request.path.startswith("/v1/"):
            return web.json_response({"error": reason, "status": status}, status=status)
        page = html(templates.render("error.html", title=_TITLES[status], reason=reason))
        page.set_status(status)
        return page

    return answer
