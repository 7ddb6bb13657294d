"""Names, units and labels of the three sets."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden.metrics import METRICS, Kind, Metric, Type
from gpuwarden.prometheus_names import (
    BASE,
    DCGM_SETS,
    DCGM_TABLES,
    DCGM_XID,
    NAME_SETS,
    Exported,
    Scale,
    check_name_sets,
    dcgm_labels,
    names_of,
    own_labels,
)
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.exporter.page import value_of
from gpuwarden_agent.exporter.sample_cache import RATED, CachedSample, followed

ROOT = Path(__file__).parents[3]
LIST = ROOT.parent / "shared" / "data" / "names" / "dcgm_exporter_names.csv"

NOT_IN_THE_LIST = {
    # Field 112 of DCGM: not in the exporter's default counters, often added to them.
    "dcgm": {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS"},
    # Default since 4.9 with no older name, and the list goes by older names.
    "dcgm49": {"DCGM_FI_DEV_FB_CAPACITY_BYTES"},
}


def named(name_set: str, name: str, table: str = "gpu_samples") -> Exported:
    return {e.name: e for e in names_of(name_set, table)}[name]


def dcgm_names(name_set: str) -> list[Exported]:
    return [e for table in DCGM_TABLES for e in names_of(name_set, table)]


def value(name_set: str, name: str, table: str = "gpu_samples", **row: Any) -> float | None:
    return value_of(named(name_set, name, table), CachedSample({"ts": 1000, **row}, 1000))


def listed() -> list[dict[str, str]]:
    if not LIST.exists():
        pytest.skip("the list of dcgm-exporter's names is not beside the repository")
    with LIST.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("metric", "raw", "name", "expected"),
    [
        ("power_watts", 312.5, "power_watts", 312.5),
        ("util_percent", 7.0, "util_ratio", 0.07),
        ("sm_clock_mhz", 1980, "sm_clock_hertz", 1_980_000_000),
        ("energy_joules_total", 1.5, "energy_joules_total", 1.5),
        ("memory_used_bytes", 2**30, "memory_used_bytes", 2**30),
        ("clocks_event_reasons", 5, "clocks_event_reasons", 5),
        ("pstate", 0, "pstate", 0),
    ],
)
def test_own_names_are_the_catalogues_in_base_units(
    metric: str, raw: float, name: str, expected: float
) -> None:
    assert value("own", f"gpuwarden_gpu_{name}", **{metric: raw}) == expected


def test_each_table_has_its_prefix() -> None:
    assert value("own", "gpuwarden_host_load_1m", "host_samples", load_1m=0.5) == 0.5
    name = "gpuwarden_process_main_cpu_ratio"
    assert value("own", name, "process_samples", main_cpu_percent=150.0) == 1.5
    table, name = "gpu_detail_samples", "gpuwarden_gpu_sm_active_ratio"
    assert value("own", name, table, sm_active_percent=7.0) == 0.07
    assert value("own", "gpuwarden_link_active", "link_samples", active=True) == 1
    name = "gpuwarden_infiniband_rate_bytes_per_second"
    assert value("own", name, "infiniband_samples", rate_bits_per_second=4e11) == 5e10


def test_every_metric_of_the_catalogue_has_one_own_name_that_ends_in_its_base_unit() -> None:
    for table, metrics in METRICS.items():
        exported = names_of("own", table)
        assert [e.columns for e in exported] == [(m.name,) for m in metrics]
        for metric, name in zip(metrics, exported, strict=True):
            assert (name.kind == "counter") == (metric.kind is Kind.COUNTER)
            if metric.unit in BASE:
                assert name.name.removesuffix("_total").endswith(BASE[metric.unit].unit)
                assert f"_{metric.unit}" not in name.name


def test_names_and_values_in_milliseconds_become_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = tuple(
        Metric(name, Type.FLOAT32, "ms", kind, "source", "Time.")
        for name, kind in (("wait_ms", Kind.GAUGE), ("busy_ms_total", Kind.COUNTER))
    )
    monkeypatch.setitem(METRICS, "host_samples", metrics)
    wait, busy = names_of.__wrapped__("own", "host_samples")
    assert (wait.name, busy.name) == (
        "gpuwarden_host_wait_seconds",
        "gpuwarden_host_busy_seconds_total",
    )
    assert value_of(wait, CachedSample({"wait_ms": 40.0}, 0)) == 0.04


@pytest.mark.parametrize(
    ("row", "old", "old_value", "new", "new_value"),
    [
        ({"util_percent": 55.0}, "GPU_UTIL", 55.0, "GPU_UTIL_RATIO", 0.55),
        ({"memory_used_bytes": 3 * 2**20}, "FB_USED", 3, "FB_USED_BYTES", 3 * 2**20),
        ({"sm_clock_mhz": 1980}, "SM_CLOCK", 1980, "SM_CLOCK_HERTZ", 1_980_000_000),
        ({"power_watts": 400.0}, "POWER_USAGE", 400.0, "BOARD_POWER_WATTS", 400.0),
        ({"temperature_celsius": 60.0}, "GPU_TEMP", 60.0, "GPU_TEMP_CELSIUS", 60.0),
        (
            {"energy_joules_total": 2.5},
            "TOTAL_ENERGY_CONSUMPTION",
            2500.0,
            "GPU_ENERGY_JOULES_TOTAL",
            2.5,
        ),
        (
            {"power_violation_seconds_total": 0.25},
            "POWER_VIOLATION",
            250_000_000.0,
            "GPU_POWER_THROTTLE_SECONDS_TOTAL",
            0.25,
        ),
    ],
)
def test_the_dcgm_sets_have_the_units_of_their_version(
    row: dict[str, Any], old: str, old_value: float, new: str, new_value: float
) -> None:
    assert value("dcgm", f"DCGM_FI_DEV_{old}", **row) == old_value
    assert value("dcgm49", f"DCGM_FI_DEV_{new}", **row) == new_value


@pytest.mark.parametrize("name_set", ["dcgm", "dcgm49"])
def test_every_dcgm_name_is_in_the_list_with_its_type(name_set: str) -> None:
    types: dict[str, set[str]] = {}
    for line in listed():
        old, new = line["name_le_4_8"], line["name_ge_4_9"]
        name = old if name_set == "dcgm" or not new else new
        types.setdefault(name, set()).add(line["type"])
    names = dcgm_names(name_set)
    assert {e.name for e in names if e.name not in types} == NOT_IN_THE_LIST[name_set]
    assert len({e.name for e in names}) >= 38
    assert types[DCGM_XID[name_set]] == {"gauge"}
    a_rate = "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND"  # its type since 4.9 is not known
    wrong = [
        e.name
        for e in names
        if e.name in types and e.kind not in types[e.name] and e.name != a_rate
    ]
    assert wrong == []


def test_units_up_to_4_8_are_those_that_the_list_states() -> None:
    stated = {
        line["name_le_4_8"]: match[1]
        for line in listed()
        if (match := re.search(r"\(in ([^)]+)\)", line["help"]))
    }
    ours = {e.name: e.scale.unit for e in dcgm_names("dcgm") if e.name in stated}
    assert ours == {name: stated[name] for name in ours}
    assert len(ours) >= 18


NOT_SERVED = {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}


@pytest.mark.parametrize("name_set", ["dcgm", "dcgm49"])
def test_every_default_row_of_dcgm_exporter_is_served_or_said_not_to_be(name_set: str) -> None:
    column = "name_le_4_8" if name_set == "dcgm" else "name_ge_4_9"
    default = {
        line[column] or line["name_le_4_8"]
        for line in listed()
        if line["default"] == "on" and line["type"] != "label"
    }
    ours = {e.name for e in dcgm_names(name_set)} | {DCGM_XID[name_set]}
    assert default - ours == NOT_SERVED
    page = (ROOT / "docs" / "exporter.md").read_text()
    assert all(f"`{name}`" in page for name in NOT_SERVED)


def test_units_since_4_9_are_those_that_the_names_state() -> None:
    suffixes = ("hertz", "ratio", "bytes", "joules", "watts", "celsius", "seconds")
    counts = ("bits", "boolean", "errors", "pages", "replays", "rows")
    for name in dcgm_names("dcgm49"):
        if name.name.startswith("DCGM_FI_DEV") and not name.is_rate:
            word = name.name.lower().removesuffix("_total").rpartition("_")[2]
            assert (name.scale.unit == word) == (word in suffixes), name
            assert word in suffixes or name.scale.unit in counts, name


@pytest.mark.parametrize("name_set", NAME_SETS)
def test_no_name_stands_twice_in_a_set(name_set: str) -> None:
    names = [e.name for table in METRICS for e in names_of(name_set, table)]
    twice = {name for name in names if names.count(name) > 1}
    # The GPU's own rate, or else that of its counters: one of them is shown.
    either = {"DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"}
    assert twice == (either if name_set in DCGM_SETS else set())


def test_a_setting_that_names_another_set_is_told_the_known_ones() -> None:
    check_name_sets(NAME_SETS)
    with pytest.raises(StartError, match="no name set 'dcgm5'; choose of own, dcgm, dcgm49"):
        check_name_sets(["own", "dcgm5"])


def kept(before: dict[str, Any], row: dict[str, Any]) -> CachedSample:
    first = followed(None, "gpu_samples", {"ts": 0, **before}, 0)
    return followed(first, "gpu_samples", {"ts": 2000, **row}, 2000)


@pytest.mark.parametrize("name_set", ["dcgm", "dcgm49"])
def test_counters_of_rates_are_those_whose_growth_is_known(name_set: str) -> None:
    rates = [e for table in METRICS for e in names_of(name_set, table) if e.is_rate]
    assert rates and {c for e in rates for c in e.columns} == set(RATED["gpu_samples"])


NVLINK = {"nvlink_tx_bytes_total": 0, "nvlink_rx_bytes_total": 1024}
NVLINK_LATER = {"nvlink_tx_bytes_total": 4_096_000, "nvlink_rx_bytes_total": 1024}


def test_nvlink_bandwidth_is_both_ways_added_in_the_unit_of_the_version() -> None:
    two = kept(NVLINK, NVLINK_LATER)
    assert value_of(named("dcgm", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"), two) == 2.0
    new = named("dcgm49", "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND")
    assert value_of(new, two) == 2_048_000.0


def test_a_scale_does_not_add_digits() -> None:
    assert [Scale("ratio", over=100)(percent) for percent in (7.0, 14.0, 29.0, 58.0)] == [
        0.07,
        0.14,
        0.29,
        0.58,
    ]


GPU = {"model": "NVIDIA H100", "pci_bus_id": "0000:1b:00.0"}


@pytest.mark.parametrize("table", METRICS)
def test_own_labels_hold_the_key_of_the_table(table: str) -> None:
    key = [column for column in WIRE_TABLES[table].key if column != "ts"]
    labels = own_labels(table, {column: f"a {column}" for column in ("node", *key)}, {})
    assert {column: labels[column] for column in key} == {c: f"a {c}" for c in key}


def test_own_labels_of_a_process_say_whose_it_is_and_simulated_rows_say_so() -> None:
    row = {"node": "n1", "gpu": 3, "gpu_uuid": "GPU-1", "pid": 7, "pod": "a/b", "simulated": True}
    labels = own_labels("process_samples", row, GPU)
    assert (labels["pid"], labels["pod"], labels["simulated"]) == (7, "a/b", "true")
    assert labels["username"] is None


def test_dcgm_labels_that_are_not_known_are_absent_and_a_mig_device_names_its_instance() -> None:
    row = {"node": "n1", "gpu": None, "gpu_uuid": "MIG-1", "mig_instance": "7/0"}
    labels = dcgm_labels("dcgm", row, {}, None)
    assert labels["GPU_I_ID"] == "7"
    absent = ("gpu", "pci_bus_id", "device", "modelName", "DCGM_FI_DRIVER_VERSION")
    assert [labels[name] for name in absent] == [None] * 5
