"""Serves commands for the collector's user on a socket in the data folder, `control.sock`.

Each connection has one request and one answer, a line each: `backup` makes a copy of the store, and the
answer is a JSON object with `path`, or `error` with a sentence. HTTP does not offer these commands, because
it may need no credentials; only the collector's user and root can open the socket.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuwarden.data_folder import CONTROL
from gpuwarden.lifecycle import StartError

NAME = CONTROL
_LINE_BYTES_MAX = 1_000
_ASK_S = 5.0

Command = Callable[[], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def serving(data_dir: Path, commands: Mapping[str, Command]) -> AsyncIterator[None]:
    """Answer requests within the block. Raises StartError."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ASK_S):
                line = await reader.readline()
            command = commands.get(line.decode("utf-8", "replace").strip())
            answer = await command() if command else {"error": "no such command"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (TimeoutError, ValueError, ConnectionError):
            pass  # the client has gone, or sent no command
        finally:
            writer.close()

    path = data_dir / NAME
    try:
        sock = _listening(path)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror or error}: choose another --data-dir") from error
    server = await asyncio.start_unix_server(serve, sock=sock, limit=_LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        with suppress(OSError):
            path.unlink()


def ask(data_dir: Path, command: str, timeout_s: float) -> dict[str, Any] | None:
    """Send a command to the collector of a folder; its answer, or None: no collector runs.

    Raises PermissionError, TimeoutError, and ConnectionError when the collector ends meanwhile.
    """
    with _short(data_dir / NAME) as address, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        sock.sendall(command.encode() + b"\n")
        with sock.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise ConnectionError("the collector ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _listening(path: Path) -> socket.socket:
    # The store is locked by this process: an existing socket is left from an earlier one.
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            sock.bind(address)
        path.chmod(0o600)
        sock.listen(8)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of a path that fits into a socket's address, 107 bytes."""
    if len(os.fsencode(path)) < 108 or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
