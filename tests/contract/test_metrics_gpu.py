"""The GPU rows of the catalogue name fields and metrics that NVML has."""

import re

import pynvml
from tests.each import each

from gpuwarden.metric import Metric
from gpuwarden.metrics_gpu import (
    GPU_DETAIL_METRICS,
    GPU_HEALTH_METRICS,
    GPU_METRICS,
    LINK_METRICS,
)

ALL = (*GPU_METRICS, *GPU_DETAIL_METRICS, *GPU_HEALTH_METRICS, *LINK_METRICS)


def constants(prefix: str) -> set[int]:
    return {getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix)}


@each("metric", ALL)
def test_sources_are_fields_and_calls_of_nvml(metric: Metric) -> None:
    fields = {int(number) for number in re.findall(r"\bFI (\d+)", metric.source)}
    assert fields <= constants("NVML_FI_")
    for number, name in re.findall(r"\bGPM (\d+) ([A-Z]\w+)", metric.source):
        assert getattr(pynvml, f"NVML_GPM_METRIC_{name}") == int(number)
    for call in re.findall(r"\bnvml[A-Z]\w+", metric.source):
        assert hasattr(pynvml, call) or hasattr(pynvml, call.removesuffix("_v2")), call


def test_no_metric_stands_twice_in_the_tables_of_a_gpu() -> None:
    names = [metric.name for metric in (*GPU_METRICS, *GPU_DETAIL_METRICS, *GPU_HEALTH_METRICS)]
    assert len(names) == len(set(names))
