"""Builds the Python that bundles carry, from the source packages of Debian, for hosts with glibc 2.31 or later.

It is built in a Debian 11 made by debootstrap, without a network, from sources of pinned hashes, by
`cpython/build.sh`. That takes minutes, so the result is kept by the hash of all it depends on.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import archive
from paths import CACHE

VERSION = "3.13"
SUITE = "bullseye"
MIRRORS = ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")
RECIPE = Path(__file__).parent / "cpython"
TOOLS = ("debootstrap", "chroot", "unshare")
BUILD_PACKAGES = ("gcc", "make", "perl", "patch", "xz-utils", "tcl")
TARGET_PACKAGES = (
    "libc6-dev",
    "libstdc++6",
    "zlib1g-dev",
    "libffi-dev",
    "libbz2-dev",
    "liblzma-dev",
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a Debian source package."""

    path: str
    """Below a mirror's pool/."""
    sha256: str

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition("/")[2]

    @property
    def version(self) -> str:
        """The version in its name."""
        return self.name.split("_")[1].removesuffix(".debian.tar.xz")


SOURCES = {
    "python": (
        SourceFile(
            "main/p/python3.13/python3.13_3.13.5.orig.tar.xz",
            "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640",
        ),
        SourceFile(
            "main/p/python3.13/python3.13_3.13.5-2+deb13u5.debian.tar.xz",
            "a51f456e654ce2c9b40cc1db8005e5041cdb0b2c3aa96ab0871c49fe95280366",
        ),
    ),
    "openssl": (
        SourceFile(
            "updates/main/o/openssl/openssl_3.5.7.orig.tar.gz",
            "a8c0d28a529ca480f9f36cf5792e2cd21984552a3c8e4aa11a24aa31aeac98e8",
        ),
        SourceFile(
            "updates/main/o/openssl/openssl_3.5.7-1~deb13u2.debian.tar.xz",
            "593a47654ead460a3b609503733f80bef552ff0802799d3b47784faacc50809f",
        ),
    ),
    "sqlite": (
        SourceFile(
            "main/s/sqlite3/sqlite3_3.46.1.orig.tar.xz",
            "d0cdd2ece271b29e7ce18095745d892517ee26d0f270065b3a25c2e9eb11639c",
        ),
        SourceFile(
            "main/s/sqlite3/sqlite3_3.46.1-7+deb13u2.debian.tar.xz",
            "59d33bc436258603702bb051d645743ab03612b82f79e7c7d638c65127c21261",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The built interpreter, as bundles carry it."""

    machine: str
    python: bytes
    """A .tar.xz of a prefix: bin/python3, lib/python3.13."""
    unpack: bytes
    """The program that unpacks it on a host without xz and tar."""
    about: dict[str, str]
    """Versions, and `bytes` that it takes unpacked."""


class CannotBuild(Exception):
    """The message is one line: what is missing, and what to do."""


def cached(machine: str) -> Interpreter | None:
    """The interpreter of this tree's recipe, where it was built before."""
    folder = _folder(machine)
    if not folder.is_dir():
        return None
    return Interpreter(
        machine,
        (folder / "python.tar.xz").read_bytes(),
        (folder / "unpack").read_bytes(),
        json.loads((folder / "about.json").read_text()),
    )


def interpreter(machine: str) -> Interpreter:
    """The interpreter, built where it was not before. Raises CannotBuild."""
    found = cached(machine)
    if found is None:
        if reason := why_not():
            raise CannotBuild(reason)
        build(machine, _folder(machine))
        found = cached(machine)
        assert found
    return found


def why_not() -> str | None:
    """Why it cannot be built here; None: it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0:
        missing.insert(0, "root")
    if platform.machine() != "x86_64":
        missing.append("an x86_64 machine")
    if not missing:
        return None
    return (
        f"building the Python of bundles needs {', '.join(missing)} (Debian: apt install debootstrap);"
        " --host-python makes bundles for hosts that have the Python of this one"
    )


def key(machine: str) -> str:
    """Names what is built by all it is built from."""
    recipe = {path.name: path.read_bytes() for path in RECIPE.iterdir()}
    hashes = [file.sha256 for files in SOURCES.values() for file in files]
    recipe["/built with"] = repr(
        (machine, SUITE, hashes, BUILD_PACKAGES, TARGET_PACKAGES, archive.FORM)
    ).encode()
    return archive.digest(recipe)[:16]


def _folder(machine: str) -> Path:
    return CACHE / "python" / f"{VERSION}-{machine}-{key(machine)}"


def build(machine: str, out: Path) -> None:
    """Build into the folder `out`, which appears when all is done. Raises CannotBuild."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        root, made = Path(scratch, "root"), Path(scratch, "made")
        files = {name: [fetch(one) for one in sources] for name, sources in SOURCES.items()}
        say(f"Python {VERSION} for {machine}: a Debian {SUITE} to build in")
        _make_root(root, machine)
        for name, (upstream, debian) in files.items():
            (root / "src" / name).mkdir(parents=True)
            shutil.copy(upstream, root / "src" / name / f"orig.tar{upstream.suffix}")
            shutil.copy(debian, root / "src" / name / "debian.tar.xz")
        for path in RECIPE.iterdir():
            shutil.copy(path, root / "src")
        say("building (4 minutes on two cores)")
        jobs = str(os.cpu_count() or 1)
        argv = ["sh", "/src/build.sh", machine, jobs]
        _run("unshare", "--net", "--mount", "--pid", "--fork", "chroot", str(root), *argv)
        made.mkdir()
        about = {name: debian.version for name, (_, debian) in SOURCES.items()}
        about |= dict(line.split("=", 1) for line in (root / "out/about").read_text().splitlines())
        about["bytes"] = str(archive.unpacked_bytes(root / "out/python"))
        say("packing")
        (made / "python.tar.xz").write_bytes(archive.pack(root / "out/python", machine))
        shutil.copy(root / "out/unpack", made / "unpack")
        (made / "about.json").write_text(json.dumps(about, indent=1) + "\n")
        made.rename(out)


def _make_root(root: Path, machine: str) -> None:
    _run("debootstrap", "--variant=minbase", SUITE, str(root), MIRRORS[0])
    packages = [*BUILD_PACKAGES]
    prepare = "apt-get update -qq"
    if machine == platform.machine():
        packages += TARGET_PACKAGES
    else:
        other = ARCHITECTURES[machine]
        prepare = f"dpkg --add-architecture {other} && {prepare}"
        packages += [f"crossbuild-essential-{other}", *TARGET_PACKAGES]
        packages += [f"{name}:{other}" for name in TARGET_PACKAGES]
    script = (
        f"export DEBIAN_FRONTEND=noninteractive; {prepare}"
        f" && apt-get install -qq --yes --no-install-recommends {' '.join(packages)}"
    )
    _run("chroot", str(root), "sh", "-c", script)


def fetch(source: SourceFile, mirrors: tuple[str, ...] = MIRRORS) -> Path:
    """The file, from the cache or a mirror, if it is the one that was pinned. Raises CannotBuild."""
    path = CACHE / "sources" / source.sha256[:16] / source.name
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == source.sha256:
        return path
    said = []
    for mirror in mirrors:
        try:
            with urllib.request.urlopen(f"{mirror}/pool/{source.path}", timeout=60) as answer:
                data = answer.read()
        except (urllib.error.URLError, TimeoutError) as error:
            said.append(f"{mirror}: {error}")
            continue
        found = hashlib.sha256(data).hexdigest()
        if found != source.sha256:
            raise CannotBuild(f"{source.name} of {mirror} is not the pinned one: sha256 {found}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(data)
        new.replace(path)
        return path
    raise CannotBuild(
        f"{source.name} cannot be downloaded ({'; '.join(said)}): when Debian has a newer one, pin that in"
        " release/interpreter.py"
    )


def _run(*argv: str) -> None:
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout[-4000:])
        raise CannotBuild(f"{argv[0]} exited with {done.returncode}; its last lines are above")


def say(line: str) -> None:
    """Print what goes on, where nobody reads it as a result."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Build it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default=platform.machine(), choices=[*ARCHITECTURES])
    args = parser.parse_args()
    try:
        made = interpreter(args.machine)
    except CannotBuild as error:
        sys.exit(f"gpuwarden: {error}")
    size = len(made.python) / 1e6
    print(f"{_folder(args.machine)} ({size:.1f} MB): {json.dumps(made.about)}")


if __name__ == "__main__":
    main()
