"""Output of other vendors' tools, as the tests of the agent's probes have it: the same values in the same columns."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.apple.test_apple import LINE, OLD_LINE
from tests.agent.collect.cambricon.test_cambricon import REPORT as CNMON
from tests.agent.collect.furiosa.test_furiosa import ANSWERS as FURIOSA
from tests.agent.collect.huawei.test_ascend import A2
from tests.agent.collect.intel.test_gaudi import ECC, SAMPLES
from tests.agent.collect.mthreads.test_mthreads import REPORT as MTHREADS
from tests.agent.collect.neuron.test_neuron import REPORT as NEURON
from tests.agent.collect.rebellions.test_rebellions import REPORT as RBLN
from tests.importing.conftest import AT_MS

from gpuwarden_importing.accelerators import READERS
from gpuwarden_importing.detect import format_of
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError

GIB, MIB = 1 << 30, 1 << 20
NEURON_HARDWARE = {
    "neuron_device_type": "trainium", "neuron_device_version": "v2", "neuroncore_version": "v2",
    "neuron_device_count": 2, "neuroncore_per_device_count": 2, "neuron_device_memory_size": 32 * GIB,
}  # fmt: skip
NEURON_INSTANCE = {
    "instance_type": "trn1.32xlarge",
    "instance_region": "us-east-1",
    "instance_id": "i-0a",
}
TENSTORRENT = {
    "time": "2026-07-20T11:04:33.483914", "host_info": {"OS": "Linux"},
    "device_info": [
        {
            "board_info": {"bus_id": bus, "board_type": f"n300 {side}", "board_id": "0100014411000000", "pcie_width": "16"},
            "telemetry": {"voltage": "0.72", "current": " 23.0", "power": power, "aiclk": " 800", "asic_temperature": "34.8"},
            "firmwares": {"fw_bundle_version": "19.4.1.0"},
            "limits": {"tdp_limit": "85", "thm_limit": "75"},
        }
        for bus, side, power in (("0000:04:00.0", "L", " 16.0"), ("N/A", "R", "N/A"))
    ],
}  # fmt: skip
TEXTS = {
    "macmon JSON": json.dumps(LINE) + "\n",
    "hl-smi CSV": SAMPLES,
    "npu-smi info": A2,
    "mthreads-gmi JSON": json.dumps(MTHREADS, indent=2),
    "cnmon JSON": json.dumps(CNMON, indent=4),
    "rbln-smi JSON": json.dumps(RBLN),
    "tt-smi JSON": json.dumps(TENSTORRENT, indent=4),
    "furiosa-smi JSON": json.dumps(FURIOSA["info"], indent=2),
    "neuron-monitor JSON": json.dumps(
        NEURON | {"instance_info": NEURON_INSTANCE, "neuron_hardware_info": NEURON_HARDWARE}
    ),
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
        ("furiosa-smi JSON", "FURIOSA-A0B1C2D3-02", {"power_watts": 138.0, "sm_clock_mhz": 2000}),
        ("rbln-smi JSON", "RBLN-c0ffee00-0000", {"util_percent": 98.5, "memory_total_bytes": 16 * GIB, "power_watts": 43.9}),
    ],
)  # fmt: skip
def test_json_of_a_look(imported, name, uuid, values) -> None:
    found = imported(READERS[name], TEXTS[name])
    rows = {row["gpu_uuid"]: row for row in found["gpu_samples"]}
    assert len(rows) == 2
    assert rows[uuid] == rows[uuid] | values | {"ts": AT_MS, "node": "n1", "gpu": 0}
    assert {row["gpu_uuid"] for row in found["gpus"]} == set(rows)


def test_a_snapshot_of_tt_smi_has_its_time(imported) -> None:
    found = imported(READERS["tt-smi JSON"], TEXTS["tt-smi JSON"])
    assert found["gpu_samples"] == [
        {
            "ts": 1_784_545_473_483, "node": "n1", "gpu": 0, "gpu_uuid": "pci-0000:04:00.0@n1", "power_watts": 16.0,
            "power_limit_watts": 85.0, "temperature_celsius": 34.8, "sm_clock_mhz": 800.0,
        },
        {
            "ts": 1_784_545_473_483, "node": "n1", "gpu": 1, "gpu_uuid": "gpu-1@n1", "power_watts": None,
            "power_limit_watts": 85.0, "temperature_celsius": 34.8, "sm_clock_mhz": 800.0,
        },
    ]  # fmt: skip
    assert [row["model"] for row in found["gpus"]] == ["Tenstorrent n300", "Tenstorrent n300"]
    untimed = {**TENSTORRENT, "time": "yesterday"}
    assert not imported(READERS["tt-smi JSON"], json.dumps(untimed)).tally.notes
    assert imported(READERS["tt-smi JSON"], json.dumps(untimed)).tally.skipped


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


def test_reports_of_neuron_monitor_are_as_far_apart_as_they_cover(imported) -> None:
    report = json.loads(TEXTS["neuron-monitor JSON"])
    hardware = report["system_data"] | {"neuron_hw_counters": {"period": 5.0, "neuron_devices": []}}
    quiet = report | {"neuron_runtime_data": [], "system_data": hardware}
    later = report | {"neuron_runtime_data": report["neuron_runtime_data"][1:]}
    lines = [json.dumps(line) for line in (quiet, report, {"neuron_runtime_data": []}, [], later)]
    found = imported(READERS["neuron-monitor JSON"], "\n".join([*lines, "{", ""]))
    rows = {(AT_MS - row["ts"], row["gpu"]): row for row in found["gpu_samples"]}
    assert sorted(rows) == [(ms, gpu) for ms in (0, 1000, 2000) for gpu in (0, 1)]
    assert rows[1000, 0] == {
        "ts": AT_MS - 1000, "node": "n1", "gpu": 0, "gpu_uuid": "gpu-0@n1", "util_percent": 80.0,
        "memory_total_bytes": 32 * GIB, "memory_used_bytes": 8 * GIB, "memory_free_bytes": 24 * GIB,
    }  # fmt: skip
    used = {key: (row["util_percent"], row["memory_used_bytes"]) for key, row in rows.items()}
    assert used == used | {
        (2000, 0): (0, 0), (2000, 1): (0, 0), (1000, 1): (30, 3 * GIB), (0, 0): (0, 0), (0, 1): (25, 2 * GIB),
    }  # fmt: skip
    health = {(AT_MS - row["ts"], row["gpu"]): row for row in found["gpu_health_samples"]}
    assert sorted(health) == [(0, 0), (0, 1), (1000, 0), (1000, 1)]
    assert health[0, 0]["ecc_uncorrected_volatile_total"] == 1
    assert sum(one.count for one in found.tally.skipped.values()) == 3
    assert any("no times" in note for note in found.tally.notes)
    assert found["nodes"][0] == found["nodes"][0] | {
        "cloud": "aws", "instance_type": "trn1.32xlarge", "region": "us-east-1",
    }  # fmt: skip
    assert [row["model"] for row in found["gpus"]] == ["AWS Trainium", "AWS Trainium"]


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
