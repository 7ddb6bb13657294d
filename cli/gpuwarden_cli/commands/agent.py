"""Runs and checks the agent: `gpuwarden agent run|once|doctor|config|refused|record|burst|test-gpus`."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwarden import logs
from gpuwarden.clock import SystemClock, from_ms, iso_text
from gpuwarden.settings import Loaded
from gpuwarden_cli.commands import burst, gpu_test
from gpuwarden_cli.commands.recordings import add_flags
from gpuwarden_cli.output import render
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group
from gpuwarden_cli.settings import load_settings, show

if TYPE_CHECKING:
    from gpuwarden_agent.probe import Row
    from gpuwarden_agent.settings import AgentSettings


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "agent", "run and check the agent of a GPU host")
    for name, run, text in (
        ("run", _run, "run the agent"),
        ("once", _once, "read everything once and print it"),
        ("doctor", _doctor, "check what the agent can read here, and how to fix what it cannot"),
        ("config", _config, "show every setting, its value and its source"),
    ):
        parser = add_command(group, name, run, text)
        _add_settings(parser)
        if name != "run":
            add_format(parser)
    parser = add_command(
        group, "refused", _refused, "list batches that the collector refused; send them again or delete them",
        "The agent may run: it sends them within seconds. Run it as the agent's user.",
    )  # fmt: skip
    parser.add_argument("sequences", nargs="*", type=int, metavar="SEQUENCE", help="default: all")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--resend", action="store_true", help="have the agent send them again")
    action.add_argument("--delete", action="store_true", help="delete them")
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    parser.add_argument("--state-dir", metavar="DIR", help="folder of the agent's spool")
    add_format(parser)
    parser = add_command(
        group, "record", _record, "record the probes' readings to a file for replay"
    )
    add_flags(parser)
    _add_settings(parser)
    parser = add_command(
        group, "burst", _burst, "sample this host's GPUs 10 to 50 times a second for a short time",
        "Shows what a second's mean hides. Nothing is stored; an agent may run beside it.",
    )  # fmt: skip
    burst.add_flags(parser)
    _add_settings(parser)
    parser = add_command(
        group, "test-gpus", _test_gpus, "test this host's GPUs under load: memory, arithmetic, copies, NCCL, DCGM",
        "Refuses while a process uses them. gpuwarden accept compares the results with the fleet's. Exits with 1 if a test fails.",
    )  # fmt: skip
    gpu_test.add_flags(parser)
    add_format(parser)
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add flags by hand, so that `--help` does not import the settings' module."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    parser.add_argument(
        "--backend",
        help="where GPU readings come from: auto, nvml, simulator or replay (default auto)",
    )
    parser.add_argument("--collector-url", metavar="URL", help="where batches go")
    parser.add_argument("--state-dir", metavar="DIR", help="where unsent batches are kept")
    parser.add_argument("--node", metavar="NAME", help="name of this node (default: the hostname)")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument("--log-format", metavar="FORM", help="text or json")


def _loaded(args: argparse.Namespace) -> "Loaded[AgentSettings]":
    from gpuwarden_agent.settings import AgentSettings

    loaded = load_settings(AgentSettings, "agent", args)
    url = os.environ.get("GPUWARDEN_URL")
    if url and loaded.sources["collector_url"] == "default":
        return Loaded(
            replace(loaded.settings, collector_url=(url,)),
            {**loaded.sources, "collector_url": "environment GPUWARDEN_URL"},
        )
    return loaded


def _refused(args: argparse.Namespace) -> int:
    from gpuwarden_agent.queue.spool import refused_in, settle_refused

    state_dir = _loaded(args).settings.state_dir
    found = refused_in(state_dir)
    chosen = [b for b in found if not args.sequences or b.sequence in args.sequences]
    if args.resend or args.delete:
        count = settle_refused(state_dir, [b.sequence for b in chosen], is_resent=args.resend)
        print(f"{count} batches {'wait to be sent again' if args.resend else 'deleted'}")
        return 0
    columns = ["sequence", "sealed_at", "refused_at", "rows", "bytes", "reason"]
    rows = [
        [
            b.sequence,
            iso_text(from_ms(b.created_ms)),
            iso_text(from_ms(b.refused_ms)),
            b.rows,
            b.bytes,
            b.reason,
        ]
        for b in chosen
    ]
    print(render(columns, rows, args.format))
    return 1 if chosen else 0


def _run(args: argparse.Namespace) -> int:
    from gpuwarden_cli.composition.agent import run_agent

    return run_agent(_loaded(args).settings, lambda: _loaded(args).settings)


def _record(args: argparse.Namespace) -> int:
    from gpuwarden_cli.commands.recordings import run_record

    settings = _loaded(args).settings
    return run_record(settings, args)


def _burst(args: argparse.Namespace) -> int:
    return burst.run(_loaded(args).settings, args)


def _test_gpus(args: argparse.Namespace) -> int:
    return gpu_test.run(_loaded(args).settings, args)


def _doctor(args: argparse.Namespace) -> int:
    from gpuwarden_cli.commands.doctor import run_doctor

    return run_doctor(_loaded(args).settings, args.format)


def _config(args: argparse.Namespace) -> int:

    show(_loaded(args), args.format)
    return 0


def _once(args: argparse.Namespace) -> int:
    from gpuwarden_agent.once import read_once
    from gpuwarden_cli.composition.agent import sources_of

    settings = _loaded(args).settings
    # A failure becomes a line of `problems`; the log would repeat it.
    logs.setup("critical")
    sources = sources_of(settings)
    probes = sources.probes
    print(f"gpuwarden agent: {sources.message}", file=sys.stderr)
    try:
        reading = read_once(probes, SystemClock(), node=settings.node_name)
    finally:
        for probe in probes:
            probe.close()
    for problem in reading.problems:
        print(f"gpuwarden agent: {problem}", file=sys.stderr)
    print(render_reading(reading.tables, args.format), end="")
    return 0


def render_reading(tables: "Mapping[str, Sequence[Row]]", form: str) -> str:
    """Text of the rows of each table. In a table each column of a row is a line, because rows are wide."""
    tables = {
        name: [
            {column: _readable(name, column, value) for column, value in row.items()}
            for row in rows
        ]
        for name, rows in tables.items()
    }
    if form == "json":
        return json.dumps(tables, ensure_ascii=False, indent=2) + "\n"
    columns = ["table", "row", "column", "value"]
    cells = [
        [table, number, name, value]
        for table, rows in tables.items()
        for number, row in enumerate(rows)
        for name, value in row.items()
    ]
    if form == "csv":
        return render(columns, cells, "csv")
    return "\n".join(_sheet(table, rows) for table, rows in tables.items() if rows)


def _readable(table: str, column: str, value: Any) -> Any:
    # Imported here, as no other command needs all tables.
    from gpuwarden.metrics import Type
    from gpuwarden.schema import WIRE_TABLES

    if WIRE_TABLES[table].column(column).type is not Type.TIMESTAMP:
        return value
    return iso_text(from_ms(int(value)))


def _sheet(table: str, rows: "Sequence[Row]") -> str:
    """A table that is transposed: a line per column, a column per row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [str(row.get("gpu", row.get("pid", number))) for number, row in enumerate(rows)]
    lines = [[name, *(row.get(name) for row in rows)] for name in names]
    return render([table, *heads], lines, "table")
