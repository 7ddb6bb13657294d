"""Makes container images of agent and collector as OCI archives: lays out their files, and has buildah build them.

The files are those of the locked packages and gpuwarden's own; `deploy/images/Containerfile` copies them onto an image
with Python.
"""

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from archive import source_date_epoch
from bundle import build_wheel
from interpreter import ARCHITECTURES
from packages import EXTRAS, HERE, Target, install_packages, install_wheel
from paths import ROOT

IMAGES = ROOT / "deploy" / "images"
BASE = f"docker.io/library/python:{HERE.python}-slim-bookworm"
PROGRAMS = {"gpuwarden": "start.py", "gpuwarden-health": "health.py"}


def lay_out_files(parts: Sequence[str], machines: Sequence[str], folder: Path) -> None:
    """Write what the Containerfile copies. Raises SystemExit."""
    for name in ("bin", "state", "wheel"):
        (folder / name).mkdir()
    for name, file in PROGRAMS.items():
        shutil.copy(IMAGES / file, folder / "bin" / name)
        (folder / "bin" / name).chmod(0o755)
    wheel = build_wheel(folder / "wheel")
    for machine in machines:
        for part in parts:
            site, target = folder / ARCHITECTURES[machine] / part, Target(HERE.python, machine)
            install_packages(part, target, site)
            install_wheel(part, site, wheel)
            # Images cannot be written, and their files have one date: bytecode needs no look at its source.
            argv = ["-m", "compileall", "-q", "-s", str(site), "-p", "/opt/gpuwarden/site"]
            argv += ["--invalidation-mode", "unchecked-hash", str(site)]
            subprocess.run([sys.executable, *argv], check=False, stdout=subprocess.DEVNULL)


def build(part: str, machines: Sequence[str], base: str, folder: Path, out: Path) -> Path:
    """Build the image of a part for these machines, as one archive. Raises SystemExit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = f"gpuwarden-{part}:{project['version']}"
    # Of no name that a loaded image has.
    images = f"localhost/{folder.name.replace('_', '0')}-{part}"
    only = f"-{ARCHITECTURES[machines[0]]}" if len(machines) == 1 else ""
    path = out / f"gpuwarden-{part}-{project['version']}{only}.oci.tar"
    labels = {
        "title": f"gpuwarden {part}",
        "version": project["version"],
        "licenses": project["license"],
    }
    _buildah(
        "build", f"--file={IMAGES / 'Containerfile'}", f"--target={part}", f"--build-arg=BASE={base}",
        f"--platform={','.join(f'linux/{ARCHITECTURES[one]}' for one in machines)}", f"--manifest={images}",
        f"--timestamp={source_date_epoch()}",
        *(f"--label=org.opencontainers.image.{key}={value}" for key, value in labels.items()), str(folder),
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    _buildah("manifest", "push", "--all", images, f"oci-archive:{path}:{name}")
    _buildah("manifest", "rm", images)
    return path


def _buildah(*argv: str) -> None:
    if shutil.which("buildah") is None:
        sys.exit("images are built by buildah: install it (Debian: apt-get install buildah)")
    if subprocess.run(["buildah", *argv], check=False).returncode:
        sys.exit(f"buildah {argv[0]} failed")


def main() -> None:
    """Make images from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*EXTRAS], help="agent, collector; both")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--base", default=BASE, help=f"image with Python; default {BASE}")
    parser.add_argument(
        "--machine", action="append", choices=[*ARCHITECTURES],
        help="of the image; several: one archive that holds an image of each; default this one's",
    )  # fmt: skip
    args = parser.parse_args()
    machines = sorted(set(args.machine or [platform.machine()]))
    if unknown := [name for name in machines if name not in ARCHITECTURES]:
        sys.exit(f"images are made for {', '.join(ARCHITECTURES)}, this is {unknown[0]}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lay_out_files(args.parts, machines, folder)
        for part in args.parts:
            path = build(part, machines, args.base, folder, args.out)
            print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
