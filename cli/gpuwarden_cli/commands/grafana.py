"""Writes Grafana's dashboards and the files that provision them: `gpuwarden grafana export`."""

import argparse
import os
from pathlib import Path

from gpuwarden.files import make_folder, write_whole
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted
from gpuwarden_cli.parser import Commands, add_command, add_group, port_number
from gpuwarden_client.http import collector_url

SETS = ("prometheus", "postgresql")


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "grafana", "dashboards for Grafana")
    made = add_command(
        group, "export", export, "write dashboards and data sources for Grafana",
        "DIR is Grafana's folder of provisioning. Other files there stay.",
    )  # fmt: skip
    made.add_argument("folder", type=Path, metavar="DIR", help="such as /etc/grafana/provisioning")
    made.add_argument(
        "--only", choices=SETS, help="dashboards of one type of data source (default: both)"
    )
    made.add_argument(
        "--url", help="the collector, as Grafana and browsers reach it (default GPUWARDEN_URL, else this machine's)",
    )  # fmt: skip
    made.add_argument(
        "--postgres-port", type=port_number, default=5432, metavar="PORT",
        help="the collector's postgres_port (default 5432)",
    )  # fmt: skip
    made.add_argument(
        "--ca", type=Path, metavar="FILE", help="PEM file of the CA to trust (default GPUWARDEN_CA, else the system's)"
    )  # fmt: skip


def export(args: argparse.Namespace) -> int:
    """Run `gpuwarden grafana export DIR`. Raises StartError, ValueError."""
    from gpuwarden_dashboards.grafana.provisioning import TOKEN, address_of, files

    address = address_of(args.url or collector_url(), args.postgres_port, _ca(args.ca))
    folder = args.folder.absolute()
    found = files(address, folder, [args.only] if args.only else SETS)
    for path, text in found.items():
        try:
            make_folder(Path(path).parent)
            write_whole(Path(path), text.encode(), mode=0o644)
        except OSError as error:
            raise StartError(f"{path} cannot be written: {error.strerror}") from error
    print(f"{counted(len(found) - 2, 'dashboard')} and their data sources are in {folder}")
    if address.needs_token:
        print(
            f"next: set {TOKEN} in Grafana's environment (`gpuwarden token create --scope read --comment grafana`)"
            " and restart Grafana"
        )
    else:
        print("next: restart Grafana")
    return 0


def _ca(path: Path | None) -> str:
    named = path or os.environ.get("GPUWARDEN_CA")
    if not named:
        return ""
    try:
        text = Path(named).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text"
        raise StartError(f"{named} cannot be read: {why}") from error
    if "BEGIN CERTIFICATE" not in text:
        raise StartError(f"{named} has no certificate: name the PEM file of the CA")
    return text
