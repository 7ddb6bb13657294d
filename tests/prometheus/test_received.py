"""A collector takes samples by remote write and OTLP over HTTP, and makes rows of them, each once."""

import gzip
import json
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from tests.collector.conftest import wire_maker  # noqa: F401  a fixture
from tests.each import each
from tests.remote_write import compressed, encode
from tests.served import Served

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.wire import INGEST_PATH
from gpuwarden_collector import stages
from gpuwarden_collector.ingest.received_store import FILE_NAME
from gpuwarden_collector.ingest.receiver import ReceiverLimits
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.front import PROMETHEUS
from gpuwarden_prometheus.received import endpoints
from gpuwarden_prometheus.received.front import RECEIVED
from gpuwarden_prometheus.received.messages import new_request

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WRITE = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
GPU = {"UUID": "GPU-1", "gpu": "0", "Hostname": "n1", "modelName": "NVIDIA H100 80GB HBM3"}
Series = tuple[str, Mapping[str, str], float, int]


class Receiving:
    """A collector with a clock of its own, so that a test decides when rows are closed."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(NOW)
        self.folder = folder
        self.begin()

    def begin(self) -> None:
        settings = CollectorSettings(
            port=0, data_dir=self.folder
        )  # fmt: skip
        self._served = Served(settings, self.clock, http_fronts=[PROMETHEUS], sample_front=RECEIVED)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stages, "ReceiverLimits", partial(ReceiverLimits, bytes_max=2**20))
            self._served.begin()

    def end(self) -> None:
        self._served.end()

    @property
    def url(self) -> str:
        assert self._served.collector is not None
        return self._served.collector.url

    def post(
        self, path: str, body: bytes, headers: Mapping[str, str] = WRITE
    ) -> tuple[int, str, Any]:
        request = urllib.request.Request(self.url + path, body, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def write(self, *series: Series) -> None:
        status, said, _ = self.post(endpoints.WRITE_PATH, encode(written(series)))
        assert status == 204, said

    def report(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + endpoints.REPORT_PATH, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def close_rows(self) -> None:
        """Let time pass until all rows are closed and stored."""
        self.clock.advance(601)
        waits = ("open_rows", "bytes_waiting")
        self.wait_for(lambda: not any(self.report()[name] for name in waits))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def post_batch(self, body: bytes) -> None:
        """As an agent."""
        self._served.post(body)

    def ask(self, sql: str) -> list[list[Any]]:
        body = json.dumps({"sql": sql}).encode()
        headers = {"Content-Type": "application/json"}
        status, said, _ = self.post("/v1/sql", body, headers)
        assert status == 200, said
        rows: list[list[Any]] = json.loads(said)["rows"]
        return rows


def written(series: Sequence[Series]) -> Any:
    message = new_request(1)
    for name, labels, value, at_s in series:
        one = message.timeseries.add()
        for label, text in sorted({"__name__": name, **labels}.items()):
            one.labels.add(name=label, value=text)
        one.samples.add(value=value, timestamp=to_ms(NOW) + at_s * 1000)
    return message


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Receiving]:
    made = Receiving(tmp_path)
    yield made
    made.end()


def test_series_in_several_requests_become_one_row_also_over_a_restart(
    receiving: Receiving,
) -> None:
    busy, used = ("DCGM_FI_DEV_GPU_UTIL", GPU, 97.0, 0), ("DCGM_FI_DEV_FB_USED", GPU, 1000.0, 0)
    receiving.write(busy)
    receiving.write(busy)  # resent, the same request
    receiving.end()
    receiving.begin()
    receiving.write(used, busy)  # resent in another one
    receiving.close_rows()
    receiving.write(busy, used, ("DCGM_FI_DEV_GPU_TEMP", GPU, 50.0, 0))  # late
    receiving.close_rows()
    rows = receiving.ask(
        "select node, gpu, gpu_uuid, simulated, util_percent, memory_used_bytes, temperature_celsius from gpu_samples"
    )
    assert rows == [["n1", 0, "GPU-1", False, 97.0, 1000 * 2**20, None]]
    found = receiving.ask("select model, catalogue_model, node from gpus")
    assert found == [["NVIDIA H100 80GB HBM3", "H100-SXM-80GB", "n1"]]
    assert receiving.report()["samples"]["late"] == 3


@pytest.mark.slow
def test_what_waits_for_the_writer_is_stored_once_after_a_kill(tmp_path: Path) -> None:
    """As if the process ended between the writer's commit and the deletion of the batch."""
    made = Receiving(tmp_path)
    made.write(("DCGM_FI_DEV_GPU_UTIL", GPU, 97.0, 0))
    made.close_rows()
    made.end()
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("PRAGMA wal_checkpoint")
        db.execute("UPDATE sqlite_sequence SET seq = 0 WHERE name = 'batches'")
    db.close()
    made.begin()
    # The same sequence again: the ledger has it, whatever it holds.
    made.write(("DCGM_FI_DEV_GPU_UTIL", GPU, 55.0, 15))
    made.close_rows()
    assert made.ask("select util_percent from gpu_samples") == [[97.0]]
    made.write(("DCGM_FI_DEV_GPU_UTIL", GPU, 56.0, 30))
    made.close_rows()
    assert made.ask("select util_percent from gpu_samples order by ts") == [[97.0], [56.0]]
    made.end()


