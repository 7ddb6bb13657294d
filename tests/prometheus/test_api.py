"""The API over real HTTP: what Grafana and curl ask, and what is refused."""

import json
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests import served as serving
from tests.each import each

from gpuwarden.clock import SystemClock
from gpuwarden_collector import stages
from gpuwarden_collector.http.bodies import BodyReader
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.api import FORM_BYTES_MAX
from gpuwarden_prometheus.front import PROMETHEUS

Served = tuple[str, float]


def asked(served: Served, path: str, *, form: bool = False, **parameters: Any) -> tuple[int, Any]:
    """Status and document of an answer. `match`: selectors."""
    pairs = []
    for name, value in parameters.items():
        name = "match[]" if name == "match" else name
        pairs += [(name, v) for v in (value if isinstance(value, list) else [value])]
    text = urllib.parse.urlencode(pairs)
    url = f"{served[0]}/{path}"
    request = urllib.request.Request(url, text.encode()) if form else f"{url}?{text}"
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def data(served: Served, path: str, **parameters: Any) -> Any:
    status, document = asked(served, path, **parameters)
    assert status == 200, document
    assert document["status"] == "success"
    return document["data"]


def test_an_instant_query_has_a_value_for_each_series(served: Served) -> None:
    found = data(served, "query", query="gpuwarden_gpu_power_watts", time=served[1])
    assert found["resultType"] == "vector"
    assert len(found["result"]) == 8
    first = found["result"][0]
    assert first["metric"]["__name__"] == "gpuwarden_gpu_power_watts"
    assert {"node", "gpu", "gpu_uuid"} <= first["metric"].keys()
    at, value = first["value"]
    assert at == served[1]
    assert float(value) > 0


def test_a_form_gives_what_the_address_gives(served: Served) -> None:
    wanted = {
        "query": "sum(gpuwarden_gpu_power_watts)",
        "start": served[1] - 5,
        "end": served[1],
        "step": "1s",
    }
    found = data(served, "query_range", **wanted)
    assert found["resultType"] == "matrix"
    assert len(found["result"][0]["values"]) == 6
    assert data(served, "query_range", form=True, **wanted) == found


def test_scalars_and_texts_have_their_types(served: Served) -> None:
    assert data(served, "query", query="1 + 1", time=5) == {
        "resultType": "scalar",
        "result": [5, "2"],
    }
    assert data(served, "query", query='"a\\"b"', time=5) == {
        "resultType": "string",
        "result": [5, 'a"b'],
    }
    assert data(served, "query", query="nothing", time=5) == {"resultType": "vector", "result": []}
    found = data(served, "query_range", query="time()", start=1, end=2, step=1)
    assert found == {
        "resultType": "matrix",
        "result": [{"metric": {}, "values": [[1, "1"], [2, "2"]]}],
    }


def test_dcgm_names_have_dcgm_labels(served: Served) -> None:
    found = data(served, "query", query='DCGM_FI_DEV_POWER_USAGE{gpu="3"}', time=served[1])[
        "result"
    ]
    (series,) = found
    assert series["metric"]["device"] == "nvidia3"
    assert "Hostname" in series["metric"]


def test_labels_values_and_series_are_those_of_the_span(served: Served) -> None:
    span = {"start": served[1] - 60, "end": served[1]}
    names = data(served, "label/__name__/values", **span)
    assert "gpuwarden_gpu_power_watts" in names
    assert "gpuwarden_host_load_1m" not in names  # there are no rows of hosts
    assert len(names) == len(set(names))
    assert data(served, "label/gpu/values", **span) == [str(n) for n in range(8)]
    assert data(
        served, "label/gpu/values", match=['gpuwarden_gpu_power_watts{gpu=~"[01]"}'], **span
    ) == ["0", "1"]
    assert {"__name__", "node", "gpu"} <= set(data(served, "labels", **span))
    assert "link" not in data(served, "labels", match=["gpuwarden_gpu_power_watts"], **span)
    both = ["gpuwarden_gpu_power_watts", 'gpuwarden_gpu_util_ratio{gpu="1"}']
    assert len(data(served, "series", match=both, **span)) == 9
    assert data(served, "series", match=both, start=1, end=2) == []


