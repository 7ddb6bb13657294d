"""Sends sealed batches to the collector and acts on its answer.

A few lanes send the oldest batches first, so that a backlog shrinks quickly; one lane sends the newest,
so that current samples do not wait behind hours of old ones. While the collector is away or overloaded,
one lane alone retries, with exponential backoff and full jitter.

Only 204 acknowledges: a proxy or another server that answers 200 to everything must not make the
agent delete its samples. For the same reason the agent retries after answers that concern the address
and not the batch (401, 403, 404 and similar, which a collector does not give to a batch).

The agent ships to one of several collectors (`failover.py`). A batch that a collector may have stored
is resent with `Sent-Before`, so that collectors can deduplicate.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import assert_never

from gpuwarden.clock import Clock, to_ms
from gpuwarden.lifecycle import until
from gpuwarden.wire import (
    BATCH_SECONDS_HEADER,
    CONTENT_TYPE,
    INGEST_PATH,
    NOW_HEADER,
    SENT_BEFORE_HEADER,
    BatchId,
    batch_seconds_of,
    error_sentence,
    headers_of,
)
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.queue.spool import SealedBatch, Spool, SpoolError
from gpuwarden_agent.ship.failover import (
    Failover,
    after_failure,
    after_success,
    aimed,
    is_pause_due,
    preference,
)
from gpuwarden_agent.ship.transport import NoAnswerError, NoConnectionError, Transport
from gpuwarden_agent.worker import Worker

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
DENIED_STATUSES = frozenset({401, 403, 421, 426})
"""Statuses that only a person can mend: token, name or version are wrong."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The collector answered."""

    status: int
    retry_after: str | None = None
    """The header, as sent."""
    reason: str = ""
    batch_s: int = 0
    """Seconds of samples that it asks for in a batch; 0: not told."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No connection, or it broke."""

    reason: str
    was_sent: bool = True
    """Whether the collector may still have got the batch."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """No answer in time. The collector may have stored the batch; sending it again is harmless."""

    after_s: float


Outcome = Answered | Unreachable | TimedOut


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The batch is durable at the collector: delete it."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Send it again after this time."""

    seconds: float
    reason: str
    is_busy: bool = False
    """Whether the collector works, but is overloaded."""
    is_denied: bool = False
    """Whether the collector works, but refuses batches until a person changes something."""


@dataclass(frozen=True, slots=True)
class Discard:
    """The collector will never take it."""

    reason: str


Action = Acknowledge | RetryAfter | Discard


