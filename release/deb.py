"""Makes a Debian package of a bundle: the same installer, run by dpkg.

The package holds the bundle; its scripts run `install` and `uninstall` of it. So both ways of installing are
one, and the package is the same bytes for the same bundle.
"""

import argparse
import email.utils
import gzip
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import packages
from archive import source_date_epoch
from bundle import manifest_of
from interpreter import ARCHITECTURES
from paths import ROOT

GLIBC = ".".join(map(str, packages.GLIBC))
DESCRIPTIONS = {
    "agent": "samples the GPUs of this host and ships them to a collector",
    "collector": "keeps GPU samples in SQL, with rules and a page",
}

POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if [ -d /run/systemd/system ]; then
        {run} /usr/share/{package}/{file} install
    else
        echo "{package}: no systemd runs here; {run} /usr/share/{package}/{file} install when it does"
    fi
fi
"""

PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    {run} /usr/share/{package}/{file} uninstall
fi
"""

POSTRM = """\
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf {state} {settings}
    rmdir --ignore-fail-on-non-empty /etc/gpuwarden 2>/dev/null || true
fi
"""

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: gpuwarden

Files: *
Copyright: 2026 the gpuwarden authors, and those of the packages in the bundle
License: Apache-2.0
 On Debian systems, the full text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0. Each package in the bundle carries a license of its own.
"""

CHANGELOG = """\
{package} ({version}) unstable; urgency=medium

  * CHANGELOG.md of the project says what is new.

 -- {maintainer}  {date}
"""

MAINTAINER = "gpuwarden <gpuwarden@localhost>"

OVERRIDES = """\
# The project has no mail address.
{package}: bogus-mail-host
{package}: bogus-mail-host-in-debian-changelog
# It is not one of Debian's own packages.
{package}: initial-upload-closes-no-bugs
"""


def deb(archive: Path, out: Path) -> Path:
    """Write the package of a bundle into `out`."""
    manifest = manifest_of(archive)
    version = debian_version(manifest["version"])
    architecture = ARCHITECTURES[manifest["machine"]]
    path = out / f"gpuwarden-{manifest['part']}_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch, "root")
        _stage(root, archive, manifest, version, architecture)
        epoch = source_date_epoch()
        for file in [root, *root.rglob("*")]:
            os.utime(file, (epoch, epoch), follow_symlinks=False)
        # The bundle is compressed already: the least that Debian's policy asks for.
        argv = [
            "dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(path)
        ]  # fmt: skip
        env = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=env)
    return path


def words_of(archive: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """The lines about the bundle in the scripts of packages, Debian's and others."""
    part = manifest["part"]
    return {
        "package": f"gpuwarden-{part}",
        "file": f"gpuwarden-{part}{archive.suffix}",
        "run": "sh" if manifest["carried"] else "python3",
        "state": "/var/lib/gpuwarden-agent" if part == "agent" else "/var/lib/gpuwarden",
        "settings": f"/etc/gpuwarden/{part}.toml",
    }


def debian_version(version: str) -> str:
    """Debian sorts what follows ~ before nothing, and ~~ before ~, as it must be for what is not final."""
    return re.sub(r"(a|b|rc)(?=\d)", r"~\1", version.replace(".dev", "~~dev"))


def _stage(
    root: Path, archive: Path, manifest: dict[str, Any], version: str, architecture: str
) -> None:
    part, package, words = (
        manifest["part"],
        f"gpuwarden-{manifest['part']}",
        words_of(archive, manifest),
    )
    date = email.utils.formatdate(source_date_epoch())
    changelog = CHANGELOG.format(package=package, version=version, maintainer=MAINTAINER, date=date)
    share, doc = root / "usr/share" / package, root / "usr/share/doc" / package
    files = {
        share / words["file"]: (archive.read_bytes(), 0o755),
        doc / "copyright": (COPYRIGHT.encode(), 0o644),
        doc / "changelog.gz": (gzip.compress(changelog.encode(), mtime=0), 0o644),
        root / "usr/share/lintian/overrides" / package: (OVERRIDES.format(**words).encode(), 0o644),
        root / "DEBIAN/postinst": (POSTINST.format(**words).encode(), 0o755),
        root / "DEBIAN/prerm": (PRERM.format(**words).encode(), 0o755),
        root / "DEBIAN/postrm": (POSTRM.format(**words).encode(), 0o755),
    }
    sums = "".join(
        f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path, (data, _) in files.items()
        if "DEBIAN" not in path.parts
    )
    files[root / "DEBIAN/md5sums"] = (sums.encode(), 0o644)
    size_kib = sum(len(data) for data, _ in files.values()) // 1024
    control = (
        f"Package: {package}\nVersion: {version}\nArchitecture: {architecture}\n"
        f"Maintainer: {MAINTAINER}\nSection: admin\nPriority: optional\n"
        f"Installed-Size: {size_kib}\nPre-Depends: systemd (>= 247)\n"
        f"Depends: {_depends(manifest)}\n"
        "Homepage: https://pypi.org/project/gpuwarden/\n"
        f"Description: gpuwarden {part}: {DESCRIPTIONS[part]}\n"
        " It has Python packages of its own under /opt/gpuwarden. Settings are in\n"
        " /etc/gpuwarden, data under /var/lib; removing the package keeps both.\n"
    )
    files[root / "DEBIAN/control"] = (control.encode(), 0o644)
    for path, (data, mode) in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    for folder in [root, *root.rglob("*")]:
        if folder.is_dir():
            folder.chmod(0o755)


def _depends(manifest: dict[str, Any]) -> str:
    if manifest["carried"]:
        return f"libc6 (>= {GLIBC})"
    major, minor = manifest["python"].split(".")
    return f"python3 (>= {major}.{minor}), python3 (<< {major}.{int(minor) + 1})"


def main() -> None:
    """Make packages of bundles from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path, help="files that bundle.py made")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    for archive in args.bundles:
        print(deb(archive, args.out))


if __name__ == "__main__":
    main()
