"""Series of other programs map to our columns: names, units, devices, owners."""

import csv
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.metrics import METRICS, Kind
from gpuwarden.prometheus_names import NAME_SETS, dcgm_labels, jobstats_labels, names_of, own_labels
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_collector.ingest.admit import Window, checked
from gpuwarden_collector.ingest.decode import Decoded, decode
from gpuwarden_collector.ingest.port import Before, JoinedRow
from gpuwarden_collector.ingest.received_rows import BodyRows
from gpuwarden_prometheus.received.making import SeriesRowMaker
from gpuwarden_prometheus.received.mapping import OtherNodeError, Sample, SeriesMap
from gpuwarden_prometheus.received.names import named_columns

NOW = 1_700_000_000_000
NAMES = Path(__file__).parents[2] / "../shared/data/names"
GPU = {"UUID": "GPU-1", "gpu": "3", "Hostname": "n1", "modelName": "NVIDIA A100", "pci_bus_id": "00000000:3B:00.0"}  # fmt: skip


def mapped(
    *series: tuple[str, Mapping[str, str], float], node: str | None = None, ts_ms: int = NOW
) -> Any:
    mapping = SeriesMap().mapping(node, (NOW - 1000, NOW + 1000))
    for name, labels, value in series:
        mapping.take((("__name__", name), *labels.items()), [Sample(ts_ms, value)])
    return mapping


def rows_of(mapping: Any, before: Before | None = None) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for part in mapping.parts:
        joined = JoinedRow(part.table, part.source, part.ts_ms, part.cells, part.facts)
        for table, row in SeriesRowMaker().made(joined, before):
            found.setdefault(table, []).append(dict(row))
    return found


@each("name", named_columns())
def test_every_name_has_a_column_of_its_kind(name: str) -> None:
    made = {"", "cpu", "disk_busy", "xid", "slurm_job"}
    for one in named_columns()[name]:
        kinds = [m.kind for m in METRICS[one.table] if m.name == one.column]
        assert kinds or one.column in made
        # Many exporters have counters without `_total`, but none has a gauge with it.
        if name.endswith("_total"):
            assert Kind.GAUGE not in kinds


def test_names_of_the_exporters_are_those_of_their_own_lists() -> None:
    if not NAMES.exists():
        pytest.skip("shared/data/names is not there")
    known = {
        row["name"]
        for file in ("nvidia_gpu_exporter_names.csv", "rocm_exporter_names.csv")
        for row in csv.DictReader((NAMES / file).read_text().splitlines())
    }
    text = (files("gpuwarden_prometheus.received") / "names.csv").read_text()
    ours = {row["name"] for row in csv.DictReader(text.splitlines())}
    theirs = {n for n in ours if n.startswith(("nvidia_smi_", "gpu_", "pcie_"))}
    assert theirs
    assert not theirs - known


@each("name_set, table", [(names, table) for names in NAME_SETS for table in METRICS])
def test_what_our_exporter_writes_comes_back_as_it_was(name_set: str, table: str) -> None:
    identity = {"link_type": "nvlink", "link": 1, "pid": 77, "device": "mlx5_0", "port": 1}
    row: dict[str, Any] = {"node": "n1", "gpu": 3, "gpu_uuid": "GPU-1", **identity}
    gpu = {"model": "NVIDIA A100", "pci_bus_id": "0000:3b:00.0"}
    labels = {
        "own": lambda: own_labels(table, row, gpu),
        "jobstats": lambda: {**jobstats_labels(row, gpu), "instance": "n1:9445"},
    }.get(name_set, lambda: dcgm_labels(name_set, row, gpu, "550.1"))()
    said = {name: str(value) for name, value in labels.items() if value is not None}
    exported = [one for one in names_of(name_set, table) if not one.is_rate]
    series = [(one.name, said, one.scale(7.0)) for one in exported]
    found = rows_of(mapped(*series)).get(table, [{}])[0]
    for one in exported:
        assert found[one.columns[0]] == pytest.approx(7.0), one.name
    if exported and "gpu_uuid" in WIRE_TABLES[table].names:
        assert (found["node"], found["gpu_uuid"], found["gpu"]) == ("n1", "GPU-1", "3")


