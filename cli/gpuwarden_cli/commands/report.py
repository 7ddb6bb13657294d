"""Reports money, what would cost less, and what a job used: `gpuwarden report money|right-size|job`."""

import argparse
import asyncio
import json
from datetime import datetime
from pathlib import Path

from gpuwarden.clock import SystemClock
from gpuwarden.durations import instant_before
from gpuwarden.waste_report import BY
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_since, add_url
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.settings import notify_file_of, notify_of
from gpuwarden_client.http import CallError


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "report", "report money, what would cost less, and what a job used")
    _add_money(group)
    _add_right_size(group)
    text = "what a job used of CPUs, memory and GPUs on each node, and what to change"
    parser = add_command(group, "job", job, text)
    parser.add_argument("job", metavar="JOB", help="a Slurm job id, or a pod as namespace/name")
    add_format(parser, ("table", "json"))
    add_url(parser)


def _add_money(group: Commands) -> None:
    text = "what a time cost, what was wasted, what to do, budgets, incidents: to print or mail"
    parser = add_command(
        group, "money", money, text, "The default time is the last whole week, from Monday."
    )
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--week", action="store_true", help="the last whole week (default)")
    time.add_argument("--month", action="store_true", help="the last whole month")
    time.add_argument("--begin", metavar="DATE", help="first day, or time, UTC: 2026-03-01")
    parser.add_argument(
        "--end", metavar="DATE", help="with --begin: the end, not included (default now)"
    )
    parser.add_argument(
        "--by", choices=(*BY, "category"), default="team", help="lines (default team)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write HTML to a file; its print is made for PDF"
    )
    parser.add_argument(
        "--mail", metavar="RECEIVER", help="send it now by a receiver of the notification file"
    )
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="of receivers (default: the collector's)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of the collector")
    add_url(parser)


def _add_right_size(group: Commands) -> None:
    text = "jobs that a smaller GPU, a MIG device or spot would do for, and what that saves"
    parser = add_command(group, "right-size", right_size, text)
    add_since(parser, "7d")
    parser.add_argument(
        "--by", choices=("job", "username", "model"), default="job", help="lines (default job)"
    )
    parser.add_argument(
        "--top",
        type=_at_least_one,
        default=20,
        metavar="N",
        help="maximum number of lines (default 20)",
    )
    parser.add_argument("--username", metavar="NAME", help="jobs of this user alone")
    parser.add_argument(
        "--job", metavar="JOB", help="this job alone: Slurm's id, or namespace/name"
    )
    parser.add_argument("--all", action="store_true", help="also jobs without advice, and why")
    add_format(parser, ("table", "json"))
    add_url(parser)


def right_size(args: argparse.Namespace) -> int:
    """Run `gpuwarden report right-size`: what would cost less, by job, user or model."""
    from gpuwarden.right_size import read_right_sizes
    from gpuwarden_cli.right_size_report import asked, grouped, records, screen

    since, until = _window(args)
    mine, params = asked(args.username, args.job)
    querier = RemoteQuerier(args.url)
    found = asyncio.run(read_right_sizes(querier, since, until, mine, params))
    if args.format == "json":
        listed = records(found) if args.by == "job" else grouped(found, args.by)
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    else:
        print(screen(found, args.by, args.top, since, until, with_all=args.all), end="")
    return 0


def money(args: argparse.Namespace) -> int:
    """Run `gpuwarden report money`: print the report of a time, write it as HTML, or send it; 1 when it was not sent."""
    from gpuwarden_cli.money_report import made, sent, span

    now = SystemClock().now()
    begin, end = span(args, now)
    notify = notify_of(notify_file_of(args)) if args.mail is not None else None
    link = notify.style.link if notify else None
    document = asyncio.run(made(RemoteQuerier(args.url), begin, end, args.by, now, link=link))
    if notify is not None:
        is_sent, answer = asyncio.run(sent(notify, args.mail, document, (begin, end)))
        print(f"{document.title}\n{args.mail}: {answer}")
        return 0 if is_sent else 1
    if args.html is None:
        print(document.text, end="")
        return 0
    try:
        args.html.write_text(document.html, encoding="utf-8")
    except OSError as error:
        raise CallError(f"{args.html}: {error.strerror}") from error
    print(f"{document.title}\nwritten to {args.html}")
    return 0


def job(args: argparse.Namespace) -> int:
    """Run `gpuwarden report job`: what a job used, and what its owner can change."""
    from gpuwarden_cli.job_report import read
    from gpuwarden_cli.job_summary import record, screen

    found = asyncio.run(read(RemoteQuerier(args.url), args.job, SystemClock().now()))
    if found is None:
        raise CallError(f"there is no job {args.job}: `gpuwarden ask usage-by-job` has their names")
    if args.format == "json":
        print(json.dumps(record(found), indent=2, ensure_ascii=False, default=str))
    else:
        print(screen(found), end="")
    return 0


def _window(args: argparse.Namespace) -> tuple[datetime, datetime]:
    """The period of --since, from the start of an hour to now. Raises ValueError."""
    now = SystemClock().now()
    since = instant_before(now, args.since, "--since")
    return since.replace(minute=0, second=0, microsecond=0), now


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value
