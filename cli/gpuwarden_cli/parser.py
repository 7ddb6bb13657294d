"""Builds the parsers of commands: an error is one line, and each help ends with an example that can be typed."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeAlias

from gpuwarden_cli.output import FORMATS

Run = Callable[[argparse.Namespace], int]
Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
PROGRAM = "gpuwarden"
EXAMPLES: dict[str, str] = {
    "up": "gpuwarden up --simulate 8",
    "agent run": "gpuwarden agent run --config /etc/gpuwarden/agent.toml",
    "agent once": "gpuwarden agent once --format json",
    "agent doctor": "gpuwarden agent doctor",
    "agent config": "gpuwarden agent config --config /etc/gpuwarden/agent.toml",
    "agent record": "gpuwarden agent record --output n1.jsonl.gz --duration 600",
    "agent burst": "gpuwarden agent burst 3 --hz 20 --seconds 30",
    "agent test-gpus": "gpuwarden agent test-gpus --python /opt/pytorch/bin/python --dcgm 3",
    "collector run": "gpuwarden collector run --config /etc/gpuwarden/collector.toml",
    "collector init": "gpuwarden collector init --name collector.example",
    "collector config": "gpuwarden collector config --format json",
    "collector doctor": "gpuwarden collector doctor",
    "collector check": "gpuwarden collector check --data-dir /var/lib/gpuwarden --read",
    "collector backup": "gpuwarden collector backup /backup/gpuwarden-monday",
    "collector restore": "gpuwarden collector restore /backup/gpuwarden-monday --data-dir /var/lib/gpuwarden",
    "collector maintain": "gpuwarden collector maintain",
    "agent refused": "gpuwarden agent refused --resend",
    "collector recover": "gpuwarden collector recover 5f0c3c52-3a58-4d3c-9e2f-52f4a1b3c7d1",
    "simulate": "gpuwarden simulate --nodes 10 --gpus-per-node 8 --duration 600",
    "sql": 'gpuwarden sql "SELECT node, gpu, util_percent FROM gpus_now" --format csv',
    "ask": "gpuwarden ask idle-holders --since 1d --param top=5",
    "incidents list": "gpuwarden incidents list --severity critical",
    "incidents show": "gpuwarden incidents show 3f9k2m",
    "incidents ack": 'gpuwarden incidents ack 3f9k2m --for 4h --comment "board ordered"',
    "alerts list": "gpuwarden alerts list --owner ada --state all",
    "alerts silence": 'gpuwarden alerts silence node=n1 --for 2h --comment "new cables"',
    "alerts ack": "gpuwarden alerts ack nvlink_down --for 1d",
    "alerts unsilence": "gpuwarden alerts unsilence 3f9k2m",
    "nodes forget": "gpuwarden nodes forget n1 n2",
    "actor run": "gpuwarden actor run --allow cancel_job --url https://collector.example:8750",
    "policies stop": "gpuwarden policies stop",
    "policies start": "gpuwarden policies start",
    "policies check": "gpuwarden policies check /etc/gpuwarden/policies",
    "policies test": "gpuwarden policies test /etc/gpuwarden/policies",
    "policies backtest": "gpuwarden policies backtest /etc/gpuwarden/policies --since 30d",
    "rules list": "gpuwarden rules list",
    "rules check": "gpuwarden rules check /etc/gpuwarden/rules/ours.yaml",
    "rules test": "gpuwarden rules test /etc/gpuwarden/rules",
    "rules new": "gpuwarden rules new gpu_memory_hot /etc/gpuwarden/rules",
    "rules sql": "gpuwarden rules sql gpu_memory_hot /etc/gpuwarden/rules",
    "rules backtest": "gpuwarden rules backtest gpu_idle_held --since 7d",
    "rules export-prometheus": "gpuwarden rules export-prometheus /etc/prometheus/rules/gpuwarden.yml",
    "why": "gpuwarden why n1/0",
    "accept": "gpuwarden accept n1",
    "rma": "gpuwarden rma n1/0 --archive n1-gpu0.tar.gz --attach nvidia-bug-report.log.gz",
    "report money": "gpuwarden report money --month --html report.html",
    "report right-size": "gpuwarden report right-size --by username --since 30d",
    "report job": "gpuwarden report job 4711",
    "slurm summarize": "gpuwarden slurm summarize --every 30",
    "slurm install": "gpuwarden slurm install --dry-run",
    "top": "gpuwarden top n1 --every 5s",
    "mcp": "gpuwarden mcp --url https://collector.example:8750",
    "grafana export": "gpuwarden grafana export /etc/grafana/provisioning --url https://collector.example:8750",
    "import": "gpuwarden import /var/log/nvidia-smi/*.csv --node n1",
    "notify check": "gpuwarden notify check /etc/gpuwarden/notify.yaml",
    "notify test": "gpuwarden notify test --receiver oncall",
    "token create": "gpuwarden token create --scope read --comment grafana",
    "token list": "gpuwarden token list",
    "token revoke": "gpuwarden token revoke 3f9k2m0c7x1q",
    "token rotate": "gpuwarden token rotate 3f9k2m0c7x1q --grace 1d",
    "token enrolment": "gpuwarden token enrolment --uses 40",
    "enroll": "gpuwarden enroll --collector https://collector.example:8750 --token-file token",
    "doctor": "gpuwarden doctor",
}
"""The example at the end of each command's help, by the words of the command."""


class CommandParser(argparse.ArgumentParser):
    """Reports a wrong call in one line that names the help."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}; see `{self.prog} --help`", file=sys.stderr)
        sys.exit(2)


class CommandHelp(argparse.HelpFormatter):
    """Fills paragraphs, but leaves the example as it is: a line to copy."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("example:"):
            return text
        return super()._fill_text(text, width, indent)


def add_command(
    commands: Commands, name: str, run: Run, text: str, more: str = ""
) -> CommandParser:
    """Add a command that `run` runs; `text` is its line in the list, `more` what its own help adds."""
    parser = _add(commands, name, text, more)
    parser.set_defaults(run=run)
    if example := EXAMPLES.get(parser.prog.removeprefix(f"{PROGRAM} ")):
        parser.epilog = f"example:\n  {example}"
    return parser


def add_group(commands: Commands, name: str, text: str) -> Commands:
    """Add a command that has subcommands."""
    parser = _add(commands, name, text)
    return parser.add_subparsers(metavar="COMMAND", required=True, title="commands")


def _add(commands: Commands, name: str, text: str, more: str = "") -> CommandParser:
    description = f"{text[:1].upper()}{text[1:]}. {more}"
    return commands.add_parser(
        name, help=text, description=description, formatter_class=CommandHelp
    )


def add_format(parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS) -> None:
    """Add --format."""
    parser.add_argument("--format", choices=formats, default="table", help="default table")


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add --url, the collector to ask."""
    parser.add_argument("--url", help="the collector (default GPUWARDEN_URL, else this machine's)")


def add_since(parser: argparse.ArgumentParser, default: str) -> None:
    """Add --since, the length of a period until now."""
    parser.add_argument(
        "--since", default=default, metavar="TIME", help=f"period until now (default {default})"
    )


def count(text: str) -> int:
    """A number from 0 to 100,000, for a flag."""
    value = int(text)
    if not 0 <= value <= 100_000:
        raise argparse.ArgumentTypeError(f"{text} must be between 0 and 100000")
    return value


def port_number(text: str) -> int:
    """A TCP port, for a flag."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port number")
    return value
