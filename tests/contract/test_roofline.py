"""What bounds a job, from numbers worked out by hand; what is missing is named and does not count."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.roofline import HostMeanwhile, RoofReading, roofline, roofline_record

READING = RoofReading(
    "H100-SXM-80GB", 8, 480, util_percent=98.0, sm_active_percent=90.0, tensor_percent=60.0, fp32_percent=5.0,
    dram_percent=40.0, nvlink_bytes_per_second=45e9, pcie_bytes_per_second=6.3e9, pcie_generation=5, pcie_width=16,
)  # fmt: skip
HOST = HostMeanwhile(main_cpu_percent=40.0, iowait_percent=1.0)


def percents(reading: RoofReading, host: HostMeanwhile = HOST) -> dict[str, float | None]:
    return {
        roof.name: None if roof.percent is None else round(roof.percent, 1)
        for roof in roofline(reading, host).roofs
    }


def test_each_roof_in_percent_of_its_peak() -> None:
    # 45 of 18 x 25 GB/s; 6.3 of 16 x 3.938 GB/s.
    assert percents(READING) == {"compute": 60, "memory": 40, "link": 10, "host": 2}
    assert roofline(READING, HOST).bound == "compute"


def test_the_place_below_the_roof() -> None:
    point = roofline(READING, HOST).point
    assert point is not None
    # 60 % of 989 TFLOPS over 40 % of 3,352 GB/s; the ridge is at 989 / 3.352.
    assert point.tflops == pytest.approx(593.4)
    assert point.intensity == pytest.approx(593.4e12 / 1340.8e9)
    assert point.ridge == pytest.approx(295.05, abs=0.01)
    assert point.roof_tflops == 989
    assert point.place(point.ridge, 989) == (50, 4)
    # The clock says more than the share of the time: 60 % at 1,200 of 1,830 MHz.
    slow = roofline(replace(READING, tensor_percent_mhz=60 * 1200.0), HOST).point
    assert slow is not None
    assert slow.tflops == pytest.approx(593.4 * 1200 / 1830)


@pytest.mark.parametrize(
    ("changed", "host", "bound", "said"),
    [
        ({"dram_percent": 75.0}, HOST, "memory", "75 % of its bandwidth was used"),
        ({"nvlink_bytes_per_second": 360e9}, HOST, "link", "80 % of their peak"),
        ({}, replace(HOST, port_percent=90.0), "link", "90 % of their peak"),
        ({"util_percent": 40.0}, HOST, "host", "no kernel ran 60 % of the time"),
        ({"tensor_percent": 20.0, "sm_active_percent": 30.0}, HOST, "none", "too small to fill the GPU"),
        ({"tensor_percent": 20.0}, HOST, "none", "kernels wait for latency"),
        ({"tensor_percent": None, "fp32_percent": 70.0}, HOST, "compute", "70 % of the time"),
    ],
)  # fmt: skip
def test_what_is_highest_is_the_bound(changed, host, bound, said) -> None:
    found = roofline(replace(READING, **changed), host)
    assert found.bound == bound
    assert said in found.sentence


@pytest.mark.parametrize(
    ("changed", "name", "said"),
    [
        ({"dram_percent": None}, "memory", "dram_active_percent was not read"),
        ({"tensor_percent": None, "fp32_percent": None}, "compute", "no activity of pipes was read"),
        ({"util_percent": None}, "host", "util_percent was not read"),
    ],
)  # fmt: skip
def test_without_a_reading_it_is_not_known(changed, name, said) -> None:
    found = roofline(replace(READING, **changed), HOST)
    assert found.bound == "unknown"
    assert f"missing of {name}" in found.sentence
    assert said in next(roof.words for roof in found.roofs if roof.name == name)
    assert percents(replace(READING, **changed))[name] is None


def test_links_that_are_not_read_do_not_count() -> None:
    bare = replace(READING, nvlink_bytes_per_second=None, pcie_bytes_per_second=None)
    assert percents(bare)["link"] is None
    assert roofline(bare, HOST).bound == "compute"
    # The model of these has no known peak of a link.
    other = replace(READING, model="RTX-3090", pcie_generation=None)
    assert percents(other)["link"] is None
    assert roofline(replace(READING, model=None), HOST).point is None


_PERCENT = st.none() | st.floats(0, 100)


@given(_PERCENT, _PERCENT, _PERCENT, _PERCENT, st.none() | st.floats(0, 1e12))
def test_any_readings_have_a_sentence(util, tensor, dram, sm, link) -> None:
    reading = replace(
        READING, util_percent=util, tensor_percent=tensor, dram_percent=dram, sm_active_percent=sm,
        nvlink_bytes_per_second=link,
    )  # fmt: skip
    found = roofline(reading, HostMeanwhile())
    assert found.sentence
    assert (found.bound == "unknown") <= (None in (util, tensor, dram) or tensor is None)
    if found.point is not None:
        x, y = found.point.place(found.point.intensity, found.point.tflops)
        assert 0 <= x <= 100
        assert 0 <= y <= 60
        assert found.point.roof_tflops <= found.point.peak_tflops
    assert roofline_record(found)["bound"] == found.bound
