"""The whole page, as promtool and people read it."""

import json
import re
import shutil
import subprocess
from collections import Counter
from typing import Any

import pytest

from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import KEEP_S, NAME_SETS, names_of
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.exporter.page import metrics_page

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on the PATH"
)


def page(node: Any, *names: str, xids_seen: bool = False) -> str:
    counters = Counters(readings=Counter({"kmsg": int(xids_seen)}))
    return metrics_page("n1", node.latest, counters, names or ("own",), xid_probes=("kmsg",))


def series(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)]


def check(text: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        text=True,
        capture_output=True,
        check=False,
        timeout=30,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_a_sample_is_one_line_in_each_set_that_is_on(node: Any) -> None:
    node.inventory()
    node.gpu(power_watts=312.5)
    text = page(node, *NAME_SETS)
    assert series(text, "gpuwarden_gpu_power_watts") == [
        'gpuwarden_gpu_power_watts{node="n1",gpu="3",gpu_uuid="GPU-1b0a",model="NVIDIA H100"} 312.5'
    ]
    where = (
        'gpu="3",UUID="GPU-1b0a",pci_bus_id="00000000:1B:00.0",device="nvidia3",'
        'modelName="NVIDIA H100"'
    )
    old = 'Hostname="n1",DCGM_FI_DRIVER_VERSION="570.1"'
    new = 'hostname="n1",DCGM_FI_SYSTEM_DRIVER_VERSION="570.1"'
    assert series(text, "DCGM_FI_DEV_POWER_USAGE") == [
        f"DCGM_FI_DEV_POWER_USAGE{{{where},{old}}} 312.5"
    ]
    assert series(text, "DCGM_FI_DEV_BOARD_POWER_WATTS") == [
        f"DCGM_FI_DEV_BOARD_POWER_WATTS{{{where},{new}}} 312.5"
    ]


def test_only_the_sets_that_are_on_are_shown(node: Any) -> None:
    node.gpu(power_watts=1.0)
    assert "DCGM_" not in page(node)
    text = page(node, "dcgm49")
    assert "gpuwarden_gpu_power_watts" not in text and "DCGM_FI_DEV_POWER_USAGE" not in text
    assert series(text, "DCGM_FI_DEV_BOARD_POWER_WATTS")
    assert series(text, "gpuwarden_sample_age_seconds") and series(text, "gpuwarden_agent_info")


def test_dcgms_names_say_whose_a_gpu_is_as_long_as_its_scheduler_does(node: Any) -> None:
    node.inventory()
    node.gpu(util_percent=50.0)
    pod = {"namespace": "ml", "pod": "ml/train-0", "container": "main"}
    node.given("ml/train-0", **pod)
    (line,) = series(page(node, "dcgm"), "DCGM_FI_DEV_GPU_UTIL")
    assert line.endswith('",namespace="ml",pod="train-0",container="main"} 50.0')
    node.given("ml/train-1", **pod | {"pod": "ml/train-1"})
    assert "pod=" not in page(node, "dcgm"), "several share it"
    node.clock.advance(10)
    node.gpu(util_percent=50.0)
    node.given("7")
    assert 'hpc_job="7"} 50.0' in page(node, "dcgm")
    node.clock.advance(31)
    assert "hpc_job" not in page(node, "dcgm")


def test_jobstats_has_job_and_user_as_values(node: Any) -> None:
    node.inventory()
    node.gpu(util_percent=50.0, power_watts=300.5)
    text = page(node, "jobstats")
    labels = 'minor_number="3",name="NVIDIA H100",ordinal="3",uuid="GPU-1b0a"'
    assert series(text, "nvidia_gpu_power_usage_milliwatts") == [
        f"nvidia_gpu_power_usage_milliwatts{{{labels}}} 300500.0"
    ]
    assert not series(text, "nvidia_gpu_jobId")
    node.given("4711", username="root")
    text = page(node, "jobstats")
    assert series(text, "nvidia_gpu_jobId") == [f"nvidia_gpu_jobId{{{labels}}} 4711.0"]
    assert series(text, "nvidia_gpu_jobUid") == [f"nvidia_gpu_jobUid{{{labels}}} 0.0"]
    node.given("4711", username="no-such-user-here")
    node.clock.advance(10)
    node.gpu(util_percent=50.0)
    node.given("4711", username="no-such-user-here")
    text = page(node, "jobstats")
    assert series(text, "nvidia_gpu_jobId") and not series(text, "nvidia_gpu_jobUid")


def test_an_absent_value_is_an_absent_series(node: Any) -> None:
    node.gpu(power_watts=None)
    text = page(node, *NAME_SETS)
    assert "power_watts" not in text and "POWER" not in text and "NaN" not in text


def test_a_name_that_both_dcgm_sets_have_stands_once_with_the_older_labels(node: Any) -> None:
    for sent in (0, 5000):
        node.gpu(pcie_tx_bytes_total=sent)
        node.clock.advance(1)
    (line,) = series(page(node, "dcgm49", "dcgm"), "DCGM_FI_PROF_PCIE_TX_BYTES")
    assert 'Hostname="n1"' in line and line.endswith(" 5000.0")


@pytest.mark.parametrize("name_set", ["dcgm", "dcgm49"])
def test_pcie_rates_are_the_gpus_own_where_it_measures_them(node: Any, name_set: str) -> None:
    for sent in (0, 5000):
        node.gpu(pcie_tx_bytes_total=sent, pcie_rx_bytes_total=sent)
        node.clock.advance(1)
    node.detail(pcie_tx_bytes_per_second=7e9)
    text = page(node, name_set)
    (sent_line,) = series(text, "DCGM_FI_PROF_PCIE_TX_BYTES")
    (received_line,) = series(text, "DCGM_FI_PROF_PCIE_RX_BYTES")
    assert sent_line.endswith(" 7000000000.0") and received_line.endswith(" 5000.0")


def test_a_gpu_that_measures_no_rate_does_not_take_it_from_one_that_does(node: Any) -> None:
    for sent in (0, 5000):
        node.gpu(gpu_uuid="GPU-2", pcie_tx_bytes_total=sent)
        node.clock.advance(1)
    node.detail(pcie_tx_bytes_per_second=7e9)
    lines = series(page(node, "dcgm"), "DCGM_FI_PROF_PCIE_TX_BYTES")
    assert sorted(line.rpartition(" ")[2] for line in lines) == ["5000.0", "7000000000.0"]


def test_health_of_a_minute_ago_is_there_in_all_sets_as_one_and_zero(node: Any) -> None:
    node.health(remap_failed=True, retired_pages_pending=False, ecc_corrected_volatile_total=3)
    node.clock.advance(61)
    text = page(node, *NAME_SETS)
    for name, value in (
        ("gpuwarden_gpu_remap_failed", 1),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1),
        ("DCGM_FI_DEV_ROW_REMAP_FAILED", 1),
        ("DCGM_FI_DEV_RETIRED_PENDING", 0),
        ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 3),
    ):
        (line,) = series(text, name)
        assert line.endswith(f" {value}")


