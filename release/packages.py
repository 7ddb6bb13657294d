"""Gets the locked packages of a part for a Python and machine, and lays them out as they lie on a host.

`packages.py --machine aarch64` says which of them have a wheel there.
"""

import argparse
import hashlib
import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from archive import unpacked_bytes
from installer.exceptions import InstallerError
from installer.sources import WheelFile
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import CACHE, ROOT

LOCK = ROOT / "requirements-dev.lock"
EXTRAS = {"agent": ("agent",), "collector": ("collector", "cluster")}
LEFT_OUT = {"agent": ("gpuwarden_simulator",), "collector": ()}
"""Files of our own wheel that the hosts of a part do not need."""
UNUSED = (*Path(__file__).with_name("unused.txt").read_text().split(), "*/tests")
"""Files of other packages that nothing loads; a third of them are their tests."""
GLIBC = (2, 31)
"""The oldest that bundles run on: Debian 11, Ubuntu 20.04; RHEL 9 has 2.34."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python and machine that packages are for."""

    python: str
    """Python version, such as 3.13."""
    machine: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment for markers of requirements."""
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "platform_machine": self.machine,
        }

    @property
    def pip_flags(self) -> list[str]:
        """Makes pip take wheels of this target, whatever it runs on itself."""
        tag = self.python.replace(".", "")
        minors = range(GLIBC[1], 4, -1)
        platforms = [f"manylinux_{GLIBC[0]}_{minor}_{self.machine}" for minor in minors]
        old = ("2014", "2010", "1") if self.machine == "x86_64" else ("2014",)
        platforms += [f"manylinux{name}_{self.machine}" for name in old]
        return [
            f"--python-version={self.python}", "--implementation=cp",
            f"--abi=cp{tag}", "--abi=abi3", "--abi=none",
            *(f"--platform={one}" for one in platforms),
        ]  # fmt: skip


HERE = Target(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine())


def closure(extras: tuple[str, ...], target: Target = HERE) -> set[str]:
    """Names of all packages that these extras need there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(t) for extra in extras for t in project["optional-dependencies"][extra]]
    queue = [one for one in asked if _holds(one, target)]
    found: set[tuple[str, str]] = set()
    while queue:
        wanted = queue.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if name == project["name"] or (name, extra) in found:
                continue
            found.add((name, extra))
            queue += [
                one
                for one in map(Requirement, importlib.metadata.requires(name) or [])
                if _holds(one, target, extra)
            ]
    return {name for name, _ in found}


def _holds(wanted: Requirement, target: Target, extra: str = "") -> bool:
    environment: dict[str, str] = target.environment | {"extra": extra}
    return wanted.marker is None or wanted.marker.evaluate(dict(environment))


def locked(names: set[str], lock: str, target: Target = HERE) -> dict[str, str]:
    """The lock's lines, with their hashes, of each package. Raises SystemExit when one is not in it."""
    blocks: dict[str, str] = {}
    for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE):
        words = re.sub(r"^ *#.*\n?", "", block, flags=re.MULTILINE).strip()
        if not words:
            continue
        wanted = Requirement(words.split("\\", 1)[0])
        if _holds(wanted, target):
            blocks[canonicalize_name(wanted.name)] = re.sub(r" ;[^\\\n]*", " ", words, count=1)
    missing = sorted(names - blocks.keys())
    if missing:
        sys.exit(f"requirements-dev.lock lacks {', '.join(missing)}: run `make lock`")
    return {name: blocks[name] for name in sorted(names)}


def download(pins: Mapping[str, str], cache: Path, target: Target) -> list[Path]:
    """The locked wheels for `target`, fetched once for each lock."""
    text = "\n".join([*pins.values(), ""])
    key = f"{target} {GLIBC}\n{text}".encode()
    folder = cache / hashlib.sha256(key).hexdigest()[:16]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            done = _pip_download(text, Path(scratch), target)
            if done.returncode:
                sys.exit(done.stderr)
            Path(scratch, "wheels").rename(folder)
    return sorted(folder.iterdir())


def _pip_download(
    requirements: str, scratch: Path, target: Target
) -> subprocess.CompletedProcess[str]:
    (scratch / "requirements.txt").write_text(requirements)
    argv = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--require-hashes", "--only-binary=:all:", *target.pip_flags,
        "--dest", f"{scratch}/wheels", "--requirement", f"{scratch}/requirements.txt",
    ]  # fmt: skip
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def needed(part: str, target: Target = HERE, *, lock: Path | None = None) -> list[Path]:
    """The wheels that `part` needs beside gpuwarden's own."""
    pins = locked(closure(EXTRAS[part], target), (lock or LOCK).read_text(), target)
    return download(pins, CACHE / "wheels", target)


def lay_out(wheels: Iterable[Path], folder: Path, left_out: tuple[str, ...] = UNUSED) -> int:
    """Unpack wheels into a site-packages folder; the bytes it then takes.

    Each must be what its own record says. Records themselves stay out: they are for tools that change what is
    installed, and an installed version is never changed.
    """
    for wheel in wheels:
        with WheelFile.open(wheel) as source:
            try:
                source.validate_record()
            except InstallerError as error:
                sys.exit(f"{wheel}: {error}: remove it, it is fetched again")
            _extract(wheel, f"{source.data_dir}/", folder, left_out)
    return unpacked_bytes(folder)


def _extract(wheel: Path, data: str, folder: Path, left_out: tuple[str, ...]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = re.sub(rf"^{re.escape(data)}(purelib|platlib)/", "", entry.filename)
            is_left_out = any(
                fnmatch(name, pattern) or fnmatch(name, f"{pattern}/*") for pattern in left_out
            )
            if entry.is_dir() or is_left_out or name.startswith(data) or name.endswith("/RECORD"):
                continue
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as held, path.open("wb") as file:
                shutil.copyfileobj(held, file)


def found_wheels(part: str, target: Target) -> dict[str, str]:
    """The file of each locked package of `part` for `target`; where there is none, ERROR and why."""
    pins = locked(closure(EXTRAS[part], target), LOCK.read_text(), target)
    found = {}
    for name, pin in pins.items():
        with tempfile.TemporaryDirectory() as scratch:
            done = _pip_download(f"{pin}\n", Path(scratch), target)
            files = [path.name for path in Path(scratch).glob("wheels/*")]
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        found[name] = files[0] if files else (said or ["ERROR: no wheel"])[-1]
    return found


def main() -> None:
    """Say which wheels a target has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*EXTRAS], help="agent, collector; both")
    parser.add_argument("--machine", default=HERE.machine, help="x86_64, aarch64")
    parser.add_argument("--python", default="3.13", help="default 3.13, which bundles carry")
    args = parser.parse_args()
    lacking = 0
    for part in args.parts:
        for name, found in found_wheels(part, Target(args.python, args.machine)).items():
            lacking += found.startswith("ERROR: ")
            print(f"{part:9} {name:32} {found}")
    print(f"{lacking} lacking on {args.machine} with glibc {GLIBC[0]}.{GLIBC[1]}")
    sys.exit(1 if lacking else 0)


if __name__ == "__main__":
    main()
