"""Finds by trying how many loader workers really end a loop's wait, to hold the advice against.

    python -m bench.diagnosis.search --python ENV/bin/python [--seeds 1]

Each number of workers is run for a while, and the share of the time that the GPU is busy is measured. What is
there already in FOLDER/search.json is not tried again.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.diagnosis.limits import LimitError
from bench.diagnosis.record import FOLDER
from bench.diagnosis.scenarios import SCENARIOS
from bench.diagnosis.stage import (
    Setting,
    StageError,
    check_python,
    local_store,
    make_files,
    running,
)

SPEED_S = 0.3
SETTLE_S, MEASURE_S = 5.0, 25.0
ENOUGH = 0.90
"""Busy for this share of the time: a loop that no longer waits. Steps have an overhead of their own."""
MOST: dict[str, int] = {"loader_workers": os.cpu_count() or 1, "storage_network": 6}
"""Loops that more workers help, and the highest number that is tried."""


def busy_share(name: str, setting: Setting) -> float:
    """How busy the GPU is. Raises StageError and LimitError."""
    with running([SCENARIOS[name]], setting) as loops:
        time.sleep(SETTLE_S)
        meter = loops[0].device.meter
        before = meter.use()
        time.sleep(MEASURE_S)
        after = meter.use()
    return (after.busy_ns - before.busy_ns) / (after.at_ns - before.at_ns)


def tried(name: str, seed: int, python: str, files: Path) -> dict[str, Any]:
    """One search: more workers until the GPU no longer waits. Raises StageError and LimitError."""
    busy: dict[str, float] = {}
    with local_store() as store:
        for workers in range(1, MOST[name] + 1):
            setting = Setting(
                python=python, files=files, speed_s=SPEED_S, seed=seed, store=store, workers=workers
            )
            share = busy[str(workers)] = round(busy_share(name, setting), 3)
            print(f"{name} seed {seed}: {workers} workers, {100 * share:.0f} % busy", flush=True)
            if share >= ENOUGH:
                break
    return {"scenario": name, "seed": seed, "speed_s": SPEED_S, "from": ENOUGH, "busy": busy}


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--folder", type=Path, default=FOLDER)
    options.add_argument("--python", default=sys.executable, help="an interpreter with PyTorch")
    options.add_argument("--seeds", type=lambda t: [int(s) for s in t.split(",")], default=[1])
    args = options.parse_args()
    path = args.folder / "search.json"
    files = (args.folder / "files").resolve()
    try:
        check_python(args.python)
        make_files(files)
        found = json.loads(path.read_text()) if path.exists() else []
        done = {(one["scenario"], one["seed"]) for one in found}
        for seed in args.seeds:
            for name in MOST:
                if (name, seed) not in done:
                    found.append(tried(name, seed, args.python, files))
                    path.write_text(json.dumps(found, indent=1) + "\n")
    except (StageError, LimitError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
