"""What jobs used is read of minutes in which they alone held whole GPUs."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.right_size import read_right_sizes
from gpuwarden_cli.right_size_report import asked, grouped, records, screen

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
END = BEGIN + timedelta(days=1)


@pytest.fixture
def used(querier):
    """Job 7 of ada on an H100 for three hours, in the last of which job 8 of bob shares it."""
    db = querier.db
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, catalogue_model, simulated, usd_per_hour) VALUES "
        "('GPU-0', 'n1', 0, 'NVIDIA H100', 'H100-SXM-80GB', false, 3.0), "
        "('GPU-1', 'n2', 0, 'NVIDIA L40S', 'L40S-48GB', false, 1.5)"
    )
    db.execute(
        "INSERT INTO gpu_offers (catalogue_model, life_years, watts, power_percent, hosting_percent, spot_usd_per_hour) "
        "VALUES ('H100-SXM-80GB', 4, 700, 30, 0, 1.25)"
    )
    for job, user, first, last in (("7", "ada", 0, 180), ("8", "bob", 120, 180)):
        db.execute(
            "INSERT INTO process_1m (ts, node, gpu, gpu_uuid, pid, simulated, samples, username, job, write_bytes_delta) "
            "SELECT $1::TIMESTAMP + to_minutes(i), 'n1', 0, 'GPU-0', $2, false, 6, $3, $4, if(i % 60 = 0, 2e9, 0) "
            "FROM range($5, $6) t(i)",
            [BEGIN, int(job), user, job, first, last],
        )
    db.execute(
        "INSERT INTO gpu_1m (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples, health_samples, util_percent_avg, "
        "memory_used_bytes_max, sm_active_percent_avg, dram_active_percent_avg) "
        "SELECT $1::TIMESTAMP + to_minutes(i), 'n1', 0, 'GPU-0', false, 60, 6, 1, if(i < 30, 0, 90), "
        "if(i < 120, 10e9, 70e9), if(i < 30, 0, 12), 8 FROM range(180) t(i)",
        [BEGIN],
    )
    return querier


async def test_shared_minutes_are_not_judged(used) -> None:
    found = {one.need.job: one for one in await read_right_sizes(used, BEGIN, END)}
    need = found["7"].need
    assert (need.username, need.model, need.gpus) == ("ada", "H100-SXM-80GB", 1)
    assert (need.gpu_hours, need.shared_hours, need.span_hours) == (2, 1, 3)
    assert (need.memory_p99_bytes, need.memory_share) == (10e9, 1)
    assert (need.sm_p95_percent, need.dram_p95_percent) == (12, 8), (
        "of minutes in which a kernel ran"
    )
    assert (need.busy_minutes, need.checkpoints) == (90, 3)
    assert {one.kind: one.use for one in found["7"].advice} == {
        "spot": "spot H100-SXM-80GB",
        "smaller": "L40S-48GB (in the fleet)",
        "mig": "MIG 2g.20gb of H100-SXM-80GB",
    }
    assert found["8"].advice == ()
    assert found["8"].missing[0].startswith("it alone held GPUs for 0 minutes")


async def test_one_user_or_job_is_judged_by_all_who_share_its_gpus(used) -> None:
    (of_ada,) = await read_right_sizes(used, BEGIN, END, *asked("ada", None))
    assert (of_ada.need.job, of_ada.need.gpu_hours, of_ada.need.shared_hours) == ("7", 2, 1)
    (of_job,) = await read_right_sizes(used, BEGIN, END, *asked(None, "8"))
    assert of_job.need.username == "bob"
    assert await read_right_sizes(used, BEGIN, END, *asked("ada", "8")) == []


async def test_the_command_says_what_to_use_and_why_not(used) -> None:
    found = await read_right_sizes(used, BEGIN, END)
    text = screen(found, "job", 20, BEGIN, END, with_all=True)
    # 2 hours a day at 3.00 - 1.25, or at 5/7 of 3.00.
    assert f"${2 * 1.75 * 30.4375:,.2f} a month: use spot H100-SXM-80GB." in text
    assert f"${2 * 3 * 5 / 7 * 30.4375:,.2f} a month: use MIG 2g.20gb" in text
    assert "job 8 of bob on 1 x H100-SXM-80GB: no advice: it alone held GPUs for 0 minutes" in text
    by_user = screen(found, "username", 20, BEGIN, END, with_all=False)
    assert "1 job without advice: --all says why." in by_user
    assert [(one["username"], one["jobs_with_advice"]) for one in grouped(found, "username")] == [
        ("ada", 1),
        ("bob", 0),
    ]
    assert records(found)[0]["advice"][0]["kind"] == "mig"
    assert "No process held" in screen([], "job", 20, BEGIN, END, with_all=False)
