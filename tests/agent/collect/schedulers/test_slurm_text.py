"""What squeue and sinfo print: lines of Slurm 22.05, and the forms that newer ones have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import from_ms, iso_text
from gpuwarden_agent.collect.schedulers.slurm_text import (
    gpus_in,
    instant_ms,
    limit_s,
    parse_jobs,
    parse_nodes,
)

SQUEUE_22_05 = """\
1|1|N/A|ada|physics|batch|high|(null)|FAILED|1|1|gres:gpu:2|10:00|2026-11-23T09:09:15|2026-11-23T09:09:15|2026-11-23T09:09:15|gpunode|my job|x
3|2|1|ada|physics|batch|normal|(null)|FAILED|1|1|N/A|30:00|2026-11-23T09:09:15|2026-11-23T09:09:15|2026-11-23T09:09:15|gpunode|wrap
5|5|N/A|ada|physics|batch|high|(null)|RUNNING|2|16|gres:gpu:h100:4|UNLIMITED|2026-11-23T09:09:15|2026-11-23T09:10:15|2026-12-23T09:09:15|gpu[1-2]|train
"""
"""Printed by Slurm 22.05.8, the last one put together of its parts."""
SINFO_22_05 = """\
gpunode|drained|batch|root|2026-11-23T09:09:16|bad gpu | x
gpunode|drained|debug|root|2026-11-23T09:09:16|bad gpu | x
other|idle*|batch|Unknown|Unknown|none
"""


def test_jobs_are_read_from_squeue_22_05() -> None:
    (failed, task, running), bad = parse_jobs(SQUEUE_22_05)
    assert bad == 0
    assert (failed.job_name, failed.qos, failed.reservation, failed.gpus) == (
        "my job|x",
        "high",
        None,
        2,
    )
    assert (failed.state, failed.array_job_id, failed.time_limit_seconds) == ("failed", None, 600)
    assert failed.ended_at is not None and iso_text(from_ms(failed.ended_at)).startswith(
        "2026-11-23T09:09:15"
    )
    assert (task.slurm_job_id, task.array_job_id, task.array_task_id, task.gpus) == (
        "3",
        "2",
        "1",
        None,
    )
    assert running.ended_at is None, "squeue says when it will be stopped, which is not its end"
    assert (running.gpus, running.nodes, running.node_list, running.time_limit_seconds) == (
        8,
        2,
        "gpu[1-2]",
        None,
    )


def test_nodes_are_read_from_sinfo_22_05() -> None:
    (drained, idle), bad = parse_nodes(SINFO_22_05)
    assert bad == 0
    assert (drained.state, drained.partitions, drained.reason) == (
        "drained",
        "batch,debug",
        "bad gpu | x",
    )
    assert drained.reason_user == "root" and drained.reason_at == instant_ms("2026-11-23T09:09:16")
    assert (idle.state, idle.reason, idle.reason_user, idle.reason_at) == ("idle", None, None, None)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gres:gpu:2", 2), ("gres:gpu", 1), ("gres:gpu:h100:4", 4), ("gres/gpu:4", 4), ("gres/gpu:h100:4", 4), ("gres/gpu=2", 2),
        ("gpu:2(S:0-1)", 2), ("gres/gpu:a100:1,gres/gpu:h100:2", 3), ("gres:gpu:h100:1,gres:shard:3", 1),
        ("N/A", None), ("(null)", None), ("gres:license:2", None),
    ],
)  # fmt: skip
def test_gpus_of_a_request_are_summed_over_types_but_not_shards(
    gres: str, gpus: int | None
) -> None:
    assert gpus_in(gres) == gpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30:00", 1800), ("0:30", 30), ("1:00:00", 3600), ("2-00:00:00", 172_800), ("1-05:30:10", 106_210),
        ("UNLIMITED", None), ("NOT_SET", None), ("INVALID", None), ("", None),
    ],
)  # fmt: skip
def test_a_time_limit_is_read_in_seconds_and_none_is_null(text: str, seconds: int | None) -> None:
    assert limit_s(text) == seconds


@given(st.text(max_size=300))
def test_what_is_not_understood_is_counted(text: str) -> None:
    lines = sum(bool(line.strip()) for line in text.splitlines())
    jobs, bad = parse_jobs(text)
    assert len(jobs) + bad == lines
    nodes, bad = parse_nodes(text)
    assert len(nodes) + bad <= lines
