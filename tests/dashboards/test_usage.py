"""Pages of jobs and users say what is known of them, over any time."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.job import JobPages
from gpuwarden_dashboards.pages.usage import UsagePages, UsageRange
from gpuwarden_dashboards.read.job import read_job
from gpuwarden_dashboards.read.subject import read_extent, read_subject
from gpuwarden_dashboards.read.usage import SORTS
from gpuwarden_dashboards.templates import Templates

NOW = datetime(2026, 3, 2, 12, 30, tzinfo=UTC)
BEGIN = NOW - timedelta(days=1)
WEEK = UsageRange(BEGIN, NOW, "7d")
PAGES = UsagePages(Templates(load_assets()), None, SystemClock())
JOBS = JobPages(Templates(load_assets()), None, SystemClock())


@pytest.fixture
def used(querier):
    """Two jobs of alice, one of bob that has no price, an hour nobody used."""
    rows = [
        ("productive", "n1", 0, "alice", "7", 3600, 3.0),
        ("idle_held", "n1", 0, "alice", "7", 1800, 1.5),
        ("throttled", "n1", 1, "alice", "8", 900, 0.75),
        ("productive", "n2", 0, "bob", "9", 7200, None),
        ("free", "n2", 1, None, None, 3600, 3.0),
    ]
    for category, node, gpu, user, job, seconds, usd in rows:
        querier.db.execute(
            "INSERT INTO waste_1h (ts, category, node, gpu, gpu_uuid, username, job, simulated,"
            " seconds, usd) VALUES (?, ?, ?, ?, ?, ?, ?, false, ?, ?)",
            [
                (NOW - timedelta(hours=2)).replace(tzinfo=None),
                category, node, gpu, f"GPU-{node}-{gpu}", user, job, seconds, usd,
            ],
        )  # fmt: skip
    return querier


async def test_jobs_are_sorted_by_any_of_the_columns(used) -> None:
    names = {}
    for sort in ("name", *SORTS):
        user = await read_subject(used, "username", "alice", BEGIN, NOW, sort)
        assert user is not None
        names[sort] = [one.name for one in user.jobs]
    assert names["name"] == names["usd"] == names["gpu_hours"] == names["used"] == ["7", "8"]
    assert names["wasted_share"] == ["8", "7"]


async def test_a_job_is_told_with_its_gpus_verdict_and_cost(used) -> None:
    for minute in (0, 40):
        used.db.execute(
            "INSERT INTO process_1m (ts, node, gpu, gpu_uuid, pid, simulated, samples, username,"
            " job) VALUES (?, 'n1', 0, 'GPU-n1-0', 5, false, 6, 'alice', '7')",
            [(NOW - timedelta(hours=2) + timedelta(minutes=minute)).replace(tzinfo=None)],
        )
    at = (NOW - timedelta(hours=1)).replace(tzinfo=None)
    used.db.execute(
        "INSERT INTO diagnoses (subject, kind, bottleneck, confidence, summary, advice, evidence, misses,"
        " job, username, gpus, usd_per_hour, node, began_at, seen_at, simulated) SELECT s, k, 'loader_workers', 1,"
        " 'Waits for data.', 'More workers.', $2, '[\"prefetch: batches come evenly\"]', '7', 'alice', 1, 2.5, 'n1',"
        " $1, $1, false FROM (VALUES ('job 7', 'job'), ('GPU-n1-0', 'gpu')) v(s, k)",
        [at, '[{"value": 0.3, "threshold": 0.2, "text": "time without work: 30 % (from 20 %)"}]'],
    )
    used.db.execute(
        "INSERT INTO gpu_1m (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples, health_samples,"
        " util_percent_avg, energy_joules_delta) VALUES (?, 'n1', 0, 'GPU-n1-0', false, 60, 0, 0, 55, 3.6e6)",
        [(NOW - timedelta(hours=2)).replace(tzinfo=None)],
    )
    job = await read_subject(used, "job", "7", BEGIN, NOW)
    assert job is not None
    assert [gpu["gpu_uuid"] for gpu in job.gpus] == ["GPU-n1-0"]
    assert (job.gpus[0]["util_percent"], job.gpus[0]["kwh"]) == (55.0, 1.0)
    assert job.held == (NOW - timedelta(hours=2), NOW - timedelta(minutes=79))
    own = await read_subject(used, "job", "7", *job.held)
    assert own is not None
    assert not own.is_running  # though it held GPUs to the end of that time
    assert job.users == ["alice"]
    assert job.usage is not None
    assert job.usage.usd == 4.5
    assert [(change["usd"], change["hours"]) for change in job.changes] == [(2.5, 1.0)]
    life = await read_job(used, "7", BEGIN, NOW, job.held, NOW)
    assert life is not None
    html = JOBS.render(life, WEEK)
    assert "More workers." in html
    assert '<rect class="value" width="75.0"' in html
    assert "time without work: 30 % (from 20 %)" in html
    assert "prefetch: batches come evenly" in html
    without_tags = re.sub("</?time[^>]*>", "", html)
    assert "Ended</b>: 2026-03-02 10:30 UTC to 2026-03-02 11:11 UTC" in without_tags
    assert 'data-gpu-uuids="GPU-n1-0"' in html
    user = await read_subject(used, "username", "alice", BEGIN, NOW)
    assert user is not None
    assert {usage.name for usage in user.jobs} == {"7", "8"}
    assert "Waits for data." in PAGES.render_subject(user, WEEK)
    assert await read_subject(used, "job", "nothing", BEGIN, NOW) is None


async def test_a_job_is_found_by_its_own_time_where_none_is_asked_for(used) -> None:
    hour = NOW - timedelta(hours=2)
    assert await read_extent(used, "9", NOW) == (hour, hour + timedelta(hours=1))
    assert await read_extent(used, "nothing", NOW) is None
