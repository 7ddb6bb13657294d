"""Bundles of this version and of one before it, for the tests that install and upgrade."""

import platform
import shutil
from pathlib import Path

import bundle
import interpreter
import packages
import pytest
from packages import EXTRAS
from paths import ROOT

OLD = "0.0.9"
PYTHON = interpreter.cached(platform.machine())
"""What bundles carry. Building it takes minutes: `make test-bundles` does, and then it is here too."""


def version_here() -> str:
    from gpuwarden import __version__

    return __version__


def two_versions(out: Path, old_tree: Path) -> dict[tuple[str, str], Path]:
    """By part and version, made in `out`. `old_tree`: an empty folder, for the sources of the other."""
    if PYTHON is None:
        print("no Python was built for bundles (make test-bundles does): Debian's own is tried")
    for name in (*bundle.PACKAGES, "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, old_tree / name)
    for name in ("pyproject.toml", "contract/gpuwarden/__init__.py"):
        path = old_tree / name
        path.write_text(path.read_text().replace(f'"{version_here()}"', f'"{OLD}"'))
    wheels = {version_here(): bundle.build_wheel(out), OLD: bundle.build_wheel(out, old_tree)}
    with pytest.MonkeyPatch.context() as patch:
        # The container has no GPU: the agent has simulated ones, which bundles else leave out.
        patch.setattr(packages, "LEFT_OUT", dict.fromkeys(packages.LEFT_OUT, ()))
        packed = {part: bundle.packages_of(part, bundle.target_of(PYTHON)) for part in EXTRAS}
        return {
            (part, version): bundle.bundle(part, wheel, packed[part], out, PYTHON)
            for part in EXTRAS
            for version, wheel in wheels.items()
        }
