"""The collector's counts are exposed as Prometheus reads them."""

from dataclasses import replace
from datetime import date, datetime, timedelta

from gpuwarden_collector.ops.disk import Usage
from gpuwarden_collector.ops.metrics import Histogram, Levels, Stats, exposition
from gpuwarden_collector.storage.lake_maintenance import Lake, Leaving
from gpuwarden_collector.storage.retention import LakeDay

LEVELS = Levels(
    queue_bytes=1, body_bytes_in_flight=2, database_bytes=3, is_alive=True, is_failing=False
)


def test_histogram_buckets_are_cumulative_and_include_their_edge() -> None:
    histogram = Histogram()
    for seconds in (0.001, 0.002, 100.0):
        histogram.observe(seconds)
    lines = list(histogram.lines("x"))
    assert lines[0] == 'x_bucket{le="0.001"} 1'
    assert lines[1] == 'x_bucket{le="0.0025"} 2'
    assert lines[-3:] == ['x_bucket{le="+Inf"} 3', "x_sum 100.003", "x_count 3"]


def test_every_series_has_help_and_type_before_it_and_no_series_stands_twice() -> None:
    stats = Stats(batches=2, ingest_lag_seconds=1.5)
    stats.rows["gpu_samples"] += 16
    stats.refused["422"] += 1
    lines = exposition(stats, LEVELS).splitlines()
    assert 'gpuwarden_collector_rows_total{table="gpu_samples"} 16' in lines
    assert 'gpuwarden_collector_refused_batches_total{status="422"} 1' in lines
    assert "gpuwarden_collector_ingest_lag_seconds 1.5" in lines
    assert "gpuwarden_collector_writer_alive 1" in lines
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(typed)) == len(typed)
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(set(series)) == len(series)
    assert all(any(name.startswith(known) for known in typed) for name in series)


def test_what_is_kept_what_went_and_what_room_there_is() -> None:
    day = date(2026, 3, 1)
    parts = (
        LakeDay("gpu_samples", day, rows=10, bytes=100, files=2),
        LakeDay("gpu_samples", day + timedelta(days=1), rows=5, bytes=50),
    )
    stats = Stats(lake=Lake(parts, Leaving(held_bytes=7), datetime(2026, 3, 2)))  # noqa: DTZ001
    stats.dropped_rows["gpu_samples", "age"] += 3
    stats.faults.note("decode", ValueError("x"))
    lines = exposition(
        stats, replace(LEVELS, disk=Usage(8, 9, 7), disk_refusal="full")
    ).splitlines()
    prefix = "gpuwarden_collector_"
    for line in (
        'dropped_rows_total{table="gpu_samples",reason="age"} 3',
        'lake_files{table="gpu_samples"} 3',
        'lake_rows{table="gpu_samples"} 15',
        'lake_bytes{table="gpu_samples"} 150',
        "lake_leaving_bytes 7",
        'lake_oldest_timestamp_seconds{table="gpu_samples"} 1772323200.0',
        "disk_full 1",
        "disk_free_bytes 8",
        "disk_used_bytes 9",
        "disk_spill_bytes 7",
        'faults_total{doing="decode"} 1',
    ):
        assert prefix + line in lines


def test_the_lag_is_absent_before_the_first_batch() -> None:
    assert "ingest_lag" not in exposition(Stats(), LEVELS)
