"""Relays requests to a collector, records what it acknowledged, and can be slow or mute.

`python -m bench.chaos.witness FOLDER LISTEN PORT URL`: each batch that was answered 204 goes to `FOLDER/acknowledged`,
whether or not the answer got to its agent. URL is the collector's; `FOLDER/delay_s` holds seconds by which
requests and answers are late; while `FOLDER/mute` exists, no answer is given and no connection closed.
"""

import asyncio
import json
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

ACKNOWLEDGED, DELAY_S, MUTE, STATUS = "acknowledged", "delay_s", "mute", "status"
SESSION = web.AppKey("session", aiohttp.ClientSession)
_HEAD = struct.Struct("<II")
_BODY_BYTES_MAX = 64 * 1024 * 1024
_KEPT_HEADERS = ("Retry-After", "Content-Type")


def read(folder: Path) -> Iterator[tuple[dict[str, str], bytes]]:
    """Headers and body of each batch that was acknowledged."""
    path = folder / ACKNOWLEDGED
    if not path.exists():
        return
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            headers, body = _HEAD.unpack(head)
            yield json.loads(file.read(headers)), file.read(body)


def relay(folder: Path, target: str) -> web.Application:
    """The relay to a collector."""

    async def delayed() -> None:
        path = folder / DELAY_S
        if path.exists():
            await asyncio.sleep(float(path.read_text()))
        while (folder / MUTE).exists():  # noqa: ASYNC110  another process makes it
            await asyncio.sleep(0.1)

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        await delayed()
        headers = {k: v for k, v in request.headers.items() if k not in ("Host", "Content-Length")}
        url = f"{target}{request.rel_url}"
        try:
            session = request.app[SESSION]
            async with session.request(request.method, url, data=body, headers=headers) as answer:
                said = await answer.read()
        except (aiohttp.ClientError, OSError):
            # Like a collector that does not run: the connection ends without an answer.
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPBadGateway from None
        if request.path.endswith("/ingest"):
            if answer.status == 204:
                text = json.dumps(headers).encode()
                with (folder / ACKNOWLEDGED).open("ab") as file:
                    file.write(_HEAD.pack(len(text), len(body)) + text + body)
            with (folder / STATUS).open("a") as file:
                file.write(f"{time.time():.3f}\t{answer.status}\t{said[:200]!r}\n")
        await delayed()
        kept = {k: v for k, v in answer.headers.items() if k not in ("Transfer-Encoding",)}
        kept = {k: kept[k] for k in kept if k in _KEPT_HEADERS or k.startswith("Gpuwarden-")}
        return web.Response(status=answer.status, body=said or None, headers=kept)

    async def with_session(app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(auto_decompress=False) as app[SESSION]:
            yield

    app = web.Application(client_max_size=_BODY_BYTES_MAX)
    app.router.add_route("*", "/{path:.*}", handle)
    app.cleanup_ctx.append(with_session)
    return app


async def main(folder: Path, listen: str, port: int, target: str) -> None:
    """Relay until the process is ended."""
    runner = web.AppRunner(relay(folder, target), access_log=None, auto_decompress=False)
    await runner.setup()
    await web.TCPSite(runner, listen, port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