def test_links_and_ports_have_a_series_each(node: Any) -> None:
    for link in range(3):
        node.link(link, tx_bytes_total=link)
    node.port("mlx5_0", rate_bits_per_second=4e11)
    node.port("mlx5_1", rate_bits_per_second=2e11)
    text = page(node)
    lines = series(text, "gpuwarden_link_tx_bytes_total")
    assert [re.search(r'link="(\d)"} (\d)', line).groups() for line in lines] == [
        ("0", "0"),
        ("1", "1"),
        ("2", "2"),
    ]
    name = "gpuwarden_infiniband_rate_bytes_per_second"
    assert series(text, name) == [
        f'{name}{{node="n1",device="mlx5_0",port="1"}} 50000000000.0',
        f'{name}{{node="n1",device="mlx5_1",port="1"}} 25000000000.0',
    ]


XID = "gpuwarden_gpu_xids_total"
LAST = {"dcgm": "DCGM_FI_DEV_XID_ERRORS", "dcgm49": "DCGM_FI_DEV_XID_ERROR"}


def test_xids_are_counted_and_dcgms_names_have_the_last_one(node: Any) -> None:
    node.inventory()
    node.inventory(gpu=4, gpu_uuid="GPU-2")
    for code in (79, 48, 48):
        node.xid(code)
    text = page(node, *NAME_SETS, xids_seen=True)
    who = 'node="n1",gpu="3",gpu_uuid="GPU-1b0a",model="NVIDIA H100"'
    assert series(text, XID) == [f'{XID}{{{who},xid="79"}} 1', f'{XID}{{{who},xid="48"}} 2']
    for name in LAST.values():
        with_xid, without = series(text, name)
        assert 'UUID="GPU-1b0a"' in with_xid and 'err_code="48"' in with_xid
        assert with_xid.endswith(" 48")
        assert 'UUID="GPU-2"' in without and without.endswith('err_code="0",err_msg="No Error"} 0')


def test_a_gpu_that_fell_off_the_bus_keeps_its_xid_without_samples(node: Any) -> None:
    node.inventory()
    node.xid(79)
    node.clock.advance(86_400)
    (line,) = series(page(node, "dcgm49"), LAST["dcgm49"])
    assert line.endswith(" 79")


