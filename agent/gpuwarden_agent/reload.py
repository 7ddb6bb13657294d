"""Reads settings anew while the agent runs (SIGHUP, `systemctl reload`).

What can change live is how it reaches its collectors and how it logs. Token and authority are read again even where
their paths are the same. What is wrong changes nothing and is one line of the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from gpuwarden import logs
from gpuwarden.clock import Clock
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import SettingsError, changed
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.ship.credentials import Access
from gpuwarden_agent.ship.transport import Transport, open_transport

log = logging.getLogger(__name__)

LIVE = frozenset(
    {"collector_url", "collector_urls", "token_file", "tls_ca", "log_level", "log_format"}
)
"""Settings that take effect on a reload."""


@dataclass(frozen=True, slots=True)
class Reload:
    """When to read settings anew, and how."""

    asked: asyncio.Event
    load: Callable[[], AgentSettings]
    """Raises SettingsError."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Names of settings that are others now."""

    live: tuple[str, ...]
    restart: tuple[str, ...]


def difference(before: AgentSettings, after: AgentSettings) -> Difference:
    """What changed, by whether it can change live."""
    names = changed(before, after)
    live = tuple(name for name in names if name in LIVE)
    return Difference(live, tuple(name for name in names if name not in LIVE))


Use = Callable[[Sequence[Transport]], Awaitable[None]]


class Way:
    """The way to the collectors: transports that can be replaced while batches are sent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = AsyncExitStack()

    async def begin(self, settings: AgentSettings) -> Sequence[Transport]:
        """The first transports. Raises StartError."""
        transports, self._open = await self._opened(settings)
        return transports

    async def replace(self, settings: AgentSettings, use: Use) -> None:
        """Have others used, and close those before. Raises StartError, and then nothing has changed."""
        transports, stack = await self._opened(settings)
        before, self._open = self._open, stack
        try:
            await use(transports)
        finally:
            await before.aclose()

    async def close(self) -> None:
        """Close the transports."""
        await self._open.aclose()

    async def _opened(self, settings: AgentSettings) -> tuple[Sequence[Transport], AsyncExitStack]:
        access = Access(settings.token_file, settings.tls_ca)
        async with AsyncExitStack() as stack:
            transports = [
                await stack.enter_async_context(open_transport(url, self._clock, access=access))
                for url in settings.collectors
            ]
            return transports, stack.pop_all()


async def keep_reloading(reload: Reload, settings: AgentSettings, way: Way, use: Use) -> None:
    """Read `settings` anew whenever it is asked for, until cancelled."""
    while True:
        await reload.asked.wait()
        reload.asked.clear()
        try:
            after = reload.load()
            await way.replace(after, use)
        except (SettingsError, StartError) as error:
            log.error("not reloaded; the old settings go on", extra={"why": str(error)})
            continue
        found = difference(settings, after)
        if {"log_level", "log_format"} & {*found.live}:
            logs.setup(after.log_level, after.log_format)
        log.info("reloaded", extra={"changed": ", ".join(found.live) or "no setting"})
        if found.restart:
            log.warning("needs a restart", extra={"settings": ", ".join(found.restart)})
        settings = replace(settings, **{name: getattr(after, name) for name in LIVE})
