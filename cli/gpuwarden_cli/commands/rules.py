"""Lists, checks, tests and backtests rules, and writes them for Prometheus: `gpuwarden rules ...`."""

import argparse
import asyncio
import json
import os
import sys
import textwrap
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden.clock import SystemClock, iso_text
from gpuwarden.durations import readable, seconds_of, span_of
from gpuwarden.prometheus_names import DCGM_SETS
from gpuwarden.query import first_paragraph
from gpuwarden_cli.output import counted, render, terminal_width
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group, add_since, add_url
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.read.replays import Replayed, replay_all, rules_of_collector
from gpuwarden_client.http import CallError, RefusedError, call

if TYPE_CHECKING:
    from gpuwarden_rules.backtest.replay import Replay
    from gpuwarden_rules.definition.language import Rule
    from gpuwarden_rules.definition.rule_set import RuleSet

_LISTED = ("rule", "state", "severity", "firing", "pending", "unknown", "interval_s", "for_s")


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(commands, "rules", "list, check, test, backtest and export rules")
    for name, run, text in (
        ("list", rules_list, "list the rules with their state and statistics"),
        ("check", rules_check, "check rule files without running them"),
        ("test", rules_test, "run the test cases in *.test.yaml files"),
    ):
        parser = add_command(group, name, run, text)
        parser.add_argument(
            "files", nargs="*", type=Path, metavar="FILE", help="default: the built-in pack"
        )
        add_format(parser)
        if name != "test":
            add_url(parser)
    parser = add_command(group, "new", rules_new, "write a rule with its test, to begin with")
    parser.add_argument("name", metavar="NAME", help="snake_case, as in gpu_memory_hot")
    where = "where to write NAME.yaml and NAME.test.yaml (default: here)"
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", default=Path(), help=where
    )
    parser = add_command(group, "sql", rules_sql, "print the SQL that a rule is, or is compiled to")
    parser.add_argument("name", metavar="RULE", help="name of the rule")
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="default: the built-in pack"
    )
    parser = add_command(
        group, "backtest", rules_backtest, "show when rules would have fired on stored data"
    )
    parser.add_argument("names", nargs="*", metavar="RULE", help="default: all")
    parser.add_argument(
        "--rule", action="append", type=Path, metavar="FILE",
        help="use the rules of this file or folder instead of the collector's",
    )  # fmt: skip
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="TOML file of the collector, for its own rules and overrides",
    )  # fmt: skip
    add_since(parser, "7d")
    parser.add_argument(
        "--every", metavar="TIME",
        help="longest time between two evaluations (default 5m, or the rule's shortest window)",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("table", "json"), default="table",
        help="table, or json: a line for each time it would have fired (default table)",
    )  # fmt: skip
    add_url(parser)
    parser = add_command(
        group, "export-prometheus", rules_export, "write alerting rules for Prometheus"
    )
    parser.add_argument("file", metavar="FILE", help="the file to write; -: standard output")
    parser.add_argument(
        "--rule", action="append", type=Path, metavar="FILE",
        help="rules of this file or folder instead of the built-in pack",
    )  # fmt: skip
    parser.add_argument(
        "--names", choices=("own", *DCGM_SETS), default="own",
        help="names of our exporter, or of dcgm-exporter up to 4.8 (dcgm) or since 4.9 (dcgm49); default own",
    )  # fmt: skip
    parser.add_argument(
        "--link", metavar="URL", help="address of the collector's pages, for a link to each rule's"
    )


def rules_list(args: argparse.Namespace) -> int:
    """List the rules of the collector with their statistics, the rules of files, or without a collector the built-in
    rules.
    """
    rows = None if args.files else _running(args.url)
    if rows is None:
        columns = ["rule", "severity", "interval_s", "for_s", "keep_firing_for_s", "summary"]
        rows = [
            {name: getattr(rule, name) for name in columns[2:5]}
            | {"rule": rule.name, "severity": rule.severity.value, "summary": str(rule.summary)}
            for rule in _rules(args.files)
        ]
    elif args.format == "table":
        columns = [*_LISTED, "note"]
        rows = [{**row, "note": row["reason"] or row["summary"]} for row in rows]
    else:
        columns = list(rows[0]) if rows else []
    cells = [[row[column] for column in columns] for row in rows]
    print(render(columns, cells, args.format, width=terminal_width()), end="")
    return 0


def _running(url: str | None) -> list[dict[str, Any]] | None:
    """Rules and statistics of the collector; None when none answers."""
    try:
        found: list[dict[str, Any]] = call("GET", "/v1/rules", url=url, timeout_s=10)["rules"]
    except CallError as error:
        if url is not None or isinstance(error, RefusedError):
            raise
        print(f"gpuwarden: {error}; this is the built-in pack", file=sys.stderr)
        return None
    return found


