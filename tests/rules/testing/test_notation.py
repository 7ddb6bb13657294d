"""promtool's notation means what it means there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_rules.testing.notation import expand


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-2+4x3", [-2, 2, 6, 10]),
        ("1-2x4", [1, -1, -3, -5, -7]),
        ("1x4", [1, 1, 1, 1, 1]),
        ("1 _x3 5", [1, None, None, None, 5]),
        ("_", [None]),
        ("0+60x2 0", [0, 60, 120, 0]),
        (".5+.25x1 1e3", [0.5, 0.75, 1000]),
        ("1e3x1", [1000, 1000]),
        ("", []),
    ],
)
def test_notation_is_expanded(text: str, values: list[float | None]) -> None:
    assert expand(text) == values


@pytest.mark.parametrize("text", ["a", "1x", "x3", "1+x3", "1+2", "1 x 3", "__", "1x-3", "stale"])
def test_what_is_not_notation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="notation|no xN"):
        expand(text)


def test_a_typo_does_not_fill_the_memory() -> None:
    with pytest.raises(ValueError, match="more than"):
        expand("1x9999999")


@given(st.integers(-1000, 1000), st.integers(-50, 50), st.integers(0, 100))
def test_a_series_starts_where_it_says_and_grows_by_its_step(
    start: int, change: int, times: int
) -> None:
    values = expand(f"{start}{change:+}x{times}")
    assert values == [start + change * i for i in range(times + 1)]
