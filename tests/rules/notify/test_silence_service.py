"""Silences of a rule engine and of a real Alertmanager (Debian's prometheus-alertmanager) become equal."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.rules.notify.alerts import make_alert, message_of
from tests.rules.notify.hook_server import hook_server
from tests.rules.notify.receivers.test_alertmanager import NAME, STYLE, running_alertmanager

from gpuwarden.alert import Silence, matcher_of
from gpuwarden.clock import SystemClock, iso_text
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.exposition import notifier_exposition
from gpuwarden_rules.notify.notifier import Notifier
from gpuwarden_rules.notify.outbox import Outbox
from gpuwarden_rules.notify.receivers.alertmanager import Alertmanager
from gpuwarden_rules.notify.receivers.alertmanager_silences import (
    AlertmanagerSilences,
    SilencesError,
)
from gpuwarden_rules.notify.receivers.receiver import Delivered
from gpuwarden_rules.notify.settings import parse
from gpuwarden_rules.notify.silence_service import SilenceSync
from gpuwarden_rules.notify.silence_sync import SyncState, id_here
from gpuwarden_rules.testing import MemoryDatabase

CLOCK = SystemClock()
HOUR = timedelta(hours=1)
real = pytest.mark.skipif(shutil.which(NAME) is None, reason=f"{NAME} is not on the PATH")


def silence_of(name: str, text: str, now: datetime) -> Silence:
    return Silence(
        id=name,
        matchers=(matcher_of(text),),
        author="ann",
        comment="rack moves",
        starts_at=now,
        ends_at=now + HOUR,
    )


class Sides:
    """A rule engine, an Alertmanager, and what keeps their silences equal."""

    def __init__(self, url: str, folder: Path, store: Any) -> None:
        self.url = url
        self.engine = RuleEngine([], MemoryDatabase(), store, CLOCK)
        self.outbox = Outbox(folder / "o", CLOCK)
        self.there = AlertmanagerSilences(url)
        self.sync = SilenceSync("am", self.there, self.engine, CLOCK)
        self.session = aiohttp.ClientSession()

    async def save(self, state: SyncState) -> None:
        self.outbox.save_sync("am", state)

    async def rounds(self, count: int = 2) -> None:
        """Rounds as after a start: the state comes from the disk."""
        for _ in range(count):
            stored = self.outbox.sync_state("am")
            self.sync._state = self.sync._stored = stored or SyncState(installation="0123abcd")
            await self.sync.round(self.save)

    async def active(self) -> dict[str, dict[str, Any]]:
        """What Alertmanager lists as active, by id."""
        async with self.session.get(f"{self.url}/api/v2/silences") as answer:
            found = await answer.json()
        return {one["id"]: one for one in found if one["status"]["state"] == "active"}

    async def post(self, silence: dict[str, Any]) -> str:
        async with self.session.post(f"{self.url}/api/v2/silences", json=silence) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["silenceID"])

    async def delete(self, theirs_id: str) -> None:
        async with self.session.delete(f"{self.url}/api/v2/silence/{theirs_id}") as answer:
            assert answer.status == 200, await answer.text()

    async def close(self) -> None:
        await self.there.close()
        await self.session.close()
        self.outbox.close()


@asynccontextmanager
async def both_sides(folder: Path, store: Any) -> AsyncIterator[Sides]:
    with running_alertmanager(folder) as url:
        sides = Sides(url, folder, store)
        try:
            async with asyncio.timeout(60):
                while True:
                    try:
                        await sides.there.listed()
                        break
                    except SilencesError:
                        await asyncio.sleep(0.1)
                yield sides
        finally:
            await sides.close()


def theirs(now: datetime, *matchers: tuple[str, str, bool], **about: Any) -> dict[str, Any]:
    return {
        "matchers": [
            {"name": n, "value": v, "isRegex": is_regex, "isEqual": True}
            for n, v, is_regex in matchers
        ],
        "startsAt": iso_text(now),
        "endsAt": iso_text(now + HOUR),
        "createdBy": "bob",
        "comment": "power work",
    } | about


@pytest.mark.slow
@real
async def test_a_silence_made_here_is_in_alertmanager_until_either_side_ends_it(
    tmp_path: Path, store: Any
) -> None:
    async with both_sides(tmp_path, store) as sides:
        now = CLOCK.now()
        for name in ("s1", "s2"):
            await sides.engine.silence(silence_of(name, f"rule=~gpu_{name}.*", now))
        await sides.rounds()
        found = {one["comment"]: one for one in (await sides.active()).values()}
        assert found.keys() == {f"rack moves [gpuwarden 0123abcd {name}]" for name in ("s1", "s2")}
        one = found["rack moves [gpuwarden 0123abcd s1]"]
        assert one["createdBy"] == "ann"
        assert one["matchers"] == [
            {"name": "alertname", "value": "gpu_s1.*", "isRegex": True, "isEqual": True}
        ]
        # Ended there: over here. Ended here: over there.
        await sides.delete(one["id"])
        (two,) = [s for s in sides.engine.silences if s.id == "s2"]
        await sides.engine.silence(replace(two, ends_at=CLOCK.now()))
        await sides.rounds()
        assert sides.engine.silences == []
        assert await sides.active() == {}
        await sides.rounds()
        assert sides.engine.silences == []
        assert await sides.active() == {}


@pytest.mark.slow
@real
async def test_a_silence_made_in_alertmanager_is_here_with_its_new_end(
    tmp_path: Path, store: Any
) -> None:
    async with both_sides(tmp_path, store) as sides:
        now = CLOCK.now()
        labels = ("severity", "critical", False), ("alertname", "rule_.*", True)
        first = await sides.post(theirs(now, *labels))
        await sides.post(theirs(now, ("instance", "db1", False)))
        unknown = await sides.post(theirs(now, ("incident", "i1", False)))
        await sides.rounds()
        (mine,) = sides.engine.silences
        assert mine.id == id_here(first)
        assert [*map(str, mine.matchers)] == ["severity=critical", "rule=~rule_.*"]
        assert (mine.author, mine.comment) == ("bob", "power work")
        assert sides.sync.not_carried.keys() == {unknown}
        # Alertmanager keeps the id of a silence that is extended.
        later = theirs(now, *labels, id=first, endsAt=iso_text(now + 3 * HOUR))
        assert await sides.post(later) == first
        await sides.rounds()
        assert abs(sides.engine.silences[0].ends_at - now - 3 * HOUR) < timedelta(seconds=1)
        # An end here expires it there, and it does not come back.
        await sides.engine.silence(replace(sides.engine.silences[0], ends_at=CLOCK.now()))
        await sides.rounds()
        assert first not in await sides.active()
        await sides.rounds()
        assert sides.engine.silences == []


@pytest.mark.slow
@real
async def test_grouped_by_incident_alertmanager_has_one_group_of_an_incident(
    tmp_path: Path, store: Any
) -> None:
    async with both_sides(tmp_path, store) as sides:
        now = CLOCK.now()
        alerts = [make_alert(gpu=gpu, at=now) for gpu in range(4)]
        first, second = message_of(*alerts[:3], at=now), message_of(alerts[3], at=now)
        assert second.incident is not None
        second = replace(second, incident=replace(second.incident, id="another"))
        receiver = Alertmanager(sides.url, STYLE)
        for message in (first, second):
            assert isinstance(await receiver.send(message), Delivered)
        await receiver.close()
        groups: list[Any] = []
        while sum(len(group["alerts"]) for group in groups) < 4:
            await asyncio.sleep(0.1)
            async with sides.session.get(f"{sides.url}/api/v2/alerts/groups") as answer:
                groups = await answer.json()
        assert first.incident is not None
        sizes = {group["labels"]["incident"]: len(group["alerts"]) for group in groups}
        assert sizes == {first.incident.id: 3, "another": 1}


async def test_an_alertmanager_that_fails_is_named() -> None:
    outside = theirs(CLOCK.now(), ("node", "n1", False), endsAt="9999-12-31T23:59:59-05:00")
    listed = [{**outside, "id": "t1", "status": {"state": "active"}}]
    answers = [
        web.Response(status=503, text="starting"),
        web.json_response({"not": "a list"}),
        web.json_response(listed),
    ]

    async with hook_server() as hook:
        hook.answer = lambda _request: answers.pop(0)
        there = AlertmanagerSilences(hook.url)
        with pytest.raises(SilencesError, match="HTTP 503: starting"):
            await there.listed()
        for _ in range(2):
            with pytest.raises(SilencesError, match="cannot be read"):
                await there.listed()
        await there.close()
    there = AlertmanagerSilences("http://127.0.0.1:1")
    with pytest.raises(SilencesError, match="ClientConnectorError"):
        await there.listed()
    await there.close()


async def test_the_notifier_carries_silences_and_says_what_it_cannot_carry(
    tmp_path: Path, store: Any
) -> None:
    engine = RuleEngine([], MemoryDatabase(), store, CLOCK)
    now = CLOCK.now()
    await engine.silence(silence_of("s1", "node=n1", now))
    await engine.silence(replace(silence_of("s2", "node=n1", now), matchers=(), fingerprint="ab"))
    async with hook_server() as hook:
        hook.answer = lambda request: web.json_response(
            [] if request.method == "GET" else {"silenceID": "t1"}
        )
        text = f"receivers: [{{name: am, alertmanager: '{hook.url}', silences: true}}]"
        notify = parse(text, "n.yaml", {})
        assert notify.receivers[0].shares_silences
        notifier = Notifier(
            notify,
            {"am": Alertmanager(hook.url, STYLE)},
            Outbox(tmp_path / "o", CLOCK),
            lambda: None,
            MemoryDatabase(),
            CLOCK,
            [SilenceSync("am", AlertmanagerSilences(hook.url), engine, CLOCK)],
        )
        stop = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(notifier.run(stop))
            while not any(json.loads(got.body or "{}") for got in hook.got):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            said = notifier_exposition(notifier)
            stop.set()
    assert 'gpuwarden_notify_silences_not_carried{receiver="am"} 1.0' in said
    outbox = Outbox(tmp_path / "o", CLOCK)
    stored = outbox.sync_state("am")
    outbox.close()
    assert stored is not None
    assert {key: link.theirs for key, link in stored.links.items()} == {"s1": "t1"}


def test_the_state_is_on_disk_and_of_each_receiver(tmp_path: Path) -> None:
    state = SyncState(installation="0123abcd")
    outbox = Outbox(tmp_path / "o", CLOCK)
    assert outbox.sync_state("am") is None
    outbox.save_sync("am", state)
    outbox.close()
    outbox = Outbox(tmp_path / "o", CLOCK)
    assert outbox.sync_state("am") == state
    assert outbox.sync_state("other") is None
    outbox.close()
