"""Instants and the milliseconds of the wire."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import INSTANT_MAX_MS, from_ms, instant_of, to_ms

START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.integers(min_value=0, max_value=4_102_444_800_000))
def test_milliseconds_survive_the_way_there_and_back(ts_ms: int) -> None:
    assert to_ms(from_ms(ts_ms)) == ts_ms


def test_a_fraction_of_a_millisecond_is_rounded_down() -> None:
    assert to_ms(datetime(1970, 1, 1, 0, 0, 1, 1999, tzinfo=UTC)) == 1001


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-01", START),
        ("2026-01-01T00:00Z", START),
        ("2026-01-01T05:30+05:30", START),
        (str(to_ms(START)), START),
        ("0", from_ms(0)),
        (str(INSTANT_MAX_MS), from_ms(INSTANT_MAX_MS)),
    ],
)
def test_a_request_names_an_instant_in_milliseconds_or_words(text: str, at: datetime) -> None:
    assert instant_of(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "soon", "0001-01-01", "0001-01-01T00:00+14:00", "1969-12-31T23:59", "9999-01-01", "9999-12-31T23:59-12:00", "-1",
        str(INSTANT_MAX_MS + 1), "9" * 300, "9" * 5000,
    ],
)  # fmt: skip
def test_an_instant_with_which_nothing_can_be_computed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time from 1970 to 9998"):
        instant_of(text)
