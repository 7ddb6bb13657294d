"""`gpuwarden agent test-gpus`: what it runs and refuses, and how it reports programs that hang or crash."""

import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_cli.commands import gpu_test as command
from gpuwarden_cli.gpu_test import run as running
from gpuwarden_cli.main import main

KERNELS_SAY = """
print('{"library": "torch 2.9"}')
for test in sys.argv[sys.argv.index("--seconds") + 2:]:
    print(json.dumps({"begin": test}))
    print(json.dumps({"test": test, "value": 1.5, "wrong": 0, "finding": os.environ["CUDA_VISIBLE_DEVICES"]}))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Makes a Python program on PATH, and returns where it is."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, body: str) -> str:
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def ran(*words: str, gpus: int = 2) -> int:
    """Run the command on a simulated node."""
    return main(["agent", "test-gpus", "--backend", "simulator", "--node", "n1", "--no-send", *words])  # fmt: skip


def results(capsys: Any) -> dict[tuple[int | None, str], dict[str, Any]]:
    document = json.loads(capsys.readouterr().out)
    return {(one["gpu"], one["test"]): one for one in document["results"]}


def test_kernels_see_one_gpu_each_and_copies_between_gpus_all(program, capsys) -> None:
    python = program("kernels", KERNELS_SAY)
    assert ran("1", "3", "--python", python, "--format", "json") == 0
    found = results(capsys)
    uuids = {gpu: found[gpu, "memory"]["gpu_uuid"] for gpu in (1, 3)}
    for gpu, uuid in uuids.items():
        assert {found[gpu, test]["finding"] for test in running.KERNEL_TESTS} == {uuid}
        assert found[gpu, "copy_peer"]["finding"] == f"{uuids[1]},{uuids[3]}"
        assert found[gpu, "copy_peer"]["tool"] == "torch 2.9"
    assert len(found) == 14


def test_nvidias_tools_run_where_they_are_and_dcgmi_for_whole_nodes(program, capsys) -> None:
    python = program("kernels", KERNELS_SAY)
    program("all_reduce_perf", "print(sys.argv); print('# Avg bus bandwidth    : 99.5 ')")
    result = {"entity_id": 1, "status": "Fail", "warnings": [{"warning": "remap pending"}]}
    said = {"x": {"test_categories": [{"tests": [{"name": "memory", "results": [result]}]}]}}
    program("dcgmi", f"assert sys.argv[1:] == ['diag', '--run', '3', '--json']; print({json.dumps(json.dumps(said))})")  # fmt: skip
    assert ran("--python", python, "--dcgm", "3") == 1
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert "nccl ok 99.5 GB/s all sums are right" in out
    assert "dcgm fail – memory of GPU 1: remap pending" in out
    assert "n1: 1 of 58 tests failed" in out
    assert ran("0", "1", "--python", python, "--format", "json") == 0
    assert (None, "dcgm") not in results(capsys)


def test_a_program_that_hangs_is_killed_with_what_it_started(
    program, capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(running, "SLACK_S", 2.0)
    python = program(
        "kernels",
        f"""
print('{{"begin": "memory"}}', flush=True)
if not os.fork():
    open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
time.sleep(60)
""",
    )
    began = time.monotonic()
    assert ran("0", "--python", python, "--seconds", "0.01", "--format", "json") == 1
    assert time.monotonic() - began < 30
    found = results(capsys)
    assert found[0, "memory"]["finding"] == "it did not end in time"
    assert found[0, "matmul_fp32"]["status"] == "skipped"
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(child, 0)
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.kill(os.getpid(), 11)", f"the program was ended by signal {int(signal.SIGSEGV)}"),
        ("sys.exit('libcuda.so.1: cannot open')", "the program ended with 1: libcuda.so.1: cannot open"),
        ("print('x' * 3_000_000, flush=True); time.sleep(60)", "its output cannot be read"),
    ],
)  # fmt: skip
def test_a_program_that_tells_nothing_fails_its_first_test(program, capsys, body, said) -> None:
    assert ran("0", "--python", program("kernels", body), "--format", "json") == 1
    assert said in results(capsys)[0, "memory"]["finding"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("9",), "there is no NVIDIA GPU 9 here"),
        (("--seconds", "0"), "--seconds 0 must be above 0"),
        (("0",), "nothing was tested: PyTorch: "),
    ],
)  # fmt: skip
def test_what_cannot_be_tested_is_one_line(capsys, words, said) -> None:
    assert ran(*words) == 2
    err = capsys.readouterr().err.splitlines()
    assert said in err[-1]


def test_a_gpu_in_use_is_not_tested() -> None:
    gpus = [{"gpu": 0, "gpu_uuid": "GPU-0"}, {"gpu": 1, "gpu_uuid": "GPU-1"}]
    process = {"gpu": 1, "gpu_uuid": "GPU-1", "pid": 77, "process_name": "python", "username": "ada"}  # fmt: skip
    command._refuse_busy(gpus[:1], [process])
    with pytest.raises(command.StartError, match=r"GPU 1 is used by process 77 \(python of ada\)"):
        command._refuse_busy(gpus, [process])
