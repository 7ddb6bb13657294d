"""An import gets by with a collector that is busy, refuses, or answers nonsense."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from gpuwarden_cli.import_logs.delivery import Delivery
from gpuwarden_client.http import CallError
from gpuwarden_importing.batches import ImportBatch

NOTHING = pa.table({"gpu_uuid": pa.array([], pa.string()), "ts": pa.array([], pa.timestamp("us"))})
ROW = {
    "ts": pa.array([1000], pa.timestamp("ms")),
    "node": ["n1"],
    "gpu_uuid": ["GPU-1"],
    "util_percent": [5.0],
}
BATCH = ImportBatch("gpu_samples", pa.table(ROW))


def arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def server() -> Iterator[Callable[..., tuple[str, list[dict]]]]:
    """`server(sql=[...], ingest=[...])`: the answers to each, in order, the last repeatedly."""
    servers = []

    def start(**answers: list[Answer]) -> tuple[str, list[dict]]:
        asked: list[dict] = []

        class Scripted(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                kind = self.path.rpartition("/")[2]
                asked.append({"kind": kind, **self.headers})
                several = answers[kind]
                status, headers, body = several.pop(0) if len(several) > 1 else several[0]
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        made = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        servers.append(made)
        return f"http://127.0.0.1:{made.server_port}", asked

    yield start
    for each in servers:
        each.shutdown()
        each.server_close()


FRESH = (200, {}, arrow(NOTHING))
THERE = (200, {}, arrow(BATCH.data.select(["gpu_uuid", "ts"])))


def test_a_busy_collector_is_asked_again_with_the_same_identity(server) -> None:
    busy = (503, {"Retry-After": "3"}, b'{"error": "full"}')
    url, asked = server(sql=[FRESH, THERE], ingest=[busy, busy, (204, {}, b"")])
    waits: list[float] = []
    delivery = Delivery(url, waits.append)
    delivery.deliver(BATCH)
    sent = [each for each in asked if each["kind"] == "ingest"]
    assert len({each["Gpuwarden-Boot-Id"] for each in sent}) == 1
    assert [each.get("Gpuwarden-Sent-Before") for each in sent] == [None, "1", "1"]
    assert all(each["Gpuwarden-Import"] == "1" for each in sent)
    assert (waits, delivery.stored["gpu_samples"]) == ([3.0, 3.0], 1)


def test_a_refusal_is_said_and_not_tried_again(server) -> None:
    url, asked = server(sql=[FRESH], ingest=[(422, {}, b'{"error": "ts is odd"}')])
    with pytest.raises(CallError, match="ts is odd"):
        Delivery(url).deliver(BATCH)
    assert [each["kind"] for each in asked] == ["sql", "ingest"]


def test_a_collector_that_stays_busy_ends_it_with_what_to_do(server) -> None:
    url, _ = server(sql=[(503, {}, b"")], ingest=[])
    with pytest.raises(CallError, match="run the same again later"):
        Delivery(url, lambda _: None).deliver(BATCH)


def test_what_is_there_is_not_sent(server) -> None:
    url, asked = server(sql=[THERE], ingest=[])
    delivery = Delivery(url)
    delivery.deliver(BATCH)
    assert (delivery.known["gpu_samples"], delivery.stored["gpu_samples"]) == (1, 0)
    assert len(asked) == 1


def test_rows_that_were_stored_once_and_dropped_since_are_stored_again(server) -> None:
    url, asked = server(sql=[FRESH, FRESH, THERE], ingest=[(204, {}, b"")])
    Delivery(url).deliver(BATCH)
    names = [each["Gpuwarden-Boot-Id"] for each in asked if each["kind"] == "ingest"]
    assert names == [names[0], f"{names[0]}.2"]


def test_more_keys_than_an_answer_holds_are_asked_for_in_parts(server) -> None:
    two = ImportBatch(
        "gpu_samples", pa.concat_tables([BATCH.data, pa.table({**ROW, "gpu_uuid": ["GPU-2"]})])
    )
    cut = (200, {"Gpuwarden-Truncated": "true"}, arrow(NOTHING))
    url, _ = server(sql=[cut, THERE, FRESH, THERE], ingest=[(204, {}, b"")])
    delivery = Delivery(url)
    delivery.deliver(two)
    assert (delivery.known["gpu_samples"], delivery.stored["gpu_samples"]) == (1, 1)
