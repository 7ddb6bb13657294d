"""Runs backtests for pages and programs: one at a time, with limits, and they can be cancelled."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

from gpuwarden.clock import Clock
from gpuwarden.query import Querier, QueryError, first_paragraph
from gpuwarden_rules.backtest.inventory_history import NodeOutage, outages_between
from gpuwarden_rules.backtest.known_data import KnownData, reads_rollups
from gpuwarden_rules.backtest.replay import Replay, first_sample_at, replay
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Locations, Override, OverridePlan
from gpuwarden_rules.evaluation.fleet import locations
from gpuwarden_rules.evaluation.state import RowsError

log = logging.getLogger(__name__)

SPAN_MAX = timedelta(days=90)
LASTS_S_MAX = 900.0
KEPT_MAX = 20
"""Finished backtests whose results are kept."""
NODES_NAMED_MAX = 5


class BacktestState(StrEnum):
    """State of a backtest."""

    RUNNING = "running"
    DONE = "done"
    CANNOT_SAY = "cannot say"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Backtest:
    """A rule over a span of history."""

    id: str
    rule: Rule
    since: datetime
    until: datetime
    began_s: float
    """On the monotonic clock."""
    state: BacktestState = BacktestState.RUNNING
    at: datetime | None = None
    """Up to which instant history is replayed; None: not started."""
    seconds: float | None = None
    """Duration; None: it still runs."""
    reason: str | None = None
    """Why there is no result."""
    result: Replay | None = None

    @property
    def progress(self) -> float:
        """0 to 1."""
        if self.state is BacktestState.DONE:
            return 1.0
        span = (self.until - self.since).total_seconds()
        return (self.at - self.since).total_seconds() / span if self.at and span > 0 else 0.0


class BusyError(RuntimeError):
    """Another backtest runs."""


async def replay_or_reason(
    rule: Rule,
    overrides: Sequence[Override],
    places: Locations | None,
    known: KnownData,
    unready: str | None,
    querier: Querier,
    since: datetime,
    until: datetime,
    clock: Clock,
    *,
    outages: Callable[[], Awaitable[Sequence[NodeOutage]]],
    step_s: float | None = None,
    on_progress: Callable[[datetime], None] = lambda at: None,
) -> Replay | str:
    """The replay of a rule with the overrides that concern it, or why history cannot say.

    `unready`: a text that names the rollups that are missing. `outages`: reads the outages of nodes, called for
    rules about nodes. Raises QueryError and RowsError.
    """
    concerning = [override for override in overrides if override.concerns(rule)]
    plan = OverridePlan(rule, concerning, places) if places and concerning else None
    if lacking := await known.lacking(rule) or (unready if reads_rollups(rule) else None):
        return lacking
    silent = await outages() if "node" in rule.labels and not rule.judges_silent_nodes else ()
    return await replay(
        rule, querier, since, until, clock,
        plan=plan, outages=silent, step_s=step_s, on_progress=on_progress,
    )  # fmt: skip


def unready_text(nodes: Sequence[str]) -> str:
    """`the rollups of n1, n2 and 3 more are not ready`."""
    others = len(nodes) - NODES_NAMED_MAX
    more = f" and {others} more" if others > 0 else ""
    return f"the rollups of {', '.join(nodes[:NODES_NAMED_MAX])}{more} are not ready"


class Backtester:
    """Backtests by id; `run` it."""

    def __init__(self, querier: Querier, clock: Clock) -> None:
        self._querier = querier
        self._clock = clock
        self._group: asyncio.TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._kept: dict[str, Backtest] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Accept backtests until `stop` is set; then cancel the running one."""
        async with asyncio.TaskGroup() as self._group:
            await stop.wait()
            self._group = None
            if self._task is not None:
                self._task.cancel()

    @property
    def running(self) -> Backtest | None:
        """The running backtest."""
        found = (one for one in self._kept.values() if one.state is BacktestState.RUNNING)
        return next(found, None)

    def get(self, wanted: str) -> Backtest | None:
        """The backtest of that id, running or finished."""
        return self._kept.get(wanted)

    def begin(self, rule: Rule, overrides: Sequence[Override], span: timedelta) -> Backtest:
        """Start a backtest over the last `span`. Raises BusyError."""
        if self._group is None:
            raise BusyError("the rules have not started yet")
        if (other := self.running) is not None:
            raise BusyError(f"a backtest of {other.rule.name} is running; wait, or cancel it")
        until = self._clock.now()
        made = Backtest(
            id=uuid.uuid4().hex[:12],
            rule=rule,
            since=until - min(span, SPAN_MAX),
            until=until,
            began_s=self._clock.monotonic(),
        )
        for old in list(self._kept)[: max(0, len(self._kept) - KEPT_MAX + 1)]:
            del self._kept[old]
        self._kept[made.id] = made
        self._task = self._group.create_task(self._replay(made, overrides), name="backtest")
        return made

    def cancel(self, wanted: str) -> bool:
        """Cancel the backtest if it runs; False: there is none of that id."""
        found = self._kept.get(wanted)
        if found is not None and found.state is BacktestState.RUNNING and self._task is not None:
            found.state = BacktestState.CANCELLED
            self._task.cancel()
        return found is not None

    async def _replay(self, made: Backtest, overrides: Sequence[Override]) -> None:
        def progress(at: datetime) -> None:
            made.at = at

        try:
            async with asyncio.timeout(LASTS_S_MAX):
                done = await self._result(made, overrides, progress)
        except TimeoutError:
            made.state = BacktestState.FAILED
            made.reason = f"it took longer than {LASTS_S_MAX:g} s: choose a shorter time"
        except (QueryError, RowsError) as error:
            made.state = BacktestState.FAILED
            made.reason = first_paragraph(error)
        except asyncio.CancelledError:
            made.state = BacktestState.CANCELLED
            raise
        except Exception:
            made.state, made.reason = BacktestState.FAILED, "see the collector's log"
            log.exception("backtest failed", extra={"rule": made.rule.name})
        else:
            if isinstance(done, str):
                made.state, made.reason = BacktestState.CANNOT_SAY, done
            else:
                made.state, made.result = BacktestState.DONE, done
        finally:
            made.seconds = self._clock.monotonic() - made.began_s

    async def _result(
        self, made: Backtest, overrides: Sequence[Override], progress: Callable[[datetime], None]
    ) -> Replay | str:
        first = await first_sample_at(self._querier)
        if first is None:
            return "the collector has no samples to replay"
        made.since = min(max(made.since, first), made.until)
        known = KnownData(self._querier, made.since, made.until)
        unready = None
        if reads_rollups(made.rule) and (nodes := await known.unready_nodes(self._clock.now())):
            unready = unready_text(nodes)
        return await replay_or_reason(
            made.rule,
            overrides,
            await locations(self._querier) if overrides else None,
            known,
            unready,
            self._querier,
            made.since,
            made.until,
            self._clock,
            outages=partial(outages_between, self._querier, made.since, made.until),
            on_progress=progress,
        )
