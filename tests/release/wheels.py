"""Wheels, packages and interpreters made by hand, for bundles that tests make."""

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from bundle import Packages
from interpreter import Interpreter


def tar_xz(files: Mapping[str, bytes]) -> bytes:
    """An archive of programs."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


PACKAGES = Packages(tar_xz({"some_lib.py": b""}), 4096, {"some-lib": "1.0"})
UNPACK = b"""\
#!/bin/sh
exec tar -xJf - -C "$1"
"""
"""Does what the real one does, with tools that a development machine has."""


def make_wheel(folder: Path, name: str, files: Mapping[str, str], *, version: str = "1.0") -> Path:
    """A wheel with the record that an installer checks."""
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
            made.writestr(member, text)
    return path


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


def own_wheel(folder: Path, version: str = "1.2.3") -> Path:
    """A wheel as ours is: a command, and a package that GPU hosts do not get."""
    files = {
        "gpuwarden/a.py": "A = 1\n",
        "gpuwarden_simulator/b.py": "B = 2\n",
        "gpuwarden_cli/main.py": "def main():\n    print('runs')\n",
    }
    return make_wheel(folder, "gpuwarden", files, version=version)


def carried_python(machine: str, *, script: str = "", unpack: bytes = UNPACK) -> Interpreter:
    """Stands for the Python that bundles carry: a script that runs that of this process."""
    about = {"python": "3.13.5", "openssl": "3.5.7", "sqlite": "3.46.1", "bytes": "4096"}
    text = f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n'.encode()
    return Interpreter(machine, tar_xz({"bin/python3": text}), unpack, about)
