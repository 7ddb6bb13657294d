"""The notifier with a real outbox and real receivers: sent once, in time, beside receivers that fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from aiohttp import web
from tests.rules.notify.alerts import START, Incidents, make_alert
from tests.rules.notify.hook_server import hook_server

from gpuwarden.alert import Alert
from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.query import QueryError
from gpuwarden_rules.exposition import notifier_exposition
from gpuwarden_rules.incidents.state import IncidentView
from gpuwarden_rules.notify.digest import SETTLED_AFTER
from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.notifier import KEEP, Notifier
from gpuwarden_rules.notify.outbox import Outbox
from gpuwarden_rules.notify.receivers.factory import receiver_of
from gpuwarden_rules.notify.receivers.receiver import (
    TIMEOUT_S,
    Delivered,
    DeliveryDelayed,
    Outcome,
)
from gpuwarden_rules.notify.settings import parse

DEADLINE_S = 30


class Scripted:
    """A receiver that answers as told: the outside world."""

    timeout_s: float | None = TIMEOUT_S

    def __init__(
        self, answer: Callable[[Notification], Outcome] = lambda message: Delivered()
    ) -> None:
        self.answer = answer
        self.got: list[Notification] = []

    async def send(self, message: Notification) -> Outcome:
        self.got.append(message)
        return self.answer(message)

    async def close(self) -> None:
        pass


class World:
    """A notifier, the alerts it sees, and its clock."""

    def __init__(self, folder, receivers, database=None, *, text="", clock=None) -> None:
        names = ", ".join(f"{{name: {name}, stdout: true}}" for name in receivers)
        self.alerts: list[Alert] | None = []
        self.incidents = Incidents()
        self.clock = clock or ManualClock(START)
        self.notifier = Notifier(
            parse(f"receivers: [{names}]\n{text}", "n.yaml", {}),
            receivers,
            Outbox(folder / "o", self.clock),
            self.view,
            database,
            self.clock,
        )

    def view(self) -> IncidentView | None:
        if self.alerts is None:
            return None
        return self.incidents.view(self.alerts, self.clock.now())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.notifier.run(stop))
            try:
                yield
            finally:
                stop.set()

    async def until(self, claim: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not claim():
                self.notifier.wake()
                await asyncio.sleep(0.01)


async def test_an_incident_reaches_a_webhook_and_so_does_its_end(tmp_path) -> None:
    async with hook_server() as hook:
        clock = SystemClock()
        notify = parse(f"receivers: [{{name: hook, webhook: '{hook.url}'}}]", "n.yaml", {})
        receivers = {"hook": receiver_of(notify.receivers[0], notify.style, clock)}
        world = World(
            tmp_path,
            receivers,
            clock=clock,
            text="routes: [{receivers: [hook], update_interval: 0s}]",
        )
        async with world.running():
            world.alerts = [make_alert(at=clock.now())]
            await world.until(lambda: hook.got)
            world.alerts = []
            await world.until(lambda: len(hook.got) == 2)
    assert [json.loads(got.body)["status"] for got in hook.got] == ["open", "resolved"]


async def test_a_dead_receiver_delays_nobody_and_loses_nothing(tmp_path) -> None:
    dead = Scripted(lambda message: DeliveryDelayed("dead"))
    good = Scripted()
    world = World(tmp_path, {"dead": dead, "good": good})
    world.alerts = [make_alert(node=f"n{n}", at=START - timedelta(hours=1)) for n in range(3)]
    async with world.running():
        await world.until(lambda: len(good.got) == 3 and dead.got)
    assert +world.notifier.outbox.waiting == {"dead": 3}
    assert world.notifier.stats["dead"].failing
    again = World(tmp_path, {"dead": Scripted(), "good": Scripted()})
    again.alerts = world.alerts
    async with again.running():
        await again.until(lambda: len(again.notifier._receivers["dead"].got) == 3)
    assert again.notifier._receivers["good"].got == []


async def test_a_receiver_that_breaks_is_later_and_its_secret_is_not_logged(
    tmp_path, caplog
) -> None:
    def broken(message: Notification) -> Outcome:
        raise RuntimeError("https://token4711@example.com")

    world = World(tmp_path, {"a": Scripted(broken)})
    world.alerts = [make_alert(at=START - timedelta(hours=1))]
    async with world.running():
        await world.until(lambda: world.notifier.stats["a"].failing)
    assert "token4711" not in caplog.text
    assert +world.notifier.outbox.waiting == {"a": 1}


async def test_a_refused_message_is_dropped_counted_and_named(tmp_path, caplog) -> None:
    async with hook_server() as hook:
        hook.answer = lambda request: web.Response(status=400, text="bad")
        clock = ManualClock(START)
        notify = parse(f"receivers: [{{name: a, webhook: '{hook.url}'}}]", "n.yaml", {})
        receiver = receiver_of(notify.receivers[0], notify.style, clock)
        world = World(tmp_path, {"a": receiver}, clock=clock)
        world.alerts = [make_alert(at=START - timedelta(hours=1))]
        async with world.running():
            await world.until(lambda: world.notifier.stats["a"].refused)
            await world.until(lambda: world.notifier.outbox.waiting["a"] == 0)
    assert len(hook.got) == 1
    assert any(getattr(r, "reason", "") == "HTTP 400: bad" for r in caplog.records)


async def test_before_the_rules_have_started_nothing_is_over(tmp_path) -> None:
    good = Scripted()
    world = World(tmp_path, {"a": good})
    world.alerts = [make_alert(at=START - timedelta(hours=1))]
    async with world.running():
        await world.until(lambda: good.got)
    again = World(tmp_path, {"a": Scripted()})
    again.alerts = None
    again.clock.advance(3600)
    async with again.running():
        assert await again.notifier.update() == again.clock.now() + timedelta(seconds=1)
        again.alerts = world.alerts
        assert await again.notifier.update() > again.clock.now() + timedelta(minutes=5)
    assert again.notifier._receivers["a"].got == []


async def test_what_nobody_took_for_a_week_is_given_up(tmp_path) -> None:
    world = World(tmp_path, {"a": Scripted(lambda message: DeliveryDelayed("dead", 0.0))})
    world.alerts = [make_alert(at=START - timedelta(hours=1))]
    async with world.running():
        await world.until(lambda: world.notifier.stats["a"].failing)
        world.alerts = None
        world.clock.advance(KEEP.total_seconds() + 1)
        await world.until(lambda: world.notifier.stats["a"].expired)
        await world.until(lambda: world.notifier.outbox.waiting["a"] == 0)


async def test_messages_to_a_receiver_that_is_gone_are_dropped_with_a_line(
    tmp_path, caplog
) -> None:
    world = World(tmp_path, {"old": Scripted(lambda message: DeliveryDelayed("dead"))})
    world.alerts = [make_alert(at=START - timedelta(hours=1))]
    async with world.running():
        await world.until(lambda: world.notifier.stats["old"].failing)
    caplog.clear()
    again = World(tmp_path, {"new": Scripted()})
    again.alerts = world.alerts
    async with again.running():
        await again.until(lambda: again.notifier._receivers["new"].got)
    assert "messages dropped: the receiver was deleted" in caplog.text


async def test_a_digest_comes_at_its_time_once(tmp_path, database) -> None:
    text = "digests: [{receivers: [a], at: 15:00}]"
    world = World(tmp_path, {"a": Scripted()}, database, text=text)
    got = world.notifier._receivers["a"].got
    async with world.running():
        await world.notifier.update()
        world.clock.advance(3600 + SETTLED_AFTER.total_seconds())
        await world.until(lambda: got)
        await world.notifier.update()
    assert [message.digest.until for message in got] == [START.replace(hour=15, minute=0)]
    again = World(tmp_path, {"a": Scripted()}, database, text=text, clock=world.clock)
    async with again.running():
        await again.notifier.update()
    assert again.notifier._receivers["a"].got == []


async def test_a_late_digest_is_not_the_one_that_was_due_a_moment_ago(tmp_path, database) -> None:
    text = "digests: [{receivers: [a], at: 15:00}]"
    world = World(tmp_path, {"a": Scripted()}, database, text=text)
    got = world.notifier._receivers["a"].got
    async with world.running():
        await world.notifier.update()
        world.clock.advance(86_400 + 59 * 60)  # 15:02
        await world.until(lambda: got)
        world.clock.advance(SETTLED_AFTER.total_seconds())
        await world.until(lambda: len(got) == 2)
    first = START.replace(hour=15, minute=0)
    assert [message.digest.until for message in got] == [first, first + timedelta(days=1)]


class NoAnswer:
    """A Querier whose store is away."""

    async def query(self, *args, **kwargs):
        raise QueryError("the store is away")


async def test_a_digest_that_cannot_be_made_is_made_when_it_can(tmp_path, database, caplog) -> None:
    world = World(
        tmp_path, {"a": Scripted()}, NoAnswer(), text="digests: [{receivers: [a], at: 15:00}]"
    )
    async with world.running():
        await world.notifier.update()
        world.clock.advance(3600 + SETTLED_AFTER.total_seconds())
        await world.notifier.update()
        assert "digest or report not made" in caplog.text
        world.notifier._querier = database
        await world.until(lambda: world.notifier._receivers["a"].got)


async def test_incidents_that_nobody_is_sent_are_counted(tmp_path) -> None:
    world = World(
        tmp_path, {"a": Scripted()}, text="routes: [{receivers: [a], match: {node: 'x'}}]"
    )
    world.alerts = [make_alert(), replace(make_alert(node="n2"), muted="silenced")]
    async with world.running():
        await world.notifier.update()
        text = notifier_exposition(world.notifier)
    assert 'gpuwarden_notify_sent_total{receiver="a"} 0.0\n' in text
    assert "gpuwarden_notify_unrouted_incidents 1.0\n" in text
    assert "gpuwarden_notify_muted_incidents 1.0\n" in text