def test_units_become_ours() -> None:
    bare = {"uuid": "df6e7a7c-7314-46f8-abc4-b88b36dcf3aa", "instance": "n2:9835"}
    found = rows_of(
        mapped(
            ("nvidia_smi_utilization_gpu_ratio", bare, 0.42),
            ("nvidia_smi_clocks_current_sm_clock_hz", bare, 1.41e9),
            ("nvidia_smi_power_draw_watts", bare, 200.0),
            ("nvidia_smi_power_draw_average_watts", bare, 190.0),
            ("nvidia_smi_gpu_info", {**bare, "name": "x", "index": "5", "driver_version": "550.1"}, 1),
            ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", GPU, 5_000.0),
            ("DCGM_FI_PROF_SM_ACTIVE", GPU, 0.5),
            ("dcgm_fi_dev_fb_total", {"uuid": "GPU-7", "gpu": "7", "host_name": "n3"}, 80_000.0),
        )
    )  # fmt: skip
    of = {row["gpu_uuid"]: row for row in found["gpu_samples"]}
    smi = of[f"GPU-{bare['uuid']}"]
    assert smi["util_percent"] == pytest.approx(42)
    assert (smi["sm_clock_mhz"], smi["power_watts"], smi["gpu"]) == (1410.0, 190.0, "5")
    assert of["GPU-1"]["energy_joules_total"] == 5.0
    assert of["GPU-7"]["memory_total_bytes"] == 80_000 * 2**20
    assert found["gpu_detail_samples"][0]["sm_active_percent"] == 50
    drivers = {row["node"]: row.get("driver_version") for row in found["nodes"]}
    assert drivers["n2"] == "550.1"
    models = {row["gpu_uuid"]: row.get("model") for row in found["gpus"]}
    assert models[f"GPU-{bare['uuid']}"] == "x"


def test_amd_and_opentelemetry_gpus_have_rows() -> None:
    amd = {"gpu_id": "2", "serial_number": "692409005408", "hostname": "tw038", "card_series": "AMD Instinct MI300X OAM"}  # fmt: skip
    otel = {"hw_id": "GPU-9", "hw_model": "NVIDIA L4", "host_name": "o1", "gpu_index": "0"}
    found = rows_of(
        mapped(
            ("gpu_gfx_activity", amd, 88),
            ("gpu_used_vram", amd, 1000),
            ("gpu_clock", {**amd, "clock_type": "system", "clock_index": "0"}, 2100),
            ("gpu_clock", {**amd, "clock_type": "system", "clock_index": "1"}, 132),
            ("gpu_energy_consumed", amd, 3e6),
            ("hw_gpu_utilization_ratio", {**otel, "hw_gpu_task": "general"}, 0.25),
            ("hw_gpu_utilization", {**otel, "hw_gpu_task": "encoder"}, 0.5),
            ("hw_energy", {**otel, "hw_type": "gpu"}, 17),
        )
    )
    of = {row["gpu_uuid"]: row for row in found["gpu_samples"]}
    assert of["AMD-692409005408"] | {"util_percent": 88, "sm_clock_mhz": 2100, "energy_joules_total": 3.0} == of["AMD-692409005408"]  # fmt: skip
    assert of["AMD-692409005408"]["memory_used_bytes"] == 1000 * 2**20
    assert of["GPU-9"] | {"util_percent": 25, "encoder_util_percent": 50, "energy_joules_total": 17} == of["GPU-9"]  # fmt: skip
    models = {row["gpu_uuid"]: (row.get("vendor"), row["model"]) for row in found["gpus"]}  # fmt: skip
    assert models["AMD-692409005408"] == ("amd", "AMD Instinct MI300X OAM")
    assert models["GPU-9"] == (None, "NVIDIA L4")


def test_a_mig_device_has_rows_of_its_own() -> None:
    found = rows_of(mapped(("DCGM_FI_PROF_GR_ENGINE_ACTIVE", {**GPU, "GPU_I_ID": "7"}, 0.1)))
    (row,) = found["gpu_detail_samples"]
    assert (row["gpu_uuid"], row["mig_instance"]) == ("MIG-GPU-1/7", "7")
    (gpu,) = found["gpus"]
    assert gpu["parent_gpu_uuid"] == "GPU-1"
    assert "model" not in gpu


