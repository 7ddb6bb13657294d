"""Trees out of thousands of processes: the right ones, fresh, and the rest left alone."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.processes.made_up import MadeUpProc, by, process

from gpuwarden_agent.collect.processes.procfs import Process, ProcFs
from gpuwarden_agent.collect.processes.table import TURNS, ProcessTable, with_descendants


class Host(ProcFs):
    """Processes that a test keeps, and how often each is read."""

    def __init__(self, *processes: Process) -> None:
        super().__init__(Path("/nonexistent"))
        self.now = by(*processes)
        self.reads: Counter[int] = Counter()

    def pids(self) -> list[int]:
        return list(self.now)

    def stats(self, pids: Iterable[int]) -> dict[int, Process]:
        asked = list(pids)
        self.reads.update(asked)
        return {pid: self.now[pid] for pid in asked if pid in self.now}


def test_strangers_are_not_read_again() -> None:
    strangers = [process(n) for n in range(1000, 11000)]
    host = Host(process(1, 0), process(10), process(11, 10), process(12, 11), *strangers)
    table = ProcessTable(host)
    assert sorted(table.trees({10})) == [10, 11, 12]
    host.reads.clear()
    host.now[11] = host.now[11]._replace(ticks=5)
    assert table.trees({10})[11].ticks == 5
    assert host.reads.keys() >= {10, 11, 12}
    assert host.reads.total() < 3 + 2 * len(strangers) / TURNS


def test_a_stranger_that_takes_a_gpu_comes_with_its_old_children_as_they_are_now() -> None:
    host = Host(process(10), process(50), process(51, 50), process(52, 51))
    table = ProcessTable(host)
    assert sorted(table.trees({10})) == [10]
    host.now[52] = host.now[52]._replace(ticks=7)
    del host.now[51]
    host.now[52] = host.now[52]._replace(parent=50)
    found = table.trees({10, 50})
    assert sorted(found) == [10, 50, 52]
    assert found[52].ticks == 7


def test_a_pid_that_was_used_again_is_found_in_turn() -> None:
    host = Host(process(10), process(60))
    table = ProcessTable(host)
    table.trees({10})
    host.now[60] = process(60, 10, start=900)
    looks = [sorted(table.trees({10})) for _ in range(TURNS)]
    assert looks[-1] == [10, 60]


def test_what_ends_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    made = MadeUpProc(tmp_path)
    made.add(process(10))
    (tmp_path / "11").mkdir()  # its folder is listed, its stat is gone
    (made.add(process(12, 10)) / "stat").write_bytes(b"12 (\xff\xfe) S 10")
    assert sorted(ProcessTable(ProcFs(tmp_path)).trees({10, 11, 12, 13})) == [10]


@settings(max_examples=40)
@given(
    st.lists(st.dictionaries(st.integers(1, 12), st.integers(0, 12), max_size=10), max_size=4),
    st.sets(st.integers(1, 12)),
)
def test_trees_are_those_of_a_full_look_as_long_as_pids_are_not_used_again(
    looks: list[dict[int, int]], roots: set[int]
) -> None:
    host = Host()
    table = ProcessTable(host)
    parents: dict[int, int] = {}
    gone: set[int] = set()
    for look in looks:
        living = look.keys() - gone
        gone |= parents.keys() - living
        for pid in living:
            # A process keeps its parent until that ends; then it is init's.
            parent = parents.get(pid, look[pid])
            parents[pid] = parent if parent in living else 0
        host.now = by(*(process(pid, parents[pid]) for pid in living))
        assert set(table.trees(roots)) == set(with_descendants(roots, host.now))


def test_ancestors_are_read_up_to_the_first_that_is_not_shown() -> None:
    host = Host(process(5, 4), process(10, 5), process(20, 10), process(30, 20))
    table = ProcessTable(host)
    root = table.trees({30})[30]
    assert [one.pid for one in table.ancestors(root)] == [20, 10, 5]


def test_ancestors_change_when_one_of_them_ends() -> None:
    host = Host(process(1, 0, "systemd"), process(10), process(20, 10), process(30, 20))
    table = ProcessTable(host)
    assert [one.pid for one in table.ancestors(table.trees({30})[30])] == [20, 10, 1]
    del host.now[10]
    host.now[20] = host.now[20]._replace(parent=1)
    assert [one.pid for one in table.ancestors(table.trees({30})[30])] == [20, 1]
    del host.now[20]
    host.now[30] = host.now[30]._replace(parent=1)
    assert [one.pid for one in table.ancestors(table.trees({30})[30])] == [1]


def test_parents_in_a_circle_end_the_ancestors() -> None:
    host = Host(process(10, 20), process(20, 10))
    table = ProcessTable(host)
    assert [one.pid for one in table.ancestors(table.trees({10})[10])] == [20]