def rules_new(args: argparse.Namespace) -> int:
    """Write a rule that works and its test; files that are there stay as they are."""
    from gpuwarden_rules.definition.new_rule import new_rule

    texts = new_rule(args.name)
    paths = [args.folder / f"{args.name}{ending}" for ending in (".yaml", ".test.yaml")]
    for path in paths:
        if path.exists():
            raise CallError(f"{path} is there already; choose another name or folder")
    args.folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    rule, test = paths
    print(f"{rule}: a rule; change what it measures and when that is wrong (docs/rules.md)")
    print(f"{test}: its cases; run them by `gpuwarden rules test {test}`")
    print(f"It would have fired: `gpuwarden rules backtest {args.name} --rule {rule}`")
    return 0


def rules_sql(args: argparse.Namespace) -> int:
    """Print the SQL of a rule of files, or of the built-in pack."""
    from gpuwarden_rules.definition.expressions import nearest

    rules = {rule.name: rule for rule in _rules(args.files)}
    if args.name not in rules:
        raise CallError(f"there is no rule {args.name!r}; {nearest(args.name, [*rules])}")
    rule = rules[args.name]
    values = ", ".join(f"${name} = {value}" for name, value in rule.params.items())
    print(f"-- {rule.name}: {values or 'no parameters'}; $now is the time of the evaluation")
    print(rule.sql)
    return 0


def rules_check(args: argparse.Namespace) -> int:
    """Check the language and the SQL of rule files; 1 when one is not valid."""
    from gpuwarden_rules.testing.check import check, gaps

    paths = paths_of(args.files, tests=False)
    problems = asyncio.run(check(paths))
    if args.format != "table":
        rows = [[p.path, p.line, p.column, p.message] for p in problems]
        print(render(["file", "line", "column", "problem"], rows, args.format), end="")
    elif problems:
        print("\n".join(map(str, problems)), file=sys.stderr)
    else:
        is_or_are = "is" if len(paths) == 1 else "are"
        print(f"{counted(len(paths), 'rule file')} {is_or_are} valid")
    if not problems:
        for gap in gaps(_rules(args.files)):
            print(f"{gap} (a note)", file=sys.stderr)
    if not problems and (args.url or os.environ.get("GPUWARDEN_URL")):
        for line in asyncio.run(_not_here(args.files, args.url)):
            print(line, file=sys.stderr)
    return 1 if problems else 0


async def _not_here(files: list[Path], url: str | None) -> list[str]:
    """A line for each rule whose data the collector's fleet lacks."""
    from gpuwarden_rules.evaluation import fleet

    rules = _rules(files)
    required = [key for rule in rules for key in rule.requires]
    absent = await fleet.absent_columns(RemoteQuerier(url), required, SystemClock().now())
    return [
        f"{rule.path}:{rule.line}: {rule.name} cannot run here because {reason}"
        for rule in rules
        if (reason := fleet.cannot_run(rule, absent))
    ]


def rules_test(args: argparse.Namespace) -> int:
    """Run the cases of `*.test.yaml` files; 1 when a case fails."""
    from gpuwarden_rules.testing.runner import run_file

    results = [result for path in paths_of(args.files, tests=True) for result in run_file(path)]
    failed = [result for result in results if not result.passed]
    if args.format == "table":
        for result in results:
            print(f"{'ok  ' if result.passed else 'FAIL'} {Path(result.path).name}: {result.name}")
            if not result.passed:
                print(
                    textwrap.indent(f"at {result.path}:{result.line}\n{result.difference}", "     ")
                )
        print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    else:
        rows = [[r.path, r.line, r.name, r.passed, r.difference or None] for r in results]
        print(render(["file", "line", "case", "passed", "difference"], rows, args.format), end="")
    return 1 if failed else 0


def rules_export(args: argparse.Namespace) -> int:
    """Write the rules that PromQL can say as a file for Prometheus, and name those that it cannot."""
    from gpuwarden_rules.prometheus_file import alerting_rules, rule_file

    rules = _rules(args.rule or [])
    found = alerting_rules(rules, args.names)
    text = rule_file(found, args.link)
    if args.file == "-":
        print(text, end="")
    else:
        Path(args.file).write_text(text, encoding="utf-8")
    written = {one.rule.name for one in found}
    left = [rule.name for rule in rules if rule.name not in written]
    print(f"{counted(len(found), 'rule')} written", file=sys.stderr)
    if left:
        print(textwrap.fill(f"not in PromQL: {', '.join(left)}", 110), file=sys.stderr)
    return 0


