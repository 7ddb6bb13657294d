"""Serves the fleet to an assistant by the Model Context Protocol on stdio: `gpuwarden mcp`."""

import argparse
import asyncio
from functools import partial
from importlib.util import find_spec
from typing import Any

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.parser import Commands, add_command, add_url
from gpuwarden_cli.read.remote import RemoteQuerier, unjudged_at
from gpuwarden_client.http import CollectorEndpoint

MISSING = "gpuwarden mcp needs the Python package 'mcp', which is not installed: pip install 'gpuwarden[mcp]'"


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "mcp", run_mcp, "answer an assistant's questions by the Model Context Protocol, on stdio",
        "An assistant starts it; its tools only read. The token comes from the environment. It needs the extra `mcp`"
        " (pip install 'gpuwarden[mcp]').",
    )  # fmt: skip
    add_url(parser)


def run_mcp(args: argparse.Namespace) -> int:
    """Serve until standard input ends. Raises CallError for a wrong address or token, StartError."""
    if find_spec("mcp") is None:
        raise StartError(MISSING)
    CollectorEndpoint.of(args.url)  # fail now if the address or the token is wrong
    asyncio.run(_serve(args.url))
    return 0


async def _serve(url: str | None) -> None:
    from mcp.server.stdio import stdio_server

    from gpuwarden_cli.mcp.server import server_of
    from gpuwarden_cli.mcp.tools import FleetTools

    unjudged = partial(asyncio.to_thread, unjudged_at, url)
    server: Any = server_of(FleetTools(RemoteQuerier(url), SystemClock(), unjudged))
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())
