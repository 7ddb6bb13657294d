"""Looks at what readiness is decided from, and asks a query where no newer answer is known.

An answer to a client counts, so that a collector that works is asked nothing. One that nobody asks for readiness runs no
query for it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gpuwarden.clock import Clock
from gpuwarden.query import LakeAwayError, Querier, QueryError
from gpuwarden_collector.ops.health import Duties
from gpuwarden_collector.ops.readiness import ReadyState, must_ask
from gpuwarden_collector.stats import Levels, Stats

ASK_S = 5.0
"""Longest time for the answer."""
QUESTION = "SELECT count(*) FROM collector_samples WHERE ts > $now::TIMESTAMP - INTERVAL 5 MINUTE"
"""Reads a few rows in every way that a query reads: lake, segments and state."""


class Readiness:
    """The state of all parts."""

    def __init__(
        self,
        querier: Querier,
        stats: Stats,
        clock: Clock,
        levels: Callable[[], Levels],
        duties: Callable[[], Duties],
    ) -> None:
        self._querier = querier
        self._stats = stats
        self._clock = clock
        self._levels = levels
        self._duties = duties
        self._asking = asyncio.Lock()

    async def look(self, *, at_queries: bool = True) -> ReadyState:
        """The state now. `at_queries`: run a query first where that is due, for at most ASK_S."""
        if at_queries:
            async with self._asking:
                if must_ask(self._stats.queries, self._clock.monotonic()):
                    await self._ask()
        return ReadyState(
            self._levels(), self._stats.queries, self._duties().progress, self._clock.now()
        )

    async def _ask(self) -> None:
        stats = self._stats
        stats.queries = replace(stats.queries, asked_s=self._clock.monotonic())
        try:
            async with asyncio.timeout(ASK_S):
                await self._querier.query(QUESTION, {"now": self._clock.now()}, timeout_s=ASK_S)
        except LakeAwayError:  # it answers from the newest rows, and check `storage` says why
            stats.queries = stats.queries.answered(self._clock.monotonic())
        except (QueryError, TimeoutError) as error:
            problem = str(error) or f"no answer within {ASK_S:g} s"
            stats.queries = stats.queries.failed(problem.partition("\n")[0])
        else:
            stats.queries = stats.queries.answered(self._clock.monotonic())
