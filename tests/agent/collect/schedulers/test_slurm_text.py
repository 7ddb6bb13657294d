"""What squeue and sinfo print: lines of Slurm 22.05, and the forms that newer ones have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import from_ms, iso_text
from gpuwarden_agent.collect.schedulers.slurm_text import (
    SQUEUE,
    gpus_in,
    instant_ms,
    limit_s,
    parse_jobs,
    parse_nodes,
)

SQUEUE_22_05 = """\
1|1|N/A|ada|physics|batch|high|(null)|FAILED|1|1|cpu=1,mem=200M,node=1,billing=1|gres:gpu:2|N/A|10:00|2026-11-23T09:09:15|2026-11-23T09:09:15|2026-11-23T09:09:15|gpunode|my job|x
3|2|1|ada|physics|batch|normal|(null)|FAILED|1|1|cpu=1,mem=200M,node=1,billing=1|N/A|N/A|30:00|2026-11-23T09:09:15|2026-11-23T09:09:15|2026-11-23T09:09:15|gpunode|wrap
5|5|N/A|ada|physics|batch|high|(null)|RUNNING|2|16||gres:gpu:h100:4|N/A|UNLIMITED|2026-11-23T09:09:15|2026-11-23T09:10:15|2026-12-23T09:09:15|gpu[1-2]|train
"""
"""Printed by Slurm 22.05.8, the last one put together of its parts."""
BY_GPUS = """\
4|4|N/A|ada|physics|batch|high|(null)|RUNNING|2|16|cpu=16,mem=400G,node=2,billing=16,gres/gpu=6,gres/gpu:h100=6|N/A|gres:gpu:6|1-00:00:00|2026-11-23T09:09:15|2026-11-23T09:10:15|2026-12-23T09:09:15|gpu[1-2]|by --gpus
"""
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
    assert (task.job, task.array_job_id, task.array_task_id, task.gpus) == (
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


TRACKED = "cpu=16,mem=400G,node=2,billing=16,gres/gpu=6,gres/gpu:h100=6"
UNTRACKED = "cpu=16,mem=400G,node=2,billing=16"


@pytest.mark.parametrize(
    ("allocated", "per_node", "per_job", "gpus"),
    [
        (TRACKED, "N/A", "gres:gpu:6", 6),
        (TRACKED, "gres:gpu:2", "N/A", 6),
        (UNTRACKED, "gres:gpu:2", "N/A", 4),
        (UNTRACKED, "N/A", "gres:gpu:h100:6", 6),
        (UNTRACKED, "N/A", "gres/gpu:6", 6),
        ("", "gres:gpu:2", "", 4),
        ("N/A", "N/A", "N/A", None),
    ],
)  # fmt: skip
def test_gpus_of_a_job_are_what_was_allocated_else_what_was_asked_for(
    allocated: str, per_node: str, per_job: str, gpus: int | None
) -> None:
    told = f"{TRACKED}|N/A|gres:gpu:6"
    assert told in BY_GPUS
    (job,), bad = parse_jobs(BY_GPUS.replace(told, f"{allocated}|{per_node}|{per_job}"))
    assert (job.gpus, job.job_name, bad) == (gpus, "by --gpus", 0)


def test_squeue_cuts_no_field_and_ends_each_but_the_name() -> None:
    (columns,) = [word for word in SQUEUE if word.startswith("--Format=")]
    *first, name = columns.removeprefix("--Format=").split(",")
    assert all(column.endswith(":|") for column in first) and name == "Name:"
    (line, *_) = SQUEUE_22_05.splitlines()
    assert len(first) == line.removesuffix("my job|x").count("|")


def test_nodes_are_read_from_sinfo_22_05() -> None:
    (drained, idle), bad = parse_nodes(SINFO_22_05)
    assert bad == 0
    assert (drained.state, drained.partitions, drained.reason) == (
        "drained",
        "batch,debug",
        "bad gpu | x",
    )
    assert drained.reason_username == "root" and drained.reason_at == instant_ms(
        "2026-11-23T09:09:16"
    )
    assert (idle.state, idle.reason, idle.reason_username, idle.reason_at) == (
        "idle",
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gres:gpu:2", 2), ("gres:gpu", 1), ("gres:gpu:h100:4", 4), ("gres/gpu:4", 4), ("gres/gpu:h100:4", 4), ("gres/gpu=2", 2),
        ("gpu:2(S:0-1)", 2), ("gres/gpu:a100:1,gres/gpu:h100:2", 3), ("gres/gpu=4,gres/gpu:h100=4", 4),
        ("cpu=2,mem=1G,node=1,billing=2,gres/gpu:a100=1,gres/gpu:h100=2,gres/gpu=3", 3), ("gres/gpu:a100=1,gres/gpu:h100=2", 3),
        ("cpu=1,mem=200M,node=1,billing=1", None), ("gres:gpu:h100:1,gres:shard:3", 1),
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
