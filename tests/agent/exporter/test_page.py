"""The whole page, as promtool and people read it."""

import re
import shutil
import subprocess
from typing import Any

import pytest

from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.latest import KEEP_S, Latest
from gpuwarden_agent.exporter.names import NAME_SETS
from gpuwarden_agent.exporter.page import metrics_page

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on the PATH"
)


def page(node: Any, *names: str) -> str:
    return metrics_page("n1", node.latest, Counters(), names or ("own",))


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


def test_a_gpu_of_another_vendor_has_no_dcgm_names(node: Any) -> None:
    node.inventory(vendor="amd")
    node.gpu(power_watts=1.0)
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


@promtool
def test_promtool_finds_nothing_wrong_with_our_own_names(
    node: Any, simulate: Any, manual_clock: Any
) -> None:
    simulate(node.latest, manual_clock)
    counters = Counters()
    for name in ("readings", "readings_late", "probe_errors", "values_impossible", "rows"):
        getattr(counters, name).update(["x"])
    text = metrics_page("n1", node.latest, counters)
    assert text.count("# TYPE gpuwarden_") > 50
    assert check(text) == (0, [])


@promtool
def test_promtool_reads_all_sets_and_only_dcgms_names_displease_it(
    node: Any, simulate: Any, manual_clock: Any
) -> None:
    simulate(node.latest, manual_clock)
    status, complaints = check(metrics_page("n1", node.latest, Counters(), NAME_SETS))
    assert status == 3, "3: it reads, and the style of names could be better"
    assert complaints and all(line.startswith("DCGM_FI_") for line in complaints)


def test_an_empty_agent_has_a_page(manual_clock: Any) -> None:
    text = metrics_page("n1", Latest(manual_clock), Counters(), NAME_SETS)
    assert 'gpuwarden_agent_ticks_total{node="n1"} 0\n' in text and "age_seconds" not in text
