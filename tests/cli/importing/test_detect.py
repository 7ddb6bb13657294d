"""Formats are told by what is in a file, not by its name."""

import pytest

from gpuwarden_cli.importing.detect import format_of
from gpuwarden_cli.importing.model import Origin


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (['<?xml version="1.0" ?>', "<nvidia_smi_log>"], "nvidia-smi XML"),
        (["# a remark", "timestamp, index, power.draw [W]"], "nvidia-smi CSV"),
        (["utilization.gpu [%]", "5 %"], "nvidia-smi CSV"),
        (["timestamp, name, driver_version, pstate"], "nvidia-smi CSV"),
        (["driver_version", "590.48.01"], "nvidia-smi CSV"),
        (["node,driver_version"], "CSV of a table"),
        (["WARNING: low power", '{"card0": {"GPU use (%)": "0"}}'], "rocm-smi JSON"),
        (["# HELP DCGM_FI_DEV_GPU_TEMP x", "DCGM_FI_DEV_GPU_TEMP{} 5"], "dcgm-exporter text"),
        (["    # TYPE x", '    DCGM_FI_DEV_GPU_TEMP {gpu="0"} 5'], "dcgm-exporter text"),
        (["ts,node,gpu_uuid,util_percent"], "CSV of a table"),
        (["[Sun Feb 23 16:24:18 2025] NVRM: x"], "kernel log"),
        (['{"__REALTIME_TIMESTAMP": "1", "MESSAGE": "x"}'], "kernel log"),
        (["c0,c1", "55.7,0"], None),
        (["dataset,network,power_limit"], None),
        (["MIT License"], None),
        ([], None),
    ],
)
def test_a_format_is_told_by_its_beginning(head, form) -> None:
    assert format_of(head, Origin()) == form
