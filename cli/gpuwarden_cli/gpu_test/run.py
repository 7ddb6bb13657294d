"""Runs the tests of this host's GPUs: a program of kernels for each GPU, all at once, then what needs all GPUs.

A program that hangs is killed with its process group. One that the kernel cannot end, because a driver call never
returns, is left behind and named.
"""

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files

from gpuwarden.clock import Clock
from gpuwarden.gpu_test import GpuTestResult
from gpuwarden_cli.gpu_test.readings import GpuUnderTest, ProgramOutput, of_dcgm, of_nccl

KERNEL_TESTS = ("memory", "matmul_fp32", "matmul_fp16", "copy_device", "copy_to_device", "copy_from_device")  # fmt: skip
SLACK_S = 120.0
"""Time to load a library and to initialise GPUs, for all tests of a program."""
END_S = 10.0
"""How long a killed process may take to end."""
NCCL_S, DCGM_S = 300.0, 3600.0
_LINE_BYTES_MAX = 1024**2
_SAID_BYTES = 4096

Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TestPlan:
    """What is run, and by what."""

    __test__ = False

    python: str
    """An interpreter that has PyTorch or CuPy."""
    library: str
    """auto, torch, cupy or numpy."""
    seconds: float
    """Load of each kernel test."""
    dcgm_level: int
    """0: dcgmi is not run."""
    is_whole_node: bool
    """Whether all GPUs of the node are tested: dcgmi tests all."""


async def run_tests(
    plan: TestPlan, targets: Sequence[GpuUnderTest], clock: Clock, said: Said
) -> list[GpuTestResult]:
    """Results of all tests; `said`: gets a line of progress. Never raises for a test that fails."""
    said(f"{len(targets)} GPUs: kernels, about {plan.seconds * len(KERNEL_TESTS):.0f} s")
    logs = [ProgramOutput([target], KERNEL_TESTS) for target in targets]
    async with asyncio.TaskGroup() as group:
        for log in logs:
            group.create_task(_kernels(plan, log, clock))
    results = [one for log in logs for one in log.results]
    if len(targets) > 1:
        said("copies between GPUs")
        log = ProgramOutput(targets, [f"copy_peer {number}" for number in range(len(targets))])
        await _kernels(plan, log, clock)
        results += log.results
        if nccl := shutil.which("all_reduce_perf"):
            said("all_reduce_perf")
            argv = [nccl, "-b", "1G", "-e", "1G", "-g", str(len(targets))]
            began_at = clock.now()
            text, code = await _program(argv, _visible(targets), NCCL_S)
            results.append(of_nccl(text, code, began_at, clock.now()))
    dcgmi = shutil.which("dcgmi") if plan.dcgm_level and plan.is_whole_node else None
    if dcgmi:
        said(f"dcgmi diag -r {plan.dcgm_level}")
        began_at = clock.now()
        argv = [dcgmi, "diag", "--run", str(plan.dcgm_level), "--json"]
        text, code = await _program(argv, dict(os.environ), DCGM_S)
        results.append(of_dcgm(text, code, plan.dcgm_level, began_at, clock.now()))
    return results


async def _kernels(plan: TestPlan, log: ProgramOutput, clock: Clock) -> None:
    """Run the kernels' program for the GPUs of a log, and fill the log."""
    source = files("gpuwarden_cli.gpu_test").joinpath("kernels.py").read_bytes()
    argv = [plan.python, "-", "--library", plan.library, "--seconds", str(plan.seconds), *log.tests]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=_visible(log.targets), start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )  # fmt: skip
    except OSError as error:
        log.end(f"{plan.python} cannot run: {error.strerror}", clock.now())
        return
    assert process.stdin and process.stdout and process.stderr
    heard = bytearray()
    try:
        async with asyncio.timeout(SLACK_S + 3 * plan.seconds * len(log.tests)):
            async with asyncio.TaskGroup() as group:
                group.create_task(_feed(process.stdin, source))
                group.create_task(_keep_end(process.stderr, heard))
                while line := await process.stdout.readline():
                    log.take(line.decode("utf-8", "replace"), clock.now())
            code = await process.wait()
    except TimeoutError:
        reason = "it did not end in time" + await _kill(process)
    except (ValueError, ExceptionGroup) as error:
        reason = f"its output cannot be read: {error}" + await _kill(process)
    else:
        reason = _why(code, heard.decode("utf-8", "replace"))
    finally:
        await _kill(process)
    log.end(reason, clock.now())


async def _feed(stream: asyncio.StreamWriter, source: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(source)
        await stream.drain()
    stream.close()


async def _keep_end(stream: asyncio.StreamReader, end: bytearray) -> None:
    """Read all, and keep the last bytes."""
    while some := await stream.read(_SAID_BYTES):
        end += some
        del end[:-_SAID_BYTES]


async def _program(argv: Sequence[str], env: Mapping[str, str], limit_s: float) -> tuple[str, int]:
    """The output of a program and its exit status; after `limit_s` it is killed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env, start_new_session=True
        )
    except OSError as error:
        return f"it cannot run: {error.strerror}", -1
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
        return output.decode("utf-8", "replace"), process.returncode or 0
    except TimeoutError:
        return f"it did not end within {limit_s:.0f} s" + await _kill(process), -1
    finally:
        await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> str:
    """End a process and what it started; words if the kernel does not end it."""
    if process.returncode is not None:
        return ""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        return f", and process {process.pid} cannot be ended: the driver hangs, reboot the node"
    return ""


def _why(code: int, text: str) -> str:
    """Why a program ended too early; empty: it did not."""
    if code in (0, 3):
        return ""
    last = text.strip().rpartition("\n")[2]
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    return f"the program {ended}{': ' if last else ''}{last}"


def _visible(targets: Sequence[GpuUnderTest]) -> dict[str, str]:
    """An environment in which CUDA sees these GPUs alone, in this order."""
    shown = ",".join(target.gpu_uuid for target in targets)
    return {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": shown}
