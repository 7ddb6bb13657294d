"""Stops parts on signals, and notifies systemd of their state."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

IMPATIENT_AFTER_S = 1.0
STOP_S = 25.0
"""Longest stop of a service: Kubernetes kills after 30 s."""
_NOTIFY_S = 1.0


class StartError(Exception):
    """The part cannot start. The message is one line: what, where, and what to do about it."""


async def until(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep; True when asked to stop first."""
    if stop.is_set():
        return True
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()
        return True
    except TimeoutError:
        return False


def stop_on_signals(stop: asyncio.Event, within_s: float | None = None) -> None:
    """SIGTERM and SIGINT set `stop`; another SIGINT a second or more later ends the process at once.

    Earlier ones are repetitions: wrappers such as timeout(1) signal a process and its group. `within_s`: the process
    ends after this time, whatever is still under way; what was acknowledged is on disk.
    """
    loop = asyncio.get_running_loop()
    asked_at: float | None = None

    def begin() -> None:
        if within_s is not None and not stop.is_set():
            late = threading.Timer(within_s, _end, (within_s,))
            late.daemon = True
            late.start()
        stop.set()

    def ask() -> None:
        nonlocal asked_at
        begin()
        if asked_at is not None and loop.time() - asked_at >= IMPATIENT_AFTER_S:
            os._exit(130)
        asked_at = asked_at or loop.time()

    loop.add_signal_handler(signal.SIGTERM, begin)
    loop.add_signal_handler(signal.SIGINT, ask)


def _end(after_s: float) -> None:
    said = f"gpuwarden: the stop took more than {after_s:g} s, so the process has ended; what was acknowledged is on disk\n"
    os.write(2, said.encode())
    os._exit(1)


def boot_id() -> str:
    """The kernel's boot id, /proc/sys/kernel/random/boot_id; without one an id of this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"process-{os.getpid()}"


def notify(state: str) -> bool:
    """Tell systemd `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `EXTEND_TIMEOUT_USEC=...` or `STATUS=...`
    (sd_notify(3)).

    False: no service manager listens.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        # A service manager that does not read must not block this process.
        sock.settimeout(_NOTIFY_S)
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return False
    return True


def watchdog_interval_s() -> float | None:
    """Half of WATCHDOG_USEC (sd_watchdog_enabled(3)); None: no watchdog."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not usec.isdigit() or pid != str(os.getpid()):
        return None
    return int(usec) / 2e6


async def feed_watchdog(stop: asyncio.Event, is_alive: Callable[[], bool]) -> None:
    """Notify systemd's watchdog while `is_alive()`; returns at once without a watchdog."""
    interval_s = watchdog_interval_s()
    if interval_s is None:
        return
    while not await until(stop, interval_s):
        if is_alive():
            notify("WATCHDOG=1")
