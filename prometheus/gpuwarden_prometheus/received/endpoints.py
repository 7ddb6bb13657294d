"""Serves remote write and OTLP: POST of samples, and their outcomes."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from gpuwarden.clock import to_ms
from gpuwarden_collector.ingest.port import MappedRequest, SampleContext
from gpuwarden_collector.query.port import Refusal
from gpuwarden_prometheus.received import otlp
from gpuwarden_prometheus.received.mapping import (
    LabelPairs,
    OtherNodeError,
    RequestMapping,
    Sample,
    SeriesMap,
    TooManyRowsError,
)
from gpuwarden_prometheus.received.messages import (
    BadWriteRequestError,
    decode,
    label_pairs,
)

WRITE_PATH = "/prometheus/api/v1/write"
OTLP_PATH = "/otlp/v1/metrics"
REPORT_PATH = "/v1/received"
BODY_BYTES_MAX = 10 * 1024 * 1024
"""Largest body; above it 413."""
CONTENT_BYTES_MAX = 10 * 1024 * 1024
"""Largest content of a body; vmagent sends at most 8 MiB, others far less. Its message takes up to thirty times that."""
SERIES_MAX = 20_000
"""Most series of a request: twice what vmagent sends, ten times Prometheus' default. An empty one takes two bytes."""
SAMPLES_MAX = 50_000
"""Most samples and histograms of a request."""
LABELS_MAX = 100
"""Most labels of a series."""
REQUEST_LABELS_MAX = 500_000
"""Most labels of all series of a request: with version 2 a label takes two bytes in the body."""
_PROTO = "application/x-protobuf"
_V2 = "io.prometheus.write.v2.Request"
_PROTOS = {"": 1, "prometheus.WriteRequest": 1, _V2: 2}
_JSON = "application/json"

_Reader = Callable[[bytes, RequestMapping], int]
"""Reads a body; the number of its samples."""


class ReceiveEndpoints:
    """The handlers."""

    def __init__(self, context: SampleContext) -> None:
        self._context = context
        self._series = SeriesMap()
        self._one = asyncio.Semaphore(1)
        """One body at a time: its message is large, and Python maps only one at a time anyhow."""

    def routes(self) -> Iterable[web.AbstractRouteDef]:
        """The routes for the application."""
        return [
            web.post(WRITE_PATH, self.write),
            web.post(OTLP_PATH, self.otlp),
            web.get(REPORT_PATH, self.report),
        ]

    async def write(self, request: web.Request) -> web.Response:
        """POST /prometheus/api/v1/write: remote write 1.0 and 2.0."""
        version = _version(request)
        if isinstance(version, Refusal):
            return _refused(request, version)
        taken = await self._taken(request, _write_reader(version))
        if isinstance(taken, Refusal):
            return _refused(request, taken)
        headers = {}
        if version == 2:
            headers = {f"X-Prometheus-Remote-Write-{what}-Written": "0" for what in ("Histograms", "Exemplars")}  # fmt: skip
            headers["X-Prometheus-Remote-Write-Samples-Written"] = str(taken)
        return web.Response(status=204, headers=headers)

    async def otlp(self, request: web.Request) -> web.Response:
        """POST /otlp/v1/metrics: OTLP over HTTP, protobuf or JSON."""
        kind = request.content_type
        if kind not in (_PROTO, _JSON):
            return _refused(
                request, Refusal(415, f"Content-Type must be {_PROTO} or {_JSON}, not {kind}")
            )
        encoding = request.headers.get("Content-Encoding", "")

        def read(body: bytes, mapping: RequestMapping) -> int:
            content = otlp.decompressed(body, encoding, CONTENT_BYTES_MAX)
            return otlp.take(otlp.decode(content, is_json=kind == _JSON), mapping)

        taken = await self._taken(request, read)
        if isinstance(taken, Refusal):
            return _refused(request, taken)
        return web.Response(body=b"{}" if kind == _JSON else b"", content_type=kind)

    async def report(self, request: web.Request) -> web.Response:
        """GET /v1/received: outcomes of received samples."""
        return web.json_response(self._context.sink.report())

    async def _taken(self, request: web.Request, reader: _Reader) -> int | Refusal:
        """Put the samples of a request on disk; their number."""
        body = await self._context.bodies.read(request, BODY_BYTES_MAX)
        if isinstance(body, Refusal):
            return body
        sender = self._context.sender_of(request)
        try:
            async with self._one:
                found = await asyncio.to_thread(self._mapped, body, sender.node, reader)
        finally:
            self._context.bodies.release(len(body))
        if isinstance(found, Refusal):
            return found
        mapped, samples = found
        return await self._context.sink.store(mapped, sender) or samples

    def _mapped(
        self, body: bytes, node: str | None, reader: _Reader
    ) -> tuple[MappedRequest, int] | Refusal:
        now_ms = to_ms(self._context.clock.now())
        # A margin, as the rows of the samples are checked again when they are stored.
        past_ms = round(max(60.0, self._context.past_max_s - 3600) * 1000)
        span_ms = now_ms - past_ms, now_ms + round(self._context.future_max_s * 1000)
        mapping = self._series.mapping(node, span_ms)
        try:
            samples = reader(body, mapping)
        except (BadWriteRequestError, otlp.BadMetricsError, TooManyRowsError) as error:
            return Refusal(400, str(error))
        except OtherNodeError as error:
            return Refusal(403, str(error))
        except MemoryError:
            return Refusal(503, "the collector has not enough memory for it: give it more", 30)
        digest = hashlib.sha256(body).digest()
        return MappedRequest(digest, mapping.parts, mapping.skipped), samples


