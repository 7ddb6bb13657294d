"""Messages of remote write survive the way there and back, and a bad body gives one clear error."""

import math
import struct

import cramjam
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.remote_write import compressed, encode

from gpuwarden_prometheus.received.messages import (
    BadWriteRequestError,
    decode,
    label_pairs,
    new_request,
)

ROOM = 1 << 20
STALE_NAN_BITS = 0x7FF0000000000002
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_TIMES = st.integers(-(2**63), 2**63 - 1)
_SAMPLES = st.lists(st.tuples(st.floats(width=64), _TIMES), max_size=4)
_LABELS = st.lists(st.tuples(_TEXT, _TEXT), max_size=4)


def _first(series: list) -> object:
    request = new_request(1)
    for labels, samples in series:
        one = request.timeseries.add()
        for name, value in labels:
            one.labels.add(name=name, value=value)
        for value, at in samples:
            one.samples.add(value=value, timestamp=at)
        spans = [{"offset": -2, "length": 1}]
        one.histograms.add(
            count_int=0, schema=-4, positive_spans=spans, positive_deltas=[-3], timestamp=7
        )
        one.exemplars.add(labels=[{"name": "trace_id", "value": "a"}], value=1.5, timestamp=8)
    request.metadata.add(type=1, metric_family_name="m", help="what", unit="s")
    return request


def _second(series: list) -> object:
    request = new_request(2)
    symbols = {"": 0}
    for labels, samples in series:
        one = request.timeseries.add()
        for text in (text for label in labels for text in label):
            one.labels_refs.append(symbols.setdefault(text, len(symbols)))
        for value, at in samples:
            one.samples.add(value=value, timestamp=at, start_timestamp=3)
        one.metadata.type = 2
        one.histograms.add(zero_count_float=0.0, custom_values=[1.0, 2.0], start_timestamp=5)
    request.symbols.extend(symbols)
    return request


@given(st.lists(st.tuples(_LABELS, _SAMPLES), max_size=4))
def test_both_versions_survive_the_way_there_and_back(series) -> None:
    for version, message in ((1, _first(series)), (2, _second(series))):
        found = decode(version, encode(message), ROOM)
        # Bytes, because a NaN is not equal to itself.
        assert found.SerializeToString(deterministic=True) == message.SerializeToString(
            deterministic=True
        )
    assert [[*label_pairs(found.symbols, one.labels_refs)] for one in found.timeseries] == [
        labels for labels, _ in series
    ]


@given(st.lists(st.tuples(_LABELS, _SAMPLES), max_size=3), st.data())
def test_a_truncated_body_is_refused_or_is_a_shorter_message(series, data) -> None:
    body = encode(_first(series))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(BadWriteRequestError, match="Snappy block"):
        decode(1, body[:cut], ROOM)
    content = cramjam.snappy.decompress_raw(body)
    part = compressed(bytes(content)[: data.draw(st.integers(0, len(content)))])
    try:
        decode(1, part, ROOM)
    except BadWriteRequestError as error:
        assert "\n" not in str(error)


@settings(max_examples=100)
@given(st.binary(max_size=200), st.sampled_from([1, 2]), st.booleans())
@example(b"", 1, False)
@example(b"\xff" * 10, 1, False)
@example(b"\x0a\x02\x0a\xff", 1, True)
def test_any_bytes_are_a_message_or_one_clear_error(content, version, is_compressed) -> None:
    try:
        decode(version, compressed(content) if is_compressed else content, ROOM)
    except BadWriteRequestError as error:
        assert "\n" not in str(error)


def test_a_body_larger_than_the_limit_is_refused_by_its_declared_length() -> None:
    with pytest.raises(BadWriteRequestError, match="4294967295 bytes decompressed, more than 100"):
        decode(1, b"\xff\xff\xff\xff\x0f", 100)
    content = encode(_first([([("a", "b" * 300)], [])]))
    with pytest.raises(BadWriteRequestError, match="send smaller requests"):
        decode(1, content, 100)


def test_a_lie_about_the_length_is_refused_without_taking_the_memory() -> None:
    with pytest.raises(BadWriteRequestError, match="Snappy block"):
        decode(1, b"\xff\xff\xff\xff\x0f", 2**32)


def test_references_beyond_the_symbols_and_odd_ones_are_refused() -> None:
    assert [*label_pairs(["", "a", "b"], [1, 2])] == [("a", "b")]
    with pytest.raises(BadWriteRequestError, match="beyond the 2"):
        label_pairs(["", "a"], [1, 2])
    with pytest.raises(BadWriteRequestError, match="odd length"):
        label_pairs(["", "a"], [1])


def test_the_mark_of_an_ended_series_keeps_its_bits() -> None:
    (stale,) = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))
    found = decode(1, encode(_first([([], [(stale, 1), (math.nan, 2)])])), ROOM)
    bits = [
        struct.unpack("<Q", struct.pack("<d", one.value))[0] for one in found.timeseries[0].samples
    ]
    assert bits[0] == STALE_NAN_BITS
    assert bits[1] != STALE_NAN_BITS