def rules_backtest(args: argparse.Namespace) -> int:
    """Print when rules would have fired over stored history."""
    span = span_of(args.since, "--since")
    step_s = seconds_of(args.every) if args.every else None
    if args.every and not step_s:
        raise ValueError(f"--every {args.every} is not a duration; write 30s or 5m")
    rule_set = rules_of_collector(args)
    if args.rule:
        rule_set = replace(rule_set, rules=tuple(_rules(args.rule)))
    unknown = sorted(set(args.names) - {rule.name for rule in rule_set.rules})
    if unknown:
        raise ValueError(f"no rule is called {unknown[0]!r}; `gpuwarden rules list` has them")
    wanted = [rule for rule in rule_set.rules if not args.names or rule.name in args.names]
    rule_set = replace(rule_set, rules=tuple(wanted))
    return asyncio.run(_backtest(rule_set, span, step_s, args))


async def _backtest(
    rule_set: "RuleSet", span: timedelta, step_s: float | None, args: argparse.Namespace
) -> int:
    """Replay the rules and print them in order; 1 when one cannot be replayed.

    A rule whose data the history lacks is reported as such, and not as one that never fired.
    """
    clock = SystemClock()
    started, failed = clock.monotonic(), 0

    def show(name: str, done: Replayed, seconds: float) -> None:
        nonlocal failed
        failed += isinstance(done, Exception)
        _print_backtest(name, done, seconds, is_json=args.format == "json")

    replayed = await replay_all(rule_set, span, step_s, args.url, show)
    if args.format != "json" and len(rule_set.rules) > 1 and replayed is not None:
        _print_speed(len(rule_set.rules), replayed, clock.monotonic() - started)
    return 1 if failed else 0


def _print_speed(rules: int, span: timedelta, seconds: float) -> None:
    times = span.total_seconds() / max(seconds, 1e-3)
    print(f"{rules} rules in {seconds:.1f} s, {times:,.0f} times real time")


def _print_backtest(name: str, done: Replayed, seconds: float, *, is_json: bool) -> None:
    if isinstance(done, Exception):
        print(f"gpuwarden: {name} cannot be replayed: {first_paragraph(done)}", file=sys.stderr)
    elif isinstance(done, str) and is_json:
        print(json.dumps({"rule": name, "cannot_say": done}, ensure_ascii=False), flush=True)
    elif isinstance(done, str):
        print(f"{name} cannot say: {done}\n", flush=True)
    elif is_json:
        _print_lines(done)
    else:
        _print_replay(done, seconds)


def _print_lines(done: "Replay") -> None:
    """Print each time that the rule would have fired as a line of JSON."""
    for alert in done.episodes:
        line = {
            "rule": alert.rule,
            "severity": alert.severity.value,
            "labels": dict(alert.labels),
            "owner": alert.owner,
            "began_at": alert.began_at,
            "fired_at": alert.fired_at,
            "resolved_at": alert.resolved_at,
            "usd": alert.usd_so_far(done.until),
            "summary": alert.summary,
        }
        print(json.dumps(line, ensure_ascii=False, default=iso_text), flush=True)


def _print_replay(done: "Replay", seconds: float) -> None:
    from gpuwarden_rules.definition.templates import usd

    span_s = (done.until - done.since).total_seconds()
    cost = done.usd()
    times = "once" if len(done.episodes) == 1 else f"{len(done.episodes)} times"
    print(
        f"{done.rule.name} would have fired {times} in {readable(span_s)}"
        f"{'' if cost is None else f', at a cost of {usd(cost)}'}"
    )
    rows = []
    for alert in done.episodes:
        lasted = (alert.resolved_at or done.until) - (alert.fired_at or alert.active_at)
        amount = alert.usd_so_far(done.until)
        rows.append(
            [
                f"{alert.fired_at:%Y-%m-%d %H:%M}",
                readable(lasted.total_seconds()) + ("" if alert.resolved_at else ", continues"),
                ", ".join(f"{k} {v}" for k, v in alert.labels.items() if k != "gpu_uuid"),
                alert.owner,
                None if amount is None else usd(amount),
                alert.summary,
            ]
        )
    if rows:
        columns = ["fired", "for", "where", "owner", "cost", "summary"]
        print(render(columns, rows, "table", width=terminal_width()), end="")
    print(
        f"({done.evaluations} evaluations by {done.queries} queries, at most {readable(done.step_s)} apart, changes to"
        f" within {readable(done.resolution_s)}; {seconds:.1f} s,"
        f" {span_s / max(seconds, 1e-3):,.0f} times real time)\n",
        flush=True,
    )


def _rules(files: list[Path]) -> "list[Rule]":
    from gpuwarden_rules.definition.language import load_all
    from gpuwarden_rules.definition.overrides import FILE_NAME

    return load_all(path for path in paths_of(files, tests=False) if path.name != FILE_NAME)


def paths_of(given: list[Path], *, tests: bool) -> list[Path]:
    """Rule files or their tests, in the given files and folders; without any, of the built-in pack."""
    from gpuwarden_rules.definition.language import builtin_paths
    from gpuwarden_rules.definition.yaml_positions import yaml_files

    folders = given or sorted({path.parent for path in builtin_paths()})
    return yaml_files(folders, tests=tests)
