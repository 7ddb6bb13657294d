"""Processes as /proc has them: odd names, odd lines, real processes, missing permission."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.collect.processes.procfs import (
    TICKS_PER_S,
    Io,
    ProcFs,
    parse_pid_io,
    parse_pid_stat,
)

REST = "1 7 7 0 -1 4194560 1 0 0 0 300 45 0 0 20 0 9 0 {start} 4096 1 18446744073709551615 1 1 140735 0"


def stat(name: str, state: str = "S", start: int = 99) -> str:
    return f"42 ({name}) {state} {REST.format(start=start)}\n"


@given(st.text(st.characters(codec="ascii", exclude_characters="\n"), max_size=15))
def test_a_name_may_hold_anything(name: str) -> None:
    process = parse_pid_stat(stat(name))
    assert (process.pid, process.name, process.parent) == (42, name, 1)
    assert (process.ticks, process.started_ticks, process.stack) == (345, 99, 140735)
    assert process.identity == (42, 99)


@pytest.mark.parametrize("text", ["", "42", "42 (x) S 1 2", "42 x S " + REST.format(start=1)])
def test_a_line_cut_short_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a stat line"):
        parse_pid_stat(text)


def test_io_counts_storage_and_system_calls_apart() -> None:
    text = "rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 2\nread_bytes: 4096\nwrite_bytes: 512\n"
    assert parse_pid_io(text) == Io(read_bytes=4096, read_chars=10, write_bytes=512)


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    for pid, text in (
        (42, stat("a b) (c")),
        (43, "torn"),
        (44, stat("x", "Z").replace("42", "44", 1)),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(text)
    (tmp_path / "45").mkdir()
    (tmp_path / "self").mkdir()
    return tmp_path


def test_a_process_that_ends_during_the_look_is_left_out(fake: Path) -> None:
    proc = ProcFs(fake)
    assert sorted(proc.pids()) == [42, 43, 44, 45]
    processes = proc.stats(proc.pids())
    assert {pid: p.name for pid, p in processes.items()} == {42: "a b) (c", 44: "x"}


def test_what_may_not_be_read_is_none(fake: Path) -> None:
    proc = ProcFs(fake)
    assert proc.io(42) is None
    assert proc.executable(42) is None
    assert proc.threads(42) == {}


@pytest.mark.parametrize(
    ("name", "are_ours"), [("kthreadd\n", True), ("bash\n", False), (None, False)]
)
def test_only_the_hosts_pid_namespace_has_the_kernels_thread(
    name: str | None, are_ours: bool, tmp_path: Path
) -> None:
    if name is not None:
        (tmp_path / "2").mkdir()
        (tmp_path / "2" / "comm").write_text(name)
    assert ProcFs(tmp_path).shows_host_pids() is are_ours


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_this_process_is_read_as_psutil_reads_it() -> None:
    proc, me = ProcFs(), psutil.Process()
    process = proc.stats([os.getpid()])[os.getpid()]
    times = me.cpu_times()
    assert process.parent == os.getppid()
    assert process.ticks / TICKS_PER_S == pytest.approx(times.user + times.system, abs=0.5)
    boot_s = proc.boot_s()
    assert boot_s is not None
    assert boot_s + process.started_ticks / TICKS_PER_S == pytest.approx(me.create_time(), abs=2)
    assert proc.uptime_ticks() >= process.started_ticks
    assert proc.executable(os.getpid()) == os.path.basename(os.path.realpath(sys.executable))
    assert os.getpid() in proc.threads(os.getpid())
    io, theirs = proc.io(os.getpid()), me.io_counters()
    assert io is not None
    assert io.read_chars == pytest.approx(theirs.read_chars, abs=1_000_000)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_a_fork_has_its_parents_stack_and_a_new_program_another() -> None:
    child = os.fork()
    if child == 0:
        os.read(_PIPE[0], 1)
        os._exit(0)
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        processes = ProcFs().stats([os.getpid(), child, program.pid])
        me = processes[os.getpid()]
        if not me.stack:
            pytest.skip("this kernel does not show where stacks begin")
        assert processes[child].stack == me.stack
        assert processes[program.pid].stack != me.stack
    finally:
        os.write(_PIPE[1], b"x")
        os.waitpid(child, 0)
        program.communicate(b"\n")


_PIPE = os.pipe()
