"""Answers mean one action each, and the shipper takes it with real servers."""

import asyncio
import contextlib
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.fakes import until_true
from tests.agent.ship.rig import shipping

from gpuwarden_agent.ship.shipper import (
    BACKOFF_FIRST_S,
    LANES,
    NEWS_TIMEOUT_S,
    RETRY_AFTER_S_MAX,
    Acknowledge,
    Answered,
    Discard,
    Outcome,
    RetryAfter,
    TimedOut,
    Unreachable,
    next_action,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def action(outcome: Outcome, attempt: int = 0, seed: int = 1) -> Any:
    return next_action(outcome, attempt, NOW, random.Random(seed), backoff_max_s=30)


def test_only_204_acknowledges_a_batch() -> None:
    assert action(Answered(204)) == Acknowledge()


@pytest.mark.parametrize("status", [400, 406, 409, 411, 413, 415, 422])
def test_an_answer_about_the_batch_drops_it_with_the_reason(status: int) -> None:
    assert action(Answered(status, None, "bad ts")) == Discard(f"{status}: bad ts")


def test_a_batch_that_is_dropped_without_a_reason_says_so() -> None:
    assert action(Answered(422)) == Discard("422: no reason given")


@pytest.mark.parametrize(
    ("outcome", "reason", "is_busy", "is_denied"),
    [
        (Answered(429, None, "slow down"), "it answered 429: slow down", True, False),
        (Answered(429, "7"), "it answered 429", True, False),
        (Answered(503, "7", "restarting"), "it answered 503: restarting", False, False),
        (Answered(500), "it answered 500", False, False),
        (Answered(401, None, "no token"), "it answered 401: no token", False, True),
        (Answered(403), "it answered 403", False, True),
        (Answered(404), "it answered 404", False, False),
        (Unreachable("Connection refused"), "Connection refused", False, False),
        (TimedOut(10), "no answer within 10 s", False, False),
    ],
)
def test_a_failed_try_says_why_and_whether_the_collector_is_busy_or_denies_access(
    outcome: Outcome, reason: str, is_busy: bool, is_denied: bool
) -> None:
    later = action(outcome)
    assert (later.reason, later.is_busy, later.is_denied) == (reason, is_busy, is_denied)


@pytest.mark.parametrize(
    "status", [200, 202, 301, 302, 401, 403, 404, 405, 408, 429, 500, 502, 503]
)
def test_any_other_answer_keeps_the_batch_for_later(status: int) -> None:
    """Also 200: a proxy that answers 200 to everything must not make the agent forget samples."""
    assert isinstance(action(Answered(status)), RetryAfter)


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        ("7", 7, 11.5),
        (" 0 ", 0, 1),
        ("999999", RETRY_AFTER_S_MAX, RETRY_AFTER_S_MAX * 1.5 + 1),
        ("9" * 400, RETRY_AFTER_S_MAX, RETRY_AFTER_S_MAX * 1.5 + 1),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60, 91),
        ("Thu, 01 Jan 2020 00:00:00 GMT", 0, 1),
        ("soon", 0, BACKOFF_FIRST_S),
        ("-5", 0, BACKOFF_FIRST_S),
        ("Thu, 01 Jan 2026 00:01:00", 0, BACKOFF_FIRST_S),
    ],
)
def test_retry_after_is_a_least_time_bounded_and_spread(
    header: str, least_s: float, most_s: float
) -> None:
    pauses = [action(Answered(503, header), seed=seed).seconds for seed in range(50)]
    assert least_s <= min(pauses)
    assert max(pauses) <= most_s
    assert len(set(pauses)) > 20, "a fleet must not come back in one instant"


@given(attempt=st.integers(0, 10_000), seed=st.integers(0, 1000))
def test_backoff_grows_to_its_bound_and_never_spins(attempt: int, seed: int) -> None:
    pause_s = action(Unreachable("refused"), attempt, seed).seconds
    assert 0.05 <= pause_s <= min(30, BACKOFF_FIRST_S * 2 ** min(attempt, 20))


