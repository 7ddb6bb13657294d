"""Bodies read as one: the same rows as one by one, and nothing unusual among them."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden.wire import ROWS_MAX, TABLE_KEY
from gpuwarden_agent.queue.encode import encode
from gpuwarden_collector.ingest import coalesce as together
from gpuwarden_collector.ingest.coalesce import (
    PLAIN_BYTES_MAX,
    CoalescedStreams,
    KnownSchemas,
    SchemaPrefix,
    Source,
    Stream,
    plain_streams,
)
from gpuwarden_collector.ingest.decode import decode_content
from gpuwarden_collector.ingest.ipc_messages import decompress, walk
from gpuwarden_collector.ingest.stacked import Layout
from gpuwarden_simulator import SimulatedNode

TS_MS = 1_772_366_400_000


def agent_body(seed: int) -> bytes:
    """What an agent with two simulated GPUs sends in a second, not compressed."""
    node = SimulatedNode(f"n{seed}", 2, model_named("H100-SXM-80GB"), seed)
    stamp = {"node": f"n{seed}", "simulated": True, "ts": TS_MS}
    rows = {name: [{**row, **stamp} for row in r] for name, r in node.read(TS_MS).items()}
    return decompress(encode(rows), 2**20)


BODIES = [agent_body(seed) for seed in range(3)]


def learned(*contents: bytes, seen: int = 0) -> KnownSchemas:
    """KnownSchemas of contents that were met this number of times."""
    schemas = KnownSchemas()
    for content in contents:
        schemas.learn(content)
        for _ in range(seen):
            plain_streams(content, schemas)
    return schemas


SEEN = st.sampled_from([0, 20])
"""Layouts that are new, and layouts whose batches are stacked."""


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(BODIES), min_size=1, max_size=20), SEEN)
def test_read_as_one_or_one_by_one_gives_the_same_rows(contents: list[bytes], seen: int) -> None:
    schemas = learned(BODIES[0], seen=seen)
    joined = CoalescedStreams()
    read: list[tuple[Stream, Any]] = []
    alone: dict[Source, list[Any]] = {}
    for content in contents:
        streams = plain_streams(content, schemas)
        assert streams is not None, "what an agent makes must not take the long way"
        joined.add(content, streams)
        decoded = decode_content(content)
        assert {s.table: s.rows for s in streams} == {
            name: part.rows for name, part in decoded.parts.items()
        }
        read += [(stream, decoded.tables[stream.table]) for stream in streams]
    for stream, its_rows in read:
        alone.setdefault(joined.source_of(stream), []).append(its_rows)
    tables = joined.read()
    assert tables is not None
    assert set(tables) == set(alone)
    for source, table in tables.items():
        assert table.equals(pa.concat_tables(alone[source]))


def test_nothing_is_plain_before_its_schema_was_learned() -> None:
    assert plain_streams(BODIES[0], KnownSchemas()) is None


def test_only_the_catalogues_own_schema_is_learned(wire: Any) -> None:
    fewer = wire.table("gpu_samples", [wire.gpu_row()]).drop_columns(["util_percent"])
    content = wire.written(fewer, "gpu_samples")
    assert plain_streams(content, learned(content)) is None


def test_the_number_of_known_schemas_is_bounded(wire: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(together, "_SCHEMAS_MAX", 2)
    contents = []
    for number in range(3):
        table = wire.table("gpu_samples", [wire.gpu_row()])
        metadata = {TABLE_KEY: "gpu_samples", "n": str(number)}
        contents.append(wire.written(table.replace_schema_metadata(metadata)))
    schemas = learned(*contents)
    assert [plain_streams(c, schemas) is not None for c in contents] == [True, True, False]


@pytest.mark.parametrize("cut", [1, 8, 9, 100])
def test_a_body_that_is_cut_off_is_not_plain(cut: int) -> None:
    assert plain_streams(BODIES[0][:-cut], learned(BODIES[0])) is None


@settings(max_examples=80, deadline=None)
@given(st.data(), SEEN)
def test_damage_never_changes_the_rows_of_others(data: st.DataObject, seen: int) -> None:
    """A damaged body is left out, or makes the whole unreadable; it never shifts another's rows."""
    schemas = learned(BODIES[0], seen=seen)
    damaged = bytearray(BODIES[1])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    streams = plain_streams(bytes(damaged), schemas)
    if streams is None:
        return
    joined = CoalescedStreams()
    before, after = plain_streams(BODIES[0], schemas), plain_streams(BODIES[2], schemas)
    assert before and after
    joined.add(BODIES[0], before)
    joined.add(bytes(damaged), streams)
    joined.add(BODIES[2], after)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "_STACKED_MIN", 1)
        _see_neighbours(joined, before, after)


def _see_neighbours(joined: CoalescedStreams, before: list[Stream], after: list[Stream]) -> None:
    tables = joined.read()
    if tables is None:
        return
    for content, its_streams, is_last in ((BODIES[0], before, False), (BODIES[2], after, True)):
        tables_alone = decode_content(content).tables
        for stream in its_streams:
            whole = tables[joined.source_of(stream)]
            start = whole.num_rows - stream.rows if is_last else 0
            assert whole.slice(start, stream.rows).equals(tables_alone[stream.table])


def test_more_rows_than_there_are_bytes_for_are_not_plain(wire: Any) -> None:
    """Columns on top of each other, say: a small body would become large once it is copied."""
    honest = wire.stream("gpu_samples", wire.gpu_rows(1, range(77)))
    schemas = learned(honest)
    assert plain_streams(honest, schemas) is not None
    said, claimed = ((rows).to_bytes(8, "little") for rows in (77, 7_700))
    claims = [
        honest[:at] + claimed + honest[at + 8 :]
        for at in range(len(honest) - 8)
        if honest[at : at + 8] == said
    ]
    larger = [content for content in claims if walk(content, ROWS_MAX)[0].rows == 7_700]
    assert larger
    assert not any(plain_streams(content, schemas) for content in larger)


def test_large_bodies_are_not_plain(wire: Any) -> None:
    row = wire.gpu_row()
    content = wire.stream("gpu_samples", [row] * (PLAIN_BYTES_MAX // 100))
    assert plain_streams(content, learned(content)) is None


@pytest.mark.parametrize(("bodies", "source"), [(5, SchemaPrefix), (6, Layout)])
def test_batches_of_a_layout_are_stacked_when_there_are_enough(bodies: int, source: Any) -> None:
    schemas = learned(BODIES[0], seen=4)
    joined = CoalescedStreams()
    streams = plain_streams(BODIES[0], schemas)
    assert streams
    for _ in range(bodies):
        joined.add(BODIES[0], streams)
    assert {type(joined.source_of(stream)) for stream in streams} == {source}


def test_a_layout_is_used_after_it_was_seen_a_few_times() -> None:
    schemas = learned(BODIES[0])
    kinds = []
    for _ in range(8):
        streams = plain_streams(BODIES[0], schemas)
        assert streams
        kinds.append({stream.layout is not None for stream in streams})
    assert kinds == [{False}] * 4 + [{True}] * 4


def test_the_number_of_known_layouts_is_bounded(wire: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(together, "_LAYOUTS_MAX", 2)
    contents = [wire.stream("gpu_samples", wire.gpu_rows(1, range(n))) for n in (1, 2, 3)]
    schemas = learned(*contents)
    for _ in range(8):
        found = [plain_streams(content, schemas) for content in contents]
        assert [streams[0].layout for streams in found if streams] == [None] * 3
