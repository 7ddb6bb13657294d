"""The catalogue keeps its own rules: names, units, kinds."""

import re

from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.metrics import CLOCKS_EVENT_REASONS, METRICS, Kind, Metric, reason_names

ALL = [(table, metric) for table, metrics in METRICS.items() for metric in metrics]
UNITS = {"percent", "bytes", "watts", "joules", "celsius", "mhz", "seconds"}


@each(("table", "metric"), ALL)
def test_a_metric_says_its_unit_and_kind_in_its_name(table: str, metric: Metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert (
        metric.name.endswith("_total")
        == (metric.kind is Kind.COUNTER or metric.name == "memory_total_bytes")
        or metric.name == "memory_total_bytes"
    )
    stem = metric.name.removesuffix("_total")
    if metric.unit in UNITS and metric.name != "read_chars_total":
        assert stem.endswith(f"_{metric.unit}"), f"{table}.{metric.name} is in {metric.unit}"


@each(("table", "metric"), ALL)
def test_a_metric_has_a_source_and_a_meaning(table: str, metric: Metric) -> None:
    assert metric.source
    assert metric.meaning.endswith(".")
    assert metric.limits is None or metric.limits[0] < metric.limits[1]


def test_names_are_unique_within_a_table() -> None:
    for table, metrics in METRICS.items():
        names = [m.name for m in metrics]
        assert len(names) == len(set(names)), table


def test_the_fast_tier_is_complete() -> None:
    """The 1 s tier of NVML must give these: no row is lost by an edit."""
    names = {m.name for m in METRICS["gpu_samples"]}
    assert {
        "util_percent", "memory_used_bytes", "power_watts", "power_limit_watts",
        "energy_joules_total", "temperature_celsius", "memory_temperature_celsius", "sm_clock_mhz",
        "clocks_event_reasons", "power_violation_seconds_total", "thermal_violation_seconds_total",
        "pstate", "pcie_tx_bytes_total", "nvlink_rx_bytes_total", "encoder_util_percent",
        "decoder_util_percent",
    } <= names  # fmt: skip


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_bit_of_a_mask_is_named_once(bits: int) -> None:
    names = list(reason_names(bits))
    assert len(names) == bits.bit_count() == len(set(names))
    known = [name for name in names if not name.startswith("unknown 0x")]
    assert known == [n for bit, n in sorted(CLOCKS_EVENT_REASONS.items()) if bits & bit]


def test_kinds_decide_how_a_window_is_summarised() -> None:
    rollups = {m.kind: m.rollup for _, m in ALL}
    assert rollups[Kind.COUNTER] == ("delta",)
    assert "avg" in rollups[Kind.GAUGE]
    assert "avg" not in rollups[Kind.FLAGS]
