"""Runs the loops of a node as processes: starts them, waits until they are at their pace, ends them."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.diagnosis.devices import SimulatedDevice
from bench.diagnosis.limits import Limited, disk_of
from bench.diagnosis.meter import Meter
from bench.diagnosis.scenarios import Scenario

HERE = Path(__file__).resolve().parent
STORE = (sys.executable, str(HERE / "store.py"))
READY_TIMEOUT_S = 180.0
SMALL_FILES, SIDE = 16, 224
LARGE_BYTES = 64_000_000
STORE_ADDRESS, NODE_ADDRESS = "10.111.0.1", "10.111.0.2"
BURNER = "import time\nwhile True:\n e = time.monotonic() + .06\n while time.monotonic() < e: pass\n time.sleep(.04)"


class StageError(Exception):
    """A loop could not be run; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings that all loops of a run share."""

    python: str
    """An interpreter that has PyTorch."""
    files: Path
    """Folder of the data sets, on a real disk."""
    speed_s: float
    seed: int
    store: str = ""
    """host:port of the store on the network."""
    workers: int | None = None
    """Instead of the scenario's own number of loader workers."""


@dataclass(slots=True)
class Loop:
    """One rank of a scenario that runs."""

    scenario: Scenario
    device: SimulatedDevice
    process: "subprocess.Popen[bytes]"
    errors: Path
    limited: Limited | None

    def check(self) -> None:
        """Raises StageError where it has ended."""
        if self.process.poll() is not None:
            lines = self.errors.read_text(errors="replace").strip().splitlines()
            why = lines[-1] if lines else f"exit code {self.process.returncode}"
            raise StageError(f"{self.scenario.name} ended: {why}")


def make_files(folder: Path) -> None:
    """Write the data sets where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(SMALL_FILES):
        pixels = random.Random(number).randbytes(SIDE * SIDE) * 3
        _write(folder / f"small-{number}", zlib.compress(pixels, 1))
    _write(folder / "large", bytes(LARGE_BYTES))


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.stat().st_size != len(content):
        path.write_bytes(content)


@contextmanager
def running(scenarios: Sequence[Scenario], setting: Setting) -> Iterator[list[Loop]]:
    """The loops, at their pace. Raises StageError and LimitError."""
    with ExitStack() as stack:
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuwarden-bench-")))
        (shared / "vllm").symlink_to(HERE / "jobs.py")
        loops: list[Loop] = []
        for scenario in scenarios:
            own = shared / scenario.name
            own.mkdir()
            for rank in range(scenario.ranks):
                index = len(loops)
                meter = Meter(shared / f"gpu-{index}")
                stack.callback(meter.close)
                loops.append(_started(stack, scenario, rank, index, meter, shared, setting))
        _wait_until(loops, lambda loop: loop.device.meter.use().has_begun, "loaded")
        for loop in loops:
            if loop.limited:  # not before: a program is read from the disk as well
                loop.limited.hold()
        _wait_until(loops, lambda loop: loop.device.meter.use().is_ready, "at their pace")
        yield loops
        for loop in loops:
            loop.check()


def _started(
    stack: ExitStack,
    scenario: Scenario,
    rank: int,
    index: int,
    meter: Meter,
    shared: Path,
    setting: Setting,
) -> Loop:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "BENCH_METER": str(shared / f"gpu-{index}"),
        "BENCH_SHARED": str(shared / scenario.name),
        "BENCH_FILES": str(setting.files),
        "BENCH_STEP_S": str(setting.speed_s),
        "BENCH_SEED": str(setting.seed),
        "BENCH_RANK": str(rank),
        "BENCH_STORE": setting.store,
    }
    if setting.workers is not None:
        environment["BENCH_WORKERS"] = str(setting.workers)
    errors = shared / f"errors-{index}"
    program = str(shared / "vllm") if scenario.name == "serving" else "jobs.py"
    limited = _limited(scenario, f"{os.getpid()}-{index}", setting.files)
    if limited:
        stack.callback(limited.remove)
    with errors.open("wb") as file:
        command = [setting.python, program, scenario.name]
        process = _spawn(command, env=environment, stderr=file)
    stack.callback(_end, process, limited)
    if limited:
        limited.take(process.pid)
    device = SimulatedDevice(index, f"GPU-{scenario.name}-{rank}", meter, process.pid)
    return Loop(scenario, device, process, errors, limited)


def _limited(scenario: Scenario, name: str, files: Path) -> Limited | None:
    if scenario.cpu_limit_cores is None and scenario.read_limit is None:
        return None
    return Limited(
        name,
        cpu_cores=scenario.cpu_limit_cores,
        read_limit=scenario.read_limit,
        disk=disk_of(files),
    )


def _spawn(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, stderr: IO[bytes] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own, which ends with this one whatever ends this one."""
    return subprocess.Popen(
        command, cwd=HERE, env=env, stderr=stderr, stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no threads yet
    )  # fmt: skip


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end(process: "subprocess.Popen[bytes]", limited: Limited | None = None) -> None:
    if limited:
        limited.release()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_until(loops: Sequence[Loop], is_so: Callable[[Loop], bool], what: str) -> None:
    until_s = time.monotonic() + READY_TIMEOUT_S
    while late := [loop for loop in loops if not is_so(loop)]:
        for loop in loops:
            loop.check()
        if time.monotonic() > until_s:
            names = ", ".join(loop.scenario.name for loop in late)
            raise StageError(f"not {what} after {READY_TIMEOUT_S:.0f} s: {names}")
        time.sleep(0.2)


