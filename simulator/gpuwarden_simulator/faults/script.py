"""Reads fault scripts: TOML files that list faults with time and place.

    [[fault]]
    at = "2m"          # after the node's first tick
    for = "10m"        # none: to the end
    node = "sim-0003"  # none: every node
    gpu = 3            # or [0, 1]; not for faults of the node
    fault = "nvlink_down"
    link = 4

An error is a ScriptError, whose message has file, line, key and the allowed values.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden.lifecycle import StartError
from gpuwarden.models import GpuModel
from gpuwarden_simulator.faults.kinds import (
    SPECS,
    Fault,
    FaultKind,
    Lasts,
    Option,
    misfit,
)

SCRIPT_BYTES_MAX = 1_000_000
FAULTS_MAX = 10_000

_DURATION = re.compile(r"\+?(?P<number>\d{1,9}(?:\.\d{1,3})?)(?P<unit>ms|s|m|h|d)", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HEADER = re.compile(r"\s*\[\[\s*[\"']?fault[\"']?\s*\]\]")
_COMMON = ("fault", "at", "for", "node", "gpu")


class ScriptError(StartError):
    """A script has an error; the message has the place, the problem and the allowed values."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """A fault, and the node that has it; None: every node."""

    node: str | None
    fault: Fault


def duration_ms(text: str) -> int:
    """Milliseconds of "90s", "+2m" or "1.5h". Raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    return round(float(found["number"]) * _UNITS_MS[found["unit"]])


def load_script(
    path: Path, nodes: Mapping[str, int], model: GpuModel | Mapping[str, GpuModel]
) -> Mapping[str, tuple[Fault, ...]]:
    """Faults of each node by name, without the nodes that have none. `nodes`: GPUs by name.

    Raises ScriptError.
    """
    try:
        text = path.read_bytes()[: SCRIPT_BYTES_MAX + 1].decode()
    except OSError as error:
        raise ScriptError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"{path}: cannot be read: not UTF-8 text") from error
    if len(text) > SCRIPT_BYTES_MAX:
        raise ScriptError(f"{path}: must have at most {SCRIPT_BYTES_MAX:,} bytes")
    return read_script(text, str(path), nodes, model)


def read_script(
    text: str, name: str, nodes: Mapping[str, int], model: GpuModel | Mapping[str, GpuModel]
) -> Mapping[str, tuple[Fault, ...]]:
    """As `load_script`; `name`: the script's name in errors."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScriptError(f"{name}: not valid TOML: {error}") from error
    tables = document.pop("fault", [])
    if document:
        raise ScriptError(f"{name}: unknown {next(iter(document))!r}; a script is [[fault]] tables")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ScriptError(f"{name}: fault must be [[fault]] tables")
    if len(tables) > FAULTS_MAX:
        raise ScriptError(f"{name}: must have at most {FAULTS_MAX:,} faults")
    lines = text.splitlines()
    found: dict[str, list[Fault]] = {}
    for number, table in enumerate(tables, 1):
        place = _Place(name, lines, number)
        for scripted in _faults_of(table, place):
            for node in _nodes_of(scripted, nodes, place):
                of_node = model if isinstance(model, GpuModel) else model[node]
                if problem := misfit(scripted.fault, of_node, nodes[node]):
                    raise place.error(problem, problem.partition(" ")[0])
                found.setdefault(node, []).append(scripted.fault)
    return {node: tuple(faults) for node, faults in found.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a fault in the script."""

    name: str
    lines: list[str]
    number: int

    def error(self, problem: str, key: str = "") -> ScriptError:
        """An error of that fault, with the line of the key if it is known."""
        line = self._line(key)
        where = f"{self.name}:{line}" if line else self.name
        return ScriptError(f"{where}: fault {self.number}: {problem}")

    def _line(self, key: str) -> int | None:
        """Find the line, which tomllib does not report; None for inline tables."""
        headers = [n for n, line in enumerate(self.lines, 1) if _HEADER.match(line)]
        if self.number > len(headers):
            return None
        first = headers[self.number - 1]
        after = headers[self.number] if self.number < len(headers) else len(self.lines) + 1
        wanted = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
        if key:
            for n in range(first + 1, after):
                if wanted.match(self.lines[n - 1]):
                    return n
        return first


