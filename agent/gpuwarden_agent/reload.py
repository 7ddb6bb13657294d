"""Reads the settings again while the agent runs (SIGHUP, `systemctl reload`).

The agent applies live how it reaches its collectors and how it logs. It reads token and authority
again even where their paths are the same. Settings with an error change nothing; the error is one
line of the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from gpuwarden import logs
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import SettingsError, changed
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.ship.credentials import Access
from gpuwarden_agent.ship.transport import Transport, open_transport

log = logging.getLogger(__name__)

LIVE = frozenset({"collector_url", "token_file", "tls_ca", "log_level", "log_format"})
"""Settings that take effect on a reload."""


@dataclass(frozen=True, slots=True)
class Reload:
    """When to read the settings again, and how."""

    asked: asyncio.Event
    load: Callable[[], AgentSettings]
    """Raises SettingsError."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Names of settings that changed."""

    live: tuple[str, ...]
    restart: tuple[str, ...]


def difference(before: AgentSettings, after: AgentSettings) -> Difference:
    """Settings that changed, by whether they take effect live."""
    names = changed(before, after)
    live = tuple(name for name in names if name in LIVE)
    return Difference(live, tuple(name for name in names if name not in LIVE))


Use = Callable[[Sequence[Transport]], Awaitable[None]]


class CollectorTransports:
    """Transports to the collectors, which can be replaced while batches are sent."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def open(self, settings: AgentSettings) -> Sequence[Transport]:
        """Open the first transports. Raises StartError."""
        transports, self._stack = await self._opened(settings)
        return transports

    async def replace(self, settings: AgentSettings, use: Use) -> None:
        """Open new transports, `use` them, and close the old ones. Raises StartError, and then keeps the old ones."""
        transports, stack = await self._opened(settings)
        before, self._stack = self._stack, stack
        try:
            await use(transports)
        finally:
            await before.aclose()

    async def close(self) -> None:
        """Close the transports."""
        await self._stack.aclose()

    async def _opened(self, settings: AgentSettings) -> tuple[Sequence[Transport], AsyncExitStack]:
        access = Access(settings.token_file, settings.tls_ca)
        async with AsyncExitStack() as stack:
            transports = [
                await stack.enter_async_context(open_transport(url, access=access))
                for url in settings.collectors
            ]
            return transports, stack.pop_all()


async def keep_reloading(
    reload: Reload, settings: AgentSettings, connections: CollectorTransports, use: Use
) -> None:
    """Read the settings again whenever `reload` asks for it, until cancelled."""
    while True:
        await reload.asked.wait()
        reload.asked.clear()
        try:
            after = reload.load()
            await connections.replace(after, use)
        except (SettingsError, StartError) as error:
            log.error(
                "not reloaded; the previous settings stay in force", extra={"why": str(error)}
            )
            continue
        found = difference(settings, after)
        if {"log_level", "log_format"} & {*found.live}:
            logs.setup(after.log_level, after.log_format)
        log.info("reloaded", extra={"changed": ", ".join(found.live) or "no setting"})
        if found.restart:
            log.warning("needs a restart", extra={"settings": ", ".join(found.restart)})
        settings = replace(settings, **{name: getattr(after, name) for name in LIVE})
