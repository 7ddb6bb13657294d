"""Looking up the collector without asyncio's thread pool."""

import socket
import subprocess
import sys
import threading

import pytest

from gpuwarden_agent.resolver import DaemonResolver


async def test_a_name_is_looked_up_on_a_thread_of_its_own() -> None:
    resolver = DaemonResolver()
    found = await resolver.resolve("localhost", 8750, socket.AF_INET)
    assert {(answer["host"], answer["port"]) for answer in found} == {("127.0.0.1", 8750)}
    assert "resolve" in [thread.name for thread in threading.enumerate()]
    await resolver.close()


async def test_a_name_that_has_no_address_is_an_os_error() -> None:
    resolver = DaemonResolver()
    with pytest.raises(OSError, match=r"\[Errno"):
        await resolver.resolve("name.invalid", 8750)
    await resolver.close()


AGENT = """
import asyncio, socket, sys, threading
from pathlib import Path
from gpuwarden.clock import SystemClock
from gpuwarden_agent.daemon import run
from gpuwarden_agent.settings import AgentSettings

stop, asked = asyncio.Event(), threading.Event()

def never(*args, **more):
    asked.set()
    threading.Event().wait()

socket.getaddrinfo = never  # the outside world: a name server that does not answer
settings = AgentSettings(node="n", collector_url="http://collector.example:8750",
                         state_dir=Path(sys.argv[1]), stop_timeout_s=0.1)

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(run(settings, SystemClock(), stop, probes=[]))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        stop.set()

asyncio.run(main())
print("over")
"""


def test_a_name_server_that_never_answers_does_not_hold_a_stopped_agent(tmp_path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", AGENT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert out.stdout == "over\n"
