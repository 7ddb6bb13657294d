"""Cells of other tools' logs in the catalogue's units."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_importing.values import UNITS, bits, bus_id, converter, executable, flag, pstate


@each(
    ("quantity", "unit", "cell", "value"),
    [
        ("bytes", "MiB", "81559 MiB", 81559 * 2**20),
        ("bytes", "MiB", " 81559", 81559 * 2**20),
        ("bytes", "MiB", "1 GiB", 2**30),
        ("watts", "W", "433.78 W", 433.78),
        ("watts", "W", "433780 mW", 433.78),
        ("watts", "W", "433,78 W", 433.78),
        ("seconds", "us", "4251825415 us", 4251.825415),
        ("mhz", "MHz", "1.98 GHz", 1980),
        ("percent", "%", "45 %", 45.0),
        ("percent", "%", '"45"', 45.0),
        ("celsius", "C", "-7 C", -7.0),
        ("count", "", "96 bank(s)", 96),
        ("count", "", "9007199254740993", 9007199254740993),
        ("lanes", "", "16x", 16),
        ("clock", "", "(300Mhz)", 300),
    ],
)
def test_a_value_is_in_the_catalogues_unit(quantity, unit, cell, value) -> None:
    assert converter(quantity, unit)(cell) == value


ABSENT = (
    *("N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "ERR!", "", " - "),
    *("Unknown Error", "Requested functionality has been deprecated", "NaN", "nan"),
)


@each("cell", ABSENT)
@each("quantity", [*UNITS, "text", "bits", "flag", "pstate", "bus_id"])
def test_what_the_tool_does_not_know_is_absent(quantity, cell) -> None:
    assert converter(quantity)(cell) is None


@pytest.mark.parametrize(
    ("quantity", "cell"),
    [("bytes", "12 bananas"), ("watts", "35 C"), ("count", "1.5"), ("percent", "0x12"),
     ("bits", "zz"), ("flag", "maybe"), ("pstate", "fast"), ("bus_id", "over there"),
     ("compute_mode", "wild"), ("bytes", "1e400 MiB"), ("count", "99999999999999999999")],
)  # fmt: skip
def test_what_is_not_understood_is_no_value(quantity, cell) -> None:
    with pytest.raises(ValueError, match=r"is |has "):
        converter(quantity)(cell)


def test_masks_flags_states_and_bus_ids_are_read() -> None:
    assert bits("0x0000000000000004") == 4
    assert [flag(c) for c in ("Active", "Not Active", "Enabled", "No")] == [
        True,
        False,
        True,
        False,
    ]
    assert [pstate(c) for c in ("P0", "P8", "Unknown", "P32")] == [0, 8, None, None]
    assert bus_id("00000000:3B:00.0") == "0000:3b:00.0"


@pytest.mark.parametrize(
    ("cell", "name"),
    [("/usr/bin/python3 train.py --token=s3cret", "python3"), ("ffmpeg", "ffmpeg"),
     (r"C:\Program Files\app\x.exe", "x.exe"),
     (r"C:\Program Files (x86)\A B\My App.exe --key D:\s3cret", "My App.exe"),
     (r"...osoft Foo\Search App.EXE", "Search App.EXE"), (r"\\server\share\my tool", "my tool"),
     (r"python3 t.py --re \d+", "python3"), ("...me/a/python3", "python3"), ("[Not Found]", None), ("/", None)],
)  # fmt: skip
def test_a_process_is_named_without_path_and_arguments(cell, name) -> None:
    assert executable(cell) == name


@given(st.sampled_from([*UNITS, "bits", "flag", "pstate", "bus_id", "compute_mode", "executable",
                        "architecture", "recovery", "word", "clock", "text"]), st.text(max_size=30))  # fmt: skip
def test_rubbish_is_absent_or_refused(quantity, cell) -> None:
    with suppress(ValueError):
        converter(quantity)(cell)
