"""Wheels and interpreters made by hand, for bundles that tests make."""

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from interpreter import Interpreter

UNPACK = b"""\
#!/bin/sh
exec tar -xJf - -C "$1"
"""
"""Does what the real one does, with tools that a development machine has."""


def make_wheel(
    folder: Path, name: str, files: Mapping[str, str], *, version: str = "1.0", **others: str
) -> Path:
    """A wheel with the record that an installer checks; `others` replace a file's text behind its back."""
    info = f"{name}-{version}.dist-info"
    told = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{n},sha256={_digest(t)},{len(t)}\n" for n, t in told.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for member, text in (told | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}).items():
            made.writestr(member, others.get(Path(member).stem, text))
    return path


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


def own_wheel(folder: Path) -> Path:
    """A wheel as ours is: a command, and a package that GPU hosts do not get."""
    files = {
        "gpuwarden/a.py": "A = 1\n",
        "gpuwarden_simulator/b.py": "B = 2\n",
        "gpuwarden_cli/main.py": "def main():\n    print('runs')\n",
    }
    return make_wheel(folder, "gpuwarden", files, version="1.2.3")


def carried_python(machine: str, *, script: str = "", unpack: bytes = UNPACK) -> Interpreter:
    """Stands for the Python that bundles carry: a script that runs that of this process."""
    text = f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n'.encode()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as tar:
        entry = tarfile.TarInfo("bin/python3")
        entry.size, entry.mode = len(text), 0o755
        tar.addfile(entry, io.BytesIO(text))
    return Interpreter(machine, made.getvalue(), unpack, {"python": "3.13.5", "bytes": "4096"})
