"""Checks the file of receivers, and sends a test message: `gpuwarden notify check|test`."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group
from gpuwarden_cli.settings import notify_file_of, notify_of

if TYPE_CHECKING:
    from gpuwarden_rules.notify.receivers.receiver import Outcome
    from gpuwarden_rules.notify.settings import Notify


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "notify", "check and test notifications")
    parser = add_command(group, "check", notify_check, "check a file of receivers and routes")
    parser.add_argument("file", type=Path, metavar="FILE", help="the file of receivers and routes")
    add_format(parser)
    parser = add_command(
        group, "test", notify_test, "send a test message and show each receiver's answer",
        "Exits with 1 if one failed.",
    )  # fmt: skip
    parser.add_argument("--file", type=Path, metavar="FILE", help="default: the collector's own")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of the collector")
    parser.add_argument(
        "--receiver", action="append", metavar="NAME", help="only this one (default: all)"
    )
    add_format(parser)


def notify_check(args: argparse.Namespace) -> int:
    """Check a file of receivers and routes; 1 when it has a problem."""
    from gpuwarden_rules.definition.yaml_positions import RuleFileError
    from gpuwarden_rules.notify.settings import load

    try:
        notify = load(args.file)
    except RuleFileError as error:
        if args.format == "table":
            print(error, file=sys.stderr)
        else:
            rows = [[p.path, p.line, p.column, p.message] for p in error.problems]
            print(render(["file", "line", "column", "problem"], rows, args.format), end="")
        return 1
    if args.format != "table":
        print(render(["file", "line", "column", "problem"], [], args.format), end="")
        return 0
    receivers = counted(len(notify.receivers), "receiver")
    print(f"{args.file} is valid: {receivers}, {counted(len(notify.policy.routes), 'route')}")
    for line in remarks(notify):
        print(line)
    return 0


def remarks(notify: "Notify") -> list[str]:
    """Notes on what is valid and perhaps not intended."""
    routes = notify.policy.routes
    used = {name for route in routes for name in route.receivers}
    used |= {name for digest in notify.digests for name in digest.receivers}
    used |= {name for report in notify.reports for name in report.receivers}
    lines = [
        f"note: no route leads to {plan.name!r}"
        for plan in notify.receivers
        if plan.name not in used
    ]
    if all(route.match for route in routes):
        lines.append(
            "note: alerts that match no route notify nobody; add a last route without `match`"
        )
    return lines


def notify_test(args: argparse.Namespace) -> int:
    """Send a test message to the receivers and print their answers; 1 when one failed."""
    notify = notify_of(notify_file_of(args))
    names = [plan.name for plan in notify.receivers]
    wanted = args.receiver or names
    for name in wanted:
        if name not in names:
            raise StartError(f"--receiver {name}: unknown; known: {', '.join(names)}")
    outcomes = asyncio.run(_send(notify, wanted))
    rows = [[name, *_said(outcome)] for name, outcome in outcomes]
    columns = ["receiver", "took_it", "answer"]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 0 if all(row[1] for row in rows) else 1


async def _send(notify: "Notify", names: list[str]) -> "list[tuple[str, Outcome]]":
    from gpuwarden_rules.notify.message import MessageKind, Notification, message_id
    from gpuwarden_rules.notify.notifier import attempt
    from gpuwarden_rules.notify.receivers.factory import receiver_of

    clock = SystemClock()

    async def send(name: str) -> "Outcome":
        plan = next(plan for plan in notify.receivers if plan.name == name)
        now = clock.now()
        is_personal = notify.policy.recipients[name].is_personal
        owners = notify.policy.owners
        message = Notification(
            id=message_id("test", name, now.isoformat()),
            receiver=name,
            kind=MessageKind.TEST,
            group="test",
            made_at=now,
            address=(owners.nobody or owners.address("test")) if is_personal else None,
        )
        receiver = receiver_of(plan, notify.style, clock)
        try:
            return await attempt(receiver, message)
        finally:
            await receiver.close()

    return list(zip(names, await asyncio.gather(*map(send, names)), strict=True))


def _said(outcome: "Outcome") -> tuple[bool, str]:
    from gpuwarden_rules.notify.receivers.receiver import Delivered

    if isinstance(outcome, Delivered):
        return True, outcome.note
    return False, outcome.reason
