"""Runs a query and prints or streams its rows, or opens a shell: `gpuwarden sql`."""

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuwarden.durations import exact, seconds_of
from gpuwarden.query import ARROW_TYPE, ERROR, NDJSON_TYPE, PARQUET_TYPE
from gpuwarden_cli.output import ROW_FORMATS, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_url
from gpuwarden_cli.progress import ProgressLine, progress
from gpuwarden_client.http import (
    CUT_TAIL_BYTES,
    CallError,
    CollectorEndpoint,
    QueryAnswer,
    RefusedError,
    ask,
    is_cut,
)

BINARY = {"arrow": ARROW_TYPE, "parquet": PARQUET_TYPE}
STREAMED = {**BINARY, "csv": "text/csv", "ndjson": NDJSON_TYPE}
"""Formats that the collector encodes, and their media types."""
SQL_FORMATS = (*ROW_FORMATS, *BINARY)
EXPORT_ROWS_MAX = 1_000_000_000
"""Row limit for programs: as many rows as the collector gives."""
_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 300.0


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "sql", sql, "query the fleet in SQL (DuckDB, read only)",
        "Main tables: gpu_samples, host_samples, process_samples, events, nodes, gpus,"
        " alerts, incidents; views gpus_now, nodes_now, alerts_now. SHOW TABLES lists all.",
    )  # fmt: skip
    parser.add_argument(
        "query", metavar="QUERY", nargs="?",
        help="one SELECT; - reads it from standard input; none: a shell",
    )  # fmt: skip
    parser.add_argument(
        "-f", "--file", type=Path, metavar="FILE", help="read the query from a file"
    )
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE",
        help="value of $NAME: JSON, an ISO 8601 time with its zone, or text",
    )  # fmt: skip
    add_format(parser, SQL_FORMATS)
    parser.add_argument(
        "--watch", metavar="TIME", help="run it at an interval, such as 2s, until Ctrl-C"
    )
    add_url(parser)


def sql(args: argparse.Namespace) -> int:
    """Run the query; without one, and on a terminal, run a shell."""
    query = _query(args)
    params = dict(map(_param, args.param))
    if query is None:
        from gpuwarden_cli.sql_shell import run_shell

        where = CollectorEndpoint.of(args.url)
        return run_shell(lambda text: _readable(ask(text, params, url=where.url)), where.url)
    if args.watch is not None and args.format not in BINARY:
        return _watch(args, lambda text: ask(text, params, url=args.url), query)
    show_answer(query, params, args.format, args.url)
    return 0


def show_answer(query: str, params: dict[str, Any], form: str, url: str | None) -> None:
    """Print the rows of a query in one of SQL_FORMATS. Raises CallError, ValueError."""
    if form in STREAMED:
        _hand_on(CollectorEndpoint.of(url), query, params, form)
        return
    answer = ask(query, params, url=url)
    _print(answer if form == "json" else _readable(answer), form)


def _query(args: argparse.Namespace) -> str | None:
    """The query; None: none was given, and standard input is a terminal. Raises ValueError."""
    if args.file is not None:
        if args.query is not None:
            raise ValueError("give either a query or --file")
        try:
            return str(args.file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ValueError(f"--file {args.file}: {reason}") from error
    if args.query == "-" or (args.query is None and not sys.stdin.isatty()):
        return sys.stdin.read()
    return None if args.query is None else str(args.query)


def _param(text: str) -> tuple[str, Any]:
    """Name and value of `since=2026-01-31T12:00:00Z`, as the API takes them. Raises ValueError."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise ValueError(f"--param {text} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        pass
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        return name, value
    return name, {"timestamp": value} if instant.tzinfo else value


def _print(answer: QueryAnswer, form: str) -> None:
    print(render(answer.columns, answer.rows, form, width=terminal_width()), end="")
    if answer.truncated:
        print(
            f"gpuwarden: the collector stopped at {len(answer.rows):,} rows; add a LIMIT or"
            " aggregate",
            file=sys.stderr,
        )


def _hand_on(collector: CollectorEndpoint, query: str, params: dict[str, Any], form: str) -> None:
    """Stream the collector's encoding to standard output. Raises CallError, ValueError."""
    is_terminal = sys.stdout.isatty()
    if is_terminal and form in BINARY:
        raise ValueError(f"{form} is not for a terminal: write it to a file, with > rows.{form}")
    document: dict[str, Any] = {"sql": query, "params": params}
    if not is_terminal:
        document["row_limit"] = EXPORT_ROWS_MAX
    with (
        progress(f"receiving {form}", is_wanted=not is_terminal) as bar,
        collector.reading(_TIMEOUT_S),
        collector.answer(
            "POST", "/v1/sql", document, accept=STREAMED[form], timeout_s=_TIMEOUT_S
        ) as answer,
    ):
        tail = b""
        while part := _part(answer, bar):
            sys.stdout.buffer.write(part)
            tail = (tail + part)[-CUT_TAIL_BYTES:]
        is_truncated = is_cut(answer.headers, tail)
    sys.stdout.buffer.flush()
    if form == "ndjson":
        _check_end(tail)
    if is_truncated:
        print("gpuwarden: the collector cut the rows; add a LIMIT or aggregate", file=sys.stderr)


def _part(answer: Any, bar: ProgressLine) -> bytes:
    """The next bytes of an answer. Raises CallError when the connection breaks."""
    from http.client import IncompleteRead

    try:
        part: bytes = answer.read(_CHUNK_BYTES)
    except (IncompleteRead, ConnectionResetError) as error:
        raise CallError(
            f"the answer broke off after {bar.done / 2**20:,.1f} MiB: the query failed there, or the collector"
            " stopped"
        ) from error
    bar.done += len(part)
    bar.text = f"{bar.done / 2**20:,.1f} MiB"
    return part


def _check_end(tail: bytes) -> None:
    """Raise RefusedError when the last line has an error: the query failed after its first rows."""
    last = tail.rstrip(b"\n").rpartition(b"\n")[2]
    if ERROR.encode() not in last:
        return
    try:
        said = json.loads(last)
    except ValueError:
        return
    if isinstance(said, dict) and list(said) == [ERROR]:
        raise RefusedError(said[ERROR]["error"])


def _watch(args: argparse.Namespace, asked: Callable[[str], QueryAnswer], query: str) -> int:
    from gpuwarden_cli.sql_shell import Shell, watch

    every_s = seconds_of(args.watch)
    if not every_s:
        raise ValueError(f"--watch {args.watch} is not a duration; write 2s")
    shell = Shell(lambda text: _readable(asked(text)), form=args.format, last=query)
    try:
        watch(shell, every_s)
    except KeyboardInterrupt:
        print()
    return 0


def _readable(answer: QueryAnswer) -> QueryAnswer:
    """The answer with intervals as hours, minutes and seconds; the collector answers seconds."""
    places = {at for at, kind in enumerate(answer.types) if kind == "INTERVAL"}
    rows = [
        [
            exact(cell) if at in places and isinstance(cell, int | float) else cell
            for at, cell in enumerate(row)
        ]
        for row in answer.rows
    ]
    return QueryAnswer(answer.columns, rows, answer.truncated, answer.types)