@pytest.mark.parametrize(
    ("labels", "owner"),
    [
        ({"pod": "train-0", "namespace": "ml", "container": "main"}, "ml/train-0/main"),
        ({"pod": "dcgm-exporter-x7k2p", "namespace": "gpu", "exported_pod": "t", "exported_namespace": "ml"}, "ml/t"),
        ({"pod": "dcgm-exporter-x7k2p", "namespace": "gpu", "container": "exporter"}, None),
        ({"hpc_job": "4711"}, "4711"),
        ({"pod": "a\tb\n", "namespace": "\x00é", "container": "\"]"}, "\x00é/a\tb\n/\"]"),
        ({}, None),
    ],
)  # fmt: skip
def test_labels_of_pods_and_jobs_say_who_has_the_gpu(
    labels: Mapping[str, str], owner: str | None
) -> None:
    found = rows_of(mapped(("DCGM_FI_DEV_GPU_UTIL", {**GPU, **labels}, 0)))
    rows = found.get("allocation_samples", [])
    assert ["/".join(filter(None, (row["job"], row.get("container")))) for row in rows] == [
        owner
    ] * (owner is not None)


def test_jobstats_has_the_job_as_a_value() -> None:
    labels = {"uuid": "GPU-1", "ordinal": "0", "instance": "n1:9445"}
    found = rows_of(
        mapped(("nvidia_gpu_jobId", labels, 4711), ("nvidia_gpu_duty_cycle", labels, 5))
    )
    assert [row["job"] for row in found["allocation_samples"]] == ["4711"]
    assert "allocation_samples" not in rows_of(mapped(("nvidia_gpu_jobId", labels, 0)))


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "h", "node": "k"}, "k"),
        ({"Hostname": "nvidia-dcgm-exporter-abcde", "instance": "10.0.0.5:9400"}, "10.0.0.5"),
        ({"hostname": "h", "instance": "x:1"}, "h"),
        ({"instance": "[fe80::1]:9400"}, "fe80::1"),
        ({"service_instance_id": "gpu-4:9400"}, "gpu-4"),
    ],
)
def test_the_node_is_the_one_that_labels_name_else_what_was_scraped(
    labels: Mapping[str, str], node: str
) -> None:
    found = rows_of(mapped(("DCGM_FI_DEV_GPU_UTIL", {"UUID": "GPU-1", **labels}, 1)))
    assert found["gpu_samples"][0]["node"] == node


def test_a_host_has_the_values_that_our_agent_computes() -> None:
    at = {"instance": "10.0.0.5:9100"}
    cpu = [(mode, cpu) for mode in ("user", "idle", "iowait", "irq", "softirq") for cpu in "01"]

    def scrape(busy: float) -> Any:
        return mapped(
            *(("node_cpu_seconds_total", {**at, "mode": m, "cpu": c}, busy if m == "user" else 2 * busy) for m, c in cpu),
            ("node_uname_info", {**at, "nodename": "gpu-05", "release": "6.1"}, 1),
            ("node_memory_MemTotal_bytes", at, 100.0),
            ("node_memory_MemAvailable_bytes", at, 60.0),
            ("node_memory_Cached_bytes", at, 5.0),
            ("node_memory_SReclaimable_bytes", at, 2.0),
            ("node_memory_SwapTotal_bytes", at, 9.0),
            ("node_network_receive_bytes_total", {**at, "device": "eth0"}, 5.0),
            ("node_network_receive_bytes_total", {**at, "device": "ib0"}, 6.0),
            ("node_network_receive_bytes_total", {**at, "device": "lo"}, 99.0),
            ("node_disk_io_time_seconds_total", {**at, "device": "nvme0n1"}, busy),
            ("node_disk_io_time_seconds_total", {**at, "device": "nvme0n1p1"}, 50 * busy),
            ("node_pressure_io_waiting_seconds_total", at, busy),
        )  # fmt: skip

    (first,) = scrape(10).parts
    carried = SeriesRowMaker().carried(JoinedRow(first.table, first.source, NOW, first.cells, {}))
    found = rows_of(scrape(20), Before(NOW - 20_000, carried))
    (row,) = found["host_samples"]
    assert row["node"] == "gpu-05"
    assert (row["memory_used_bytes"], row["memory_cached_bytes"]) == (40, 7)
    assert row["network_rx_bytes_total"] == 11
    assert row["cpu_user_percent"] == pytest.approx(100 / 9)
    assert row["cpu_irq_percent"] == pytest.approx(400 / 9)
    assert row["cpu_util_percent"] == pytest.approx(500 / 9)
    assert row["disk_busy_percent"] == pytest.approx(50)
    assert row["psi_io_some_percent"] == pytest.approx(50)
    assert "swap_used_bytes" not in row  # of a difference both are needed
    assert found["nodes"][0]["kernel"] == "6.1"
    # Without the scrape before, or after a reset, there are no shares of time.
    assert "cpu_util_percent" not in rows_of(scrape(20))["host_samples"][0]
    assert "cpu_util_percent" not in rows_of(scrape(5), Before(NOW - 20_000, carried))["host_samples"][0]  # fmt: skip


