"""The same samples as Prometheus's remote write sends them: protobuf, snappy, one request a batch."""

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
from bench.store.batches import Template

from gpuwarden.metrics import METRICS

PATH = "/api/v1/write"
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_LABELS = ("node", "gpu", "gpu_uuid", "link_type", "link", "device", "port", "pid")
_snappy = pa.Codec("snappy")


def varint(number: int) -> bytes:
    """A protobuf varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


@lru_cache(maxsize=500_000)
def _labels(metric: str, labels: tuple[tuple[str, str], ...]) -> bytes:
    pairs = (("__name__", metric), *labels)
    return b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode())) for name, value in pairs
    )


def body(template: Template, agent: int, shift_ms: int) -> bytes:
    """A WriteRequest of all metrics in the batch that are there."""
    series = (
        _field(1, content)
        for name, table in template.tables.items()
        for content in _series(name, table, agent, shift_ms)
    )
    packed: bytes = _snappy.compress(b"".join(series), asbytes=True)
    return packed


def _series(name: str, table: Any, agent: int, shift_ms: int) -> Iterator[bytes]:
    columns: Mapping[str, list[Any]] = table.to_pydict()
    stamps = [varint(ts + shift_ms) for ts in table["ts"].cast(pa.int64()).to_pylist()]
    rows_by_labels: dict[tuple[tuple[str, str], ...], list[int]] = {}
    named = [label for label in sorted(_LABELS) if label in columns]
    for row in range(table.num_rows):
        labels = tuple(
            (label, str(value).replace("############", f"{agent:012}"))
            for label in named
            if (value := columns[label][row]) is not None
        )
        rows_by_labels.setdefault(labels, []).append(row)
    for labels, rows in rows_by_labels.items():
        for metric in METRICS.get(name, ()):
            values = columns[metric.name]
            samples = [
                b"\x12"
                + varint(10 + len(stamps[row]))
                + b"\x09"
                + struct.pack("<d", values[row])
                + b"\x10"
                + stamps[row]
                for row in rows
                if values[row] is not None
            ]
            if samples:
                yield _labels(f"{name}_{metric.name}", labels) + b"".join(samples)
