"""`gpuwarden alerts silence|unsilence|ack|silences`: who does not want to hear of what, until when."""

import argparse
import getpass
import re
from typing import Any
from urllib.parse import quote

from gpuwarden.alert import USD_SO_FAR_SQL, WORST_FIRST
from gpuwarden_cli.client import CallError, ask, call
from gpuwarden_cli.output import counted, render, terminal_width

_ALERTS = f"""
SELECT
    severity, state, rule, node, gpu, summary,
    round(usd_per_hour, 2) AS usd_per_hour,
    round({USD_SO_FAR_SQL}, 2) AS usd_so_far,
    began_at, fired_at, resolved_at, owner, muted, unknown_since, fingerprint, simulated,
    stale_since, resolved_reason
FROM alerts
WHERE {{condition}}
ORDER BY
    CASE state WHEN 'firing' THEN 0 WHEN 'pending' THEN 1 ELSE 2 END,
    {WORST_FIRST},
    usd_so_far DESC NULLS LAST, node, gpu
"""

ALERT_STATES = ("active", "firing", "pending", "resolved", "all")

_NAMED = """
SELECT fingerprint, rule, node, gpu, summary FROM alerts
WHERE state IN ('pending', 'firing') AND (starts_with(fingerprint, $wanted) OR rule = $wanted)
ORDER BY fingerprint
"""
_FINISHED = "SELECT DISTINCT fingerprint FROM alerts WHERE starts_with(fingerprint, $wanted)"
_FINGERPRINT = re.compile(r"[0-9a-f]{4,16}\Z")
NAMED_MAX = 5


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
        state, stale = columns.index("state"), columns.index("stale_since")
        rows = [
            [*row[:state], f"{row[state]}, stale" if row[stale] else row[state], *row[state + 1 :]]
            for row in rows
        ]
        # Identity and times beyond these make lines too long for a screen.
        keep = [columns.index(c) for c in ("severity", "state", "usd_per_hour", "usd_so_far")]
        keep += [columns.index(c) for c in ("began_at", "summary")]
        columns, rows = [columns[i] for i in keep], [[row[i] for i in keep] for row in rows]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 1 if args.exit_code and firing else 0


def silence(args: argparse.Namespace) -> int:
    """`gpuwarden alerts silence MATCHER... --for 2h --comment WHY`."""
    made = _add({"matchers": args.matchers}, args)
    print(
        f"silence {made['id']} until {_time(made['ends_at'])}, of {counted(made['alerts'], 'alert')} now"
    )
    return 0


def acknowledge(args: argparse.Namespace) -> int:
    """`gpuwarden alerts ack ALERT --for 4h`."""
    made = _add({"fingerprint": fingerprint_of(args.alert, args.url)}, args)
    print(f"acknowledged until {_time(made['ends_at'])}; `gpuwarden alerts unsilence {made['id']}`")
    return 0


def unsilence(args: argparse.Namespace) -> int:
    """`gpuwarden alerts unsilence ID`."""
    call("DELETE", f"/v1/silences/{quote(args.id, safe='')}", url=args.url)
    print(f"silence {args.id} has ended")
    return 0


def silences(args: argparse.Namespace) -> int:
    """`gpuwarden alerts silences`: those that hold or will."""
    found = call("GET", "/v1/silences", url=args.url)["silences"]
    if not found and args.format == "table":
        print("Nothing is silenced.")
        return 0
    columns = ["id", "starts_at", "ends_at", "author", "alerts", "what", "comment"]
    rows = [
        [{**s, "what": ", ".join(s["matchers"]) or f"alert {s['fingerprint']}"}[c] for c in columns]
        for s in found
    ]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 0


def fingerprint_of(wanted: str, url: str | None) -> str:
    """The alert that a person means: a fingerprint, the first digits of one, or the only active
    alert of a rule. Raises CallError.
    """
    active = ask(_NAMED, {"wanted": wanted}, url=url)
    if len(active.rows) == 1:
        return str(active.rows[0][0])
    if len(active.rows) > 1:
        named = "; ".join(f"{row[0]} {row[4]}" for row in active.rows[:NAMED_MAX])
        raise CallError(f"{len(active.rows)} alerts are called {wanted!r}: {named}")
    if _FINGERPRINT.match(wanted):
        past = ask(_FINISHED, {"wanted": wanted}, url=url)
        if len(past.rows) == 1:
            return str(past.rows[0][0])
    raise CallError(
        f"no alert is called {wanted!r}; `gpuwarden alerts list --format json` has their fingerprints"
    )


def _add(what: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    document = {**what, "author": args.author or _user(), "comment": args.comment}
    document |= {"ends_at": args.until} if args.until else {"for": args.span}
    made: dict[str, Any] = call("POST", "/v1/silences", document, url=args.url)
    return made


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"


def _time(text: str) -> str:
    return text[:16].replace("T", " ") + " UTC"
