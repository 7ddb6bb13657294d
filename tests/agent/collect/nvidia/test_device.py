"""The real binding, run on a library that a test compiles, and on a real GPU where there is one."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest
from tests.agent.collect.nvidia.fake_library import MIB, READ, compiled, run

from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.device import decode, open_driver
from gpuwarden_agent.collect.nvidia.nvml import FieldValue, NvmlUnavailable

WHY_UNUSABLE = {
    nvml.DRIVER_NOT_LOADED: "kernel module is not loaded",
    nvml.LIB_RM_VERSION_MISMATCH: "different versions",
    nvml.NO_PERMISSION: "no permission",
    nvml.UNKNOWN: "in a container",
    nvml.TIMEOUT: "nvmlInit: TIMEOUT",
}
OF_VERSION: dict[str, dict[str, Any]] = {
    "old": {
        "util_percent": 97.0,
        "memory_util_percent": 31.0,
        "clocks_event_reasons": 4,
        "temperature_celsius": 61.0,
        "memory_used_bytes": 40 * MIB,
    },
    "new": {
        # The mean of the last second's five samples.
        "util_percent": 40.0,
        "memory_util_percent": 8.0,
        "clocks_event_reasons": 0x24,
        "temperature_celsius": 62.0,
        "memory_used_bytes": 30 * MIB,
        "memory_reserved_bytes": 10 * MIB,
    },
}


@pytest.mark.parametrize("version", ["new", "old"])
def test_the_binding_reads_every_call_and_tells_what_is_wrong(version: str, tmp_path: Path) -> None:
    library = compiled(tmp_path, is_old=version == "old")
    unusable = [(READ, {"FAKE_NVML_INIT": str(code)}) for code in WHY_UNUSABLE]
    answer, *errors = run(library, (READ, {"BETWEEN_S": "0.12"}), *unusable)
    assert answer["message"] == "2 GPUs, NVIDIA driver 590.48.01"
    tables = answer["tables"]
    (row,) = tables["gpu_samples"]
    for stamped in ("ts", "node", "simulated"):
        del row[stamped]
    assert row == {
        "gpu": 0,
        "gpu_uuid": "GPU-5ca1ab1e-0000-0000-0000-000000000000",
        "encoder_util_percent": 11.0,
        "decoder_util_percent": 12.0,
        "memory_total_bytes": 100 * MIB,
        "memory_free_bytes": 60 * MIB,
        "power_watts": 301.0,
        "power_instant_watts": 302.0,
        "power_limit_watts": 700.0,
        "energy_joules_total": (1 << 40) / 1000,
        "memory_temperature_celsius": 55.0,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "power_violation_seconds_total": 2.5,
        "thermal_violation_seconds_total": 3.0,
        "pstate": 0,
        "nvlink_tx_bytes_total": 10 * 1024,
        **OF_VERSION[version],
    }
    lost = "nvmlDeviceGetHandleByIndex: GPU_IS_LOST"
    assert answer["problems"] == [
        f"gpu1: GPU 1 is lost: it fell off the bus; drain the node and reboot it ({lost})",
        "gpu0: nvmlDeviceGetSerial: UNKNOWN",
        "gpu0: nvmlDeviceGetFieldValues(197): UNKNOWN",
        *(["gpu0: nvmlGpmMetricsGet(11): untrue value"] if version == "new" else []),
        f"processes: GPU 1: {lost}",
    ]
    (gpu,) = tables["gpus"]
    inventory = {
        "pci_bus_id": "0001:3b:00.0",
        "nvlinks": 4,
        "sm_clock_max_mhz": 1981,
        "memory_clock_max_mhz": 2620,
        "power_limit_min_watts": 200.0,
        "power_limit_max_watts": 700.0,
        "temperature_slowdown_celsius": 97,
        "temperature_shutdown_celsius": 100,
    }
    assert inventory.items() <= gpu.items()
    # The serial number's bytes are not text, MIG is not supported.
    assert not {"serial", "mig_mode"} & gpu.keys()
    (node,) = tables["nodes"]
    assert (node["driver_version"], node["cuda_version"], node["gpus"]) == ("590.48.01", "13.1", 2)
    processes = [(row["pid"], row.get("gpu_memory_bytes")) for row in tables["process_samples"]]
    assert processes == [(4194200, 3 * MIB), (4194201, None)]
    for (told,), words in zip(map(dict.values, errors), WHY_UNUSABLE.values(), strict=True):
        assert told.startswith("backend nvml: ")
        assert words in told
        assert "\n" not in told


def test_without_a_library_there_is_no_driver(tmp_path: Path) -> None:
    if not isinstance(open_driver(), NvmlUnavailable):
        pytest.skip("this host has an NVIDIA driver")
    assert open_driver() == NvmlUnavailable(
        "libnvidia-ml.so.1 not found: no NVIDIA driver on this host", nvml.LIBRARY_NOT_FOUND
    )


def raw(value_type: int, member: str, value: float, code: int = 0, timestamp: int = 1) -> Any:
    field = pynvml.c_nvmlFieldValue_t()
    field.valueType, field.nvmlReturn, field.timestamp = value_type, code, timestamp
    setattr(field.value, member, value)
    return field


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        (raw(0, "dVal", 1.5), FieldValue(0, 1.5)),
        (raw(1, "uiVal", 7), FieldValue(0, 7)),
        (raw(2, "ulVal", 2**40), FieldValue(0, 2**40)),
        (raw(3, "ullVal", 2**63), FieldValue(0, 2**63)),
        (raw(4, "sllVal", -5), FieldValue(0, -5)),
        (raw(5, "siVal", -6), FieldValue(0, -6)),
        (raw(6, "usVal", 65535), FieldValue(0, 65535)),
        (raw(1, "uiVal", 0), FieldValue(0, 0)),
        (raw(0, "dVal", 0.0), FieldValue(0, 0.0)),
        (raw(0, "dVal", 0.0, timestamp=0), FieldValue(nvml.NOT_SUPPORTED)),
        (raw(1, "uiVal", 0xFFFFFFFF), FieldValue(nvml.NOT_SUPPORTED)),
        (raw(3, "ullVal", 2**64 - 1), FieldValue(nvml.NOT_SUPPORTED)),
        (raw(1, "uiVal", 7, code=nvml.GPU_IS_LOST), FieldValue(nvml.GPU_IS_LOST)),
        (raw(7, "ullVal", 7), FieldValue(nvml.UNKNOWN)),
    ],
)
def test_a_field_is_decoded_by_its_own_code_and_type(field: Any, answer: FieldValue) -> None:
    assert decode(field) == answer


SMI = {
    "uuid": "gpu_uuid",
    "memory.total": "memory_total_bytes",
    "memory.used": "memory_used_bytes",
    "power.draw": "power_watts",
    "enforced.power.limit": "power_limit_watts",
    "temperature.gpu": "temperature_celsius",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
}


@pytest.mark.gpu
def test_a_real_gpu_reads_as_nvidia_smi_prints_it() -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        pytest.skip("no nvidia-smi: no NVIDIA driver on this host")
    (answer,) = run(Path(os.environ.get("LD_LIBRARY_PATH", "")), (READ, {}))
    printed = subprocess.run(
        [smi, f"--query-gpu={','.join(SMI)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    rows = answer["tables"]["gpu_samples"]
    assert len(rows) == len(printed)
    for row, line in zip(rows, printed, strict=True):
        smi_row = dict(zip(SMI.values(), line.split(", "), strict=True))
        assert row["gpu_uuid"] == smi_row["gpu_uuid"]
        assert row["memory_total_bytes"] == float(smi_row["memory_total_bytes"]) * MIB
        # Between the two reads an idle GPU moves by little.
        for column, tolerance in {
            "memory_used_bytes": 64 * MIB,
            "power_watts": 40,
            "power_limit_watts": 0.01,
            "temperature_celsius": 3,
            "memory_clock_mhz": 50,
        }.items():
            scale = MIB if column.endswith("_bytes") else 1
            assert row[column] == pytest.approx(float(smi_row[column]) * scale, abs=tolerance)
