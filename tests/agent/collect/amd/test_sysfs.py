"""Every documented form of an amdgpu file, and what is none of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.models import find_model
from gpuwarden_agent.collect.amd import sysfs as parse

PARSERS = [
    parse.number,
    parse.positive,
    parse.millionth,
    parse.celsius,
    parse.mhz,
    parse.highest_level_mhz,
    parse.pcie_generation,
    parse.pcie_width,
    parse.numa_node,
    parse.fan_percent,
    parse.volts,
    parse.kfd_node_place,
    parse.unique_id,
    parse.ras_counts,
    parse.name,
    parse.word,
]


@each(
    ("parser", "text", "expected"),
    [
        (parse.number, "0\n", 0),
        (parse.number, "34342961152\n", 34342961152),
        (parse.positive, "0\n", None),
        (parse.millionth, "36000000\n", 36.0),
        (parse.millionth, "0\n", None),
        (parse.celsius, "53000\n", 53.0),
        (parse.celsius, "-5000\n", -5.0),
        (parse.celsius, "0\n", None),
        (parse.mhz, "300000000\n", 300),
        (parse.mhz, "0\n", 0),
        (parse.pcie_generation, "2.5 GT/s PCIe\n", 1),
        (parse.pcie_generation, "5.0 GT/s PCIe\n", 2),
        (parse.pcie_generation, "8 GT/s\n", 3),
        (parse.pcie_generation, "16.0 GT/s PCIe\n", 4),
        (parse.pcie_generation, "32.0 GT/s PCIe\n", 5),
        (parse.pcie_generation, "64.0 GT/s PCIe\n", 6),
        (parse.pcie_generation, "Unknown\n", None),
        (parse.pcie_generation, "Unknown speed\n", None),
        (parse.pcie_width, "16\n", 16),
        (parse.pcie_width, "0\n", None),
        (parse.pcie_width, "255\n", None),
        (parse.numa_node, "1\n", 1),
        (parse.numa_node, "-1\n", None),
        (parse.unique_id, "79ccd55167a2124a\n", "79ccd55167a2124a"),
        (parse.unique_id, "0x4edfb117a17a07d\n", "04edfb117a17a07d"),
        (parse.unique_id, "", None),
        (parse.unique_id, "0000000000000000\n", None),
        (parse.name, "AMD Instinct MI300X  OAM\n", "AMD Instinct MI300X OAM"),
        (parse.name, "692139000119\0\0\n", "692139000119"),
        (parse.name, "N/A\n", None),
        (parse.name, "0\n", None),
        (parse.name, "\n", None),
        (parse.word, "suspended\n", "suspended"),
        (parse.volts, "856\n", 0.856),
        (parse.volts, "0\n", None),
        (parse.fan_percent, "255\n", 100.0),
        (parse.fan_percent, "0\n", 0.0),
        (parse.kfd_node_place, "simd_count 4\nlocation_id 33538\ndomain 1\n", (1, 0x83, 0)),
        (parse.kfd_node_place, "location_id 33528\n", (0, 0x82, 31)),
        (parse.kfd_node_place, "location_id 805339904\ndomain 0\n", (0, 0x83, 0)),
        (parse.kfd_node_place, "location_id 0\ndomain 0\n", (0, 0, 0)),
        (parse.kfd_place, "0001:83:1f.0", (1, 0x83, 31)),
        (parse.kfd_place, "no address", None),
        (parse.ras_counts, "ue: 0\nce: 1\n", {"ue": 0, "ce": 1}),
        (parse.ras_counts, "ue: 2\nce: 1\nde: 3\n", {"ue": 2, "ce": 1, "de": 3}),
        (parse.ras_counts, "Query currently inaccessible\n", None),
    ],
)
def test_a_documented_form_is_understood(parser, text: str, expected: object) -> None:  # type: ignore[no-untyped-def]
    assert parser(text) == expected


@each("parser", PARSERS[:13])
@each("text", ["garbage\n", "\x00\x01", "-\n", "12:34:56", "[1]"])
def test_garbage_is_an_error_and_no_value(parser, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="."):
        parser(text)


@settings(max_examples=50)
@given(st.text() | st.from_regex(r"(\d+: \d+Mhz \*?\n)+") | st.integers().map(str))
def test_no_content_does_anything_but_a_value_or_a_value_error(text: str) -> None:
    for parser in PARSERS:
        try:
            parser(text)
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize("code", [1, 95, 110, 4095])
def test_an_error_number_printed_unsigned_is_no_power(code: int) -> None:
    with pytest.raises(ValueError, match=f"error number printed as a value: -{code}"):
        parse.millionth(f"{2**32 - code}\n")


def test_a_power_just_below_the_error_numbers_would_be_a_value() -> None:
    assert parse.millionth(f"{2**32 - 4096}\n") == pytest.approx(4294.9632)


@pytest.mark.parametrize(
    ("text", "highest"),
    [
        ("0: 300Mhz *\n1: 495Mhz\n15: 1502Mhz\n", 1502),
        ("0: 500Mhz \n1: 0Mhz *\n2: 2855Mhz \n", 2855),
        ("S: 19Mhz *\n0: 500Mhz\n1: 2100Mhz\n", 2100),
        ("0: 0Mhz\n", None),
    ],
)
def test_the_highest_clock_level_is_the_maximum(text: str, highest: int | None) -> None:
    assert parse.highest_level_mhz(text) == highest


@pytest.mark.parametrize(
    ("folder", "address"),
    [
        ("0000:83:00.0", (0, 0x83, 0, 0)),
        ("10000:1e:1f.7", (0x10000, 0x1E, 0x1F, 7)),
        ("amdgpu_xcp_1", None),
        ("pci0000:80", None),
        ("0000:83:00.8", None),
    ],
)
def test_only_a_pci_devices_folder_has_an_address(
    folder: str, address: tuple[int, int, int, int] | None
) -> None:
    assert parse.pci_address(folder) == address


def test_the_boards_own_name_goes_before_the_table_and_the_table_before_the_id() -> None:
    assert parse.model("AMD Instinct MI100 32GB", 0x738C) == "AMD Instinct MI100 32GB"
    assert parse.model(None, 0x738C) == "AMD Instinct MI100"
    assert parse.model(None, 0x73DF) == "AMD GPU 0x73df"
    assert parse.model(None, 0x1F) == "AMD GPU 0x001f"
    assert parse.model(None, None) == "AMD GPU"


@pytest.mark.parametrize("name", ["MI100", "MI250X", "MI300X", "MI325X"])
def test_names_of_the_table_are_found_in_the_catalogue_of_models(name: str) -> None:
    named = [found for model in parse.MODELS.values() if (found := find_model(model))]
    assert any(model.name.startswith(name) for model in named)


@pytest.mark.parametrize(
    ("before", "now", "gained"),
    [
        (None, {"ue": 7, "ce": 7}, {}),
        ({"ue": 1, "ce": 5}, {"ue": 1, "ce": 5}, {}),
        ({"ue": 1, "ce": 5}, {"ue": 2, "ce": 9}, {"ue": 1, "ce": 4}),
        ({"ue": 8, "ce": 5}, {"ue": 3, "ce": 0}, {"ue": 3}),
        ({"ue": 0, "ce": 0}, {"ue": 0, "ce": 0, "de": 4}, {}),
    ],
)
def test_errors_are_new_since_the_look_before(
    before: dict[str, int] | None, now: dict[str, int], gained: dict[str, int]
) -> None:
    assert parse.growth(before, now) == gained


@pytest.mark.parametrize(
    ("grown", "verdict"),
    [
        ({"umc": {"ce": 3}}, ("info", "3 corrected in umc")),
        ({"umc": {"de": 1, "ce": 3}}, ("warning", "1 deferred in umc, 3 corrected in umc")),
        ({"gfx": {"ce": 2}, "umc": {"ue": 1}}, ("critical", "1 uncorrected in umc, 2 corrected in gfx")),
    ],
)  # fmt: skip
def test_the_worst_error_decides_and_is_said_first(
    grown: dict[str, dict[str, int]], verdict: tuple[str, str]
) -> None:
    assert parse.ras_verdict(grown) == verdict


@settings(max_examples=50)
@given(st.binary() | st.from_regex(r"(0x[0-9a-f]{8} : 0x00001000 : [RPFX]\n)+").map(str.encode))
def test_no_list_of_bad_pages_does_anything_but_columns_or_a_value_error(data: bytes) -> None:
    try:
        columns = parse.bad_pages(data)
    except ValueError as error:
        assert str(error) == "not a list of bad pages"
    else:
        assert columns["retired_pages_uncorrected_total"] <= data.count(b"\n") + 1
        assert columns["retired_pages_pending"] in (True, False)
