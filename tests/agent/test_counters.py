"""The agent's own health counters."""

from collections import Counter

from gpuwarden_agent.counters import Counters, Delays, total


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


def test_delays_are_those_of_the_last_ticks() -> None:
    delays = Delays()
    assert delays.quantile(0.99) == 0.0
    delays.add(9.0)
    for number in range(Delays.KEPT):
        delays.add(number / Delays.KEPT)
    assert delays.quantile(1.0) < 1.0, "the first has left"
    assert delays.quantile(0.5) == 0.5
