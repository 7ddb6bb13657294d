"""Measures `gpuwarden top` on a pseudo-terminal: its CPU, its memory, what it writes, and what its queries cost the collector.

    python -m bench.top [--nodes 1 125 1250] [--size 80x24 200x60] [--seconds 30]

The collector is that of `bench.dashboards.serve`: so many nodes with 8 GPUs, each with a new sample a second. Every
view is shown for the same time; figures are of the time after its first screen. A view that shows no rows, or
does not continue, ends the run.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.this_host import cpu_s, family_cpu_s, rss_mib

VIEWS = {
    "nodes": rb"> gpu-0\d+ ",
    "GPUs": rb"gpu-0\d+/\d",
    "processes": rb"gpu-0\d+/\d.*python",
    "jobs": rb"> \d+ .*user\d",
    "alerts": rb"no alert fires",
}
"""The views by number, and what is on their screens."""
PATIENCE_S = 60
COMMAND = "import sys; from gpuwarden_cli.main import main; sys.exit(main())"


class Terminal:
    """`gpuwarden top` on a pseudo-terminal of a size."""

    def __init__(self, url: str, columns: int, rows: int) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(GPUWARDEN_URL=url, TERM="xterm-256color", COLUMNS="", LINES="")
            os.execv(sys.executable, [sys.executable, "-c", COMMAND, "top"])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.written = 0
        self.screen = b""
        """What was written since this was emptied."""

    def watch(self, seconds: float) -> None:
        """Read what it writes for this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                try:
                    part = os.read(self._fd, 65536)
                except OSError:  # it has ended
                    return
                self.written += len(part)
                self.screen += part

    def watch_until(self, condition: Callable[[], object]) -> bool:
        """Read on until this is true, on a busy host for as long as `PATIENCE_S`; whether it is."""
        end = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < end:
            self.watch(0.2)
        return bool(condition())

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._fd, keys.encode())

    def end(self) -> None:
        """Quit, as a person does."""
        self.press("q")
        self.watch(1)
        os.close(self._fd)
        os.waitpid(self.pid, 0)


def measure(url: str, server: int, size: str, args: argparse.Namespace) -> None:
    """Print a line for each view."""
    columns, rows = (int(part) for part in size.split("x"))
    terminal = Terminal(url, columns, rows)
    for view in args.views:
        print(f"{columns}x{rows} {view:<10} {figures(terminal, server, view, args)}", flush=True)
    terminal.end()


def figures(terminal: Terminal, server: int, view: str, args: argparse.Namespace) -> str:
    """What a view takes."""
    number = [*VIEWS].index(view) + 1
    terminal.screen = b""
    terminal.watch(args.first)
    terminal.press(str(number))
    terminal.watch(args.first)
    if not terminal.watch_until(lambda: re.search(VIEWS[view], terminal.screen)):
        raise SystemExit(f"{view}: the screen lacks rows: {terminal.screen!r}")
    began, mine, theirs = time.monotonic(), cpu_s(terminal.pid), family_cpu_s(server)
    written = terminal.written
    terminal.watch(args.seconds)
    is_alive = terminal.watch_until(lambda: terminal.written > written)
    spent = time.monotonic() - began
    if not is_alive:
        raise SystemExit(f"{view}: nothing was written for {spent:.1f} s")
    used, asked = cpu_s(terminal.pid) - mine, family_cpu_s(server) - theirs
    return (
        f"{100 * used / spent:5.1f} % of a core  {rss_mib(terminal.pid):4.0f} MiB  "
        f"{(terminal.written - written) / spent / 1000:6.2f} kB/s  collector {100 * asked / spent:5.1f} %"
    )


def main() -> None:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nodes", type=int, nargs="+", default=[1, 125, 1250])
    arguments.add_argument("--size", nargs="+", default=["80x24", "200x60"])
    arguments.add_argument("--seconds", type=float, default=30, help="of a view; 2 or more")
    arguments.add_argument("--views", nargs="+", choices=VIEWS, default=[*VIEWS])
    arguments.add_argument(
        "--first", type=float, default=2.5, help="seconds until a screen is there"
    )
    arguments.add_argument("--alone", type=float, default=10, help="seconds without a terminal")
    args = arguments.parse_args()
    for nodes in args.nodes:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "bench.dashboards.serve",
                folder,
                str(nodes),
                "--stored",
            ]
            with (
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
                ExitStack() as stack,
            ):
                stack.callback(server.terminate)  # else its end is waited for, should this fail
                assert server.stdout is not None
                url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
                time.sleep(3)
                before = family_cpu_s(server.pid)
                time.sleep(args.alone)
                alone = 100 * (family_cpu_s(server.pid) - before) / args.alone
                print(f"{nodes * 8} GPUs; the collector alone {alone:.1f} %", flush=True)
                for size in args.size:
                    measure(url, server.pid, size, args)


if __name__ == "__main__":
    main()
