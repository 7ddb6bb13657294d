"""Measures the memory of the real commands, process by process, while they do their work.

Proportional set size (PSS) counts a page that several processes share once, over all of them. Each
scenario is checked to be alive: rows arrive while it is measured, and a query and the alerts answer.

    python -m bench.memory                     # up, collector
    python -m bench.memory up --at 20 120 600  # seconds after the start at which is measured
    python -m bench.memory collector --gpus 1000 --detail
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.this_host import free_port

START_S = 90.0
SENT_S = 20.0
STOP_S = 60.0
GPUS_PER_NODE = 8
COMMAND = str(Path(sys.executable).with_name("gpuwarden"))


@dataclass(frozen=True)
class Used:
    """Memory of one process in MiB."""

    pid: int
    name: str
    pss: float
    anonymous: float
    private_dirty: float
    threads: int


def used(pid: int) -> list[Used]:
    """A process and all that descend from it."""
    root = psutil.Process(pid)
    found = []
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            sizes = _rollup(process.pid)
            found.append(
                Used(
                    process.pid,
                    process.name(),
                    sizes["Pss"],
                    sizes["Pss_Anon"],
                    sizes["Private_Dirty"],
                    process.num_threads(),
                )
            )
    return found


def _rollup(pid: int) -> Mapping[str, float]:
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        words = line.split()
        found[words[0].rstrip(":")] = int(words[1]) / 1024
    return found


def mappings(pid: int) -> Counter[str]:
    """PSS in MiB by what is mapped."""
    found: Counter[str] = Counter()
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else "[anonymous]"
        elif words[0] == "Pss:":
            found[Path(name).name] += int(words[1]) / 1024
    return found


class Running:
    """A command and its HTTP API."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.process = process
        self.url = url

    def rows(self, sql: str) -> list[Any]:
        """Rows of a query."""
        content = json.dumps({"sql": sql}).encode()
        request = urllib.request.Request(
            f"{self.url}/v1/sql", content, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: list[Any] = json.load(answer)["rows"]
            return found

    def wait(self, sql: str, limit_s: float) -> None:
        """Until a query finds rows. Raises SystemExit."""
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            if self.process.poll() is not None:
                raise SystemExit(f"the command ended with {self.process.returncode}")
            with suppress(OSError, urllib.error.URLError):
                if self.rows(sql):
                    return
            time.sleep(0.5)
        raise SystemExit(f"nothing was found within {limit_s:g} s by {sql}")

    def check(self, gpus: int) -> str:
        """What shows that it does its work; SystemExit when it does not."""
        recent = "FROM gpu_samples WHERE ts > now()::TIMESTAMP - INTERVAL 60 SECOND"
        # After a few seconds not all may have sent for the first time.
        self.wait(f"SELECT 1 {recent} HAVING count(DISTINCT gpu_uuid) >= {gpus}", SENT_S)
        rows, seen = self.rows(f"SELECT count(*), count(DISTINCT gpu_uuid) {recent}")[0]
        alerts = self.rows("SELECT count(*) FROM alerts")[0][0]
        return f"{rows:,} rows of {seen:,} GPUs in the last minute, {alerts} alerts"


@contextmanager
def running(arguments: Sequence[str], log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A command, told to stop with the block and killed should it not."""
    with log.open("wb") as out:
        process = subprocess.Popen([COMMAND, *arguments], stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def up(folder: Path, gpus: int) -> Iterator[Running]:
    """`gpuwarden up` with simulated GPUs and two hours of history."""
    port = free_port()
    arguments = ["up", "--simulate", str(gpus), "--port", str(port), "--data", str(folder / "data")]
    with running(arguments, folder / "log") as process:
        yield Running(process, f"http://127.0.0.1:{port}")


@contextmanager
def collector(folder: Path, gpus: int) -> Iterator[Running]:
    """`gpuwarden collector run`, and `gpuwarden simulate` beside it, which is not measured."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["collector", "run", "--port", str(port), "--data-dir", str(folder / "data")]
    with ExitStack() as stack:
        process = stack.enter_context(running(arguments, folder / "log"))
        one = Running(process, url)
        one.wait("SELECT 1", START_S)
        nodes = ["--nodes", str(-(-gpus // GPUS_PER_NODE)), "--gpus-per-node", str(GPUS_PER_NODE)]
        simulate = ["simulate", *nodes, "--collector-url", url]
        stack.enter_context(running(simulate, folder / "agents-log"))
        yield one


def report(name: str, at_s: float, found: Sequence[Used], *, is_detailed: bool) -> Iterator[str]:
    """A table for people."""
    yield f"\n{name}, {at_s:.0f} s after the start, MiB"
    yield "| process | PSS | of it anonymous | private dirty | threads |"
    yield "| --- | --- | --- | --- | --- |"
    for one in found:
        yield (
            f"| {one.name} | {one.pss:.0f} | {one.anonymous:.0f} | {one.private_dirty:.0f} "
            f"| {one.threads} |"
        )
        if is_detailed:
            for what, mib in mappings(one.pid).most_common(8):
                yield f"|   {what} | {mib:.1f} | | | |"
    total, anonymous = sum(one.pss for one in found), sum(one.anonymous for one in found)
    yield f"| all | {total:.0f} | {anonymous:.0f} | | |"


SCENARIOS = {"up": (up, 8), "collector": (collector, 1_000)}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a scenario; its figures."""
    start, gpus = SCENARIOS[name]
    gpus = options.gpus or gpus
    figures: dict[str, Any] = {"scenario": name, "gpus": gpus, "at": {}}
    with tempfile.TemporaryDirectory(dir=options.data, prefix="memory-") as folder:
        began_s = time.monotonic()
        with start(Path(folder), gpus) as one:
            one.wait("SELECT 1 FROM gpu_samples LIMIT 1", START_S)
            for at_s in sorted(options.at):
                time.sleep(max(0.0, began_s + at_s - time.monotonic()))
                found = used(one.process.pid)
                lines = report(name, at_s, found, is_detailed=options.detail)
                print("\n".join(lines), flush=True)
                figures["at"][at_s] = [vars(each) for each in found]
            figures["alive"] = one.check(gpus)
            print(f"\nalive: {figures['alive']}", flush=True)
    return figures


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenario", nargs="*", choices=[*SCENARIOS, []], default=list(SCENARIOS))
    parser.add_argument("--gpus", type=int, help="GPUs to simulate")
    parser.add_argument("--at", type=float, nargs="+", default=[20, 120], help="seconds")
    parser.add_argument("--detail", action="store_true", help="what is mapped, by process")
    parser.add_argument("--data", type=Path, help="folder for what is stored meanwhile")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args(given)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    results = [measure(name, options) for name in options.scenario]
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
