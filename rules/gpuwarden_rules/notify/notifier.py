"""Looks at the incidents when they change, stores what is to be told, and sends it.

One task looks and plans; each receiver has a task of its own that sends what waits for it, one message
after another, so that a dead receiver delays nobody else. The outbox lives on one thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, assert_never

from gpuwarden.clock import Clock, to_ms
from gpuwarden.lifecycle import until
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.evaluation.schedule import repeat
from gpuwarden_rules.incidents.state import IncidentView
from gpuwarden_rules.notify import digest
from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.outbox import Outbox, OutboxError, Queued
from gpuwarden_rules.notify.planner import IncidentNotice, NotificationPlan, plan
from gpuwarden_rules.notify.receivers.receiver import (
    TIMEOUT_S,
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
    Receiver,
    backoff_s,
)
from gpuwarden_rules.notify.settings import Notify

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 10.0
"""Longest pause between two looks: silences end without a change of any alert."""
OUTBOX_RETRY_S = 5.0
STOP_TIMEOUT_S = 5.0
"""How long a message that is being sent may take after the stop."""
KEEP = timedelta(days=7)
"""A message that nobody took for so long is dropped."""


@dataclass(slots=True)
class ReceiverStats:
    """What became of a receiver's messages since the start."""

    sent: int = 0
    failures: int = 0
    refused: int = 0
    expired: int = 0
    failing: bool = False
    """The last attempt failed."""


