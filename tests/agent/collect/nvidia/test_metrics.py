"""The table of NVML readings agrees with the catalogue, the binding and the fake driver."""

import re

import pynvml

from gpuwarden.metrics import METRICS
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.collect.nvidia.metrics import CALLS, FIELDS, GPM_METRICS, ROWS

TABLES = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples")
SOURCES = {(table, metric.name): metric.source for table in TABLES for metric in METRICS[table]} | {
    ("gpu_detail_samples", "fan_percent"): "nvmlDeviceGetFanSpeed_v2"
}
COMPUTED = {("gpu_detail_samples", "nvlinks_active"), ("gpu_detail_samples", "fan_percent")}


def read() -> dict[tuple[str, str], set[str]]:
    """What is asked for each column, in the catalogue's words."""
    asked: dict[tuple[str, str], set[str]] = {}
    for table in TABLES:
        for row in CALLS.get(table, ()):
            for column in row.columns:
                asked.setdefault((table, column), set()).add(row.function)
        for field in FIELDS[table]:
            asked.setdefault((table, field.column), set()).add(f"FI {field.id}")
    for metric in GPM_METRICS:
        asked["gpu_detail_samples", metric.column] = {f"GPM {metric.id}"}
    return asked


def names(source: str, asked: str) -> bool:
    """Whether the catalogue's words for a source name a field, a metric of GPM, or a function."""
    spelt_out = source.replace("...", "nvmlDeviceGetCurrentClocks")
    return re.search(rf"\b{re.escape(asked)}(?!\d)", spelt_out) is not None


def test_the_catalogue_names_what_is_asked_for_each_column() -> None:
    wrong = {
        key: (asked, SOURCES[key])
        for key, asked in read().items()
        if key in SOURCES and not all(names(SOURCES[key], one) for one in asked)
    }
    assert not wrong


def test_every_column_of_the_catalogue_is_read() -> None:
    nvidia = {key for key, source in SOURCES.items() if source.startswith(("FI", "nvml", "GPM"))}
    assert nvidia - read().keys() - COMPUTED == set()


def test_columns_are_those_of_their_tables() -> None:
    for table in (*TABLES, "gpus"):
        columns = {c for row in CALLS[table] for c in row.columns}
        columns |= {field.column for field in FIELDS[table]}
        assert columns <= set(WIRE_TABLES[table].names), table
    assert {c for row in CALLS["modes"] for c in row.columns} <= set(WIRE_TABLES["gpus"].names)


def test_the_binding_has_every_function() -> None:
    assert [row.function for row in ROWS.values() if not hasattr(pynvml, row.function)] == []
