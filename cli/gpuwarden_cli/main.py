"""Entry point of the `gpuwarden` command: the parser, and one place that turns errors into a line.

Parts are imported by the command that needs them, so that a GPU host with the `agent` extra alone
runs `gpuwarden agent`, and `gpuwarden sql` starts fast.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gpuwarden import __version__
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import SettingsError
from gpuwarden_cli.commands import alerts, incidents, sql
from gpuwarden_cli.examples import add_examples
from gpuwarden_cli.host_authorities import use_host_authorities
from gpuwarden_cli.output import FORMATS
from gpuwarden_client.http import CallError, collector_url

EPILOG = """\
environment:
  GPUWARDEN_URL         the collector to ask (default http://127.0.0.1:8750)
  GPUWARDEN_TOKEN       the token for it, or GPUWARDEN_TOKEN_FILE: a file with the token
  GPUWARDEN_CA          PEM file of the only CA to trust (default: the system's)

Exit codes: 0 success, 1 a problem was found, 2 the call was wrong, 78 a setting is wrong.
"""


class CommandParser(argparse.ArgumentParser):
    """Says what was wrong in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see `{self.prog} --help`", file=sys.stderr)
        sys.exit(2)


class CommandHelp(argparse.HelpFormatter):
    """Fills all but what ends the help: an example is a line to copy."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        return super()._fill_text(text, width, indent)


Commands = argparse._SubParsersAction


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the result is the exit code."""
    args = parser().parse_args(argv)
    # What it makes holds names, command lines and tokens: others of this host have no business with it.
    os.umask(os.umask(0o077) | 0o027)
    use_host_authorities()
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:
        return _fail(_missing_part(error))
    except BaseExceptionGroup as group:
        return _fail(_only_line(group))
    except SettingsError as error:
        return _fail(str(error), os.EX_CONFIG)  # the units do not try again
    except (StartError, CallError, ValueError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _fail(line: str, code: int = 2) -> int:
    print(f"gpuwarden: {line}", file=sys.stderr)
    return code


def _missing_part(error: ModuleNotFoundError) -> str:
    """A missing package means a missing extra; anything of our own is a bug."""
    if error.name == "gpuwarden_simulator":
        from gpuwarden_cli.composition.supervision import SIMULATOR_MISSING

        return SIMULATOR_MISSING
    if error.name is None or error.name.startswith("gpuwarden"):
        raise error
    return (
        f"this command needs the Python package {error.name!r}, which is not installed:"
        " pip install 'gpuwarden[all]' (or [agent] on a GPU host)"
    )


def _only_line(group: BaseExceptionGroup[BaseException]) -> str:
    """The message of a group that holds nothing but errors meant for people."""
    people, rest = group.split((StartError, SettingsError))
    if rest is not None or people is None:
        raise group
    first: BaseException = people
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return str(first)


def parser() -> CommandParser:
    """The whole command line."""
    top = CommandParser(
        prog="gpuwarden",
        description="Every GPU sample in SQL, and a plain sentence for what is wrong and what it"
        " costs. Start with `gpuwarden up`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"gpuwarden {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    _add_up(commands)
    _add_agent(commands)
    _add_collector(commands)
    _add_simulate(commands)
    _add_sql(commands)
    _add_ask(commands)
    _add_schema(commands)
    _add_incidents(commands)
    _add_alerts(commands)
    _add_nodes(commands)
    _add_inventory(commands)
    _add_rules(commands)
    _add_why(commands)
    _add_report(commands)
    _add_slurm(commands)
    _add_top(commands)
    _add_mcp(commands)
    _add_import(commands)
    _add_notify(commands)
    _add_token(commands)
    _add_enroll(commands)
    _add_verify(commands)
    _add_doctor(commands)
    _add_open(commands)
    _add_completion(commands)
    add_examples(top)
    return top


def _command(
    commands: "Commands[CommandParser]",
    name: str,
    run: Callable[[argparse.Namespace], int] | None,
    text: str,
    more: str = "",
) -> CommandParser:
    description = f"{text[:1].upper()}{text[1:]}. {more}"
    made = commands.add_parser(
        name, help=text, description=description, formatter_class=CommandHelp
    )
    if run:
        made.set_defaults(run=run)
    return made


def _group(commands: "Commands[CommandParser]", name: str, text: str) -> "Commands[CommandParser]":
    made = _command(commands, name, None, text)
    return made.add_subparsers(metavar="COMMAND", required=True, title="commands")


def _add_format(made: argparse.ArgumentParser) -> None:
    made.add_argument("--format", choices=FORMATS, default="table", help="default table")


def _add_url(made: argparse.ArgumentParser) -> None:
    made.add_argument("--url", help="the collector (default GPUWARDEN_URL, else this machine's)")


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text} must be between 0 and 100000")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port number")
    return value


def _add_up(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_collector.processes.footprint import keep_small

        keep_small()
        from gpuwarden_cli.composition.up import default_data_dir, run_up

        data = args.data or default_data_dir()
        return run_up(port=args.port, data=data, simulate=args.simulate, model_name=args.model)

    made = _command(
        commands, "up", run, "collector, rules, page and this host's agent in one process",
        "Without a GPU on this host, simulated nodes are added.",
    )  # fmt: skip
    made.add_argument("--port", type=_port, default=8750, help="port of the page (default 8750)")
    made.add_argument(
        "--data", type=Path, metavar="DIR", help="data folder (default"
        " ~/.local/share/gpuwarden)",
    )  # fmt: skip
    made.add_argument(
        "--simulate", type=_count, metavar="GPUS",
        help="number of simulated GPUs (default: 8 if this host has none; 0: none)",
    )  # fmt: skip
    made.add_argument("--model", default="H100-SXM-80GB", help="GPU model to simulate")


def _add_agent(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import agent

    group = _group(commands, "agent", "run and check the agent of a GPU host")
    agent.add_commands(group, _command, _add_format)


def _add_collector(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import collector

    group = _group(commands, "collector", "run, check and maintain the collector")
    collector.add_commands(group, _command, _add_format)


def _add_simulate(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.composition.simulation import run_simulation

        return run_simulation(
            nodes=args.nodes,
            gpus_per_node=args.gpus_per_node,
            model_name=args.model,
            seed=args.seed,
            collector_url=args.collector_url or collector_url(),
            duration_s=args.duration,
            history_s=args.history,
            state_dir=args.state_dir,
            replay=args.replay,
            script=args.script,
        )

    made = _command(
        commands, "simulate", run, "simulate a fleet that sends data to a collector",
        "The nodes are real agents with simulated GPUs.",
    )  # fmt: skip
    made.add_argument("--nodes", type=_count, required=True, help="how many nodes")
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--gpus-per-node", type=_count, default=0, help="GPUs of each node")
    what.add_argument("--replay", type=Path, metavar="FILE", help="each node plays this recording")
    made.add_argument("--duration", type=float, metavar="S", help="seconds (default: until Ctrl-C)")
    made.add_argument(
        "--history", type=_count, default=0, metavar="S", help="start this many seconds in the past"
    )
    made.add_argument("--model", default="H100-SXM-80GB", help="GPU model (default H100-SXM-80GB)")
    made.add_argument("--seed", type=int, default=1, help="same seed, same fleet (default 1)")
    made.add_argument("--script", type=Path, metavar="FILE", help="faults to show, as TOML")
    made.add_argument("--collector-url", metavar="URL", help="default GPUWARDEN_URL")
    made.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="keep spools here (default: in memory)"
    )


def _add_sql(commands: "Commands[CommandParser]") -> None:
    made = _command(
        commands, "sql", sql.sql, "query the fleet in SQL (DuckDB, read only)",
        "Main tables: gpu_samples, host_samples, process_samples, events, nodes, gpus,"
        " alerts, incidents; views gpus_now, nodes_now, alerts_now. SHOW TABLES lists all.",
    )  # fmt: skip
    sql.add_flags(made)
    _add_url(made)


def _add_ask(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import ask

    made = _command(
        commands, "ask", ask.run, "ask a question of the cookbook, or list its questions"
    )  # fmt: skip
    ask.add_flags(made)
    _add_url(made)


def _add_schema(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import schema

    made = _command(
        commands, "schema", schema.schema, "show tables and views, or the columns of one",
        "With the meaning, unit and source of each column, as duckdb_columns() has them, too.",
    )  # fmt: skip
    schema.add_flags(made)
    _add_url(made)


def _add_alerts(commands: "Commands[CommandParser]") -> None:
    group = _group(commands, "alerts", "list, silence and acknowledge alerts")
    made = _command(
        group, "list", alerts.alerts_list, "list alerts: critical ones first, then by consequence"
    )
    made.add_argument(
        "--state",
        choices=alerts.ALERT_STATES,
        default="active",
        help="default active: firing, pending",
    )
    made.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 if an alert fires, or rules have not run yet",
    )
    _add_filters(made)
    _add_format(made)
    _add_url(made)
    made = _command(
        group, "silence", alerts.silence, "mute notifications of matching alerts for a time",
        "Matchers are label=value, !=, =~ and !~ (regular expressions), also of rule and severity;"
        " all must match.",
    )  # fmt: skip
    made.add_argument("matchers", nargs="+", metavar="MATCHER", help="such as node=n1")
    _add_silence(made, "2h")
    made = _command(group, "ack", alerts.acknowledge, "mute notifications of one alert for a time")
    made.add_argument(
        "alert", metavar="ALERT", help="its fingerprint, or its rule if only one alert is active"
    )
    _add_silence(made, "4h")
    made = _command(group, "unsilence", alerts.unsilence, "end a silence or an acknowledgement")
    made.add_argument("id", metavar="ID", help="as `gpuwarden alerts silences` shows it")
    _add_url(made)
    made = _command(group, "silences", alerts.silences, "list current and future silences")
    _add_format(made)
    _add_url(made)


def _add_nodes(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import inventory, nodes

    group = _group(commands, "nodes", "list and show nodes, and forget those that have left")
    made = _command(
        group, "list", nodes.nodes_list, "list nodes: who reports, what they cost, until when they are billed"
    )  # fmt: skip
    inventory.filters(made, "node", "model")
    made.add_argument("--state", choices=nodes.NODE_STATES, help="in this state")
    _add_url(made)
    _add_show(group, nodes.nodes_show, "node", "show a node: its GPUs, host, alerts and hours")
    made = _command(
        group, "forget", nodes.nodes_forget, "take nodes as ones that have left",
        "They are billed until they were last heard of, and their alerts end. One that sends data again is back.",
    )  # fmt: skip
    made.add_argument("nodes", nargs="+", metavar="NODE", help="name of a node that is silent")
    _add_url(made)


def _add_inventory(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import inventory

    group = _group(commands, "gpus", "list and show GPUs")
    made = _command(
        group, "list", inventory.gpus_list, "list GPUs: state, load and holder of each now"
    )
    inventory.filters(made, "node", "model", "user", "job")
    made.add_argument("--state", choices=inventory.GPU_STATES, help="in this state")
    _add_url(made)
    text = "show a GPU: inventory, holders, alerts, hours and link errors"
    _add_show(group, inventory.gpus_show, "gpu", text)
    for name, listed, shown, others in (
        ("job", inventory.jobs_list, inventory.jobs_show, ("node", "model", "user")),
        ("user", inventory.users_list, inventory.users_show, ("node", "model", "job")),
    ):
        group = _group(commands, f"{name}s", f"list and show {name}s")
        made = _command(
            group, "list", listed, f"list {name}s: GPUs now, hours and dollars of a time"
        )
        inventory.filters(made, *others)
        made.add_argument(
            "--state", choices=inventory.OVER_STATES, default="running", help="default running"
        )
        made.add_argument(
            "--since", default="1d", metavar="TIME", help="period until now (default 1d)"
        )
        _add_url(made)
        _add_show(group, shown, name, f"show a {name}: GPUs, alerts and hours")


def _add_show(
    group: "Commands[CommandParser]",
    run: Callable[[argparse.Namespace], int],
    what: str,
    text: str,
) -> None:
    made = _command(group, "show", run, text)
    named = {"gpu": "NODE/INDEX, or its UUID or the beginning of it"}.get(what, "its name")
    made.add_argument(what, metavar=what.upper(), help=named)
    made.add_argument("--since", default="1d", metavar="TIME", help="period until now (default 1d)")
    made.add_argument("--format", choices=("table", "json"), default="table", help="default table")
    _add_url(made)


def _add_incidents(commands: "Commands[CommandParser]") -> None:
    group = _group(
        commands, "incidents", "list, show and acknowledge incidents: alerts of one cause"
    )
    made = _command(group, "list", incidents.incidents_list, "list incidents, the gravest first")
    made.add_argument(
        "--state", choices=incidents.INCIDENT_STATES, default="open", help="default open"
    )
    made.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 if an incident is open, or rules have not run yet",
    )
    _add_filters(made)
    _add_format(made)
    _add_url(made)
    for name, run, text in (
        ("show", incidents.incidents_show, "show an incident with all its alerts"),
        ("ack", incidents.incidents_ack, "mute notifications of an incident's roots for a time"),
    ):
        made = _command(group, name, run, text)
        made.add_argument("id", metavar="ID", help="as `gpuwarden incidents list` shows it")
        if name == "show":
            made.add_argument(
                "--format", choices=("table", "json"), default="table", help="default table"
            )
            _add_url(made)
        else:
            _add_silence(made, "4h")


def _add_filters(made: argparse.ArgumentParser) -> None:
    for name, text in (
        ("node", "of this node; * and ? are wildcards"),
        ("gpu", "of this GPU: its index, or the beginning of its UUID"),
        ("user", "that concern this user"),
        ("job", "of this job"),
        ("rule", "of this rule; * and ? are wildcards"),
    ):
        made.add_argument(f"--{name}", metavar=name.upper(), help=text)
    made.add_argument(
        "--severity", choices=("info", "warning", "critical"), help="of this severity"
    )


def _add_silence(made: argparse.ArgumentParser, span: str) -> None:
    until = made.add_mutually_exclusive_group()
    until.add_argument(
        "--for", dest="span", default=span, metavar="TIME", help=f"30m, 2h, 1d (default {span})"
    )
    until.add_argument("--until", metavar="INSTANT", help="ISO 8601; UTC without a zone")
    made.add_argument("--comment", default="", metavar="TEXT", help="the reason")
    made.add_argument("--author", metavar="NAME", help="default: you")
    _add_url(made)


def _add_rules(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import rules

    group = _group(commands, "rules", "list, check, test, explain and backtest rules")
    for name, run, text in (
        ("list", rules.rules_list, "list the rules with their state and statistics"),
        ("check", rules.rules_check, "check rule files without running them"),
        ("test", rules.rules_test, "run the test cases in *.test.yaml files"),
    ):
        made = _command(group, name, run, text)
        made.add_argument(
            "files", nargs="*", type=Path, metavar="FILE", help="default: the built-in pack"
        )
        _add_format(made)
        if name != "test":
            _add_url(made)
    made = _command(
        group, "explain", rules.rules_explain, "show why an alert fires, with its history"
    )
    made.add_argument(
        "alert", metavar="ALERT", help="its fingerprint, or its rule if only one alert is active"
    )
    made.add_argument("--format", choices=("table", "json"), default="table", help="default table")
    _add_url(made)
    made = _command(
        group, "backtest", rules.rules_backtest, "show when rules would have fired on stored data"
    )
    made.add_argument("names", nargs="*", metavar="RULE", help="default: all")
    made.add_argument(
        "--rule", action="append", type=Path, metavar="FILE",
        help="use the rules of this file or folder instead of the collector's",
    )  # fmt: skip
    made.add_argument(
        "--config", type=Path, metavar="FILE",
        help="TOML file of the collector, for its own rules and overrides",
    )  # fmt: skip
    made.add_argument("--since", default="7d", metavar="TIME", help="period until now (default 7d)")
    made.add_argument(
        "--every", metavar="TIME",
        help="longest time between two evaluations (default 5m, or the rule's shortest window)",
    )  # fmt: skip
    made.add_argument(
        "--format", choices=("table", "json"), default="table",
        help="table, or json: a line for each time it would have fired (default table)",
    )  # fmt: skip
    _add_url(made)
    made = _command(group, "reload", rules.rules_reload, "make the collector reload its rules")
    _add_url(made)


def _add_why(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import why

    made = _command(
        commands, "why", why.why, "show why a GPU, job or node is slow, and what to change",
        "Uses the last two minutes before now, or before --at. Exits with 0 if healthy.",
    )  # fmt: skip
    why.add_flags(made)
    _add_url(made)


def _add_top(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.commands.top import run_top

        return run_top(args)

    made = _command(
        commands, "top", run, "watch nodes, GPUs, processes, jobs and alerts live in the terminal",
        "Press ? for its keys, q to end it. On a terminal it needs the extra `top` (pip install 'gpuwarden[top]'); on"
        " one that cannot place a cursor, and into a pipe, it prints one screen after another.",
    )  # fmt: skip
    made.add_argument("node", nargs="?", metavar="NODE", help="begin with the GPUs of this node")
    made.add_argument(
        "--local", action="store_true", help="read this host's own GPUs, without a collector"
    )
    made.add_argument("--backend", help="with --local: auto, nvml, simulator or replay (default auto)")  # fmt: skip
    made.add_argument("--every", default="2s", metavar="TIME", help="between refreshes (default 2s)")  # fmt: skip
    made.add_argument("--once", action="store_true", help="print one screen and end")
    _add_url(made)


def _add_mcp(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.commands.mcp import run_mcp

        return run_mcp(args)

    made = _command(
        commands, "mcp", run, "answer an assistant's questions by the Model Context Protocol, on stdio",
        "An assistant starts it; its tools only read. The token comes from the environment. It needs the extra `mcp`"
        " (pip install 'gpuwarden[mcp]').",
    )  # fmt: skip
    _add_url(made)


def _add_report(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import report

    group = _group(commands, "report", "report waste, efficiency, energy, and what a job used")
    for name, run, text in (
        ("waste", report.waste, "GPU hours by use, and what was wasted"),
        (
            "efficiency",
            report.efficiency,
            "how busy the GPUs were, and the cost of a productive hour",
        ),
        ("energy", report.energy, "energy, what it cost, and its carbon dioxide"),
    ):
        made = _command(group, name, run, text)
        report.add_flags(made)
        _add_format(made)
        _add_url(made)
    text = "what a job used of CPUs, memory and GPUs on each node, and what to change"
    made = _command(group, "job", report.job, text)
    made.add_argument("job", metavar="JOB", help="a Slurm job id, or a pod as namespace/name")
    made.add_argument("--format", choices=("table", "json"), default="table", help="default table")
    _add_url(made)


def _add_slurm(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import slurm

    group = _group(commands, "slurm", "tie a Slurm node to gpuwarden, and summarize ended jobs")
    slurm.add_commands(group, _command, _add_format)


def _add_notify(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import notify

    group = _group(commands, "notify", "check and test notifications")
    made = _command(group, "check", notify.notify_check, "check a file of receivers and routes")
    made.add_argument("file", type=Path, metavar="FILE", help="the file of receivers and routes")
    _add_format(made)
    made = _command(
        group, "test", notify.notify_test, "send a test message and show each receiver's answer",
        "Exits with 1 if one failed.",
    )  # fmt: skip
    made.add_argument("--file", type=Path, metavar="FILE", help="default: the collector's own")
    made.add_argument("--config", type=Path, metavar="FILE", help="TOML file of the collector")
    made.add_argument(
        "--receiver", action="append", metavar="NAME", help="only this one (default: all)"
    )
    _add_format(made)


def _add_token(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import tokens

    group = _group(
        commands, "token", "create, list and revoke tokens of the collector on this host"
    )
    tokens.add_commands(group, _command, _add_format)


def _add_enroll(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.commands.enroll import run

        return run(args)

    made = _command(
        commands, "enroll", run, "enrol this node with a collector",
        "`gpuwarden token enrolment` on the collector's host prints the line to run. The one-time token comes"
        " from GPUWARDEN_TOKEN, or --token-file.",
    )  # fmt: skip
    made.add_argument("--collector", required=True, metavar="URL", help="the collector's address")
    made.add_argument("--ca-fingerprint", metavar="sha256:HEX", help="of its own authority, if any")
    made.add_argument(
        "--token-file", type=Path, metavar="FILE", help="the one-time token; - for stdin"
    )
    made.add_argument("--token", help="the same, where others may see it in the process list")
    made.add_argument(
        "--node", metavar="NAME", help="default: as agent.toml says, or the host's name"
    )
    made.add_argument(
        "--config", type=Path, default=Path("/etc/gpuwarden/agent.toml"), metavar="FILE",
        help="settings of the agent (default /etc/gpuwarden/agent.toml)",
    )  # fmt: skip
    made.add_argument(
        "--user", default="gpuwarden", help="whom the files belong to (default gpuwarden)"
    )
    made.add_argument("--allow-insecure", action="store_true", help="also without TLS")


def _add_verify(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.commands.verify import run

        return run(args)

    made = _command(
        commands, "verify", run, "check files of a release before they are installed",
        "SHA256SUMS.minisig must be by a key that was here before.",
    )  # fmt: skip
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="as it was fetched")
    made.add_argument(
        "--sums", type=Path, metavar="FILE", help="default: SHA256SUMS beside the first file"
    )
    made.add_argument(
        "--key", default="/etc/gpuwarden/release.pub", metavar="FILE|KEY",
        help="minisign's public key (default /etc/gpuwarden/release.pub)",
    )  # fmt: skip


def _add_doctor(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.commands.doctor import run_here

        return run_here(args)

    made = _command(
        commands, "doctor", run, "find problems of this installation, and how to fix them",
        "Runs `agent doctor` and `collector doctor`, for the parts with settings in /etc/gpuwarden. Exits with 1 when"
        " a check fails.",
    )  # fmt: skip
    _add_format(made)


def _add_open(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import open as open_command

    made = _command(
        commands, "open", open_command.run, "open a page of the collector in the browser",
        "Prints its address where there is no browser, as over SSH.",
    )  # fmt: skip
    open_command.add_flags(made)
    _add_url(made)


def _add_completion(commands: "Commands[CommandParser]") -> None:
    from gpuwarden_cli.commands import completion

    made = _command(
        commands, "completion", None, "print the completion script of a shell",
        "It completes commands, flags, choices, tables and questions without starting anything, and"
        " names of nodes and GPUs by asking the collector.",
    )  # fmt: skip
    completion.add_flags(made, parser)


def _add_import(commands: "Commands[CommandParser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.commands.import_logs import run

        return run(args)

    made = _command(
        commands, "import", run, "import logs of other tools",
        "Reads what nvidia-smi (CSV and XML), rocm-smi (JSON), dcgm-exporter, dmesg and journalctl wrote,"
        " and CSV or Parquet with the tables' column names. What was imported before is not stored twice.",
    )  # fmt: skip
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file, folder, or - for standard input")  # fmt: skip
    made.add_argument("--node", metavar="NAME", help="node that the files are from (default: as they say)")  # fmt: skip
    made.add_argument("--timezone", default="UTC", metavar="ZONE", help="of timestamps without one, as Europe/Berlin (default UTC)")  # fmt: skip
    made.add_argument("--at", metavar="TIME", help="time of what has none (default: when the file was written)")  # fmt: skip
    made.add_argument("--fields", metavar="NAMES", help="columns of an nvidia-smi CSV without header, as in --query-gpu")  # fmt: skip
    made.add_argument("--table", metavar="NAME", help="table of a CSV or Parquet that may be of several")  # fmt: skip
    order = made.add_mutually_exclusive_group()
    order.add_argument("--day-first", dest="day_first", action="store_const", const=True, help="03/04/2026 is 3 April")  # fmt: skip
    order.add_argument("--month-first", dest="day_first", action="store_const", const=False, help="03/04/2026 is March 4")  # fmt: skip
    made.add_argument("--dry-run", action="store_true", help="show what would be stored, without sending it")  # fmt: skip
    made.add_argument("--verbose", action="store_true", help="list all fields without a column")
    _add_url(made)
