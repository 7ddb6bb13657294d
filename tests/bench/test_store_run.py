"""The store's benchmark, end to end with tiny numbers, and the parts that its figures rest on."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from bench.store import ours
from bench.store.batches import BATCH_S, GPUS, Fleet, simulated

from gpuwarden_collector.ingest.decode import Decoded, decode
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return simulated(nodes=1, rounds=2)


def test_a_stamped_batch_is_one_that_the_collector_takes(fleet: Fleet) -> None:
    template = fleet.template(0, 0)
    decoded = decode(template.stamped(agent=42, shift_ms=1_000), "zstd")
    assert isinstance(decoded, Decoded)
    samples = decoded.tables["gpu_samples"]
    assert samples.num_rows == GPUS * BATCH_S
    assert set(samples["node"].to_pylist()) == {"node-000000000042"}
    assert len(set(samples["gpu_uuid"].to_pylist())) == GPUS
    before = template.tables["gpu_samples"]
    moved = pa.compute.subtract(samples["ts"].cast("int64"), before["ts"].cast("int64"))
    assert set(moved.to_pylist()) == {1_000}
    assert samples["power_watts"].equals(before["power_watts"])
    assert decoded.rows == template.rows


def test_a_filled_store_holds_sealed_rows_that_can_be_queried(tmp_path: Path) -> None:
    figures = ours.fill(tmp_path, 2_000, 16, datetime.fromisoformat("2026-01-01"), memory="512MiB")
    assert figures["rows"] == 2_000
    assert 0 < figures["bytes_per_value"] < 8
    database = Database.open(tmp_path, EngineLimits(memory="512MiB", threads=1))
    with database.reading() as cursor:
        counted = cursor.execute(
            "SELECT count(*), count(DISTINCT gpu_uuid), count(DISTINCT ts) FROM gpu_samples"
        ).fetchone()
    database.close()
    assert counted == (2_000, 16, 125)


@pytest.mark.slow
def test_a_tiny_run_prints_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.store.run", "--tiny"],
        capture_output=True, text=True, timeout=400, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = dict(line.rsplit(None, 1) for line in done.stdout.splitlines() if line)
    assert figures["refused"] == "{}"
    for name in ("values_per_s", "bytes_per_value", "full scan, sealed, ms"):
        assert float(figures[name].replace(",", "")) > 0
