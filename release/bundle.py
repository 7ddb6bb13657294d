"""Makes a bundle: one file with all that a GPU host or a collector host needs, its own Python and the installer.

It is a shell script with a zip file behind it: the script checks the file and unpacks Python, which runs the
zip file. Packages are what the part needs of the locked requirements, by hash. With `--host-python` it is a zip
file alone (`zipapp`), for hosts that have the Python that this runs on.

Two builds of one tree are the same bytes: entries are sorted, and dated SOURCE_DATE_EPOCH.
"""

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import archive
import interpreter
from archive import EPOCH_MIN, source_date_epoch
from interpreter import CannotBuild, Interpreter, say
from packages import EXTRAS, HERE, LOCK, UNUSED, Target, install_packages, install_wheel
from paths import CACHE, ROOT

PACKAGES = (
    "contract",
    "agent",
    "simulator",
    "collector",
    "postgres",
    "prometheus",
    "rules",
    "dashboards",
    "client",
    "importing",
    "cli",
)
SHEBANG = b"#!/usr/bin/env python3\n"
HEADER = Path(__file__).with_name("header.sh")
PYTHON, UNPACK = "python.tar.xz", "unpack"


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages of a part, packed."""

    archive: bytes
    """A .tar.xz of a site-packages folder."""
    bytes: int
    """What it takes unpacked."""
    versions: Mapping[str, str]


def build_wheel(out: Path, root: Path = ROOT) -> Path:
    """Build the wheel of gpuwarden that `root` holds the source of."""
    out.mkdir(parents=True, exist_ok=True)
    argv = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(out.absolute()),
    ]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return out / f"gpuwarden-{version}-py3-none-any.whl"


def packages_of(part: str, target: Target, *, lock: Path = LOCK) -> Packages:
    """The packages that `part` needs beside gpuwarden's own, packed once for each lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    inputs = (target, EXTRAS[part], project["optional-dependencies"], UNUSED, archive.FORM)
    key = archive.digest({"lock": lock.read_bytes(), "inputs": repr(inputs).encode()})
    path = CACHE / "packages" / f"{part}-{target.machine}-{key[:16]}.tar.xz"
    about = path.with_suffix(".json")
    if not about.is_file():
        with tempfile.TemporaryDirectory() as scratch:
            say(f"{part}: packages for Python {target.python} on {target.machine}")
            versions = install_packages(part, target, Path(scratch), lock=lock)
            unpacked = archive.unpacked_bytes(Path(scratch))
            say(f"{part}: compressing {unpacked // 1_000_000} MB of {len(versions)} packages, once")
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, archive.pack(Path(scratch), target.machine))
        _write(about, json.dumps({"bytes": unpacked, "versions": versions}).encode())
    return Packages(path.read_bytes(), **json.loads(about.read_text()))


def bundle(
    part: str, wheel: Path, packages: Packages, out: Path, carried: Interpreter | None = None
) -> Path:
    """Write the bundle of `part`, with this wheel of gpuwarden and these packages, into `out`.

    Without `carried` it is for the Python of this process.
    """
    target = target_of(carried)
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as scratch:
        install_wheel(part, Path(scratch), wheel)
        own_bytes = archive.unpacked_bytes(Path(scratch))
        own = archive.pack(Path(scratch), target.machine)
    entries = {"packages.tar.xz": packages.archive, "gpuwarden.tar.xz": own}
    if carried:
        entries |= {PYTHON: carried.python, UNPACK: carried.unpack}
    entries |= dict(_installer_files()) | dict(_host_files(part))
    manifest = {
        "part": part,
        "version": version,
        **asdict(target),
        "carried": carried.about if carried else None,
        "digest": archive.digest(entries),
        "bytes": packages.bytes + own_bytes + int(carried.about["bytes"] if carried else 0),
        "archives": {
            name: hashlib.sha256(data).hexdigest()
            for name, data in sorted(entries.items())
            if name.endswith(".tar.xz")
        },
        "packages": packages.versions,
    }
    entries["manifest.json"] = json.dumps(manifest, indent=1).encode() + b"\n"
    out.mkdir(parents=True, exist_ok=True)
    if carried:
        path = out / f"gpuwarden-{part}-{version}-{target.machine}.run"
        words = {"part": part, "version": version, "machine": target.machine}
        write_runnable(path, entries, words, room_bytes=int(carried.about["bytes"]))
    else:
        tag = f"cp{target.python.replace('.', '')}-{target.machine}"
        path = out / f"gpuwarden-{part}-{version}-{tag}.pyz"
        _write(path, SHEBANG + zipped(entries, len(SHEBANG)), 0o755)
    return path


