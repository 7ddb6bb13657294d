"""Looks up the collector's address on a daemon thread.

asyncio's own lookup runs in the default thread pool, which the interpreter waits for at its end: a
name server that does not answer would hold a stopped agent for as long as it takes to give up.
"""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from gpuwarden_agent.worker import Worker, WorkerBusyError


class DaemonResolver(AbstractResolver):
    """getaddrinfo(3), one call at a time. Raises OSError when the name has no address."""

    def __init__(self) -> None:
        self._worker = Worker("resolve")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses of a host, in the system's order."""
        try:
            lookup = self._worker.submit(
                socket.getaddrinfo,
                host,
                port,
                family,
                socket.SOCK_STREAM,
                flags=socket.AI_ADDRCONFIG,
            )
        except WorkerBusyError as error:
            raise OSError(f"name service does not answer: {error}") from error
        return [
            ResolveResult(
                hostname=host,
                host=_with_scope(address),
                port=port,
                family=found,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for found, _, protocol, _, address in await lookup
        ]

    async def close(self) -> None:
        """Let the thread end; a lookup that hangs is left to it."""
        self._worker.close()


def _with_scope(address: tuple[object, ...]) -> str:
    """The numeric host; link-local IPv6 addresses mean something on their interface only."""
    scope = address[3] if len(address) == 4 else 0
    return f"{address[0]}%{scope}" if scope else str(address[0])
