"""Makes a release: the wheel, both bundles, their packages for Debian and Red Hat, what is in each (CycloneDX),
SHA256SUMS of all, and its signature in minisign's form where a key is given; then prints the steps of a release.

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
import sbom
from checklist import PUBLIC, SUMS, Built, report
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from interpreter import VERSION, Interpreter
from packages import EXTRAS, HERE, Target, needed

from gpuwarden.minisign import public_key, sign


def release(
    out: Path,
    carried: Interpreter | None,
    *,
    lock: Path | None = None,
    key: Ed25519PrivateKey | None = None,
) -> list[Path]:
    """Write all files of a release into `out`, which gets nothing until all are made. `key`: signs it."""
    target = Target(VERSION, carried.machine) if carried else HERE
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        made = [bundle.build_wheel(Path(scratch))]
        for part in EXTRAS:
            wheels = needed(part, target, lock=lock)
            archive = bundle.bundle(part, made[0], wheels, Path(scratch), carried)
            made.append(sbom.sbom(part, made[0], wheels, Path(scratch), carried))
            made += [archive, deb.deb(archive, Path(scratch))]
            if reason := rpm.why_not():
                print(f"no RPM of {archive.name}: {reason}")
            else:
                made.append(rpm.rpm(archive, Path(scratch)))
        text = sums(made)
        made.append(Path(scratch) / SUMS)
        made[-1].write_text(text)
        if key is not None:
            made += signed(key, made[-1], made[0].name)
        return [path.rename(out / path.name) for path in made]


def signed(key: Ed25519PrivateKey, path: Path, what: str) -> list[Path]:
    """The signature beside a file, and the public key."""
    signature = path.with_name(f"{path.name}.minisig")
    signature.write_text(sign(key, path.read_bytes(), f"release of {what}"))
    public = path.with_name(PUBLIC)
    public.write_text(public_key(key).text)
    return [signature, public]


def read_key(path: Path) -> Ed25519PrivateKey:
    """A PEM file, as `openssl genpkey -algorithm ed25519` writes it."""
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise SystemExit(f"{path}: the key must be of Ed25519: openssl genpkey -algorithm ed25519")
    return key


def sums(paths: Iterable[Path]) -> str:
    """Lines that `sha256sum --check` reads."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths)
    )


def main() -> None:
    """Make a release from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    bundle.add_flags(parser)
    parser.add_argument("--sign", type=Path, metavar="FILE", help="private key, PEM, Ed25519")
    args = parser.parse_args()
    key = read_key(args.sign) if args.sign else None
    carried = bundle.carried_for(args.machine, host_python=args.host_python)
    made = release(args.out, carried, lock=args.lock, key=key)
    for path in made:
        print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    print("\nSteps of a release (docs/releasing.md):")
    print(*report(Built(made)), sep="\n")


if __name__ == "__main__":
    main()