def _version(request: web.Request) -> int | Refusal:
    """The version of remote write that a request has."""
    encoding = request.headers.get("Content-Encoding", "")
    if request.content_type != _PROTO or encoding.lower() != "snappy":
        said = f"{request.content_type} with encoding {encoding or 'none'}"
        return Refusal(415, f"send {_PROTO} with Content-Encoding snappy, not {said}")
    proto = _parameters(request).get("proto", "")
    if proto not in _PROTOS:
        return Refusal(
            415, f"proto={proto} is not known: send prometheus.WriteRequest (1.0) or {_V2} (2.0)"
        )
    return _PROTOS[proto]


def _parameters(request: web.Request) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in request.headers["Content-Type"].split(";")[1:])
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}


def _write_reader(version: int) -> _Reader:
    def read(body: bytes, mapping: RequestMapping) -> int:
        message = decode(version, body, CONTENT_BYTES_MAX)
        samples = _samples_of(version, message)
        # Once, as each look at a symbol copies it.
        symbols = [*message.symbols] if version == 2 else ()
        for series in message.timeseries:
            pairs = tuple(sorted(_pairs(version, symbols, series)))
            mapping.take(pairs, (Sample(one.timestamp, one.value) for one in series.samples))
            if series.histograms:
                mapping.skipped["histogram", dict(pairs).get("__name__", "")] += len(series.histograms)  # fmt: skip
        return samples

    return read


def _samples_of(version: int, message: Any) -> int:
    """The number of samples of a message. Raises BadWriteRequestError, before anything is mapped, if that takes long."""
    if len(message.timeseries) > SERIES_MAX:
        raise BadWriteRequestError(
            f"the request has {len(message.timeseries)} series, more than {SERIES_MAX}: send smaller requests"
        )
    samples = histograms = labels = 0
    for series in message.timeseries:
        own = len(series.labels_refs) // 2 if version == 2 else len(series.labels)
        if own > LABELS_MAX:
            raise BadWriteRequestError(
                f"a series has {own} labels; most is {LABELS_MAX}: drop labels that are not needed"
            )
        labels += own
        samples += len(series.samples)
        histograms += len(series.histograms)
    for found, most, what in (
        (labels, REQUEST_LABELS_MAX, "labels"),
        (samples + histograms, SAMPLES_MAX, "samples"),
    ):
        if found > most:
            raise BadWriteRequestError(
                f"the request has {found} {what}, more than {most}: send smaller requests"
            )
    return samples


def _pairs(
    version: int, symbols: Sequence[str], series: Any
) -> LabelPairs | Iterator[tuple[str, str]]:
    if version == 2:
        return label_pairs(symbols, series.labels_refs)
    return tuple((label.name, label.value) for label in series.labels)


def _refused(request: web.Request, refusal: Refusal) -> web.Response:
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    said = {"error": refusal.reason, "status": refusal.status}
    answer = web.json_response(said, status=refusal.status, headers=headers)
    if not request.content.is_eof():
        answer.force_close()
    return answer
