"""Lists, shows and acknowledges incidents: `gpuwarden incidents list|show|ack`."""

import argparse
from typing import Any

from gpuwarden.durations import readable
from gpuwarden_cli.commands.alerts import (
    add,
    add_filters,
    add_silence,
    chosen_by,
    for_programs,
    people,
    until_text,
    warned,
)
from gpuwarden_cli.output import render
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_url
from gpuwarden_cli.read.incidents import INCIDENTS_SQL, MEMBERS_SQL, OF_ALERTS_SQL
from gpuwarden_client.http import CallError, ask

INCIDENT_STATES = ("open", "resolved", "merged", "all")


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(
        commands, "incidents", "list, show and acknowledge incidents: alerts of one cause"
    )
    parser = add_command(group, "list", incidents_list, "list incidents, the gravest first")
    parser.add_argument("--state", choices=INCIDENT_STATES, default="open", help="default open")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 if an incident is open, or rules have not run yet",
    )
    add_filters(parser)
    add_format(parser)
    add_url(parser)
    for name, run, text in (
        ("show", incidents_show, "show an incident with all its alerts"),
        ("ack", incidents_ack, "mute notifications of an incident's roots for a time"),
    ):
        parser = add_command(group, name, run, text)
        parser.add_argument("id", metavar="ID", help="as `gpuwarden incidents list` shows it")
        if name == "show":
            add_format(parser, ("table", "json"))
            add_url(parser)
        else:
            add_silence(parser, "4h")


def incidents_list(args: argparse.Namespace) -> int:
    """Run `gpuwarden incidents list`; with --exit-code 1 when one is open or the rules have not judged the fleet."""
    condition = "true" if args.state == "all" else f"state = '{args.state}'"
    chosen, params = chosen_by(args)
    if chosen:
        condition += " AND" + OF_ALERTS_SQL.format(condition=" AND ".join(chosen))
    answer = ask(INCIDENTS_SQL.format(condition=condition), params, url=args.url)
    is_open = any(row[answer.columns.index("state")] == "open" for row in answer.rows)
    unjudged = warned(args.url) if args.state == "open" else None
    if args.format != "table":
        print(for_programs(answer.columns, answer.rows, args.format), end="")
    elif answer.rows:
        shown = "id severity shown rule place age cost follows summary"
        print(people(answer.columns, answer.rows, shown))
        if is_open:
            one = answer.rows[0][0]
            print(f"its alerts: gpuwarden incidents show {one}; acknowledge: incidents ack {one}")
    elif unjudged is None:
        asked = "".join(f", {name} {value}" for name, value in params.items())
        never = "There was no incident" if args.state == "all" else f"No incident is {args.state}"
        print(f"{never}{asked}.")
    return 1 if args.exit_code and (is_open or unjudged) else 0


def incidents_show(args: argparse.Namespace) -> int:
    """Run `gpuwarden incidents show ID`: print the incident and its alerts."""
    incident = _one(args.id, args.url)
    answer = ask(MEMBERS_SQL, {"id": incident["id"]}, url=args.url)
    if args.format == "json":
        alerts = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        columns = [*incident, "members"]
        print(render(columns, [[*incident.values(), alerts]], "json"), end="")
        return 0
    print(f"{incident['state'].upper()} {incident['severity']}: {incident['summary']}")
    if incident["muted"]:
        print(f"  muted        {incident['muted']}")
    if incident["merged_into"]:
        print(f"  merged into  gpuwarden incidents show {incident['merged_into']}")
    age = readable(incident["age_seconds"])
    print(f"  began        {until_text(incident['began_at'])}, {age}")
    if incident["usd_per_hour"] is not None:
        print(
            f"  costs        ${incident['usd_per_hour']:,.2f}/h, ${incident['usd_so_far']:,.2f} so far"
        )
    print(f"  what to do   {' '.join(incident['remedy'].split())}")
    if incident["state"] == "open":
        print(f"  acknowledge  gpuwarden incidents ack {incident['id']}")
    print()
    print(people(answer.columns, answer.rows, "id part severity shown rule place age summary"))
    return 0


def incidents_ack(args: argparse.Namespace) -> int:
    """Run `gpuwarden incidents ack ID --for 4h`: acknowledge each of its root alerts."""
    incident = _one(args.id, args.url)
    answer = ask(MEMBERS_SQL, {"id": incident["id"]}, url=args.url)
    alerts = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    firing = [alert for alert in alerts if alert["state"] == "firing"]
    roots = [alert for alert in firing if alert["cause"] is None] or firing
    if not roots:
        raise CallError(
            f"incident {incident['id']} is {incident['state']}: none of its alerts fires"
        )
    for alert in roots:
        made = add({"fingerprint": alert["fingerprint"]}, args)
    many = f", {len(roots)} alerts" if len(roots) > 1 else ""
    print(f"acknowledged until {until_text(made['ends_at'])}{many}")
    return 0


def _one(wanted: str, url: str | None) -> dict[str, Any]:
    """The incident with an id or its first characters. Raises CallError."""
    answer = ask(INCIDENTS_SQL.format(condition="starts_with(id, $id)"), {"id": wanted}, url=url)
    if len(answer.rows) != 1:
        many = f"{len(answer.rows)} incidents begin with" if answer.rows else "there is no incident"
        raise CallError(f"{many} {wanted!r}; `gpuwarden incidents list --state all` has their ids")
    found = dict(zip(answer.columns, answer.rows[0], strict=True))
    return {name: value for name, value in found.items() if name != "shown"}
