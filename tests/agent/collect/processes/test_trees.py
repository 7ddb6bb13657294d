"""The probe of GPU processes, on real process trees and on made-up ones."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agent.collect.nvidia.fake_driver import H100_IDLE, MISSING, Fails, FakeDevice
from tests.agent.collect.processes.made_up import MadeUpProc, process

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import GpuProcess
from gpuwarden_agent.collect.processes.cgroup import CgroupFs
from gpuwarden_agent.collect.processes.procfs import TICKS_PER_S, ProcFs
from gpuwarden_agent.collect.processes.trees import ProcessProbe
from gpuwarden_agent.collect.shared_state import SharedReading, SharedState
from gpuwarden_agent.probe import ProbeError, Row

NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


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
    gpu_columns = {"gpu": 0, "gpu_uuid": gpu.uuid, "process_type": "compute"}
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


def test_the_reason_why_no_gpu_tells_is_said(clock: ManualClock) -> None:
    hung = device(index=3)
    hung.lock.acquire()
    with pytest.raises(ProbeError, match=r"no GPU tells .* \(GPU 3: in a driver call"):
        ProcessProbe([hung], clock).read(0)


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


@pytest.fixture
def trainer(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, getattr(request, "param", "named")],
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
@pytest.mark.parametrize("trainer", ["named", "plain"], indirect=True)
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
    # A child read 8 MiB, ended and was waited for between the two readings.
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
        "process_type": "compute",
    }


@pytest.fixture
def made(tmp_path: Path) -> MadeUpProc:
    return MadeUpProc(tmp_path)


def probe_on(made: MadeUpProc, clock: ManualClock, *gpus: FakeDevice, **more: Any) -> ProcessProbe:
    cgroups = CgroupFs(made.root / "mountinfo")
    return ProcessProbe(gpus, clock, ProcFs(made.root), are_pids_ours=True, cgroups=cgroups, **more)


def test_all_that_one_look_tells_of_a_process(made: MadeUpProc, clock: ManualClock) -> None:
    root = process(7, state="D", threads=2, rss_bytes=4 << 20)
    threads = {7: ("python", 5, 30, 3), 8: ("pt_data_pin", 1, 12, 1)}
    group = made.root / "cg" / "job"
    group.mkdir(parents=True)
    for name, text in {
        "cpu.max": "150000 100000",
        "cpu.stat": "throttled_usec 500000",
        "memory.max": "4096",
        "memory.current": "1024",
    }.items():
        (group / name).write_text(text)
    (made.root / "mountinfo").write_text(f"1 1 0:1 / {made.root}/cg rw - cgroup2 c rw\n")
    command = b"python\0train.py\0--api-key=abc\0"
    made.add(root, command=command, cgroup="0::/job\n", threads=threads)
    made.add(process(9, 7, "pt_data_worker", rss_bytes=2 << 20))
    gpu = device(GpuProcess(7, 5), graphics_processes=[GpuProcess(7, 5)])
    (row,) = rows_of(probe_on(made, clock, gpu))
    told = {
        "process_name": "python",
        "process_type": "compute",
        "command": "python train.py",
        "state": "D",
        "threads": 2,
        "rss_bytes": 6 << 20,
        "voluntary_switches_total": 42,
        "involuntary_switches_total": 4,
        "cgroup": "/job",
        "cgroup_cpu_limit_cores": 1.5,
        "cgroup_cpu_throttled_seconds_total": 0.5,
        "cgroup_memory_limit_bytes": 4096,
        "cgroup_memory_used_bytes": 1024,
        "loader_workers": 1,
    }
    assert {name: row.get(name) for name in told} == told
    assert "read_bytes_total" not in row


MASKS = "SigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000180000002\n"


def test_signals_have_names(made: MadeUpProc, clock: ManualClock) -> None:
    made.add(process(7, state="D"), signals=MASKS)
    made.add(process(8))
    known, unknown = rows_of(probe_on(made, clock, device(GpuProcess(7, 5), GpuProcess(8, 5))))
    assert known["signals_pending"] == "SIGKILL, SIGTERM"
    assert known["signals_blocked"] == "none"
    assert known["signals_ignored"] == "SIGPIPE"
    assert known["signals_caught"] == "SIGINT, SIG32, SIG33"
    assert not [column for column in unknown if column.startswith("signals_")]


def test_a_process_has_its_ancestors_up_to_its_jobs_root(
    made: MadeUpProc, clock: ManualClock
) -> None:
    for one in (
        process(1, 0, "systemd"), process(3, 1, "slurmstepd"), process(4, 3, "slurm_script"),
        process(5, 4, "torchrun"), process(7, 5), process(8, 1),
    ):  # fmt: skip
        made.add(one)
    made.add(process(9, 7, "pt_data_worker"))
    ranked, orphan = rows_of(probe_on(made, clock, device(GpuProcess(7, 5), GpuProcess(8, 5))))
    assert ranked["ancestors"] == "slurmstepd (3) > slurm_script (4) > torchrun (5)"
    assert (ranked["parent_pid"], ranked["loader_pids"]) == (5, "9")
    assert (orphan["ancestors"], orphan["parent_pid"]) == ("systemd (1)", 1)
    assert "loader_pids" not in orphan


@NEEDS_PROC
def test_a_real_process_tells_its_parent_and_the_signals_that_it_ignores_blocks_and_has() -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGUSR1, print)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "signal.raise_signal(signal.SIGUSR2)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        probe = ProcessProbe(
            [device(GpuProcess(child.pid, None))], SystemClock(), are_pids_ours=True
        )
        (row,) = rows_of(probe)
    assert row["parent_pid"] == os.getpid()
    assert str(row["ancestors"]).endswith(f"({os.getpid()})")
    assert row["signals_pending"] == row["signals_blocked"] == "SIGUSR2"
    assert "SIGTERM" in str(row["signals_ignored"]).split(", ")
    assert "SIGUSR1" in str(row["signals_caught"]).split(", ")


def test_a_pid_that_was_used_again_is_another_process(made: MadeUpProc, clock: ManualClock) -> None:
    probe = probe_on(made, clock, device(GpuProcess(7, 5)))
    made.add(process(7, ticks=900), command=b"first\0", threads={7: ("first", 900, 50, 0)})
    rows_of(probe)
    clock.advance(10)
    made.uptime(1010)
    start = 1005 * TICKS_PER_S
    made.add(process(7, ticks=TICKS_PER_S, start=start), command=b"second\0")
    (row,) = rows_of(probe)
    assert (row["command"], row["cpu_percent"]) == ("second", 10)


def test_names_and_commands_that_are_no_utf_8_are_told_with_marks(
    made: MadeUpProc, clock: ManualClock
) -> None:
    folder = made.add(process(7), command=b"caf\xe9\0", cgroup="0::/\n")
    stat = (folder / "stat").read_bytes()
    (folder / "stat").write_bytes(stat.replace(b"(python)", b"(caf\xe9)"))
    (folder / "cgroup").write_bytes(b"0::/caf\xe9\n")
    (row,) = rows_of(probe_on(made, clock, device(GpuProcess(7, 5))))
    marked = "caf\ufffd"
    assert (row["process_name"], row["command"], row["cgroup"]) == (marked, marked, f"/{marked}")


def test_a_process_of_which_only_stat_is_shown(made: MadeUpProc, clock: ManualClock) -> None:
    folder = made.add(process(7, state="Z"))
    for name in ("cmdline", "environ", "cgroup", "status"):
        (folder / name).unlink()
    (row,) = rows_of(probe_on(made, clock, device(GpuProcess(7, 5))))
    assert (row["state"], row["process_name"]) == ("Z", "python")
    assert not {"command", "username", "cgroup", "voluntary_switches_total"} & row.keys()


def test_a_pod_that_its_process_does_not_name_is_the_one_that_has_the_gpu(
    made: MadeUpProc, clock: ManualClock
) -> None:
    made.add(process(7), cgroup="0::/kubepods/pod1\n")
    made.add(process(8), cgroup="0::/user.slice\n")
    gpu, shared = device(GpuProcess(7, 5), GpuProcess(8, 5)), SharedState()
    shared.pods = SharedReading(clock.monotonic(), {str(gpu.uuid): frozenset({"research/bert"})})
    rows = rows_of(probe_on(made, clock, gpu, shared=shared))
    assert [row.get("pod") for row in rows] == ["research/bert", None]


def test_how_many_processes_a_gpu_has_is_told_to_other_probes(
    made: MadeUpProc, clock: ManualClock
) -> None:
    busy, idle = device(GpuProcess(7, 5), GpuProcess(8, 5)), device(index=1)
    silent = device(index=2, compute_processes_v3=MISSING, compute_processes_v2=MISSING)
    shared = SharedState()
    probe_on(made, clock, busy, idle, silent, shared=shared).read(0)
    counts = [shared.processes_on(str(gpu.uuid), clock.monotonic()) for gpu in (busy, idle, silent)]
    assert counts == [2, 0, None]


def test_a_gpu_that_comes_later_is_watched_too(clock: ManualClock) -> None:
    probe = ProcessProbe([device()], clock, are_pids_ours=False)
    assert rows_of(probe) == []
    probe.watch(device(GpuProcess(9, 1), index=1))
    assert [(row["gpu"], row["pid"]) for row in rows_of(probe)] == [(1, 9)]


@NEEDS_PROC
def test_a_real_process_tells_its_switches_threads_and_memory(
    trainer: "subprocess.Popen[str]",
) -> None:
    probe = ProcessProbe([device(GpuProcess(trainer.pid, None))], SystemClock(), are_pids_ours=True)
    (before,) = rows_of(probe)
    root = psutil.Process(trainer.pid)

    def voluntary() -> int:
        tasks = Path(f"/proc/{trainer.pid}/task").glob("*/status")
        found = re.findall(
            r"(?m)^voluntary_ctxt_switches:\s*(\d+)", "".join(map(Path.read_text, tasks))
        )
        return sum(map(int, found))

    assert before["voluntary_switches_total"] <= voluntary()  # type: ignore[operator]
    seen = [before]

    def has_grown() -> bool:
        seen.extend(rows_of(probe))
        column = "voluntary_switches_total"
        return seen[-1][column] > before[column]  # type: ignore[operator]

    until(has_grown, "the pinning thread never sleeps")
    after = seen[-1]
    assert before["threads"] == root.num_threads()
    assert before["state"] in ("R", "S")
    assert str(before["command"]).startswith(sys.executable)
    assert after["voluntary_switches_total"] <= voluntary()  # type: ignore[operator]
    tree = [root, *root.children()]
    rss = sum(p.memory_info().rss for p in tree)
    assert after["rss_bytes"] == pytest.approx(rss, rel=0.2)
