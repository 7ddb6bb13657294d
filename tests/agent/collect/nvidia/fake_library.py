"""Compiles a driver's library, and reads everything from it through the real binding."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MIB = 1024 * 1024

READ = """
import os
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.once import read_once
try:
    found = discover("nvml")
except StartError as error:
    say({"error": str(error)})
else:
    once = read_once(found.probes, SystemClock(), between_s=float(os.environ.get("BETWEEN_S", 0)))
    say({"message": found.message, "tables": once.tables, "problems": once.problems})
"""
"""One read of everything."""

# Modules are loaded once. A process loads a library once, and so each script has one of its own.
EACH = """
import json, os, sys
import gpuwarden_agent.collect.discovery, gpuwarden_agent.once
from gpuwarden_agent.collect.nvidia import device, gpu, query

def say(answer):
    print(json.dumps(answer), flush=True)

for script, env in json.load(sys.stdin):
    if (child := os.fork()) == 0:
        os.environ.update(env)
        exec(script)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, env
"""


def compiled(folder: Path, *, is_old: bool = False) -> Path:
    """The folder, with a libnvidia-ml.so.1 in it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a driver's library with")
    flags = ["-DOLD_DRIVER"] if is_old else []
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", *flags, "-o", folder / "libnvidia-ml.so.1"]
        + [HERE / "fake_nvml.c"],
        check=True,
        timeout=60,
    )
    return folder


def run(library: Path, *cases: tuple[str, dict[str, str]]) -> list[Any]:
    """What each script says with that library and its environment."""
    parts = ("contract", "agent")
    paths = os.pathsep.join(str(HERE.parents[3] / part) for part in parts)
    done = subprocess.run(
        [sys.executable, "-c", EACH],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": paths},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
