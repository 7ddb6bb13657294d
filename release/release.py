"""Makes a release: the wheel, both bundles, both Debian packages, and SHA256SUMS of them.

The same tree gives the same bytes, so that anyone can check that a release is what the source says.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import bundle
import deb

SUMS = "SHA256SUMS"


def release(out: Path, *, lock: Path | None = None) -> list[Path]:
    """Write all files of a release into `out`, which gets nothing until all are made."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        made = [bundle.build_wheel(Path(scratch))]
        for part in bundle.EXTRAS:
            wheels = bundle.needed(part, lock=lock)
            archive = bundle.bundle(part, made[0], wheels, Path(scratch))
            made += [archive, deb.deb(part, archive, Path(scratch))]
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
    parser.add_argument("--out", type=Path, default=bundle.ROOT / "dist")
    parser.add_argument("--lock", type=Path, help="default requirements-dev.lock")
    args = parser.parse_args()
    for path in release(args.out, lock=args.lock):
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
