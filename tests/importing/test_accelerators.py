"""Output of other vendors' tools, as the tests of the agent's probes have it: the same values in the same columns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.apple.test_apple import LINE, OLD_LINE
from tests.agent.collect.cambricon.test_cambricon import REPORT as CNMON
from tests.agent.collect.huawei.test_ascend import A2
from tests.agent.collect.intel.test_gaudi import ECC, SAMPLES
from tests.agent.collect.mthreads.test_mthreads import REPORT as MTHREADS
from tests.agent.collect.rebellions.test_rebellions import REPORT as RBLN
from tests.importing.conftest import AT_MS

from gpuwarden_importing.accelerators import READERS
from gpuwarden_importing.detect import format_of
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError

GIB, MIB = 1 << 30, 1 << 20
TEXTS = {
    "macmon JSON": json.dumps(LINE) + "\n",
    "hl-smi CSV": SAMPLES,
    "npu-smi info": A2,
    "mthreads-gmi JSON": json.dumps(MTHREADS, indent=2),
    "cnmon JSON": json.dumps(CNMON, indent=4),
    "rbln-smi JSON": json.dumps(RBLN),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tool_is_recognized(name: str) -> None:
    assert format_of(TEXTS[name].splitlines(), Origin()) == name
    assert set(TEXTS) == set(READERS)


def test_gaudi_by_hl_smi(imported) -> None:
    found = imported(READERS["hl-smi CSV"], SAMPLES)
    assert found["gpu_samples"][0] == {
        "ts": AT_MS, "node": "n1", "gpu": 0, "gpu_uuid": "GAUDI-01P0-HL2080A0-15-TNBS12-04-07-03",
        "util_percent": 83.0, "memory_total_bytes": 98304 * MIB, "memory_used_bytes": 32768 * MIB,
        "memory_free_bytes": 65536 * MIB, "power_watts": 412.0, "temperature_celsius": 47.0,
    }  # fmt: skip
    assert found["gpu_samples"][1]["util_percent"] is None
    assert found["gpus"][1] == {
        "gpu_uuid": "GAUDI-01P0-HL2080A0-15-TNBS12-09-02-01", "node": "n1", "gpu": 1, "vendor": "intel", "kind": "npu",
        "model": "Intel Gaudi 3 HL-325L", "serial": None, "pci_bus_id": "0000:4e:00.0", "memory_total_bytes": 98304 * MIB,
    }  # fmt: skip
    assert any("no timestamps" in note for note in found.tally.notes)
    health = imported(READERS["hl-smi CSV"], ECC)
    assert health["gpu_health_samples"][0]["ecc_uncorrected_aggregate_total"] == 2


def test_ascend_by_npu_smi(imported) -> None:
    found = imported(READERS["npu-smi info"], A2)
    assert found["gpu_samples"][0] == {
        "ts": AT_MS, "node": "n1", "gpu": 0, "gpu_uuid": "pci-0000:c1:00.0@n1", "util_percent": 87.0,
        "memory_total_bytes": 65536 * MIB, "memory_used_bytes": 41842 * MIB, "power_watts": 312.5, "temperature_celsius": 51.0,
    }  # fmt: skip
    assert [row["model"] for row in found["gpus"]] == ["Ascend 910B3", "Ascend 910B3"]
    assert any("without an identity" in note for note in found.tally.notes)


@pytest.mark.parametrize(
    ("name", "uuid", "values"),
    [
        ("mthreads-gmi JSON", "MTT-0e1f2a3b-0000", {"util_percent": 37.0, "memory_used_bytes": 1152 * MIB, "power_watts": 131.5}),
        ("cnmon JSON", "MLU-9a8b7c6d-0000", {"util_percent": 81.0, "power_watts": 143.0, "temperature_celsius": 52.0}),
        ("rbln-smi JSON", "RBLN-c0ffee00-0000", {"util_percent": 98.5, "memory_total_bytes": 16 * GIB, "power_watts": 43.9}),
    ],
)  # fmt: skip
def test_json_of_a_look(imported, name, uuid, values) -> None:
    found = imported(READERS[name], TEXTS[name])
    rows = {row["gpu_uuid"]: row for row in found["gpu_samples"]}
    assert len(rows) == 2
    assert rows[uuid] == rows[uuid] | values | {"ts": AT_MS, "node": "n1", "gpu": 0}
    assert {row["gpu_uuid"] for row in found["gpus"]} == set(rows)


def test_lines_of_macmon_have_their_time_or_that_of_the_file(imported) -> None:
    text = json.dumps(LINE) + "\n\nrubbish\n" + json.dumps(OLD_LINE) + "\n"
    found = imported(READERS["macmon JSON"], text)
    assert found["gpu_samples"][0] == {
        "ts": 1_784_016_758_001, "node": "n1", "gpu": 0, "gpu_uuid": "gpu-0@n1", "util_percent": 75.0,
        "power_watts": 41.5, "temperature_celsius": 57.25, "sm_clock_mhz": 1398,
    }  # fmt: skip
    assert found["gpu_samples"][1]["ts"] == AT_MS
    assert found["gpu_samples"][1]["util_percent"] is None
    assert sum(one.count for one in found.tally.skipped.values()) == 1
    assert found["gpus"][0]["vendor"] == "apple"


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "macmon JSON"])
def test_half_of_a_look_is_refused_with_a_sentence(imported, name) -> None:
    reader = READERS[name]
    with pytest.raises(UnreadableError):
        imported(reader, TEXTS[name][:60])
    with pytest.raises(UnreadableError, match="node"):
        imported(reader, TEXTS[name], node=None)


@given(st.text())
def test_no_text_breaks_a_reader(text: str) -> None:
    for reader in READERS.values():
        try:
            list(
                reader(
                    iter(text.splitlines(keepends=True)), Origin("n1", at_ms=AT_MS), ImportTally()
                )
            )
        except UnreadableError:
            continue
