"""dcgm-exporter's text: what the agent's exporter would write, read backwards."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.exporter.conftest import Node

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.prometheus_names import dcgm_columns
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.page import metrics_page
from gpuwarden_importing.batches import Batcher
from gpuwarden_importing.dcgm import read
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError

LIMITS = ("DCGM_FI_DEV_POWER_MGMT_LIMIT", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT")
LABELS = (
    'gpu="2",UUID="GPU-1",pci_bus_id="00000000:3B:00.0",modelName="NVIDIA H100",Hostname="gpu-07"'
)


def test_old_names_and_units_become_columns_in_base_units(imported) -> None:
    text = f"""\
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{{LABELS},DCGM_FI_DRIVER_VERSION="590.48.01"}} 512
DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 97
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{LABELS}}} 1500
DCGM_FI_PROF_SM_ACTIVE{{{LABELS}}} 0.25
DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 31
"""
    found = imported(read, text, node=None)
    assert found["gpu_samples"] == [
        {"ts": 1_780_000_000_000, "node": "gpu-07", "gpu": 2, "gpu_uuid": "GPU-1",
         "memory_used_bytes": 512 * 2**20, "util_percent": 97.0, "energy_joules_total": 1.5},
    ]  # fmt: skip
    assert found["gpu_detail_samples"][0]["sm_active_percent"] == 25.0
    assert found["gpus"][0]["model"] == "NVIDIA H100"
    assert found["nodes"][0]["driver_version"] == "590.48.01"
    (event,) = found["events"]
    assert (event["kind"], event["severity"], event["gpu_uuid"]) == ("xid", "warning", "GPU-1")
    assert event["message"].startswith("Xid 31 on GPU 2: GPU memory page fault")
    details = json.loads(event["details"])
    assert (details["xid"], details["pci_bus_id"], details["source"]) == (
        31,
        "0000:3b:00.0",
        "dcgm",
    )
    assert not found.tally.unmapped


def test_new_names_are_base_units_and_timestamps_make_rows(imported) -> None:
    text = "".join(
        f'DCGM_FI_DEV_GPU_UTIL_RATIO{{gpu="0",UUID="GPU-1",hostname="h"}} 0.5 {ts}\n'
        f'DCGM_FI_DEV_SM_CLOCK_HERTZ{{gpu="0",UUID="GPU-1",hostname="h"}} 1.98e9 {ts}\n'
        for ts in ("1753000000000", "1753000015.5")
    )
    found = imported(read, text, node=None)
    rows = [(r["ts"], r["util_percent"], r["sm_clock_mhz"]) for r in found["gpu_samples"]]
    assert rows == [(1753000000000, 50.0, 1980), (1753000015500, 50.0, 1980)]


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "9223372036854775794", "2147483632", "140737488355328"]
)
def test_what_dcgm_writes_for_no_value_is_absent(imported, value) -> None:
    text = f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} {value}\nDCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 70.5\n"
    (row,) = imported(read, text)["gpu_samples"]
    assert "temperature_celsius" not in row
    assert row["power_watts"] == 70.5


def test_a_mig_instance_is_a_gpu_of_its_own(imported) -> None:
    text = f'DCGM_FI_DEV_FB_USED{{{LABELS},GPU_I_ID="3",GPU_I_PROFILE="1g.10gb"}} 12\n'
    found = imported(read, text)
    assert found["gpu_samples"][0]["gpu_uuid"] == "MIG-GPU-1/3"
    assert found["gpus"][0]["parent_gpu_uuid"] == "GPU-1"


def test_a_second_value_of_the_same_time_is_counted(imported) -> None:
    line = f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 40\n"
    found = imported(read, line + line)
    assert found.tally.skipped["a value that the same GPU and time has already"].line == 2


def test_a_label_may_hold_anything(imported) -> None:
    text = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",modelName="a \\"b\\" } 5"} 40\n'
    assert imported(read, text)["gpus"][0]["model"] == 'a "b" } 5'


@given(st.text('DCGM_FI_DEVGPUTEMP{}="\\,0123.eE+-NaN \n#é', max_size=120))
def test_rubbish_in_an_exposition_raises_nothing(text) -> None:
    whole = text + f"\nDCGM_FI_DEV_GPU_TEMP{text}\n"
    list(read(iter(whole.splitlines(keepends=True)), Origin(node="n1", at_ms=1), ImportTally()))


@pytest.mark.parametrize("order", [1, -1])
def test_the_power_limit_that_holds_counts_before_the_one_that_was_set(imported, order) -> None:
    text = "".join(
        f"{name}{{{LABELS}}} {value}\n"
        for name, value in list(zip(LIMITS, (700, 650), strict=True))[::order]
    )
    found = imported(read, text)
    assert found["gpu_samples"][0]["power_limit_watts"] == 650
    assert not found.tally.skipped and not found.tally.unmapped
    assert imported(read, text.splitlines()[0])["gpu_samples"][0]["power_limit_watts"] in (700, 650)


def test_an_xid_is_an_event_where_it_changes(imported) -> None:
    codes = ((0, 0), (1, 79), (2, 79), (3, 31), (4, 0), (5, 31))
    text = "".join(f"DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} {x} {1753000000 + s}\n" for s, x in codes)
    events = imported(read, text)["events"]
    assert [(e["ts"], json.loads(e["details"])["xid"]) for e in events] == [
        (1753000001000, 79), (1753000003000, 31), (1753000005000, 31),
    ]  # fmt: skip


POD = 'gpu="0",UUID="GPU-1",Hostname="nvidia-dcgm-exporter-x7k2p",pod="train-0"'


def test_in_kubernetes_the_node_is_the_one_that_the_scrape_names(imported) -> None:
    text = f'DCGM_FI_DEV_GPU_UTIL{{{POD},node="gpu-07"}} 5\n'
    assert imported(read, text, node=None)["gpu_samples"][0]["node"] == "gpu-07"
    with pytest.raises(UnreadableError, match="nvidia-dcgm-exporter-x7k2p is a pod's.*--node NAME"):
        imported(read, f"DCGM_FI_DEV_GPU_UTIL{{{POD}}} 5\n", node=None)
    assert (
        imported(read, f"DCGM_FI_DEV_GPU_UTIL{{{POD}}} 5\n", node="n9")["gpus"][0]["node"] == "n9"
    )


@pytest.mark.parametrize("name_set", ["dcgm", "dcgm49"])
def test_what_our_exporter_writes_comes_back_in_every_column(name_set) -> None:
    clock = ManualClock(datetime(2026, 6, 1, tzinfo=UTC))
    node = Node(clock)
    node.everything()
    text = metrics_page("n1", node.latest, Counters(), (name_set,))
    now_ms = to_ms(clock.now())
    tally, batcher = ImportTally(), Batcher(now_ms + 1000)
    lines = iter(text.splitlines(keepends=True))
    rows = read(lines, Origin(node="n1", at_ms=now_ms), tally)
    batches = [*batcher.add(rows, tally), *batcher.flush()]
    found = {
        (batch.table, column): value
        for batch in batches
        for row in batch.data.to_pylist()
        for column, value in row.items()
    }
    written = {name for name in dcgm_columns() if f"\n{name}{{" in text} - {*LIMITS}
    wanted = {dcgm_columns()[name][:2] for name in written}
    assert ("gpu_health_samples", "remap_failed") in wanted
    assert {key: found.get(key) for key in wanted} == pytest.approx(dict.fromkeys(wanted, 1))
    assert not [reason for reason in tally.skipped if "another type" in reason]
