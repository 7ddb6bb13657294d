"""Reloads the rules of an engine from their folders, and other files with them.

Where the new rules have problems, the old ones stay in force. Other files do the same, each by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuwarden_rules.definition.rule_set import RuleSet, load_rule_set
from gpuwarden_rules.definition.yaml_positions import FileProblem, RuleFileError
from gpuwarden_rules.evaluation.engine import RuleEngine

log = logging.getLogger(__name__)


Reloadable = Callable[[], Awaitable[str | None]]
"""Reloads a file; returns its problem, which is logged, if the old file stays in force."""


class ReloadError(ValueError):
    """Rules or files have problems and were not reloaded; the others were. The message is one line."""

    def __init__(self, rules: Sequence[FileProblem], others: Sequence[str]) -> None:
        self.problems = list(rules)
        said = [f"the previous rules stay in force: {rules[0]}"] if rules else []
        said += [f"the previous file stays in force: {line}" for line in others]
        super().__init__("; ".join(said))


class RuleReloader:
    """An engine, the folders of its rules, and files that are reloaded with them."""

    def __init__(
        self, engine: RuleEngine, folders: Sequence[Path], also: Sequence[Reloadable] = ()
    ) -> None:
        self.engine = engine
        self._folders = tuple(folders)
        self._also = tuple(also)

    async def reload(self) -> RuleSet:
        """Reload the folders and files. Raises ReloadError."""
        others = [line for part in self._also if (line := await part()) is not None]
        loop = asyncio.get_running_loop()
        # Reading forty rules takes a quarter of a second; ingest does not wait for it.
        with ThreadPoolExecutor(1, "rule-files") as threads:
            try:
                rule_set = await loop.run_in_executor(threads, load_rule_set, self._folders)
            except RuleFileError as error:
                first, *more = error.problems
                log.error(
                    "rules not reloaded; the previous rules stay in force",
                    extra={"problem": str(first), "more_problems": len(more)},
                )
                raise ReloadError(error.problems, others) from error
        await self.engine.reload(rule_set.rules, rule_set.overrides)
        log.info("rules reloaded", extra={"rules": len(rule_set.rules)})
        if others:
            raise ReloadError((), others)
        return rule_set

    async def reload_whenever(self, asked: asyncio.Event) -> None:
        """Reload each time that `asked` is set; never returns."""
        while True:
            await asked.wait()
            asked.clear()
            try:
                await self.reload()
            except ReloadError:
                continue  # logged; the old rules stay in force
