"""A sender that sends without bound waits, and nobody else does."""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden.models import model_named
from gpuwarden_agent.probe import Row
from gpuwarden_agent.queue.encode import encode
from gpuwarden_collector import stages
from gpuwarden_collector.ingest import quota
from gpuwarden_collector.ingest.decode import Decoded, decode
from gpuwarden_collector.ingest.quota import DAY_S, SenderQuota, Used, charged, given_back, used_at
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_simulator import SimulatedNode, default_workloads

PER_DAY = 1_000
_BATCHES = st.lists(st.tuples(st.floats(0, 20_000), st.integers(1, 400)), max_size=60)


@given(batches=_BATCHES)
def test_no_span_has_more_than_a_day_s_bytes_one_batch_and_what_came_back(
    batches: list[tuple[float, int]],
) -> None:
    used: Used | None = None
    taken: list[tuple[float, int]] = []
    now_s = 0.0
    for after_s, size in batches:
        now_s += after_s
        used, wait_s = charged(used, size, PER_DAY, now_s)
        if wait_s:
            # Once the time that was said has passed a batch is taken, whatever its size.
            assert charged(used, 10**9, PER_DAY, now_s + wait_s + 1)[1] == 0
        else:
            taken.append((now_s, size))
    largest = max((size for _, size in taken), default=0)
    for n, (since_s, _) in enumerate(taken):
        total = 0
        for at_s, size in taken[n:]:
            total += size
            assert total <= PER_DAY * (1 + (at_s - since_s) / DAY_S) + largest + 1e-6
    assert used is None or used_at(used, PER_DAY, now_s + 2 * DAY_S) == 0


@given(batches=_BATCHES, failed=st.tuples(st.floats(0, 20_000), st.integers(1, 400)))
def test_a_batch_that_is_not_stored_uses_nothing_up(
    batches: list[tuple[float, int]], failed: tuple[float, int]
) -> None:
    used: Used | None = None
    now_s = 0.0
    for after_s, size in batches:
        now_s += after_s
        used, _ = charged(used, size, PER_DAY, now_s)
    after_s, size = failed
    tried, wait_s = charged(used, size, PER_DAY, now_s)
    if not wait_s:
        tried = given_back(tried, size, PER_DAY, now_s + after_s)
    later_s = now_s + after_s
    wanted = used_at(used, PER_DAY, later_s)
    assert used_at(tried, PER_DAY, later_s) == pytest.approx(wanted, abs=1e-6)


def test_senders_that_have_used_most_stay_known(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "KEYS_MAX", 10)
    limited = SenderQuota(PER_DAY, clock)
    assert limited.take("token:t", "greedy", PER_DAY) is None
    for number in range(25):
        assert limited.take("token:t", f"a{number}", 1) is None
    assert limited.take("token:t", "greedy", 1) is not None


def test_many_refused_senders_are_listed_in_a_bounded_line(clock: ManualClock) -> None:
    limited = SenderQuota(PER_DAY, clock)
    for number in range(14):
        for _ in range(2):
            limited.take("token:t", f"a{number:02}", PER_DAY)
    assert limited.over[0] == "token t, agent a00"
    assert (len(limited.over), limited.over[-1]) == (11, "4 more")
    clock.advance(quota.RECENT_S)
    assert limited.over == ()


def test_a_sender_that_waits_is_logged_once_in_ten_minutes(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    limited = SenderQuota(PER_DAY, clock)
    with caplog.at_level(logging.WARNING):
        assert limited.take("node:n1", "a", 100 * PER_DAY) is None
        for _ in range(9):
            assert limited.take("node:n1", "a", 1) is not None
            clock.advance(60)
        assert len(caplog.records) == 1
        clock.advance(60)
        limited.take("node:n1", "a", 1)
    assert len(caplog.records) == 2


def test_two_weeks_of_a_node_with_eight_gpus_pass_at_once() -> None:
    node = SimulatedNode("n1", 8, model_named("H100-SXM-80GB"), 1, default_workloads(8, 1))
    sent = 0
    for first_s in range(0, 60, 5):
        rows: dict[str, list[Row]] = {}
        for second in range(first_s, first_s + 5):
            more = {"node": "n1", "simulated": True, "ts": 1_760_000_000_000 + 1000 * second}
            due = {table for table, every_s in node.tables.items() if second % every_s == 0}
            for table, found in node.read(more["ts"], due).items():
                rows.setdefault(table, []).extend({**row, **more} for row in found)
        decoded = decode(encode(rows), "zstd")
        assert isinstance(decoded, Decoded)
        sent += decoded.memory_bytes
    assert 14 * 24 * 60 * sent < CollectorSettings().agent_bytes_per_day_max


async def test_batches_that_a_full_queue_refuses_use_nothing_up_and_are_stored_later(
    start: Any, wire: Any, post: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {
        second: wire.stream("gpu_samples", wire.gpu_rows(1000, [second])) for second in range(1, 13)
    }
    # Room for what is sent, and not for what is sent again.
    most = sum(map(len, bodies.values())) + 1
    small = partial(Writer, queue_bytes_max=1024 * 1024, commit_interval_s=0.5)
    monkeypatch.setattr(stages, "Writer", small)
    refused = 0
    async with start(agent_bytes_per_day_max=most) as collector:
        async with asyncio.timeout(60):
            while bodies:
                answers = await asyncio.gather(
                    *(post(collector.url, body, n, encoding=None) for n, body in bodies.items())
                )
                said = dict(zip(list(bodies), answers, strict=True))
                waiting = [answer for answer in said.values() if answer[0] != 204]
                for status, text, headers in waiting:
                    assert (status, "the queue is full" in text) == (429, True), text
                    assert int(headers["Retry-After"]) >= 1
                refused += len(waiting)
                bodies = {n: body for n, body in bodies.items() if said[n][0] != 204}
        assert refused
        assert collector.stats.over_quota_batches == 0
        stored = await collector.querier.query("SELECT count(*) FROM gpu_samples")
        assert stored.rows == [(12_000,)]
