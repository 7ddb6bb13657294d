"""Processes are below what started them, and every process is there once for each GPU."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.process_tree import Ancestor, ancestors_text
from gpuwarden_dashboards.read.processes import process_lines


def row(pid: int, *above: tuple[int, str], name: str = "python", **more: Any) -> dict[str, Any]:
    chain = [Ancestor(*one) for one in above]
    ancestors = ancestors_text(chain) if chain else None
    return {
        "node": "n1",
        "gpu": 0,
        "pid": pid,
        "process_name": name,
        "ancestors": ancestors,
        **more,
    }


def drawn(*rows: dict[str, Any]) -> list[str]:
    return [
        "  " * line.depth
        + (
            " > ".join(f"{one.name} {one.pid}" for one in line.above)
            or f"[{line.process['node']}/{line.process['gpu']}] {line.process['process_name']} {line.process['pid']}"
        )
        for line in process_lines(rows)
        if line.above or line.process
    ]


INIT, STEP, RUN = (1, "systemd"), (10, "slurmstepd"), (12, "torchrun")


def test_ranks_are_below_the_one_that_started_them() -> None:
    assert drawn(row(20, INIT, STEP, RUN), row(21, INIT, STEP, RUN, gpu=1)) == [
        "slurmstepd 10 > torchrun 12",
        "  [n1/0] python 20",
        "  [n1/1] python 21",
    ]


def test_branches_begin_where_the_ancestors_differ() -> None:
    assert drawn(row(20, STEP, RUN), row(30, STEP, (13, "bash"), (14, "vllm"))) == [
        "slurmstepd 10",
        "  torchrun 12",
        "    [n1/0] python 20",
        "  bash 13 > vllm 14",
        "    [n1/0] python 30",
    ]


def test_a_process_that_holds_a_gpu_and_started_another_is_above_it_under_one_name() -> None:
    """/proc cuts names at 15 characters; the row has the whole one."""
    long = "python3.11-with-a-long-name"
    below = row(21, STEP, (20, long[:15]))
    for rows in ((row(20, STEP, name=long), below), (below, row(20, STEP, name=long))):
        assert drawn(*rows) == ["slurmstepd 10", f"  [n1/0] {long} 20", "    [n1/0] python 21"]


def test_the_same_pid_on_two_nodes_is_two_processes() -> None:
    assert drawn(row(20, STEP), row(20, STEP, node="n2")) == [
        "slurmstepd 10",
        "  [n1/0] python 20",
        "slurmstepd 10",
        "  [n2/0] python 20",
    ]


def test_a_pid_that_was_given_again_is_another_process() -> None:
    assert drawn(row(20, (12, "bash")), row(21, (12, "torchrun"))) == [
        "bash 12",
        "  [n1/0] python 20",
        "torchrun 12",
        "  [n1/0] python 21",
    ]


CHAINS = st.lists(st.tuples(st.integers(1, 6), st.sampled_from("ab")), max_size=8)


@settings(max_examples=50)
@given(st.lists(st.tuples(CHAINS, st.integers(1, 8), st.integers(0, 1)), max_size=12))
def test_each_row_is_drawn_once_whatever_its_ancestors_are(rows: list[Any]) -> None:
    given_rows = [row(pid, *chain, node=f"n{node}") for chain, pid, node in rows]
    lines = process_lines(given_rows)
    assert sorted(id(line.process) for line in lines if line.process) == sorted(map(id, given_rows))
    assert all(line.above or line.process for line in lines)
