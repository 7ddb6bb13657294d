"""Bodies of one layout cut as one: the rows that pyarrow reads of each, or nothing."""

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.ingest.ipc_messages import Buffer, Node, RecordBatch, record_batch
from gpuwarden_collector.ingest.stacked import Layout, layout_of, stacked

TABLE = "process_samples"
"""It has columns of every kind."""
SCHEMA = WIRE_SCHEMAS[TABLE]


def message(table: Any) -> tuple[bytes, memoryview]:
    """Metadata and body of a table's only record batch."""
    [batch] = table.combine_chunks().to_batches()
    raw = batch.serialize().to_pybytes()
    size = int.from_bytes(raw[4:8], "little")
    return raw[8 : 8 + size], memoryview(raw)[8 + size :]


def layout(table: Any) -> Layout:
    batch = record_batch(message(table)[0])
    assert batch
    found = layout_of(TABLE, batch)
    assert found, "what pyarrow writes must be a layout"
    return found


_TEXTS = ("", "a", "abcdef", "é", "\U0001f600", "\x00")


def value_of(kind: Any, random: Random) -> Any:
    if pa.types.is_string(kind):
        return "".join(random.choices(_TEXTS, k=random.randint(0, 3)))
    if pa.types.is_boolean(kind):
        return random.random() < 0.5
    if pa.types.is_floating(kind):
        return random.choice((0.0, -0.0, 1.5, float("inf"), random.uniform(-1e6, 1e6)))
    return random.randint(-(2**14), 2**14)


def some_rows(is_null: list[list[bool]], random: Random) -> Any:
    """A table whose columns are NULL where that is said."""
    columns = [
        pa.array([None if null else value_of(field.type, random) for null in nulls], field.type)
        for field, nulls in zip(SCHEMA, is_null, strict=True)
    ]
    return pa.table(columns, schema=SCHEMA)


# Values are made from seeds: hypothesis cannot draw each value of a table this wide.
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 17), st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
def test_stacked_bodies_are_the_rows_of_each(rows: int, seeds: list[int]) -> None:
    nulls = Random(seeds[0])
    is_null = [[nulls.random() < 0.3 for _ in range(rows)] for _ in SCHEMA]
    drawn = [some_rows(is_null, Random(seed)) for seed in seeds]
    found = layout(drawn[0])
    alike = [t for t in drawn if message(t)[0] == message(drawn[0])[0]]
    table = stacked(found, [message(t)[1] for t in alike])
    table.validate(full=True)
    assert table.equals(pa.concat_tables(alike))


def some_table(*names: str) -> Any:
    row = {field.name: None for field in SCHEMA}
    return pa.Table.from_pylist([{**row, "node": name, "username": name} for name in names], SCHEMA)


def test_texts_of_other_lengths_in_buffers_of_one_size() -> None:
    """Padding hides that texts differ in length: the metadata is the same."""
    every = [some_table("ab", "c"), some_table("", "defgh"), some_table("i", "")]
    found = layout(every[0])
    bodies = [message(t)[1] for t in every]
    assert len({len(body) for body in bodies}) == 1
    widest = replace(
        found,
        columns=tuple(replace(c, text=c.text and Buffer(c.text.start, 8)) for c in found.columns),
    )
    assert stacked(widest, bodies).equals(pa.concat_tables(every))


def honest() -> RecordBatch:
    batch = record_batch(message(some_table("a", "b", "c"))[0])
    assert batch
    return batch


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b: replace(b, rows=4),
        lambda b: replace(b, rows=0, nodes=tuple(Node(0, 0) for _ in b.nodes)),
        lambda b: replace(b, nodes=b.nodes[:-1]),
        lambda b: replace(b, nodes=(Node(4, 0), *b.nodes[1:])),
        lambda b: replace(b, buffers=b.buffers[:-1]),
        lambda b: replace(b, buffers=(*b.buffers, Buffer(b.body_bytes, 0))),
        lambda b: replace(b, buffers=(Buffer(-8, 8), *b.buffers[1:])),
        lambda b: replace(b, buffers=tuple(Buffer(0, 64) for _ in b.buffers)),
        lambda b: replace(b, buffers=(*b.buffers[:-1], Buffer(b.body_bytes, 8))),
        lambda b: replace(b, buffers=tuple(Buffer(x.start, 0) for x in b.buffers)),
        lambda b: replace(b, body_bytes=8),
    ],
)
def test_metadata_in_another_form_than_agents_send_has_no_layout(wrong: Any) -> None:
    assert layout_of(TABLE, honest())
    assert layout_of(TABLE, wrong(honest())) is None
