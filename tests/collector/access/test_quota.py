"""A sender that sends without bound waits, and nobody else does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.access import Scope
from gpuwarden.clock import ManualClock
from gpuwarden_collector.ingest import quota
from gpuwarden_collector.ingest.quota import DAY_S, SenderQuota, Used, charged, used_at

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


def test_those_that_have_used_most_stay_known(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "KEYS_MAX", 10)
    limited = SenderQuota(PER_DAY, clock)
    assert limited.take("token:t", "greedy", PER_DAY) is None
    for number in range(25):
        assert limited.take("token:t", f"a{number}", 1) is None
    assert limited.take("token:t", "greedy", 1) is not None


def test_many_that_wait_are_named_in_a_bounded_line(clock: ManualClock) -> None:
    limited = SenderQuota(PER_DAY, clock)
    for number in range(14):
        for _ in range(2):
            limited.take("token:t", f"a{number:02}", PER_DAY)
    assert limited.over[0] == "token t, agent a00"
    assert (len(limited.over), limited.over[-1]) == (11, "4 more")
    clock.advance(quota.RECENT_S)
    assert limited.over == ()


async def test_batches_of_a_sender_over_its_quota_wait_and_those_of_others_do_not(
    start: Any, grant: Any, bearer: Any, wire: Any, post: Any, clock: ManualClock, session: Any
) -> None:
    greedy, modest = (grant(Scope.INGEST, node=node) for node in ("n1", "n2"))
    sequence = 0

    async def send(url: str, token: Any, node: str, agent: str) -> tuple[int, str, Any]:
        nonlocal sequence
        sequence += 1
        rows = [wire.gpu_row(0, sequence % 60, node=node, gpu_uuid=f"GPU-{node}")]
        body = wire.zstd(wire.stream("gpu_samples", rows))
        return await post(url, body, sequence, agent=agent, headers=bearer(token))  # type: ignore[no-any-return]

    async with start(require_tokens=True, agent_bytes_per_day_max=2_000) as collector:
        stored = 0
        # Another name for the agent is no other quota: the token is that of one node.
        while (answer := await send(collector.url, greedy, "n1", f"agent-{stored}"))[0] == 204:
            stored += 1
            assert stored < 100
        status, text, headers = answer
        assert stored > 0
        assert (status, int(headers["Retry-After"]) >= 30) == (429, True)
        assert "node n1 has sent" in text
        assert "agent_bytes_per_day_max" in text
        assert (await send(collector.url, modest, "n2", "other"))[0] == 204
        assert collector.stats.over_quota_batches == 1
        (count,) = (await collector.querier.query("SELECT count(*) FROM gpu_samples")).rows[0]
        assert count == stored + 1
        clock.advance(int(headers["Retry-After"]) + 1)
        assert (await send(collector.url, greedy, "n1", "agent"))[0] == 204
