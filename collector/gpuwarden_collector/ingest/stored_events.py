"""Says which kinds of events have just been stored, so that rules about them need not ask every second."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from gpuwarden.schema import EVENTS

Listener = Callable[[Collection[str]], None]


class StoredEvents:
    """Made on the event loop, which then calls the listener."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener: Listener = lambda kinds: None

    def listen(self, listener: Listener) -> None:
        """Have it called with the kinds of what is stored from now on."""
        self._listener = listener

    def add(self, tables: Mapping[str, Any]) -> None:
        """These Arrow tables are stored, by name. From any thread."""
        rows = tables.get(EVENTS.name)
        if rows is not None and rows.num_rows:
            kinds = rows["kind"].unique().to_pylist()
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._tell, kinds)

    def _tell(self, kinds: Collection[str]) -> None:
        self._listener(kinds)
