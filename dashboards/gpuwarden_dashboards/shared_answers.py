"""Computes an answer once for all pages that are open: whoever asks within its age gets the same bytes."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.query import QueryError

_KEYS_MAX = 64
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(slots=True)
class _Kept:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made_s: float | None = None
    body: bytes = b""
    tag: str = ""
    error: QueryError | None = None


class SharedAnswers:
    """JSON by key, compressed; `age_s`: how old it may be."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def answer(
        self, request: web.Request, key: str, age_s: float, make: Callable[[], Awaitable[str]]
    ) -> web.Response:
        """The answer of `make`, or that it has not changed. Raises QueryError, also the one of a moment ago."""
        kept = self._kept.pop(key, None) or _Kept()
        self._kept[key] = kept
        while len(self._kept) > _KEYS_MAX:
            del self._kept[next(iter(self._kept))]
        async with kept.lock:
            if kept.made_s is None or self._clock.monotonic() - kept.made_s >= age_s:
                await self._make(kept, make)
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

    async def _make(self, kept: _Kept, make: Callable[[], Awaitable[str]]) -> None:
        try:
            kept.body, kept.tag = await asyncio.to_thread(_packed, await make())
            kept.error = None
        except QueryError as error:
            kept.error = error
        kept.made_s = self._clock.monotonic()


def _packed(said: str) -> tuple[bytes, str]:
    raw = said.encode()
    pack = zlib.compressobj(4, wbits=_GZIP)
    return pack.compress(raw) + pack.flush(), f'"{sha256(raw).hexdigest()[:20]}"'
