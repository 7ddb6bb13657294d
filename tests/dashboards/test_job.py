"""A job's page is its life: phases, queue, what it waited for, incidents, cost to the cent, other runs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden.job_phases import Phase
from gpuwarden.progress import read_progress, sentence
from gpuwarden.roofline import read_rooflines
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.job import JobPages
from gpuwarden_dashboards.pages.usage import UsageRange
from gpuwarden_dashboards.read.job import read_job
from gpuwarden_dashboards.read.subject import read_extent
from gpuwarden_dashboards.templates import Templates

NOW = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)
BEGIN, END = datetime(2026, 3, 2, 10, 20, tzinfo=UTC), datetime(2026, 3, 2, 14, 40, tzinfo=UTC)


def _slurm_times(hours: tuple[int, ...]) -> list[datetime]:
    """Submission, start and end."""
    start = NOW.replace(hour=hours[0], minute=15)
    return [start - timedelta(minutes=30), start, NOW.replace(hour=hours[-1], minute=45)]


@pytest.fixture
def ran(querier):
    """A job of two GPUs that loaded for 5 minutes, then trained, and waited for a disk; and two runs before it."""
    db = querier.db
    db.execute(
        "INSERT INTO process_1m (ts, node, gpu, gpu_uuid, pid, simulated, samples, username, job, loader_workers_avg,"
        " main_cpu_percent_avg, cpu_percent_avg, read_chars_delta, write_bytes_delta)"
        " SELECT $1::TIMESTAMP + to_minutes(i), 'n1', g, 'GPU-' || g, 7 + g, false, 6, 'ada', '7', 8, if(i < 5, 95, 60), 200,"
        " if(i < 5, 60e9, 1e9), if(i = 100, 12e9, 0) FROM range(260) a(i), range(2) b(g)",
        [BEGIN],
    )
    db.execute(
        "INSERT INTO gpu_1m (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples, health_samples, util_percent_avg,"
        " util_percent_min, memory_used_bytes_avg, power_watts_avg, idle_seconds, busy_seconds, unknown_seconds)"
        " SELECT $1::TIMESTAMP + to_minutes(i), 'n1', g, 'GPU-' || g, false, 60, 6, 1, CASE WHEN i < 5 THEN 0 WHEN i = 100 THEN 70"
        " ELSE 97 END, if(i < 5 OR i = 100, 0, 90), 6e10, if(i < 5, 90, 600), 0, 60, 0 FROM range(260) a(i), range(2) b(g)",
        [BEGIN],
    )
    for job, hours, name in (
        ("7", (10, 11, 12, 13, 14), "train"),
        ("6", (2, 3), "train"),
        ("5", (0,), "train"),
        ("4", (1,), "other"),
    ):
        for hour in hours:
            db.execute(
                "INSERT INTO waste_1h (ts, category, node, gpu, gpu_uuid, username, job, simulated, seconds, usd)"
                " SELECT $1::TIMESTAMP, l, 'n1', 0, 'GPU-0', 'ada', $2, false, s, s / 1800 FROM (VALUES ('productive', 2700), ('starved', 900)) t(l, s)",
                [NOW.replace(hour=hour), job],
            )
        db.execute(
            "INSERT INTO slurm_job_samples (ts, node, source, job, job_name, username, submitted_at, started_at, ended_at,"
            " simulated) VALUES ($1, 'ctl', 'controller', $2, $3, 'ada', $4, $5, $6, false)",
            [NOW, job, name, *_slurm_times(hours)],
        )
    db.execute(
        "INSERT INTO diagnoses (subject, kind, bottleneck, confidence, summary, evidence, misses, stall, usd_per_hour, job, username,"
        " node, gpu, gpus, began_at, seen_at, ended_at, simulated) SELECT 'GPU-' || g, 'gpu', b, 1, 'Waits.', '[]', '[]', 0.5, 1.0,"
        " '7', 'ada', 'n1', g, 1, $1::TIMESTAMP + to_hours(h), $1, $1::TIMESTAMP + to_hours(h + 1), false"
        " FROM (VALUES (0, 'storage_disk', 0), (1, 'storage_disk', 0), (0, 'compute_bound', 1)) t(g, b, h)",
        [BEGIN],
    )
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu_uuid, labels, summary, remedy, began_at,"
        " active_at, seen_at, simulated) VALUES ('f', 'r', 'warning', 'waste', 'resolved', 'n1', 'GPU-1', '{}', 's', '', $1, $1, $1, false)",
        [BEGIN + timedelta(hours=1)],
    )
    for incident, at in (("i", BEGIN + timedelta(hours=1)), ("late", NOW)):
        db.execute(
            "INSERT INTO incidents (id, state, root, rule, severity, consequence, summary, remedy, place, labels, nodes, roots, alerts,"
            " firing, simulated, began_at, opened_at) VALUES ($1, 'open', 'f', 'r', 'warning', 'waste', 'GPU 1 is slow.', '', 'n1', '{}',"
            " 1, 1, 1, 1, false, $2, $2)",
            [incident, at],
        )
        db.execute(
            "INSERT INTO incident_alerts (incident, fingerprint, active_at, rule, labels, joined_at) VALUES ($1, 'f', $2, 'r', '{}', $2)",
            [incident, BEGIN + timedelta(hours=1)],
        )
    return querier


async def life_of(querier, begin: datetime = BEGIN, end: datetime = END):
    life = await read_job(querier, "7", begin, end, (BEGIN, END), NOW)
    assert life is not None
    return life


async def test_its_own_time_is_known_to_the_minute(ran) -> None:
    assert await read_extent(ran, "7", NOW) == (BEGIN, END)


async def test_phases_begin_with_the_queue_and_cover_the_job(ran) -> None:
    life = await life_of(ran)
    found = [(one.phase, round(one.seconds / 60)) for one in life.phases]
    assert found == [
        (Phase.QUEUE, 30), (Phase.RUNNING, 5), (Phase.LOADING, 5), (Phase.TRAINING, 95), (Phase.CHECKPOINT, 1),
        (Phase.TRAINING, 159), (Phase.RUNNING, 5),
    ]  # fmt: skip
    assert life.queue_s == 1800
    assert life.missing == ["SM activity", "NVLink traffic"]
    part = await life_of(ran, BEGIN + timedelta(hours=1), END - timedelta(minutes=1))
    assert [one.phase for one in part.phases] == [Phase.TRAINING, Phase.CHECKPOINT, Phase.TRAINING]


async def test_its_cost_is_that_of_sql_whatever_part_of_an_hour_it_began_in(ran) -> None:
    ((usd, hours, wasted),) = ran.db.execute(
        "SELECT sum(usd), sum(gpu_hours), sum(usd) FILTER (is_waste) FROM waste WHERE job = '7'"
    ).fetchall()
    for begin, end in ((BEGIN, END), (BEGIN - timedelta(days=1), NOW)):
        usage = (await life_of(ran, begin, end)).subject.usage
        assert usage is not None
        assert (usage.usd, usage.gpu_hours, usage.wasted_usd) == pytest.approx((usd, hours, wasted))
    life = await life_of(ran)
    assert life.runs[0].usd == pytest.approx(usd)
    html = JobPages(Templates(load_assets()), None, ManualClock(NOW)).render(
        life, UsageRange(BEGIN, END)
    )
    assert f"${usd:,.2f}" in html


async def test_what_it_waited_for_and_its_incidents_are_those_of_its_gpus_and_its_time(ran) -> None:
    life = await life_of(ran)
    assert [(wait.words, wait.gpu_hours, wait.stalled_hours, wait.usd) for wait in life.waits] == [
        ("disk", 2.0, 1.0, 2.0)
    ]
    assert [one["id"] for one in life.incidents] == ["i"]


async def test_incidents_of_others_and_of_later_are_not_its_own(ran) -> None:
    """Whatever time was asked for: what began after it is not during the job."""
    life = await life_of(ran, BEGIN - timedelta(days=1), NOW + timedelta(hours=1))
    assert [one["id"] for one in life.incidents] == ["i"]
    ran.db.execute("UPDATE alerts SET owner = 'ada'")
    assert [one["id"] for one in (await life_of(ran)).incidents] == ["i"]
    ran.db.execute("UPDATE alerts SET owner = 'bob'")
    assert (await life_of(ran)).incidents == []


async def test_it_is_compared_with_runs_of_its_name(ran) -> None:
    life = await life_of(ran)
    assert life.are_of_name
    assert [(run.job, run.seconds, run.gpu_hours, run.used_share) for run in life.runs] == [
        ("7", 4 * 3600 + 1800, 5.0, 0.75), ("6", 3600 + 1800, 2.0, 0.75), ("5", 1800, 1.0, 0.75),
    ]  # fmt: skip
    assert life.typical is not None
    assert (life.typical.gpu_hours, life.typical.usd_per_gpu_hour) == (1.5, 2.0)
    ran.db.execute("UPDATE slurm_job_samples SET job_name = 'alone' WHERE job = '7'")
    life = await life_of(ran)
    assert not life.are_of_name
    assert {run.job for run in life.others} == {"4", "5", "6"}


async def test_a_job_that_wastes_a_fifth_of_its_hours_is_said_to(ran) -> None:
    verdict = (await life_of(ran)).verdict
    assert (verdict.level, verdict.word) == ("warning", "Wasted")
    assert verdict.sentence.startswith(
        "1.2 of 5.0 GPU hours (25 %) were starved: the GPU waits for data"
    )


async def test_an_alert_that_began_after_it_left_its_gpus_is_not_its_own(ran) -> None:
    ran.db.execute("UPDATE alerts SET state = 'firing', fired_at = began_at, resolved_at = NULL")
    life = await life_of(ran)
    assert [one["fingerprint"] for one in life.subject.alerts] == ["f"]
    assert life.verdict.word == "Warning"
    ran.db.execute("UPDATE alerts SET began_at = $1", [END + timedelta(minutes=5)])
    assert (await life_of(ran)).subject.alerts == []
    ran.db.execute("UPDATE alerts SET began_at = $1, owner = 'bob'", [BEGIN])
    assert (await life_of(ran)).subject.alerts == []


async def test_its_begin_is_that_of_its_first_process(ran) -> None:
    started = BEGIN + timedelta(seconds=40)
    ran.db.execute("UPDATE process_1m SET started_at = $1", [started])
    assert await read_extent(ran, "7", NOW) == (started, END)


@pytest.mark.parametrize(("usd_per_hour", "word"), [(0.01, "Wasted"), (5.0, "Lost time")])
async def test_a_loss_that_is_a_trifle_of_the_job_is_no_verdict(ran, usd_per_hour, word) -> None:
    ran.db.execute(
        "UPDATE diagnoses SET advice = 'Use a faster disk.', usd_per_hour = $1", [usd_per_hour]
    )
    life = await life_of(ran)
    assert life.subject.changes[0]["advice"] == "Use a faster disk."
    assert life.verdict.word == word


async def test_tensor_cores_have_a_rate_where_model_and_activity_are_known(ran) -> None:
    assert (await life_of(ran)).subject.tensor_rate is None
    ran.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, catalogue_model, simulated) SELECT 'GPU-' || g, 'n1', g, 'NVIDIA H200', 'H200-SXM-141GB', false FROM range(2) t(g)"
    )
    ran.db.execute(
        "UPDATE gpu_1m SET tensor_half_active_percent_avg = 50, sm_clock_mhz_avg = 1830 WHERE gpu_uuid = 'GPU-0'"
    )
    assert (await life_of(ran)).subject.tensor_rate is None, "of one GPU it is not known"
    ran.db.execute(
        "UPDATE gpu_1m SET tensor_half_active_percent_avg = 30, sm_clock_mhz_avg = 1830 WHERE gpu_uuid = 'GPU-1'"
    )
    life = await life_of(ran)
    rate = life.subject.tensor_rate
    assert rate is not None
    assert (round(rate.percent), round(rate.tflops_at_most)) == (40, 396)
    html = JobPages(Templates(load_assets()), None, ManualClock(NOW)).render(
        life, UsageRange(BEGIN, END)
    )
    assert "at most <b>396 TFLOPS</b> a GPU, 40 % of the data sheet's 989" in html.replace(
        "&#39;", "'"
    )


async def test_the_page_says_what_bounds_the_job(ran) -> None:
    ran.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, catalogue_model, simulated, pcie_generation_max, pcie_width_max) "
        "SELECT 'GPU-' || g, 'n1', g, 'NVIDIA H200', 'H200-SXM-141GB', false, 5, 16 FROM range(2) t(g)"
    )
    ran.db.execute(
        "UPDATE gpu_1m SET tensor_active_percent_avg = 20, dram_active_percent_avg = 70, sm_active_percent_avg = 80, "
        "nvlink_rx_bytes_per_second_avg = 9e9, nvlink_tx_bytes_per_second_avg = 10e9"
    )
    ran.db.execute(
        "INSERT INTO infiniband_samples (ts, node, device, port, simulated, rate_bits_per_second, rx_bytes_total) "
        "SELECT $1::TIMESTAMP + to_seconds(10 * i), 'n1', 'mlx5_0', 1, false, 4e11, 5e9 * i FROM range(100) t(i)",
        [END - timedelta(minutes=30)],
    )
    (found,) = await read_rooflines(ran, "7", ["GPU-0", "GPU-1"], ["n1"], BEGIN, END)
    assert (found.bound, found.reading.gpus) == ("memory", 2)
    percents = {roof.name: roof.percent for roof in found.roofs}
    # 500 MB/s of 50 GB/s are less than 10 GB/s of 450 GB/s.
    assert percents["link"] == pytest.approx(100 * 10 / 450)
    assert "port 1 % of its rate" in found.roofs[2].words
    assert "main thread 61 % of a core" in found.roofs[3].words
    html = JobPages(Templates(load_assets()), None, ManualClock(NOW)).render(
        await life_of(ran), UsageRange(BEGIN, END), rooflines=[found]
    )
    assert "Device memory is the bound: 70 %" in html
    assert 'class="roofline"' in html
    assert await read_rooflines(ran, "7", [], [], BEGIN, END) == ()
    # A job's first and last minute are in part another's.
    ran.db.execute(
        "UPDATE gpu_1m SET dram_active_percent_avg = 7 WHERE ts IN ($1, $2)",
        [BEGIN, BEGIN + timedelta(minutes=4)],
    )
    begin, end = BEGIN + timedelta(seconds=20), BEGIN + timedelta(minutes=4, seconds=30)
    ran.db.execute("UPDATE gpu_1m SET util_percent_avg = 97")
    (found,) = await read_rooflines(ran, "7", ["GPU-0"], ["n1"], begin, end)
    assert (found.reading.minutes, found.reading.dram_percent) == (3, 70)


async def test_the_page_says_what_a_token_cost(ran) -> None:
    ran.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, simulated, usd_per_hour) SELECT 'GPU-' || g, 'n1', g, false, 3.6 FROM range(2) t(g)"
    )
    # Each of two ranks 1,000 tokens a second for 100 s, and a restart of one of them; another user claims the job.
    ran.db.execute(
        "INSERT INTO progress_samples (ts, node, simulated, source, sender, username, job, name, value) "
        "SELECT $1::TIMESTAMP + to_seconds(10 * i), 'n1', false, 'file', '7.' || r, u, '7', 'tokens', "
        "if(r = 1 AND i >= 5, 10000 * (i - 4), 10000 * (i + 1)) "
        "FROM range(11) t(i), (VALUES (0, 'ada'), (1, 'ada'), (2, 'eve')) x(r, u)",
        [BEGIN + timedelta(minutes=30)],
    )
    ran.db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, power_watts) SELECT $1::TIMESTAMP + to_seconds(i), "
        "'n1', g, 'GPU-' || g, false, 600 FROM range(200) t(i), range(2) u(g)",
        [BEGIN + timedelta(minutes=30)],
    )
    found = await read_progress(ran, "7", ["ada"], ["GPU-0", "GPU-1"], BEGIN, END)
    (tokens,) = found
    # Rank 1: 40,000, then from 0 again 60,000.
    assert (tokens.amount, tokens.seconds, tokens.senders) == (200_000, 100, 2)
    assert tokens.per_second == 2000
    # $7.20 an hour, 1,200 W.
    assert tokens.usd_each == pytest.approx(7.2 / 3600 / 2000)
    assert tokens.joules_each == pytest.approx(0.6)
    assert (
        sentence(tokens)
        == "200,000 tokens reported, 2,000 a second; $1.00 a million; 0.6 J a token."
    )
    cheap = replace(tokens, usd_per_hour=7.2 * 0.00654)
    assert "; $0.00654 a million; " in sentence(cheap)
    html = JobPages(Templates(load_assets()), None, ManualClock(NOW)).render(
        await life_of(ran), UsageRange(BEGIN, END), progress=found
    )
    row = html[html.index('id="progress"') :]
    assert (
        '<td class="number">2,000</td><td class="number">$1.00</td><td class="number">0.6</td>'
        in row
    )
    assert await read_progress(ran, "6", ["ada"], ["GPU-0"], BEGIN, END) == []


async def test_a_token_without_price_or_power_has_no_cost(ran) -> None:
    ran.db.execute(
        "INSERT INTO progress_samples (ts, node, simulated, source, sender, username, job, name, value) "
        "VALUES ($1, 'n1', false, 'file', '7', 'ada', '7', 'steps', 5)",
        [BEGIN],
    )
    ran.db.execute("UPDATE gpu_1m SET power_watts_avg = NULL")
    (steps,) = await read_progress(ran, "7", ["ada"], ["GPU-0"], BEGIN, END)
    assert (steps.amount, steps.per_second, steps.usd_each, steps.joules_each) == (
        0,
        None,
        None,
        None,
    )
    assert "no rate, without two reports" in sentence(steps)
    ran.db.execute(
        "INSERT INTO progress_samples (ts, node, simulated, source, sender, username, job, name, value) "
        "VALUES ($1, 'n1', false, 'file', '7', 'ada', '7', 'steps', 605)",
        [BEGIN + timedelta(minutes=20)],
    )
    (steps,) = await read_progress(ran, "7", ["ada"], ["GPU-0"], BEGIN, END)
    assert sentence(steps) == (
        "600 steps reported, 0.5 a second; no dollars: a GPU has no price; no joules: power was not read."
    )
    ran.db.execute("UPDATE gpu_1m SET power_watts_avg = 300 WHERE gpu_uuid = 'GPU-0'")
    (steps,) = await read_progress(ran, "7", ["ada"], ["GPU-0"], BEGIN, END)
    assert steps.joules_each == 600
