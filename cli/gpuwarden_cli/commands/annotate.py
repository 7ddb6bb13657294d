"""Writes a text onto the time axis of charts: `gpuwarden annotate "deployed 2.3"`."""

import argparse
from typing import Any

from gpuwarden_cli.parser import Commands, add_command, add_url
from gpuwarden_client.http import call


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    made = add_command(
        commands, "annotate", annotate, "write a text onto the charts of all pages",
        "It needs a token of scope edit, where tokens are required.",
    )  # fmt: skip
    made.add_argument("text", metavar="TEXT", help="what happened, such as: deployed 2.3")
    made.add_argument("--at", metavar="INSTANT", help="ISO 8601; UTC without a zone (default now)")
    made.add_argument("--until", metavar="INSTANT", help="the end of a time; default: a moment")
    made.add_argument("--node", metavar="NODE", help="about this node only")
    made.add_argument("--gpu", type=int, metavar="INDEX", help="about this GPU of the node only")
    made.add_argument("--job", metavar="JOB", help="about this Slurm job or pod only")
    made.add_argument("--tag", action="append", dest="tags", metavar="WORD", help="may be repeated")
    add_url(made)


def annotate(args: argparse.Namespace) -> int:
    """Run `gpuwarden annotate`."""
    names = ("text", "at", "until", "node", "gpu", "job", "tags")
    document: dict[str, Any] = {
        name: value for name in names if (value := getattr(args, name)) is not None
    }
    made = call("POST", "/v1/annotations", document, url=args.url)
    print(f"annotation {made['id']}: {made['text']}")
    return 0
