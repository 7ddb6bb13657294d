"""Commands that ask a collector: `sql`, `alerts list`."""

import argparse
import sys

from gpuwarden.alert import WORST_FIRST
from gpuwarden_cli.client import ask
from gpuwarden_cli.output import render, terminal_width

_ALERTS = f"""
SELECT
    severity, state, rule, node, gpu, summary,
    round(usd_per_hour, 2) AS usd_per_hour,
    round(usd_per_hour * date_diff('millisecond', began_at,
        coalesce(resolved_at, now()::TIMESTAMP)) / 3.6e6, 2) AS usd_so_far,
    began_at, fired_at, resolved_at, owner, muted, unknown_since, fingerprint, simulated
FROM alerts
WHERE {{condition}}
ORDER BY
    CASE state WHEN 'firing' THEN 0 WHEN 'pending' THEN 1 ELSE 2 END,
    {WORST_FIRST},
    usd_so_far DESC NULLS LAST, node, gpu
"""

ALERT_STATES = ("active", "firing", "pending", "resolved", "all")


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


def alerts_list(args: argparse.Namespace) -> int:
    """`gpuwarden alerts list`; with --exit-code 1 when one is firing."""
    conditions = {
        "active": "state IN ('firing', 'pending')",
        # What was pending and went away again was never anybody's business.
        "resolved": "state = 'resolved' AND fired_at IS NOT NULL",
        "all": "true",
    }
    condition = conditions.get(args.state, f"state = '{args.state}'")
    answer = ask(_ALERTS.format(condition=condition), url=args.url)
    firing = any(row[1] == "firing" for row in answer.rows)
    columns, rows = answer.columns, answer.rows
    if args.format == "table":
        if not rows:
            print(
                f"No alert is {args.state}." if args.state != "all" else "No alert was ever active."
            )
            return 0
        # Identity and times beyond these make lines too long for a screen.
        keep = [columns.index(c) for c in ("severity", "state", "usd_per_hour", "usd_so_far")]
        keep += [columns.index(c) for c in ("began_at", "summary")]
        columns, rows = [columns[i] for i in keep], [[row[i] for i in keep] for row in rows]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 1 if args.exit_code and firing else 0
