"""Reads request parameters, and makes the answers: pages, JSON for their scripts, errors, shared answers."""

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from aiohttp import web

from gpuwarden.access import CALLER
from gpuwarden.clock import INSTANT_MAX_MS, Clock, instant_of
from gpuwarden.parameters import whole_number_of
from gpuwarden.query import QueryError
from gpuwarden.teams import Team
from gpuwarden_dashboards.templates import Templates

SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy: names of nodes and jobs are untrusted, and none may run as a script."""
_HEADERS = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TITLES = {400: "Wrong request", 404: "Not found", 503: "Not available now"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_KEYS_MAX = 64
_KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of kept answers, compressed."""
_GZIP = 16 + zlib.MAX_WBITS


class ParameterError(ValueError):
    """The request is wrong; the message says what to send instead."""


class NotKnownError(LookupError):
    """Nothing has that name; the message says why that may be."""


def choice(request: web.Request, name: str, usual: str, among: Collection[str]) -> str:
    """A parameter that is one of a few words. Raises ParameterError, which lists them."""
    value = request.query.get(name, usual)
    if value not in among:
        raise ParameterError(f"{name} must be one of {', '.join(among)}")
    return value


def whole(request: web.Request, name: str, usual: int) -> int:
    """A whole number, at most the last millisecond of the year 9998. Raises ParameterError."""
    text = request.query.get(name)
    if text is None:
        return usual
    try:
        return whole_number_of(text, 0, INSTANT_MAX_MS)
    except ValueError as error:
        raise ParameterError(f"{name} {error}") from error


def instant(request: web.Request, name: str, usual: datetime) -> datetime:
    """A time of the years 1970 to 9998: ISO 8601 (UTC without a zone) or milliseconds since 1970. Raises ParameterError."""
    text = request.query.get(name, "").strip()
    if not text:
        return usual
    try:
        return instant_of(text)
    except ValueError as error:
        raise ParameterError(f"{name} {error}") from None


def given_range(request: web.Request, now: datetime) -> tuple[datetime, datetime] | None:
    """`begin` and `end` of the address, by default now and a week before; None: it has neither. Raises ParameterError."""
    if not {"begin", "end"} & set(request.query):
        return None
    end = instant(request, "end", now)
    begin = instant(request, "begin", end - timedelta(days=7))
    if begin >= end:
        raise ParameterError("the end must be after the begin")
    return begin, end


def fixed_range(begin: datetime, end: datetime) -> dict[str, str]:
    """Parameters `begin` and `end`, for an address that shows the same tomorrow."""
    return {"begin": f"{begin:%Y-%m-%dT%H:%M}", "end": f"{end:%Y-%m-%dT%H:%M}"}


def html(content: str) -> web.Response:
    """A page."""
    answer = web.Response(text=content, content_type="text/html", headers=_HEADERS)
    answer.enable_compression()
    return answer


def data(content: Any) -> web.Response:
    """JSON for a page's script."""
    body = json.dumps(content, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    answer = web.Response(text=body, content_type="application/json", headers=headers)
    answer.enable_compression()
    return answer


def answering(templates: Templates, handler: Handler) -> Handler:
    """Turn a handler's errors into answers: 400 for ParameterError, 404 for NotKnownError, 503 for QueryError.
    The answer is a page, under `/v1/` JSON."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ParameterError as error:
            status, reason = 400, str(error)
        except NotKnownError as error:
            status, reason = 404, str(error)
        except QueryError as error:
            status, reason = 503, f"the data cannot be read now: {error}"
        if request.path.startswith("/v1/"):
            return web.json_response({"error": reason, "status": status}, status=status)
        page = html(
            templates.render("error.html", title=_TITLES[status], reason=reason, status=status)
        )
        page.set_status(status)
        return page

    return answer


@dataclass(slots=True)
class _Kept:
    age_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made_s: float | None = None
    body: bytes = b""
    tag: str = ""
    error: QueryError | ParameterError | None = None

    def is_over(self, now_s: float) -> bool:
        """Whether its age has passed, and it is not being made again."""
        return (
            self.made_s is not None and now_s - self.made_s >= self.age_s and not self.lock.locked()
        )


class SharedAnswers:
    """Makes an answer once for all open pages of readers of the same rows: requests within its age get the same bytes. An answer whose age has
    passed is dropped with the next request, and the oldest ones while all are more than 64 or 32 MiB."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[Team | None, str], _Kept] = {}

    async def answer(
        self, request: web.Request, key: str, age_s: float, make: Callable[[], Awaitable[str]]
    ) -> web.Response:
        """The JSON of `make`, compressed, at most `age_s` old; 304 if the client has it. Raises QueryError and
        ParameterError, also those that are kept for this key."""
        of = CALLER.get().team, key
        now_s = self._clock.monotonic()
        for name in [name for name, one in self._kept.items() if one.is_over(now_s)]:
            del self._kept[name]
        kept = self._kept.pop(of, None) or _Kept(age_s)
        self._kept[of] = kept
        self._make_room()
        async with kept.lock:
            if kept.made_s is None or self._clock.monotonic() - kept.made_s >= age_s:
                await self._make(kept, make)
                self._make_room()
        if kept.error is not None:
            raise kept.error
        headers = {
            "Cache-Control": "no-store",
            "ETag": kept.tag,
            "Vary": "Accept-Encoding",
            "X-Content-Type-Options": "nosniff",
        }
        if request.headers.get("If-None-Match") == kept.tag:
            return web.Response(status=304, headers=headers)
        body = kept.body
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = zlib.decompress(body, _GZIP)
        return web.Response(body=body, content_type="application/json", headers=headers)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all kept answers."""
        return sum(len(one.body) for one in self._kept.values())

    def _make_room(self) -> None:
        while len(self._kept) > _KEYS_MAX or self.kept_bytes > _KEPT_BYTES_MAX:
            del self._kept[next(iter(self._kept))]

    async def _make(self, kept: _Kept, make: Callable[[], Awaitable[str]]) -> None:
        try:
            kept.body, kept.tag = await asyncio.to_thread(_packed, await make())
            kept.error = None
        except (QueryError, ParameterError) as error:
            kept.error = error
            kept.body = b""
        kept.made_s = self._clock.monotonic()


def _packed(said: str) -> tuple[bytes, str]:
    raw = said.encode()
    pack = zlib.compressobj(4, wbits=_GZIP)
    return pack.compress(raw) + pack.flush(), f'"{sha256(raw).hexdigest()[:20]}"'
