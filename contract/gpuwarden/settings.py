"""Loads settings: defaults < TOML file < environment < command line, each value with its source.

A part declares one frozen dataclass whose fields are made by `setting()`; that declaration is the
only list of settings: the loader, `--help`, `docs/configure.md` and the example TOML come from it.
Unknown keys are errors that name the known ones; values are checked when loaded, not when used.
"""

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints


class SettingsError(ValueError):
    """A setting is wrong; the message has the source, the value, and the allowed values."""


class SettingsClass(Protocol):
    """A dataclass of settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=SettingsClass)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[S]):
    """Settings, and the source of each value: "default", "FILE:LINE", "environment X", "--flag"."""

    settings: S
    sources: Mapping[str, str]


def setting(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of a settings dataclass: default, one line of meaning, and allowed values."""
    metadata = {"meaning": meaning, "least": least, "most": most, "choices": choices}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def changed(before: S, after: S) -> tuple[str, ...]:
    """Names of the settings that differ."""
    names = before.__dataclass_fields__
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))


def default_of(f: Field[Any]) -> Any:
    """The default of a field made by `setting()`."""
    return f.default_factory() if f.default_factory is not MISSING else f.default


def load(
    cls: type[S],
    part: str,
    *,
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Loaded[S]:
    """Settings of a part ("agent", "collector").

    `path`: a TOML file whose keys are the field names; None: no file. `env`: as os.environ (the
    default); GPUWARDEN_<PART>_<FIELD> is read. `flags`: values from the command line by field
    name; None means not given. Raises SettingsError.
    """
    known = {f.name: f for f in fields(cls)}
    types = get_type_hints(cls)
    values: dict[str, Any] = {}
    sources = dict.fromkeys(known, "default")

    def take(name: str, raw: Any, source: str) -> None:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise SettingsError(f"{source}: unknown setting {name!r}; known: {listed}")
        values[name] = _checked(name, raw, types[name], known[name], source)
        sources[name] = source

    if path is not None:
        for name, raw, source in _from_file(path):
            take(name, raw, source)
    prefix = f"GPUWARDEN_{part.upper()}_"
    for variable, raw in sorted((os.environ if env is None else env).items()):
        if variable.startswith(prefix):
            take(variable.removeprefix(prefix).lower(), raw, f"environment {variable}")
    for name, raw in (flags or {}).items():
        if raw is not None:
            take(name, raw, "--" + name.replace("_", "-"))
    return Loaded(cls(**values), sources)


def _from_file(path: Path) -> list[tuple[str, Any, str]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"{path}: cannot be read: {reason}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    return [(name, raw, f"{path}:{_line_of(name, text)}") for name, raw in document.items()]


def _line_of(name: str, text: str) -> int:
    """Line of a top-level key or table, which tomllib does not report."""
    pattern = re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(name)}[\"']?\s*[=\].]")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1


def _checked(name: str, raw: Any, wanted: Any, f: Field[Any], source: str) -> Any:
    where = f"{source}: {name}" if f" {name}" not in source else source
    try:
        value = _converted(raw, wanted)
    except (TypeError, ValueError, LookupError) as error:
        raise SettingsError(f"{where} = {raw} must be {_described(wanted)}") from error
    least, most, choices = (f.metadata[k] for k in ("least", "most", "choices"))
    if value is None:
        return None
    if choices and value not in choices:
        raise SettingsError(f"{where} = {raw} must be one of {', '.join(choices)}")
    if least is not None and value < least:
        raise SettingsError(f"{where} = {raw} must be at least {least:g}")
    if most is not None and value > most:
        raise SettingsError(f"{where} = {raw} must be at most {most:g}")
    return value


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | dict.fromkeys(
    ("false", "no", "off", "0"), False
)


def _converted(raw: Any, wanted: Any) -> Any:
    """`raw` as the type `wanted`; text is parsed, for the environment."""
    if isinstance(wanted, UnionType):
        inner = next(t for t in get_args(wanted) if t is not NoneType)
        return None if raw in (None, "") else _converted(raw, inner)
    if get_origin(wanted) is dict:
        return _converted_dict(raw, get_args(wanted)[1])
    if get_origin(wanted) is tuple:
        items = [part.strip() for part in raw.split(",")] if isinstance(raw, str) else raw
        if not isinstance(items, (list, tuple)):
            raise TypeError
        return tuple(_converted(item, get_args(wanted)[0]) for item in items if item != "")
    if wanted is bool:
        return raw if isinstance(raw, bool) else _BOOLEANS[_text(raw).lower()]
    if isinstance(raw, bool):
        raise TypeError
    if wanted is int and isinstance(raw, float):
        raise TypeError
    if wanted in (str, Path):
        return wanted(raw if isinstance(raw, Path) else _text(raw))
    value = wanted(raw)
    if not math.isfinite(value):
        raise ValueError
    return value


def _converted_dict(raw: Any, inner: Any) -> dict[str, Any]:
    if isinstance(raw, str):
        pairs = (pair.partition("=") for pair in raw.split(",") if pair.strip())
        raw = {key.strip(): value.strip() for key, _, value in pairs}
    if not isinstance(raw, dict):
        raise TypeError
    return {str(key): _converted(value, inner) for key, value in raw.items()}


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw


def _described(wanted: Any) -> str:
    if isinstance(wanted, UnionType):
        return _described(next(t for t in get_args(wanted) if t is not NoneType))
    if get_origin(wanted) is dict:
        return f"a table of names and {_described(get_args(wanted)[1]).removeprefix('a ')}s"
    if get_origin(wanted) is tuple:
        return f"a list of {_described(get_args(wanted)[0]).removeprefix('a ')}s"
    names = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
    return names.get(wanted, "a text")
