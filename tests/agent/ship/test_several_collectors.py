"""A shipper with two collectors: what it sends to whom, and how it marks batches sent before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.fakes import until_true
from tests.agent.ship import rig

from gpuwarden.clock import SystemClock
from gpuwarden_agent.queue.encode import encode
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.ship.shipper import Answered, TimedOut, Unreachable, may_be_stored

SENT_BEFORE = "Gpuwarden-Sent-Before"


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Unreachable("refused", was_sent=False), False),
        (Unreachable("reset"), True),
        (TimedOut(10), True),
        (Answered(429), False),
        (Answered(503), True),
        (Answered(502), True),
        (Answered(204), True),
    ],
)
def test_who_may_have_a_batch(outcome: Any, expected: bool) -> None:
    assert may_be_stored(outcome) is expected


@asynccontextmanager
async def shipping(stubs: list[Any], **more: Any) -> AsyncIterator[Any]:
    """`first` and `second` are the two in the order in which the agent prefers them."""
    settings = {"backoff_max_s": 0.1} | more
    async with rig.shipping(*(stub.url for stub in stubs), **settings) as running:
        by_url = {stub.url + "/v1/ingest": stub for stub in stubs}
        pair: Any = running
        pair.first, pair.second = (by_url[url] for url in pair.shipper._urls)
        yield pair


@pytest.fixture
async def stubs(stub_collector: Any) -> AsyncIterator[list[Any]]:
    other = type(stub_collector)()
    await other.start()
    yield [stub_collector, other]
    await other.stop()


def said(stub: Any) -> list[tuple[int, str | None]]:
    return [(int(h["Gpuwarden-Sequence"]), h.get(SENT_BEFORE)) for h, _ in stub.requests]


async def test_when_it_is_gone_the_second_gets_the_rest_and_the_log_says_it_once(
    stubs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with shipping(stubs) as pair:
        pair.put()
        await until_true(pair.is_done)
        await pair.first.stop()
        pair.put(3)
        await until_true(pair.is_done)
        pair.put(3)
        await until_true(pair.is_done)
    assert len(pair.second.stored) == 6
    messages = [r.message for r in caplog.records if "gpuwarden" in r.name]
    assert messages == ["shipping to another collector"]


async def test_a_batch_that_the_first_may_have_comes_to_the_second_with_a_word_about_it(
    stubs: list[Any],
) -> None:
    async with shipping(stubs, request_timeout_s=0.3, backoff_max_s=0.05) as pair:
        pair.first.script = ["hang"] * 10
        pair.put()
        await until_true(pair.is_done)
        assert said(pair.first)[0] == (1, None)
        assert said(pair.first)[1:] == [(1, "1")] * (len(pair.first.requests) - 1)
        assert said(pair.second) == [(1, "1")]
        pair.put()
        await until_true(pair.is_done)
        assert said(pair.second)[1] == (2, None), "nobody else has it"


async def test_a_batch_that_could_not_be_sent_is_not_called_sent_before(stubs: list[Any]) -> None:
    async with shipping(stubs) as pair:
        await pair.first.stop()
        pair.put()
        await until_true(pair.is_done)
    assert said(pair.second) == [(1, None)]


async def test_what_waited_when_the_agent_started_may_have_been_sent(
    stubs: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "spool.sqlite"
    before = Spool(path, bytes_max=10**9, clock=SystemClock(), boot="boot-1")
    before.put(encode({"host_samples": [{"ts": 1, "node": "n", "simulated": False}]}), 1)
    before.close()
    spool = Spool(path, bytes_max=10**9, clock=SystemClock(), boot="boot-1")
    assert spool.last_sequence == 1
    async with shipping(stubs, spool=spool) as pair:
        pair.put()
        await until_true(pair.is_done)
    assert sorted(said(pair.first)) == [(1, "1"), (2, None)]
    spool.close()


async def test_it_goes_back_when_the_first_is_there_again(stubs: list[Any]) -> None:
    async with shipping(stubs) as pair:
        await pair.first.stop()
        pair.put(2)
        await until_true(pair.is_done)
        pair.shipper._failover = replace(pair.shipper._failover, home_at_s=0.0)
        pair.put()
        await until_true(pair.is_done)
        assert len(pair.second.stored) == 3, "not yet back: the second has that batch too"
        await pair.first.start()
        pair.shipper._failover = replace(pair.shipper._failover, home_at_s=0.0)
        pair.put(3)
        await until_true(pair.is_done)
        pair.put(2)
        await until_true(pair.is_done)
    assert len(pair.first.stored) >= 3
    assert len(pair.first.stored) + len(pair.second.stored) == 8
    assert pair.shipper._failover.at == 0


async def test_draining_tries_every_collector_before_it_gives_up(stubs: list[Any]) -> None:
    async with shipping(stubs, backoff_max_s=60) as pair:
        await pair.first.stop()
        pair.put(3)
        assert await asyncio.wait_for(pair.shipper.drain(), 60)
        assert len(pair.second.stored) == 3
        await pair.second.stop()
        pair.put()
        assert not await asyncio.wait_for(pair.shipper.drain(), 60)
        assert pair.spool.count == 1


async def test_a_second_try_over_a_fresh_connection_says_that_it_is_one(stubs: list[Any]) -> None:
    """A kept connection may lead to another collector than the next one does."""
    async with shipping(stubs) as pair:
        pair.put()
        await until_true(pair.is_done)
        pair.first.script = ["stored, then reset"]
        pair.put()
        await until_true(pair.is_done)
    assert said(pair.first) == [(1, None), (2, None), (2, "1")]
