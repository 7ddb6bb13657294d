"""Keeps an engine on the rules that the folders hold: reads them anew when asked, and goes on with the
old ones where the new are wrong."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuwarden_rules.book import Book, load_book
from gpuwarden_rules.engine import Engine
from gpuwarden_rules.marks import RuleFileError

log = logging.getLogger(__name__)


class Keeper:
    """An engine and the folders that its rules come from."""

    def __init__(self, engine: Engine, folders: Sequence[Path]) -> None:
        self.engine = engine
        self._folders = tuple(folders)

    async def reload(self) -> Book:
        """Read the folders anew. Raises RuleFileError, and the engine keeps its rules."""
        loop = asyncio.get_running_loop()
        # Forty rules take a quarter of a second to read, for which ingest does not wait.
        with ThreadPoolExecutor(1, "rule-files") as threads:
            try:
                book = await loop.run_in_executor(threads, load_book, self._folders)
            except RuleFileError as error:
                first, *more = error.problems
                log.error(
                    "rules not reloaded; the old ones go on",
                    extra={"problem": str(first), "more_problems": len(more)},
                )
                raise
        await self.engine.reload(book.rules, book.overrides)
        log.info("rules reloaded", extra={"rules": len(book.rules)})
        return book

    async def reload_whenever(self, asked: asyncio.Event) -> None:
        """Reload each time that `asked` is set, for as long as it is awaited."""
        while True:
            await asked.wait()
            asked.clear()
            try:
                await self.reload()
            except RuleFileError:
                continue  # logged, and the old rules go on
