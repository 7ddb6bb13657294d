"""Readings of a job: none is made up, and its first minute is read too."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.job_phases import missing_readings, phases_of
from gpuwarden.job_readings import read_job_readings
from gpuwarden_rules.testing import MemoryDatabase

BEGIN = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def db() -> Iterator[MemoryDatabase]:
    made = MemoryDatabase()
    yield made
    made.close()


async def test_processes_without_counters_of_bytes_have_no_rate(db: MemoryDatabase) -> None:
    db.insert("process_samples", [
        {"ts": BEGIN + timedelta(seconds=at), "node": "n1", "gpu": 0, "gpu_uuid": "GPU-0", "pid": 7, "simulated": False,
         "job": "7", "main_cpu_percent": 50.0, "read_chars_total": read}
        for at, read in ((10, None), (20, None), (30, 1_000), (40, 5_000), (50, 2_000), (60, 8_000))
    ])  # fmt: skip
    found = (await read_job_readings(db, "7", ["GPU-0"], BEGIN, BEGIN + 2 * MINUTE)).readings
    # None before the counter is known, and none where it fell.
    assert [one.read_bytes_per_second for one in found] == [None, None, None, 400.0, None, 600.0]
    assert [one.write_bytes_per_second for one in found] == [None] * 6
    assert "what its processes wrote" in missing_readings(found)


async def test_a_job_that_begins_within_a_minute_is_read_from_there(db: MemoryDatabase) -> None:
    db.insert("gpu_1m", [
        {"ts": BEGIN + number * MINUTE, "node": "n1", "gpu": 0, "gpu_uuid": "GPU-0", "simulated": False, "samples": 60,
         "detail_samples": 0, "health_samples": 0, "util_percent_avg": 90.0, "util_percent_min": 80.0}
        for number in (-1, 0, 1)
    ])  # fmt: skip
    for length in (timedelta(hours=5), timedelta(days=5)):
        begin, end = BEGIN + timedelta(seconds=20), BEGIN + length
        found = (await read_job_readings(db, "8", ["GPU-0"], begin, end)).readings
        assert [one.begin for one in found] == [BEGIN, BEGIN + MINUTE]
        first = phases_of(found, begin, end, is_over=False)[0]
        assert (first.begin, first.end) == (begin, BEGIN + 2 * MINUTE)
