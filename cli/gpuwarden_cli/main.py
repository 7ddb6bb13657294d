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
from gpuwarden.life import StartError
from gpuwarden.settings import SettingsError
from gpuwarden_cli import ask
from gpuwarden_cli.client import CallError, collector_url
from gpuwarden_cli.output import FORMATS

EPILOG = """\
environment:
  GPUWARDEN_URL    the collector that questions go to (default http://127.0.0.1:8750)

Exit codes: 0 success, 1 the answer is no, 2 the call was wrong.
"""


class Parser(argparse.ArgumentParser):
    """Says what was wrong in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see `{self.prog} --help`", file=sys.stderr)
        sys.exit(2)


Commands = argparse._SubParsersAction


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the result is the exit code."""
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:
        return _fail(_missing_part(error))
    except BaseExceptionGroup as group:
        return _fail(_only_line(group))
    except (StartError, SettingsError, CallError, ValueError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does: not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _fail(line: str) -> int:
    print(f"gpuwarden: {line}", file=sys.stderr)
    return 2


def _missing_part(error: ModuleNotFoundError) -> str:
    """A missing package means a missing extra; anything of our own is a bug."""
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


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
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
    _add_alerts(commands)
    _add_rules(commands)
    return top


def _command(
    commands: "Commands[Parser]",
    name: str,
    run: Callable[[argparse.Namespace], int] | None,
    text: str,
    more: str = "",
) -> Parser:
    made = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}. {more}")
    if run:
        made.set_defaults(run=run)
    return made


def _group(commands: "Commands[Parser]", name: str, text: str) -> "Commands[Parser]":
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


def _add_up(commands: "Commands[Parser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.up import default_data_dir, run_up

        data = args.data or default_data_dir()
        return run_up(port=args.port, data=data, simulate=args.simulate, model_name=args.model)

    made = _command(
        commands, "up", run, "collector, rules, page and this host's agent in one process",
        "Where this host has no GPU, simulated ones are added on nodes of their own.",
    )  # fmt: skip
    made.add_argument("--port", type=_port, default=8750, help="port of the page (default 8750)")
    made.add_argument(
        "--data", type=Path, metavar="DIR", help="where samples are kept (default"
        " ~/.local/share/gpuwarden)",
    )  # fmt: skip
    made.add_argument(
        "--simulate", type=_count, metavar="GPUS",
        help="simulate so many GPUs (default: 8 where this host has none; 0: none)",
    )  # fmt: skip
    made.add_argument("--model", default="H100-SXM-80GB", help="GPU model to simulate")


def _add_agent(commands: "Commands[Parser]") -> None:
    from gpuwarden_cli import agent

    group = _group(commands, "agent", "the agent of a GPU host: run it, read once, show settings")
    agent.add_commands(group, _command, _add_format)


def _add_collector(commands: "Commands[Parser]") -> None:
    from gpuwarden_cli import collector

    group = _group(commands, "collector", "the collector: run it, show settings")
    collector.add_commands(group, _command, _add_format)


def _add_simulate(commands: "Commands[Parser]") -> None:
    def run(args: argparse.Namespace) -> int:
        from gpuwarden_cli.services import run_simulation

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
        commands, "simulate", run, "a fleet of simulated nodes that ships to a collector",
        "The nodes are real agents with simulated GPUs, over the real wire.",
    )  # fmt: skip
    made.add_argument("--nodes", type=_count, required=True, help="how many nodes")
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--gpus-per-node", type=_count, default=0, help="GPUs of each node")
    what.add_argument("--replay", type=Path, metavar="FILE", help="each node plays this recording")
    made.add_argument("--duration", type=float, metavar="S", help="seconds (default: until Ctrl-C)")
    made.add_argument("--history", type=_count, default=0, metavar="S", help="start so far back")
    made.add_argument("--model", default="H100-SXM-80GB", help="GPU model (default H100-SXM-80GB)")
    made.add_argument("--seed", type=int, default=1, help="same seed, same fleet (default 1)")
    made.add_argument("--script", type=Path, metavar="FILE", help="faults to show, as TOML")
    made.add_argument("--collector-url", metavar="URL", help="default GPUWARDEN_URL")
    made.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="keep spools here (default: in memory)"
    )


def _add_sql(commands: "Commands[Parser]") -> None:
    made = _command(
        commands, "sql", ask.sql, "ask the fleet in SQL (DuckDB's dialect, read only)",
        "First to know: tables gpu_samples, host_samples, process_samples, events, nodes, gpus,"
        " alerts; views gpus_now, nodes_now, alerts_now. SHOW TABLES lists all.",
    )  # fmt: skip
    made.add_argument("query", metavar="QUERY", help="one SELECT; - reads it from standard input")
    _add_format(made)
    _add_url(made)


def _add_alerts(commands: "Commands[Parser]") -> None:
    group = _group(commands, "alerts", "alerts: what is wrong, since when, what it costs")
    made = _command(group, "list", ask.alerts_list, "alerts, the costliest of each severity first")
    made.add_argument(
        "--state",
        choices=ask.ALERT_STATES,
        default="active",
        help="default active: firing, pending",
    )
    made.add_argument("--exit-code", action="store_true", help="exit with 1 when one is firing")
    _add_format(made)
    _add_url(made)


def _add_rules(commands: "Commands[Parser]") -> None:
    from gpuwarden_cli import rules

    group = _group(commands, "rules", "rules: list, check and test them")
    for name, run, text in (
        ("list", rules.rules_list, "the rules that would run"),
        ("check", rules.rules_check, "whether rule files are right, without running them"),
        ("test", rules.rules_test, "run the cases of *.test.yaml files"),
    ):
        made = _command(group, name, run, text)
        made.add_argument(
            "files", nargs="*", type=Path, metavar="FILE", help="default: the built-in pack"
        )
        _add_format(made)
