"""The file format: what goes in comes out, and a file that was cut or damaged is good up to there."""

import gzip
import io
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_simulator.recordings.format import (
    Described,
    Ended,
    Entry,
    Failure,
    RecordedProbe,
    RecordingError,
    RecordingHeader,
    Samples,
    decode_block,
    encode_block,
    entries_of,
    read_blocks,
)

HEADER = RecordingHeader(
    gpuwarden="0.1.0",
    node="gpu17",
    started_at="2026-01-01T00:00:00Z",
    interval_s=1.0,
    label="a trial",
    has_identity=True,
    probes=(RecordedProbe("gpu0", {"gpu_samples": 1}, "GPU-1"), RecordedProbe("host", {}, None)),
)

instants = st.integers(0, 2**53 - 1)
texts = st.text(max_size=20)
cells = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=20),  # lone surrogates too: names of files are bytes
)
rows = st.dictionaries(texts, st.lists(st.dictionaries(texts, cells, max_size=4), max_size=3), max_size=3)  # fmt: skip
entries = st.one_of(
    st.builds(Samples, instants, texts, rows),
    st.builds(Described, instants, texts, rows),
    st.builds(Failure, instants, texts, texts, texts),
    st.builds(Ended, instants, st.integers(0, 10**9), st.integers(0, 10**9)),
)
headers = st.builds(
    RecordingHeader,
    gpuwarden=texts,
    node=texts,
    started_at=texts,
    interval_s=st.floats(0.001, 3600),
    label=texts,
    has_identity=st.booleans(),
    probes=st.lists(
        st.builds(
            RecordedProbe,
            texts,
            st.dictionaries(texts, st.integers(1, 3600), max_size=3),
            st.none() | texts,
        ),
        max_size=3,
    ).map(tuple),
)


@given(st.lists(entries, max_size=5), st.none() | headers)
def test_what_goes_in_comes_out(several: list[Entry], header: RecordingHeader | None) -> None:
    assert decode_block(encode_block(several, header)) == (tuple(several), header)


@given(st.lists(st.lists(entries, max_size=3), min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_a_file_cut_anywhere_has_its_whole_blocks(several, data) -> None:
    blocks = [encode_block(e, HEADER if n == 0 else None) for n, e in enumerate(several)]
    whole = b"".join(blocks)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [sum(map(len, blocks[: n + 1])) for n in range(len(blocks))]
    expected = [tuple(e) for e, end in zip(several, ends, strict=True) if end <= cut]
    if not expected:
        with pytest.raises(RecordingError, match="no whole block"):
            list(read_blocks(io.BytesIO(whole[:cut]), "f"))
        return
    read = list(read_blocks(io.BytesIO(whole[:cut]), "f"))
    assert [block.entries for block in read] == expected
    assert [block.offset + block.size_bytes for block in read] == ends[: len(expected)]
    assert read[0].header == HEADER


@given(st.data())
@settings(max_examples=60)
def test_a_damaged_byte_costs_its_block_and_what_follows(data) -> None:
    several = [[Samples(n, "host", {"host_samples": [{"load_1m": n / 7}]})] for n in range(3)]
    blocks = [encode_block(e, HEADER if n == 0 else None) for n, e in enumerate(several)]
    whole = bytearray(b"".join(blocks))
    # Past the ten bytes of a gzip header, of which some mean nothing.
    at = data.draw(st.integers(len(blocks[0]) + 10, len(whole) - len(blocks[2]) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    read = list(read_blocks(io.BytesIO(bytes(whole)), "f"))
    # Some bits of gzip mean nothing: the padding behind the last symbol.
    left = [block.entries for block in read]
    assert left in ([tuple(several[0])], [tuple(entries) for entries in several])


@given(st.binary(max_size=200))
def test_rubbish_is_refused_with_the_name_of_the_file(rubbish: bytes) -> None:
    for content in (rubbish, gzip.compress(rubbish)):
        with pytest.raises(RecordingError, match=r"some\.file"):
            list(read_blocks(io.BytesIO(content), "some.file"))


def line(**what) -> bytes:
    return json.dumps(what).encode() + b"\n"


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (line(format="other"), "it is a 'other'"),
        (
            line(format="gpuwarden-recording", version=2),
            "a recording of version 2; this .* reads 1",
        ),
        (line(ts=1, ended=True, ticks=1, missed=0), "its first line is not a header"),
        (line(ts=-1, probe="host", rows={}), "ts = -1"),
        (line(ts=True, probe="host", rows={}), "ts = True"),
        (line(ts=1, probe="host", rows={"t": {}}), "t is not a list of rows"),
        (line(ts=1, probe="host", rows={"t": [{"a": [1]}]}), "a row of t is not flat"),
        (b'{"ts":1,"probe":"host","rows":{"t":[{"a":NaN}]}}', "NaN is not JSON"),
        (line(ts=1, probe="host"), "not an entry"),
        (b"[1]\n", "not an entry"),
        (b"[" * 100_000, "not an entry"),
        (line(format="gpuwarden-recording", version=1, interval_s=0), "interval_s = 0"),
    ],
)
def test_a_file_that_is_no_recording_says_why(tmp_path: Path, first: bytes, says: str) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress(first))
    with pytest.raises(RecordingError, match=says):
        list(entries_of(path))


def test_nothing_is_written_for_what_json_cannot_say() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_block([Samples(1, "host", {"host_samples": [{"load_1m": float("nan")}]})])


def test_a_stranger_reads_it_with_what_every_machine_has(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    first = encode_block([Samples(1000, "gpu0", {"gpu_samples": [{"gpu": 0}]})], HEADER)
    path.write_bytes(first + encode_block([Ended(1000, 1, 0)]))
    text = subprocess.run(["gzip", "-dc", path], capture_output=True, check=True).stdout
    with gzip.open(path) as file:
        assert file.read() == text
    lines = [json.loads(part) for part in text.splitlines()]
    assert lines[0]["format"] == "gpuwarden-recording"
    assert lines[1:] == [
        {"ts": 1000, "probe": "gpu0", "rows": {"gpu_samples": [{"gpu": 0}]}},
        {"ts": 1000, "ended": True, "ticks": 1, "missed": 0},
    ]
