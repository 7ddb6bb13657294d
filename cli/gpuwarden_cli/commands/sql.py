"""`gpuwarden sql`: prints what a query returns."""

import argparse
import sys
from typing import Any

from gpuwarden.durations import exact
from gpuwarden_cli.output import render
from gpuwarden_client.http import QueryAnswer, ask


def sql(args: argparse.Namespace) -> int:
    """`gpuwarden sql QUERY`; "-" reads the query from standard input."""
    query = sys.stdin.read() if args.query == "-" else args.query
    answer = ask(query, url=args.url)
    rows = answer.rows if args.format == "json" else _with_durations(answer)
    print(render(answer.columns, rows, args.format), end="")
    if answer.truncated:
        print(
            f"gpuwarden: the collector stopped at {len(answer.rows):,} rows; add a LIMIT or"
            " aggregate",
            file=sys.stderr,
        )
    return 0


def _with_durations(answer: QueryAnswer) -> list[list[Any]]:
    """The rows, intervals as hours, minutes and seconds: the collector answers seconds."""
    places = {at for at, kind in enumerate(answer.types) if kind == "INTERVAL"}
    return [
        [
            exact(cell) if at in places and isinstance(cell, int | float) else cell
            for at, cell in enumerate(row)
        ]
        for row in answer.rows
    ]
