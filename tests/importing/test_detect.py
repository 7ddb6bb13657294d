"""Formats are recognised by what is in a file, not by its name."""

import pytest
from tests.each import each

from gpuwarden_importing.detect import format_of, read
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError
from gpuwarden_importing.sources import opened


@each(
    ("head", "form"),
    [
        (['<?xml version="1.0" ?>', "<nvidia_smi_log>"], "nvidia-smi XML"),
        (["# a remark", "timestamp, index, power.draw [W]"], "nvidia-smi CSV"),
        (["utilization.gpu [%]", "5 %"], "nvidia-smi CSV"),
        (["timestamp, name, driver_version, pstate"], "nvidia-smi CSV"),
        (["WARNING: low power", '{"card0": {"GPU use (%)": "0"}}'], "rocm-smi JSON"),
        (["# HELP DCGM_FI_DEV_GPU_TEMP x", "DCGM_FI_DEV_GPU_TEMP{} 5"], "dcgm-exporter text"),
        (["    # TYPE x", '    DCGM_FI_DEV_GPU_TEMP {gpu="0"} 5'], "dcgm-exporter text"),
        (["ts,node,gpu_uuid,util_percent"], "CSV of a table"),
        (["[Sun Feb 23 16:24:18 2025] NVRM: x"], "kernel log"),
        (['{"__REALTIME_TIMESTAMP": "1", "MESSAGE": "x"}'], "kernel log"),
        (["Tue Jul 14 09:00:26 2026", "+---+", "| NVIDIA-SMI 590.48.01   Driver Version: 590.48.01   CUDA Version: 13.1 |"], "nvidia-smi text"),
        (["", "==============NVSMI LOG==============", "Timestamp : x"], "nvidia-smi -q"),
        (["GPU 0: NVIDIA A100 (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)"], "nvidia-smi text"),
        (["\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\x1b[0m", "GPU0\t X \tNV18"], "nvidia-smi text"),
        (["# gpu    pwr  gtemp  mtemp     sm", "# Idx W C C %"], "dmon or pmon"),
        (["#Date Time gpu pwr sm"], "dmon or pmon"),
        (["# gpu         pid   type     sm    mem"], "dmon or pmon"),
        (["#Entity   GPUTL  POWER", "ID"], "dmon or pmon"),
        (['[{"gpu": 0, "usage": {"gfx_activity": "5 %"}}]'], "amd-smi JSON"),
        (["{", '    "gpu_data": [', '        {"gpu": 0, "asic": {}}'], "amd-smi JSON"),
        (["[Feb 25 2025 13:59:45] [INFO] [tid 1803] Received an inband message"], "fabric manager log"),
        (["timestamp, gpu_uuid, pid, gpu_utilization [%], max_memory_usage [MiB]"], "nvidia-smi CSV"),
        (["gpu_uuid, retired_pages.address, retired_pages.cause"], "nvidia-smi CSV"),
        # Columns that other tools have too.
        (["timestamp, index, uuid, name, memory.used [MiB], ecc.errors.uncorrected.volatile.total"], "nvidia-smi CSV"),
        (["RAM 16/32MB free"], None),
        (["c0,c1", "55.7,0"], None),
        (["dataset,network,power_limit"], None),
        (["MIT License"], None),
        ([], None),
    ],
)  # fmt: skip
def test_a_format_is_recognised_by_its_beginning(head, form) -> None:
    assert format_of(head, Origin()) == form


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (["GPU 0: X (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)", "timestamp, uuid, power.draw [W]"],
         "nvidia-smi text or nvidia-smi CSV"),
        (['{"card0": {}, "gpu": 0, "asic": {}}'], "rocm-smi JSON or amd-smi JSON"),
        (["driver_version", "590.48.01"], "--fields or --table"),
        (["# gpu pwr", "[    1.000000] NVRM: x"], "dmon or pmon or kernel log"),
    ],
)  # fmt: skip
def test_a_file_that_may_be_two_formats_is_refused_with_both_names(head, said) -> None:
    with pytest.raises(UnreadableError, match=said):
        format_of(head, Origin())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('nvidia_smi_utilization_gpu_ratio{uuid="x"} 0.5\n', "nvidia_gpu_exporter.*--query-gpu"),
        ("[0] NVIDIA A100 | 30'C,   0 % |   0 / 40960 MB |\n", "gpustat.*--query-gpu"),
        ("======= ROCm System Management Interface =======\n", "rocm-smi -a --json"),
        ("timestamp, name, memory.used [MiB]\n2026/07/14 09:00:44, HL-225, 5 MiB\n", "hl-smi CSV"),
        ("index, uuid, utilization.aip [%], memory.used [MiB]\n", "hl-smi CSV"),
        ("device,GPU use (%),Temperature (Sensor edge) (C)\ncard0,5,40\n", "rocm-smi -a --json"),
        ("gpu,gfx_activity,socket_power\n0,5,70\n", "amd-smi metric --json"),
        ('# HELP up x\nup{job="x"} 1\n', "without a metric of DCGM.*dcgm-exporter"),
        ('gpuwarden_gpu_util_ratio{gpu="0"} 1\n', "gpuwarden sql"),
        ("Start of NVIDIA bug report log file\n", "bug report of NVIDIA.*journalctl -k"),
        ("MIT License\n", "unknown format: docs/import.md"),
        ("", "it is empty"),
    ],
)
def test_a_format_that_is_not_taken_is_named_with_what_to_use(tmp_path, text, said) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=said):
        read(opened(path), path, Origin(), ImportTally())
