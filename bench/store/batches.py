"""Agents' batches: made once by the simulator and the agent's own encoder, then stamped for any
agent and time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard

from gpuwarden.metrics import METRICS
from gpuwarden.models import model_named
from gpuwarden.wire import ROWS_MAX, TABLE_KEY
from gpuwarden_agent.probe import Row
from gpuwarden_agent.queue.encode import encode
from gpuwarden_collector.ingest.ipc_messages import walk
from gpuwarden_simulator import SimulatedNode, default_workloads

GPUS = 8
BATCH_S = 5
MODEL = "H100-SXM-80GB"
_AGENT_MARK = b"############"
"""Is in node names and UUIDs where the number of the agent goes; unlikely in binary values."""
_EPOCH_MS = 1_760_000_000_000
"""Time of the first tick of templates."""


@dataclass(frozen=True)
class Template:
    """A batch of some agent at the beginning of time."""

    raw: bytes
    """The Arrow streams, not compressed."""

    @cached_property
    def tables(self) -> dict[str, Any]:
        """Its tables, as slices of `raw`."""
        buffer = pa.py_buffer(self.raw)
        streams = [
            pa.ipc.open_stream(buffer.slice(span.start, span.end - span.start)).read_all()
            for span in walk(self.raw, ROWS_MAX)
        ]
        return {table.schema.metadata[TABLE_KEY.encode()].decode(): table for table in streams}

    @cached_property
    def _stamps(self) -> list[tuple[int, int]]:
        """Offset and length of each `ts` column."""
        base = pa.py_buffer(self.raw).address
        columns = [table["ts"].chunk(0) for table in self.tables.values()]
        return [(column.buffers()[1].address - base, len(column)) for column in columns]

    @cached_property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.num_rows for table in self.tables.values())

    @cached_property
    def values(self) -> int:
        """Metrics that are there (not NULL), of all tables; identities and times are none."""
        return sum(
            table.num_rows - table[metric.name].null_count
            for name, table in self.tables.items()
            for metric in METRICS.get(name, ())
        )

    def stamped(self, agent: int, shift_ms: int) -> bytes:
        """The body of this batch as of that agent, so much later."""
        raw = self.stamped_raw(agent, shift_ms)
        return zstandard.ZstdCompressor(3, write_checksum=True).compress(raw)

    def stamped_raw(self, agent: int, shift_ms: int) -> bytearray:
        """Like `stamped`, not compressed."""
        raw = bytearray(self.raw.replace(_AGENT_MARK, b"%012d" % agent))
        for offset, rows in self._stamps:
            stamps = np.frombuffer(raw, "<i8", rows, offset)
            stamps += shift_ms
        return raw


@dataclass(frozen=True)
class Fleet:
    """Batches of a few simulated nodes, which any number of agents take turns to send."""

    templates: Sequence[Sequence[Template]]
    """For each node, its batches in the order of time."""
    batch_s: int = BATCH_S
    """Seconds of samples in a batch."""

    @property
    def rounds(self) -> int:
        """Batches until a node's readings begin again."""
        return len(self.templates[0])

    def template(self, agent: int, number: int) -> Template:
        """The batch of that number (from 0) of an agent."""
        return self.templates[agent % len(self.templates)][number % self.rounds]

    def shift_ms(self, number: int, begin_ms: int) -> int:
        """How much later the batch of that number is in a history that begins at `begin_ms`."""
        return begin_ms - _EPOCH_MS + number // self.rounds * self.rounds * self.batch_s * 1000


def simulated(nodes: int, rounds: int, batch_s: int = BATCH_S) -> Fleet:
    """Batches of this number of nodes, each with this number, of `batch_s` seconds."""
    return Fleet([list(_history(number, rounds, batch_s)) for number in range(nodes)], batch_s)


def _history(number: int, rounds: int, batch_s: int) -> Iterator[Template]:
    seed = 1000 + number
    node = SimulatedNode(
        f"bench-{number}", GPUS, model_named(MODEL), seed, default_workloads(GPUS, seed)
    )
    renamed: dict[str, str] = {}
    for first_s in range(0, rounds * batch_s, batch_s):
        batch: dict[str, list[Row]] = {}
        for second in range(first_s, first_s + batch_s):
            ts_ms = _EPOCH_MS + 1000 * second
            due = {table for table, every_s in node.tables.items() if second % every_s == 0}
            for table, rows in node.read(ts_ms, due).items():
                batch.setdefault(table, []).extend(_named(row, ts_ms, renamed) for row in rows)
        yield Template(zstandard.decompress(encode(batch)))


def _named(row: Row, ts_ms: int, renamed: dict[str, str]) -> Row:
    """The row with names in which the agent's number can be changed in place."""
    mark = _AGENT_MARK.decode()
    named: Row = {**row, "node": f"node-{mark}", "simulated": True, "ts": ts_ms}
    if isinstance(uuid := row.get("gpu_uuid"), str):
        known = renamed.setdefault(uuid, f"GPU-{len(renamed):08x}-4c5d-4e6f-8a7b-{mark}")
        named["gpu_uuid"] = known
    return named
