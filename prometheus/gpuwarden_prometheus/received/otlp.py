"""Reads OTLP's metrics: series with labels, as Prometheus has them.

A request is protobuf or JSON, maybe in gzip or zstd (https://opentelemetry.io/docs/specs/otlp/). Attributes of resource and
data point become labels, with `_` for dots; those of the point count. Gauges and cumulative sums have a value; other
metrics are skipped and named.
"""

import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags

from gpuwarden_prometheus.received.mapping import LabelPairs, RequestMapping, Sample

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_NO_VALUE = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
MESSAGES_MAX = 50_000
"""Resources, scopes, metrics and data points of a request at most: an empty one takes two bytes."""
ATTRIBUTES_MAX = 100
"""Most attributes of a data point and its resource."""
POINT_ATTRIBUTES_MAX = 500_000
"""Most attributes of all data points of a request, with those of their resources."""
JSON_VALUES_MAX = 500_000
"""Most objects and elements of JSON, which is read in Python."""
_DEPTH_MAX = 20
"""Levels of JSON; a request has about ten."""


class BadMetricsError(ValueError):
    """A body cannot be read; the text is one line for the sender."""


def decompressed(body: bytes, encoding: str, bytes_max: int) -> bytes:
    """The content of a body, bounded while it is decompressed. Raises BadMetricsError."""
    match encoding.lower():
        case "" | "identity":
            return body
        case "gzip":
            return _inflated(zlib.decompressobj(wbits=31), body, bytes_max, zlib.error)
        case "zstd":
            return _inflated(zstd.ZstdDecompressor(), body, bytes_max, zstd.ZstdError)
    raise BadMetricsError(f"Content-Encoding {encoding!r} is not known: send gzip, zstd or none")


def _inflated(decompressor: Any, body: bytes, bytes_max: int, error: type[Exception]) -> bytes:
    try:
        content: bytes = decompressor.decompress(body, bytes_max + 1)
    except error as why:
        raise BadMetricsError(f"the body is damaged, or not what its encoding says: {why}") from why
    if len(content) > bytes_max:
        raise BadMetricsError(f"the body takes more than {bytes_max} bytes: send smaller requests")
    if not decompressor.eof:
        raise BadMetricsError("the body is cut off")
    return content


def decode(content: bytes, *, is_json: bool) -> Any:
    """The message of a request. Raises BadMetricsError."""
    message = ExportMetricsServiceRequest()
    if is_json and content.count(b"{") + content.count(b",") > JSON_VALUES_MAX:
        raise BadMetricsError(
            f"the JSON has more than {JSON_VALUES_MAX} values: send smaller requests, or protobuf"
        )
    try:
        if is_json:
            json_format.Parse(content, message, True, max_recursion_depth=_DEPTH_MAX)
        else:
            message.ParseFromString(content)
    except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = "JSON" if is_json else "protobuf"
        reason = str(error).partition("\n")[0][:200]
        raise BadMetricsError(
            f"the body is no {kind} of ExportMetricsServiceRequest: {reason}"
        ) from error
    return message


def take(message: Any, mapping: RequestMapping) -> int:
    """Add the metrics of a request; the number of its data points. Raises OtherNodeError, BadMetricsError."""
    _check_size(message)
    points = 0
    for resource in message.resource_metrics:
        outer = dict(_labels(resource.resource.attributes))
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points += _take_metric(metric, outer, mapping)
    return points


def _check_size(message: Any) -> None:
    """Raise BadMetricsError, before anything is mapped, if that takes long."""
    attributes = 0
    for number, own in enumerate(_sizes(message)):
        attributes += own
        if number >= MESSAGES_MAX:
            raise BadMetricsError(
                f"the request has more than {MESSAGES_MAX} resources, metrics and data points: send smaller requests"
            )
        if own > ATTRIBUTES_MAX:
            raise BadMetricsError(
                f"a data point has {own} attributes; most is {ATTRIBUTES_MAX}: drop attributes that are not needed"
            )
        if attributes > POINT_ATTRIBUTES_MAX:
            raise BadMetricsError(
                f"the data points have more than {POINT_ATTRIBUTES_MAX} attributes: send smaller requests"
            )


def _sizes(message: Any) -> Iterator[int]:
    """For each resource, scope, metric and data point the number of attributes that are read for it."""
    for resource in message.resource_metrics:
        outer = len(resource.resource.attributes)
        yield outer
        for scope in resource.scope_metrics:
            yield 0
            for metric in scope.metrics:
                yield 0
                if kind := metric.WhichOneof("data"):
                    for point in getattr(metric, kind).data_points:
                        yield outer + len(point.attributes)


def _take_metric(metric: Any, outer: dict[str, str], mapping: RequestMapping) -> int:
    kind = metric.WhichOneof("data")
    if kind is None:
        return 0
    data = getattr(metric, kind)
    points = len(data.data_points)
    name = _plain(metric.name)
    if kind not in ("gauge", "sum"):
        mapping.skipped["histogram", name] += points
    elif kind == "sum" and data.aggregation_temporality != _CUMULATIVE:
        # A counter cannot be made of differences of which some may be missing.
        mapping.skipped["delta", name] += points
    else:
        for point in data.data_points:
            mapping.take(_pairs(name, outer, point), [_sample(point)])
    return points


def _sample(point: Any) -> Sample:
    value = float("nan")
    if not point.flags & _NO_VALUE and (kind := point.WhichOneof("value")):
        value = float(getattr(point, kind))
    return Sample(point.time_unix_nano // 1_000_000, value)


def _pairs(name: str, outer: dict[str, str], point: Any) -> LabelPairs:
    labels = outer | dict(_labels(point.attributes))
    return (("__name__", name), *sorted(labels.items()))


def _labels(attributes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for attribute in attributes:
        kind = attribute.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            yield _plain(attribute.key), str(getattr(attribute.value, kind))


def _plain(name: str) -> str:
    return name.replace(".", "_")
