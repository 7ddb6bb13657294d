"""Measures what a recording costs: bytes a row and CPU a second, as the format is and as it might have been.

python -m bench.recording [--minutes 10]
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import zstandard

from gpuwarden.models import model_named
from gpuwarden_agent.queue.encode import encode
from gpuwarden_agent.sampling.schedule import is_due
from gpuwarden_collector.ingest.decode import Decoded, decode
from gpuwarden_simulator import SimulatedNode
from gpuwarden_simulator.recordings.format import (
    RecordedProbe,
    RecordingHeader,
    Samples,
    decode_block,
    encode_block,
)
from gpuwarden_simulator.recordings.replay import Recording

FIRST_MS = 1_763_683_200_000
BLOCK_TICKS = 10


def arrow(block: Sequence[Samples]) -> bytes:
    """The block as an agent's batch."""
    tables: dict[str, list[dict[str, object]]] = {}
    for entry in block:
        stamp = {"ts": entry.ts_ms, "node": "n", "simulated": True}
        for table, rows in entry.rows.items():
            tables.setdefault(table, []).extend({**stamp, **row} for row in rows)
    return encode(tables)  # type: ignore[arg-type]


def zstd(block: Sequence[Samples]) -> bytes:
    """The block's lines under zstd."""
    lines = (json.dumps({"ts": e.ts_ms, "rows": e.rows}, separators=(",", ":")) for e in block)
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(
        "\n".join(lines).encode()
    )


def check(blocks: Sequence[Sequence[Samples]]) -> None:
    """Raise SystemExit for a form from which the rows of a block do not come back."""
    for block in blocks[:1]:
        rows = sum(len(several) for entry in block for several in entry.rows.values())
        lines = zstandard.ZstdDecompressor().decompress(zstd(block)).splitlines()
        decoded = decode(arrow(block), "zstd")
        found = {
            "gzip": decode_block(encode_block(block))[0] == tuple(block) and rows,
            "zstd": sum(len(several) for n in lines for several in json.loads(n)["rows"].values()),
            "Arrow": isinstance(decoded, Decoded) and decoded.rows,
        }
        if not rows or set(found.values()) != {rows}:
            raise SystemExit(f"rows of a block of {rows} that came back: {found}")


def measure(gpus: int, minutes: float) -> None:
    """Print what a node with so many GPUs costs in each form."""
    node = SimulatedNode("n", gpus, model_named("H100-SXM-80GB"), 1)
    entries, last_ms = [], None
    for tick in range(round(60 * minutes)):
        ts_ms = FIRST_MS + 1000 * tick
        due = {t for t, c in node.tables.items() if is_due(c, ts_ms, last_ms, 1000)}
        entries.append(Samples(ts_ms, "simulator", node.read(ts_ms, due)))
        last_ms = ts_ms
    rows = sum(len(several) for entry in entries for several in entry.rows.values())
    blocks = [entries[n : n + BLOCK_TICKS] for n in range(0, len(entries), BLOCK_TICKS)]
    print(f"{gpus} GPUs, {rows / len(entries):.1f} rows a second")
    forms: dict[str, Callable[[Sequence[Samples]], bytes]] = {
        "gzip (a recording)": encode_block,
        "zstd": zstd,
        "Arrow and zstd": arrow,
    }
    check(blocks)
    for name, encoded in forms.items():
        began = time.process_time()
        size = sum(len(encoded(block)) for block in blocks)
        cpu_ms = 1000 * (time.process_time() - began) / len(entries)
        day_mb = size / len(entries) * 86400 / 1e6
        print(
            f"  {name}: {size / rows:.0f} B a row, {day_mb:.0f} MB a day, {cpu_ms:.2f} ms CPU a second"
        )
    _open(node, blocks)


def _open(node: SimulatedNode, blocks: Sequence[Sequence[Samples]]) -> None:
    header = RecordingHeader(
        gpuwarden="", node="n", started_at="", interval_s=1.0, label="", has_identity=True,
        probes=(RecordedProbe("simulator", node.tables),),
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl.gz"
        parts = (encode_block(block, None if n else header) for n, block in enumerate(blocks))
        path.write_bytes(b"".join(parts))
        began = time.process_time()
        recording = Recording(path)
        took_s = time.process_time() - began
    if recording.length_ms != 1000 * sum(map(len, blocks)):
        raise SystemExit(f"the recording is {recording.length_ms} ms long")
    print(
        f"  opening for replay: {3.6e6 * took_s / recording.length_ms:.2f} s CPU an hour of recording"
    )


def main() -> None:
    """Measure a small and a usual node."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    for gpus in (1, 8):
        measure(gpus, minutes)


if __name__ == "__main__":
    main()