@contextmanager
def background_load() -> Iterator[None]:
    """Somebody else's work on the node: 60 % of a core."""
    process = _spawn([sys.executable, "-c", BURNER])
    try:
        yield
    finally:
        _end(process)


@contextmanager
def network_store() -> Iterator[str]:
    """A store at the other end of a network cable; only within a network namespace of one's own.

    Raises StageError.
    """
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder:
        told = Path(folder) / "address"
        process = _spawn(["unshare", "--net", *STORE, "0.0.0.0", str(told)])
        try:
            _wait_for(told, process)
            pid = str(process.pid)
            inside = ("nsenter", f"--net=/proc/{pid}/ns/net")
            for command in (
                ("mount", "-t", "sysfs", "sysfs", "/sys"),
                ("ip", "link", "set", "lo", "up"),
                ("ip", "link", "add", "far", "type", "veth", "peer", "name", "near", "netns", pid),
                ("ip", "address", "add", f"{NODE_ADDRESS}/30", "dev", "far"),
                ("ip", "link", "set", "far", "up"),
                (*inside, "ip", "address", "add", f"{STORE_ADDRESS}/30", "dev", "near"),
                (*inside, "ip", "link", "set", "near", "up"),
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise StageError(f"{' '.join(command)}: {done.stderr.strip()}")
            port = told.read_text().rpartition(":")[2]
            yield f"{STORE_ADDRESS}:{port}"
        finally:
            _end(process)


@contextmanager
def local_store() -> Iterator[str]:
    """The same on this host's own loopback."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder:
        told = Path(folder) / "address"
        process = _spawn([*STORE, "127.0.0.1", str(told)])
        try:
            _wait_for(told, process)
            yield told.read_text()
        finally:
            _end(process)


def _wait_for(told: Path, process: "subprocess.Popen[bytes]") -> None:
    while not told.exists():
        if process.poll() is not None:
            raise StageError("the store of files ended")
        time.sleep(0.05)


def check_python(python: str) -> None:
    """Raises StageError where that interpreter has no PyTorch."""
    try:
        done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)  # fmt: skip
    except OSError as error:
        raise StageError(f"{python} cannot be run: {error.strerror}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StageError(
            f"{python} has no PyTorch ({last}): install the extra `bench` there, or name another "
            "interpreter with --python"
        )