def test_metadata_exemplars_and_version_answer(served: Served) -> None:
    found = data(served, "metadata", metric="gpuwarden_gpu_energy_joules_total")
    assert found["gpuwarden_gpu_energy_joules_total"][0]["type"] == "counter"
    assert len(data(served, "metadata", limit=3)) == 3
    assert data(served, "query_exemplars", query="x", start=1, end=2) == []
    assert data(served, "status/buildinfo")["version"]


def test_a_limit_cuts_the_series_and_says_so(served: Served) -> None:
    status, document = asked(
        served, "query", query="gpuwarden_gpu_power_watts", time=served[1], limit=2
    )
    assert status == 200
    assert len(document["data"]["result"]) == 2
    assert document["warnings"] == ["results truncated due to limit"]


@each(
    ("path", "parameters", "status", "kind"),
    [
        ("query", {}, 400, "bad_data"),
        ("query", {"query": "sum("}, 400, "bad_data"),
        ("query", {"query": "x", "time": "yesterday"}, 400, "bad_data"),
        ("query", {"query": "x", "time": "nan"}, 400, "bad_data"),
        ("query", {"query": "x", "timeout": "soon"}, 400, "bad_data"),
        ("query", {"query": "x", "timeout": "9" * 49 + "y"}, 400, "bad_data"),
        ("query", {"query": "x", "limit": "9" * 5_000}, 400, "bad_data"),
        ("query", {"query": "x", "lookback_delta": "0"}, 400, "bad_data"),
        ("query", {"query": "limitk(1, x)"}, 422, "execution"),
        ("query", {"query": "gpuwarden_gpu_power_watts + on() gpuwarden_gpu_util_ratio"}, 422, "execution"),
        ("query_range", {"query": "x", "start": 1, "end": 0, "step": 1}, 400, "bad_data"),
        ("query_range", {"query": "x", "start": 1, "end": 2, "step": 0}, 400, "bad_data"),
        ("query_range", {"query": "x", "start": 0, "end": 11001, "step": 1}, 400, "bad_data"),
        ("series", {}, 400, "bad_data"),
        ("series", {"match": ["1 + 1"]}, 422, "execution"),
        ("label/no-label/values", {}, 400, "bad_data"),
    ],
)  # fmt: skip
def test_what_is_wrong_has_the_form_of_prometheus(
    path: str, parameters: dict[str, Any], status: int, kind: str, served: Served
) -> None:
    parameters = {"time": served[1], **parameters} if path == "query" else parameters
    found, document = asked(served, path, **parameters)
    assert (found, document["status"], document["errorType"]) == (status, "error", kind)
    assert document["error"] and "\n" not in document["error"]


@pytest.mark.parametrize(
    "query", ["x and " * 2_000 + "x", "x + " * 900 + "x", "(" * 90 + "x" + ")" * 90]
)
def test_an_expression_that_is_too_deep_harms_no_other(query: str, served: Served) -> None:
    """The parser and the compiler recurse: they may end a query process, not the collector."""
    status, document = asked(served, "query", form=True, query=query, time=served[1])
    assert status in (200, 400, 422)
    assert status == 200 or document["status"] == "error"
    assert data(served, "query", query="1", time=1)["result"] == [1, "1"]


