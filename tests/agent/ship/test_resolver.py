"""Looking up the collector without asyncio's thread pool."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.ship.resolver import KEPT_S, DaemonResolver, Found


@pytest.fixture
def name_service(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The outside world: what getaddrinfo answers is the test's to say."""

    class NameService:
        def __init__(self) -> None:
            self.asked: list[bytes] = []
            self.addresses = ["192.0.2.1"]
            self.go_on = threading.Event()
            self.go_on.set()

        def getaddrinfo(self, host: bytes, port: int, **more: Any) -> list[Any]:
            self.asked.append(host)
            assert self.go_on.wait(30)
            if not self.addresses:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            family, kind = socket.AF_INET, socket.SOCK_STREAM
            return [(family, kind, 6, "", (address, port)) for address in self.addresses]

    service = NameService()
    monkeypatch.setattr(socket, "getaddrinfo", service.getaddrinfo)
    return service


async def test_a_name_is_looked_up_on_a_thread_of_its_own() -> None:
    resolver = DaemonResolver("localhost", 8750, SystemClock())
    found = await resolver.resolve()
    assert ("127.0.0.1", 8750) in [one.sockaddr[:2] for one in found]
    assert "resolve" in [thread.name for thread in threading.enumerate()]
    resolver.close()


async def test_a_name_that_has_no_address_is_an_os_error() -> None:
    resolver = DaemonResolver("name.invalid", 8750, SystemClock())
    with pytest.raises(OSError, match=r"\[Errno"):
        await resolver.resolve()
    resolver.close()


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("192.0.2.7", Found(socket.AF_INET, ("192.0.2.7", 1))),
        ("2001:db8::7", Found(socket.AF_INET6, ("2001:db8::7", 1, 0, 0))),
    ],
)
async def test_a_number_needs_no_name_service(name_service: Any, host: str, found: Found) -> None:
    assert await DaemonResolver(host, 1, SystemClock()).resolve() == (found,)
    assert name_service.asked == []


async def test_an_answer_is_kept_for_a_while(name_service: Any, manual_clock: ManualClock) -> None:
    resolver = DaemonResolver("collector.example", 1, manual_clock)
    for _ in range(3):
        await resolver.resolve()
    name_service.addresses = ["192.0.2.2"]
    manual_clock.advance(KEPT_S + 1)
    assert [one.sockaddr for one in await resolver.resolve()] == [("192.0.2.2", 1)]
    assert name_service.asked == [b"collector.example"] * 2
    resolver.close()


async def test_where_the_name_service_fails_the_last_known_address_serves_on(
    name_service: Any, manual_clock: ManualClock
) -> None:
    resolver = DaemonResolver("collector.example", 1, manual_clock)
    known = await resolver.resolve()
    name_service.addresses = []
    manual_clock.advance(KEPT_S + 1)
    assert [await resolver.resolve() for _ in range(3)] == [known] * 3
    assert len(name_service.asked) == 2, "asked once for each time that an answer is kept"
    resolver.close()


async def test_who_asks_while_a_lookup_hangs_waits_for_the_same_one(
    name_service: Any, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden_agent.ship.resolver.LOOKUP_S", 0.05)
    name_service.go_on.clear()
    resolver = DaemonResolver("collector.example", 1, manual_clock)
    outcomes = await asyncio.gather(
        *(resolver.resolve() for _ in range(100)), return_exceptions=True
    )
    assert {str(outcome) for outcome in outcomes} == {
        "the name service has not answered for 0.05 s"
    }
    name_service.go_on.set()
    assert [one.sockaddr for one in await resolver.resolve()] == [("192.0.2.1", 1)]
    assert len(name_service.asked) == 1
    resolver.close()


async def test_one_who_gives_up_waiting_does_not_take_the_answer_from_the_others(
    name_service: Any, manual_clock: ManualClock
) -> None:
    name_service.go_on.clear()
    resolver = DaemonResolver("collector.example", 1, manual_clock)
    async with asyncio.TaskGroup() as group:
        patient = group.create_task(resolver.resolve())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await resolver.resolve()
        name_service.go_on.set()
    assert patient.result()
    resolver.close()


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