def next_action(
    outcome: Outcome,
    attempt: int,
    now: datetime,
    rng: random.Random,
    *,
    backoff_max_s: float = 30.0,
) -> Action:
    """The action after an outcome. `attempt`: failed tries in a row before this one."""
    match outcome:
        case Answered(204):
            return Acknowledge()
        case Answered(status, _, reason, _) if (
            400 <= status < 500 and status not in ADDRESS_STATUSES
        ):
            return Discard(f"{status}: {reason or 'no reason given'}")
        case Answered(status, retry_after, reason, _):
            seconds, is_busy = _asked_s(retry_after, now), status == 429
            why = f"it answered {status}" + (f": {reason}" if reason else "")
            if seconds is None:
                pause_s, is_denied = (
                    _backoff_s(attempt, rng, backoff_max_s),
                    status in DENIED_STATUSES,
                )
                return RetryAfter(pause_s, why, is_busy, is_denied)
            # Agents that got the same number must not come back in the same instant.
            return RetryAfter(seconds * rng.uniform(1.0, 1.5) + rng.uniform(0, 1.0), why, is_busy)
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
    """Seconds of a Retry-After header (RFC 9110 10.2.3), bounded; None: no or a wrong header."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_S_MAX)
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
        spool: Spool,
        worker: Worker,
        transports: Sequence[Transport],
        *,
        clock: Clock,
        counters: Counters,
        sealed: asyncio.Event,
        on_refused: Callable[[str], None],
        on_batch_seconds: Callable[[int], None] = lambda seconds: None,
        request_timeout_s: float = 10.0,
        backoff_max_s: float = 30.0,
        rng: random.Random | None = None,
        is_quiet: bool = False,
    ) -> None:
        """`worker`: the spool's thread. `transports`: one for each collector of the lake.
        `on_batch_seconds` gets, with each accepted batch, the seconds of samples that the collector
        asks for in a batch; 0: none. `is_quiet`: log changes of state at level debug only."""
        self._spool = spool
        self._worker = worker
        self._aim(transports)
        self._maybe_stored: set[int] = set()
        """Batches of this run that a collector may have stored."""
        self._is_away_told = False
        self._denial_told = ""
        self._clock = clock
        self._counters = counters
        self._sealed = sealed
        self._on_refused = on_refused
        self._on_batch_seconds = on_batch_seconds
        self._request_timeout_s = request_timeout_s
        self._backoff_max_s = backoff_max_s
        self._rng = rng or random.Random()
        self._level = logging.DEBUG if is_quiet else logging.WARNING
        self._in_flight: set[int] = set()
        self._resting: dict[int, float] = {}
        """Batches at which the collector failed, and until when other batches go first."""
        self._claim = asyncio.Lock()
        self._failures = 0
        """Failed tries in a row; above 0 only the first lane sends."""
        self._failures_ever = 0
        self._away_since_s = 0.0
        self._not_before_s = 0.0
        self._is_reachable = asyncio.Event()
        self._is_reachable.set()
        self._hurry = asyncio.Event()
        self._settled = asyncio.Event()

    def _aim(self, transports: Sequence[Transport]) -> None:
        urls = [transport.address.shown(INGEST_PATH) for transport in transports]
        order = preference(self._spool.agent_id, urls)
        self._transports = [transports[at] for at in order]
        self._urls = [urls[at] for at in order]
        self._failover = Failover()

    async def redirect(self, transports: Sequence[Transport]) -> None:
        """Ship to these from now on, the first try at once. Returns after the batches in flight are settled."""
        async with self._claim:  # no lane takes a batch meanwhile
            while self._in_flight:
                self._settled.clear()
                await until(self._settled, 0.2)
            self._aim(transports)
            self._failures = self._counters.tries_failed = 0
            self._is_away_told, self._denial_told = False, ""
            self._is_reachable.set()
            if not self._hurry.is_set():  # for a moment only: it stays set at the end of the run
                self._hurry.set()
                self._hurry.clear()

    async def run(self) -> None:
        """Send batches as they are sealed, until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            for lane in range(LANES):
                lanes.create_task(self._serve(lane), name=f"ship {lane}")

    async def drain(self) -> bool:
        """Wait until the spool is empty, or the first try fails. Returns whether the spool is empty."""
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
        """Wait while the collector is away: the first lane for its next try, the others for its success."""
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
        """The next batch for this lane; None: all batches are in flight."""
        async with self._claim:
            self._sealed.clear()
            if self._spool.count <= len(self._in_flight):
                return None
            skip = self._in_flight | self._still_resting()
            if self._spool.count <= len(skip):
                skip = self._in_flight  # no other batch waits: these may be tried again
            waiting = self._spool.count - len(skip)
            is_fresh_lane = lane == LANES - 1 and waiting > LANES
            look = self._spool.newest if is_fresh_lane else self._spool.oldest
            try:
                found = await self._worker.submit(look, skip=tuple(skip))
            except SpoolError as error:
                self._fail(RetryAfter(self._backoff_max_s, str(error)), self._failures)
                return None
            batch = found[0] if found else None
            if batch is not None:
                self._in_flight.add(batch.sequence)
            if waiting > 1:
                self._sealed.set()  # the next lane has work, too
            return batch

    def _still_resting(self) -> set[int]:
        now_s = self._clock.monotonic()
        self._resting = {n: until_s for n, until_s in self._resting.items() if until_s > now_s}
        return set(self._resting)

    async def _send(self, batch: SealedBatch) -> None:
        self._counters.batches_sent += 1
        attempt = self._failures
        place, self._failover = aimed(self._failover, self._clock.monotonic())
        outcome = await self._post(batch, place)
        if isinstance(outcome, Answered) and outcome.status == 204:
            self._on_batch_seconds(outcome.batch_s)
        if may_be_stored(outcome):
            self._maybe_stored.add(batch.sequence)
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
            await self._settle(batch, action, place, attempt)
        except SpoolError as error:
            # It is sent again; the collector deduplicates it.
            self._fail(RetryAfter(self._backoff_max_s, str(error)), attempt)

    async def _post(self, batch: SealedBatch, place: int) -> Outcome:
        sequence = batch.sequence
        identity = BatchId(
            self._spool.agent_id,
            batch.boot_id,
            sequence,
            batch.oldest_sequence,
            # The previous run may have sent a batch that waited at the start.
            sequence <= self._spool.last_sequence or sequence in self._maybe_stored,
        )
        headers = headers_of(identity) | {
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": "zstd",
            NOW_HEADER: str(to_ms(self._clock.now())),
        }
        try:
            answer = await self._transports[place].post(
                INGEST_PATH,
                headers,
                batch.body,
                timeout_s=self._request_timeout_s,
                again={SENT_BEFORE_HEADER: "1"},
            )
        except TimeoutError:
            return TimedOut(self._request_timeout_s)
        except NoAnswerError as error:
            return Unreachable(str(error), not isinstance(error, NoConnectionError))
        return Answered(
            answer.status,
            answer.headers.get("retry-after"),
            _reason(answer.body),
            batch_seconds_of(answer.headers.get(BATCH_SECONDS_HEADER.lower())),
        )

    async def _settle(self, batch: SealedBatch, action: Action, place: int, attempt: int) -> None:
        match action:
            case Acknowledge():
                self._arrive(place)
                await self._worker.submit(self._spool.acknowledge, batch.sequence)
                self._counters.batches_acknowledged += 1
                self._succeed(batch, place)
            case Discard(reason):
                self._arrive(place)
                await self._worker.submit(self._spool.refuse, batch.sequence, reason)
                self._counters.batches_refused += 1
                self._counters.refused_dropped = self._spool.refused_dropped
                self._counters.last_error = f"batch {batch.sequence} refused: {reason}"
                self._succeed(batch, place)
                self._on_refused(reason)
            case RetryAfter():
                self._fail_at(place, action, attempt)
            case _:
                assert_never(action)

    def _arrive(self, place: int) -> None:
        """A collector has accepted or refused a batch; note it before the spool does."""
        before, self._failover = self._failover, after_success(self._failover, place)
        if before.at != self._failover.at:
            extra = {"collector": self._urls[place]}
            log.log(self._level, "shipping to the first collector again", extra=extra)

    def _succeed(self, batch: SealedBatch, place: int) -> None:
        self._maybe_stored.discard(batch.sequence)
        if not self._failures:
            return
        self._failures = self._counters.tries_failed = 0
        self._is_reachable.set()
        if not self._is_away_told:
            return
        self._is_away_told, self._denial_told = False, ""
        log.log(
            self._level,
            "collector is back",
            extra={
                "collector": self._urls[place],
                "away_for": span(self._clock.monotonic() - self._away_since_s),
                "batches_waiting": self._spool.count,
            },
        )

    def _fail_at(self, place: int, action: RetryAfter, attempt: int) -> None:
        """A collector failed; there may be other collectors to try."""
        before, places = self._failover, len(self._urls)
        now_s = self._clock.monotonic()
        failover = after_failure(before, place, places, now_s, self._rng, is_busy=action.is_busy)
        self._failover = failover
        if place != before.at:
            return  # the agent already ships to another collector
        is_over = failover.given_up >= places or places == 1
        if failover.at != place:
            extra = {"collector": self._urls[failover.at], "instead_of": self._urls[place]}
            level = logging.DEBUG if is_over else self._level
            log.log(level, "shipping to another collector", extra=extra | {"why": action.reason})
        if not is_pause_due(before, failover, places):
            action = replace(action, seconds=0.0)
        self._fail(action, attempt, place=place, is_over=is_over)

    def _fail(
        self, action: RetryAfter, attempt: int, *, place: int | None = None, is_over: bool = True
    ) -> None:
        """`is_over`: no other collector is left to try."""
        url = self._urls[self._failover.at if place is None else place]
        if not self._failures:
            self._away_since_s = self._clock.monotonic()
            self._is_reachable.clear()
        denial = action.reason if action.is_denied else self._denial_told
        # A collector that denies access after an outage is logged again: a person must act.
        if is_over and (not self._is_away_told or denial != self._denial_told):
            self._is_away_told, self._denial_told = True, denial
            log.log(
                self._level,
                "collector takes no batches; they wait in the spool",
                extra={"collector": url, "why": action.reason},
            )
        # Lanes that fail together count as one try.
        self._failures = max(self._failures, attempt + 1)
        self._counters.tries_failed = self._failures
        self._failures_ever += is_over
        self._not_before_s = self._clock.monotonic() + action.seconds
        self._counters.last_error = f"{url}: {action.reason}"
        self._settled.set()
        self._sealed.set()  # wakes the first lane, which tries again


def may_be_stored(outcome: Outcome) -> bool:
    """Whether the collector may have stored the batch.

    A collector that answers 503 may still have the batch on its disk.
    """
    match outcome:
        case Unreachable(was_sent=was_sent):
            return was_sent
        case Answered(status):
            return status != 429
        case TimedOut():
            return True
        case _:
            assert_never(outcome)


def _is_about_the_batch(outcome: Outcome) -> bool:
    """Whether another batch may succeed: one batch that the collector cannot process must not block the rest."""
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
    """The collector's error, `{"error": "..."}`, or another server's text, in one line."""
    text = body.decode(errors="replace")
    return " ".join((error_sentence(text) or text).split())[:REASON_CHARACTERS_MAX]
