"""Runs a query of the cookbook by its name, or lists the cookbook: `gpuwarden ask`."""

import argparse
from datetime import datetime
from itertools import groupby

from gpuwarden.clock import SystemClock
from gpuwarden.cookbook import SINCE, Question, question_named, questions
from gpuwarden_cli.commands.sql import BINARY, SQL_FORMATS, show_answer
from gpuwarden_cli.output import render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_url
from gpuwarden_client.http import timestamp_param


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "ask", run, "ask a question of the cookbook, or list its questions"
    )  # fmt: skip
    parser.add_argument(
        "question", metavar="QUESTION", nargs="?", help="its name (default: list all)"
    )
    parser.add_argument("--since", metavar="TIME", help="period until now, such as 1d")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help="value of a parameter"
    )
    parser.add_argument("--sql", action="store_true", help="print the query instead of running it")
    add_format(parser, SQL_FORMATS)
    add_url(parser)


def run(args: argparse.Namespace) -> int:
    """Run `gpuwarden ask [QUESTION]`. Raises CallError, ValueError."""
    if args.question is None:
        if args.format in BINARY:
            raise ValueError(f"name a question: the list of them is not made as {args.format}")
        print(_listed(args.format), end="")
        return 0
    question = question_named(args.question)
    values = question.values(_given(args), SystemClock().now())
    if args.sql:
        print(f"{question.plain_sql};")
        return 0
    params = {k: timestamp_param(v) if isinstance(v, datetime) else v for k, v in values.items()}
    show_answer(question.sql, params, args.format, args.url)
    return 0


def _given(args: argparse.Namespace) -> dict[str, str]:
    """Values of --param and --since by name. Raises ValueError."""
    given = {}
    for text in args.param:
        name, sign, value = text.partition("=")
        if not sign:
            raise ValueError(f"--param {text} is not NAME=VALUE")
        given[name] = value
    return given | ({SINCE: args.since} if args.since is not None else {})


def _listed(form: str) -> str:
    """All questions; in a table by topic."""
    if form == "table":
        parts = [_topic(topic, list(of)) for topic, of in groupby(questions(), lambda q: q.topic)]
        return "\n".join([*parts, "One of them: gpuwarden ask idle-holders --since 1d\n"])
    columns = ["name", "topic", "question", "parameters", "sql"]
    rows = [
        [q.name, q.topic, q.title, {p.name: p.default for p in q.parameters}, q.plain_sql]
        for q in questions()
    ]
    return render(columns, rows, form)


def _topic(topic: str, of: list[Question]) -> str:
    rows = [[q.name, f"{q.title}{_takes(q)}"] for q in of]
    names = max(len(q.name) for q in questions())
    padded = [[f"{name:<{names}}", text] for name, text in rows]
    width = terminal_width()
    table = render(["", ""], padded, "table", width=None if width is None else width - 2)
    lines = table.splitlines()[2:]
    return "\n".join([topic.upper(), *(f"  {line}" for line in lines), ""])


def _takes(question: Question) -> str:
    takes = ", ".join(f"{p.name}={p.default}" for p in question.parameters)
    return f" ({takes})" if takes else ""
