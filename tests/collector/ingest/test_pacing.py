"""Agents are asked for longer batches under load, and for shorter ones after it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.ingest.pacing import (
    BUSY,
    CHECK_INTERVAL_S,
    IDLE,
    REST_S,
    SLOW_S,
    STEPS_S,
    Pace,
    Pacing,
    next_pace,
)

looks = st.tuples(st.floats(0, 2), st.none() | st.floats(0, 30))


@given(st.lists(looks, max_size=100))
def test_the_pace_moves_by_one_step_and_then_rests(several: list[Any]) -> None:
    pace = Pace()
    for number, (busy, acknowledge_s) in enumerate(several):
        now_s = number * CHECK_INTERVAL_S
        before, pace = pace, next_pace(pace, busy, acknowledge_s, now_s)
        if pace != before:
            assert abs(pace.step - before.step) == 1
            assert pace.changed_s == now_s >= before.changed_s + REST_S
        assert 0 <= pace.step < len(STEPS_S)


def test_a_busy_collector_asks_for_longer_batches_and_an_idle_one_for_shorter_ones() -> None:
    pace, seen = Pace(), []
    for number in range(100):
        pace = next_pace(pace, BUSY + 0.1, None, number * CHECK_INTERVAL_S)
        seen.append(STEPS_S[pace.step])
    assert list(dict.fromkeys(seen)) == [10, 20, 30]
    assert next_pace(pace, (BUSY + IDLE) / 2, 0.1, 1e6) == pace
    for number in range(100):
        pace = next_pace(pace, IDLE / 2, 0.1, 1e6 + number * CHECK_INTERVAL_S)
    assert STEPS_S[pace.step] == 0


def test_slow_acknowledgements_ask_for_longer_batches_too() -> None:
    """As where other programs have the processors: the collector computes little, and waits."""
    assert next_pace(Pace(), 0.1, SLOW_S + 0.1, 0.0).step == 1
    assert next_pace(Pace(1), 0.1, SLOW_S - 0.1, 0.0).step == 1


async def test_agents_are_asked_in_the_answer(
    start: Any, wire: Any, monkeypatch: Any, post: Any
) -> None:
    monkeypatch.setattr(Pacing, "batch_s", 20)
    body = wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(1, range(1))))
    async with start() as collector:
        status, _, headers = await post(collector.url, body, 1)
        assert (status, headers["Gpuwarden-Batch-Seconds"]) == (204, "20")
        monkeypatch.setattr(Pacing, "batch_s", 0)
        status, _, headers = await post(collector.url, body, 2)
        assert (status, headers.get("Gpuwarden-Batch-Seconds")) == (204, None)
