"""Advice names the knob and the number; the cost is what is lost beyond a healthy loop."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.diagnosis import HEALTHY, Bottleneck
from gpuwarden_rules.diagnosis.advice import advise, usd_per_hour, wanted_workers
from gpuwarden_rules.diagnosis.features import Features, GpuInfo

PLACE = GpuInfo(gpu_uuid="GPU-1", node="n1", gpu=0, job="7", work="job 7", usd_per_hour=3.0)
STARVED = Features(duty=0.30, stall=0.70, workers=2.0, loader_cpu=94.0, idle_cores=14.0)


def test_two_workers_at_thirty_percent_become_seven() -> None:
    found = advise(PLACE, Bottleneck.LOADER_WORKERS, STARVED)
    assert found is not None
    assert (found.knob, found.after) == ("num_workers", 7)
    assert found.text.startswith("num_workers 2 -> 7; 14 cores are idle.")


def test_no_more_workers_than_idle_cores_can_hold() -> None:
    found = advise(PLACE, Bottleneck.LOADER_WORKERS, replace(STARVED, idle_cores=2.4))
    assert found is not None and found.after == 4 and "About 7 would be needed" in found.text


@given(
    st.integers(1, 128),
    st.floats(0.0, 0.8),
    st.floats(0, 256),
    st.sampled_from(Bottleneck),
)
def test_advice_can_always_be_said(
    workers: int, duty: float, idle: float, bottleneck: Bottleneck
) -> None:
    features = Features(duty=duty, stall=1 - duty, workers=float(workers), idle_cores=idle)
    found = advise(PLACE, bottleneck, features)
    if found is not None:
        assert "{" not in found.text and "None" not in found.text
        if bottleneck is Bottleneck.LOADER_WORKERS:
            assert workers < (found.after or 0) <= max(workers + idle, workers + 1)


@each("bottleneck", Bottleneck)
def test_what_needs_doing_has_advice_and_what_does_not_has_none(bottleneck: Bottleneck) -> None:
    nothing = HEALTHY | {Bottleneck.UNKNOWN, Bottleneck.IDLE_FREE, Bottleneck.WAITS_FOR_PEER}
    assert (advise(PLACE, bottleneck, STARVED) is None) is (bottleneck in nothing)


def test_cost_is_the_price_of_what_is_lost() -> None:
    assert usd_per_hour(PLACE, Bottleneck.LOADER_WORKERS, STARVED) == pytest.approx(3.0 * 0.65)
    assert usd_per_hour(PLACE, Bottleneck.IDLE_HELD, STARVED) == 3.0
    assert usd_per_hour(PLACE, Bottleneck.COMPUTE_BOUND, STARVED) is None
    free = replace(PLACE, usd_per_hour=None)
    assert usd_per_hour(free, Bottleneck.LOADER_WORKERS, STARVED) is None


def test_without_a_pace_no_number_is_made_up() -> None:
    assert wanted_workers(Features(workers=2.0)) is None
    assert wanted_workers(Features(duty=0.5)) is None
    assert wanted_workers(Features(duty=0.0, workers=2.0)) == 40
