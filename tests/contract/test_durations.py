"""Durations are read strictly and shown the way people say them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.durations import readable, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0s", 0)],
)
def test_a_duration_is_a_whole_number_and_a_unit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "m", "1.5h", "-5m", "5 m", "5min", "1h30m", "5m\n", "٥m"]
)
def test_anything_else_is_not_a_duration(text: str) -> None:
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7500, "2 h 05 min"),
        (86399, "23 h 59 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_span_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert readable(seconds) == text


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_longer_span_never_reads_as_a_shorter_one(one: float, other: float) -> None:
    def read_back(text: str) -> int:
        parts = text.split()
        units = {"s": 1, "min": 60, "h": 3600, "d": 86400}
        return sum(int(parts[i]) * units[parts[i + 1]] for i in range(0, len(parts), 2))

    less, more = sorted((one, other))
    assert read_back(readable(less)) <= read_back(readable(more)) <= more
