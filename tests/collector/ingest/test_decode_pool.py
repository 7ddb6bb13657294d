"""Bodies decoded together get the answers that each would get alone."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuwarden_collector.ingest.decode_pool as intake_module
from gpuwarden.clock import ManualClock
from gpuwarden_collector.ingest.admit import window
from gpuwarden_collector.ingest.coalesce import KnownSchemas
from gpuwarden_collector.ingest.decode import Decoded, RefusedBody
from gpuwarden_collector.ingest.decode_pool import Body, DecodePool, admit
from gpuwarden_collector.stats import Faults, Stats


def bodies_of(wire: Any) -> list[Body]:
    """Good, refused in every way, and good again."""
    row = wire.gpu_row
    raws = [
        wire.stream("gpu_samples", [row(0)]),
        wire.stream("gpu_samples", [row(0)]),
        b"garbage, and no stream at all",
        wire.stream("gpu_samples", [row(1, util_percent=200.0)]),
        wire.stream("gpu_samples", [row(2, power_watts=float("nan"))]),
        wire.stream("gpu_samples", [row(3, second=9999)]),
        wire.stream("host_samples", [{"ts": wire.now, "node": "n", "simulated": True}]),
        wire.stream("gpu_samples", []),
    ]
    return [Body(raw, "") for raw in raws]


def kind(result: Decoded | RefusedBody) -> object:
    return (
        result
        if isinstance(result, RefusedBody)
        else {n: t.num_rows for n, t in result.tables.items()}
    )


@given(data=st.data())
@settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_together_and_alone_are_the_same(wire: Any, data: st.DataObject) -> None:
    admitted = window(wire.now, 3600, 300)
    chosen = data.draw(st.lists(st.sampled_from(bodies_of(wire)), max_size=8))
    schemas = KnownSchemas()
    admit(bodies_of(wire)[:1], admitted, schemas)  # how gpu_samples begins is known from now on
    together = admit(chosen, admitted, schemas)
    alone = [admit([body], admitted)[0] for body in chosen]
    assert [kind(result) for result in together] == [kind(result) for result in alone]


def test_small_bodies_that_decode_to_much_are_not_all_held_at_once(
    wire: Any, clock: ManualClock
) -> None:
    large = Body(wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(20_000, [0]))), "zstd")
    admitted = window(wire.now, 3600, 300)
    first = admit([large], admitted)[0]
    assert isinstance(first, Decoded)
    assert len(large.content) * 20 < first.memory_bytes
    assert 1 < len(admit([large] * 30, admitted)) < 20

    async def run() -> list[Decoded | RefusedBody]:
        intake = DecodePool(clock, ts_past_max_s=3600, ts_future_max_s=300, stats=Stats())
        try:
            small = [intake.admit(body) for body in bodies_of(wire)]
            return await asyncio.gather(*(intake.admit(large) for _ in range(30)), *small)
        finally:
            intake.close()

    results = asyncio.run(run())
    assert [kind(r) for r in results[:30]] == [kind(first)] * 30
    assert [kind(r) for r in results[30:]] == [kind(r) for r in admit(bodies_of(wire), admitted)]


async def test_a_cancelled_request_does_not_block_others(wire: Any, clock: ManualClock) -> None:
    intake = DecodePool(clock, ts_past_max_s=3600, ts_future_max_s=300, stats=Stats())
    body = bodies_of(wire)[0]
    async with asyncio.TaskGroup() as group:
        gone = [group.create_task(intake.admit(body)) for _ in range(5)]
        stays = group.create_task(intake.admit(body))
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
    assert isinstance(stays.result(), Decoded)
    intake.close()


async def test_imports_may_be_of_any_age_and_admit_no_other_old_batch(
    wire: Any, clock: ManualClock
) -> None:
    intake = DecodePool(clock, ts_past_max_s=3600, ts_future_max_s=300, stats=Stats())
    old = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(1, [-86_400 * 900])))
    ahead = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(1, [86_400])))
    bodies = [
        Body(old, "zstd", True),
        Body(old, "zstd"),
        Body(ahead, "zstd", True),
        Body(old, "zstd", True),
    ]
    results = await asyncio.gather(*(intake.admit(body) for body in bodies))
    assert [type(result) for result in results] == [Decoded, RefusedBody, RefusedBody, Decoded]
    intake.close()


def poisoned(function: Any, error: Exception) -> Callable[..., Any]:
    """Raises on tables with rows of the node `poison`, whether alone or among others'."""

    def wrapped(tables: Any, *rest: Any) -> Any:
        for table in tables.values():
            if "poison" in table["node"].to_pylist():
                raise error
        return function(tables, *rest)

    return wrapped


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (pa.ArrowInvalid("a\nstack"), 422),
        (ZeroDivisionError("division"), 422),
        (RecursionError("deep"), 422),
        (MemoryError(), 503),
        (pa.lib.ArrowMemoryError("malloc of size 64 failed"), 503),
    ],
)
def test_a_body_that_raises_is_refused_alone(
    wire: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setattr(intake_module, "checked", poisoned(intake_module.checked, error))
    good = [Body(wire.stream("gpu_samples", [wire.gpu_row(gpu)]), "") for gpu in range(4)]
    bad = Body(wire.stream("gpu_samples", [wire.gpu_row(4, node="poison")]), "")
    admitted, schemas, faults = window(wire.now, 3600, 300), KnownSchemas(), Faults()
    admit(good[:1], admitted, schemas)
    for _ in range(10):
        results = admit([*good[:2], bad, *good[2:]], admitted, schemas, faults)
        assert [type(r) for r in results] == [Decoded, Decoded, RefusedBody, Decoded, Decoded]
        refused = results[2]
        assert isinstance(refused, RefusedBody)
        assert refused.status == status
        assert "\n" not in refused.reason
    assert faults.counts == {"decode_together": 10, "decode": 10}


def test_an_exception_while_nodes_are_read_refuses_one_body_alone(
    wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(self: Any, batch: Decoded, node: str) -> None:
        if node == "poison":
            raise OverflowError(node)

    monkeypatch.setattr(intake_module.NodeColumns, "refusal", refusal)
    bodies = [
        Body(wire.stream("gpu_samples", [wire.gpu_row()]), "", False, node)
        for node in ("n1", "poison", "n1")
    ]
    results = admit(bodies, window(wire.now, 3600, 300))
    assert [type(r) for r in results] == [Decoded, RefusedBody, Decoded]


@pytest.mark.parametrize("value", [-(2**63), -(2**63) + 1, -(2**53) - 1, -1])
def test_an_integer_that_no_float_is_equal_to_is_refused_with_its_column(
    wire: Any, value: int
) -> None:
    body = Body(wire.stream("gpu_samples", [wire.gpu_row(memory_used_bytes=value)]), "")
    good = Body(wire.stream("gpu_samples", [wire.gpu_row(1)]), "")
    faults = Faults()
    results = admit([good, body, good], window(wire.now, 3600, 300), KnownSchemas(), faults)
    assert [type(r) for r in results] == [Decoded, RefusedBody, Decoded]
    assert isinstance(results[1], RefusedBody)
    assert "gpu_samples.memory_used_bytes: 1 rows are outside" in results[1].reason
    assert not faults.counts


async def test_a_thread_that_hangs_is_replaced_and_no_batch_is_lost(
    wire: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """What hangs must be sent again, by itself, and not at all while it hangs by itself; others are decoded."""
    may_go = threading.Event()
    real, content_of = intake_module.DECODE_S, intake_module.content_of
    poison = b"poison"

    def hanging(content: bytes, encoding: str) -> Any:
        if content == poison:
            may_go.wait(60)
        return content_of(content, encoding)

    monkeypatch.setattr(intake_module, "content_of", hanging)
    monkeypatch.setattr(intake_module, "DECODE_S", 0.3)
    stats = Stats()
    pool = DecodePool(clock, ts_past_max_s=3600, ts_future_max_s=300, stats=stats)
    good = Body(wire.stream("gpu_samples", [wire.gpu_row()]), "")
    bad = Body(poison, "")
    try:
        async with asyncio.timeout(30):
            results = await asyncio.gather(*(pool.admit(body) for body in (good, bad, good)))
            assert [r.status for r in results if isinstance(r, RefusedBody)] == [503] * 3
            monkeypatch.setattr(intake_module, "DECODE_S", real)
            assert isinstance(await pool.admit(good), Decoded)  # again, in a group of its own
            monkeypatch.setattr(intake_module, "DECODE_S", 0.3)
            for _ in range(3):
                refused = await pool.admit(bad)
                assert isinstance(refused, RefusedBody) and refused.status == 503
            assert (stats.decode_hangs, pool.hung, pool.is_alive) == (2, 2, True)
            monkeypatch.setattr(intake_module, "DECODE_S", real)
            results = await asyncio.gather(*(pool.admit(body) for body in (good, bad, good)))
            assert [type(r) for r in results] == [Decoded, RefusedBody, Decoded]
            may_go.set()
            await eventually(lambda: pool.hung == 0)
            late = await pool.admit(bad)
            assert isinstance(late, RefusedBody) and late.status == 400
    finally:
        may_go.set()
        pool.close()


async def test_when_every_thread_hangs_bodies_are_refused_for_now_and_the_collector_is_not_ready(
    start: Any, wire: Any, post: Any, session: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    may_go = threading.Event()
    content_of = intake_module.content_of

    def hanging(content: bytes, encoding: str) -> Any:
        if content.startswith(b"poison"):
            may_go.wait(60)
        return content_of(content, encoding)

    monkeypatch.setattr(intake_module, "content_of", hanging)
    async with start() as collector:
        with monkeypatch.context() as hurried:
            hurried.setattr(intake_module, "DECODE_S", 0.2)
            for sequence in range(1, intake_module.HUNG_MAX + 1):
                status, said, headers = await post(collector.url, b"poison%d" % sequence, sequence)
                assert (status, headers.get("Retry-After")) == (503, "5"), said
        body = wire.zstd(wire.stream("gpu_samples", [wire.gpu_row()]))
        try:
            assert not collector.is_alive()
            assert (await post(collector.url, body, 100))[0] == 503
            async with session.get(f"{collector.url}/readyz") as ready:
                assert (ready.status, "not decoded" in await ready.text()) == (503, True)
        finally:
            may_go.set()
        await eventually(collector.is_alive)
        assert (await post(collector.url, body, 100))[0] == 204
