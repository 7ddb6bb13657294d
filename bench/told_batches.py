"""Makes batches whose rows follow from agent and number, so that what a store owes after a kill can be told."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import zstandard

from gpuwarden.wire import CONTENT_TYPE, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS

ROWS = 20
"""Of a batch."""


@dataclass(frozen=True, slots=True)
class ToldBatches:
    """Those of all agents: the first of an agent has sequence 1."""

    since: datetime

    def rows(self, agent: int, sequence: int) -> list[dict[str, object]]:
        """Of a batch. Two agents in three send what is days old: days that are over are merged."""
        base = self.since - timedelta(days=agent % 3, seconds=3_600)
        return [
            {
                "ts": base + timedelta(milliseconds=10 * (sequence * ROWS + n)),
                "node": f"n{agent}",
                "gpu_uuid": f"GPU-{agent}",
                "simulated": True,
                "util_percent": float(sequence % 100),
            }
            for n in range(ROWS)
        ]

    def request(self, agent: int, sequence: int) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a batch."""
        schema = WIRE_SCHEMAS["gpu_samples"].with_metadata({TABLE_KEY: "gpu_samples"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(self.rows(agent, sequence), schema=schema))
        headers = headers_of(BatchId(f"agent-{agent}", "boot", sequence, 0))
        headers |= {"Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"}
        return zstandard.compress(bytes(sink.getvalue())), headers
