"""Writes dashboards for Grafana and the files that provision them: `gpuwarden grafana export`."""

import argparse
import os
from pathlib import Path

from gpuwarden.files import make_folder, write_whole
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted
from gpuwarden_cli.parser import Commands, add_command, add_group
from gpuwarden_client.http import collector_url


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "grafana", "dashboards for Grafana")
    command = add_command(
        group, "export", export, "write dashboards and a data source for Grafana",
        "DIR is Grafana's folder of provisioning. Other files there stay.",
    )  # fmt: skip
    command.add_argument(
        "folder", type=Path, metavar="DIR", help="such as /etc/grafana/provisioning"
    )
    command.add_argument(
        "--url", help="the collector, as Grafana and browsers reach it (default GPUWARDEN_URL, else this machine's)",
    )  # fmt: skip
    command.add_argument(
        "--ca", type=Path, metavar="FILE", help="PEM file of the CA to trust (default GPUWARDEN_CA, else the system's)"
    )  # fmt: skip


def export(args: argparse.Namespace) -> int:
    """Run `gpuwarden grafana export DIR`. Raises StartError, ValueError."""
    from gpuwarden_dashboards.grafana.provisioning import (
        TOKEN,
        checked_collector_url,
        files,
        needs_token,
    )

    url = checked_collector_url(args.url or collector_url())
    folder = args.folder.absolute()
    texts = files(url, folder, _ca(args.ca))
    for path, text in texts.items():
        try:
            make_folder(Path(path).parent)
            write_whole(Path(path), text.encode(), mode=0o644)
        except OSError as error:
            raise StartError(f"{path} cannot be written: {error.strerror}") from error
    print(f"{counted(len(texts) - 2, 'dashboard')} and their data source are in {folder}")
    if needs_token(url):
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