def target_of(carried: Interpreter | None) -> Target:
    """What packages beside this Python are for."""
    return Target(interpreter.VERSION, carried.machine) if carried else HERE


def manifest_of(path: Path) -> dict[str, Any]:
    """The description in a bundle."""
    with zipfile.ZipFile(path) as made:
        manifest: dict[str, Any] = json.loads(made.read("manifest.json"))
    return manifest


def _installer_files() -> Iterator[tuple[str, bytes]]:
    here = Path(__file__).parent
    yield "__main__.py", (here / "entry.py").read_bytes()
    for path in sorted((here / "gpuwarden_installer").rglob("*.py")):
        yield str(path.relative_to(here)), path.read_bytes()


def _host_files(part: str) -> Iterator[tuple[str, bytes]]:
    systemd = ROOT / "systemd"
    yield "host/unit", (systemd / f"gpuwarden-{part}.service").read_bytes()
    yield "host/settings", (systemd / f"{part}.toml").read_bytes()
    yield "host/sysusers", (systemd / "sysusers.d/gpuwarden.conf").read_bytes()
    yield "host/tmpfiles", (systemd / "tmpfiles.d/gpuwarden.conf").read_bytes()


def zipped(entries: Mapping[str, bytes], start: int) -> bytes:
    """A zip file that lies `start` bytes behind the beginning of its file, the same for the same entries."""
    date = time.gmtime(max(EPOCH_MIN, source_date_epoch()))[:6]
    file = io.BytesIO(bytes(start))
    file.seek(start)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as made:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, date)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            made.writestr(entry, entries[name])
    return file.getvalue()[start:]


def write_runnable(
    path: Path, entries: Mapping[str, bytes], words: Mapping[str, str], *, room_bytes: int
) -> None:
    """A shell script that unpacks and runs the Python among `entries`, which lie behind it as a zip file."""
    numbers = ("start", "size", "unpack_start", "unpack_size", "python_start", "python_size")
    room = {"room": str(-(-room_bytes // 1_000_000))}

    def header(known: Mapping[str, int], sha256: str) -> bytes:
        # The same length, whatever the numbers are: they say where it ends.
        wide = {name: f"{known.get(name, 0):<10d}" for name in numbers}
        all_words = {**words, **room, **wide, "sha256": sha256}
        return re.sub(r"@(\w+)@", lambda m: all_words[m[1]], HEADER.read_text()).encode()

    start = len(header({}, "0" * 64))
    data = zipped(entries, start)
    known = {"start": start, "size": len(data)}
    with zipfile.ZipFile(io.BytesIO(bytes(start) + data)) as made:
        for name, word in ((UNPACK, "unpack"), (PYTHON, "python")):
            entry = made.getinfo(name)
            # Of a local header: 30 bytes and the name; we write no extra field.
            known[f"{word}_start"] = entry.header_offset + 30 + len(name)
            known[f"{word}_size"] = entry.file_size
    _write(path, header(known, hashlib.sha256(data).hexdigest()) + data, 0o755)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.chmod(mode)
    new.replace(path)


def carried_for(machine: str, *, host_python: bool) -> Interpreter | None:
    """The Python to put into bundles; None: they are for that of the host. Ends with a line where it is not available."""
    if host_python:
        return None
    try:
        return interpreter.interpreter(machine)
    except CannotBuild as error:
        sys.exit(f"gpuwarden: {error}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Options that `bundle.py` and `release.py` share."""
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--machine", default=HERE.machine, help="x86_64, aarch64; default this one's"
    )
    parser.add_argument(
        "--host-python", action="store_true",
        help="carry no Python: for hosts that have the version that this runs on",
    )  # fmt: skip


def main() -> None:
    """Make bundles from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*EXTRAS], help="agent, collector; both")
    add_flags(parser)
    args = parser.parse_args()
    unknown = set(args.parts) - EXTRAS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: a part is agent or collector")
    carried = carried_for(args.machine, host_python=args.host_python)
    wheel = build_wheel(args.out)
    for part in args.parts:
        packages = packages_of(part, target_of(carried))
        path = bundle(part, wheel, packages, args.out, carried)
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
