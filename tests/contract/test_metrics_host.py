"""The host rows of the catalogue say where the kernel tells them."""

import pytest
from tests.each import each

from gpuwarden.metric import COUNTER, Metric
from gpuwarden.metrics_host import HOST_METRICS, INFINIBAND_METRICS, PROCESS_METRICS


@each("metric", HOST_METRICS)
def test_a_host_metric_names_its_file_or_call(metric: Metric) -> None:
    assert metric.source.startswith(("/proc/", "/sys/", "statvfs "))


@pytest.mark.parametrize("metric", INFINIBAND_METRICS, ids=lambda m: m.name)
def test_an_infiniband_metric_names_its_file_under_the_port(metric: Metric) -> None:
    assert metric.source.startswith("ports/N/")


def test_slow_columns_say_so() -> None:
    assert {m.cadence_s for m in (*PROCESS_METRICS, *INFINIBAND_METRICS)} == {10}
    nfs = [m for m in HOST_METRICS if m.name.startswith(("nfs_", "shm_"))]
    assert {m.cadence_s for m in nfs} == {10}
    assert all(m.kind is COUNTER for m in nfs if m.name.startswith("nfs_"))
