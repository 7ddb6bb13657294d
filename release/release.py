"""Makes a release: the wheel, both bundles, their packages for Debian and Red Hat, and SHA256SUMS of them.

The same tree gives the same bytes, so that anyone can check that a release is what the source says.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import bundle
import deb
import rpm
from interpreter import VERSION, Interpreter
from packages import EXTRAS, HERE, Target, needed

SUMS = "SHA256SUMS"


def release(out: Path, carried: Interpreter | None, *, lock: Path | None = None) -> list[Path]:
    """Write all files of a release into `out`, which gets nothing until all are made."""
    target = Target(VERSION, carried.machine) if carried else HERE
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        made = [bundle.build_wheel(Path(scratch))]
        for part in EXTRAS:
            wheels = needed(part, target, lock=lock)
            archive = bundle.bundle(part, made[0], wheels, Path(scratch), carried)
            made += [archive, deb.deb(archive, Path(scratch))]
            if reason := rpm.why_not():
                print(f"no RPM of {archive.name}: {reason}")
            else:
                made.append(rpm.rpm(archive, Path(scratch)))
        (Path(scratch) / SUMS).write_text(sums(made))
        return [path.rename(out / path.name) for path in [*made, Path(scratch) / SUMS]]


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
    for path in release(args.out, carried, lock=args.lock):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
