"""The collector's counts are exposed as Prometheus reads them."""

from dataclasses import replace
from datetime import date, datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families

from gpuwarden_collector.ops.exposition import exposition
from gpuwarden_collector.stats import Levels, Stats
from gpuwarden_collector.storage.disk import Usage
from gpuwarden_collector.storage.lake_maintenance import Lake, Leaving
from gpuwarden_collector.storage.retention import LakeDay

LEVELS = Levels(
    queue_bytes=1, body_bytes_in_flight=2, database_bytes=3, is_alive=True, is_failing=False
)


def series(stats: Stats, levels: Levels = LEVELS) -> dict[tuple[str, ...], float]:
    """Name without prefix, and label values, to value; as Prometheus reads them."""
    families = list(text_string_to_metric_families(exposition(stats, levels).decode()))
    assert len({family.name for family in families}) == len(families)
    assert all(family.documentation and family.type != "unknown" for family in families)
    samples = [sample for family in families for sample in family.samples]
    found = {
        (s.name.removeprefix("gpuwarden_collector_"), *s.labels.values()): s.value for s in samples
    }
    assert len(found) == len(samples)
    return found


def test_histogram_buckets_are_cumulative_and_include_their_edge() -> None:
    stats = Stats()
    for seconds in (0.001, 0.002, 100.0):
        stats.commit_seconds.observe(seconds)
    found = series(stats)
    assert found["commit_seconds_bucket", "0.001"] == 1
    assert found["commit_seconds_bucket", "0.0025"] == 2
    assert found["commit_seconds_bucket", "+Inf"] == 3
    assert (found["commit_seconds_sum",], found["commit_seconds_count",]) == (100.003, 3)


def test_each_counter_and_level_is_exported_once() -> None:
    stats = Stats(batches=2, ingest_lag_seconds=1.5)
    stats.rows["gpu_samples"] += 16
    stats.refused["422"] += 1
    found = series(stats)
    assert found["batches_total",] == 2
    assert found["rows_total", "gpu_samples"] == 16
    assert found["refused_batches_total", "422"] == 1
    assert found["ingest_lag_seconds",] == 1.5
    assert (found["writer_alive",], found["store_failing",]) == (1, 0)


def test_the_lake_deleted_rows_and_free_space_are_exported() -> None:
    day = date(2026, 3, 1)
    parts = (
        LakeDay("gpu_samples", day, rows=10, bytes=100, files=2),
        LakeDay("gpu_samples", day + timedelta(days=1), rows=5, bytes=50),
    )
    stats = Stats(lake=Lake(parts, Leaving(held_bytes=7), datetime(2026, 3, 2)))  # noqa: DTZ001
    stats.dropped_rows["gpu_samples", "age"] += 3
    stats.faults.note("decode", ValueError("x"))
    found = series(stats, replace(LEVELS, disk=Usage(8, 9, 7), disk_refusal="full"))
    wanted = {
        ("dropped_rows_total", "age", "gpu_samples"): 3,
        ("lake_files", "gpu_samples"): 3,
        ("lake_rows", "gpu_samples"): 15,
        ("lake_bytes", "gpu_samples"): 150,
        ("lake_leaving_bytes",): 7,
        ("lake_oldest_timestamp_seconds", "gpu_samples"): 1772323200,
        ("disk_full",): 1,
        ("disk_free_bytes",): 8,
        ("disk_used_bytes",): 9,
        ("disk_spill_bytes",): 7,
        ("faults_total", "decode"): 1,
    }
    assert wanted.items() <= found.items()


def test_the_lag_is_absent_before_the_first_batch() -> None:
    assert ("ingest_lag_seconds",) not in series(Stats())