def test_each_failed_try_doubles_the_longest_pause() -> None:
    for attempt in range(5):
        longest_s = max(action(Unreachable("refused"), attempt, seed).seconds for seed in range(99))
        assert longest_s == pytest.approx(BACKOFF_FIRST_S * 2**attempt, rel=0.1)


async def test_a_password_in_the_address_is_not_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with shipping("http://user:secret@127.0.0.1:1/prefix") as rig:
        rig.put(1)
        await until_true(lambda: rig.counters.tries_failed > 0)
    (shown,) = {getattr(record, "collector", "") for record in caplog.records} - {""}
    assert shown == "http://127.0.0.1:1/prefix/v1/ingest"
    assert rig.counters.last_error == f"{shown}: Connection refused"


async def test_batches_are_sent_with_their_identity_and_forgotten(stub_collector: Any) -> None:
    async with shipping(stub_collector.url + "/") as rig:
        rig.put(3)
        await until_true(rig.is_done)
    assert sorted(key[2] for key in stub_collector.stored) == [1, 2, 3]
    headers, _ = stub_collector.requests[0]
    assert headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    assert headers["Content-Encoding"] == "zstd"
    assert headers["Gpuwarden-Wire-Version"] == "1"
    assert headers["Gpuwarden-Agent-Id"] == rig.spool.agent_id
    assert headers["Gpuwarden-Boot-Id"].startswith("boot-1.")
    assert headers["Gpuwarden-Oldest-Sequence"] == "1"
    assert rig.counters.batches_acknowledged == 3


async def test_the_length_of_batch_that_the_collector_asks_for_is_handed_on(
    stub_collector: Any,
) -> None:
    asked = list[int]()
    header = {"Gpuwarden-Batch-Seconds": "20"}
    stub_collector.script = [(503, {"Retry-After": "0"} | header), (204, header)]
    async with shipping(stub_collector.url, on_batch_seconds=asked.append) as rig:
        rig.put(1)
        await until_true(rig.is_done)
        rig.put(1)
        await until_true(rig.is_done)
    assert asked == [20, 0]


@pytest.mark.parametrize("trouble", [429, (503, {"Retry-After": "0"})])
async def test_after_trouble_the_same_batch_comes_again(stub_collector: Any, trouble: Any) -> None:
    stub_collector.script = [trouble, trouble]
    async with shipping(stub_collector.url) as rig:
        rig.put(1)
        await until_true(rig.is_done)
    assert [int(h["Gpuwarden-Sequence"]) for h, _ in stub_collector.requests][:3] == [1, 1, 1]
    assert rig.counters.batches_acknowledged == 1
    assert rig.counters.batches_sent >= 3


async def test_a_batch_that_was_stored_but_not_answered_is_sent_again_unchanged(
    stub_collector: Any,
) -> None:
    stub_collector.script = ["stored, then reset"]
    async with shipping(stub_collector.url) as rig:
        rig.put(1)
        await until_true(rig.is_done)
    first, second = stub_collector.requests
    assert first[1] == second[1]
    assert len(stub_collector.stored) == 1


async def test_a_refused_batch_is_set_apart_and_the_next_ones_go_on(stub_collector: Any) -> None:
    stub_collector.script = [(400, {}, '{"error": "ts is in the\\nfuture", "status": 400}')]
    async with shipping(stub_collector.url) as rig:
        rig.put(2)
        await until_true(rig.is_done)
    assert len(stub_collector.stored) == 1
    assert rig.refused == ["400: ts is in the future"]
    assert [batch.reason for batch in rig.spool.refused()] == ["400: ts is in the future"]
    assert rig.counters.batches_refused == 1


async def test_a_batch_that_breaks_the_collector_does_not_hold_up_the_others(
    stub_collector: Any,
) -> None:
    stub_collector.broken_by = {1}
    async with shipping(stub_collector.url, backoff_max_s=0.3) as rig:
        rig.put(10)
        await until_true(lambda: rig.spool.count == 1)
        assert sorted(key[2] for key in stub_collector.stored) == list(range(2, 11))
        oldest = {h["Gpuwarden-Oldest-Sequence"] for h, _ in stub_collector.requests}
        assert oldest == {"1"}, "the collector must not think that it was given up"
        stub_collector.broken_by = set()
        await until_true(rig.is_done)
    assert len(stub_collector.stored) == 10


