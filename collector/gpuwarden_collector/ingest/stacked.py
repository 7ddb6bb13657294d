"""Reads record batches with the same layout together: stacks their bodies, and slices each column out of the stack.

Agents with the same GPUs send batches with the same number of rows and the same buffer positions, so their metadata
has the same bytes. To slice each column out of a hundred stacked bodies takes as long as pyarrow takes for three of
them. This module checks bounds only; the table is then checked like any other (`admit.checked`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.ingest.ipc_messages import Buffer, RecordBatch
from gpuwarden_collector.storage.schemas import ARROW_TYPES

_OFFSET_BYTES = 4
_TEXT_BYTES_MAX = 2**31 - 1
"""Largest 32 bit offset."""


@dataclass(frozen=True, slots=True)
class _Column:
    type: Type
    nulls: int
    validity: Buffer
    data: Buffer
    """Values; for texts, their offsets."""
    text: Buffer | None


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Positions of the columns of a table in the body of a record batch."""

    table: str
    rows: int
    body_bytes: int
    columns: tuple[_Column, ...]


def layout_of(table: str, batch: RecordBatch) -> Layout | None:
    """The layout of a record batch; None: it is not in the form that agents send.

    Each buffer lies within the body, after the buffer before it, and is large enough for the rows.
    """
    columns = WIRE_TABLES[table].columns
    every = [Buffer(0, 0), *batch.buffers, Buffer(batch.body_bytes, 0)]
    if (
        not batch.rows
        or len(batch.nodes) != len(columns)
        or any(node.rows != batch.rows for node in batch.nodes)
        or any(b.size < 0 or a.start + a.size > b.start for a, b in pairwise(every))
    ):
        return None
    left = iter(batch.buffers)
    parts = []
    for column, node in zip(columns, batch.nodes, strict=True):
        validity, data = next(left, None), next(left, None)
        text = next(left, None) if column.type is Type.STRING else None
        if validity is None or data is None or (text is None and column.type is Type.STRING):
            return None
        needs_validity = _bytes(batch.rows, 1) if node.nulls else 0
        if validity.size < needs_validity or data.size < _data_bytes(column.type, batch.rows):
            return None
        parts.append(_Column(column.type, node.nulls, validity, data, text))
    if next(left, None) is not None:
        return None
    return Layout(table, batch.rows, batch.body_bytes, tuple(parts))


def stacked(layout: Layout, bodies: Sequence[memoryview]) -> Any | None:
    """The rows of record batches of this layout, in their order, each column as one chunk.

    None: offsets of texts point outside their buffer.
    """
    stack = np.frombuffer(b"".join(bodies), np.uint8).reshape(len(bodies), layout.body_bytes)
    rows = layout.rows * len(bodies)
    columns = []
    for column in layout.columns:
        validity = _bits(stack, column.validity, layout.rows) if column.nulls else None
        if column.text is not None:
            texts = _texts(stack, column.data, column.text, layout.rows)
            if texts is None:
                return None
            buffers = [validity, *texts]
        elif column.type is Type.BOOL:
            buffers = [validity, _bits(stack, column.data, layout.rows)]
        else:
            buffers = [validity, _cut(stack, column.data, _data_bytes(column.type, layout.rows))]
        nulls = column.nulls * len(bodies)
        columns.append(pa.Array.from_buffers(ARROW_TYPES[column.type], rows, buffers, nulls))
    return pa.Table.from_arrays(columns, schema=WIRE_SCHEMAS[layout.table])


def _cut(stack: Any, buffer: Buffer, size: int) -> Any:
    """The first bytes of a buffer of each body, joined."""
    return pa.py_buffer(np.ascontiguousarray(stack[:, buffer.start : buffer.start + size]))


def _bits(stack: Any, buffer: Buffer, rows: int) -> Any:
    """As `_cut`, for rows of one bit: the bits of each body follow those of the body before."""
    size = _bytes(rows, 1)
    if rows % 8 == 0:
        return _cut(stack, buffer, size)
    bits = stack[:, buffer.start : buffer.start + size]
    bits = np.unpackbits(bits, axis=1, count=rows, bitorder="little")
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _texts(stack: Any, offsets: Buffer, text: Buffer, rows: int) -> tuple[Any, Any] | None:
    """Offsets into the joined texts of all bodies, and the texts. The offsets between the first and the last one of
    a body are not checked here."""
    size = _OFFSET_BYTES * (rows + 1)
    within = np.ascontiguousarray(stack[:, offsets.start : offsets.start + size]).view("<i4")
    sizes = within[:, -1].astype(np.int64)
    total = int(sizes.sum())
    if within[:, 0].any() or sizes.min() < 0 or sizes.max() > text.size or total > _TEXT_BYTES_MAX:
        return None
    begins = (np.cumsum(sizes) - sizes).astype(np.int32)
    moved = np.empty(len(stack) * rows + 1, "<i4")
    np.add(within[:, :-1], begins[:, None], out=moved[:-1].reshape(len(stack), rows))
    moved[-1] = total
    first = int(sizes[0])
    if (sizes == first).all():
        return pa.py_buffer(moved), _cut(stack, text, first)
    every = stack[:, text.start : text.start + text.size]
    pieces = [body[:used] for body, used in zip(every, sizes.tolist(), strict=True)]
    return pa.py_buffer(moved), pa.py_buffer(np.concatenate(pieces))


def _data_bytes(kind: Type, rows: int) -> int:
    if kind is Type.STRING:
        return _OFFSET_BYTES * (rows + 1)
    return _bytes(rows, ARROW_TYPES[kind].bit_width)


def _bytes(rows: int, bits: int) -> int:
    return (rows * bits + 7) // 8
