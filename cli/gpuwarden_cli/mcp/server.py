"""Registers the tools with the library `mcp`, for both transports. Needs the extra `mcp`."""

import json
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from gpuwarden import __version__
from gpuwarden_cli.mcp.arguments import schema_of
from gpuwarden_cli.mcp.tools import INSTRUCTIONS, TOOLS, FleetTools
from gpuwarden_client.http import CallError


def server_of(tools: FleetTools) -> Server[Any]:
    """An MCP server with the tools."""
    listed = ListToolsResult(
        tools=[
            Tool(
                name=one.name,
                title=one.title,
                description=one.description,
                input_schema=schema_of(one.takes),
                annotations=ToolAnnotations(
                    read_only_hint=True, destructive_hint=False, open_world_hint=False
                ),
            )
            for one in TOOLS
        ]
    )

    async def list_tools(
        _context: ServerRequestContext[Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return listed

    async def call_tool(
        _context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        try:
            answer = await tools.call(params.name, params.arguments or {})
        except (ValueError, CallError) as error:
            line = " ".join(str(error).split())
            return CallToolResult(content=[TextContent(text=line)], is_error=True)
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        return CallToolResult(content=[TextContent(text=text)], structured_content=answer)

    return Server(
        "gpuwarden",
        version=__version__,
        title="gpuwarden: a fleet of GPUs",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
