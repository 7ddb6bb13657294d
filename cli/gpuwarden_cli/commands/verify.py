"""Verifies files of a release by its signed checksums and an installed key: `gpuwarden verify`."""

import argparse
import hashlib
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.lifecycle import StartError
from gpuwarden_cli.parser import Commands, add_command

SUMS = "SHA256SUMS"
_PART_BYTES = 1024 * 1024


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    made = add_command(
        commands, "verify", run, "check files of a release before you install them",
        "SHA256SUMS.minisig must be signed by an installed key.",
    )  # fmt: skip
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file of the release")
    made.add_argument(
        "--sums", type=Path, metavar="FILE", help="default: SHA256SUMS beside the first file"
    )
    made.add_argument(
        "--key", default="/etc/gpuwarden/release.pub", metavar="FILE|KEY",
        help="minisign's public key (default /etc/gpuwarden/release.pub)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Verify the files. Raises StartError for the first that is not of the release."""
    from minisign import Error, PublicKey, Signature

    sums = args.sums or args.files[0].parent / SUMS
    content = _read(sums)
    try:
        signature = Signature.from_bytes(_read(sums.with_name(f"{sums.name}.minisig")))
        if args.key.startswith("RW"):
            key = PublicKey.from_base64(args.key)
        else:
            key = PublicKey.from_bytes(_read(Path(args.key)))
        key.verify(content, signature)
    except Error as error:
        raise StartError(f"{sums}: {error}: install nothing of it") from error
    known = sums_in(content.decode())
    for path in args.files:
        wanted = known.get(path.name)
        if wanted is None:
            raise StartError(f"{path}: {sums} has no file of this name: do not install it")
        if _sha256(path) != wanted:
            raise StartError(f"{path} is not what was signed: do not install it; fetch it again")
        print(f"{path}: ok, {signature.trusted_comment}")
    return 0


def sums_in(text: str) -> Mapping[str, str]:
    """SHA-256 by file name, from the output of `sha256sum`."""
    pairs = (line.split(None, 1) for line in text.splitlines() if line.strip())
    return {pair[1].lstrip("*"): pair[0].lower() for pair in pairs if len(pair) == 2}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(_PART_BYTES):
                digest.update(part)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from error
    return digest.hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}: it is part of each release") from error
