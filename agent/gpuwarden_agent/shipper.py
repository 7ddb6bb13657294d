"""Sends sealed batches to the collector and acts on its answer.

Oldest first, over a few lanes so that a backlog is caught up quickly; one lane takes the newest, so
that the present is not hidden behind hours of past. While the collector is away or asks for time,
one lane alone tries, with exponential backoff and full jitter.

Only 204 acknowledges: a proxy or another server that answers 200 to everything must not make the
agent forget its samples. For the same reason answers about the address rather than the batch (401,
403, 404 and their like, which a collector does not give to a batch) mean later and not never.
"""

import asyncio
import json
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from gpuwarden.clock import Clock
from gpuwarden.life import until
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_agent.async_spool import AsyncSpool
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events import span
from gpuwarden_agent.exchange import NoAnswerError
from gpuwarden_agent.spool import SealedBatch, SpoolError
from gpuwarden_agent.transport import Transport

log = logging.getLogger(__name__)

LANES = 4
BACKOFF_FIRST_S = 0.5
PAUSE_S_MIN = 0.05
RETRY_AFTER_S_MAX = 300.0
ATTEMPT_MAX = 30
REASON_CHARACTERS_MAX = 2000
NEWS_TIMEOUT_S = 30.0
ADDRESS_STATUSES = frozenset({401, 402, 403, 404, 405, 407, 408, 421, 425, 426, 429, 451})
"""Statuses from 400 to 499 that say nothing about the batch."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The collector answered."""

    status: int
    retry_after: str | None = None
    """The header, as sent."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No connection, or it broke."""

    reason: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No answer in time. The collector may have stored the batch; sending it again is harmless."""

    after_s: float


Outcome = Answered | Unreachable | TimedOut


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The batch is durable at the collector: forget it."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Send it again, not before."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """The collector will never take it."""

    reason: str


Action = Acknowledge | RetryAfter | Drop


def next_action(
    outcome: Outcome,
    attempt: int,
    now: datetime,
    rng: random.Random,
    *,
    backoff_max_s: float = 30.0,
) -> Action:
    """What an outcome means. `attempt`: tries in a row that failed before this one, 0 at first."""
    match outcome:
        case Answered(204):
            return Acknowledge()
        case Answered(status, _, reason) if 400 <= status < 500 and status not in ADDRESS_STATUSES:
            return Drop(f"{status}: {reason or 'no reason given'}")
        case Answered(status, retry_after, reason):
            seconds = _asked_s(retry_after, now)
            why = f"it answered {status}" + (f": {reason}" if reason else "")
            if seconds is None:
                return RetryAfter(_backoff_s(attempt, rng, backoff_max_s), why)
            # A fleet that was told the same number must not come back in the same instant.
            return RetryAfter(seconds * rng.uniform(1.0, 1.5) + rng.uniform(0, 1.0), why)
        case Unreachable(reason):
            return RetryAfter(_backoff_s(attempt, rng, backoff_max_s), reason)
        case TimedOut(after_s):
            why = f"no answer within {span(after_s)}"
            return RetryAfter(_backoff_s(attempt, rng, backoff_max_s), why)
        case _:
            assert_never(outcome)


def _backoff_s(attempt: int, rng: random.Random, most_s: float) -> float:
    ceiling_s = min(most_s, BACKOFF_FIRST_S * 2 ** min(attempt, ATTEMPT_MAX))
    return max(PAUSE_S_MIN, rng.uniform(0, ceiling_s))


def _asked_s(retry_after: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110 10.2.3), bounded; None: none, or junk."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_S_MAX)
    from email.utils import parsedate_to_datetime  # a MiB, which few agents ever need

    try:
        then = parsedate_to_datetime(text)
        seconds = (then - now).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(max(0.0, seconds), RETRY_AFTER_S_MAX)


class Shipper:
    """Ships the batches of one spool. `run` until cancelled; `drain` sends what is left."""

    def __init__(
        self,
        spool: AsyncSpool,
        transport: Transport,
        *,
        clock: Clock,
        counters: Counters,
        sealed: asyncio.Event,
        on_refused: Callable[[str], None],
        request_timeout_s: float = 10.0,
        backoff_max_s: float = 30.0,
        rng: random.Random | None = None,
        is_quiet: bool = False,
    ) -> None:
        """`is_quiet`: the log has changes of state at level debug only, as for one of many."""
        self._spool = spool
        self._transport = transport
        self._shown_url = transport.address.shown(INGEST_PATH)
        self._clock = clock
        self._counters = counters
        self._sealed = sealed
        self._on_refused = on_refused
        self._request_timeout_s = request_timeout_s
        self._backoff_max_s = backoff_max_s
        self._rng = rng or random.Random()
        self._level = logging.DEBUG if is_quiet else logging.WARNING
        self._in_flight: set[int] = set()
        self._resting: dict[int, float] = {}
        """Batches that the collector failed at, and until when others go first."""
        self._claim = asyncio.Lock()
        self._failures = 0
        """Tries in a row that failed; above 0 only the first lane sends."""
        self._failures_ever = 0
        self._away_since_s = 0.0
        self._not_before_s = 0.0
        self._is_reachable = asyncio.Event()
        self._is_reachable.set()
        self._hurry = asyncio.Event()
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Send batches as they are sealed, until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._serve(lane), name=f"ship {lane}")

    async def drain(self) -> bool:
        """Wait until nothing waits, or until the first try fails; whether nothing waits."""
        failures = self._failures_ever
        self._not_before_s = self._clock.monotonic()
        self._hurry.set()
        self._sealed.set()
        while (self._spool.count or self._in_flight) and self._failures_ever == failures:
            self._settled.clear()
            await until(self._settled, 0.2)
        return self._spool.count == 0

    async def _serve(self, lane: int) -> None:
        while True:
            await self._may_send(lane)
            batch = await self._claimed(lane)
            if batch is None:
                await until(self._sealed, NEWS_TIMEOUT_S)
                continue
            try:
                await self._send(batch)
            finally:
                self._in_flight.discard(batch.sequence)
                self._settled.set()

    async def _may_send(self, lane: int) -> None:
        """Wait while the collector is away: the first lane for its next try, the others for it."""
        while self._failures:
            if lane:
                await until(self._is_reachable, NEWS_TIMEOUT_S)
                continue
            pause_s = self._not_before_s - self._clock.monotonic()
            if pause_s <= 0:
                return
            await until(self._hurry, pause_s)
            if self._hurry.is_set():
                return

    async def _claimed(self, lane: int) -> SealedBatch | None:
        """The batch that this lane is to send; None: all that wait are being sent."""
        async with self._claim:
            self._sealed.clear()
            if self._spool.count <= len(self._in_flight):
                return None
            skip = self._in_flight | self._still_resting()
            if self._spool.count <= len(skip):
                skip = self._in_flight  # nothing else waits: they may try again
            waiting = self._spool.count - len(skip)
            is_fresh_lane = lane == LANES - 1 and waiting > LANES
            look = self._spool.newest if is_fresh_lane else self._spool.oldest
            try:
                batch = await look(skip)
            except SpoolError as error:
                self._fail(RetryAfter(self._backoff_max_s, str(error)), self._failures)
                return None
            if batch is not None:
                self._in_flight.add(batch.sequence)
            if waiting > 1:
                self._sealed.set()  # there is work for the next lane as well
            return batch

    def _still_resting(self) -> set[int]:
        now_s = self._clock.monotonic()
        self._resting = {n: until_s for n, until_s in self._resting.items() if until_s > now_s}
        return set(self._resting)

    async def _send(self, batch: SealedBatch) -> None:
        self._counters.batches_sent += 1
        attempt = self._failures
        outcome = await self._post(batch)
        if _is_about_the_batch(outcome):
            self._resting[batch.sequence] = self._clock.monotonic() + 2 * self._backoff_max_s
        action = next_action(
            outcome,
            attempt,
            self._clock.now(),
            self._rng,
            backoff_max_s=self._backoff_max_s,
        )
        try:
            await self._settle(batch, action, attempt)
        except SpoolError as error:
            # It will be sent again, and the collector will know it already.
            self._fail(RetryAfter(self._backoff_max_s, str(error)), attempt)

    async def _post(self, batch: SealedBatch) -> Outcome:
        identity = BatchId(
            self._spool.agent_id, batch.boot_id, batch.sequence, batch.oldest_sequence
        )
        headers = headers_of(identity) | {
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": "zstd",
        }
        try:
            answer = await self._transport.post(
                INGEST_PATH, headers, batch.body, timeout_s=self._request_timeout_s
            )
        except TimeoutError:
            return TimedOut(self._request_timeout_s)
        except NoAnswerError as error:
            return Unreachable(str(error))
        return Answered(answer.status, answer.headers.get("retry-after"), _reason(answer.body))

    async def _settle(self, batch: SealedBatch, action: Action, attempt: int) -> None:
        match action:
            case Acknowledge():
                await self._spool.acknowledge(batch.sequence)
                self._counters.batches_acknowledged += 1
                self._succeed()
            case Drop(reason):
                await self._spool.refuse(batch.sequence, reason)
                self._counters.batches_refused += 1
                self._counters.last_error = f"batch {batch.sequence} refused: {reason}"
                self._succeed()
                self._on_refused(reason)
            case RetryAfter():
                self._fail(action, attempt)
            case _:
                assert_never(action)

    def _succeed(self) -> None:
        if not self._failures:
            return
        self._failures = self._counters.tries_failed = 0
        self._is_reachable.set()
        log.log(
            self._level,
            "collector is back",
            extra={
                "collector": self._shown_url,
                "away_for": span(self._clock.monotonic() - self._away_since_s),
                "batches_waiting": self._spool.count,
            },
        )

    def _fail(self, action: RetryAfter, attempt: int) -> None:
        if not self._failures:
            self._away_since_s = self._clock.monotonic()
            self._is_reachable.clear()
            log.log(
                self._level,
                "collector takes no batches; they wait in the spool",
                extra={"collector": self._shown_url, "why": action.reason},
            )
        # Lanes that fail together have tried once, not four times.
        self._failures = max(self._failures, attempt + 1)
        self._counters.tries_failed = self._failures
        self._failures_ever += 1
        self._not_before_s = self._clock.monotonic() + action.seconds
        self._counters.last_error = f"{self._shown_url}: {action.reason}"
        self._settled.set()


def _is_about_the_batch(outcome: Outcome) -> bool:
    """Whether another batch may fare better: one that breaks the collector must not stop the rest."""
    match outcome:
        case Answered(status):
            return status not in (204, 429, 503)
        case TimedOut():
            return True
        case Unreachable():
            return False
        case _:
            assert_never(outcome)


def _reason(body: bytes) -> str:
    """The collector's words, `{"error": "..."}`, or those of whatever else answered, in one line."""
    text = body.decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if isinstance(answer, dict) and "error" in answer:
        text = str(answer["error"])
    return " ".join(text.split())[:REASON_CHARACTERS_MAX]
