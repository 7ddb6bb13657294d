"""Forgets nodes that are gone: `gpuwarden nodes forget`."""

import argparse
from urllib.parse import quote

from gpuwarden_cli.parser import Commands, add_command, add_group, add_url
from gpuwarden_client.http import CallError, call


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    group = add_group(commands, "nodes", "forget nodes that are gone")
    forget = add_command(
        group, "forget", nodes_forget, "mark nodes as gone",
        "Their billing ends when they last reported, and their alerts end. A node that sends data again is back.",
    )  # fmt: skip
    forget.add_argument("nodes", nargs="+", metavar="NODE", help="name of a node that is silent")
    add_url(forget)


def nodes_forget(args: argparse.Namespace) -> int:
    """Run `gpuwarden nodes forget NODE...`; 1 when a node could not be forgotten."""
    failed = 0
    for node in args.nodes:
        try:
            call("DELETE", f"/v1/nodes/{quote(node, safe='')}", url=args.url)
        except CallError as error:
            failed += 1
            print(f"{node}: {error}")
        else:
            print(f"{node} is forgotten: it is billed until its last sample")
    return 1 if failed else 0
