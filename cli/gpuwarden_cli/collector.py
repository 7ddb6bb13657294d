"""`gpuwarden collector run|config`."""

import argparse
from collections.abc import Callable
from typing import Any


def add_commands(
    group: Any,
    command: Callable[..., argparse.ArgumentParser],
    add_format: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add the commands to the parser."""
    made = command(group, "run", _run, "run the collector with rules and page until it is stopped")
    _add_settings(made)
    made = command(group, "config", _config, "every setting with its value and where it came from")
    _add_settings(made)
    add_format(made)


def _add_settings(made: argparse.ArgumentParser) -> None:
    made.add_argument("--config", metavar="FILE", help="TOML file of settings")
    made.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    made.add_argument("--port", help="port to listen on (default 8750)")
    made.add_argument("--data-dir", metavar="DIR", help="where samples are kept")
    made.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    made.add_argument("--log-format", metavar="FORM", help="text or json")


def _run(args: argparse.Namespace) -> int:
    from gpuwarden_cli.configure import load_settings
    from gpuwarden_cli.services import run_collector
    from gpuwarden_collector.settings import CollectorSettings

    return run_collector(load_settings(CollectorSettings, "collector", args).settings)


def _config(args: argparse.Namespace) -> int:
    from gpuwarden_cli.configure import load_settings, show
    from gpuwarden_collector.settings import CollectorSettings

    show(load_settings(CollectorSettings, "collector", args), args.format)
    return 0
