"""Lists, silences and acknowledges alerts: `gpuwarden alerts list|silence|unsilence|ack`."""

import argparse
import re
import sys
from typing import Any
from urllib.parse import quote

from gpuwarden.alert import ALERT_FILTERS, PLACE_SQL, USD_SO_FAR_SQL, WORST_FIRST
from gpuwarden.durations import readable
from gpuwarden_cli.output import counted, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_url
from gpuwarden_cli.read.incidents import MARKS
from gpuwarden_cli.read.remote import unjudged_at
from gpuwarden_client.http import CallError, ask, call

_ALERTS = f"""
SELECT
    left(fingerprint, 8) AS id, severity, {MARKS} AS shown, rule, {PLACE_SQL} AS place,
    date_diff('second', began_at, coalesce(resolved_at, now()::TIMESTAMP)) AS age_seconds, state, consequence,
    node, gpu, gpu_uuid, labels, summary, remedy, round(usd_per_hour, 2) AS usd_per_hour, round({USD_SO_FAR_SQL}, 2) AS usd_so_far,
    began_at, fired_at, resolved_at, owner, muted, unknown_since, fingerprint, simulated,
    stale_since, resolved_reason,
    (SELECT max(m.incident) FROM incident_alerts m JOIN incidents i ON i.id = m.incident AND i.state <> 'merged'
     WHERE m.fingerprint = a.fingerprint AND m.active_at = a.active_at) AS incident
FROM alerts a
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


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "alerts", "list, silence and acknowledge alerts")
    parser = add_command(
        group, "list", alerts_list, "list alerts: critical ones first, then by consequence"
    )
    parser.add_argument(
        "--state", choices=ALERT_STATES, default="active", help="default active: firing, pending"
    )
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 if an alert fires, or rules have not run yet",
    )
    add_filters(parser)
    add_format(parser)
    add_url(parser)
    parser = add_command(
        group, "silence", silence, "mute notifications of matching alerts for a time",
        "Matchers are label=value, !=, =~ and !~ (regular expressions), also of rule and severity;"
        " all must match.",
    )  # fmt: skip
    parser.add_argument("matchers", nargs="+", metavar="MATCHER", help="such as node=n1")
    add_silence(parser, "2h")
    parser = add_command(group, "ack", acknowledge, "mute notifications of one alert for a time")
    parser.add_argument(
        "alert", metavar="ALERT", help="its fingerprint, or its rule if only one alert is active"
    )
    add_silence(parser, "4h")
    parser = add_command(group, "unsilence", unsilence, "end a silence or an acknowledgement")
    parser.add_argument("id", metavar="ID", help="as `gpuwarden ask silences` shows it")
    add_url(parser)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `chosen_by` takes."""
    for name, text in (
        ("node", "of this node; * and ? are wildcards"),
        ("gpu", "of this GPU: its index, or the beginning of its UUID"),
        ("owner", "whose owner is this user"),
        ("job", "of this job"),
        ("rule", "of this rule; * and ? are wildcards"),
    ):
        parser.add_argument(f"--{name}", metavar=name.upper(), help=text)
    parser.add_argument(
        "--severity", choices=("info", "warning", "critical"), help="of this severity"
    )


def add_silence(parser: argparse.ArgumentParser, span: str) -> None:
    """Add the flags that `add` takes; `span` is the default of --for."""
    until = parser.add_mutually_exclusive_group()
    until.add_argument(
        "--for", dest="span", default=span, metavar="TIME", help=f"30m, 2h, 1d (default {span})"
    )
    until.add_argument("--until", metavar="INSTANT", help="ISO 8601; UTC without a zone")
    parser.add_argument("--comment", default="", metavar="TEXT", help="the reason")
    add_url(parser)


