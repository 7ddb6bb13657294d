"""Process trees: who is in them, who is a loader worker, and what they do on the CPU."""

import pytest
from tests.agent.collect.processes.made_up import by, process

from gpuwarden_agent.collect.processes.procfs import TICKS_PER_S, Io, Process
from gpuwarden_agent.collect.processes.rates import (
    Rates,
    TreeReading,
    cpu_features,
    total_io,
    tree_of,
    workers_of,
)
from gpuwarden_agent.collect.processes.table import children_of


def test_a_tree_ends_at_the_next_gpu_process() -> None:
    launcher, rank, other = process(10), process(20, 10), process(30, 10)
    worker, grandchild, theirs = process(21, 20), process(22, 21), process(31, 30)
    stranger = process(99)
    all_of = by(launcher, rank, other, worker, grandchild, theirs, stranger)
    children = children_of(all_of.values())
    assert [p.pid for p in tree_of(launcher, children, {10, 20, 30})] == [10]
    assert [p.pid for p in tree_of(launcher, children, {10, 20})] == [10, 30, 31]
    assert [p.pid for p in tree_of(rank, children, {20})] == [20, 21, 22]


def test_a_look_torn_into_a_circle_still_ends() -> None:
    a, b = process(2, 3), process(3, 2)
    assert {p.pid for p in tree_of(a, children_of([a, b]), {2})} == {2, 3}


def test_named_workers_are_certain_wherever_they_are() -> None:
    root, server = process(1, 0), process(2, 1)
    worker, helper = process(3, 2, "pt_data_worker", stack=9), process(4, 1)
    assert workers_of(root, [root, server, worker, helper]) == [worker]


def test_without_names_forked_children_are_workers() -> None:
    root = process(1, 0)
    fork, program = process(2, 1, "renamed"), process(3, 1, stack=8)
    grandchild, dead = process(4, 2), process(5, 1, state="Z")
    assert workers_of(root, [root, fork, program, grandchild, dead]) == [fork]


def test_without_permission_to_see_stacks_the_name_decides() -> None:
    root = process(1, 0, stack=0)
    like, unlike = process(2, 1, stack=0), process(3, 1, "ffmpeg", stack=0)
    assert workers_of(root, [root, like, unlike]) == [like]


def look(processes: dict[int, Process], threads: dict[int, Process] | None = None) -> TreeReading:
    root = min(processes.values(), key=lambda p: p.pid)
    return TreeReading(0.0, 5000, processes, {root.identity: threads or {}})


def second(ticks_percent: float) -> int:
    return round(ticks_percent / 100 * 10 * TICKS_PER_S)


def test_features_of_a_starved_training_process() -> None:
    root = process(1, 0, ticks=1000)
    workers = [process(n, 1, "pt_data_worker", ticks=50) for n in (2, 3, 4)]
    threads = by(root._replace(ticks=900), process(11, 0, "pt_data_pin"), process(12, 0, "nccl"))
    rates = Rates(look(by(root, *workers), threads), 10.0)
    busy = [w._replace(ticks=50 + second(p)) for w, p in zip(workers, (90, 85, 20), strict=True)]
    now = by(
        root._replace(ticks=900 + second(40)),
        process(11, 0, "pt_data_pin", ticks=second(12)),
        process(12, 0, "nccl", ticks=second(5)),
    )
    tree = [root._replace(ticks=1000 + second(57)), *busy]
    assert cpu_features(root, tree, busy, now, rates) == pytest.approx(
        {
            "cpu_percent": 252,
            "children_cpu_percent": 0,
            "main_cpu_percent": 40,
            "pin_cpu_percent": 12,
            "loader_cpu_percent": 65,
            "loader_saturated_percent": 200 / 3,
            "loader_idle_percent": 0,
        }
    )


def test_without_workers_there_is_no_mean_of_workers() -> None:
    root = process(1, 0)
    values = cpu_features(root, [root], [], by(root), Rates(look(by(root), by(root)), 10.0))
    assert {name for name, value in values.items() if value is not None} == {
        "children_cpu_percent",
        "cpu_percent",
        "main_cpu_percent",
    }


@pytest.mark.parametrize(
    ("then", "percent"),
    [
        (process(5, ticks=second(30)), 20),  # the same process
        (process(5, ticks=second(80)), 0),  # its ticks fell, which they must not
        (process(5, ticks=second(10), start=99), 0),  # another process of that pid
        (None, 0),  # the earlier look missed it
    ],
)
def test_cpu_is_what_was_used_since_the_earlier_look(then: Process | None, percent: float) -> None:
    rates = Rates(look(by(process(1))), 10.0)
    assert rates.percent(process(5, ticks=second(50)), then) == pytest.approx(percent)


def test_all_that_a_new_process_used_was_since_the_earlier_look() -> None:
    rates = Rates(look(by(process(1))), 10.0)
    assert rates.percent(process(5, ticks=second(50), start=5000), None) == pytest.approx(50)


def test_io_of_a_tree_is_absent_where_a_part_may_not_be_read() -> None:
    assert total_io([Io(1, 2, 3), Io(10, 20, 30)]) == Io(11, 22, 33)
    assert total_io([Io(1, 2, 3), None]) is None
    assert total_io([]) is None


def test_children_that_are_no_workers_are_told_apart() -> None:
    root, worker, server = process(1, 0), process(2, 1, "pt_data_worker"), process(3, 1, "redis")
    rates = Rates(look(by(root, worker, server), by(root)), 10.0)
    busy = [p._replace(ticks=second(n)) for p, n in ((root, 10), (worker, 15), (server, 40))]
    values = cpu_features(busy[0], busy, [busy[1]], by(busy[0]), rates)
    assert values["cpu_percent"] == pytest.approx(65)
    assert values["children_cpu_percent"] == pytest.approx(40)
    assert (values["loader_cpu_percent"], values["loader_idle_percent"]) == (15, 100)


@pytest.mark.parametrize("name", ["pt_nccl_watchdg", "NCCL Progress 0"])
def test_threads_that_spin_for_other_gpus_are_not_the_main_thread(name: str) -> None:
    root, spinning = process(1, 0), process(9, 0, name)
    rates = Rates(look(by(root), by(root, spinning)), 10.0)
    threads = by(root._replace(ticks=second(3)), spinning._replace(ticks=second(99)))
    values = cpu_features(root, [root], [], threads, rates)
    assert values["main_cpu_percent"] == pytest.approx(3)
