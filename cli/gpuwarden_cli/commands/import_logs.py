"""Imports logs of other tools: `gpuwarden import`."""

import argparse
from pathlib import Path

from gpuwarden_cli.parser import Commands, add_command, add_url

FORMATS = (
    "nvidia-smi CSV", "nvidia-smi XML", "nvidia-smi -q", "nvidia-smi text", "dmon or pmon", "rocm-smi JSON",
    "amd-smi JSON", "dcgm-exporter text", "kernel log", "fabric manager log", "CSV of a table", "Parquet of a table",
)  # fmt: skip
"""All that is read, by the names of `gpuwarden_importing.detect`, which needs Arrow."""


def add_commands(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "import", _run, "import logs of other tools",
        f"Reads {', '.join(FORMATS[:-1])} and {FORMATS[-1]}: docs/import.md says which commands write them."
        " Rows that were imported before are not stored again.",
    )  # fmt: skip
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file, folder, or - for standard input")  # fmt: skip
    parser.add_argument("--node", metavar="NAME", help="node of the files (default: the node that they name)")  # fmt: skip
    parser.add_argument("--timezone", default="UTC", metavar="ZONE", help="zone of timestamps without one, such as Europe/Berlin (default UTC)")  # fmt: skip
    parser.add_argument("--at", metavar="TIME", help="time of rows without a timestamp (default: when the file was written)")  # fmt: skip
    parser.add_argument("--fields", metavar="NAMES", help="columns of an nvidia-smi CSV without header, as in --query-gpu")  # fmt: skip
    parser.add_argument("--table", metavar="NAME", help="table of a CSV or Parquet file that fits several tables")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="show what would be stored, without sending it")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="list all fields without a column")
    add_url(parser)


def _run(args: argparse.Namespace) -> int:
    from gpuwarden_cli.import_logs.run import (
        run,  # needs Arrow, which is not on a host with the agent alone
    )

    return run(args)