def alerts_list(args: argparse.Namespace) -> int:
    """Run `gpuwarden alerts list`; with --exit-code 1 when an alert fires or the rules have not judged the fleet."""
    conditions = {
        "active": "state IN ('firing', 'pending')",
        # An alert that was pending and never fired is not listed.
        "resolved": "state = 'resolved' AND fired_at IS NOT NULL",
        "all": "true",
    }
    chosen, params = chosen_by(args)
    condition = conditions.get(args.state, f"state = '{args.state}'")
    answer = ask(_ALERTS.format(condition=" AND ".join([condition, *chosen])), params, url=args.url)
    states = [row[answer.columns.index("state")] for row in answer.rows]
    unjudged = warned(args.url) if args.state in ("active", "firing", "pending") else None
    if args.format != "table":
        print(for_programs(answer.columns, answer.rows, args.format), end="")
    elif answer.rows:
        print(people(answer.columns, answer.rows, "id severity shown rule place age cost summary"))
        if "firing" in states:
            print(f"acknowledge one: gpuwarden alerts ack {answer.rows[states.index('firing')][0]}")
    elif unjudged is None:
        asked = "".join(f", {name} {value}" for name, value in params.items())
        never = "No alert was ever active" if args.state == "all" else f"No alert is {args.state}"
        print(f"{never}{asked}.")
    return 1 if args.exit_code and ("firing" in states or unjudged) else 0


def warned(url: str | None) -> str | None:
    """Warn on stderr when the rules have not judged the fleet, as the list may lack alerts."""
    if unjudged := unjudged_at(url):
        print(unjudged, file=sys.stderr)
    return unjudged


def chosen_by(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """SQL conditions of the filter flags, and their parameters."""
    params = {name: value for name in ALERT_FILTERS if (value := getattr(args, name)) is not None}
    return [ALERT_FILTERS[name] for name in params], params


def for_programs(columns: list[str], rows: list[list[Any]], form: str) -> str:
    """Rows as JSON or CSV, without the column `shown`, which is for people."""
    keep = [place for place, name in enumerate(columns) if name != "shown"]
    return render([columns[i] for i in keep], [[row[i] for i in keep] for row in rows], form)


def people(columns: list[str], rows: list[list[Any]], names: str) -> str:
    """A table of the named columns, with ages and costs in words."""
    found = []
    for row in rows:
        record = dict(zip(columns, row, strict=True))
        record["age"] = readable(record["age_seconds"])
        usd = record["usd_per_hour"]
        record["cost"] = None if usd is None else f"${usd:,.2f}/h"
        found.append([record[name] for name in names.split()])
    heads = ["state" if name == "shown" else name for name in names.split()]
    return render(heads, found, "table", width=terminal_width()).rstrip("\n")


def silence(args: argparse.Namespace) -> int:
    """Run `gpuwarden alerts silence MATCHER... --for 2h --comment WHY`."""
    made = add({"matchers": args.matchers}, args)
    print(
        f"silence {made['id']} until {until_text(made['ends_at'])},"
        f" of {counted(made['alerts'], 'alert')} now"
    )
    return 0


def acknowledge(args: argparse.Namespace) -> int:
    """Run `gpuwarden alerts ack ALERT --for 4h`."""
    made = add({"fingerprint": fingerprint_of(args.alert, args.url)}, args)
    print(
        f"acknowledged until {until_text(made['ends_at'])}; `gpuwarden alerts unsilence {made['id']}`"
    )
    return 0


def unsilence(args: argparse.Namespace) -> int:
    """Run `gpuwarden alerts unsilence ID`."""
    call("DELETE", f"/v1/silences/{quote(args.id, safe='')}", url=args.url)
    print(f"silence {args.id} has ended")
    return 0


def fingerprint_of(wanted: str, url: str | None) -> str:
    """Fingerprint of the alert that is meant by a fingerprint, its first digits, or a rule with one active alert.
    Raises CallError.
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
    raise CallError(f"no alert is called {wanted!r}; `gpuwarden alerts list` has their ids")


def add(what: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Post a silence with the flags of `silence` and `ack`; what the collector stored. Raises CallError."""
    document = {**what, "comment": args.comment}
    document |= {"ends_at": args.until} if args.until else {"for": args.span}
    made: dict[str, Any] = call("POST", "/v1/silences", document, url=args.url)
    return made


def until_text(text: str) -> str:
    """A timestamp of the API for people."""
    return text[:16].replace("T", " ") + " UTC"