def _nodes_of(scripted: Scripted, nodes: Mapping[str, int], place: _Place) -> Iterator[str]:
    if scripted.node is None:
        yield from nodes
    elif scripted.node in nodes:
        yield scripted.node
    else:
        known = ", ".join(list(nodes)[:3]) + (", ..." if len(nodes) > 3 else "")
        raise place.error(f"unknown node {scripted.node!r}; there are {known}", "node")


def _faults_of(table: Mapping[str, Any], place: _Place) -> Iterator[Scripted]:
    kind = _kind(table, place)
    spec = SPECS[kind]
    allowed = (*_COMMON, *spec.options)
    for key in table:
        if key not in allowed or (key == "gpu" and not spec.is_of_gpu):
            listed = ", ".join(k for k in allowed if k != "gpu" or spec.is_of_gpu)
            raise place.error(f"{kind} has no {key!r}; known: {listed}", key)
    begin_ms = _duration(table, "at", place)
    if begin_ms is None:
        raise place.error('needs at, such as at = "2m"')
    end_ms = _end(table, begin_ms, kind, spec.lasts, place)
    options = {name: _value(table, name, o, kind, place) for name, o in spec.options.items()}
    node = table.get("node")
    if node is not None and not isinstance(node, str):
        raise place.error(f"node = {node!r} must be the name of a node", "node")
    for gpu in _gpus(table, kind, place) if spec.is_of_gpu else (None,):
        yield Scripted(node, Fault(kind, begin_ms, end_ms, gpu, options))


def _kind(table: Mapping[str, Any], place: _Place) -> FaultKind:
    name = table.get("fault")
    if name not in tuple(FaultKind):
        listed = ", ".join(FaultKind)
        said = "needs fault" if name is None else f"unknown fault {name!r}"
        raise place.error(f"{said}; known: {listed}", "fault")
    return FaultKind(name)


def _end(
    table: Mapping[str, Any], begin_ms: int, kind: FaultKind, lasts: Lasts, place: _Place
) -> int | None:
    for_ms = _duration(table, "for", place)
    if for_ms is None and lasts is Lasts.MUST_END:
        raise place.error(f'{kind} needs for, such as for = "4m"')
    if for_ms is not None and lasts is Lasts.MOMENT:
        raise place.error(f"{kind} happens in a moment and has no for", "for")
    if for_ms == 0:
        raise place.error("for must be longer than nothing", "for")
    return None if for_ms is None else begin_ms + for_ms


def _gpus(table: Mapping[str, Any], kind: FaultKind, place: _Place) -> tuple[int, ...]:
    given = table.get("gpu")
    several = given if isinstance(given, list) else [given]
    if not several or not all(isinstance(n, int) and not isinstance(n, bool) for n in several):
        if given is None:
            raise place.error(f"{kind} needs gpu, a number or a list of numbers")
        raise place.error(f"gpu = {given!r} must be a number or a list of numbers", "gpu")
    return tuple(dict.fromkeys(several))


def _duration(table: Mapping[str, Any], key: str, place: _Place) -> int | None:
    given = table.get(key)
    if given is None:
        return None
    problem = f'{key} = {given!r} must be a duration such as "90s", "+10m" or "1.5h"'
    if not isinstance(given, str):
        raise place.error(problem, key)
    try:
        return duration_ms(given)
    except ValueError as error:
        raise place.error(problem, key) from error


def _value(
    table: Mapping[str, Any], key: str, option: Option, kind: FaultKind, place: _Place
) -> int | float | str | None:
    given = table.get(key)
    if given is None:
        if option.is_required:
            raise place.error(f"{kind} needs {key}")
        return option.default
    value = _duration(table, key, place) if option.is_duration else given
    allowed = (int, float) if option.type is float else (option.type,)
    if type(value) not in allowed:
        kinds = {int: "a whole number", float: "a number", str: "a text"}
        raise place.error(f"{key} = {given!r} must be {kinds[option.type]}", key)
    if option.choices and value not in option.choices:
        raise place.error(f"{key} = {given!r} must be one of {', '.join(option.choices)}", key)
    unit, per = ("s", 1000) if option.is_duration else ("", 1)
    if isinstance(value, int | float):
        # `not >=`, because every comparison with NaN is false.
        if option.least is not None and not value >= option.least:
            least = f"{option.least / per:g}{unit}"
            raise place.error(f"{key} = {given!r} must be at least {least}", key)
        if option.most is not None and not value <= option.most:
            most = f"{option.most / per:g}{unit}"
            raise place.error(f"{key} = {given!r} must be at most {most}", key)
        return value
    return str(value)
