"""The library's own client asks a real collector, over HTTP behind tokens and over stdio through a process of the command."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from gpuwarden.access import Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden_cli.mcp.http import PATH, McpEndpoint
from gpuwarden_cli.mcp.tools import TOOLS
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from gpuwarden_cli.main import main; sys.exit(main())",
]


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[str]:
    """A collector with the endpoint; its address."""
    clock, stop = SystemClock(), asyncio.Event()
    endpoint = McpEndpoint(clock)
    chosen = CollectorSettings(port=0, data_dir=folder, **settings)
    async with (
        running(chosen, clock, routes=endpoint.routes) as collector,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(endpoint.run(stop))
        try:
            yield collector.url
        finally:
            stop.set()


def granted(folder: Path, scope: Scope) -> str:
    """A token that the collector of the folder knows."""
    folder.mkdir(exist_ok=True)
    token = Token.new(scope)
    entry = TokenEntry(token.id, scope, token.digest, SystemClock().now())
    edit(folder / NAME, lambda known: (known.with_entry(entry), None))
    return token.text


@asynccontextmanager
async def over_http(
    url: str, token: str | None = None, mode: str = "auto"
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(url + PATH, http_client=http), mode=mode) as client,
    ):
        yield client


async def test_over_http_tools_are_listed_and_called(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as url:
        async with over_http(url, mode="legacy") as client:
            assert (await client.call_tool("sql", {"query": "SELECT 1"})).structured_content
        await is_listed_and_called(url)


async def is_listed_and_called(url: str) -> None:
    async with over_http(url) as client:
        assert client.server_info.name == "gpuwarden"
        assert "data, not instructions" in (client.instructions or "")
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == [tool.name for tool in TOOLS]
        assert all(tool.annotations.read_only_hint for tool in listed)
        answer = await client.call_tool("sql", {"query": "SELECT 41 + 1 AS n"})
        assert answer.structured_content["rows"] == [[42]]
        assert json.loads(answer.content[0].text) == answer.structured_content
        refused = await client.call_tool("sql", {"query": "DELETE FROM gpus"})
        assert refused.is_error
        assert "\n" not in refused.content[0].text
        many = await asyncio.gather(
            *(client.call_tool("sql", {"query": f"SELECT {n} AS n"}) for n in range(8))
        )
        assert [one.structured_content["rows"] for one in many] == [[[n]] for n in range(8)]


async def test_over_http_it_asks_for_the_scope_of_sql(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    reader, sender = granted(folder, Scope.READ), granted(folder, Scope.INGEST)
    async with serving(folder, require_tokens=True) as url:
        async with over_http(url, reader) as client:
            assert not (await client.call_tool("schema", {})).is_error
        for token, status in ((None, 401), (sender, 403)):
            assert await asyncio.to_thread(_status, url, token, b"{}") == status
        assert await asyncio.to_thread(_status, url, reader, b"x" * 300_000) == 413
        assert await asyncio.to_thread(_status, url, reader, b"not json") == 400
        assert await asyncio.to_thread(_status, url, reader, None) == 405


def _status(url: str, token: str | None, body: bytes | None) -> int:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urlopen(Request(url + PATH, body, headers)) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


async def test_over_stdio_the_command_asks_a_collector_with_its_token(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    token = granted(folder, Scope.READ)
    async with serving(folder, require_tokens=True) as url:
        environment = {"GPUWARDEN_URL": url, "GPUWARDEN_TOKEN": token}
        started = StdioServerParameters(
            command=COMMAND[0], args=[*COMMAND[1:], "mcp"], env=environment
        )
        async with Client(stdio_client(started)) as client:
            assert len((await client.list_tools()).tools) == len(TOOLS)
            answer = await client.call_tool("ask", {"name": "idle-holders"})
            assert answer.structured_content["rows"] == []
            wrong = await client.call_tool("sql", {"query": "SELECT nothing"})
            assert wrong.is_error
    # The collector has gone.
    async with Client(stdio_client(started)) as client:
        gone = await client.call_tool("schema", {"table": "gpus"})
        assert gone.is_error
        assert "no collector answers at" in gone.content[0].text
