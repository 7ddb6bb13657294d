"""Queries a collector from Python: `fleet = gpuwarden_client.connect()`, then `fleet.sql("…").df()`."""

from gpuwarden_client.asynchronous import AsyncFleet, AsyncQuery, connect_async
from gpuwarden_client.fleet import Fleet, connect
from gpuwarden_client.http import CallError, RefusedError
from gpuwarden_client.query import FleetQuery

__all__ = [
    "AsyncFleet", "AsyncQuery", "CallError", "Fleet", "FleetQuery", "RefusedError", "connect", "connect_async",
]  # fmt: skip
