"""Evidence from a real GPU, in one command: what its driver answers, how fast, how truly, at what cost.

    python bench/gpu/run.py --output DIR            on a machine with an NVIDIA GPU, from a checkout
    python bench/gpu/run.py --output DIR --simulator --short      without one: all except the numbers

Needs no network and no installation: README.md beside this file has what it needs and writes.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("", "contract", "agent", "simulator", "client", "cli")
PACKAGES = {
    "pynvml": "nvidia-ml-py",
    "psutil": "psutil",
    "aiohttp": "aiohttp",
    "backports.zstd": "backports.zstd",
    "h2": "h2",
    "nanoarrow": "nanoarrow",
    "tomlkit": "tomlkit",
    "torch": "torch",
}
NEEDED = ("pynvml", "psutil")
"""Without these nothing can be measured; without the others a part is left out, and says so."""


def missing_packages() -> list[str]:
    """Modules that are not installed here."""
    return [module for module in PACKAGES if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def put_on_path(parts: Sequence[str]) -> None:
    """Put folders of the checkout on the path, for the children too."""
    paths = [str(ROOT / part) for part in parts]
    sys.path[:0] = paths
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *([inherited] if inherited else [])])


def main() -> int:
    """Measure with the checkout."""
    put_on_path(PARTS)
    missing = missing_packages()
    if missing:
        names = ", ".join(PACKAGES[module] for module in missing)
        print(f"missing here: {names}; bench/gpu/README.md says how to carry them", flush=True)
    if set(missing) & set(NEEDED):
        return 2
    from bench.gpu.evidence import run

    return run(sys.argv[1:], missing)


if __name__ == "__main__":
    sys.exit(main())
