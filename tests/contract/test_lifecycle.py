"""Stopping, and what is sent to systemd."""

import asyncio
import os
import signal
import socket
import subprocess
import sys

import pytest

from gpuwarden import lifecycle


async def test_until_says_whether_it_was_asked_to_stop() -> None:
    stop = asyncio.Event()
    assert await lifecycle.until(stop, 0.001) is False
    stop.set()
    assert await lifecycle.until(stop, 60) is True


async def test_sigterm_asks_to_stop() -> None:
    stop = asyncio.Event()
    lifecycle.stop_on_signals(stop)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await lifecycle.until(stop, 5) is True
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)


IMPATIENT = """
import asyncio, os, signal, sys
from gpuwarden import lifecycle

async def main():
    stop = asyncio.Event()
    lifecycle.IMPATIENT_AFTER_S = float(sys.argv[1])
    lifecycle.stop_on_signals(stop)
    for _ in range(2):
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.1)
    assert stop.is_set()

asyncio.run(main())
"""


@pytest.mark.parametrize(("after_s", "code"), [("60", 0), ("0", 130)])
def test_only_a_later_ctrl_c_ends_at_once(after_s: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", IMPATIENT, after_s], check=False)
    assert done.returncode == code


LATE = """
import asyncio, os, signal, time
from gpuwarden import lifecycle

async def main():
    stop = asyncio.Event()
    lifecycle.stop_on_signals(stop, 0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    await asyncio.to_thread(time.sleep, 60)

asyncio.run(main())
"""


def test_a_stop_that_takes_too_long_ends_the_process_with_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE], check=False, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "the stop took more than 0.2 s" in done.stderr


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A socket such as systemd listens on."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield sock


def test_systemd_hears_what_is_said(manager) -> None:
    assert lifecycle.notify("READY=1") is True
    assert manager.recv(100) == b"READY=1"


def test_a_service_manager_that_reads_nothing_stops_nobody(manager, monkeypatch) -> None:
    monkeypatch.setattr(lifecycle, "_NOTIFY_S", 0.01)
    assert not all(lifecycle.notify("WATCHDOG=1") for _ in range(1_000))


def test_without_a_service_manager_nobody_hears(monkeypatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert lifecycle.notify("READY=1") is False


def test_the_watchdog_is_fed_at_half_its_time(monkeypatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert lifecycle.watchdog_interval_s() == 15.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert lifecycle.watchdog_interval_s() is None


async def test_the_watchdog_starves_when_nothing_moves(manager, monkeypatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    alive = iter([False, True])
    stop = asyncio.Event()

    def is_alive() -> bool:
        answer = next(alive, None)
        if answer is None:
            stop.set()
        return bool(answer)

    await lifecycle.feed_watchdog(stop, is_alive)
    assert manager.recv(100) == b"WATCHDOG=1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)
