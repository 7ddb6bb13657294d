"""A large simulated fleet is sampled less, and the start says so."""

import pytest

from gpuwarden_cli.composition.fleet_plan import (
    GPUS_PER_SECOND_MAX,
    HISTORY_SAMPLES,
    node_sizes,
    planned,
)


@pytest.mark.parametrize(("gpus", "sizes"), [(0, []), (1, [1]), (8, [8]), (12, [8, 4])])
def test_exactly_the_gpus_asked_for_are_simulated(gpus, sizes) -> None:
    assert node_sizes(gpus) == sizes


@pytest.mark.parametrize(
    ("gpus", "history_s", "interval_s"),
    [
        (0, 7200, 1),
        (8, 7200, 1),
        (64, 7200, 1),
        (1000, 120, 1),
        (1001, 240, 2),
        (10_000, 120, 10),
        (100_000, 60, 30),
    ],
)
def test_the_more_gpus_the_less_each_is_sampled(gpus, history_s, interval_s) -> None:
    plan = planned(gpus)
    assert (plan.history_s, plan.interval_s, plan.gpus) == (history_s, interval_s, gpus)


def test_a_fleet_of_any_size_is_made_in_bounded_time() -> None:
    for gpus in range(65, 20_000, 211):
        plan = planned(gpus)
        assert gpus / plan.interval_s <= GPUS_PER_SECOND_MAX
        assert gpus * plan.history_s / plan.interval_s <= HISTORY_SAMPLES
        assert 60 <= plan.history_s <= 7200
        assert plan.history_s % 60 == 0
