"""Averages between two samples: when there is one, what is believed, and that samples are freed."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.nvidia.fake_driver import (
    H100_GPM,
    H100_IDLE,
    MISSING,
    UNSUPPORTED,
    Fails,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden.metrics import METRICS
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.gpm import GAP_S_MAX, GpmReader, true_value
from gpuwarden_agent.collect.nvidia.metrics import GPM_METRICS, MIB, GpmMetric
from gpuwarden_agent.collect.nvidia.query import LEARNED_FOR_S, Query
from gpuwarden_agent.probe import ProbeError

SHARE, RATE = GpmMetric("share", 2), GpmMetric("rate", 20, MIB)


def reader(device: FakeDevice, clock: ManualClock, instance: int | None = None) -> GpmReader:
    return GpmReader(Query(device, clock), clock, instance)


def read_after(gpm: GpmReader, clock: ManualClock, seconds: float = 10) -> dict[str, Any]:
    clock.advance(seconds)
    return gpm.read()


@pytest.mark.parametrize(
    ("metric", "value", "believed"),
    [
        (SHARE, 42.5, 42.5),
        (SHARE, 100.4, 100.0),
        (SHARE, 101.1, None),
        (SHARE, -0.5, None),
        (SHARE, math.nan, None),
        (RATE, 1.5, 1.5 * MIB),
        (RATE, 1e30, None),
        (RATE, math.inf, None),
    ],
)
def test_only_what_can_be_true_is_believed(
    metric: GpmMetric, value: float, believed: float | None
) -> None:
    assert true_value(metric, value) == believed


@given(st.sampled_from(GPM_METRICS), st.floats())
def test_whatever_the_driver_says_fits_the_catalogue(metric: GpmMetric, value: float) -> None:
    limits = {m.name: m.limits for m in METRICS["gpu_detail_samples"]}[metric.column]
    believed = true_value(metric, value)
    assert limits is not None
    assert believed is None or limits[0] <= believed <= limits[1]


def test_the_second_look_gives_all_metrics(clock: ManualClock) -> None:
    gpm = reader(FakeDevice(), clock)
    assert gpm.read() == {}
    values = read_after(gpm, clock)
    assert values.keys() == {metric.column for metric in GPM_METRICS}
    assert values["sm_active_percent"] == 87.25
    assert values["nvlink_tx_bytes_per_second"] == 2048 * MIB


def test_two_looks_are_enough_for_any_number_of_reads(clock: ManualClock) -> None:
    device = FakeDevice()
    gpm = reader(device, clock)
    gpm.read()
    assert all(read_after(gpm, clock) for _ in range(5))
    assert len(device.gpm_samples) == 2
    gpm.close()
    assert [sample.is_free for sample in device.gpm_samples] == [True, True]


def test_after_a_long_gap_it_begins_anew(clock: ManualClock) -> None:
    gpm = reader(FakeDevice(), clock)
    gpm.read()
    assert read_after(gpm, clock, GAP_S_MAX + 1) == {}
    assert read_after(gpm, clock) != {}


def test_after_it_was_closed_it_begins_anew(clock: ManualClock) -> None:
    gpm = reader(FakeDevice(), clock)
    gpm.read()
    gpm.close()
    assert read_after(gpm, clock) == {}
    assert read_after(gpm, clock) != {}


def test_a_look_too_soon_leaves_the_one_before(clock: ManualClock) -> None:
    device = FakeDevice()
    gpm = reader(device, clock)
    gpm.read()
    assert gpm.read() == {}
    assert device.calls["gpm_take"] == 1
    assert read_after(gpm, clock) != {}


@pytest.mark.parametrize("answer", [False, UNSUPPORTED, MISSING])
def test_a_gpu_without_gpm_is_asked_every_ten_minutes(answer: Any, clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE | {"is_gpm_supported": answer})
    gpm = reader(device, clock)
    assert [read_after(gpm, clock) for _ in range(5)] == [{}] * 5
    assert device.calls["is_gpm_supported"] == 1
    assert not device.gpm_samples
    device.answers["is_gpm_supported"] = True
    read_after(gpm, clock, LEARNED_FOR_S)
    assert read_after(gpm, clock) != {}


def test_a_metric_fails_alone(clock: ManualClock) -> None:
    device = FakeDevice(gpm=H100_GPM | {5: UNSUPPORTED, 10: Fails(nvml.UNKNOWN), 9: math.nan})
    query = Query(device, clock)
    gpm = GpmReader(query, clock)
    gpm.read()
    lacking = {"tensor_active_percent", "dram_active_percent", "tensor_integer_active_percent"}
    for _ in range(2):
        assert not lacking & read_after(gpm, clock).keys()
    assert 5 in device.gpm_asked[0]
    assert 5 not in device.gpm_asked[1]
    assert query.failed == {"nvmlGpmMetricsGet(10): UNKNOWN": 2}


def test_an_untrue_value_is_absent_and_counted(clock: ManualClock) -> None:
    device = FakeDevice(gpm=H100_GPM | {2: 4e9})
    query = Query(device, clock)
    gpm = GpmReader(query, clock)
    gpm.read()
    assert "sm_active_percent" not in read_after(gpm, clock)
    assert query.failed == {"nvmlGpmMetricsGet(2): untrue value": 1}


def test_a_look_that_fails_leaves_the_one_before(clock: ManualClock) -> None:
    device = FakeDevice()
    gpm = reader(device, clock)
    gpm.read()
    device.answers["gpm_take"] = lambda instance: Fails(nvml.UNKNOWN)
    assert read_after(gpm, clock) == {}
    device.answers["gpm_take"] = lambda instance: None
    assert read_after(gpm, clock) != {}
    assert len(device.gpm_samples) == 2


def test_a_lost_gpu_ends_the_read(clock: ManualClock) -> None:
    gpm = reader(
        FakeDevice({"gpm_take": lambda instance: Fails(nvml.GPU_IS_LOST), **H100_IDLE}), clock
    )
    with pytest.raises(ProbeError, match="lost"):
        gpm.read()


def test_a_mig_device_is_looked_at_by_its_gpu_instance(clock: ManualClock) -> None:
    device = FakeDevice()
    gpm = reader(device, clock, instance=9)
    gpm.read()
    assert read_after(gpm, clock) != {}
    assert {sample.instance for sample in device.gpm_samples} == {9}


@pytest.mark.parametrize("call", ["gpm_take", "gpm_metrics"])
def test_looks_of_before_the_library_was_opened_anew_are_given_up(
    call: str, clock: ManualClock
) -> None:
    device = FakeDevice()
    gpm = reader(device, clock)
    gpm.read()
    before = device.answers[call]
    device.answers[call] = (
        Fails(nvml.UNINITIALIZED) if before is None else lambda _: Fails(nvml.UNINITIALIZED)
    )
    assert read_after(gpm, clock) == {}
    device.answers[call] = before
    assert read_after(gpm, clock) == {}
    assert read_after(gpm, clock) != {}
