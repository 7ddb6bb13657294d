"""Loads settings, rules and receivers, shows the source of each setting, and sets keys of a settings file."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwarden.files import make_folder, write_whole
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import Loaded, SettingsClass, load
from gpuwarden_cli.output import counted, render

if TYPE_CHECKING:
    from gpuwarden_collector.settings import CollectorSettings
    from gpuwarden_rules.definition.rule_set import RuleSet
    from gpuwarden_rules.notify.settings import Notify

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


def rule_set_of(folders: Sequence[Path]) -> "RuleSet":
    """The built-in rules with those of `folders`. Raises StartError with the first problem."""
    from gpuwarden_rules.definition.rule_set import load_rule_set

    with _first_problem("gpuwarden rules check"):
        return load_rule_set(folders)


def notify_of(path: Path) -> "Notify":
    """The file of receivers and routes. Raises StartError with the first problem."""
    from gpuwarden_rules.notify.settings import load

    with _first_problem(f"gpuwarden notify check {path}"):
        return load(path)


def notify_file_of(args: argparse.Namespace) -> Path:
    """The file of receivers of --file, else of the collector's settings. Raises StartError."""
    path: Path | None = args.file or collector_settings(args).notify_file
    if path is None:
        raise StartError("no file of receivers: use --file, or set notify_file of the collector")
    return path


@contextmanager
def _first_problem(check: str) -> Iterator[None]:
    """Raise StartError for a RuleFileError; `check` is the command that lists all problems."""
    from gpuwarden_rules.definition.yaml_positions import RuleFileError

    try:
        yield
    except RuleFileError as error:
        more = len(error.problems) - 1
        rest = f" (and {counted(more, 'more problem')}: `{check}`)" if more else ""
        raise StartError(f"{error.problems[0]}{rest}") from error


def set_keys(path: Path, values: Mapping[str, str]) -> bool:
    """Set keys of a TOML file and keep the rest, comments too; whether it changed. Makes a missing file.

    Raises StartError.
    """
    import tomlkit  # only `enroll` and `collector init` change a file
    from tomlkit.exceptions import TOMLKitError

    try:
        text = path.read_text() if path.exists() else ""
        document = tomlkit.parse(text)
        wrong = {key: value for key, value in values.items() if document.get(key) != value}
        if not wrong:
            return False
        document.update(wrong)
        content = tomlkit.dumps(document).encode()
        if path.exists():
            found = path.stat()
            owner = found.st_uid, found.st_gid
            write_whole(path, content, mode=found.st_mode & 0o777, owner=owner)
        else:
            make_folder(path.parent)
            write_whole(path, content, mode=0o644)
    except OSError as error:
        raise StartError(f"{error.filename or path}: {error.strerror}") from error
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise StartError(f"{path}: not valid TOML: {error}") from error
    return True