def test_a_prometheus_can_federate_the_newest_values(served: Served) -> None:
    def lines(*selectors: str) -> list[str]:
        asked = urllib.parse.urlencode([("match[]", each) for each in selectors])
        url = served[0].replace("/api/v1", "/federate")
        with urllib.request.urlopen(f"{url}?{asked}&lookback_delta=1h", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return answer.read().decode().splitlines()

    found = lines('gpuwarden_gpu_power_watts{gpu=~"0|1"}', 'gpuwarden_gpu_power_watts{gpu="1"}')
    assert len(found) == 2, "each series once"
    name, _, rest = found[0].partition("{")
    assert name == "gpuwarden_gpu_power_watts" and 'gpu="0"' in rest
    value, ms = rest.rpartition("} ")[2].split()
    assert float(value) == 300.0 and int(ms) == round(1000 * served[1]) - 9_000, (
        "the clock is at the first row"
    )
    assert lines("gpuwarden_gpu_graphics_clock_hertz") == []
    status, document = asked((served[0].replace("/api/v1", ""), 0.0), "federate")
    assert (status, document["errorType"]) == (400, "bad_data")


def test_a_form_that_is_too_large_is_refused(served: Served) -> None:
    status, document = asked(served, "query", form=True, query="x" * FORM_BYTES_MAX)
    assert (status, document["status"], document["errorType"]) == (413, "error", "bad_data")
    assert str(FORM_BYTES_MAX) in document["error"]


@contextmanager
def half_a_form(url: str) -> Iterator[socket.socket]:
    """A request whose body comes to half only."""
    host, port = url.removeprefix("http://").split(":")
    head = (
        f"POST /prometheus/api/v1/query HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\nConnection: close\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(head.encode() + b"quer")
        yield sock


def body_bytes_in_flight(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(r"^gpuwarden_collector_body_in_flight_bytes (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def answer_of(sock: socket.socket) -> tuple[str, Any]:
    """Head and document of an answer after which the connection ends."""
    answer = b""
    while piece := sock.recv(65_536):
        answer += piece
    head, _, body = answer.decode().partition("\r\n\r\n")
    return head, json.loads(body)


def test_a_form_is_counted_while_it_is_in_memory(served: Served) -> None:
    url = served[0].removesuffix("/prometheus/api/v1")
    with half_a_form(url) as sock:
        while body_bytes_in_flight(url) != 4:
            pass
        sock.sendall(b"y=%31")
        head, document = answer_of(sock)
    assert head.startswith("HTTP/1.1 200 ")
    assert document["data"]["result"][1] == "1"
    assert body_bytes_in_flight(url) == 0


def test_a_form_that_is_late_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "BodyReader", partial(BodyReader, timeout_s=0.2))
    settings = CollectorSettings(port=0, data_dir=tmp_path)
    late = serving.Served(settings, SystemClock(), http_fronts=[PROMETHEUS])
    late.begin()
    assert late.collector is not None
    try:
        with half_a_form(late.collector.url) as sock:
            head, document = answer_of(sock)
    finally:
        late.end()
    assert head.startswith("HTTP/1.1 503 ")
    assert "Retry-After: 5" in head
    assert document["errorType"] == "unavailable"


DAY_S = 86_400


def test_a_metric_without_a_rollup_has_a_warning_where_its_samples_are_no_longer_kept(
    served: Served,
) -> None:
    times = {"start": served[1] - 30 * DAY_S, "end": served[1], "step": "1h"}
    short = {"start": served[1] - DAY_S, "end": served[1], "step": "1h"}
    clock = 'sum(gpuwarden_gpu_graphics_clock_hertz{node!="gpuwarden_gpu_voltage_volts"})'
    for steps in (
        {**times, "step": "1d"},
        times,
        {
            **times,
            "limit": 1,
            "query": "gpuwarden_gpu_power_watts or gpuwarden_gpu_graphics_clock_hertz",
        },
    ):
        _, document = asked(served, "query_range", **{"query": clock, **steps})
        assert document["status"] == "success"
        assert [*document["warnings"]][-1].startswith(
            "gpuwarden_gpu_graphics_clock_hertz has no rollup: its samples are kept since 20"
        )
    assert len(document["warnings"]) == 2, "and that the answer was cut"
    for query in ("gpuwarden_gpu_power_watts", "rate(gpuwarden_gpu_energy_joules_total[5m])"):
        assert "warnings" not in asked(served, "query_range", query=query, **times)[1]
    assert "warnings" not in asked(served, "query_range", query=clock, **short)[1]
    _, document = asked(
        served,
        "query",
        query="max_over_time(gpuwarden_gpu_graphics_clock_hertz[4w])",
        time=served[1],
    )
    assert len(document["warnings"]) == 1
