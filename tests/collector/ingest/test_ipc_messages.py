"""Bodies come apart within bounds, whatever they claim to be."""

import struct
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.ingest.ipc_messages import (
    FRAMES_MAX,
    MESSAGES_MAX,
    BodyError,
    MessageSpan,
    decompress,
    walk,
)


def stream_of(rows: int, batches: int = 1, **options: Any) -> bytes:
    batch = pa.record_batch({"a": pa.array(range(rows), pa.int64()), "s": ["x"] * rows})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, **options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return bytes(sink.getvalue())


@given(st.lists(st.binary(max_size=3000), max_size=5), st.integers(1, 19))
def test_frames_one_after_another_decompress_to_all_contents(
    parts: list[bytes], level: int
) -> None:
    body = b"".join(zstandard.compress(part, level) for part in parts)
    assert decompress(body, 20_000) == b"".join(parts)


@given(st.binary(min_size=1, max_size=500), st.data())
def test_a_frame_that_is_cut_off_is_refused(content: bytes, data: st.DataObject) -> None:
    body = zstandard.compress(content)
    cut = data.draw(st.integers(1, len(body) - 1))
    with pytest.raises(BodyError, match="cut off|damaged"):
        decompress(body[:cut], 10_000)


def test_trailing_garbage_after_a_frame_is_refused() -> None:
    with pytest.raises(BodyError, match="zstd frame 2 is damaged"):
        decompress(zstandard.compress(b"x") + b"garbage", 1000)


def test_a_bomb_stops_at_the_limit() -> None:
    bomb = zstandard.compress(bytes(200_000_000))
    assert len(bomb) < 20_000
    with pytest.raises(BodyError) as refused:
        decompress(bomb, 1_000_000)
    assert refused.value.status == 413


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    big = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = big.compress(bytes(1000)) + big.flush()
    with pytest.raises(BodyError, match="damaged"):
        decompress(body, 1_000_000)


def test_too_many_frames_are_refused() -> None:
    with pytest.raises(BodyError, match="more than"):
        decompress(zstandard.compress(b"") * (FRAMES_MAX + 1), 1000)


def test_streams_are_found_end_to_end() -> None:
    first, second = stream_of(3), stream_of(5, batches=2)
    assert walk(first + second, 100) == [
        MessageSpan(0, len(first), 3),
        MessageSpan(len(first), len(first) + len(second), 10),
    ]


@given(st.data())
def test_a_stream_cut_off_anywhere_is_refused(data: st.DataObject) -> None:
    body = stream_of(4, batches=2)
    cut = data.draw(st.integers(1, len(body) - 1))
    with pytest.raises(BodyError) as refused:
        walk(body[:cut], 100)
    assert refused.value.status == 400


@given(st.binary(min_size=1, max_size=300))
def test_bytes_that_are_no_stream_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        walk(body, 100)


@given(st.data())
def test_damaged_metadata_never_raises_anything_else(data: st.DataObject) -> None:
    body = bytearray(stream_of(4))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        spans = walk(bytes(body), 100)
    except BodyError:
        return
    assert spans[-1].end == len(body)


def test_rows_are_counted_over_all_streams() -> None:
    with pytest.raises(BodyError) as refused:
        walk(stream_of(60) + stream_of(60), 100)
    assert refused.value.status == 413


def test_rows_that_a_batch_claims_without_having_them_are_counted() -> None:
    empty = pa.record_batch({"a": pa.nulls(10_000_000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, empty.schema) as writer:
        writer.write_batch(empty)
    with pytest.raises(BodyError, match="more than 100 rows"):
        walk(bytes(sink.getvalue()), 100)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_refused_before_anything_is_allocated(codec: str) -> None:
    body = stream_of(2000, options=pa.ipc.IpcWriteOptions(compression=codec))
    with pytest.raises(BodyError, match="compressed buffers"):
        walk(body, 100_000)


def test_too_many_messages_are_refused() -> None:
    with pytest.raises(BodyError, match=f"more than {MESSAGES_MAX} IPC messages"):
        walk(stream_of(0, batches=MESSAGES_MAX), 100)


def test_a_record_batch_before_a_schema_is_refused() -> None:
    body = stream_of(1)
    size = 8 + struct.unpack_from("<i", body, 4)[0]
    with pytest.raises(BodyError, match="comes before a schema"):
        walk(body[size:], 100)


def test_a_stream_without_its_end_marker_is_refused() -> None:
    with pytest.raises(BodyError, match="second schema"):
        walk(stream_of(1)[:-8] + stream_of(1), 100)
