"""NUMA nodes of a process, from the files of a host with two nodes, and from this host's own."""

import os
import sys
from pathlib import Path

import pytest
from tests.agent.collect.processes.made_up import MadeUpProc, process

from gpuwarden_agent.collect.processes.numa import NumaNodes, parse_id_list, parse_last_cpu
from gpuwarden_agent.collect.processes.procfs import ProcFs

# proc_pid_stat(5): field 39 is the CPU, here 33.
STAT = (
    "70 (py (x) thon) S 1 7 7 0 -1 4194560 1 0 0 0 5 0 0 0 20 0 1 0 100 4096 10 "
    "18446744073709551615 1 1 7 0 0 0 0 0 0 0 0 0 17 33 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
STATUS = "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed:\t3\nMems_allowed_list:\t{mems}\n"


@pytest.fixture
def nodes(tmp_path: Path) -> NumaNodes:
    """Two sockets of 32 threads, and the memory of a Grace GPU, which has no CPU."""
    folder = tmp_path / "node"
    for name, cpus in (("node0", "0-15,32-47"), ("node1", "16-31,48-63"), ("node2", "")):
        (folder / name).mkdir(parents=True)
        (folder / name / "cpulist").write_text(cpus + "\n")
    (folder / "possible").write_text("0-2\n")
    return NumaNodes(folder)


def proc_with(tmp_path: Path, stat: str, cpus: str, mems: str) -> ProcFs:
    root = tmp_path / "proc"
    root.mkdir()
    folder = MadeUpProc(root).add(process(70))
    (folder / "stat").write_text(stat)
    (folder / "status").write_text(STATUS.format(cpus=cpus, mems=mems))
    return ProcFs(root)


@pytest.mark.parametrize(
    ("cpus", "mems", "of_cpus", "of_memory"),
    [
        ("0-63", "0-2", "0,1", "0,1,2"),
        ("16-31,48-63", "1", "1", "1"),
        ("40", "0", "0", "0"),
        ("99", "0", None, "0"),
    ],
)
def test_lists_of_cpus_become_nodes(
    tmp_path: Path, nodes: NumaNodes, cpus: str, mems: str, of_cpus: str | None, of_memory: str
) -> None:
    row = nodes.columns(70, proc_with(tmp_path, STAT, cpus, mems))
    assert row == {"cpu_numa_node": 0, "cpu_numa_nodes": of_cpus, "memory_numa_nodes": of_memory}


def test_a_process_that_ended_or_a_file_that_is_cut_short_is_absent(
    tmp_path: Path, nodes: NumaNodes
) -> None:
    proc = proc_with(tmp_path, STAT[:60], "0-63", "0")
    assert nodes.columns(70, proc) == nodes.columns(71, proc) == {}


def test_a_kernel_without_nodes_tells_nothing(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, STAT, "0-63", "0")
    assert NumaNodes(tmp_path / "none").columns(70, proc) == {}


def test_lists_are_read_as_the_kernel_writes_them() -> None:
    assert parse_id_list("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
    assert parse_last_cpu(STAT) == 33
    for text in ("", "x", "1-9999999"):
        with pytest.raises(ValueError, match="."):
            parse_id_list(text)


@pytest.mark.skipif(
    sys.platform != "linux" or not Path("/sys/devices/system/node/node0/cpulist").exists(),
    reason="the kernel tells no nodes",
)
def test_the_own_process_runs_where_it_may() -> None:
    row = NumaNodes().columns(os.getpid(), ProcFs())
    assert str(row["cpu_numa_node"]) in str(row["cpu_numa_nodes"]).split(",")
    assert row["memory_numa_nodes"]
