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

# One read of everything in a process of its own, because a process loads a library once.
READ = """
import json, os
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.once import read_once
try:
    found = discover("nvml")
except StartError as error:
    print(json.dumps({"error": str(error)}))
else:
    once = read_once(found.probes, SystemClock(), between_s=float(os.environ.get("BETWEEN_S", 0)))
    print(json.dumps({"message": found.message, "tables": once.tables, "problems": once.problems}))
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


def run(library: Path, script: str = READ, **env: str) -> Any:
    """What a script prints as JSON, run with that library in a process of its own."""
    parts = ("contract", "agent")
    paths = os.pathsep.join(str(HERE.parents[3] / part) for part in parts)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
