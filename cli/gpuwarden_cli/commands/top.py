"""Shows the fleet, or this host, live in a terminal: `gpuwarden top`."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.durations import seconds_of
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import load
from gpuwarden_cli.parser import Commands, add_command, add_url
from gpuwarden_cli.top.theme import THEMES

if TYPE_CHECKING:
    from gpuwarden_cli.top.request import RowSource

MISSING = (
    "gpuwarden top on a terminal needs the Python package 'textual', which is not installed: pip install"
    " 'gpuwarden[top]' (or --once, which prints one screen)"
)
THEME_VARIABLE = "GPUWARDEN_TOP_THEME"
PIPE_SIZE = (120, 60)
EVERY_S_LEAST = 0.5


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "top", run_top, "watch nodes, GPUs, processes, jobs and alerts live in the terminal",
        "Press ? for its keys, q to end it. On a terminal it needs the extra `top` (pip install 'gpuwarden[top]'); on"
        " one that cannot place a cursor, and into a pipe, it prints one screen after another.",
    )  # fmt: skip
    parser.add_argument("node", nargs="?", metavar="NODE", help="begin with the GPUs of this node")
    parser.add_argument(
        "--local", action="store_true", help="read this host's own GPUs, without a collector"
    )
    parser.add_argument("--backend", help="with --local: auto, nvml, simulator or replay (default auto)")  # fmt: skip
    parser.add_argument("--every", default="2s", metavar="TIME", help="between refreshes (default 2s)")  # fmt: skip
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one screen and end; exits with 1 without an answer",
    )
    parser.add_argument(
        "--json", action="store_true", help="with --once: all rows as one JSON document"
    )
    parser.add_argument(
        "--theme", choices=tuple(THEMES),
        help=f"colours (default {THEME_VARIABLE}, else terminal; mono where NO_COLOR is set)",
    )  # fmt: skip
    add_url(parser)


def run_top(args: argparse.Namespace) -> int:
    """Run until the user quits. Raises StartError, ValueError, CallError."""
    from gpuwarden_cli.top.model import State, TopPage
    from gpuwarden_cli.top.plain import print_screens
    from gpuwarden_cli.top.request import TopView

    every_s = seconds_of(args.every)
    if not every_s or every_s < EVERY_S_LEAST:
        raise ValueError(f"--every {args.every} is not a duration of at least 500ms; write 2s")
    if args.backend and not args.local:
        raise ValueError("--backend chooses what --local reads: give both, or neither")
    if args.json and not args.once:
        raise ValueError("--json needs --once: it is one document, not a live view")
    theme = theme_of(args.theme, os.environ)
    is_plain = args.once or not _is_terminal()
    if not is_plain and find_spec("textual") is None:
        raise StartError(MISSING)
    # Log lines would overwrite the screen.
    logs.setup("critical")
    source = _local(args) if args.local else _collector(args.url)
    if args.json:
        return _print_document(source, args.node)
    page = TopPage(TopView.GPUS if args.local or args.node else TopView.NODES, node=args.node)
    width, height = get_terminal_size(PIPE_SIZE)
    state = State(
        source.name, width=width, height=height, every_s=every_s, page=page, theme=theme,
        address=None if args.local else source.name,
    )  # fmt: skip
    if args.local and not is_plain:
        # Of one host the graphs come first; escape leads to the list of its GPUs.
        state = replace(state, page=TopPage(TopView.GPUS, graphs=source.node), back=(page,))
    if is_plain:
        return asyncio.run(print_screens(source, state, SystemClock(), is_once=args.once))
    from gpuwarden_cli.top.app import TopApp

    app = TopApp(source, state, SystemClock())
    app.run()
    return app.return_code or 0


def theme_of(chosen: str | None, environment: Mapping[str, str]) -> str:
    """The theme of the flag, else of the environment; NO_COLOR is stronger. Raises ValueError."""
    if environment.get("NO_COLOR"):
        return "mono"
    theme = chosen or environment.get(THEME_VARIABLE) or "terminal"
    if theme not in THEMES:
        raise ValueError(f"{THEME_VARIABLE} = {theme} is not a theme: {', '.join(THEMES)}")
    return theme


def _print_document(source: "RowSource", node: str | None) -> int:
    from gpuwarden_cli.top.document import document_of, document_text
    from gpuwarden_cli.top.request import SourceError

    try:
        document = asyncio.run(document_of(source, node, SystemClock()))
    except SourceError as error:
        print(f"gpuwarden: {error}", file=sys.stderr)
        return 1
    print(document_text(document), end="")
    return 0


def _is_terminal() -> bool:
    """Whether the terminal can place a cursor. Textual writes to standard error."""
    names_none = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    return sys.stdout.isatty() and sys.stderr.isatty() and not names_none


def _collector(url: str | None) -> "RowSource":
    from gpuwarden_cli.top.collector import CollectorSource

    return CollectorSource(url)


def _local(args: argparse.Namespace) -> "RowSource":
    """The probes of this host, by the agent's settings."""
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_cli.composition.agent import sources_beside
    from gpuwarden_cli.top.local import LocalSource

    settings = load(AgentSettings, "agent").settings
    if args.backend:
        settings = replace(settings, backend=args.backend)
    sources = sources_beside(settings)
    name = f"{settings.node_name} (this host): {sources.message}"
    return LocalSource(sources.probes, settings.node_name, name, SystemClock())
