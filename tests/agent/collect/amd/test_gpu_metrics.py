"""The binary metrics of AMD GPUs, against structures that ctypes lays out as compilers do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.amd.boards import METRICS_BYTES, gpu_metrics

from gpuwarden_agent.collect.amd.gpu_metrics import (
    is_newer,
    number,
    numbers,
    parse_gpu_metrics,
    version,
)

FROM_MI300 = ((1, 4), (1, 5), (1, 6), (1, 7), (1, 8))
U16 = st.integers(0, 2**16 - 2)
U32 = st.integers(0, 2**32 - 2)
U64 = st.integers(0, 2**64 - 2)
LINKS = st.lists(U64, min_size=8, max_size=8)


@pytest.mark.parametrize(("found", "size"), METRICS_BYTES.items())
def test_the_structures_of_the_tests_have_the_kernels_sizes(
    found: tuple[int, int], size: int
) -> None:
    assert len(gpu_metrics(found)) == size


@settings(max_examples=40)
@given(
    st.sampled_from(FROM_MI300),
    st.fixed_dictionaries(
        {
            "average_gfx_activity": U16,
            "energy_accumulator": U64,
            "xgmi_link_width": U16,
            "pcie_replay_rover_count_acc": U64,
            "xgmi_read_data_acc": LINKS,
            "xgmi_write_data_acc": LINKS,
            "current_vclk0": st.lists(U16, min_size=4, max_size=4),
        }
    ),
)
def test_what_the_driver_fills_is_read_and_nothing_else(
    found: tuple[int, int], values: dict[str, int | list[int]]
) -> None:
    assert parse_gpu_metrics(gpu_metrics(found, **values)) == values


@settings(max_examples=50)
@given(st.sampled_from(((1, 5), (1, 6), (1, 7), (1, 8))), U32, U32)
def test_naks_sent_and_received_are_not_swapped(
    found: tuple[int, int], sent: int, received: int
) -> None:
    values = {"pcie_nak_sent_count_acc": sent, "pcie_nak_rcvd_count_acc": received}
    assert parse_gpu_metrics(gpu_metrics(found, **values)) == values


@settings(max_examples=50)
@given(st.sampled_from(((1, 6), (1, 7), (1, 8))), U32, U32)
def test_residencies_of_newer_boards_are_parsed_with_their_counter(
    found: tuple[int, int], cycles: int, held: int
) -> None:
    values = {"accumulation_counter": cycles, "hbm_thm_residency_acc": held}
    assert parse_gpu_metrics(gpu_metrics(found, **values)) == values


@settings(max_examples=50)
@given(U64, U16)
def test_older_boards_say_which_limits_hold(status: int, clock: int) -> None:
    values = {"indep_throttle_status": status, "current_vclk0": clock}
    assert parse_gpu_metrics(gpu_metrics((1, 3), **values)) == values


def test_what_is_not_asked_for_or_depends_on_the_chip_is_passed_over() -> None:
    data = gpu_metrics((1, 3), energy_accumulator=5, throttle_status=1, current_uclk=900, padding=3)
    assert parse_gpu_metrics(data) == {}


def test_an_absent_one_of_a_list_keeps_its_place() -> None:
    metrics = parse_gpu_metrics(gpu_metrics((1, 7), xgmi_link_status=[1, 0]))
    assert numbers(metrics, "xgmi_link_status") == [1, 0, None, None, None, None, None, None]
    assert number(metrics, "xgmi_link_status") is None
    assert numbers(metrics, "xgmi_read_data_acc") == ()


@pytest.mark.parametrize("found", [(1, 0), (1, 2), (2, 4), (3, 0), (1, 9), (9, 9)])
def test_a_version_without_a_layout_gives_nothing(found: tuple[int, int]) -> None:
    assert parse_gpu_metrics(bytes((200, 0, *found)) + bytes(196)) == {}


def test_newer_is_what_came_after_and_is_not_of_an_apu() -> None:
    versions = ((1, 2), (1, 8), (1, 9), (2, 4), (3, 0), (4, 0))
    assert [each for each in versions if is_newer(each)] == [(1, 9), (4, 0)]


@pytest.mark.parametrize("found", [(1, 3), *FROM_MI300])
def test_a_file_that_is_cut_off_is_named(found: tuple[int, int]) -> None:
    data = gpu_metrics(found)
    with pytest.raises(ValueError, match=rf"version {found[0]}\.{found[1]} in \d+ of 50 bytes"):
        parse_gpu_metrics(data[:50])
    short = (20).to_bytes(2, "little") + data[2:]
    with pytest.raises(ValueError, match="in 20 of"):
        parse_gpu_metrics(short)


@given(st.binary(max_size=3))
def test_less_than_a_header_is_named(data: bytes) -> None:
    with pytest.raises(ValueError, match="bytes are not metrics"):
        version(data)


@given(st.binary(min_size=4, max_size=400))
def test_no_bytes_are_more_than_a_value_error(data: bytes) -> None:
    try:
        parse_gpu_metrics(b"\x80\x00\x01" + data)
    except ValueError as error:
        assert str(error).startswith("version 1.")
