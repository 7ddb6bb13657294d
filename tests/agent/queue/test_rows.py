"""Rows are checked against the catalogue."""

import math
from typing import Any

import pytest

from gpuwarden_agent.queue.rows import RowError, impossible_columns

GPU = {"ts": 1, "node": "n", "simulated": False, "gpu_uuid": "g"}


@pytest.mark.parametrize(
    ("value", "is_possible"),
    [(0.0, True), (100, True), (None, True), (100.5, False), (-1, False), (math.nan, False)],
)
def test_limits_of_the_catalogue_decide_what_is_possible(value: Any, is_possible: bool) -> None:
    outside = impossible_columns("gpu_samples", {**GPU, "util_percent": value})
    assert outside == (() if is_possible else ("util_percent",))


def test_infinity_is_impossible_where_only_the_sign_is_limited() -> None:
    assert impossible_columns("gpu_samples", {**GPU, "power_watts": math.inf}) == ("power_watts",)


def test_a_blank_sentinel_of_the_driver_is_impossible() -> None:
    row = {**GPU, "memory_temperature_celsius": 9223372036854775794}
    assert impossible_columns("gpu_samples", row) == ("memory_temperature_celsius",)


def test_a_number_beyond_its_type_is_a_bug_where_no_limit_says_more() -> None:
    with pytest.raises(RowError, match="range"):
        impossible_columns("gpu_samples", {**GPU, "gpu": 2**31})


def test_an_unknown_column_is_a_bug_even_when_absent() -> None:
    with pytest.raises(RowError, match="'utilization'"):
        impossible_columns("gpu_samples", {**GPU, "utilization": None})
