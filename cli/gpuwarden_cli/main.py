"""Runs the `gpuwarden` command: parses the command line, and turns errors into one line.

A command imports the parts that it needs when it runs. So a GPU host with the extra `agent` alone can run `gpuwarden
agent`, and `gpuwarden sql` starts fast.
"""

import argparse
import os
import sys

from gpuwarden import __version__
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import SettingsError
from gpuwarden_cli.commands import (
    accept,
    actor,
    agent,
    alerts,
    ask,
    collector,
    doctor,
    enroll,
    grafana,
    import_logs,
    incidents,
    mcp,
    nodes,
    notify,
    policies,
    report,
    rma,
    rules,
    simulate,
    slurm,
    sql,
    tokens,
    top,
    up,
    why,
)
from gpuwarden_cli.host_authorities import use_host_authorities
from gpuwarden_cli.parser import PROGRAM, CommandParser
from gpuwarden_client.http import CallError

EPILOG = """\
environment:
  GPUWARDEN_URL         the collector to ask (default http://127.0.0.1:8750)
  GPUWARDEN_TOKEN       the token for it, or GPUWARDEN_TOKEN_FILE: a file with the token
  GPUWARDEN_CA          PEM file of the only CA to trust (default: the system's)

Exit codes: 0 success, 1 a problem was found, 2 the call was wrong, 78 a setting is wrong.
"""

COMMANDS = (
    up,
    agent,
    actor,
    collector,
    simulate,
    sql,
    ask,
    incidents,
    alerts,
    nodes,
    rules,
    policies,
    why,
    accept,
    rma,
    report,
    slurm,
    top,
    mcp,
    grafana,
    import_logs,
    notify,
    tokens,
    enroll,
    doctor,
)
"""In the order of `--help`."""


def main(argv: list[str] | None = None) -> int:
    """Run a command line; the exit code."""
    args = parser().parse_args(argv)
    # Files hold names, command lines and tokens, so other users must not read them.
    os.umask(os.umask(0o077) | 0o027)
    use_host_authorities()
    try:
        return int(args.run(args))
    except ModuleNotFoundError as error:
        return _fail(_missing_part(error))
    except BaseExceptionGroup as group:
        return _fail(_only_line(group))
    except SettingsError as error:
        return _fail(str(error), os.EX_CONFIG)  # systemd does not restart a unit that ends with it
    except (StartError, CallError, ValueError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does; that is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _fail(line: str, code: int = 2) -> int:
    print(f"gpuwarden: {line}", file=sys.stderr)
    return code


def _missing_part(error: ModuleNotFoundError) -> str:
    """The line for a missing package: an extra is not installed. A missing module of our own is a bug."""
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
    """The first message of a group of StartError and SettingsError; raises the group if it has others."""
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
        prog=PROGRAM,
        description="Every GPU sample in SQL, and a plain sentence for what is wrong and what it"
        " costs. Start with `gpuwarden up`.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for module in COMMANDS:
        module.add_commands(commands)
    return top
