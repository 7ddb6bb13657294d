"""`rocm-smi --json` of several versions of the tool."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_importing.model import ImportTally, Origin
from gpuwarden_importing.rocm import read

CARD = {
    "Unique ID": "0x2150e7d042a1124", "Temperature (Sensor edge) (C)": "39.0", "GPU use (%)": "7",
    "Average Graphics Package Power (W)": "15.0", "sclk clock speed:": "(1269Mhz)",
    "pcie clock level": "1 (8.0GT/s x16)", "PCI Bus": "0000:04:00.0", "Voltage (mV)": "906",
    "VRAM Total Used Memory (B)": "17776640", "Device ID": "0x74a1",
}  # fmt: skip


def document(**card: str | None) -> str:
    said = {name: value for name, value in {**CARD, **card}.items() if value is not None}
    return json.dumps({"card3": said, "system": {"Driver version": "6.3.6"}})


def test_a_card_becomes_a_gpu_under_the_agents_identity(imported) -> None:
    found = imported(read, "WARNING: low-power state\n" + document())
    assert found["gpu_samples"] == [
        {"ts": 1_780_000_000_000, "node": "n1", "gpu": 3, "gpu_uuid": "AMD-02150e7d042a1124",
         "temperature_celsius": 39.0, "util_percent": 7.0, "power_watts": 15.0,
         "sm_clock_mhz": 1269, "memory_used_bytes": 17776640},
    ]  # fmt: skip
    assert found["gpu_detail_samples"][0]["pcie_generation"] == 3
    assert found["gpus"][0]["model"] == "AMD Instinct MI300X"
    assert found["nodes"][0]["driver_version"] == "6.3.6"
    assert found.tally.unmapped == {"Voltage (mV)": 1}
    assert any("no timestamps" in note for note in found.tally.notes)


def test_newer_names_of_power_mean_the_same(imported) -> None:
    card = {
        "Average Graphics Package Power (W)": None,
        "Current Socket Graphics Package Power (W)": "140.0",
    }
    row = imported(read, document(**card))["gpu_samples"][0]
    assert (row["power_watts"], row["power_instant_watts"]) == (140.0, 140.0)


def test_what_is_not_measured_is_absent(imported) -> None:
    card = {
        "Average Graphics Package Power (W)": "N/A (Secondary die)",
        "Temperature (Sensor edge) (C)": "0.0",
    }
    found = imported(read, document(**card))
    row = found["gpu_samples"][0]
    assert (row["power_watts"], row["temperature_celsius"]) == (None, None)
    assert found.tally.skipped == {}


def test_a_board_without_unique_id_is_named_by_its_place(imported) -> None:
    found = imported(read, document(**{"Unique ID": "N/A"}))
    assert found["gpu_samples"][0]["gpu_uuid"] == "AMD-0000:04:00.0@n1"


@pytest.mark.parametrize(
    ("name", "gpus", "watts", "used"),
    [("mi100_rocm571", 6, 39.0, 6782976), ("mi100_rocm602", 4, 36.0, 6750208),
     ("vega-10-XT", 1, 15.0, 17776640), ("rx6700xt_rocm430", 1, 6.0, 1622728704),
     ("rx6700xt_rocm571", 1, 6.0, 1564491776), ("rx6700xt_rocm602", 1, None, 1572757504)],
)  # fmt: skip
def test_captures_of_all_versions_are_read(imported, data, name, gpus, watts, used) -> None:
    found = imported(read, (data / "amd" / f"{name}.json").read_text())
    first = found["gpu_samples"][0]
    assert len({row["gpu_uuid"] for row in found["gpu_samples"]}) == gpus
    assert (first["power_watts"], first["memory_used_bytes"]) == (watts, used)
    idle = {"a process (PID...) that is on no GPU"} if name == "mi100_rocm571" else set()
    assert not found.tally.skipped
    assert found.tally.ignored.keys() == idle


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=8), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.sampled_from(["card0", "card1", "system", *CARD]), inner, max_size=4)),
    st.integers(0, 30))  # fmt: skip
def test_rubbish_of_rocm_smi_raises_nothing(content, cut) -> None:
    text = document() + "\n" + json.dumps(content) + document()[:cut]
    list(read(iter(text.splitlines(keepends=True)), Origin(node="n1", at_ms=1), ImportTally()))


def test_a_process_is_of_the_only_card_or_counted(imported) -> None:
    pids = {
        "PID7": "python3, 1, 4096, 0, 12",
        "PID8": "x, 0, 0, 0, 0",
        "PID9": "?",
        "Firmware": "5",
    }
    one = {"card0": CARD, "system": {"Driver version": "6.3.6", **pids}}
    found = imported(read, json.dumps(one))
    (row,) = found["process_samples"]
    assert (row["gpu"], row["gpu_uuid"], row["pid"]) == (0, "AMD-02150e7d042a1124", 7)
    assert (row["process_name"], row["gpu_memory_bytes"]) == ("python3", 4096)
    assert list(found.tally.skipped) == ["a process (PID...) in an unknown form"]
    assert list(found.tally.ignored) == ["a process (PID...) that is on no GPU"]
    assert found.tally.unmapped["system: Firmware"] == 1
    found = imported(read, json.dumps(one | {"card1": CARD | {"Unique ID": "0x2"}}))
    assert "process_samples" not in found.tables
    assert any("without its GPU" in reason for reason in found.tally.skipped)
