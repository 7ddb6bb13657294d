"""Numbers of requests: within their bounds, or refused with them."""

import pytest
from tests.each import each

from gpuwarden.parameters import whole_number_of


@each("text, number", [("1", 1), ("336", 336), ("024", 24)])
def test_digits_within_the_bounds_are_a_number(text: str, number: int) -> None:
    assert whole_number_of(text, 1, 336) == number


@each("text", ["", " ", "0", "337", "-1", "+1", "1.5", "1e2", "1_0", "٣", "²", "0001", "24" + "0" * 300, "9" * 5_000, "nan", "1\n"])  # fmt: skip
def test_all_else_is_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(ValueError, match="^must be a whole number from 1 to 336$"):
        whole_number_of(text, 1, 336)
