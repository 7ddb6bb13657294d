"""A key's values are kept when its rows do not say everything every time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.exporter.sample_cache import (
    KEEP_S,
    PERIOD_MAX_MS,
    CachedSample,
    followed,
    keep_ms,
)

SENT = "pcie_tx_bytes_total"


def kept_after(table: str, *rows: tuple[float, dict[str, Any]]) -> CachedSample:
    """After rows at so many seconds."""
    held = None
    for seconds, columns in rows:
        ts_ms = round(seconds * 1000)
        held = followed(held, table, {"ts": ts_ms, **columns}, ts_ms)
    assert held is not None
    return held


def shown(held: CachedSample, column: str, at_s: float) -> Any:
    return held.at(round(at_s * 1000)).row.get(column)


def test_rows_that_an_agent_seldom_takes_are_kept_for_two_and_a_half_of_its_ticks() -> None:
    assert keep_ms("gpu_samples", 0.1) == keep_ms("gpu_samples", 24.0) == 60_000
    assert keep_ms("gpu_samples", 60.0) == keep_ms("gpu_health_samples", 60.0) == 150_000


def test_a_column_slow_by_the_catalogue_stays_between_its_readings_and_not_longer() -> None:
    held = kept_after("host_samples", (0, {"shm_used_bytes": 7, "load_1m": 1.0}), (1, {}))
    assert shown(held, "shm_used_bytes", 25) == 7
    assert shown(held, "shm_used_bytes", 25.001) is None
    assert shown(held, "load_1m", 1) is None
    assert held.at(25_000).slow["shm_used_bytes"].ts_ms == 0
    assert not held.at(25_001).slow


def test_a_slow_columns_newest_value_counts_and_none_is_no_value() -> None:
    held = kept_after(
        "host_samples", (0, {"shm_used_bytes": 7}), (10, {"shm_used_bytes": 8}), (11, {})
    )
    held = followed(held, "host_samples", {"ts": 12_000, "shm_used_bytes": None}, 12_000)
    assert shown(held, "shm_used_bytes", 12) == 8


def test_a_column_that_a_gpus_row_lacks_is_absent_at_once() -> None:
    held = kept_after("gpu_samples", (0, {"power_watts": 5.0}), (1, {}))
    assert shown(held, "power_watts", 1) is None and not held.at(1000).slow


def test_a_column_that_a_probe_asks_less_often_stays_once_its_period_was_seen() -> None:
    fast = [(second, {"power_watts": 1.0}) for second in range(3)]
    slow = [(second, {"power_watts": 2.0} if second in (12, 22) else {}) for second in range(3, 32)]
    held = kept_after("gpu_samples", *fast, *slow)
    assert shown(held, "power_watts", 31) == 2.0
    assert held.at(31_000).slow["power_watts"].ts_ms == 22_000
    assert shown(held, "power_watts", 47) == 2.0
    assert shown(held, "power_watts", 47.001) is None


def test_a_column_that_comes_with_every_row_again_is_fast_again() -> None:
    rows = [(0, {"power_watts": 1.0}), (1, {}), (2, {"power_watts": 2.0})]
    held = kept_after("gpu_samples", *rows, (3, {"power_watts": 3.0}), (4, {}))
    assert shown(held, "power_watts", 4) is None


def test_an_outage_is_not_taken_for_a_long_period() -> None:
    late = 2.5 * PERIOD_MAX_MS / 1000
    rows = [(0, {"power_watts": 1.0}), (1, {}), (late, {"power_watts": 2.0}), (late + 1, {})]
    held = kept_after("gpu_samples", *rows)
    assert shown(held, "power_watts", late + late) == 2.0
    assert shown(held, "power_watts", late + late + 0.001) is None
    rows[2] = (late + 1, {})
    held = kept_after("gpu_samples", *rows[:3], (late + 2, {"power_watts": 2.0}), (late + 3, {}))
    assert shown(held, "power_watts", late + 3) is None, "forgotten: nothing tells its period"


def test_what_a_process_no_longer_has_is_not_a_matter_of_periods() -> None:
    rows = [(0, {"loader_workers": 4}), (10, {}), (20, {"loader_workers": 4}), (30, {})]
    assert shown(kept_after("process_samples", *rows), "loader_workers", 30) is None


@pytest.mark.parametrize(
    "rows",
    [
        [(0, {SENT: 1})],
        [(0, {}), (1, {SENT: 1})],
        [(0, {SENT: 1}), (1, {SENT: 2}), (2, {SENT: None})],
        [(0, {SENT: 2}), (1, {SENT: 1})],
        [(0, {SENT: 1}), (KEEP_S + 0.001, {SENT: 2})],
    ],
    ids=["first row", "first value", "no value", "reset", "gap"],
)
def test_a_rate_that_two_values_do_not_tell_is_absent(
    rows: list[tuple[float, dict[str, Any]]],
) -> None:
    assert kept_after("gpu_samples", *rows).rate((SENT,)) is None


def test_a_counter_that_stands_still_has_the_rate_zero() -> None:
    assert kept_after("gpu_samples", (0, {SENT: 5}), (1, {SENT: 5})).rate((SENT,)) == 0.0


def test_a_rate_of_two_counters_needs_both() -> None:
    pair = ("nvlink_tx_bytes_total", "nvlink_rx_bytes_total")
    first, second = (dict.fromkeys(pair, n * 1024) for n in (1, 2))
    assert kept_after("gpu_samples", (0, first), (1, second)).rate(pair) == 2048.0
    assert kept_after("gpu_samples", (0, {pair[0]: 1}), (1, second)).rate(pair) is None


def test_a_counter_that_is_read_less_often_keeps_its_rate_between_readings() -> None:
    rows = [(second, {SENT: 100 * second} if second % 10 == 0 else {}) for second in range(25)]
    held = kept_after("gpu_samples", *rows)
    assert held.at(24_000).rate((SENT,)) == 100.0
    assert held.at(60_000).rate((SENT,)) is None


values = st.none() | st.integers(0, 9)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 100), values, values), min_size=1, max_size=30))
def test_whatever_comes_a_shown_value_was_said_and_a_newer_one_was_not(
    steps: list[tuple[int, int | None, int | None]],
) -> None:
    now_s, said = 0, dict[str, tuple[int, int]]()
    held: CachedSample | None = None
    for pause_s, power, sent in steps:
        now_s += pause_s
        row = {"power_watts": power, SENT: sent}
        held = followed(held, "gpu_samples", {"ts": now_s * 1000, **row}, now_s * 1000)
        said |= {name: (value, now_s * 1000) for name, value in row.items() if value is not None}
        now = held.at(now_s * 1000)
        for name, value in row.items():
            seen = now.row.get(name)
            assert seen == value if value is not None else seen in (None, said.get(name, (0,))[0])
        for name, slow in now.slow.items():
            assert (slow.value, slow.ts_ms) == said[name]
            assert now_s * 1000 - slow.ts_ms <= 2.5 * PERIOD_MAX_MS
