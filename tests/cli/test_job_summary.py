"""A job's report: how it shows known figures and unknown ones."""

import base64
import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_cli.job_report import JobGpu, JobNode, JobReport, JobVerdict, nodes_of
from gpuwarden_cli.job_summary import comment, notes, parse_comment, screen, summary

BEGIN = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)
FACTS = {"username": "ada", "account": "physics", "qos": "high", "partition": "batch", "state": "completed", "job_name": "train",
    "node_list": "gpu[1-2]", "cpus": 32, "gpus": 4, "time_limit_seconds": 86_400, "ended_at": BEGIN + timedelta(hours=2), "exit_code": 0}  # fmt: skip


def gpu(index: int, util: float | None, top: float | None = None) -> JobGpu:
    return JobGpu(
        index,
        f"GPU-{index}",
        "H100",
        util,
        top if top is not None else util,
        20 * 2**30,
        80 * 2**30,
        300.0,
    )


def report(**changes: object) -> JobReport:
    nodes = (
        JobNode("gpu1", (gpu(0, 90.04), gpu(1, 70.0)), 16, 57_600.0, 64 * 2**30, 128 * 2**30),
        JobNode("gpu2", (gpu(0, 80.0), gpu(1, 80.0)), 16, 28_800.0, 32 * 2**30, 128 * 2**30),
    )
    made = JobReport("7", FACTS, BEGIN, BEGIN + timedelta(hours=2), nodes, (), 8.0, 20.0, 3.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_summary_has_the_keys_of_jobstats() -> None:
    made = summary(report())
    assert made["gpus"] == 4 and made["total_time"] == 7200
    assert made["nodes"]["gpu1"] == {
        "cpus": 16,
        "total_time": 57_600.0,
        "used_memory": 64 * 2**30,
        "total_memory": 128 * 2**30,
        "gpu_utilization": {"0": 90.0, "1": 70.0},
        "gpu_used_memory": {"0": 20 * 2**30, "1": 20 * 2**30},
        "gpu_total_memory": {"0": 80 * 2**30, "1": 80 * 2**30},
    }


def test_what_was_not_measured_is_left_out() -> None:
    bare = report(nodes=(JobNode("gpu1", (JobGpu(0, "GPU-0"),)),))
    assert summary(bare)["nodes"] == {"gpu1": {}}
    assert (bare.cpu_share, bare.memory_share, bare.gpu_share, bare.gpu_memory_share) == (None,) * 4
    assert screen(bare).count("not measured") == 5
    assert notes(report(nodes=(JobNode("gpu1", (JobGpu(0, "GPU-0"),)),), facts={})) == []
    assert "No sample" in screen(report(nodes=()))


def test_shares_are_of_all_nodes() -> None:
    made = report()
    assert made.cpu_share == pytest.approx(86_400 / (32 * 7200))
    assert made.memory_share == pytest.approx(96 / 256)
    assert made.gpu_share == pytest.approx(0.8, abs=0.001)
    assert made.gpu_memory_share == pytest.approx(0.25)


@pytest.mark.parametrize("keeps_case", [True, False])
def test_a_comment_can_be_read_again(keeps_case: bool) -> None:
    text = comment(report(), keeps_case=keeps_case)
    assert parse_comment(text) == summary(report())
    if keeps_case:
        packed = base64.b64decode(text.removeprefix("JS1:"))
        assert json.loads(gzip.decompress(packed))["gpus"] == 4
    else:
        assert text == text.lower(), "sacctmgr of 22.05 turns it into lower case"


def test_a_comment_without_figures_is_read_as_none() -> None:
    short = report(end=BEGIN + timedelta(seconds=30))
    assert (comment(short), comment(short, keeps_case=False)) == ("JS1:Short", "gw1:short")
    many = report(
        nodes=tuple(
            JobNode(f"{n:05d}{n * 7919 % 65537}", (gpu(0, n / 97),), n, n * 1.3, n * 7, n * 11)
            for n in range(9000)
        )
    )
    assert comment(many) == "JS1:None", "the column has an end"
    for text in ("", "JS1:Short", "gw1:none", "a person's own words"):
        assert parse_comment(text) is None
    with pytest.raises(ValueError, match="not a summary"):
        parse_comment("JS1:aGVsbG8=")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": (JobNode("a", (gpu(0, 0.0), gpu(1, 0.0))),)}, "No GPU was used."),
        ({"nodes": (JobNode("a", (gpu(0, 95.0), gpu(1, 0.0), gpu(2, 0.2))),)}, "2 of 3 GPUs were never used. Ask for 1"),
        ({"nodes": (JobNode("a", (gpu(0, 9.0, 60.0),)),)}, "The GPUs were used for 9% of the time only."),
        ({"nodes": (JobNode("a", (), 64, 7200.0),)}, "2% of 64 CPUs were used: about 2 would do."),
        ({"nodes": (JobNode("a", (), None, None, 2**30, 64 * 2**30),)}, "2% of 64.0 GiB of memory were used"),
        ({"nodes": (JobNode("a", (), None, None, 63 * 2**30, 64 * 2**30),)}, "Ask for more."),
        ({}, "It ran for 2:00:00 of 1-00:00:00"),
        ({"verdicts": (JobVerdict("loader_cpu", "It waits for its loader.", "Use more workers.", 3600.0),)},
         "It waits for its loader. (50% of the time) Use more workers."),
    ],
)  # fmt: skip
def test_notes_say_what_to_change(changes: dict[str, object], said: str) -> None:
    assert [note for note in notes(report(**changes)) if said in note]


def test_a_job_that_did_well_has_no_note() -> None:
    busy = report(facts={**FACTS, "time_limit_seconds": 9000})
    assert notes(busy) == []
    assert "Notes" not in screen(busy)


def test_the_control_group_counts_before_the_processes() -> None:
    noted = [
        {
            "node": "a",
            "cpus": 4,
            "cpu_seconds": 30.0,
            "memory_used_bytes": None,
            "memory_limit_bytes": None,
        }
    ]
    trees = [
        {"node": "a", "cores": 2.0, "memory_used_bytes": 5},
        {"node": "b", "cores": 1.5, "memory_used_bytes": 7},
    ]
    first, second = nodes_of([], noted, trees, 100.0)
    assert (first.cpu_seconds, first.memory_used_bytes) == (30.0, 5)
    assert (second.cpu_seconds, second.cpus, second.memory_used_bytes) == (150.0, None, 7)