async def test_a_batch_that_another_lane_failed_to_send_does_not_wait_for_news(
    stub_collector: Any,
) -> None:
    stub_collector.script = [204, "hang"]
    async with shipping(stub_collector.url, request_timeout_s=0.5) as rig:
        rig.put(2)
        await until_true(rig.is_done, timeout_s=NEWS_TIMEOUT_S / 2)


async def test_while_the_collector_is_away_one_lane_tries_and_the_log_says_it_once(
    stub_collector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await stub_collector.stop()
    async with shipping(stub_collector.url, backoff_max_s=0.05) as rig:
        rig.put(20)
        await until_true(lambda: rig.counters.batches_sent >= LANES + 5)
        await stub_collector.start()
        await until_true(rig.is_done)
    said = [record.message for record in caplog.records if "gpuwarden" in record.name]
    assert said == ["collector takes no batches; they wait in the spool", "collector is back"]
    back = next(r for r in caplog.records if r.message == "collector is back")
    assert back.batches_waiting == 19  # type: ignore[attr-defined]
    assert len(stub_collector.stored) == 20


async def test_a_collector_that_denies_access_after_an_outage_is_logged_again_once(
    stub_collector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stub_collector.script = [503, 503, 401, 401, 204]
    async with shipping(stub_collector.url) as rig:
        rig.put(1)
        await until_true(rig.is_done)
    told = [getattr(r, "why", "") for r in caplog.records if "takes no batches" in r.message]
    assert [why[:15] for why in told] == ["it answered 503", "it answered 401"]


async def test_a_backlog_goes_out_over_several_lanes_with_the_newest_among_the_first(
    stub_collector: Any,
) -> None:
    stub_collector.script = ["hang"] * LANES
    async with shipping(stub_collector.url) as rig:
        rig.put(40)
        await until_true(lambda: stub_collector.in_flight == LANES)
        sent = {int(h["Gpuwarden-Sequence"]) for h, _ in stub_collector.requests}
        assert sent == {1, 2, 3, 40}
        stub_collector.hang.set()
        await until_true(rig.is_done)
    assert stub_collector.in_flight_max == LANES


async def test_draining_sends_what_waits_even_in_the_middle_of_a_long_pause(
    stub_collector: Any,
) -> None:
    stub_collector.script = [(503, {"Retry-After": "120"})]
    async with shipping(stub_collector.url) as rig:
        rig.put(1)
        await until_true(lambda: rig.counters.batches_sent == 1)
        await until_true(lambda: rig.counters.last_error is not None)
        assert await asyncio.wait_for(rig.shipper.drain(), 5)
    assert len(stub_collector.stored) == 1


async def test_draining_gives_up_at_the_first_failure(stub_collector: Any) -> None:
    await stub_collector.stop()
    async with shipping(stub_collector.url, backoff_max_s=60) as rig:
        rig.put(3)
        assert not await asyncio.wait_for(rig.shipper.drain(), 5)
        assert rig.spool.count == 3
    assert rig.counters.last_error == f"{stub_collector.url}/v1/ingest: Connection refused"
    assert rig.counters.tries_failed >= 1


async def test_a_disk_that_fails_at_the_acknowledgement_costs_nothing_but_a_resend(
    stub_collector: Any,
) -> None:
    async with shipping(stub_collector.url, backoff_max_s=0.1) as rig:
        rig.spool._db.execute("PRAGMA query_only = ON")
        with contextlib.suppress(Exception):
            rig.spool.acknowledge(99)
        rig.spool._db.execute("PRAGMA query_only = OFF")
        rig.put(1)
        rig.spool._db.execute("PRAGMA query_only = ON")
        await until_true(lambda: len(stub_collector.requests) >= 2)
        rig.spool._db.execute("PRAGMA query_only = OFF")
        await until_true(rig.is_done)
    assert len(stub_collector.stored) == 1
