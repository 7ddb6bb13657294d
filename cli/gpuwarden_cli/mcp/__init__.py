"""Serves the fleet to assistants by the Model Context Protocol (MCP), with the same tools over stdio and HTTP.

`tools` has the tools over the `Querier` port, without the library `mcp`; `server` registers them with the library;
`http` serves `/mcp` under aiohttp. The library is the extra `mcp` and is imported at the first request.
"""
