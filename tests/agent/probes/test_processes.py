"""Process trees: who is in them, who is a loader worker, and what they do on the CPU."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agent.probes.fake_driver import H100_IDLE, MISSING, Fails, FakeDevice

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.probe import ProbeError, Row
from gpuwarden_agent.probes import nvml_driver as nvml
from gpuwarden_agent.probes.nvml_driver import GpuProcess
from gpuwarden_agent.probes.owner import Owner
from gpuwarden_agent.probes.processes import (
    Life,
    Look,
    ProcessProbe,
    Rates,
    by_pid,
    children_of,
    cpu_features,
    total_io,
    tree_of,
    workers_of,
)
from gpuwarden_agent.probes.procfs import TICKS_PER_S, Io, Process, ProcFs

OWNER = Owner("python", None, None, None, None, None)
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


def process(
    pid: int,
    parent: int = 1,
    name: str = "python",
    ticks: int = 0,
    start: int = 100,
    stack: int = 7,
    state: str = "S",
) -> Process:
    return Process(pid, parent, name, state, ticks, start, stack)


def by(*processes: Process) -> dict[int, Process]:
    return {p.pid: p for p in processes}


def test_a_tree_ends_at_the_next_gpu_process() -> None:
    launcher, rank, other = process(10), process(20, 10), process(30, 10)
    worker, grandchild, theirs = process(21, 20), process(22, 21), process(31, 30)
    stranger = process(99)
    all_of = by(launcher, rank, other, worker, grandchild, theirs, stranger)
    children = children_of(all_of)
    assert [p.pid for p in tree_of(launcher, children, {10, 20, 30})] == [10]
    assert [p.pid for p in tree_of(launcher, children, {10, 20})] == [10, 30, 31]
    assert [p.pid for p in tree_of(rank, children, {20})] == [20, 21, 22]


def test_a_look_torn_into_a_circle_still_ends() -> None:
    a, b = process(2, 3), process(3, 2)
    assert {p.pid for p in tree_of(a, children_of(by(a, b)), {2})} == {2, 3}


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


def look(processes: dict[int, Process], threads: dict[int, Process] | None = None) -> Look:
    root = min(processes.values(), key=lambda p: p.pid)
    return Look(0.0, 5000, processes, {root.identity: threads or {}})


def second(ticks_percent: float) -> int:
    return round(ticks_percent / 100 * 10 * TICKS_PER_S)


def test_features_of_a_starved_training_process() -> None:
    root = process(1, 0, ticks=1000)
    workers = [process(n, 1, "pt_data_worker", ticks=50) for n in (2, 3, 4)]
    threads = by(replace(root, ticks=900), process(11, 0, "pt_data_pin"), process(12, 0, "nccl"))
    rates = Rates(look(by(root, *workers), threads), 10.0)
    busy = [replace(w, ticks=50 + second(p)) for w, p in zip(workers, (90, 85, 20), strict=True)]
    now = by(
        replace(root, ticks=900 + second(40)),
        process(11, 0, "pt_data_pin", ticks=second(12)),
        process(12, 0, "nccl", ticks=second(5)),
    )
    tree = [replace(root, ticks=1000 + second(57)), *busy]
    assert cpu_features(root, tree, busy, now, rates) == pytest.approx(
        {
            "cpu_percent": 252,
            "main_cpu_percent": 40,
            "pin_cpu_percent": 12,
            "loader_cpu_percent": 65,
            "loader_saturated_percent": 200 / 3,
        }
    )


def test_without_workers_there_is_no_mean_of_workers() -> None:
    root = process(1, 0)
    values = cpu_features(root, [root], [], by(root), Rates(look(by(root), by(root)), 10.0))
    assert {name for name, value in values.items() if value is not None} == {
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


def test_io_counters_do_not_fall_while_a_child_waits_to_be_buried() -> None:
    life = Life(OWNER)
    seen = [life.saw_io(io) for io in (Io(5, 5, 5), Io(3, 9, 5), None, Io(6, 6, 6))]
    assert seen == [Io(5, 5, 5), Io(5, 9, 5), None, Io(6, 9, 6)]


def test_workers_started_counts_each_once() -> None:
    life = Life(OWNER)
    first, second_, again = process(2), process(3), process(2, start=200)
    counts = [life.saw_workers(w) for w in ([first, second_], [first, second_], [], [again])]
    assert counts == [2, 2, 2, 3]


def test_a_process_in_two_mig_instances_is_one_row() -> None:
    listed = [GpuProcess(1, 5), GpuProcess(2, None), GpuProcess(1, 7), GpuProcess(1, None)]
    assert by_pid(listed) == [GpuProcess(1, 12), GpuProcess(2, None)]


def device(*held: GpuProcess, index: int = 0, **answers: Any) -> FakeDevice:
    made = FakeDevice(H100_IDLE | {"compute_processes_v3": held} | answers, index=index)
    made.open()
    return made


def rows_of(probe: ProcessProbe) -> list[Row]:
    return list(probe.read(0)["process_samples"])


def test_without_the_hosts_pids_only_the_drivers_word_is_told(
    clock: ManualClock, tmp_path: Path
) -> None:
    gpu = device(GpuProcess(os.getpid(), 1 << 30), GpuProcess(7, None))
    probe = ProcessProbe([gpu], clock, ProcFs(tmp_path))
    gpu_columns = {"gpu": 0, "gpu_uuid": gpu.uuid}
    assert rows_of(probe) == [
        {**gpu_columns, "pid": os.getpid(), "gpu_memory_bytes": 1 << 30},
        {**gpu_columns, "pid": 7},
    ]


def test_an_old_driver_is_asked_by_the_older_call(clock: ManualClock) -> None:
    gpu = device(compute_processes_v3=MISSING, compute_processes_v2=[GpuProcess(2**22 + 1, 5)])
    probe = ProcessProbe([gpu], clock, are_pids_ours=False)
    assert [row["gpu_memory_bytes"] for row in rows_of(probe)] == [5]


def test_a_dead_or_hung_gpu_does_not_hide_the_processes_of_the_others(clock: ManualClock) -> None:
    dead = device(index=0, compute_processes_v3=Fails(nvml.GPU_IS_LOST))
    hung, good = device(index=1), device(GpuProcess(2**22 + 1, 5), index=2)
    hung.lock.acquire()
    probe = ProcessProbe([dead, hung, good], clock, are_pids_ours=False)
    assert [row["gpu"] for row in rows_of(probe)] == [2]
    assert sorted(reason[:5] for reason in probe.failed) == ["GPU 0", "GPU 1"]
    assert hung.calls["compute_processes_v3"] == 0


def test_when_no_gpu_tells_that_is_an_error_and_not_no_processes(clock: ManualClock) -> None:
    fails = dict.fromkeys(("compute_processes_v3", "compute_processes_v2"), Fails(nvml.UNKNOWN))
    probe = ProcessProbe([device(**fails)], clock)
    with pytest.raises(ProbeError, match="no GPU tells"):
        probe.read(0)


def test_idle_gpus_cost_no_look_at_proc(clock: ManualClock, tmp_path: Path) -> None:
    probe = ProcessProbe([device()], clock, ProcFs(tmp_path / "missing"), are_pids_ours=True)
    assert rows_of(probe) == []


# A process tree as PyTorch makes one: a pinning thread and forked workers, of which one works.
TRAINER = """
import ctypes, os, sys, threading, time
prctl = ctypes.CDLL(None).prctl

