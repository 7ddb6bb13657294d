"""Shows tables and views, and the columns of one, with their meanings: `gpuwarden schema`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden_cli.output import ROW_FORMATS, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_url
from gpuwarden_client.http import CallError, call


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    made = add_command(
        commands, "schema", schema, "show tables and views, or the columns of one",
        "With the meaning, unit and source of each column, as duckdb_columns() has them, too.",
    )  # fmt: skip
    made.add_argument(
        "table", metavar="TABLE", nargs="?", help="a table or view (default: list them)"
    )
    add_format(made, ROW_FORMATS)
    add_url(made)


def schema(args: argparse.Namespace) -> int:
    """Run `gpuwarden schema [TABLE]`, with the collector's tables."""
    tables = call("GET", "/v1/schema", url=args.url)["tables"]
    if args.table is None:
        rows = [[table["name"], len(table["columns"]), table["meaning"]] for table in tables]
        columns: Sequence[str] = ("table", "columns", "meaning")
    else:
        table = table_named(args.table, tables)
        if args.format == "table":
            print(f"{table['meaning']}\n")
        columns = ("column", "type", "meaning")
        rows = [
            [column[name] for name in ("name", "type", "meaning")] for column in table["columns"]
        ]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 0


def table_named(name: str, tables: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The table with a name. Raises CallError, which suggests the nearest name."""
    by_name = {table["name"]: table for table in tables}
    if name.lower() not in by_name:
        from gpuwarden_cli.sql_shell import no_such_table

        raise CallError(no_such_table(name, by_name))
    return by_name[name.lower()]
