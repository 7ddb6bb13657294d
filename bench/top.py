"""Measures `gpuwarden top` on a pseudo-terminal: its CPU, its memory, what it writes, and what its queries cost the collector.

    python -m bench.top [--nodes 1 125 1250] [--size 80x24 200x60] [--seconds 30] [--every 1s] [--local-gpus 128]

The collector is that of `bench.dashboards.serve`: so many nodes with 8 GPUs, each with a new sample a second. Every
view is shown for the same time; figures are of the time after its first screen. A slow collector is asked less often than `--every`. A view that shows no
rows, or does not continue, ends the run.
`--local-gpus`: then one host with this number of GPUs and no collector, whose probe answers at once.
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
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack

from bench.this_host import cpu_s, family_cpu_s, rss_mib

from gpuwarden.clock import SystemClock
from gpuwarden_agent.probe import Reading
from gpuwarden_cli.top.app import TopApp
from gpuwarden_cli.top.local import LocalSource
from gpuwarden_cli.top.model import State, TopPage
from gpuwarden_cli.top.request import TopView

GRAPHS = rb"(?s)GPU 7.* %.*\xe2(?:\xa0[\x81-\xbf]|[\xa1-\xa3])"
"""The title of the last of eight graphs, a value, and a braille cell with a dot."""
GPUS, PROCESSES = ("2", rb"gpu-0\d+/\d"), ("3", rb"gpu-0\d+/\d.*python")
VIEWS = {
    "nodes": [("1", rb"> gpu-0\d+ ")],
    "GPUs": [GPUS],
    "graphs": [GPUS, ("g", GRAPHS)],
    "processes": [PROCESSES],
    "jobs": [("4", rb"> \d+ .*user\d")],
    "alerts": [("5", rb"gpu_hung|no alert fires")],
    "tree": [PROCESSES, ("t", rb"(?s)job \d+.*gpu-0\d+/\d")],
}
"""The keys that open each view, and what is then on the screen. The tree is last: its key changes the processes."""
PATIENCE_S = 60
COMMAND = "import sys; from gpuwarden_cli.main import main; sys.exit(main())"
LOCAL = "import sys; from bench.top import run_local; run_local(int(sys.argv[1]))"


class Terminal:
    """`gpuwarden top` on a pseudo-terminal of a size."""

    def __init__(self, command: Sequence[str], url: str, columns: int, rows: int) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(GPUWARDEN_URL=url, TERM="xterm-256color", COLUMNS="", LINES="")
            os.execv(sys.executable, [sys.executable, "-c", *command])
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

    @property
    def refreshes(self) -> int:
        """Times that the clock of the first line was drawn since `screen` was emptied."""
        return len(re.findall(rb"\d\d:\d\d:\d\d UTC", self.screen))

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
    terminal = Terminal([COMMAND, "top", "--every", args.every], url, columns, rows)
    for view in args.views:
        for key, shown in VIEWS[view]:
            terminal.watch(args.first)
            terminal.screen = b""
            terminal.press(key)
            wait_for(terminal, view, shown)
        before = family_cpu_s(server)
        line, spent = figures(terminal, view, args.seconds)
        asked = family_cpu_s(server) - before
        print(f"{columns}x{rows} {view:<10} {line}  collector {100 * asked / spent:5.1f} %", flush=True)  # fmt: skip
    terminal.end()


def measure_local(size: str, args: argparse.Namespace) -> None:
    """Print a line for the graphs of one host with many GPUs."""
    columns, rows = (int(part) for part in size.split("x"))
    terminal = Terminal([LOCAL, str(args.local_gpus)], "", columns, rows)
    wait_for(terminal, "local", GRAPHS)
    line, _ = figures(terminal, "local", args.seconds)
    print(f"{columns}x{rows} {args.local_gpus} GPUs of one host {line}", flush=True)
    terminal.end()


def wait_for(terminal: Terminal, view: str, shown: bytes) -> None:
    """Read on until this is on the screen. Raises SystemExit."""
    if not terminal.watch_until(lambda: re.search(shown, terminal.screen)):
        raise SystemExit(f"{view}: the screen lacks rows: {terminal.screen!r}")


def figures(terminal: Terminal, view: str, seconds: float) -> tuple[str, float]:
    """What a view takes, and for how long it was watched."""
    began, mine = time.monotonic(), cpu_s(terminal.pid)
    written, shown_before = terminal.written, terminal.refreshes
    terminal.watch(seconds)
    is_alive = terminal.watch_until(lambda: terminal.written > written)
    spent = time.monotonic() - began
    if not is_alive:
        raise SystemExit(f"{view}: nothing was written for {spent:.1f} s")
    used = cpu_s(terminal.pid) - mine
    refreshes = max(1, terminal.refreshes - shown_before)
    return (
        f"{100 * used / spent:5.1f} % of a core, {1000 * used / refreshes:5.1f} ms a refresh  {rss_mib(terminal.pid):4.0f} MiB  "
        f"{(terminal.written - written) / spent / 1000:6.2f} kB/s"
    ), spent


class ReadyProbe:
    """Readings of many GPUs that cost nothing to take, and the processes on them."""

    name = "ready"
    tables: Mapping[str, int] = {"gpu_samples": 1, "process_samples": 10}
    simulated = True
    blocking = False
    gpu_uuid = None

    def __init__(self, gpus: int) -> None:
        self._gpus = [{"gpu_uuid": f"GPU-{n}", "gpu": n} for n in range(gpus)]

    def describe(self) -> Reading:
        """Inventory."""
        return {"gpus": [{**gpu, "model": "NVIDIA H100"} for gpu in self._gpus], "nodes": [{}]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """Utilization that changes each second."""
        second = ts_ms // 1000
        samples = [
            {**gpu, "util_percent": (second * 7 + 13 * n) % 101, "power_watts": 300 + (second + n) % 400,
             "memory_used_bytes": 2**35, "memory_total_bytes": 2**36, "temperature_celsius": 50 + n % 30}
            for n, gpu in enumerate(self._gpus)
        ]  # fmt: skip
        processes = [
            {**gpu, "pid": 100 + n, "process_name": "python", "username": "amina", "gpu_memory_bytes": 2**34}
            for n, gpu in enumerate(self._gpus)
        ]  # fmt: skip
        return {"gpu_samples": samples, "process_samples": processes}

    def close(self) -> None:
        """Nothing is open."""


def run_local(gpus: int) -> None:
    """Run top over the probe, at one refresh a second."""
    clock = SystemClock()
    source = LocalSource([ReadyProbe(gpus)], "big", f"big (this host): {gpus} GPUs", clock)
    page = TopPage(TopView.GPUS, graphs=source.node)
    TopApp(source, State(source.name, every_s=1.0, page=page), clock).run()


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
    arguments.add_argument("--every", default="1s", help="between refreshes")
    arguments.add_argument("--local-gpus", type=int, default=128, help="of one host; 0: without it")
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
    for size in args.size if args.local_gpus else ():
        measure_local(size, args)


if __name__ == "__main__":
    main()
