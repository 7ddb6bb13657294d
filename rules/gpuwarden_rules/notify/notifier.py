"""Plans messages when incidents change, stores them, and sends them.

One task plans. Each receiver has its own task that sends its messages one after another, so that a receiver
that fails does not delay others. The outbox is used on one thread only.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar, assert_never

from gpuwarden.clock import Clock, to_ms
from gpuwarden.incident import IncidentState
from gpuwarden.lifecycle import until
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.evaluation.schedule import repeat
from gpuwarden_rules.incidents.state import IncidentView
from gpuwarden_rules.notify import digest
from gpuwarden_rules.notify.message import MessageKind, Notification, PolicyText, message_id
from gpuwarden_rules.notify.outbox import Outbox, OutboxError, Queued
from gpuwarden_rules.notify.planner import IncidentNotice, NotificationPlan, plan
from gpuwarden_rules.notify.receivers.receiver import (
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    Outcome,
    Receiver,
    backoff_s,
)
from gpuwarden_rules.notify.reports import ScheduledReports, due
from gpuwarden_rules.notify.settings import Notify

log = logging.getLogger(__name__)
T = TypeVar("T")

UPDATE_S = 10.0
"""Longest time between two updates: a silence can end without a change of an alert."""
OUTBOX_RETRY_S = 5.0
STOP_TIMEOUT_S = 5.0
"""How long a running attempt may take after the stop."""
KEEP = timedelta(days=7)
"""A message that is not delivered in this time is dropped."""


@dataclass(slots=True)
class ReceiverStats:
    """Counts of a receiver's messages since the start."""

    sent: int = 0
    failures: int = 0
    refused: int = 0
    expired: int = 0
    failing: bool = False
    """Whether the last attempt failed."""


