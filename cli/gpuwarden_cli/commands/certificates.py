"""Creates a private CA and the collector's certificate: `gpuwarden collector init`."""

import argparse
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import load
from gpuwarden_cli.settings import set_keys

if TYPE_CHECKING:
    from gpuwarden_collector.auth.authority import AuthorityFiles
    from gpuwarden_collector.auth.tls import Certificate


LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names in each certificate, so that clients on the collector's host can use them."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `collector init`."""
    parser.add_argument(
        "--name", action="append", metavar="NAME", help="name or address that nodes reach this host by,"
        " agents get the first; may be repeated (default: the host's name)",
    )  # fmt: skip
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="folder to write to (default: tls in --data-dir)"
    )
    parser.add_argument(
        "--renew", action="store_true", help="a new certificate by the same authority, also while the"
        " collector runs",
    )  # fmt: skip
    parser.add_argument(
        "--config", metavar="FILE", help="TOML file to write tls_cert, tls_key, tls_ca to"
    )
    parser.add_argument("--host", help="write this address to listen on, too, such as 0.0.0.0")
    parser.add_argument("--data-dir", metavar="DIR", help="data folder")


def init(args: argparse.Namespace) -> int:
    """Create missing files, or renew the certificate. Raises StartError."""
    from gpuwarden_collector.auth.authority import AuthorityError, AuthorityFiles, renew
    from gpuwarden_collector.auth.authority import init as make

    files = AuthorityFiles((args.dir or _data_dir(args) / "tls").absolute())
    now = SystemClock().now()
    asked = args.name or []
    try:
        if args.renew:
            made = renew(files, [*asked, *LOCAL_NAMES] if asked else [], now)
        else:
            is_there = files.cert.exists()
            names = asked if is_there else [*(asked or _own_names()), *LOCAL_NAMES]
            made = make(files, names, now)
    except AuthorityError as error:
        raise StartError(str(error)) from error
    _say(files, made, is_new=not args.renew)
    if args.config and not args.renew:
        _write_settings(files, Path(args.config), args.host)
    elif not args.renew:
        print("add to collector.toml (--config FILE does it):")
        for name, path in _lines(files).items():
            print(f'  {name} = "{path}"')
    return 0


def _data_dir(args: argparse.Namespace) -> Path:
    from gpuwarden_collector.settings import CollectorSettings

    path = Path(args.config) if args.config and Path(args.config).exists() else None
    flags = {"data_dir": args.data_dir}
    return load(CollectorSettings, "collector", path=path, flags=flags).settings.data_dir


def _own_names() -> list[str]:
    return list(dict.fromkeys((socket.getfqdn(), socket.gethostname())))


def _say(files: "AuthorityFiles", made: "Certificate", *, is_new: bool) -> None:
    from gpuwarden_collector.auth.tls import certificate_of

    if is_new:
        ca = certificate_of(files.ca)
        print(f"authority    {files.ca}, until {ca.ends_at:%Y-%m-%d}")
        print(f"             {ca.fingerprint}")
        print(f"its key      {files.ca_key}: who has it can pose as the collector")
    print(f"certificate  {files.cert}, until {made.ends_at:%Y-%m-%d}")
    print(f"             for {', '.join(made.names)}")


def _lines(files: "AuthorityFiles") -> dict[str, str]:
    return {"tls_cert": str(files.cert), "tls_key": str(files.key), "tls_ca": str(files.ca)}


def _write_settings(files: "AuthorityFiles", config: Path, host: str | None) -> None:

    values = _lines(files) | ({"host": host} if host else {})
    is_changed = set_keys(config, values)
    print(f"settings     {config}{'' if is_changed else ' (as it was)'}")
