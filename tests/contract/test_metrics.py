"""The catalogue keeps its own rules: names, units, kinds, and sources that NVML and the kernel have."""

import re

import pynvml
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.metrics import (
    CLOCKS_EVENT_REASONS,
    METRICS,
    Kind,
    Metric,
    reason_names,
)

TABLES_OF_GPUS = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples")
ALL = [(table, metric) for table, metrics in METRICS.items() for metric in metrics]
UNITS = {"percent", "bytes", "watts", "joules", "celsius", "mhz", "seconds", "volts"}


@each(("table", "metric"), ALL)
def test_a_metric_says_its_unit_and_kind_in_its_name_and_has_source_and_meaning(
    table: str, metric: Metric
) -> None:
    assert metric.source and metric.meaning.endswith(".")
    assert metric.limits is None or metric.limits[0] < metric.limits[1]
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
    assert (
        metric.name.endswith("_total")
        == (metric.kind is Kind.COUNTER or metric.name == "memory_total_bytes")
        or metric.name == "memory_total_bytes"
    )
    stem = metric.name.removesuffix("_total")
    if metric.unit in UNITS and metric.name != "read_chars_total":
        assert stem.endswith(f"_{metric.unit}"), f"{table}.{metric.name} is in {metric.unit}"


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_bit_of_a_mask_is_named_once(bits: int) -> None:
    names = list(reason_names(bits))
    assert len(names) == bits.bit_count() == len(set(names))
    known = [name for name in names if not name.startswith("unknown 0x")]
    assert known == [n for bit, n in sorted(CLOCKS_EVENT_REASONS.items()) if bits & bit]


def constants(prefix: str) -> set[int]:
    return {getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}


@each("metric", [m for table in (*TABLES_OF_GPUS, "link_samples") for m in METRICS[table]])
def test_sources_of_gpus_are_fields_and_calls_of_nvml(metric: Metric) -> None:
    fields = {int(number) for number in re.findall(r"\bFI (\d+)", metric.source)}
    assert fields <= constants("NVML_FI_")
    for number, name in re.findall(r"\bGPM (\d+) ([A-Z]\w+)", metric.source):
        assert getattr(pynvml, f"NVML_GPM_METRIC_{name}") == int(number)
    for call in re.findall(r"\bnvml[A-Z]\w+", metric.source):
        assert hasattr(pynvml, call) or hasattr(pynvml, call.removesuffix("_v2")), call


def test_no_metric_stands_twice_in_a_table_or_the_tables_of_a_gpu() -> None:
    of_gpus = [metric.name for table in TABLES_OF_GPUS for metric in METRICS[table]]
    for names in (of_gpus, *([m.name for m in metrics] for metrics in METRICS.values())):
        assert len(names) == len(set(names))
