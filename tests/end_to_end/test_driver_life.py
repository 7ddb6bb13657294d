"""A driver that speaks, is unloaded, upgraded and given GPUs under an agent, and what the collector
has of it: a real agent and collector, the real binding, a library and a kernel of files.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tests.agent.collect.nvidia.living_library import LIBRARY, compiled
from tests.end_to_end.conftest import DEADLINE_S, World

pytestmark = pytest.mark.slow

AGENT = """
import asyncio, os, pathlib, sys
from gpuwarden import logs
from gpuwarden import lifecycle
from gpuwarden.clock import SystemClock
from gpuwarden_agent import daemon
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.nvidia.discovery import Signs
from gpuwarden_agent.settings import AgentSettings

here = pathlib.Path(os.environ["HERE"])

def signs():
    try:
        version, gpus = (here / "module").read_text().split()
    except OSError:
        return Signs(None)
    return Signs(version, frozenset(f"0000:{0x10 + n:02x}:00.0" for n in range(int(gpus))))

async def main():
    stop = asyncio.Event()
    lifecycle.stop_on_signals(stop)
    clock = SystemClock()
    state = here / "state"
    found = discover("auto", clock, sys=here / "sys", signs=signs)
    probes = found.all_probes(state, clock, here / "module", here / "kmsg")
    settings = AgentSettings(state_dir=state, collector_url=(os.environ["GPUWARDEN_URL"],), node="n1")
    await daemon.run(settings, clock, stop, probes=probes, rediscover=found.rediscover)

logs.setup("info")
asyncio.run(main())
"""


class Node:
    """A node with an agent, and the files that are its kernel and its driver."""

    def __init__(self, world: World, libraries: Path) -> None:
        self.world = world
        self.here = world.folder / "node"
        self.installed = self.here / "installed"
        self.installed.mkdir(parents=True)
        self.libraries = libraries
        os.mkfifo(self.here / "kmsg")
        self.sequence = 0
        self.log = self.here / "agent.log"
        self.popen: subprocess.Popen[bytes] | None = None
        self.kmsg: IO[bytes] | None = None

    @property
    def output(self) -> str:
        return self.log.read_text()

    def start(self) -> None:
        env = {
            **self.world.env,
            "HERE": str(self.here),
            "LD_LIBRARY_PATH": str(self.installed),
            "FAKE_MODULE": str(self.here / "module"),
            "FAKE_HANG": str(self.here / "hang"),
            "FAKE_EVENTS": str(self.here / "events"),
        }
        with self.log.open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", AGENT], env=env, stdout=out, stderr=out
            )

    def stop(self) -> int:
        assert self.popen
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(DEADLINE_S)

    def install(self, version: str) -> None:
        new = self.here / "new"
        new.write_bytes((self.libraries / version / LIBRARY).read_bytes())
        new.replace(self.installed / LIBRARY)

    def load(self, version: str, gpus: int) -> None:
        new = self.here / "new"
        new.write_text(f"{version} {gpus}")
        new.replace(self.here / "module")

    def unload(self) -> None:
        (self.here / "module").unlink()

    def kernel_says(self, text: str) -> None:
        if self.kmsg is None:
            # For reading too: what is written while nobody else reads is kept.
            self.kmsg = os.fdopen(os.open(self.here / "kmsg", os.O_RDWR), "wb", buffering=0)
        self.sequence += 1
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.kmsg.write(f"4,{self.sequence},{now_us},-;{text}\n".encode())

    def nvml_says(self, gpu: int, type_: int, data: int) -> None:
        with (self.here / "events").open("a") as file:
            file.write(f"{gpu} {type_} {data} -1\n")

    def wait(self, sql: str, at_least: int, what: str) -> None:
        def is_there() -> bool:
            assert self.popen
            assert self.popen.poll() is None, self.output[-3000:]
            return (self.world.one(sql) or 0) >= at_least

        self.world.wait_for(is_there, what, self)

    def wait_for_event(self, kind: str, number: int = 1) -> list[tuple[Any, ...]]:
        self.wait(f"select count(*) from events where kind = '{kind}'", number, kind)
        return self.world.ask(
            f"select gpu, message, details from events where kind = '{kind}' order by ts"
        )

    def wait_for_samples(self, gpu: int, number: int) -> None:
        sql = f"select count(*) from gpu_samples where gpu = {gpu}"
        self.wait(sql, (self.world.one(sql) or 0) + number, f"samples of GPU {gpu}")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"), "590", "595")


@pytest.fixture
def node(world: World, libraries: Path) -> Iterator[Node]:
    made = Node(world, libraries)
    yield made
    if made.popen is not None and made.popen.poll() is None:
        made.popen.kill()
        made.popen.wait()
    if made.kmsg is not None:
        made.kmsg.close()


def test_a_driver_comes_speaks_goes_and_is_upgraded_under_an_agent(
    world: World, node: Node
) -> None:
    world.collector(has_rules=False)
    node.start()
    node.wait("select count(*) from host_samples", 1, "samples of the host")
    node.install("590")
    node.load("590", 1)
    node.wait_for_samples(0, 3)  # by then its events are registered for
    assert node.wait_for_event("driver_opened")[0][1].endswith("590 was opened with 1 GPU")
    see_each_xid_once(node)
    node.unload()
    node.wait_for_event("driver_not_loaded")
    node.install("595")
    node.load("595", 2)
    node.wait_for_samples(0, 1)
    node.wait_for_samples(1, 1)
    node.wait_for_event("probe_recovered")
    opened = node.wait_for_event("driver_opened", 2)[1][1]
    assert opened == "NVIDIA driver 595 instead of 590 was opened again with 2 GPUs"
    assert len(node.wait_for_event("gpu_appeared", 2)) == 2
    assert node.stop() == 0
    assert "Traceback" not in node.output


def see_each_xid_once(node: Node) -> None:
    """However many sources tell it, and whether the agent runs or not."""
    node.kernel_says("NVRM: Xid (PCI:0000:10:00): 79, pid=77, name=python3, GPU has fallen off")
    node.nvml_says(0, 8, 79)
    node.nvml_says(0, 8, 48)
    node.nvml_says(0, 0x4000, 0)
    node.wait_for_event("gpu_unavailable")
    told = [json.loads(details) for _, _, details in node.wait_for_event("xid", 2)]
    assert {(d["xid"], d.get("pid"), d.get("source")) for d in told} == {
        (79, 77, None), (48, None, "nvml"),
    }  # fmt: skip
    node.wait_for_samples(0, 1)
    assert node.stop() == 0
    node.kernel_says("NVRM: Xid (PCI:0000:10:00): 31, pid=78, name=python3, while it was away")
    node.start()
    rows = node.wait_for_event("xid", 3)
    assert sorted(json.loads(row[2])["xid"] for row in rows) == [31, 48, 79]
    assert {row[0] for row in rows} == {0}
    node.wait_for_samples(0, 1)
    assert len(node.wait_for_event("xid", 3)) == 3
