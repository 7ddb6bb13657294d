"""The clock that the holder of a token claims decides about its own batches, and not about those of others."""

import asyncio
from typing import Any

import pytest

from gpuwarden.access import Scope, Token
from gpuwarden.clock import to_ms
from gpuwarden.wire import NOW_HEADER

NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def send(wire: Any, post: Any, bearer: Any, clock: Any) -> Any:
    """Send a row of a node as an agent whose clock is so far ahead; the status and the answer."""
    sequence = 0

    async def sent(
        url: str, token: Token, node: str, ahead_s: float, agent: str = "agent", body: bytes = b""
    ) -> tuple[int, str]:
        nonlocal sequence
        sequence += 1
        row = wire.gpu_row(0, sequence % 60, node=node, gpu_uuid=f"GPU-{node}")
        body = body or wire.zstd(wire.stream("gpu_samples", [row]))
        now = {NOW_HEADER: str(to_ms(clock.now()) + int(ahead_s * 1000))}
        status, text, _ = await post(
            url, body, sequence, agent=f"{agent}-{node}", headers=bearer(token) | now
        )
        return status, text

    return sent


@pytest.fixture(autouse=True)
def _judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwarden_collector.stages.kernel_synchronised", lambda: True)
    monkeypatch.setattr("gpuwarden_collector.stages.CLOCK_CHECK_INTERVAL_S", 0.01)


async def test_invented_agents_of_a_token_do_not_stop_other_senders(
    start: Any, grant: Any, send: Any, session: Any
) -> None:
    fleet = grant(Scope.INGEST)
    own = {node: grant(Scope.INGEST, node=node) for node in NODES}
    async with start(require_tokens=True) as collector:
        for node, token in own.items():
            assert (await send(collector.url, token, node, 0.1))[0] == 204
        for number in range(40):
            await send(collector.url, fleet, f"x{number}", -7_200.0, f"invented-{number}")
        await asyncio.sleep(0.1)
        async with session.get(f"{collector.url}/readyz") as ready:
            assert ready.status == 200, await ready.text()
        for node, token in own.items():
            assert (await send(collector.url, token, node, 0.1))[0] == 204


async def test_only_batches_that_could_be_admitted_count_for_the_clock(
    start: Any, grant: Any, send: Any, session: Any
) -> None:
    own = {node: grant(Scope.INGEST, node=node) for node in NODES}
    async with start(require_tokens=True) as collector:
        for token in own.values():
            agent = f"agent-{token.id}"
            assert (await send(collector.url, token, "other", -7_200.0, agent))[0] == 403
            assert (await send(collector.url, token, "n1", -7_200.0, agent, b"junk"))[0] == 400
        await asyncio.sleep(0.1)
        async with session.get(f"{collector.url}/readyz") as ready:
            assert ready.status == 200, await ready.text()
        assert (await send(collector.url, own["n1"], "n1", 0.1))[0] == 204


async def test_while_the_clock_is_doubted_batches_of_agents_that_agree_with_it_are_stored(
    start: Any, grant: Any, send: Any, session: Any
) -> None:
    """Who has most of the senders' tokens makes the collector doubt its clock, and stops nobody else."""
    own = {node: grant(Scope.INGEST, node=node) for node in (*NODES, "n5")}
    async with start(require_tokens=True) as collector:
        for node in NODES:
            await send(collector.url, own[node], node, -7_200.0)
        async with session.get(f"{collector.url}/readyz") as ready:
            assert ready.status == 503
        status, text = await send(collector.url, own["n1"], "n1", -7_200.0)
        assert (status, "2:00:00 ahead of those of 4 of 4 agents" in text) == (503, True), text
        assert (await send(collector.url, own["n5"], "n5", 0.1))[0] == 204


async def test_a_time_outside_the_calendar_is_refused(
    start: Any, grant: Any, wire: Any, post: Any, bearer: Any, send: Any
) -> None:
    token = grant(Scope.INGEST)
    body = wire.zstd(wire.stream("gpu_samples", [wire.gpu_row()]))
    async with start(require_tokens=True) as collector:
        for number in range(1, 5):
            headers = bearer(token) | {NOW_HEADER: "9" * 18}
            agent = f"agent-{number}"
            status, text, _ = await post(collector.url, body, number, agent=agent, headers=headers)
            assert (status, "milliseconds since 1970" in text) == (400, True), text
        assert (await send(collector.url, token, "n1", 0.1))[0] == 204


async def test_a_node_whose_clock_is_wrong_is_reported_and_its_rows_are_stored(
    start: Any, grant: Any, send: Any, clock: Any
) -> None:
    own = {node: grant(Scope.INGEST, node=node) for node in NODES}
    told = "SELECT node, message FROM events WHERE kind = 'node_clock_apart' ORDER BY ts, node"
    async with start(require_tokens=True) as collector:
        for ahead_s in (-7_200.0, -7_200.0):
            assert (await send(collector.url, own["n1"], "n1", ahead_s))[0] == 204
        assert (await send(collector.url, own["n2"], "n2", 70.0))[0] == 204
        assert (await send(collector.url, own["n3"], "n3", -20.0))[0] == 204
        rows = (await collector.querier.query(told)).rows
        assert [node for node, _ in rows] == ["n1", "n2"]
        assert "the clock of n1 is 2:00:00 behind the collector's" in rows[0][1]
        assert "the clock of n2 is 0:01:10 ahead of the collector's" in rows[1][1]
        assert collector.stats.clock_apart_batches == 3
        clock.advance(600)
        assert (await send(collector.url, own["n1"], "n1", -7_200.0))[0] == 204
        assert len((await collector.querier.query(told)).rows) == 3


async def test_a_collector_with_an_unconfirmed_clock_reports_no_node(
    start: Any, grant: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden_collector.stages.kernel_synchronised", lambda: None)
    token = grant(Scope.INGEST, node="n1")
    async with start(require_tokens=True) as collector:
        assert (await send(collector.url, token, "n1", -7_200.0))[0] == 204
        found = await collector.querier.query("SELECT count(*) FROM events")
        assert found.rows == [(0,)]
