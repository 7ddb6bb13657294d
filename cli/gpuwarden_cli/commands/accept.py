"""Says whether a node may return to the queue after a repair: `gpuwarden accept`."""

import argparse
import asyncio
import sys
from urllib.parse import quote

from gpuwarden.clock import SystemClock
from gpuwarden.durations import instant_before
from gpuwarden.query import QueryError, first_paragraph
from gpuwarden_cli import acceptance
from gpuwarden_cli.output import render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_since, add_url
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_client.http import CallError, call


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "accept", run, "check whether a repaired node may return to the queue",
        "By its readings, what gpuwarden agent test-gpus found, and those of other nodes. Exits with 1 if a check fails.",
    )  # fmt: skip
    parser.add_argument("node", metavar="NODE", help="its name")
    parser.add_argument("--resume", action="store_true", help="if no check fails, have the actor return it to the queue")  # fmt: skip
    add_since(parser, "1h")
    add_format(parser)
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    """Run `gpuwarden accept`; 1 if a check fails. Raises CallError."""
    since = instant_before(SystemClock().now(), args.since, "--since")
    try:
        facts = asyncio.run(acceptance.read(RemoteQuerier(args.url), args.node, since))
    except QueryError as error:
        raise CallError(first_paragraph(error)) from error
    if facts is None:
        raise CallError(f"there is no node {args.node!r}: `gpuwarden ask nodes` has them")
    found = acceptance.checks(facts)
    rows = [[check.name, check.status, check.finding] for check in found]
    print(render(["check", "status", "finding"], rows, args.format, width=terminal_width()), end="")
    if args.format == "table":
        failed = sum(check.status == acceptance.FAIL for check in found)
        unknown = sum(check.status == acceptance.UNKNOWN for check in found)
        verdict = "do not return it" if failed else "it may return"
        print(
            f"\n{args.node}: {verdict}: {failed} of {len(found)} checks failed, {unknown} cannot say"
        )
    is_refused = any(check.status == acceptance.FAIL for check in found)
    if args.resume and not is_refused:
        asked = call("POST", f"/v1/nodes/{quote(args.node, safe='')}/resume", {}, url=args.url)
        print(
            f"asked for its return: case {asked['id']} of the page /policies",
            file=sys.stderr,
        )
    return 1 if is_refused else 0
