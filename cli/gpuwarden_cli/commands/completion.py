"""Prints completion scripts for shells, and the names that they complete: `gpuwarden completion`."""

import argparse
from collections.abc import Callable
from contextlib import suppress

from gpuwarden_client.http import CallError, ask

SHELLS = ("bash", "zsh", "fish")
NAMES_MAX = 20_000
_NAMES = f"""
SELECT node FROM nodes WHERE forgotten_at IS NULL
UNION ALL SELECT format('{{}}/{{}}', node, gpu) FROM gpus WHERE replaced_by IS NULL AND gpu IS NOT NULL
LIMIT {NAMES_MAX}
"""
TIMEOUT_S = 2.0
"""Who waits for completion for longer takes it for broken."""


def add_flags(made: argparse.ArgumentParser, top: Callable[[], argparse.ArgumentParser]) -> None:
    """Those of `gpuwarden completion`; `top`: makes the whole command line."""
    made.add_argument(
        "shell",
        choices=(*SHELLS, "names"),
        help="a shell; names: those of nodes and GPUs, as the scripts ask",
    )
    made.set_defaults(run=lambda args: run(args, top))


def run(args: argparse.Namespace, top: Callable[[], argparse.ArgumentParser]) -> int:
    """Print the script, or names; no names where no collector answers."""
    if args.shell != "names":
        from gpuwarden_cli.completion import (
            script,  # with the catalogue, which other commands do not need
        )

        print(script(args.shell, top()), end="")
        return 0
    with suppress(CallError):
        for (name,) in ask(_NAMES, timeout_s=TIMEOUT_S).rows:
            if name.isprintable() and " " not in name:
                print(name)
    return 0
