"""Makes a bundle: one file with all that a GPU host or a collector host needs, its own Python and the installer.

It is a shell script with a zip file behind it: the script checks the file and unpacks Python, which runs the
zip file. Packages are the part's closure of the locked requirements, by hash. With `--host-python` it is a zip
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import archive
import interpreter
from archive import EPOCH_MIN, source_date_epoch
from interpreter import CannotBuild, Interpreter
from packages import EXTRAS, HERE, LEFT_OUT, UNUSED, Target, lay_out, needed
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


def build_wheel(out: Path, root: Path = ROOT) -> Path:
    """The wheel of gpuwarden that `root` holds the source of."""
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return out / f"gpuwarden-{version}-py3-none-any.whl"


def bundle(
    part: str, wheel: Path, others: Iterable[Path], out: Path, carried: Interpreter | None = None
) -> Path:
    """Write the bundle of `part`, with this wheel of gpuwarden and the others, into `out`.

    Without `carried` it is for the Python of this process.
    """
    machine = carried.machine if carried else HERE.machine
    python = interpreter.VERSION if carried else HERE.python
    version = wheel.name.split("-")[1]
    others = list(others)
    packages, packages_bytes = _packages(others, machine)
    own, own_bytes = _packed([wheel], machine, LEFT_OUT[part])
    entries = {"packages.tar.xz": packages, "gpuwarden.tar.xz": own}
    if carried:
        entries |= {PYTHON: carried.python, UNPACK: carried.unpack}
    entries |= dict(_installer_files()) | dict(_host_files(part))
    manifest = {
        "part": part,
        "version": version,
        "python": python,
        "machine": machine,
        "carried": carried.about if carried else None,
        "digest": archive.digest(entries),
        "bytes": packages_bytes + own_bytes + int(carried.about["bytes"] if carried else 0),
        "archives": {
            name: hashlib.sha256(data).hexdigest()
            for name, data in sorted(entries.items())
            if name.endswith(".tar.xz")
        },
        "wheels": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(others)
        },
    }
    entries["manifest.json"] = json.dumps(manifest, indent=1).encode() + b"\n"
    out.mkdir(parents=True, exist_ok=True)
    if carried:
        path = out / f"gpuwarden-{part}-{version}-{machine}.run"
        words = {"part": part, "version": version, "machine": machine}
        write_runnable(path, entries, words, room_bytes=int(carried.about["bytes"]))
    else:
        path = out / f"gpuwarden-{part}-{version}-cp{python.replace('.', '')}-{machine}.pyz"
        _write(path, SHEBANG + zipped(entries, len(SHEBANG)), 0o755)
    return path


def manifest_of(path: Path) -> dict[str, Any]:
    """The description in a bundle."""
    with zipfile.ZipFile(path) as made:
        manifest: dict[str, Any] = json.loads(made.read("manifest.json"))
    return manifest


def _packages(wheels: list[Path], machine: str) -> tuple[bytes, int]:
    """The archive of these wheels, which is made once, and its size unpacked."""
    recipe = {path.name: path.read_bytes() for path in wheels}
    recipe["/form"] = repr((archive.FORM, UNUSED)).encode()
    path = CACHE / "packages" / f"{machine}-{archive.digest(recipe)[:16]}.tar.xz"
    size = path.with_suffix(".bytes")
    if not size.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        data, unpacked = _packed(wheels, machine)
        _write(path, data)
        _write(size, str(unpacked).encode())
    return path.read_bytes(), int(size.read_text())


def _packed(wheels: Iterable[Path], machine: str, *left_out: tuple[str, ...]) -> tuple[bytes, int]:
    with tempfile.TemporaryDirectory() as scratch:
        unpacked = lay_out(wheels, Path(scratch), *left_out)
        return archive.pack(Path(scratch), machine), unpacked


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
    parser.add_argument("--lock", type=Path, help="default requirements-dev.lock")
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
    parser.add_argument("--wheel", type=Path, help="a wheel of gpuwarden; none: it is built")
    add_flags(parser)
    args = parser.parse_args()
    unknown = set(args.parts) - EXTRAS.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: a part is agent or collector")
    carried = carried_for(args.machine, host_python=args.host_python)
    target = Target(interpreter.VERSION, args.machine) if carried else HERE
    wheel = args.wheel or build_wheel(args.out)
    for part in args.parts:
        path = bundle(part, wheel, needed(part, target, lock=args.lock), args.out, carried)
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
