"""Xids 144 to 150 decode as NVIDIA's table says, every row of it in both layouts."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.nvlink5 import decode
from gpuwarden.xids import CRITICAL, INFO, WARNING

RULES = Path(__file__).parents[3] / "shared" / "data" / "catalog" / "xid_nvlink5_rules_144_150.csv"


def report(unit: str, intrinfo: int, status: int, fatality: str = "Nonfatal") -> str:
    return f"{unit} {fatality} XC0 i0 Link 07 (0x{intrinfo:08x} 0x{status:08x} 0x00000000)"


@pytest.mark.parametrize("layout", ["intrinfo_pattern_v1", "intrinfo_pattern_v2"])
@pytest.mark.parametrize("any_bit", ["0", "1"])
def test_every_row_of_the_table_decodes_to_itself(layout: str, any_bit: str) -> None:
    if not RULES.is_file():
        pytest.skip("no decode table at ../shared/data/catalog")
    with RULES.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 94
    for row in rows:
        intrinfo = int(row[layout].replace("-", any_bit), 2)
        for unit in (row["unit"], *row["unit"].split("/")):
            found = decode(int(row["xid"]), report(unit, intrinfo, int(row["error_status"], 16)))
            assert found is not None
            assert found.rule is not None, row
            assert found.rule.action == row["resolution"]
            assert found.rule.investigate == row["investigatory"].replace("SW/USER", "SW_USER")
            assert found.rule.fatality == row["severity"].rstrip("*?")
            assert (found.rule.action_if_again or "") == row["action2"]
            assert found.link == 7


def test_the_other_end_of_a_lost_link_is_named() -> None:
    text = "NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000 0x00000000)"
    found = decode(149, text)
    assert found is not None
    assert (found.subcode, found.link, found.severity) == (33, 14, CRITICAL)
    assert found.remedy == (
        "drain the node and reset the GPU; look at the other end of the link, where it began"
    )


def test_a_corrected_error_is_information_and_a_bad_cable_a_warning() -> None:
    assert decode(145, report("RLW_RSPCOL", 0x000000A2, 1)).severity == INFO
    cable = decode(149, report("NETIR_BER_EVENT", 0x00082226, 1))
    assert cable.severity == WARNING
    assert cable.remedy == "nothing at once, check the link and its cables"


@pytest.mark.parametrize("status", [0, 0xFFFF_FFFF])
def test_a_degraded_controller_resets_the_gpu_although_its_name_has_a_space(status: int) -> None:
    """As driver 615 prints it (nvlink_events.c); NVIDIA's page writes "MSE Degraded"."""
    text = f"MSE degraded  Fatal   XC0 i0 Link -1 (0x00000000 0x{status:08x} 0x00000000 0x0)"
    found = decode(150, text)
    assert found is not None
    assert (found.unit, found.link, found.action) == ("MSE_DEGRADED", None, "RESET_GPU")
    assert found.severity == CRITICAL


def test_an_error_without_a_row_is_as_bad_as_the_line_says() -> None:
    """RLW_CTRL has no error status 2."""
    assert decode(145, report("RLW_CTRL", 3, 2)).rule is None
    assert decode(145, report("RLW_CTRL", 3, 2)).severity == WARNING
    assert decode(145, report("RLW_CTRL", 3, 2, "Fatal")).severity == CRITICAL
    assert decode(145, report("RLW_CTRL", 3, 2)).action is None


@pytest.mark.parametrize(
    "text",
    ["", "Placeholder message", "NETIR_LINK_EVT Fatal XC0 i0 Link 0", "NETIR Fatal XC0 i0 Link -1"],
)
def test_what_is_not_such_a_text_is_not_decoded(text: str) -> None:
    assert decode(149, text) is None
    assert decode(151, report("RLW_CTRL", 3, 2)) is None, "another Xid"


def test_an_error_of_no_link_is_decoded_and_the_line_cut_short_is_as_bad_as_it_says() -> None:
    whole = "NETIR     Fatal   XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000)"
    found = decode(149, whole)
    assert found is not None
    assert (found.unit, found.link, found.severity, found.action) == (
        "NETIR", None, CRITICAL, "RESET_GPU",
    )  # fmt: skip
    for cut in (whole[:44], whole[:50], whole[:53], "NETIR Fatal XC0 i0 Link 8 (0x1234567890 0x0)"):
        found = decode(149, cut)
        assert found is not None, cut
        assert (found.rule, found.subcode, found.severity) == (None, None, CRITICAL), cut


@given(
    xid=st.integers(144, 150),
    unit=st.sampled_from(["SAW_MVB", "RLW_RXPIPE", "NETIR_LINK_EVT", "TREX", "NO_SUCH_UNIT"]),
    intrinfo=st.integers(0, 2**32 - 1),
    status=st.integers(0, 2**32 - 1),
)
def test_any_numbers_decode_to_something_that_can_be_told(xid, unit, intrinfo, status) -> None:
    found = decode(xid, report(unit, intrinfo, status))
    assert found is not None
    assert found.severity in (INFO, WARNING, CRITICAL)
    assert found.subcode == (intrinfo >> 20) & 0x3F
