"""Ranks together: the starved or slow one is the cause, the others wait for it."""

from dataclasses import replace
from typing import Any

import pytest
from tests.rules.diagnosis.scenes import END, Scene, loop

from gpuwarden.diagnosis import Bottleneck
from gpuwarden_rules.diagnosis.classify import Verdict, classify
from gpuwarden_rules.diagnosis.features import Features, GpuInfo, ObservedGpu
from gpuwarden_rules.diagnosis.jobs import Judged, judge_jobs
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.sentences import diagnosis_of, diagnosis_of_job
from gpuwarden_rules.testing import MemoryDatabase

WORKING = Features(
    coverage=1.0, duty=0.98, stall=0.02, util_p5=95.0, util_p95=100.0, power_share=0.8, workers=8.0,
    loader_cpu=30.0, loader_saturated=0.0, loader_blocked=0.0, main_cpu=50.0, processes=1.0,
    idle_cores=12.0, tree_cpu=300.0, server=0.0, chars_rate=5e7,
)  # fmt: skip
STARVED = replace(
    WORKING, duty=0.4, stall=0.6, util_p5=0.0, util_p95=100.0, power_share=0.3, workers=2.0,
    loader_cpu=97.0, loader_saturated=100.0,
)  # fmt: skip
SPINNING = replace(WORKING, duty=1.0, stall=0.0, power_share=0.2)


def ranks(*features: Features, job: str | None = "7", **place: Any) -> list[Judged]:
    made = []
    for index, one in enumerate(features):
        at = GpuInfo(
            gpu_uuid=f"GPU-{index}", node=f"n{index // 4}", gpu=index % 4, job=job, work=job and f"job {job}", username="ann",
            usd_per_hour=2.0, has_process_data=True, **place,
        )  # fmt: skip
        made.append(Judged(ObservedGpu(at, one, END), classify(at, one)))
    return made


def test_a_starved_rank_is_the_cause_and_those_that_spin_are_its_victims() -> None:
    judged, (view,) = judge_jobs(ranks(SPINNING, STARVED, *[SPINNING] * 6))
    assert [j.verdict.bottleneck for j in judged].count(Bottleneck.WAITS_FOR_PEER) == 7
    assert judged[1].verdict.bottleneck is Bottleneck.LOADER_WORKERS
    assert {j.cause for j in judged} == {"GPU-1", None}
    assert view.bottleneck is Bottleneck.LOADER_WORKERS and view.victims == 7
    assert view.efficiency == pytest.approx(0.4)
    assert view.usd_per_hour == pytest.approx(8 * 2.0 * 0.55)
    told = diagnosis_of_job(view, END)
    assert told.cause == "GPU-1" and told.gpus == 8 and told.node is None
    assert "GPU 1 of n0 holds up 7 other GPUs of the job (8 GPUs of 2 nodes)" in told.summary
    assert told.advice is not None and told.advice.startswith("num_workers 2 -> 5")
    waiting = diagnosis_of(judged[0], END)
    assert waiting.summary == "It waits for GPU 1 of n0, which is loader_workers."
    assert waiting.advice is None and waiting.usd_per_hour is None


def test_ranks_that_are_all_starved_wait_for_nobody() -> None:
    judged, (view,) = judge_jobs(ranks(*[STARVED] * 4))
    assert {j.verdict.bottleneck for j in judged} == {Bottleneck.LOADER_WORKERS}
    assert view.victims == 0 and diagnosis_of_job(view, END).cause is None


def test_ranks_at_full_power_do_not_wait() -> None:
    judged, _ = judge_jobs(ranks(STARVED, *[WORKING] * 3))
    assert {j.verdict.bottleneck for j in judged[1:]} == {Bottleneck.COMPUTE_BOUND}


def test_the_rank_that_works_while_the_others_wait_is_the_straggler() -> None:
    slow = replace(WORKING, power_share=0.7)
    judged, (view,) = judge_jobs(ranks(slow, *[SPINNING] * 5))
    assert judged[0].verdict.bottleneck is Bottleneck.STRAGGLER
    assert {j.cause for j in judged[1:]} == {"GPU-0"}
    assert view.bottleneck is Bottleneck.STRAGGLER
    few, _ = judge_jobs(ranks(slow, *[SPINNING] * 2))
    assert Bottleneck.STRAGGLER not in {j.verdict.bottleneck for j in few}


def test_a_rank_with_a_slower_clock_is_the_straggler() -> None:
    fast, slow = replace(WORKING, clock_share=0.95), replace(WORKING, clock_share=0.6)
    judged, (view,) = judge_jobs(ranks(fast, fast, slow, fast))
    assert judged[2].verdict.bottleneck is Bottleneck.STRAGGLER
    assert view.bottleneck is Bottleneck.STRAGGLER
    alike, _ = judge_jobs(ranks(*[slow] * 4))
    assert Bottleneck.STRAGGLER not in {j.verdict.bottleneck for j in alike}


def test_gpus_without_a_job_or_alone_in_it_are_left_as_they_are() -> None:
    alone = [*ranks(STARVED, SPINNING, job=None), *ranks(STARVED)]
    judged, views = judge_jobs(alone)
    assert judged == alone and views == []
    assert judge_jobs([]) == ([], [])


def test_a_healthy_job_costs_nothing_and_an_unpriced_one_says_nothing() -> None:
    _, (view,) = judge_jobs(ranks(*[WORKING] * 4))
    told = diagnosis_of_job(view, END)
    assert told.bottleneck is Bottleneck.COMPUTE_BOUND and told.usd_per_hour is None
    free = [
        replace(j, seen=replace(j.seen, place=replace(j.seen.place, usd_per_hour=None)))
        for j in ranks(STARVED, STARVED)
    ]
    _, (view,) = judge_jobs(free)
    assert view.usd_per_hour is None


def test_a_job_nobody_knows_anything_of_is_unknown() -> None:
    unknown = [
        replace(j, verdict=Verdict(Bottleneck.UNKNOWN, 0.0, (), "no data")) for j in ranks(STARVED, STARVED)
    ]  # fmt: skip
    _, (view,) = judge_jobs(unknown)
    assert view.bottleneck is Bottleneck.UNKNOWN


async def test_processes_of_one_command_are_a_job_and_a_long_command_counts_to_its_end(
    database: MemoryDatabase,
) -> None:
    path = "/data/experiments/2026/ablation-of-everything/venv/bin/python train.py --seed 1 --lr "
    commands = ["python train.py", "python train.py", path + "1e-3", path + "1e-3", path + "1e-4"]
    for index, command in enumerate(commands):
        Scene(loop(0.3, 0.9), index=index, process={"command": command}).insert(database)
    jobs = [seen.place.work for seen in await observe(database, END)]
    assert jobs[0] == jobs[1] == "ann's python train.py on n1"
    assert jobs[2] == jobs[3] != jobs[4]
    assert all(job is not None and len(job) <= len("ann's ") + 80 + len(" on n1") for job in jobs)
