"""Runs a service until a signal stops it: signals, systemd's watchdog, reload of settings.

The parts of a service stop in order: sources first, then rules, then the store.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from gpuwarden import lifecycle, logs
from gpuwarden.settings import SettingsError, changed

if TYPE_CHECKING:
    from gpuwarden_collector.settings import CollectorSettings

log = logging.getLogger(__name__)

LIVE = frozenset({"log_level", "log_format"})
"""Settings of the collector that take effect on a reload, without a restart."""

SIMULATOR_MISSING = (
    "simulated devices, recordings and their replay are not installed here, since a GPU host does not"
    " need them: pip install 'gpuwarden[simulator]' in an environment of your own"
)


def say(line: str = "") -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def run_until_signalled(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run `main(stop)`; SIGTERM and Ctrl-C set `stop`, and STOP_S later the process ends in any case."""

    async def body() -> None:
        stop = asyncio.Event()
        lifecycle.stop_on_signals(stop, lifecycle.STOP_S)
        await main(stop)

    asyncio.run(body())
    return 0


def on_reload(act: Callable[[], None]) -> None:
    """Call `act` on SIGHUP, as `systemctl reload` sends it."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)


async def supervised(stop: asyncio.Event, status: str, is_alive: Callable[[], bool]) -> None:
    """Tell systemd that the service is ready, and feed the watchdog while it `is_alive`, until `stop`."""
    lifecycle.notify(f"READY=1\nSTATUS={status}")
    async with asyncio.TaskGroup() as group:
        group.create_task(lifecycle.feed_watchdog(stop, is_alive), name="watchdog")
        await stop.wait()
        lifecycle.notify("STOPPING=1")


def reload_logging(running: "CollectorSettings", load: "Callable[[], CollectorSettings]") -> None:
    """Apply the log settings as they are now, and log which other changes need a restart."""
    try:
        settings = load()
    except SettingsError as error:
        log.error(
            "settings not reloaded; the previous settings stay in force",
            extra={"problem": str(error)},
        )
        return
    logs.setup(settings.log_level, settings.log_format)
    later = [name for name in changed(running, settings) if name not in LIVE]
    if later:
        log.warning("needs a restart", extra={"settings": ", ".join(later)})