def test_version_2_gives_the_same_rows_and_says_how_many_samples_it_took(
    shared: Receiving,
) -> None:
    message = new_request(2)
    words = ["", "__name__", "DCGM_FI_DEV_GPU_UTIL", *(word for pair in {**GPU, "UUID": "GPU-v2"}.items() for word in pair)]  # fmt: skip
    message.symbols.extend(words)
    one = message.timeseries.add()
    one.labels_refs.extend(range(1, len(words)))
    one.samples.add(value=42.0, timestamp=to_ms(shared.clock.now()))
    kind = {**WRITE, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
    status, said, headers = shared.post(endpoints.WRITE_PATH, encode(message), kind)
    assert status == 204, said
    assert headers["X-Prometheus-Remote-Write-Samples-Written"] == "1"
    shared.close_rows()
    found = shared.ask("select util_percent from gpu_samples where gpu_uuid = 'GPU-v2'")
    assert found == [[42.0]]


def exported(uuid: str, at_ms: int) -> ExportMetricsServiceRequest:
    """A request as an OpenTelemetry Collector sends it."""
    message = ExportMetricsServiceRequest()
    resource = message.resource_metrics.add()
    resource.resource.attributes.add(key="host.name").value.string_value = "o1"
    scope = resource.scope_metrics.add()

    def point(data: Any, value: float, **attributes: str) -> None:
        one = data.data_points.add(time_unix_nano=at_ms * 1_000_000, as_double=value)
        for key, text in attributes.items():
            one.attributes.add(key=key.replace("_", ".")).value.string_value = text

    gpu = {"hw_id": uuid, "hw_model": "NVIDIA L4"}
    point(scope.metrics.add(name="hw.gpu.utilization").gauge, 0.5, **gpu, hw_gpu_task="general")
    point(scope.metrics.add(name="hw.gpu.memory.usage").gauge, 1e9, **gpu)
    energy = scope.metrics.add(name="hw.energy").sum
    energy.aggregation_temporality, energy.is_monotonic = 2, True
    point(energy, 77.0, **gpu, hw_type="gpu")
    change = scope.metrics.add(name="hw.gpu.io").sum
    change.aggregation_temporality = 1
    point(change, 5.0, **gpu, network_io_direction="receive")
    return message


@pytest.mark.parametrize("is_json", [False, True])
def test_otlp_gives_rows_and_names_what_it_cannot_store(shared: Receiving, is_json: bool) -> None:
    uuid = f"GPU-{is_json}"
    message = exported(uuid, to_ms(shared.clock.now()))
    body = json_format.MessageToJson(message).encode() if is_json else message.SerializeToString()
    kind = "application/json" if is_json else "application/x-protobuf"
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    status, said, answer = shared.post(endpoints.OTLP_PATH, gzip.compress(body), headers)
    assert (status, said, answer["Content-Type"].partition(";")[0]) == (
        200,
        "{}" if is_json else "",
        kind,
    )
    shared.close_rows()
    rows = shared.ask(
        "select node, util_percent, memory_used_bytes, energy_joules_total, pcie_rx_bytes_total "
        f"from gpu_samples where gpu_uuid = '{uuid}'"
    )
    assert rows == [["o1", 50.0, 1_000_000_000, 77.0, None]]
    skipped = {(one["reason"], one["name"]) for one in shared.report()["skipped"]}
    assert ("delta", "hw_gpu_io") in skipped


def test_the_name_of_a_node_belongs_to_its_agent_while_that_sends(
    receiving: Receiving,
    wire_maker: Any,  # noqa: F811
) -> None:
    wire = wire_maker()
    receiving.post_batch(wire.zstd(wire.stream("gpu_samples", [wire.gpu_row(0, 0)])))
    receiving.write(("DCGM_FI_DEV_GPU_UTIL", {**GPU, "UUID": "GPU-8"}, 1.0, 0))
    receiving.clock.advance(11)
    receiving.wait_for(lambda: not receiving.report()["open_rows"])
    assert receiving.ask("select gpu_uuid from gpu_samples") == [["GPU-0"]]
    # Rows wait, and are stored when the agent has been silent for long enough.
    receiving.close_rows()
    found = receiving.ask("select gpu_uuid from gpu_samples order by 1")
    assert found == [["GPU-0"], ["GPU-8"]]


BOMB = compressed(b"\0" * (endpoints.CONTENT_BYTES_MAX + 1))
PROTOBUF = {"Content-Type": "application/x-protobuf"}
V2 = {**WRITE, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}


def _many_samples() -> bytes:
    one = new_request(1)
    samples = one.timeseries.add().samples
    for _ in range(50_001):
        samples.add(value=1.0)
    return bytes(one.SerializeToString())


def _many_labels() -> Any:
    message = new_request(2)
    message.symbols.append("")
    for _ in range(5_200):
        message.timeseries.add().labels_refs.extend([0] * 200)
    return message


def _many_attributes() -> ExportMetricsServiceRequest:
    """Of a resource, which count for each of its data points."""
    message = ExportMetricsServiceRequest()
    resource = message.resource_metrics.add()
    for number in range(101):
        resource.resource.attributes.add(key=f"a{number}").value.string_value = "x"
    resource.scope_metrics.add().metrics.add().gauge.data_points.add(as_double=1.0)
    return message


SAMPLES, LABELS, ATTRIBUTES = _many_samples(), _many_labels(), _many_attributes()
ROWS = written(
    [("DCGM_FI_DEV_GPU_UTIL", {**GPU, "UUID": f"GPU-{n}"}, 1.0, 0) for n in range(10_001)]
)


WRITES, OTLP = endpoints.WRITE_PATH, endpoints.OTLP_PATH
JSON = {"Content-Type": "application/json"}
ZIPPED = {**JSON, "Content-Encoding": "gzip"}
UNKNOWN = {**WRITE, "Content-Type": "application/x-protobuf;proto=x.Y"}


@each(
    ("path", "body", "headers", "status", "said"),
    [
        (WRITES, b"rubbish", WRITE, 400, "not a Snappy block"),
        (WRITES, compressed(b"\xff" * 50), WRITE, 400, "not a protobuf message"),
        (WRITES, BOMB, WRITE, 400, "send smaller requests"),
        (WRITES, b"{}", JSON, 415, "snappy"),
        (WRITES, b"", UNKNOWN, 415, "proto=x.Y is not known"),
        (OTLP, b"\xff" * 9, PROTOBUF, 400, "no protobuf"),
        (OTLP, b"[" * 5000, JSON, 400, "no JSON"),
        (OTLP, b"x", {"Content-Type": "text/plain"}, 415, "must be"),
        (WRITES, compressed(b"\x0a\x00" * 20_001), WRITE, 400, "20001 series"),
        (WRITES, compressed(SAMPLES), WRITE, 400, "50001 samples, more than 50000"),
        (WRITES, encode(ROWS), WRITE, 400, "more than 10000 rows"),
        (WRITES, encode(LABELS), V2, 400, "520000 labels, more than 500000"),
        (OTLP, ATTRIBUTES.SerializeToString(), PROTOBUF, 400, "101 attributes"),
        (OTLP, b"[" + b"{}," * 300_000 + b"{}]", JSON, 400, "500000 values"),
        (OTLP, b"\x0a\x00" * 50_001, PROTOBUF, 400, "more than 50000 resources"),
        (
            OTLP,
            gzip.compress(b" " * (endpoints.CONTENT_BYTES_MAX + 1), mtime=0),
            ZIPPED,
            400,
            "send smaller requests",
        ),
        (OTLP, b"\x1f\x8b\x08", ZIPPED, 400, "cut off"),
    ],
)
def test_bodies_that_cannot_be_read_get_one_line(
    shared: Receiving, path: str, body: bytes, headers: Mapping[str, str], status: int, said: str
) -> None:
    found, text, _ = shared.post(path, body, headers)
    assert found == status, text
    reason = json.loads(text)["error"]
    assert said in reason
    assert "\n" not in reason


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiving]:
    made = Receiving(tmp_path_factory.mktemp("received"))
    yield made
    made.end()


