"""Decodes the messages of Prometheus' remote write, versions 1.0 and 2.0.

Sources: https://prometheus.io/docs/specs/prw/remote_write_spec/ and remote_write_spec_2_0/. A body is a
protobuf message, compressed as one Snappy block. What is received is bounded before it is decompressed.
Fields that a message does not know are skipped, as protobuf wants it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_F = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _F.TYPE_STRING,
    "double": _F.TYPE_DOUBLE,
    "int64": _F.TYPE_INT64,
    "uint32": _F.TYPE_UINT32,
    "uint64": _F.TYPE_UINT64,
    "sint32": _F.TYPE_SINT32,
    "sint64": _F.TYPE_SINT64,
}
_Fields = dict[int, str]
"""By number: an optional `repeated`, the type or message (`=`: enum), the name, an optional `in` oneof."""

_HISTOGRAM: _Fields = {
    1: "uint64 count_int in count",
    2: "double count_float in count",
    3: "double sum",
    4: "sint32 schema",
    5: "double zero_threshold",
    6: "uint64 zero_count_int in zero_count",
    7: "double zero_count_float in zero_count",
    8: "repeated BucketSpan negative_spans",
    9: "repeated sint64 negative_deltas",
    10: "repeated double negative_counts",
    11: "repeated BucketSpan positive_spans",
    12: "repeated sint64 positive_deltas",
    13: "repeated double positive_counts",
    14: "=ResetHint reset_hint",
    15: "int64 timestamp",
    16: "repeated double custom_values",
}
_SPAN: _Fields = {1: "sint32 offset", 2: "uint32 length"}
_RESET_HINTS = ("UNKNOWN", "YES", "NO", "GAUGE")
METRIC_TYPES = (
    "UNKNOWN",
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "GAUGEHISTOGRAM",
    "SUMMARY",
    "INFO",
    "STATESET",
)
"""Of metadata, by number, in both versions."""

_V1: dict[str, _Fields] = {
    "WriteRequest": {1: "repeated TimeSeries timeseries", 3: "repeated MetricMetadata metadata"},
    "TimeSeries": {
        1: "repeated Label labels",
        2: "repeated Sample samples",
        3: "repeated Exemplar exemplars",
        4: "repeated Histogram histograms",
    },
    "Label": {1: "string name", 2: "string value"},
    "Sample": {1: "double value", 2: "int64 timestamp"},
    "Exemplar": {1: "repeated Label labels", 2: "double value", 3: "int64 timestamp"},
    "MetricMetadata": {
        1: "=MetricType type",
        2: "string metric_family_name",
        4: "string help",
        5: "string unit",
    },
    "Histogram": _HISTOGRAM,
    "BucketSpan": _SPAN,
}
_V2: dict[str, _Fields] = {
    "Request": {4: "repeated string symbols", 5: "repeated TimeSeries timeseries"},
    "TimeSeries": {
        1: "repeated uint32 labels_refs",
        2: "repeated Sample samples",
        3: "repeated Histogram histograms",
        4: "repeated Exemplar exemplars",
        5: "Metadata metadata",
    },
    "Sample": {1: "double value", 2: "int64 timestamp", 3: "int64 start_timestamp"},
    "Exemplar": {1: "repeated uint32 labels_refs", 2: "double value", 3: "int64 timestamp"},
    "Metadata": {1: "=MetricType type", 3: "uint32 help_ref", 4: "uint32 unit_ref"},
    "Histogram": {**_HISTOGRAM, 17: "int64 start_timestamp"},
    "BucketSpan": _SPAN,
}


class BadWriteRequestError(ValueError):
    """A body cannot be read as a message of remote write; the text is one line for the sender."""


def _messages(package: str, fields: dict[str, _Fields]) -> dict[str, Any]:
    """Message classes by full name, made of descriptors in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for enum, values in (("MetricType", METRIC_TYPES), ("ResetHint", _RESET_HINTS)):
        described = file.enum_type.add(name=enum)
        for number, value in enumerate(values):
            described.value.add(name=f"{enum}_{value}", number=number)
    for name, numbered in fields.items():
        message = file.message_type.add(name=name)
        oneofs: list[str] = []
        for number, text in numbered.items():
            _add_field(message, package, number, text, oneofs)
        for oneof in oneofs:
            message.oneof_decl.add(name=oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in fields
    }


def _add_field(message: Any, package: str, number: int, text: str, oneofs: list[str]) -> None:
    declared, _, oneof = text.partition(" in ")
    *repeated, kind, name = declared.split()
    field = message.field.add(
        name=name, number=number, label=_F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
    )
    if kind in _KINDS:
        field.type = _KINDS[kind]
    else:
        field.type = _F.TYPE_ENUM if kind.startswith("=") else _F.TYPE_MESSAGE
        field.type_name = f".{package}.{kind.removeprefix('=')}"
    if oneof:
        if oneof not in oneofs:
            oneofs.append(oneof)
        field.oneof_index = oneofs.index(oneof)


_CLASSES = {
    1: _messages("prometheus", _V1)["WriteRequest"],
    2: _messages("io.prometheus.write.v2", _V2)["Request"],
}


def new_request(version: int) -> Any:
    """An empty message: `prometheus.WriteRequest` for 1, `io.prometheus.write.v2.Request` for 2."""
    return _CLASSES[version]()


def decode(version: int, body: bytes, bytes_max: int) -> Any:
    """The message of a body that takes at most `bytes_max` decompressed. Raises BadWriteRequestError.

    The message itself takes up to thirty times that in memory: an empty series is two bytes in the body.
    """
    content = decompressed(body, bytes_max)
    message = new_request(version)
    try:
        message.ParseFromString(content)
    except DecodeError:
        raise BadWriteRequestError(
            f"the body is not a protobuf message {message.DESCRIPTOR.full_name}; send it as Content-Type says"
        ) from None
    return message


def decompressed(body: bytes, bytes_max: int) -> bytes:
    """The content of one Snappy block. Raises BadWriteRequestError before it allocates more."""
    try:
        declared = cramjam.snappy.decompress_raw_len(body) if body else 0
        if declared > bytes_max:
            raise BadWriteRequestError(
                f"the body takes {declared} bytes decompressed, more than {bytes_max}: send smaller requests"
            )
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise BadWriteRequestError(
            "the body is not a Snappy block: compress it as Content-Encoding: snappy says (block format, not framed)"
        ) from None


def label_pairs(symbols: Sequence[str], refs: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Names and values of a version 2 series or exemplar. Raises BadWriteRequestError."""
    if len(refs) % 2:
        raise BadWriteRequestError(
            "labels_refs has an odd length: it must be pairs of name and value"
        )
    if any(ref >= len(symbols) for ref in refs):
        raise BadWriteRequestError(
            f"labels_refs names a symbol beyond the {len(symbols)} of symbols"
        )
    return (
        (symbols[name], symbols[value]) for name, value in zip(refs[::2], refs[1::2], strict=True)
    )
