"""CPU and memory of `gpuwarden up` at rest: simulated GPUs, nobody looking.

    python -m bench.rest [--gpus 8] [--warm 120] [--seconds 600]

Starts it in a folder of its own, waits `--warm` seconds, and prints what each of its processes took of a core over
the next `--seconds`, and its memory (PSS) at their end. It fails where no rule was evaluated, and where it ended
meanwhile.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil
from bench.this_host import free_port

END_S = 30.0
EVALUATED_S = 90.0
_EVALUATIONS = re.compile(r"(?m)^gpuwarden_rules_evaluations_total\{.*\} (\S+)$")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU and memory of a process since its start."""

    name: str
    cpu_s: float
    pss_bytes: int


def usages(root: psutil.Process) -> dict[int, Usage]:
    """A process and all below it, by id."""
    found = {}
    for process in (root, *root.children(recursive=True)):
        try:
            cpu = process.cpu_times()
            pss = process.memory_full_info().pss
            found[process.pid] = Usage(process.name(), cpu.user + cpu.system, pss)
        except psutil.Error:
            continue
    return found


def measured(root: psutil.Process, seconds: float) -> list[tuple[str, float, int]]:
    """Name, share of a core and PSS of each process that runs at the end of `seconds`; processes that ended
    meanwhile do not count."""
    before = usages(root)
    time.sleep(seconds)
    return [
        (
            now.name,
            (now.cpu_s - (was.cpu_s if (was := before.get(pid)) else 0)) / seconds,
            now.pss_bytes,
        )
        for pid, now in usages(root).items()
    ]


def evaluated(port: int) -> int:
    """How often rules were evaluated; 0 while the collector does not answer."""
    counts = []
    with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        counts = _EVALUATIONS.findall(answer.read().decode())
    return sum(int(float(count)) for count in counts)


def main() -> int:
    """Start, wait, measure, print; 1 where no rule was evaluated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--warm", type=float, default=120)
    parser.add_argument("--seconds", type=float, default=600)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        gpuwarden = str(Path(sys.executable).with_name("gpuwarden"))
        command = [gpuwarden, "up", "--simulate", str(args.gpus)]
        port = free_port()
        command += ["--port", str(port), "--data", f"{folder}/data"]
        with said.open("w") as out:
            up = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, "HOME": folder}
            )
        try:
            time.sleep(args.warm)
            found = measured(psutil.Process(up.pid), args.seconds)
            if up.poll() is not None:
                print(f"it ended with {up.returncode}: {said.read_text()}", file=sys.stderr)
                return 1
            # A short run, or a busy machine, has come to none yet.
            ends_s = time.monotonic() + EVALUATED_S
            while not (evaluations := evaluated(port)) and time.monotonic() < ends_s:
                time.sleep(0.2)
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(END_S)
    print("| process | % of a core | PSS MiB |\n| --- | --- | --- |")
    for name, share, pss in found:
        print(f"| {name} | {100 * share:.1f} | {pss >> 20} |")
    share, pss = sum(one[1] for one in found), sum(one[2] for one in found)
    print(f"| all | {100 * share:.1f} | {pss >> 20} |")
    print(f"{evaluations} evaluations of rules")
    return 0 if evaluations else 1


if __name__ == "__main__":
    sys.exit(main())
