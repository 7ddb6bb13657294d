"""`gpuwarden sql`: prints what a query returns."""

import argparse
import sys

from gpuwarden_cli.client import ask
from gpuwarden_cli.output import render


def sql(args: argparse.Namespace) -> int:
    """`gpuwarden sql QUERY`; "-" reads the query from standard input."""
    query = sys.stdin.read() if args.query == "-" else args.query
    answer = ask(query, url=args.url)
    print(render(answer.columns, answer.rows, args.format), end="")
    if answer.truncated:
        print(
            f"gpuwarden: the collector stopped at {len(answer.rows):,} rows; add a LIMIT or"
            " aggregate",
            file=sys.stderr,
        )
    return 0