def test_no_xid_is_no_claim_where_nothing_would_tell_of_one(node: Any) -> None:
    node.inventory()
    assert not series(page(node, "dcgm"), LAST["dcgm"])
    assert series(page(node, "dcgm", xids_seen=True), LAST["dcgm"])


def test_mig_devices_and_other_vendors_have_no_xid_of_dcgms(node: Any) -> None:
    node.inventory(gpu_uuid="MIG-1", mig_instance="7/0")
    node.inventory(gpu_uuid="GPU-amd", vendor="amd")
    assert "DCGM_" not in page(node, "dcgm", xids_seen=True)


def test_an_xid_of_an_unknown_gpu_is_counted_by_bus_id_and_a_bad_event_stays_readable(
    node: Any,
) -> None:
    node.xid(1, gpu=None, gpu_uuid=None, details=json.dumps({"xid": 79, "pci_bus_id": '"\n'}))
    node.xid(1, details="no JSON")
    assert series(page(node), XID) == [
        f'{XID}{{node="n1",pci_bus_id="\\"\\n",xid="79"}} 1',
        f'{XID}{{node="n1",gpu="3",gpu_uuid="GPU-1b0a"}} 1',
    ]


def test_a_gpu_of_another_vendor_has_no_dcgm_names(node: Any) -> None:
    node.inventory(vendor="amd")
    node.gpu(power_watts=1.0)
    node.health(ecc_corrected_volatile_total=1)
    text = page(node, *NAME_SETS)
    assert "DCGM_" not in text and series(text, "gpuwarden_gpu_power_watts")


def test_ages_are_told_by_table_and_by_gpu_and_a_silent_table_goes_on_ageing(node: Any) -> None:
    node.gpu()
    node.clock.advance(5)
    node.host()
    text = page(node)
    assert series(text, "gpuwarden_sample_age_seconds") == [
        'gpuwarden_sample_age_seconds{node="n1",table="gpu_samples"} 5.0',
        'gpuwarden_sample_age_seconds{node="n1",table="host_samples"} 0.0',
    ]
    (line,) = series(text, "gpuwarden_gpu_sample_age_seconds")
    assert 'gpu_uuid="GPU-1b0a"' in line and line.endswith(" 5.0")
    node.clock.advance(KEEP_S)
    text = page(node)
    assert 'table="gpu_samples"} 65.0' in text
    assert not series(text, "gpuwarden_gpu_sample_age_seconds")


def test_each_table_of_a_gpu_has_its_own_age_and_links_have_one_together(node: Any) -> None:
    node.health()
    node.clock.advance(30)
    node.gpu()
    for link in range(3):
        node.link(link)
    node.clock.advance(2)
    name = "gpuwarden_gpu_sample_age_seconds"
    ages = [re.search(r'table="(\w+)"} (.*)', line) for line in series(page(node), name)]
    assert [age.groups() for age in ages] == [
        ("gpu_samples", "2.0"),
        ("gpu_health_samples", "32.0"),
        ("link_samples", "2.0"),
    ]


def test_a_value_that_comes_seldom_stays_with_its_age(node: Any) -> None:
    name = "gpuwarden_value_age_seconds"
    where = '{node="n1",table="host_samples",column="shm_used_bytes"}'
    node.host(shm_used_bytes=7, load_1m=1.0)
    for second in range(25):
        text = page(node)
        assert series(text, "gpuwarden_host_shm_used_bytes") == [
            'gpuwarden_host_shm_used_bytes{node="n1"} 7'
        ]
        assert series(text, name) == [f"{name}{where} {float(second)}"]
        node.clock.advance(1)
        node.host(load_1m=1.0)
    node.clock.advance(1)
    text = page(node)
    assert not series(text, name) and not series(text, "gpuwarden_host_shm_used_bytes")
    assert series(text, "gpuwarden_host_load_1m")


@promtool
def test_promtool_finds_nothing_wrong_with_any_name_of_ours(node: Any) -> None:
    for _ in range(2):
        node.everything()
        node.clock.advance(1)
    node.xid(79)
    text = page(node)
    assert text.count("# TYPE gpuwarden_") > sum(map(len, METRICS.values()))
    assert check(text) == (0, [])
    everything = page(node, *NAME_SETS, xids_seen=True)
    status, complaints = check(everything)
    assert status == 3 and all(line.startswith(("DCGM_FI_", "nvidia_gpu_")) for line in complaints)
    exported = {e.name for s in NAME_SETS for table in METRICS for e in names_of(s, table)}
    assert [name for name in exported if not series(everything, name)] == []


def test_an_empty_agent_has_a_page(manual_clock: Any) -> None:
    text = metrics_page("n1", Latest(manual_clock), Counters(), NAME_SETS)
    assert 'gpuwarden_agent_ticks_total{node="n1"} 0\n' in text and "age_seconds" not in text
