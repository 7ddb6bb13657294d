"""Serves the fleet to assistants by the Model Context Protocol (MCP): the same tools over stdio and HTTP.

`tools` has what they do, through the `Querier` port and without the library; `server` gives them to the
library `mcp`; `http` serves that under aiohttp as `/mcp`. The library is of the extra `mcp`, and is imported
when someone first asks.
"""
