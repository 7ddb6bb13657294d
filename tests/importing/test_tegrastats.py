"""`tegrastats` of all boards, in the shapes that its guide shows, with values of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_importing.model import ImportTally, Origin, UnreadableError
from gpuwarden_importing.tegrastats import read

AGX_ORIN = (
    "07-14-2026 09:00:01 RAM 20642/62817MB (lfb 1x2MB) SWAP 0/15268MB (cached 0MB) "
    "CPU [23%@2201,off,4%@2201] EMC_FREQ 3%@3199 GR3D_FREQ 12%@[1300,1290] NVENC0 off VIC off "
    "APE 174 cpu@52.968C/52.968C soc2@48.406C/48.406C gpu@47.625C/47.625C tj@53C/53C "
    "VDD_GPU_SOC 5139mW/4800mW/5139mW VDD_CPU_CV 3268mW/3268mW/3268mW VIN_SYS_5V0 5500mW/5500mW"
)
XAVIER = (
    "RAM 407/15823MB (lfb 3702x4MB) SWAP 0/7911MB (cached 0MB) CPU [0%@2265,1%@2265] EMC_FREQ 0% "
    "GR3D_FREQ 7%@1377 AO@26.5C GPU@28C Tdiode@31.25C PMIC@100C GPU 1155/1150 CPU 385/385 "
    "SOC 2504/2503 CV 0/0 VDDRQ 192/192 SYS5V 2692/2692"
)


def test_each_word_of_the_gpu_is_in_its_column(imported) -> None:
    found = imported(read, AGX_ORIN + "\n", at_ms=None)
    assert found["gpu_samples"] == [
        {"ts": 1_784_019_601_000, "node": "n1", "gpu": 0, "gpu_uuid": "gpu-0@n1",
         "util_percent": 12.0, "sm_clock_mhz": 1300, "temperature_celsius": 47.625, "power_watts": 5.139},
    ]  # fmt: skip
    assert found["gpus"] == [{"gpu_uuid": "gpu-0@n1", "node": "n1", "gpu": 0, "vendor": "nvidia"}]
    assert found.tally.unmapped["VDD_CPU_CV"] == 1
    assert found.tally.skipped == {}


def test_lines_without_times_are_a_second_apart(imported) -> None:
    found = imported(read, f"{XAVIER}\n\n{XAVIER}\n", at_ms=1_780_000_000_000)
    assert [row["ts"] for row in found["gpu_samples"]] == [1_779_999_999_000, 1_780_000_000_000]
    row = found["gpu_samples"][0]
    assert (row["util_percent"], row["sm_clock_mhz"]) == (7.0, 1377)
    assert (row["temperature_celsius"], row["power_watts"]) == (28.0, 1.155)
    assert any("no times" in note for note in found.tally.notes)


@pytest.mark.parametrize(
    ("words", "column", "value"),
    [
        ("GR3D_FREQ 0%", "util_percent", 0.0),
        ("GR3D_FREQ 0%", "sm_clock_mhz", None),
        ("GR3D_FREQ 5%@0 GR3D2_FREQ 5%@0", "sm_clock_mhz", None),
        ("GR3D_FREQ @[1000,1000,1000]", "util_percent", None),
        ("GR3D_FREQ @[1000,1000,1000]", "sm_clock_mhz", 1000),
        ("EMC_FREQ 0%", "util_percent", None),
        ("GPU@-256C", "temperature_celsius", None),
        ("VDD_IN 4900mW/4800mW VDD_CPU_GPU_CV 900mW/800mW", "power_watts", None),
        ("VDD_IN 1038/1134 VDD_GPU 153/150 VDD_SOC 384/384", "power_watts", 0.153),
        ("POM_5V_IN 933/933 POM_5V_GPU 40/0 POM_5V_CPU 84/84", "power_watts", 0.04),
    ],
)
def test_words_differ_between_boards_and_what_is_absent_stays_so(
    imported, words, column, value
) -> None:
    found = imported(read, f"RAM 9/99MB (lfb 1x4MB) CPU [3%@345,off] {words}\n")
    assert found["gpu_samples"][0][column] == value


def test_the_month_comes_first_whatever_the_call_says(imported) -> None:
    line = AGX_ORIN.replace("07-14-2026", "03-04-2026")
    found = imported(read, line, day_first=True)
    assert found["gpu_samples"][0]["ts"] == 1_772_614_801_000


def test_cut_lines_and_other_text_are_counted(imported) -> None:
    found = imported(read, f"{AGX_ORIN}\n{AGX_ORIN[:40]}\nKilled\n")
    assert len(found["gpu_samples"]) == 1
    assert found.tally.skipped["other text"].count == 2


def test_a_node_must_be_named() -> None:
    with pytest.raises(UnreadableError, match="--node"):
        list(read(iter([AGX_ORIN]), Origin(), ImportTally()))


WORDS = st.sampled_from(
    [*AGX_ORIN.split(" "), *XAVIER.split(" "), "GR3D_FREQ", "@[", "%", "]", "999999999999", "\n"]
)


@given(st.lists(WORDS | st.text(max_size=9), max_size=40).map(" ".join))
def test_no_text_breaks_the_reader(imported, text) -> None:
    imported(read, f"RAM 1/2MB (lfb) CPU [1%@1] {text}\n{text}")
