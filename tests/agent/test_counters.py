"""The agent's own health counters."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.counters import Counters, Recent, quantile, total


def test_counts_of_a_fleet_add_up_by_name() -> None:
    one = Counters(ticks=2, rows=Counter(gpu_samples=8))
    two = Counters(ticks=3, rows=Counter(gpu_samples=1, events=1), last_error="refused")
    both = total([one, two])
    assert (both.ticks, both.rows, both.last_error) == (
        5,
        Counter(gpu_samples=9, events=1),
        "refused",
    )
    assert one.rows == Counter(gpu_samples=8), "summing leaves the parts alone"


def test_a_log_line_has_sums_and_leaves_out_what_is_absent() -> None:
    fields = Counters(ticks=2, rows=Counter(gpu_samples=8, events=1)).log_fields()
    assert (fields["ticks"], fields["rows"]) == (2, 9)
    assert "last_error" not in fields


def test_the_newest_numbers_are_kept() -> None:
    recent = Recent(600)
    assert quantile(recent.values, 0.99) is None
    recent.add(9.0)
    for number in range(600):
        recent.add(number / 600)
    assert quantile(recent.values, 1.0) == pytest.approx(599 / 600), "the first has left"
    assert quantile(recent.values, 0.5) == 0.5


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1000), min_size=1), st.floats(0, 1))
def test_a_quantile_is_a_value_that_its_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(v <= found for v in values) >= share * len(values)