def test_a_change_of_the_last_xid_is_an_event() -> None:
    now = mapped(("DCGM_FI_DEV_XID_ERRORS", GPU, 79))
    (event,) = rows_of(now, Before(NOW - 15_000, {"xid": 0.0}))["events"]
    assert event["kind"] == "xid"
    assert "Xid 79 on GPU 3" in event["message"]
    for before in (None, Before(NOW - 15_000, {"xid": 79.0})):
        assert "events" not in rows_of(now, before)


def test_what_has_no_value_is_absent_and_what_cannot_be_mapped_is_named() -> None:
    stale = float("nan")
    found = mapped(
        ("DCGM_FI_DEV_GPU_UTIL", GPU, stale),
        ("DCGM_FI_DEV_GPU_TEMP", GPU, 2147483647.0),
        ("DCGM_FI_DEV_POWER_USAGE", GPU, 250.0),
        ("http_requests_total", {"instance": "x"}, 1),
        ("go_goroutines", {"instance": "x"}, 1),
        ("DCGM_FI_DEV_FB_USED", {"instance": "x:9400"}, 1),
        ("node_load1", {}, 1),
    )
    (row,) = rows_of(found)["gpu_samples"]
    assert "util_percent" not in row
    assert "temperature_celsius" not in row
    assert row["power_watts"] == 250
    assert found.skipped == {
        ("no_value", "DCGM_FI_DEV_GPU_UTIL"): 1,
        ("no_value", "DCGM_FI_DEV_GPU_TEMP"): 1,
        ("unmapped", "http_requests_total"): 1,
        ("unmapped", "of programs themselves"): 1,
        ("no_gpu", "DCGM_FI_DEV_FB_USED"): 1,
        ("no_node", "node_load1"): 1,
    }
    late = mapped(("DCGM_FI_DEV_GPU_UTIL", GPU, 1), ts_ms=NOW - 5000)
    assert late.skipped == {("too_old", "DCGM_FI_DEV_GPU_UTIL"): 1}


def test_series_of_a_node_that_no_host_is_called_are_not_stored() -> None:
    mapping = mapped(
        ("DCGM_FI_DEV_GPU_TEMP", {**GPU, "Hostname": "../../x"}, 1.0),
        ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-1", "instance": "v x:9400"}, 1.0),
        ("node_uname_info", {"nodename": "vx;rm", "instance": "n1:9100"}, 1.0),
    )
    assert not mapping.parts
    assert sorted(reason for reason, _ in mapping.skipped) == ["wrong_node", "wrong_node"]


def test_a_token_of_one_node_sends_no_rows_of_another() -> None:
    with pytest.raises(OtherNodeError, match="the token is for node n9, and .* is of node n1"):
        mapped(("DCGM_FI_DEV_GPU_UTIL", GPU, 1), node="n9")
    unnamed = {"UUID": "GPU-1", "instance": "127.0.0.1:9400"}
    found = mapped(("DCGM_FI_DEV_GPU_UTIL", unnamed, 1), node="n9")
    assert rows_of(found)["gpu_samples"][0]["node"] == "n9"


LABELS = (
    "UUID", "uuid", "gpu", "gpu_id", "Hostname", "instance", "node", "pod", "namespace", "pci_bus_id", "GPU_I_ID", "device",
    "port", "mode", "cpu", "link", "link_type", "pid", "hpc_job", "nodename", "mountpoint", "hw_id", "hw_type", "clock_type",
)  # fmt: skip
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["0", "GPU-1", "n1", "eth0", "sda", "idle", "/dev/shm", "gpu", "system", "a" * 300]
)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(named_columns())),
            st.dictionaries(st.sampled_from(LABELS), TEXTS, max_size=8),
            st.floats(),
        ),
        max_size=8,
    )
)
def test_any_series_make_rows_that_the_collector_admits(
    series: list[tuple[str, dict[str, str], float]],
) -> None:
    admitted = Window(NOW - 1_000_000, NOW + 1_000_000)
    body = BodyRows(admitted)
    for before in (None, Before(NOW - 15_000, {"cpu.idle#0": 0.0, "xid": 1.0})):
        for table, rows in rows_of(mapped(*series), before).items():
            for row in rows:
                body.add(table, {"agent_id": "x", "boot_id": "y", **row})
    if body.rows:
        decoded = decode(body.body(), "")
        assert isinstance(decoded, Decoded), decoded
        assert isinstance(checked(decoded.tables, admitted), dict)
