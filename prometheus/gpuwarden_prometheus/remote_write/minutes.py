"""Sends the metrics that only the collector knows to one receiver, a sample for each whole minute.

The last minute that the receiver has is on disk, for each source. A source is queried at the minutes since then; the
position is written after the receiver's answer. So a receiver or collector that was away leaves no gap.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import to_ms
from gpuwarden.collector_metrics import MINUTE_MS, SOURCES
from gpuwarden.query import QueryError
from gpuwarden_collector.forwarding.port import ForwardingContext, MinutePosition
from gpuwarden_prometheus.remote_write.bodies import requests_of
from gpuwarden_prometheus.remote_write.computed import ComputedSeries, minutes_sql
from gpuwarden_prometheus.remote_write.delivery import RequestDelivery
from gpuwarden_prometheus.remote_write.settings import RemoteReceiver

log = logging.getLogger(__name__)

LOOK_S = 2.0
AGAIN_S = 15.0
"""Time until a source that could not be queried is queried again."""
MINUTES_MAX = 10
"""Most minutes of one query."""
CATCH_UP_MS = 24 * 3_600_000
"""Minutes that are older are not sent."""
AHEAD_MS = 10 * MINUTE_MS
"""A position that is further in the future comes from a wrong clock."""


@dataclass(frozen=True, slots=True)
class MinuteSpan:
    """Minutes to send next."""

    after_ms: int
    """The last minute before them."""
    until_ms: int
    is_repeated: bool
    """Whether an earlier run may have sent them."""
    skipped: int = 0
    """Number of minutes before them that are too old to be sent."""


@dataclass(frozen=True, slots=True)
class MinuteTimes:
    """What decides which minutes are due."""

    now_ms: int
    started_ms: int
    """When the collector started: earlier rows may come after it."""
    settled_ms: int
    """How long rows of a minute may come after it."""

    @property
    def due_ms(self) -> int:
        """The last minute whose rows have come; 0: none is known to be."""
        at_ms = self.now_ms - self.settled_ms
        return 0 if at_ms < self.started_ms else at_ms - at_ms % MINUTE_MS


def next_span(
    position_ms: int, sending_ms: int | None, times: MinuteTimes, minutes_max: int = MINUTES_MAX
) -> MinuteSpan | None:
    """The minutes to send next; None: none is due."""
    due_ms = times.due_ms
    if not due_ms:
        return None
    if position_ms > due_ms + AHEAD_MS:
        return MinuteSpan(due_ms - MINUTE_MS, due_ms, False)
    skipped = max(0, due_ms - CATCH_UP_MS - position_ms) // MINUTE_MS
    after_ms = position_ms + skipped * MINUTE_MS
    # A killed run has sent those until `sending_ms`: they are sent again alone, so that the requests are the same.
    is_repeated = sending_ms is not None and after_ms < sending_ms <= due_ms
    last_ms = sending_ms if is_repeated and sending_ms else due_ms
    until_ms = min(last_ms, after_ms + minutes_max * MINUTE_MS)
    return MinuteSpan(after_ms, until_ms, is_repeated, skipped) if until_ms > after_ms else None


class SourceQueries:
    """Queries sources for all receivers, one at a time."""

    def __init__(self, context: ForwardingContext, receivers: int) -> None:
        self._context = context
        self._receivers = receivers
        self._turn = asyncio.Lock()
        self._newest: dict[str, tuple[str, Any]] = {}
        """The last query of each source and its rows, which another receiver may need."""

    async def rows(self, source: str, first_ms: int, steps: int) -> Any:
        """The rows of a source. Raises QueryError."""
        sql = minutes_sql(source, first_ms, steps)
        async with self._turn:
            asked, rows = self._newest.get(source, ("", None))
            if asked != sql:
                rows = await self._context.query(sql)
                if self._receivers > 1:
                    self._newest[source] = sql, rows
        return rows


class _SourceSender:
    """Sends one source to its receiver."""

    def __init__(
        self,
        series: ComputedSeries,
        position: MinutePosition,
        queries: SourceQueries,
        delivery: RequestDelivery,
    ) -> None:
        self.source = series.source
        self.position = position
        self.problem: str | None = None
        """Why it could not be queried last, or None."""
        self._series = series
        self._queries = queries
        self._delivery = delivery
        self._not_before_s = 0.0
        self._minutes_max = MINUTES_MAX

    def next(self, times: MinuteTimes, now_s: float) -> MinuteSpan | None:
        """The minutes to send now; None: none."""
        if now_s < self._not_before_s:
            return None
        return next_span(self.position.position_ms, self.position.sending_ms, times, self._minutes_max)  # fmt: skip

    async def send(self, span: MinuteSpan, now_s: float) -> None:
        """Send these minutes, or note why they cannot be queried now."""
        try:
            requests = await self._requests(span)
        except QueryError as error:
            # Fewer minutes may be within the limits of a query.
            self._minutes_max, self._not_before_s = 1, now_s + AGAIN_S
            if self.problem is None:
                log.warning(
                    "a source of the collector's metrics cannot be queried; its minutes wait",
                    extra={"source": self.source, "reason": str(error)},
                )
            self.problem = f"{self.source} cannot be queried: {error}"
            return
        self.problem, self._minutes_max = None, min(MINUTES_MAX, 2 * self._minutes_max)
        if span.after_ms < self.position.position_ms:
            log.warning(
                "the clock was set back: minutes of the collector's metrics are sent from now on",
                extra={"source": self.source, "position_ms": self.position.position_ms},
            )
        await asyncio.to_thread(self.position.note_sending, span.until_ms)
        for request in requests:
            await self._delivery.deliver(request, is_repeated=span.is_repeated)
        await asyncio.to_thread(self.position.confirm, span.until_ms)

    async def _requests(self, span: MinuteSpan) -> list[Any]:
        if not self._series.is_begun:
            self._series.begin(await self._queries.rows(self.source, span.after_ms, 1))
        first_ms = span.after_ms + MINUTE_MS
        steps = (span.until_ms - span.after_ms) // MINUTE_MS
        rows = await self._queries.rows(self.source, first_ms, steps)
        series = await asyncio.to_thread(self._series.take, rows, first_ms, steps)
        return [*requests_of(series)]


class MinuteSender:
    """Sends all sources to one receiver, in turn."""

    def __init__(
        self,
        receiver: RemoteReceiver,
        context: ForwardingContext,
        queries: SourceQueries,
        delivery: RequestDelivery,
    ) -> None:
        self._receiver = receiver
        self._context = context
        self._state = context.states[receiver.name]
        self._sources = [
            _SourceSender(
                ComputedSeries(source, receiver.is_wanted, receiver.labels),
                context.minutes(receiver.name, source),
                queries,
                delivery,
            )
            for source in receiver.sources
        ]

    async def run(self) -> None:
        """Send what is due, for ever."""
        while True:
            if not await self.turn():
                await asyncio.sleep(LOOK_S)

    async def turn(self) -> bool:
        """Send the next minutes of each source; whether any were due."""
        any_due = False
        for source in self._sources:
            now_s = self._context.clock.monotonic()
            span = source.next(self._times(source.source), now_s)
            if span is not None:
                any_due = True
                self._note_skipped(source.source, span)
                await source.send(span, now_s)
        return any_due

    async def watch(self) -> None:
        """Keep how much waits, also while a request is repeated."""
        while True:
            self.note_state()
            await asyncio.sleep(LOOK_S)

    def _times(self, source: str) -> MinuteTimes:
        now_ms, started_ms = to_ms(self._context.clock.now()), to_ms(self._context.started_at)
        return MinuteTimes(now_ms, started_ms, round(1000 * SOURCES[source].settled_s))

    def _note_skipped(self, source: str, span: MinuteSpan) -> None:
        if not span.skipped:
            return
        self._state.skipped_minutes += span.skipped
        log.error(
            "minutes of the collector's metrics are too old to be sent",
            extra={
                "receiver": self._receiver.name,
                "source": source,
                "minutes": span.skipped,
                "until_ms": span.after_ms,
            },
        )

    def note_state(self) -> None:
        """Note how much waits, and why."""
        waiting = [
            self._times(one.source).due_ms - one.position.position_ms for one in self._sources
        ]
        self._state.minutes_waiting_s = max(0, *waiting) / 1000
        problems: Mapping[str, str] = {s.source: s.problem for s in self._sources if s.problem}
        self._state.query_problem = next(iter(problems.values()), None)