def test_endless_names_and_labels_are_counted_in_bounded_memory(shared: Receiving) -> None:
    message = new_request(1)
    for number in range(5_000):
        one = message.timeseries.add()
        one.labels.add(name="__name__", value=f"endless_{number}")
        one.labels.add(name="x", value=str(number))
        one.samples.add(value=1.0, timestamp=to_ms(NOW))
    status, said, _ = shared.post(endpoints.WRITE_PATH, encode(message))
    assert status == 204, said
    report = shared.report()
    assert report["samples"]["unmapped"] >= 5_000
    assert len(report["skipped"]) <= 200
    assert {"name": "other names", "reason": "unmapped"}.items() <= report["skipped"][0].items()
    many = new_request(1)
    one = many.timeseries.add()
    for number in range(endpoints.LABELS_MAX + 1):
        one.labels.add(name=f"l{number}", value="x")
    status, said, _ = shared.post(endpoints.WRITE_PATH, encode(many))
    assert (status, "drop labels" in said) == (400, True)


@pytest.mark.slow
def test_a_stop_leaves_rows_for_the_next_start_and_loses_none(receiving: Receiving) -> None:
    nodes = [("DCGM_FI_DEV_GPU_UTIL", {**GPU, "Hostname": f"n{n}", "UUID": f"GPU-{n}"}, 1.0, 0) for n in range(1_500)]  # fmt: skip
    receiving.write(*nodes)
    receiving.clock.advance(601)
    with sqlite3.connect(receiving.folder / FILE_NAME) as db:
        count = "SELECT count(*) FROM batches"
        receiving.wait_for(lambda: db.execute(count).fetchone()[0] > 0)
        receiving.end()
        assert db.execute(count).fetchone()[0] > 0
    receiving.begin()
    receiving.close_rows()
    assert receiving.ask("select count(*), count(distinct node) from gpu_samples") == [[1500, 1500]]


@pytest.mark.slow
def test_more_than_fits_is_refused_for_a_while_and_nothing_of_it_is_lost(
    receiving: Receiving,
) -> None:
    sent, status, headers = 0, 204, {}
    while status == 204:
        series = [
            (
                "DCGM_FI_DEV_GPU_UTIL",
                {**GPU, "Hostname": f"n{sent}", "UUID": f"GPU-{sent}-{n}"},
                1.0,
                0,
            )
            for n in range(500)
        ]
        status, _, headers = receiving.post(endpoints.WRITE_PATH, encode(written(series)))
        sent += status == 204
        assert sent < 100
    assert status == 503
    assert int(headers["Retry-After"]) > 0
    receiving.close_rows()
    receiving.write(("DCGM_FI_DEV_GPU_UTIL", GPU, 1.0, 0))
    assert receiving.ask("select count(*) from gpu_samples") == [[500 * sent]]


def test_remote_write_needs_the_scope_of_agents() -> None:
    from gpuwarden.access import Scope
    from gpuwarden_collector.auth.scopes import need_of

    for path in (endpoints.WRITE_PATH, endpoints.OTLP_PATH, INGEST_PATH):
        assert need_of("POST", path) is Scope.INGEST
