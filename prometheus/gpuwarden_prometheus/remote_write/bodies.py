"""Joins series to the bodies of requests, in both versions of remote write."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from gpuwarden_prometheus.remote_write.messages import METRIC_TYPES, compressed, new_request
from gpuwarden_prometheus.remote_write.samples import SAMPLE_BYTES, LabelSet, Series

SAMPLES_MAX = 5_000
"""Most samples of a request: a receiver that refuses one of them may refuse all."""
SERIES_MAX = 2_000
_SAMPLES_BYTES_MAX = SAMPLES_MAX * SAMPLE_BYTES


class BodyEncoder:
    """Makes bodies for one receiver; labels are encoded once for each series."""

    def __init__(self, version: int, kinds: Mapping[str, str]) -> None:
        """`kinds`: gauge or counter, by name of the metric."""
        self._version = version
        self._kinds = {name: METRIC_TYPES.index(kind.upper()) for name, kind in kinds.items()}

    def body(self, series: Iterable[Series]) -> bytes:
        """One body of all series."""
        if self._version == 1:
            return compressed(b"".join(self._first(series)))
        return compressed(self._second(series))

    def _first(self, series: Iterable[Series]) -> list[bytes]:
        parts: list[bytes] = []
        for labels, samples in series:
            encoded = labels.encoded or _encoded(labels)
            parts += (_head(len(encoded) + len(samples)), encoded, samples)
        return parts

    def _second(self, series: Iterable[Series]) -> bytes:
        symbols: dict[str, int] = {"": 0}
        parts = []
        for one in series:
            refs = b"".join(
                [_varint(symbols.setdefault(text, len(symbols))) for text in one.labels.texts]
            )
            kind = b"\x2a\x02\x08" + bytes([self._kinds.get(one.labels.name, 0)])
            size = len(refs) + len(one.samples) + len(kind)
            head = b"\x0a" + _varint(len(refs))
            parts += [b"\x2a", _varint(size + len(head)), head, refs, one.samples, kind]
        request = new_request(2)
        request.symbols.extend(symbols)
        return bytes(request.SerializeToString()) + b"".join(parts)


def _encoded(labels: LabelSet) -> bytes:
    message = new_request(1).timeseries.add()
    for name, value in zip(labels.texts[::2], labels.texts[1::2], strict=True):
        message.labels.add(name=name, value=value)
    labels.encoded = bytes(message.SerializeToString())
    return labels.encoded


@cache
def _head(size: int) -> bytes:
    """Tag and size of a series, of which there are few."""
    return b"\x0a" + _varint(size)


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _ONE_BYTE[number]
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_ONE_BYTE = [bytes([number]) for number in range(0x80)]


def requests_of(series: Iterable[Series]) -> Iterator[Sequence[Series]]:
    """Series in groups of at most SAMPLES_MAX samples, in order; a long series is divided."""
    group: list[Series] = []
    room = _SAMPLES_BYTES_MAX
    for one in series:
        size = len(one.samples)
        if size < room and len(group) < SERIES_MAX:
            group.append(one)
            room -= size
            continue
        start = 0
        while start < one.samples_count:
            if not room or len(group) >= SERIES_MAX:
                yield group
                group, room = [], _SAMPLES_BYTES_MAX
            end = min(one.samples_count, start + room // SAMPLE_BYTES)
            group.append(one.part(start, end))
            room -= (end - start) * SAMPLE_BYTES
            start = end
    if group:
        yield group
