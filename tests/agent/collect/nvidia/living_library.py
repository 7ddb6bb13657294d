"""Drivers of two versions whose kernel module comes and goes, and scenes on the real binding."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LIBRARY = "libnvidia-ml.so.1"

# What every scene can use: the files that are the kernel, and what the agent knows of them.
STAGE = """
import json, os, pathlib, shutil, sys, threading, time
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.device import open_driver
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.nvml import NvmlError, NvmlUnavailable
from gpuwarden_agent.collect.nvidia.session import NVML
here = pathlib.Path(os.environ["HERE"])
installed, module = here / "installed" / "libnvidia-ml.so.1", here / "module"
hang, events = here / "hang", here / "events"

def install(version):
    shutil.copy(here / version / installed.name, here / "new")
    (here / "new").replace(installed)

def load(text):
    (here / "new").write_text(text)
    (here / "new").replace(module)

def tell(*lines):
    with events.open("a") as file:
        file.writelines(line + chr(10) for line in lines)

def ask(device, reading, *arguments):
    return device.ask(ROWS[reading], *arguments)

def code_of(call, *arguments):
    try:
        return call(*arguments)
    except NvmlError as error:
        return error.code

def reason(answer):
    return answer.code if isinstance(answer, NvmlUnavailable) else None

said = []
say = said.append
"""


def compiled(folder: Path, *versions: str) -> Path:
    """The folder, with a library of each version."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a driver's library with")
    for version in versions:
        (folder / version).mkdir()
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-w", f'-DVERSION="{version}"']
            + ["-o", folder / version / LIBRARY, HERE / "fake_nvml_life.c"],
            check=True,
            timeout=60,
        )
    return folder


def play(libraries: Path, folder: Path, scene: str) -> Any:
    """What a scene said, played in a process of its own."""
    (folder / "installed").mkdir()
    for version in libraries.iterdir():
        (folder / version.name).symlink_to(version)
    paths = os.pathsep.join(str(HERE.parents[3] / part) for part in ("contract", "agent"))
    done = subprocess.run(
        [sys.executable, "-c", f"{STAGE}\n{scene}\nprint(json.dumps(said))"],
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "HERE": str(folder),
            "LD_LIBRARY_PATH": str(folder / "installed"),
            "FAKE_MODULE": str(folder / "module"),
            "FAKE_HANG": str(folder / "hang"),
            "FAKE_EVENTS": str(folder / "events"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr or f"ended with {done.returncode}"
    return json.loads(done.stdout)
