"""The kernel refuses a query process what it does not need."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_collector.processes.sandbox import installation, landlock_version
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.address import local_address
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.state import StateFile

ATTEMPTS = """
import ctypes, errno, json, os, pickle, platform, signal, socket, struct, sys, threading
from pathlib import Path
from gpuwarden_collector.processes.sandbox import confine
from gpuwarden_collector.query.worker import needs

settings = pickle.load(sys.stdin.buffer)
data = settings.data_dir
settings.spill.mkdir(parents=True, exist_ok=True)
held = confine(needs(settings))

NUMBERS = {
    "x86_64": {"tgkill": 234, "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "fork": 57},
    "aarch64": {"tgkill": 131, "tkill": 130, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240},
}
libc = ctypes.CDLL(None, use_errno=True)
parent = os.getppid()
# A code below zero is what one process may send to another: SI_QUEUE.
info = struct.pack("=iii", 10, 0, -1).ljust(128, b"\\0")

def call(name, *arguments, ends=False):
    number = NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise PermissionError("there is no such call")
    done = libc.syscall(number, *arguments)
    if ends and done == 0:
        os._exit(0)
    # EPERM is of Landlock, which not every kernel has for signals.
    if done < 0 and ctypes.get_errno() == errno.EACCES:
        raise PermissionError(name)

def forked():
    if os.fork() == 0:
        os._exit(0)

def threaded():
    ran = []
    thread = threading.Thread(target=lambda: ran.append(1))
    try:
        thread.start()
    except RuntimeError as error:
        raise PermissionError from error
    thread.join()
    assert ran

def attempt(work):
    try:
        work()
    except PermissionError:
        return "refused"
    return "done"

print(json.dumps({
    "held": sorted(held),
    "read state": attempt(lambda: (data / "state.sqlite").read_bytes()),
    "read segments": attempt(lambda: list((data / "segments").iterdir())),
    "read catalogue": attempt(lambda: (data / "lake/catalog.sqlite").read_bytes()),
    "spill": attempt(lambda: (settings.spill / "x").write_bytes(b"x")),
    "read tokens": attempt(lambda: (data / "tokens.json").read_bytes()),
    "read a system file": attempt(lambda: Path("/etc/passwd").read_bytes()),
    "read another's variables": attempt(lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes()),
    "write state": attempt(lambda: open(data / "state.sqlite", "r+b")),
    "write catalogue": attempt(lambda: open(data / "lake/catalog.sqlite", "r+b")),
    "delete from the lake": attempt(lambda: (data / "lake/data/x.parquet").unlink()),
    "make a file": attempt(lambda: (data / "new").write_bytes(b"x")),
    "open a socket": attempt(lambda: socket.socket()),
    "run a program": attempt(lambda: os.execv("/bin/true", ["true"])),
    "end another process": attempt(lambda: os.kill(os.getppid(), 0)),
    "signal a thread of another process": attempt(lambda: call("tgkill", parent, parent, 0)),
    "signal any thread": attempt(lambda: call("tkill", parent, 0)),
    "queue a signal": attempt(lambda: call("rt_sigqueueinfo", parent, 10, info)),
    "queue a signal to a thread": attempt(
        lambda: call("rt_tgsigqueueinfo", parent, parent, 10, info)
    ),
    "fork": attempt(forked),
    "fork by the old call": attempt(lambda: call("fork", ends=True)),
    "start a thread": attempt(threaded),
    "signal its own thread": attempt(lambda: call("tgkill", os.getpid(), os.getpid(), 0)),
}))
"""
ALLOWED = {
    "read state",
    "read segments",
    "read catalogue",
    "spill",
    "start a thread",
    "signal its own thread",
}
BY_LANDLOCK = {
    "read tokens",
    "read a system file",
    "write state",
    "write catalogue",
    "delete from the lake",
    "make a file",
}


def test_files_programs_sockets_processes_and_signals_that_are_not_its_own_are_refused(
    worker_settings: WorkerSettings,
) -> None:
    (worker_settings.data_dir / "tokens.json").write_text("{}")
    (worker_settings.data_dir / "lake/data/x.parquet").write_text("x")
    done = subprocess.run(
        [sys.executable, "-P", "-c", ATTEMPTS],
        input=pickle.dumps(worker_settings),
        capture_output=True,
        check=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    tried: dict[str, str] = json.loads(done.stdout)
    if landlock_version():
        assert {name for name in ALLOWED if tried[name] != "done"} == set()
        assert {name for name in BY_LANDLOCK if tried[name] != "refused"} == set()
    if "seccomp" in tried["held"]:
        assert {name for name in tried if tried[name] == "done"} <= ALLOWED | BY_LANDLOCK
        assert "no_new_privileges" in tried["held"]


async def test_a_query_process_is_confined_and_holds_nothing_of_the_collector(
    worker_settings: WorkerSettings,
) -> None:
    async with SqlQuerier(worker_settings, Stats(), SystemClock()) as querier:
        assert (await querier.query("SELECT count(*) FROM gpu_samples")).rows == [(0,)]
        (pid,) = querier.pids
        status, held = _shown(pid)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert len([name for name in held if name.startswith("socket:")]) == 1
    files = {Path(name).name.partition("-")[0] for name in held if name.startswith("/")}
    assert files <= {"state.sqlite", "catalog.sqlite", "statm"}


async def test_a_catalogue_that_nobody_has_open_can_be_read(data_dir: Path) -> None:
    state = StateFile(data_dir / "state.sqlite")
    assert not (data_dir / "lake/catalog.sqlite-shm").exists()
    limits = EngineLimits(memory="256MiB", threads=1)
    settings = WorkerSettings(
        data_dir, local_address(data_dir), limits, data_dir / "spill", 1 << 30
    )
    async with SqlQuerier(settings, Stats(), SystemClock()) as querier:
        assert (await querier.query("SELECT count(*) FROM gpu_samples")).rows == [(0,)]
        for name in ("shm", "wal"):  # as who was the last to have it open leaves it
            (data_dir / f"lake/catalog.sqlite-{name}").unlink()
    async with SqlQuerier(settings, Stats(), SystemClock()) as querier:
        assert (await querier.query("SELECT count(*) FROM gpu_samples")).rows == [(0,)]
    state.close()


def _shown(pid: int) -> tuple[dict[str, str], list[str]]:
    """Status of a process, and what its descriptors are of, except the first three."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    numbers = [n for n in os.listdir(f"/proc/{pid}/fd") if int(n) > 2]
    held = [os.readlink(f"/proc/{pid}/fd/{n}") for n in numbers]
    return dict(line.split(":\t", 1) for line in lines), held


def test_a_user_without_a_home_may_run_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, whose user is a number."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert Path(os.devnull) in installation()
