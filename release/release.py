"""Makes the files of a release: the wheel, both bundles, their packages for Debian and Red Hat, what is in each
(CycloneDX), SHA256SUMS of all.

The same tree gives the same bytes, so that anyone can check that a release is what the source says.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import bundle
from interpreter import Interpreter
from nfpm import FORMATS, package
from packages import EXTRAS
from sbom import sbom

SUMS = "SHA256SUMS"


def release(out: Path, carried: Interpreter | None) -> list[Path]:
    """Write all files of a release into `out`, which gets nothing until all are made."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        scratch = Path(name)
        made = [bundle.build_wheel(scratch)]
        for part in EXTRAS:
            packages = bundle.packages_of(part, bundle.target_of(carried))
            archive = bundle.bundle(part, made[0], packages, scratch, carried)
            made += [archive, sbom(archive)]
            if carried:
                made += [package(archive, scratch, form) for form in FORMATS]
        (scratch / SUMS).write_text(sums(made))
        return [path.rename(out / path.name) for path in (*made, scratch / SUMS)]


def sums(paths: Iterable[Path]) -> str:
    """Lines that `sha256sum --check` reads."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths)
    )


def main() -> None:
    """Make a release from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    bundle.add_flags(parser)
    args = parser.parse_args()
    carried = bundle.carried_for(args.machine, host_python=args.host_python)
    for path in release(args.out, carried):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