class Notifier:
    """Sends messages about incidents. `run` it; `wake` it when one changes."""

    def __init__(
        self,
        notify: Notify,
        receivers: Mapping[str, Receiver],
        outbox: Outbox,
        view: Callable[[], IncidentView | None],
        querier: Querier,
        clock: Clock,
        reports: ScheduledReports | None = None,
    ) -> None:
        """`view`: the current incidents; None: not known yet."""
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
        self._reports = reports
        self._late: set[str] = set()
        """Digests and reports that are due and could not be made."""
        self.stats = {name: ReceiverStats() for name in receivers}
        self.unrouted = 0
        """Open incidents that match no route, at the last update."""
        self.muted = 0
        self._elsewhere: frozenset[str] = frozenset()
        self._offered: Mapping[str, IncidentNotice] = {}

    @property
    def notices(self) -> Mapping[str, IncidentNotice]:
        """What receivers were sent, by key of the notice."""
        return self._state

    def leave(self, nodes: frozenset[str]) -> None:
        """Send no end of incidents of these nodes, which send to another collector."""
        self._elsewhere = nodes

    def offer(self, notices: Mapping[str, IncidentNotice]) -> None:
        """What another collector sent about incidents; it counts as sent here for those that are open here."""
        self._offered = {**self._offered, **notices}

    def continue_stats(self, before: "Notifier") -> None:
        """Take over the counts of receivers that stay; `before` has ended."""
        self.stats |= {name: found for name, found in before.stats.items() if name in self.stats}

    def wake(self) -> None:
        """Update at once. Call it in the event loop's thread."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send messages until `stop` is set; unsent ones wait in the outbox."""
        await self._load()
        try:
            async with asyncio.TaskGroup() as group:
                senders = [
                    group.create_task(self._send_to(name, receiver, stop), name=f"notify {name}")
                    for name, receiver in self._receivers.items()
                ]
                looking = group.create_task(
                    repeat(self._update_again, self._changed, stop, self._clock), name="notify"
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
            await self._on_thread(self.outbox.close)
            self._thread.shutdown(wait=False)

    async def update(self) -> datetime | None:
        """Plan messages once; returns when to plan again if nothing changes. Raises OutboxError."""
        view = self._view()
        if view is None:
            return self._clock.now() + timedelta(seconds=1)
        done = await self._on_thread(partial(self._plan, view, self._clock.now()))
        self._state, self.unrouted, self.muted = done.state, done.unrouted, done.muted
        self._announce(done.messages)
        await self._make_scheduled()
        return done.wake_at

    def reaches(self, user: str) -> bool:
        """Whether a message for this user has an address and a receiver."""
        owners = self._notify.policy.owners
        return bool(self._personal) and owners.address(user) not in (None, owners.nobody)

    async def say(self, name: str, user: str, text: PolicyText) -> None:
        """Store a message for a user, once for its name. Raises OutboxError."""
        mark = f"policy {name}"
        if mark in self._digests:
            return
        now = self._clock.now()
        messages = [
            Notification(
                id=message_id("policy", receiver, name),
                receiver=receiver,
                kind=MessageKind.POLICY,
                group=mark,
                made_at=now,
                address=self._notify.policy.owners.address(user),
                policy=text,
            )
            for receiver in self._personal
        ]
        await self._done(mark, messages, now)

    @property
    def _personal(self) -> list[str]:
        recipients = self._notify.policy.recipients
        return [name for name, one in recipients.items() if one.is_personal]

    async def _load(self) -> None:
        """Load the state of an earlier run."""
        self._state = await self._on_thread(self.outbox.state)
        self._digests = await self._on_thread(self.outbox.digests)
        gone = await self._on_thread(partial(self.outbox.retire, set(self._receivers)))
        for receiver, count in gone.items():
            log.warning(
                "messages dropped: the receiver was deleted",
                extra={"receiver": receiver, "messages": count},
            )

    def _plan(self, view: IncidentView, now: datetime) -> NotificationPlan:
        """Plan and store messages, durably, on the outbox's thread."""
        known = self._state
        if self._offered:
            open_ids = {one.id for one in view.incidents if one.state is IncidentState.OPEN}
            offered = {k: n for k, n in self._offered.items() if n.incident.id in open_ids}
            known = {**offered, **known}
        made = plan(known, view, self._notify.policy, now, self._elsewhere)
        if made.messages or made.state != self._state:
            self.outbox.commit(self._state, made.state, made.messages)
        return made

    async def _update_again(self) -> float:
        """Update once; seconds until the next update."""
        try:
            wake_at = await self.update()
        except OutboxError as error:
            self._stuck(error)
            return OUTBOX_RETRY_S
        self._is_stuck = False
        if wake_at is None:
            return UPDATE_S
        return min(UPDATE_S, (wake_at - self._clock.now()).total_seconds())

    async def _make_scheduled(self) -> None:
        """Make the digests and reports that are due, and store each with the note that it is made."""
        now = self._clock.now()
        for planned in self._notify.digests:
            if digest.is_due(planned, self._done_ms(planned.name), now):
                make = partial(digest.made, planned, self._querier, now)
                # Not the time at which it is made: the next one may be due by then.
                await self._make(planned.name, make, digest.settled_due_at(planned, now))
            else:
                await self._begin(planned.name, now)
        for one in self._reports.plans if self._reports else ():
            assert self._reports is not None
            period = due(one, self._done_ms(one.name), now)
            if period is not None:
                make = partial(self._reports.made, one, period, now)
                await self._make(one.name, make, period.due_at)
            else:
                await self._begin(one.name, now)

    def _done_ms(self, name: str) -> int | None:
        return self._digests.get(name)

    async def _begin(self, name: str, now: datetime) -> None:
        """Note when something new was first seen: it is due at its next time."""
        if name not in self._digests:
            await self._done(name, [], now)

    async def _make(
        self, name: str, make: Callable[[], Awaitable[list[Notification]]], due_at: datetime
    ) -> None:
        try:
            messages = await make()
        except QueryError as error:
            if name not in self._late:
                extra = {"due": name, "reason": str(error)}
                log.error("digest or report not made; will retry", extra=extra)
            self._late.add(name)
            return
        self._late.discard(name)
        await self._done(name, messages, due_at)

    async def _done(self, name: str, messages: Sequence[Notification], at: datetime) -> None:
        done = {name: to_ms(at)}
        await self._on_thread(partial(self.outbox.commit, {}, {}, messages, digests=done))
        self._digests |= done
        self._announce(messages)

    def _announce(self, messages: Sequence[Notification]) -> None:
        for receiver in {message.receiver for message in messages}:
            self._news[receiver].set()

    async def _send_to(self, name: str, receiver: Receiver, stop: asyncio.Event) -> None:
        """Send the messages of one receiver until `stop` is set."""
        failures = 0
        while not stop.is_set():
            self._news[name].clear()
            try:
                queued = await self._on_thread(partial(self.outbox.head, name))
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
        """Record the outcome of an attempt in the outbox. Raises OutboxError."""
        is_old = self._clock.now() - queued.message.made_at > KEEP
        if not isinstance(outcome, DeliveryDelayed):
            handle = outcome.handle if isinstance(outcome, Delivered) else None
            await self._on_thread(partial(self.outbox.remove, name, queued.sequence, handle))
        elif is_old:
            self.stats[name].expired += 1
            log.error("message dropped: not delivered for a week", extra={"receiver": name})
            await self._on_thread(partial(self.outbox.remove, name, queued.sequence))
        else:
            await self._on_thread(partial(self.outbox.put_back, queued.sequence))

    def _count(self, name: str, queued: Queued, outcome: Outcome) -> None:
        stats = self.stats[name]
        match outcome:
            case Delivered():
                stats.sent += 1
                if stats.failing:
                    log.info("receiver works again", extra={"receiver": name})
                stats.failing = False
            case DeliveryDelayed(reason):
                stats.failures += 1
                if not stats.failing:
                    log.warning(
                        "receiver does not accept messages; they wait",
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
            log.error("messages cannot be stored; will retry", extra={"reason": str(error)})
        self._is_stuck = True

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


async def attempt(receiver: Receiver, message: Notification) -> Outcome:
    """Send a message once, within the receiver's time; a failure is an outcome, not an exception."""
    try:
        async with asyncio.timeout(receiver.timeout_s):
            return await receiver.send(message)
    except TimeoutError:
        return DeliveryDelayed(f"no answer within {receiver.timeout_s:g} s")
    except Exception as error:  # noqa: BLE001 - a receiver's fault must not stop the others
        # The error text may contain an address with a secret.
        return DeliveryDelayed(type(error).__name__)
