"""Lays out the locked packages of a part as they lie on a host; uv finds the wheels of its Python and machine."""

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from paths import ROOT

LOCK = ROOT / "requirements-dev.lock"
EXTRAS = {"agent": ("agent",), "collector": ("collector", "cluster")}
LEFT_OUT = {"agent": ("gpuwarden_simulator",), "collector": ()}
"""Files of our own wheel that the hosts of a part do not need."""
UNUSED = (*Path(__file__).with_name("unused.txt").read_text().split(), "*/tests")
"""Files of other packages that nothing loads; a third of them are their tests."""
_RECORDS = (
    "bin", ".lock",
    *(f"*.dist-info/{name}" for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_*.json")),
)  # fmt: skip
"""For tools that change what is installed: an installed version is never changed."""
GLIBC = "2.31"
"""The oldest that bundles run on: Debian 11, Ubuntu 20.04; RHEL 9 has 2.34."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python and machine that packages are for."""

    python: str
    """Python version, such as 3.13."""
    machine: str


HERE = Target(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())


def install_packages(part: str, target: Target, site: Path, *, lock: Path = LOCK) -> dict[str, str]:
    """Install what `part` needs beside gpuwarden's own wheel; the version of each. Raises SystemExit."""
    extras = (f"--extra={extra}" for extra in EXTRAS[part])
    _install(
        target, site, "--require-hashes", f"--constraints={lock}",
        f"--requirements={ROOT / 'pyproject.toml'}", *extras,
    )  # fmt: skip
    versions = {
        re.sub(r"[-_.]+", "-", found.name).lower(): found.version
        for found in importlib.metadata.distributions(path=[str(site)])
    }
    remove(site, (*UNUSED, *_RECORDS))
    return dict(sorted(versions.items()))


def install_wheel(part: str, site: Path, wheel: Path) -> None:
    """Install gpuwarden's own wheel, without what the hosts of `part` do not need. Raises SystemExit."""
    _install(HERE, site, "--offline", "--no-deps", str(wheel))
    remove(site, (*LEFT_OUT[part], *_RECORDS))


def _install(target: Target, site: Path, *words: str) -> None:
    argv = [
        sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-config",
        f"--target={site}", f"--python={sys.executable}", f"--python-version={target.python}",
        f"--python-platform={target.machine}-manylinux_{GLIBC.replace('.', '_')}",
        "--only-binary=:all:", *words,
    ]  # fmt: skip
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)


def remove(site: Path, patterns: tuple[str, ...]) -> None:
    """Remove the files and folders below `site` whose paths there match one of the patterns."""
    for path in sorted(site.rglob("*")):
        name = str(path.relative_to(site))
        if not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
