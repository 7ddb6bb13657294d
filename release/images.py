"""Makes container images of agent and collector as OCI archives, without a daemon, a builder or root.

An image has three layers: what Python needs of Debian, the locked wheels, and gpuwarden itself. Debian's
packages are named with version and hash in `deploy/images/debian.ARCHITECTURE.lock` and unpacked without
their scripts: no shell and no package manager is in the image. Nothing of the image is run to make it, so
one machine makes those of all architectures, and an archive may hold one for each. Two builds of one tree
are the same bytes.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import platform
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive import source_date_epoch
from bundle import build_wheel
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile
from packages import EXTRAS, HERE, LEFT_OUT, UNUSED, Target, needed
from paths import CACHE as CACHE_HOME
from paths import ROOT

IMAGES = ROOT / "deploy" / "images"
CACHE = CACHE_HOME / "debian"
HOME = Path("opt/gpuwarden")
PYTHON = "python3.11"
USER = 65532
"""User and group of a container without root, as other images have it."""
PORTS = {"agent": 9750, "collector": 8750}
STATE = {"agent": "var/lib/gpuwarden-agent", "collector": "var/lib/gpuwarden"}
TITLES = {"agent": "gpuwarden agent", "collector": "gpuwarden collector"}
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Architectures of Debian and OCI by machine."""
NOT_NEEDED = (
    "usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/bug", "usr/share/locale", "usr/share/info",
    "usr/share/menu", "usr/share/perl5", "usr/sbin", "etc/default", "etc/dpkg", "usr/share/pixmaps",
    "usr/share/applications", "usr/lib/python3.11/pydoc_data", "usr/lib/python3.11/lib2to3",
)  # fmt: skip
_LINE = re.compile(r"([a-z0-9][a-z0-9+.-]+) (\S+) ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A package of Debian, to the byte."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.sha256}"


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of an OCI archive."""

    data: bytes
    media: str

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    def descriptor(self, **more: Any) -> dict[str, Any]:
        """How other files name it."""
        return {"mediaType": self.media, "digest": self.digest, "size": len(self.data), **more}


@dataclass(frozen=True, slots=True)
class Image:
    """An image of one machine."""

    config: Mapping[str, Any]
    layers: tuple[bytes, ...]
    """Compressed."""


class Debian:
    """Debian's packages of one machine, by the sources of the host's apt."""

    def __init__(self, machine: str, cache: Path = CACHE) -> None:
        self.lock = IMAGES / f"debian.{MACHINES[machine]}.lock"
        self._cache = cache
        self._is_foreign = machine != platform.machine()
        self._lists = cache / f"lists-{MACHINES[machine]}"
        # Without root apt may not change to its own user.
        self._flags = ["-qq", "-o", "APT::Sandbox::User=root"]
        if self._is_foreign:
            self._flags += [
                "-o", f"Dir::State::Lists={self._lists}", "-o", f"Dir::Cache={cache}/apt",
                "-o", f"APT::Architecture={MACHINES[machine]}",
                "-o", f"APT::Architectures={MACHINES[machine]}",
            ]  # fmt: skip

    def packages(self) -> list[DebianPackage]:
        """Packages of the lock. Raises SystemExit."""
        return read_lock(self.lock.read_text(), self.lock.name)

    def fetch(self, package: DebianPackage) -> Path:
        """The package's file, asked for once. Raises SystemExit."""
        path = self._cache / f"{package.sha256}.deb"
        if path.exists():
            return path
        self._cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
            (made,) = self._downloaded([f"{package.name}={package.version}"], Path(scratch))
            digest = hashlib.sha256(made.read_bytes()).hexdigest()
            if digest != package.sha256:
                sys.exit(
                    f"{package.name} {package.version} is {digest}: not what {self.lock.name} names"
                )
            made.rename(path)
        return path

    def update(self) -> None:
        """Lock the packages that apt would install now."""
        lines = self.lock.read_text().splitlines(keepends=True)
        names = [package.name for package in self.packages()]
        with tempfile.TemporaryDirectory() as scratch:
            files = self._downloaded(names, Path(scratch))
            newest = sorted(map(_package_of, files), key=lambda package: package.name)
        heading = "".join(line for line in lines if line.startswith("#"))
        self.lock.write_text(heading + "".join(f"{package}\n" for package in newest))

    def _downloaded(self, names: list[str], folder: Path) -> list[Path]:
        if shutil.which("apt-get") is None:
            sys.exit("images are made of Debian's packages: run this on Debian 12")
        if self._is_foreign and not self._lists.is_dir():
            self._ask_for_lists()
        done = self._apt("download", *names, folder=folder)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["apt-get download failed"])[-1]
            if self._is_foreign:
                shutil.rmtree(self._lists, ignore_errors=True)  # asked for again the next time
            sys.exit(
                f"{why}\nDebian has replaced it: `apt-get update`, then `make images ARGS=--update`"
            )
        return sorted(folder.glob("*.deb"))

    def _ask_for_lists(self) -> None:
        for folder in (self._lists / "partial", self._cache / "apt/archives/partial"):
            folder.mkdir(parents=True, exist_ok=True)
        done = self._apt("update", folder=self._cache)
        if done.returncode:
            shutil.rmtree(self._lists)
            why = (done.stderr.strip().splitlines() or ["apt-get update failed"])[-1]
            sys.exit(f"{why}\nDebian's packages of another architecture cannot be listed here")

    def _apt(self, *argv: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        command = ["apt-get", *self._flags, *argv]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def read_lock(text: str, name: str) -> list[DebianPackage]:
    """Packages of the lock of that name. Raises SystemExit."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [_LINE.fullmatch(line) for line in lines]
    if wrong := [line for line, match in zip(lines, found, strict=True) if match is None]:
        sys.exit(f"{name}: not name, version and SHA-256: {wrong[0]!r}")
    return [DebianPackage(*match.groups()) for match in found if match]


def _package_of(path: Path) -> DebianPackage:
    argv = ["dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(path)]
    name, version = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return DebianPackage(name, version, hashlib.sha256(path.read_bytes()).hexdigest())


def lay_debian(debian: Debian, root: Path) -> None:
    """Unpack the locked packages, without their scripts, and write what those would."""
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    packages = debian.packages()
    for package in packages:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(debian.fetch(package))], stdout=subprocess.PIPE
        ) as unpacking:
            argv = ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner",
                    f"--directory={root}"]  # fmt: skip
            subprocess.run(argv, stdin=unpacking.stdout, check=True)
    for name in NOT_NEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    _write(root / "etc/ssl/certs/ca-certificates.crt", "".join(p.read_text() for p in authorities))
    shutil.rmtree(root / "usr/share/ca-certificates")
    home = f"/{STATE['collector']}"
    _write(
        root / "etc/passwd",
        f"root:x:0:0:root:/root:/sbin/nologin\ngpuwarden:x:{USER}:{USER}:gpuwarden:{home}:/sbin/nologin\n",
    )
    _write(root / "etc/group", f"root:x:0:\ngpuwarden:x:{USER}:\n")
    _write(root / "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    packaged = "".join(f"{package}\n" for package in packages)
    _write(root / "usr/share/gpuwarden/debian.lock", packaged)
    compile_all(root, "usr/lib/python3.11")


def lay_wheels(wheels: Iterable[Path], root: Path, left_out: Iterable[str] = ()) -> None:
    """Lay wheels out in the virtual environment of the image, less packages that are `left_out`."""
    site = HOME / "lib" / PYTHON / "site-packages"
    folders = {"purelib": site, "platlib": site, "scripts": HOME / "bin", "data": HOME}
    schemes = {name: f"/{path}" for name, path in folders.items()}
    destination = SchemeDictionaryDestination(
        {**schemes, "headers": f"/{HOME}/include"},
        f"/{HOME}/bin/python",
        "posix",
        destdir=str(root),
    )
    for wheel in wheels:
        with WheelFile.open(wheel) as source:
            source.validate_record()
            install(source, destination, {"INSTALLER": b"gpuwarden"})
    for pattern in (*UNUSED, *left_out):
        for path in (root / site).glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    compile_all(root, str(HOME))


def lay_own(part: str, wheel: Path, root: Path) -> None:
    """Lay out gpuwarden's own wheel, and what starts it."""
    lay_wheels([wheel], root, LEFT_OUT[part])
    home = root / HOME
    (home / "bin/python").symlink_to(f"/usr/bin/{PYTHON}")
    _write(home / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    shutil.copyfile(IMAGES / "health.py", home / "bin/gpuwarden-health")
    (home / "bin/gpuwarden-health").chmod(0o755)
    for folder in ("tmp", STATE[part], "etc/gpuwarden"):
        (root / folder).mkdir(parents=True)


def compile_all(root: Path, folder: str) -> None:
    """Bytecode that needs no look at its source: layers have no dates, and the image cannot be written."""
    if sys.version_info[:2] != (3, 11):
        sys.exit(f"the images have Python 3.11, this is {platform.python_version()}: set PYTHON")
    for path in (root / folder).rglob("__pycache__"):
        shutil.rmtree(path)
    argv = [
        sys.executable, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash",
        "-s", str(root), "-p", "/", "-x", "/(test|tests|idlelib)/", str(root / folder),
    ]  # fmt: skip
    subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def layer(root: Path, owned: Iterable[str] = ()) -> tuple[bytes, str]:
    """A layer of everything in `root`, compressed, and the digest of what it is when it is not.

    `owned`: folders of the image's user.
    """
    mine = frozenset(owned)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            entry = archive.gettarinfo(str(path), name)
            entry.uid = entry.gid = USER if name in mine else 0
            entry.uname = entry.gname = ""
            entry.mtime = source_date_epoch()
            entry.mode = _mode(entry, name)
            if entry.islnk():  # as a file of its own: which of the names came first is chance
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
            with path.open("rb") if entry.isreg() else io.BytesIO() as data:
                archive.addfile(entry, data)
    diff = hashlib.sha256(plain.getvalue()).hexdigest()
    return gzip.compress(plain.getvalue(), 6, mtime=0), f"sha256:{diff}"


def _mode(entry: tarfile.TarInfo, name: str) -> int:
    """The mode of an entry: it does not depend on the builder's umask, and is never setuid."""
    if name == "tmp":
        return 0o1777
    return 0o755 if not entry.isreg() or entry.mode & stat.S_IXUSR else 0o644


def config_of(part: str, version: str, diffs: list[str], machine: str) -> dict[str, Any]:
    """The image's configuration."""
    created = _instant()
    port = f"{PORTS[part]}/tcp"
    settings = {
        "agent": [f"GPUWARDEN_AGENT_EXPORTER_PORT={PORTS['agent']}"],
        "collector": [],
    }
    return {
        "created": created,
        "architecture": MACHINES[machine],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Entrypoint": [f"/{HOME}/bin/gpuwarden", part, "run"],
            "Env": [f"PATH=/{HOME}/bin:/usr/bin", "LANG=C.UTF-8",
                    "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", *settings[part]],
            "ExposedPorts": {port: {}},
            "Volumes": {f"/{STATE[part]}": {}},
            "WorkingDir": f"/{STATE[part]}",
            "StopSignal": "SIGTERM",
            "Labels": labels_of(part, version, created),
            # Docker's, which Podman and Kubernetes do not read.
            "Healthcheck": {
                "Test": ["CMD", f"/{HOME}/bin/gpuwarden-health", str(PORTS[part])],
                "Interval": 30 * 10**9,
                "Timeout": 10 * 10**9,
                "StartPeriod": 30 * 10**9,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": diffs},
        "history": [{"created": created, "comment": name} for name in ("Debian 12", "wheels", "gpuwarden")],
    }  # fmt: skip


def labels_of(part: str, version: str, created: str) -> dict[str, str]:
    """Labels, which are the manifest's annotations too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of = {
        "title": TITLES[part],
        "description": project["description"],
        "version": version,
        "licenses": project["license"],
        "vendor": project["name"],
        "created": created,
        "base.name": "debian:bookworm",
    }
    return {f"org.opencontainers.image.{name}": text for name, text in of.items()}


def _instant() -> str:
    at = datetime.datetime.fromtimestamp(source_date_epoch(), datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def archive(images: Iterable[Image], name: str, annotations: Mapping[str, str]) -> bytes:
    """An OCI archive of one image by that name: of several machines, each takes its own."""
    oci = "application/vnd.oci.image"
    blobs: dict[str, Blob] = {}
    manifests = []
    for one in images:
        layers = [Blob(data, f"{oci}.layer.v1.tar+gzip") for data in one.layers]
        config = Blob(_json(one.config), f"{oci}.config.v1+json")
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [blob.descriptor() for blob in layers],
            "annotations": dict(annotations),
        }
        described = Blob(_json(manifest), f"{oci}.manifest.v1+json")
        where = {"architecture": one.config["architecture"], "os": one.config["os"]}
        manifests.append(described.descriptor(platform=where))
        blobs |= {blob.digest: blob for blob in (*layers, config, described)}
    named = {"org.opencontainers.image.ref.name": name}
    if len(manifests) > 1:
        # One name stands for an index of them.
        index = {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": manifests}
        of_all = Blob(_json(index | {"annotations": dict(annotations)}), f"{oci}.index.v1+json")
        blobs[of_all.digest] = of_all
        manifests = [of_all.descriptor()]
    entry = {**manifests[0], "annotations": named}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(
            {"schemaVersion": 2, "mediaType": f"{oci}.index.v1+json", "manifests": [entry]}
        ),
        **{
            f"blobs/sha256/{digest.removeprefix('sha256:')}": blob.data
            for digest, blob in blobs.items()
        },
    }
    return b"".join(_tar_of(files))


def _tar_of(files: Mapping[str, bytes]) -> Iterator[bytes]:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = (
                len(files[name]),
                source_date_epoch(),
                0o644,
            )
            tar.addfile(entry, io.BytesIO(files[name]))
    yield made.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def image(part: str, wheel: Path, machine: str) -> Image:
    """The image of `part` for a machine, with this wheel of gpuwarden."""
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as scratch:
        roots = [Path(scratch, name) for name in ("debian", "wheels", "own")]
        lay_debian(Debian(machine), roots[0])
        lay_wheels(needed(part, Target(HERE.python, machine)), roots[1])
        lay_own(part, wheel, roots[2])
        layers = [layer(root, owned=[STATE[part]]) for root in roots]
    config = config_of(part, version, [diff for _, diff in layers], machine)
    return Image(config, tuple(data for data, _ in layers))


def write(part: str, images: list[Image], out: Path) -> Path:
    """Write the archive of these images of `part`; its name has the architecture where there is one image."""
    labels = images[0].config["config"]["Labels"]
    version = labels["org.opencontainers.image.version"]
    data = archive(images, f"gpuwarden-{part}:{version}", labels)
    out.mkdir(parents=True, exist_ok=True)
    only = f"-{images[0].config['architecture']}" if len(images) == 1 else ""
    path = out / f"gpuwarden-{part}-{version}{only}.oci.tar"
    path.with_suffix(".new").write_bytes(data)
    return path.with_suffix(".new").rename(path)


def main() -> None:
    """Make images from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*EXTRAS], help="agent, collector; both")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--update", action="store_true", help="lock Debian's newest packages first")
    parser.add_argument(
        "--machine", action="append", choices=[*MACHINES],
        help="of the image; several: one archive that holds an image of each; default this one's",
    )  # fmt: skip
    args = parser.parse_args()
    machines = sorted(set(args.machine or [platform.machine()]))
    if unknown := [name for name in machines if name not in MACHINES]:
        sys.exit(f"images are made for {', '.join(MACHINES)}, this is {unknown[0]}")
    if args.update:
        for machine in machines:
            Debian(machine).update()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_wheel(Path(scratch))
        for part in args.parts:
            path = write(part, [image(part, wheel, machine) for machine in machines], args.out)
            print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
