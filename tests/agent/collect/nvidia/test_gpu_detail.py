"""Columns of ten seconds: all of them on an H100, and what other boards do not have."""

import pytest
from tests.agent.collect.nvidia.fake_driver import (
    A100,
    A100_FIELDS,
    GEFORCE,
    GEFORCE_FIELDS,
    H100_IDLE,
    H100_IDLE_FIELDS,
    MISSING,
    UNSUPPORTED,
    Fails,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden.metrics import METRICS
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.gpm import GpmReader
from gpuwarden_agent.collect.nvidia.gpu import read_details
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.probe import Value

COLUMNS = {metric.name for metric in METRICS["gpu_detail_samples"]}
GPM = {m.name for m in METRICS["gpu_detail_samples"] if m.source.startswith("GPM")}


def read(device: FakeDevice, clock: ManualClock, *, is_mig: bool = False) -> dict[str, Value]:
    query = Query(device, clock)
    values, gpm = read_details(query, is_mig), GpmReader(query, clock)
    gpm.read()
    clock.advance(10)
    return {column: v for column, v in (values | gpm.read()).items() if v is not None}


def test_an_h100_gives_all_but_fans_and_what_links_tell(clock: ManualClock) -> None:
    values = read(FakeDevice(), clock)
    assert COLUMNS - values.keys() == {"fan_percent", "nvlinks_active", "voltage_volts"}
    assert values["low_util_violation_seconds_total"] == 5
    assert values["temperature_margin_celsius"] == 46


def test_a_geforce_has_fans_and_neither_gpm_nor_margin(clock: ManualClock) -> None:
    values = read(FakeDevice(GEFORCE, GEFORCE_FIELDS), clock)
    assert not (GPM | {"temperature_margin_celsius", "pcie_fatal_errors_total"}) & values.keys()
    assert values["fan_percent"] == 41
    assert values["jpeg_util_percent"] == 0


def test_the_fastest_fan_counts_and_a_broken_one_hides_none(clock: ManualClock) -> None:
    answers = GEFORCE | {"fans": 3, "fan_percent": {0: 38, 1: Fails(nvml.UNKNOWN), 2: 35}}
    assert read(FakeDevice(answers, GEFORCE_FIELDS), clock)["fan_percent"] == 38


def test_an_a100_has_no_gpm(clock: ManualClock) -> None:
    device = FakeDevice(A100, A100_FIELDS)
    assert not GPM & read(device, clock).keys()
    assert not device.gpm_samples


def test_in_mig_mode_the_engines_are_not_asked(clock: ManualClock) -> None:
    device = FakeDevice()
    values = read(device, clock, is_mig=True)
    assert not {"jpeg_util_percent", "ofa_util_percent"} & values.keys()
    assert device.calls["ofa_utilization"] == 0
    assert values["graphics_clock_mhz"] == 345


@pytest.mark.parametrize("answer", [UNSUPPORTED, Fails(nvml.INVALID_ARGUMENT)])
def test_replays_come_from_the_older_call_where_the_field_is_not_there(
    answer: Fails, clock: ManualClock
) -> None:
    assert (
        read(FakeDevice(H100_IDLE, H100_IDLE_FIELDS | {94: answer}), clock)["pcie_replays_total"]
        == 9
    )


def test_a_link_of_no_generation_is_unknown(clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE | {"pcie_generation": 0, "pcie_width": 0})
    assert not {"pcie_generation", "pcie_width"} & read(device, clock).keys()


def test_a_driver_without_any_of_it_gives_nothing(clock: ManualClock) -> None:
    device = FakeDevice(dict.fromkeys(H100_IDLE, MISSING), {})
    assert read(device, clock) == {}


def test_a_sentinel_is_no_number_of_fans(clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE | {"fans": 0xFFFFFFFF})
    assert "fan_percent" not in read(device, clock)
