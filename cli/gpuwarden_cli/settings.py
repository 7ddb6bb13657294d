"""Settings on the command line: loading, and `config`, which shows where each came from."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwarden.settings import Loaded, SettingsClass, load
from gpuwarden_cli.output import render

if TYPE_CHECKING:
    from gpuwarden_collector.settings import CollectorSettings

S = TypeVar("S", bound=SettingsClass)


def load_settings(cls: type[S], part: str, args: argparse.Namespace) -> Loaded[S]:
    """Settings from file, environment and the flags given. Raises SettingsError."""
    names = {f.name for f in fields(cls)}
    flags = {name: value for name, value in vars(args).items() if name in names}
    return load(cls, part, path=Path(args.config) if args.config else None, flags=flags)


def collector_settings(args: argparse.Namespace) -> "CollectorSettings":
    """The collector's settings, as `load_settings` finds them. Raises SettingsError."""
    from gpuwarden_collector.settings import CollectorSettings

    return load_settings(CollectorSettings, "collector", args).settings


def show(loaded: Loaded[Any], form: str) -> None:
    """Print every setting with its value, source and meaning."""
    rows = [
        [f.name, _shown(getattr(loaded.settings, f.name)), loaded.sources[f.name],
         f.metadata["meaning"]]
        for f in fields(loaded.settings)
    ]  # fmt: skip
    print(render(["setting", "value", "source", "meaning"], rows, form), end="")


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or None
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or None
    return str(value) if isinstance(value, Path) else value
