"""Samples for remote write have the exporter's names, labels and values, in order of time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import to_ms
from gpuwarden_agent.exporter.latest import CachedSample
from gpuwarden_agent.exporter.page import value_of
from gpuwarden_agent.exporter.sample_cache import followed
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_prometheus.remote_write.bodies import SAMPLES_MAX, BodyEncoder, requests_of
from gpuwarden_prometheus.remote_write.messages import STALE_NAN_BITS, decode, label_pairs
from gpuwarden_prometheus.remote_write.samples import (
    LabelInventory,
    NodeTimes,
    Series,
    TableSeries,
    chosen_metrics,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GPU = {
    "gpu_uuid": "GPU-0",
    "model": "NVIDIA H100",
    "vendor": "nvidia",
    "pci_bus_id": "0000:1b:00.0",
}
INVENTORY = LabelInventory({"n1": {"driver_version": "570.1"}}, {"GPU-0": GPU})


def row(second: float, gpu: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "ts": (NOW + timedelta(seconds=second)).replace(tzinfo=None),
        "node": "n1",
        "gpu": gpu,
        "gpu_uuid": f"GPU-{gpu}",
        "simulated": False,
        **values,
    }


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMAS[name])


def maker(
    *sets: str, name: str = "gpu_samples", labels: dict[str, str] | None = None, prefix: str = ""
) -> TableSeries:
    metrics = chosen_metrics(sets, lambda metric: metric.startswith(prefix))[name]
    made = TableSeries(name, metrics, labels or {}, NodeTimes())
    made.use(INVENTORY)
    return made


Found = dict[tuple[str, str], list[tuple[float, float]]]


def found_in(series: list[Series], version: int = 1) -> Found:
    """Seconds and values by metric and GPU, decoded from bodies."""
    kinds = {one.labels.name: "gauge" for one in series}
    found: Found = {}
    for request in requests_of(series):
        message = decode(version, BodyEncoder(version, kinds).body(request), 1 << 24)
        for one in message.timeseries:
            labels = (
                {label.name: label.value for label in one.labels}
                if version == 1
                else dict(label_pairs(message.symbols, one.labels_refs))
            )
            key = labels["__name__"], labels.get("gpu", "")
            found.setdefault(key, []).extend(
                ((sample.timestamp - to_ms(NOW)) / 1000, sample.value) for sample in one.samples
            )
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_rows_become_sorted_samples_without_what_is_absent(version) -> None:
    rows = [
        row(2, 0, power_watts=12.0, util_percent=7.0),
        row(1, 1, power_watts=21.0),
        row(1, 0, power_watts=11.0, util_percent=None),
        row(2, 0, power_watts=12.0, util_percent=7.0),  # a frame that was written twice
        row(3, 0, power_watts=float("nan")),
    ]
    found = found_in(list(maker("own").take(table("gpu_samples", rows), {})), version)
    assert found == {
        ("gpuwarden_gpu_power_watts", "0"): [(1, 11.0), (2, 12.0)],
        ("gpuwarden_gpu_power_watts", "1"): [(1, 21.0)],
        ("gpuwarden_gpu_util_ratio", "0"): [(2, 0.07)],
    }


def test_labels_are_the_exporters_and_the_receivers() -> None:
    rows = table("gpu_samples", [row(0, power_watts=1.0)])
    (own,) = maker("own", labels={"cluster": "a", "node": "b"}).take(rows, {})
    texts = own.labels.texts
    assert dict(zip(texts[::2], texts[1::2], strict=True)) == {
        "__name__": "gpuwarden_gpu_power_watts",
        "cluster": "a",
        "gpu": "0",
        "gpu_uuid": "GPU-0",
        "model": "NVIDIA H100",
        "node": "b",
    }
    assert list(texts[::2]) == sorted(texts[::2])
    (dcgm,) = maker("dcgm").take(rows, {})
    pairs = dict(zip(dcgm.labels.texts[::2], dcgm.labels.texts[1::2], strict=True))
    assert pairs["Hostname"] == "n1"
    assert pairs["DCGM_FI_DRIVER_VERSION"] == "570.1"
    assert pairs["pci_bus_id"] == "00000000:1B:00.0"


def test_labels_follow_the_inventory() -> None:
    made = maker("own")
    made.use(LabelInventory())
    rows = table("gpu_samples", [row(0, power_watts=1.0)])
    (before,) = made.take(rows, {})
    assert "model" not in before.labels.texts
    made.use(INVENTORY)
    (after,) = made.take(table("gpu_samples", [row(1, power_watts=1.0)]), {})
    assert "model" in after.labels.texts


_STEPS = st.lists(
    st.tuples(st.sampled_from([1, 2, 61]), st.one_of(st.none(), st.integers(0, 9))),
    min_size=1,
    max_size=12,
)


@given(_STEPS, st.integers(1, 4))
def test_rates_are_the_exporters_however_rows_are_divided(steps, size) -> None:
    rows, at = [], 0
    for seconds, counter in steps:
        at += seconds
        rows.append(row(at, pcie_tx_bytes_total=counter))
    made = maker("dcgm", prefix="DCGM_FI_PROF_PCIE_TX")
    (metric,) = made.metrics
    found: Found = {}
    for start in range(0, len(rows), size):
        part = table("gpu_samples", rows[start : start + size])
        for key, samples in found_in(list(made.take(part, {}))).items():
            found.setdefault(key, []).extend(samples)
    held: CachedSample | None = None
    expected = []
    for one in rows:
        ts_ms = to_ms(one["ts"].replace(tzinfo=UTC))
        held = followed(held, "gpu_samples", one, ts_ms)
        value = value_of(metric.exported, held)
        if value is not None:
            expected.append(((ts_ms - to_ms(NOW)) / 1000, value))
    assert [*found.values()] == ([expected] if expected else [])


def test_a_name_of_two_tables_has_the_values_of_the_first() -> None:
    chosen = chosen_metrics(["dcgm"], lambda name: name == "DCGM_FI_PROF_PCIE_TX_BYTES")
    times = NodeTimes()
    tables = {
        name: TableSeries(name, chosen[name], {}, times)
        for name in ("gpu_detail_samples", "gpu_samples")
    }
    column = tables["gpu_detail_samples"].metrics[0].exported.columns[0]
    detail = table("gpu_detail_samples", [row(1, **{column: 5.0})])
    counters = [row(second, gpu, pcie_tx_bytes_total=second) for second in (0, 1) for gpu in (0, 1)]
    found = found_in(
        [
            *tables["gpu_detail_samples"].take(detail, tables),
            *tables["gpu_samples"].take(table("gpu_samples", counters), tables),
        ]
    )
    assert found[("DCGM_FI_PROF_PCIE_TX_BYTES", "0")] == [(1, 5.0)]
    assert found[("DCGM_FI_PROF_PCIE_TX_BYTES", "1")] == [(1, 1.0)]


def test_a_series_ends_when_its_node_sends_newer_rows_without_it() -> None:
    made = maker("own")
    list(made.take(table("gpu_samples", [row(0, gpu, power_watts=1.0) for gpu in (0, 1)]), {}))
    list(made.take(table("gpu_samples", [row(60, 0, power_watts=1.0)]), {}))
    assert not list(made.ended())
    list(made.take(table("gpu_samples", [row(61, 0, power_watts=1.0)]), {}))
    (ended,) = made.ended()
    assert ended.times_ms == [to_ms(NOW) + 60_000]
    assert int.from_bytes(ended.samples[3:11], "little") == STALE_NAN_BITS
    assert not list(made.ended())
    assert len(made) == 1, "what has ended needs no memory"


def test_a_silent_node_ends_no_series() -> None:
    made = maker("own")
    list(made.take(table("gpu_samples", [row(0, power_watts=1.0)]), {}))
    other = row(3_600, 1, power_watts=1.0) | {"node": "n2"}
    list(made.take(table("gpu_samples", [other]), {}))
    assert not list(made.ended())


def test_times_that_cannot_be_encoded_are_counted() -> None:
    made = maker("own")
    early = row(0, power_watts=1.0) | {"ts": NOW.replace(year=1970, tzinfo=None)}
    assert not list(made.take(table("gpu_samples", [early]), {}))
    assert made.unsendable == 1


def test_requests_are_bounded_and_divide_long_series() -> None:
    made = maker("own")
    rows = [row(second, power_watts=1.0) for second in range(SAMPLES_MAX + 10)]
    series = list(made.take(table("gpu_samples", rows), {}))
    sizes = [sum(one.samples_count for one in request) for request in requests_of(series)]
    assert sizes == [SAMPLES_MAX, 10]
    (first,), (second,) = requests_of(series)
    assert first.times_ms[-1] < second.times_ms[0]
