"""Writes what a vendor asks about a GPU that may have to be replaced: `gpuwarden rma`."""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from gpuwarden.clock import SystemClock, iso_text
from gpuwarden.durations import instant_before
from gpuwarden.query import QueryError, first_paragraph
from gpuwarden.untrusted_text import printable
from gpuwarden_cli import rma_record
from gpuwarden_cli.output import terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_since, add_url
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_client.http import CallError, ask

_GPUS = """
SELECT node, gpu, gpu_uuid FROM gpus WHERE replaced_by IS NULL
    AND (format('{}/{}', node, gpu) = $gpu OR len($gpu) >= 4 AND starts_with(lower(gpu_uuid), lower($gpu)))
ORDER BY node, gpu LIMIT 6
"""


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "rma", run, "write the record of a GPU for the vendor's ticket",
        "Board, software, counters, Xids, alerts and extremes, without users, jobs and dollars.",
    )  # fmt: skip
    parser.add_argument("gpu", metavar="GPU", help="NODE/INDEX, or its UUID or the beginning of it")
    add_since(parser, "90d")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="also write a new .tar.gz with all rows")  # fmt: skip
    parser.add_argument(
        "--attach", type=Path, action="append", default=[], metavar="FILE",
        help="put this file into the archive, as nvidia-bug-report.log.gz; may be repeated",
    )  # fmt: skip
    add_format(parser, ("table", "json"))
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    """Run `gpuwarden rma`; 1 if there is a reason to replace the board. Raises CallError."""
    until = SystemClock().now()
    since = instant_before(until, args.since, "--since")
    if args.attach and args.archive is None:
        raise CallError("--attach needs --archive, the file to put it into")
    for path in args.attach:
        if not path.is_file():
            raise CallError(f"--attach {path} is not a file")
    node, gpu_uuid = gpu_named(args.gpu, args.url)
    try:
        record = asyncio.run(rma_record.read(RemoteQuerier(args.url), gpu_uuid, node, since, until))
    except QueryError as error:
        raise CallError(first_paragraph(error)) from error
    if args.format == "json":
        print(json.dumps(record.document(), indent=2, default=iso_text, ensure_ascii=False))
    else:
        print(printable(rma_record.text(record, terminal_width()), keeps="\n"), end="")
    if args.archive is not None:
        try:
            rma_record.write_archive(args.archive, record, args.attach)
        except OSError as error:
            raise CallError(
                f"{args.archive} cannot be written: {error.strerror or error}"
            ) from error
        print(f"gpuwarden: {args.archive} has all of it", file=sys.stderr)
    return 1 if record.reasons else 0


def gpu_named(name: str, url: str | None) -> tuple[str, str]:
    """Node and UUID of the GPU with a UUID, the beginning of one, or NODE/INDEX. Raises CallError."""
    rows = ask(_GPUS, {"gpu": name}, url=url).rows
    if not rows:
        raise CallError(
            f"there is no GPU {name}; write NODE/INDEX or its UUID: `gpuwarden ask gpus-now` has them"
        )
    if len(rows) > 1:
        places = ", ".join(f"{node}/{gpu} {gpu_uuid}" for node, gpu, gpu_uuid in rows)
        raise CallError(f"{name} may be one of several GPUs: {places}")
    return str(rows[0][0]), str(rows[0][2])
