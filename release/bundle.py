"""Makes a bundle: one file with every wheel that a GPU host or a collector host needs, and the installer.

It is a zip file that Python runs (`zipapp`). What goes in is the part's closure of the locked
requirements, by hash. Entries are sorted, stored without compression and dated SOURCE_DATE_EPOCH, so two
builds of one tree are the same bytes.
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import installer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements-dev.lock"
PACKAGES = ("contract", "agent", "simulator", "collector", "rules", "dashboards", "client", "cli")
EXTRAS = {"agent": ("agent",), "collector": ("collector", "cluster")}
LEFT_OUT = {"agent": ("gpuwarden_simulator/",), "collector": ()}
"""Packages of our own wheel that the hosts of a part have no use for."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwarden" / "wheels"
SHEBANG = b"#!/usr/bin/env python3\n"
EPOCH_MIN = 315_532_800
"""1980-01-01, the first instant that a zip file can name."""


def closure(extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that these extras need on this Python and platform."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(t) for extra in extras for t in project["optional-dependencies"][extra]]
    queue = [one for one in asked if one.marker is None or one.marker.evaluate()]
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
                if one.marker is None or one.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in found}


def locked(names: set[str], lock: str) -> dict[str, str]:
    """The lock's lines, with their hashes, of each package. Raises SystemExit when one is not in it."""
    blocks: dict[str, str] = {}
    for block in re.split(r"^(?=\S)", lock, flags=re.MULTILINE):
        words = re.sub(r"^ *#.*\n?", "", block, flags=re.MULTILINE).strip()
        if not words:
            continue
        wanted = Requirement(words.split("\\", 1)[0])
        if wanted.marker is None or wanted.marker.evaluate():
            blocks[canonicalize_name(wanted.name)] = words
    missing = sorted(names - blocks.keys())
    if missing:
        sys.exit(f"requirements-dev.lock lacks {', '.join(missing)}: run `make lock`")
    return {name: blocks[name] for name in sorted(names)}


def download(pins: Mapping[str, str], cache: Path) -> list[Path]:
    """The locked wheels for this Python and platform, fetched once for each lock."""
    text = "\n".join([*pins.values(), ""])
    key = f"{sys.implementation.cache_tag}-{platform.machine()}\n{text}".encode()
    folder = cache / hashlib.sha256(key).hexdigest()[:16]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            requirements = Path(scratch, "requirements.txt")
            requirements.write_text(text)
            argv = [
                sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                "--no-deps", "--require-hashes", "--only-binary=:all:",
                "--dest", f"{scratch}/wheels", "--requirement", str(requirements),
            ]  # fmt: skip
            subprocess.run(argv, check=True)
            Path(scratch, "wheels").rename(folder)
    return sorted(folder.iterdir())


def build_wheel(out: Path, root: Path = ROOT) -> Path:
    """The wheel of gpuwarden that `root` holds the source of."""
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return out / f"gpuwarden-{version}-py3-none-any.whl"


def needed(part: str, *, lock: Path | None = None) -> list[Path]:
    """The wheels that `part` needs beside gpuwarden's own."""
    pins = locked(closure(EXTRAS[part]), (lock or LOCK).read_text())
    return download(pins, CACHE)


def bundle(part: str, wheel: Path, others: Iterable[Path], out: Path) -> Path:
    """Write the bundle of `part`, with this wheel of gpuwarden and the others, into `out`."""
    wheels = {path.name: path.read_bytes() for path in others}
    wheels[wheel.name] = without(wheel, LEFT_OUT[part])
    version = wheel.name.split("-")[1]
    entries = {f"wheels/{name}": data for name, data in wheels.items()}
    entries |= dict(_installer_files()) | dict(_host_files(part))
    digest = hashlib.sha256()
    for name in sorted(entries):
        digest.update(f"{name} {hashlib.sha256(entries[name]).hexdigest()}\n".encode())
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    manifest = {
        "part": part,
        "version": version,
        "python": python,
        "machine": platform.machine(),
        "digest": digest.hexdigest(),
        "wheels": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(wheels.items())},
    }
    entries["manifest.json"] = json.dumps(manifest, indent=1).encode() + b"\n"
    tag = f"cp{python.replace('.', '')}-{platform.machine()}"
    path = out / f"gpuwarden-{part}-{version}-{tag}.pyz"
    out.mkdir(parents=True, exist_ok=True)
    write_archive(path, entries)
    return path


def without(wheel: Path, prefixes: tuple[str, ...]) -> bytes:
    """The wheel less the files below `prefixes`, whose lines its RECORD loses too."""
    made = io.BytesIO()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.startswith(prefixes):
                continue
            if entry.filename.endswith(".dist-info/RECORD"):
                lines = data.decode().splitlines(keepends=True)
                data = "".join(x for x in lines if not x.startswith(prefixes)).encode()
            new.writestr(entry, data)
    return made.getvalue()


def _installer_files() -> Iterator[tuple[str, bytes]]:
    here = Path(__file__).parent
    yield "__main__.py", (here / "entry.py").read_bytes()
    for folder in (here / "gpuwarden_installer", Path(installer.__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            yield str(path.relative_to(folder.parent)), path.read_bytes()


def _host_files(part: str) -> Iterator[tuple[str, bytes]]:
    systemd = ROOT / "systemd"
    yield "host/unit", (systemd / f"gpuwarden-{part}.service").read_bytes()
    yield "host/settings", (systemd / f"{part}.toml").read_bytes()
    yield "host/sysusers", (systemd / "sysusers.d/gpuwarden.conf").read_bytes()
    yield "host/tmpfiles", (systemd / "tmpfiles.d/gpuwarden.conf").read_bytes()


def write_archive(path: Path, entries: Mapping[str, bytes]) -> None:
    """A zip file that `python3` runs, the same bytes for the same entries."""
    date = time.gmtime(max(EPOCH_MIN, source_date_epoch()))[:6]
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(entries):
                entry = zipfile.ZipInfo(name, date)
                entry.create_system = 3
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, entries[name])
    new.chmod(0o755)
    new.replace(path)


def source_date_epoch() -> int:
    """The instant that made files bear, as https://reproducible-builds.org has it."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH_MIN))


def main() -> None:
    """Make bundles from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*EXTRAS], help="agent, collector; both")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--wheel", type=Path, help="a wheel of gpuwarden; none: it is built")
    parser.add_argument("--lock", type=Path, help="default requirements-dev.lock")
    args = parser.parse_args()
    unknown = set(args.parts) - EXTRAS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: a part is agent or collector")
    wheel = args.wheel or build_wheel(args.out)
    for part in args.parts:
        path = bundle(part, wheel, needed(part, lock=args.lock), args.out)
        print(f"{path} ({path.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
