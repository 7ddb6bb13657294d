"""Diagnoses are kept by subject and episode, and come back as they were saved."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpuwarden.diagnosis import Bottleneck, Diagnosis, Evidence


def diagnosis(wire: Any, **changes: Any) -> Diagnosis:
    made = Diagnosis(
        subject="GPU-1",
        kind="gpu",
        bottleneck=Bottleneck.LOADER_WORKERS,
        confidence=0.8,
        summary="Too few data-loader workers.",
        advice="num_workers 2 -> 7",
        evidence=(Evidence("workers", 2.0, ">=", 1.0, "loader workers: 2 (from 1)"),),
        misses=("storage_disk: D state 0 %",),
        stall=0.7,
        usd_per_hour=1.9,
        cause=None,
        node="n1",
        gpu=0,
        job="7",
        username="Ünï",
        began_at=wire.now,
        seen_at=wire.now,
        simulated=True,
    )
    return replace(made, **changes)


class Newer(str):
    """A class of a newer version."""

    value = "quantum_bound"


async def test_open_episodes_come_back_as_saved_and_ended_ones_do_not(
    start: Any, wire: Any
) -> None:
    later = wire.now + timedelta(minutes=5)
    job = diagnosis(wire, subject="job 7", kind="job", gpu=None, stall=None, advice=None)
    async with start() as collector:
        await collector.diagnoses.save_diagnoses([diagnosis(wire), job])
        assert await collector.diagnoses.open_diagnoses() == [diagnosis(wire), job]
        ended = diagnosis(wire, seen_at=later, ended_at=later)
        again = diagnosis(wire, began_at=later, seen_at=later)
        await collector.diagnoses.save_diagnoses([diagnosis(wire), ended, again])
        await collector.diagnoses.save_diagnoses([])
        assert await collector.diagnoses.open_diagnoses() == [job, again]
        found = await collector.querier.query("SELECT count(*) FROM diagnoses")
        assert found.rows == [(3,)]
    async with start() as collector:
        assert await collector.diagnoses.open_diagnoses() == [job, again]
        await collector.diagnoses.save_diagnoses([replace(job, bottleneck=Newer())])
        known = replace(job, bottleneck=Bottleneck.UNKNOWN)
        assert await collector.diagnoses.open_diagnoses() == [known, again]
