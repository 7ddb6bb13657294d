"""Makes an RPM of a bundle, by rpmbuild: the same installer, run by rpm.

As in the Debian package, the scripts run `install` and `uninstall` of the bundle within.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import deb
from archive import source_date_epoch
from bundle import manifest_of
from paths import ROOT

SPEC = """\
Name: {package}
Version: {version}
Release: 1
Summary: gpuwarden {part}: {description}
License: Apache-2.0
URL: https://pypi.org/project/gpuwarden/
Requires: systemd
Requires: {requires}
# All that the bundle holds is its own: strip, compile and require nothing.
AutoReqProv: no
%global __os_install_post %{{nil}}
%global debug_package %{{nil}}

%description
It has Python packages of its own under /opt/gpuwarden. Settings are in
/etc/gpuwarden, data under /var/lib; removing the package keeps both.

%install
install -D -m 0755 {source} %{{buildroot}}/usr/share/{package}/{file}

%files
/usr/share/{package}

%post
if [ -d /run/systemd/system ]; then
    {run} /usr/share/{package}/{file} install
else
    echo "{package}: no systemd runs here; {run} /usr/share/{package}/{file} install when it does"
fi

%preun
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then
    {run} /usr/share/{package}/{file} uninstall
fi
"""


def why_not() -> str | None:
    """Why none can be made here; None: it can."""
    if shutil.which("rpmbuild") is None:
        return "needs rpmbuild (Debian: apt install rpm)"
    return None


def rpm(archive: Path, out: Path) -> Path:
    """Write the package of a bundle into `out`."""
    manifest = manifest_of(archive)
    words = deb.words_of(archive, manifest)
    python = manifest["python"]
    requires = f"glibc >= {deb.GLIBC}" if manifest["carried"] else f"python{python}"
    with tempfile.TemporaryDirectory() as scratch:
        spec = Path(scratch, "package.spec")
        spec.write_text(
            SPEC.format(
                **words,
                version=deb.debian_version(manifest["version"]),
                part=manifest["part"],
                description=deb.DESCRIPTIONS[manifest["part"]],
                requires=requires,
                source=archive.absolute(),
            )
        )
        macros = {
            "_topdir": scratch,
            "_buildhost": "gpuwarden",
            "use_source_date_epoch_as_buildtime": "1",
            "clamp_mtime_to_source_date_epoch": "1",
            # The bundle is compressed already, and all that read RPMs read gzip.
            "_binary_payload": "w1.gzdio",
        }
        argv = ["rpmbuild", "-bb", "--quiet", "--target", manifest["machine"], str(spec)]
        for name, value in macros.items():
            argv += ["--define", f"{name} {value}"]
        env = os.environ | {"SOURCE_DATE_EPOCH": str(source_date_epoch())}
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=env)
        (made,) = Path(scratch, "RPMS").rglob("*.rpm")
        return Path(shutil.move(made, out / made.name))


def main() -> None:
    """Make packages of bundles from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", type=Path, help="files that bundle.py made")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    if reason := why_not():
        parser.error(reason)
    for archive in args.bundles:
        print(rpm(archive, args.out))


if __name__ == "__main__":
    main()