def name(text):
    prctl(15, text.encode(), 0, 0, 0)

def burn():
    while True:
        sum(range(10000))

def pin():
    name("pt_data_pin")
    while True:
        time.sleep(0.02)
        sum(range(400000))

def worker(busy, named):
    is_named, has_name = os.pipe()
    pid = os.fork()
    if pid == 0:
        if named:
            name("pt_data_worker")
        os.write(has_name, b"x")
        burn() if busy else time.sleep(600)
    os.read(is_named, 1)
    return pid

named = sys.argv[1] == "named"
pids = [worker(True, named), worker(False, named)]
threading.Thread(target=pin, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    reader = os.fork()
    if reader == 0:
        with open("/dev/zero", "rb", buffering=0) as zeros:
            for _ in range(8):
                zeros.read(1 << 20)
        os._exit(0)
    os.waitpid(reader, 0)
    pids = [worker(False, named) for _ in range(3)]
    print("ready", flush=True)
for pid in pids:
    os.kill(pid, 9)
"""


@pytest.fixture(params=["named", "plain"])
def trainer(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        yield running
        assert running.stdin is not None
        running.stdin.close()
        running.wait(10)


def until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@NEEDS_PROC
def test_a_real_process_tree_is_told_as_it_is(trainer: "subprocess.Popen[str]") -> None:
    gpu = device(GpuProcess(trainer.pid, 3 << 30))
    probe = ProcessProbe([gpu], SystemClock(), are_pids_ours=True)
    root = psutil.Process(trainer.pid)
    tree = [root, *root.children()]

    def cpu_s() -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in tree)

    (first,) = rows_of(probe)
    before_s, started = cpu_s(), time.monotonic()
    until(lambda: cpu_s() - before_s > 0.6, "the workers use no CPU")
    (row,) = rows_of(probe)
    percent = 100 * (cpu_s() - before_s) / (time.monotonic() - started)

    assert "cpu_percent" not in first
    assert row["gpu_uuid"] == gpu.uuid
    assert row["gpu_memory_bytes"] == 3 << 30
    assert row["process_name"] == os.path.basename(os.path.realpath(sys.executable))
    assert row["username"] == root.username()
    assert row["started_at"] == pytest.approx(root.create_time() * 1000, abs=2000)
    assert row["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert row["cpu_percent"] == pytest.approx(percent, rel=0.3, abs=5)
    assert row["loader_workers"] == 2
    assert row["loader_started_total"] == 2
    assert row["loader_blocked_percent"] in (0.0, 50.0)
    # One of the two workers burns, so that the mean is half of what it uses.
    assert 0 < row["loader_cpu_percent"] <= 60  # type: ignore[operator]
    assert row["loader_saturated_percent"] == (50 if row["loader_cpu_percent"] >= 42.5 else 0)  # type: ignore[operator]
    assert 0 < row["pin_cpu_percent"] < row["cpu_percent"]  # type: ignore[operator]
    assert row["main_cpu_percent"] < row["pin_cpu_percent"]  # type: ignore[operator]


@NEEDS_PROC
def test_an_epoch_with_new_workers_is_counted_and_its_reads_are_kept(
    trainer: "subprocess.Popen[str]",
) -> None:
    probe = ProcessProbe([device(GpuProcess(trainer.pid, None))], SystemClock(), are_pids_ours=True)
    (before,) = rows_of(probe)
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write("epoch\n")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "ready\n"
    (after,) = rows_of(probe)
    assert (after["loader_workers"], after["loader_started_total"]) == (3, 5)
    if "read_chars_total" not in before:
        pytest.skip("this kernel does not count I/O of processes")
    # A child read 8 MiB, ended and was waited for between the two looks.
    assert after["read_chars_total"] - before["read_chars_total"] >= 8 << 20  # type: ignore[operator]


@NEEDS_PROC
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_agent_without_rights_tells_all_but_io(trainer: "subprocess.Popen[str]") -> None:
    pipe = os.pipe()
    reader = os.fork()
    if reader == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            gpu = device(GpuProcess(trainer.pid, 5))
            probe = ProcessProbe([gpu], SystemClock(), are_pids_ours=True)
            rows_of(probe)
            time.sleep(0.3)
            os.write(pipe[1], json.dumps(rows_of(probe)).encode())
        finally:
            os._exit(0)
    os.close(pipe[1])
    with os.fdopen(pipe[0], "rb") as written:
        (row,) = json.loads(written.read())
    os.waitpid(reader, 0)
    assert not [column for column in row if column.endswith(("bytes_total", "chars_total"))]
    assert (row["loader_workers"], row["username"]) == (2, "root")
    assert row["cpu_percent"] > 0
    assert row["cpus_allowed"] == len(os.sched_getaffinity(0))


@NEEDS_PROC
def test_a_gpu_that_does_not_answer_for_a_while_keeps_its_counters(
    trainer: "subprocess.Popen[str]",
) -> None:
    gpu = device(GpuProcess(trainer.pid, None))
    probe = ProcessProbe([gpu, device(index=1)], SystemClock(), are_pids_ours=True)
    rows_of(probe)
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write("epoch\n")
    trainer.stdin.flush()
    assert trainer.stdout.readline() == "ready\n"
    gpu.lock.acquire()
    assert rows_of(probe) == []
    gpu.lock.release()
    assert [row["loader_started_total"] for row in rows_of(probe)] == [5]


def test_a_proc_that_cannot_be_read_leaves_the_drivers_word(
    clock: ManualClock, tmp_path: Path
) -> None:
    probe = ProcessProbe(
        [device(GpuProcess(7, 5))], clock, ProcFs(tmp_path / "missing"), are_pids_ours=True
    )
    assert [row["gpu_memory_bytes"] for row in rows_of(probe)] == [5]
    assert len(probe.failed) == 1


@NEEDS_PROC
def test_a_process_that_ended_keeps_its_memory_and_nothing_else() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gpu = device(GpuProcess(ended.pid, 1 << 30))
    (row,) = rows_of(ProcessProbe([gpu], SystemClock(), are_pids_ours=True))
    assert row == {
        "gpu": 0,
        "gpu_uuid": gpu.uuid,
        "pid": ended.pid,
        "gpu_memory_bytes": 1 << 30,
    }
