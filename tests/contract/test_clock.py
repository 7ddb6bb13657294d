"""Clocks and the milliseconds of the wire."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, SystemClock, from_ms, to_ms

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_system_clock_is_utc_and_moves_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    assert clock.now().utcoffset() == timedelta(0)
    assert clock.monotonic() >= before


def test_stepping_a_manual_clock_lets_no_time_pass() -> None:
    clock = ManualClock(START)
    clock.advance(5)
    clock.step(-3600)
    assert clock.now() == START + timedelta(seconds=5 - 3600)
    assert clock.monotonic() == 1005.0


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_milliseconds_survive_the_way_there_and_back(ts_ms: int) -> None:
    assert to_ms(from_ms(ts_ms)) == ts_ms


def test_a_fraction_of_a_millisecond_is_rounded_down() -> None:
    assert to_ms(datetime(1970, 1, 1, 0, 0, 1, 1999, tzinfo=UTC)) == 1001