class Notifier:
    """Tells receivers of incidents. `run` it; `wake` it when one changes."""

    def __init__(
        self,
        notify: Notify,
        receivers: Mapping[str, Receiver],
        outbox: Outbox,
        view: Callable[[], IncidentView | None],
        querier: Querier,
        clock: Clock,
    ) -> None:
        """`view` gives the incidents as they are now; None: nobody can say yet."""
        self._notify = notify
        self._receivers = receivers
        self.outbox = outbox
        """Messages that wait; to read its figures only."""
        self._view = view
        self._querier = querier
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notify")
        self._changed = asyncio.Event()
        self._news = {name: asyncio.Event() for name in receivers}
        self._state: dict[str, IncidentNotice] = {}
        self._digests: dict[str, int] = {}
        self._is_stuck = False
        self._is_digest_late = False
        self.stats = {name: ReceiverStats() for name in receivers}
        self.unrouted = 0
        """Open incidents that match no route, at the last look."""
        self.muted = 0

    def go_on_counting(self, before: "Notifier") -> None:
        """Take over the figures of receivers that stay; `before` has ended."""
        self.stats |= {name: found for name, found in before.stats.items() if name in self.stats}

    def wake(self) -> None:
        """Something changed: look at once. From the event loop's thread."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Notify until asked to stop; what has not been sent by then waits in the outbox."""
        await self._take_up()
        try:
            async with asyncio.TaskGroup() as group:
                senders = [
                    group.create_task(self._send_to(name, receiver, stop), name=f"notify {name}")
                    for name, receiver in self._receivers.items()
                ]
                looking = group.create_task(
                    repeat(self._look_again, self._changed, stop, self._clock), name="notify"
                )
                await stop.wait()
                self._changed.set()
                for event in self._news.values():
                    event.set()
                _, late = await asyncio.wait([looking, *senders], timeout=STOP_TIMEOUT_S)
                for task in late:
                    task.cancel()
        finally:
            for receiver in self._receivers.values():
                await receiver.close()
            await self._stored(self.outbox.close)
            self._thread.shutdown(wait=False)

    async def look(self) -> datetime | None:
        """Look at the incidents once; when to look again if nothing changes. Raises OutboxError."""
        view = self._view()
        if view is None:
            return self._clock.now() + timedelta(seconds=1)
        done = await self._stored(partial(self._plan, view, self._clock.now()))
        self._state, self.unrouted, self.muted = done.state, done.unrouted, done.muted
        self._announce(done.messages)
        await self._make_digests()
        return done.wake_at

    async def _take_up(self) -> None:
        """Go on from what an earlier run stored."""
        self._state = await self._stored(self.outbox.state)
        self._digests = await self._stored(self.outbox.digests)
        gone = await self._stored(partial(self.outbox.retire, set(self._receivers)))
        for receiver, count in gone.items():
            log.warning(
                "messages dropped: the receiver is gone",
                extra={"receiver": receiver, "messages": count},
            )

    def _plan(self, view: IncidentView, now: datetime) -> NotificationPlan:
        """On the outbox's thread: what was planned is durable when it returns."""
        made = plan(self._state, view, self._notify.policy, now)
        if made.messages or made.state != self._state:
            self.outbox.commit(self._state, made.state, made.messages)
        return made

    async def _look_again(self) -> float:
        """Look once; seconds until the next look."""
        try:
            wake_at = await self.look()
        except OutboxError as error:
            self._stuck(error)
            return OUTBOX_RETRY_S
        self._is_stuck = False
        if wake_at is None:
            return LOOK_S
        return min(LOOK_S, (wake_at - self._clock.now()).total_seconds())

    async def _make_digests(self) -> None:
        now = self._clock.now()
        for planned in self._notify.digests:
            done_ms = self._digests.get(planned.name)
            messages: list[Notification] = []
            if done_ms is not None:
                if not digest.is_due(planned, done_ms, now):
                    continue
                try:
                    messages = await digest.made(planned, self._querier, now)
                except QueryError as error:
                    if not self._is_digest_late:
                        log.error(
                            "digest not made; tried again",
                            extra={"digest": planned.name, "reason": str(error)},
                        )
                    self._is_digest_late = True
                    continue
                self._is_digest_late = False
            done = {planned.name: to_ms(now)}
            store = partial(self.outbox.commit, {}, {}, messages, digests=done)
            await self._stored(store)
            self._digests |= done
            self._announce(messages)

    def _announce(self, messages: Sequence[Notification]) -> None:
        for receiver in {message.receiver for message in messages}:
            self._news[receiver].set()

    async def _send_to(self, name: str, receiver: Receiver, stop: asyncio.Event) -> None:
        """Send what waits for one receiver until asked to stop."""
        failures = 0
        while not stop.is_set():
            self._news[name].clear()
            try:
                queued = await self._stored(partial(self.outbox.head, name))
                if queued is None:
                    await self._news[name].wait()
                    continue
                outcome = await attempt(receiver, queued.message)
                self._count(name, queued, outcome)
                failures = failures + 1 if isinstance(outcome, DeliveryDelayed) else 0
                await self._settle(name, queued, outcome)
            except OutboxError as error:
                self._stuck(error)
                await until(stop, OUTBOX_RETRY_S)
                continue
            if isinstance(outcome, DeliveryDelayed):
                await until(stop, backoff_s(failures, outcome.after_s))

    async def _settle(self, name: str, queued: Queued, outcome: Outcome) -> None:
        """Note in the outbox what became of a message. Raises OutboxError."""
        is_old = self._clock.now() - queued.message.made_at > KEEP
        if not isinstance(outcome, DeliveryDelayed):
            handle = outcome.handle if isinstance(outcome, Delivered) else None
            await self._stored(partial(self.outbox.remove, name, queued.sequence, handle))
        elif is_old:
            self.stats[name].expired += 1
            log.error("message dropped: nobody took it for a week", extra={"receiver": name})
            await self._stored(partial(self.outbox.remove, name, queued.sequence))
        else:
            await self._stored(partial(self.outbox.put_back, queued.sequence))

    def _count(self, name: str, queued: Queued, outcome: Outcome) -> None:
        stats = self.stats[name]
        match outcome:
            case Delivered():
                stats.sent += 1
                if stats.failing:
                    log.info("receiver answers again", extra={"receiver": name})
                stats.failing = False
            case DeliveryDelayed(reason):
                stats.failures += 1
                if not stats.failing:
                    log.warning(
                        "receiver does not take messages; they wait",
                        extra={"receiver": name, "reason": reason},
                    )
                stats.failing = True
            case DeliveryRefused(reason):
                stats.refused += 1
                log.error(
                    "message dropped: the receiver refused it",
                    extra={"receiver": name, "reason": reason, "message_id": queued.message.id},
                )
                stats.failing = False
            case _:
                assert_never(outcome)

    def _stuck(self, error: OutboxError) -> None:
        if not self._is_stuck:
            log.error("messages cannot be stored; tried again", extra={"reason": str(error)})
        self._is_stuck = True

    async def _stored(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


async def attempt(receiver: Receiver, message: Notification) -> Outcome:
    """Send a message once, within TIMEOUT_S; whatever goes wrong is an outcome."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await receiver.send(message)
    except TimeoutError:
        return DeliveryDelayed(f"no answer within {TIMEOUT_S:g} s")
    except Exception as error:  # noqa: BLE001 - a receiver's fault must not stop the others
        # Its text may hold an address with a secret.
        return DeliveryDelayed(type(error).__name__)
