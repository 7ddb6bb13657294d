"""Fuzzes what reads bytes of others, one target after another: `python -m bench.fuzz.run --minutes 10`.

Coverage leads it (atheris, which is libFuzzer for Python: `pip install atheris`). What it found good to try is kept in
`--folder` and tried first the next time; a finding is a file there that `--again FILE` gives to its target once more.
"""

import argparse
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from bench.fuzz.targets import TARGETS

_TRIED = re.compile(r"stat::number_of_executed_units: (\d+)")


def main(argv: list[str] | None = None) -> int:
    """1: there are findings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("targets", nargs="*", help="names of targets; none: all but `fails`")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them")
    parser.add_argument(
        "--runs", type=int, default=-1, help="most of each target; -1: by time alone"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"))
    parser.add_argument("--again", type=Path, help="a finding, of the only target")
    args = parser.parse_args(argv)
    names = args.targets or [name for name in TARGETS if name != "fails"]
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(TARGETS)}")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: pip install atheris")
    seconds = max(1, round(args.minutes * 60 / len(names)))
    failed = 0
    for name in names:
        corpus, findings = args.folder / name, args.folder / "findings" / name
        for folder in (corpus, findings):
            folder.mkdir(parents=True, exist_ok=True)
        options = [f"-seed={args.seed}", f"-max_total_time={seconds}", f"-runs={args.runs}"]
        tried = [str(args.again)] if args.again else []
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "bench.fuzz.one", name, str(corpus), str(findings), *options, *tried],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds + 300,
        )  # fmt: skip
        count = _TRIED.search(done.stderr)
        took_s = time.monotonic() - began_s
        said = f"{count[1] if count else '?':>10} tried in {took_s:.0f} s"
        if done.returncode == 0 and count:
            print(f"{name:<20} {said}", flush=True)
            continue
        failed += 1
        found = sorted(findings.iterdir(), key=lambda path: path.stat().st_mtime)
        print(f"{name:<20} {said}: FOUND {found[-1] if found else 'nothing that can be kept'}")
        print("\n".join(f"    {line}" for line in _trace(done.stdout + done.stderr)), flush=True)
    print(f"{len(names)} targets, {failed} with findings")
    return 1 if failed else 0


def _trace(text: str) -> list[str]:
    """The lines that say what went wrong."""
    lines = text.splitlines()
    starts = [
        at
        for at, line in enumerate(lines)
        if "Uncaught Python exception" in line or "ERROR:" in line
    ]
    return lines[starts[0] :][:30] if starts else lines[-15:]


if __name__ == "__main__":
    raise SystemExit(main())
