"""Overrides parameters or severity of rules, or disables rules, for a part of the fleet.

    overrides:
      - rules: [gpu_idle_held, "gpu_power_*"]       names or patterns
        match: {model: "H100*", node: "dgx-*", team: vision}   none: the whole fleet
        params: {idle_for: 1h}
        severity: info
        enabled: false

Any key of `match` but `model` and `node` is a label of the node. All keys must match; `*` and `?` are
wildcards. If several overrides match, the last one wins.

The engine evaluates a rule once for each distinct set of parameters, and keeps from each result the rows of
the nodes and GPUs with this set. The rule's SQL does not see overrides.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from yaml.nodes import Node

from gpuwarden.alert import Severity
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.yaml_positions import FileProblem, Scalar, YamlReader, read_text

FILE_NAME = "overrides.yaml"
_KEYS = ("match", "params", "severity", "enabled")


@dataclass(frozen=True, slots=True)
class Location:
    """Node, GPU model and labels that a row belongs to, as overrides match them."""

    node: str = ""
    model: str = ""
    labels: frozenset[tuple[str, str]] = frozenset()
    """Labels of the node."""

    def value(self, name: str) -> str:
        """The value that a key of `match` is compared with; empty: there is none."""
        match name:
            case "node":
                return self.node
            case "model":
                return self.model
            case _:
                return dict(self.labels).get(name, "")


@dataclass(frozen=True, slots=True)
class Override:
    """One entry of the file."""

    rules: tuple[str, ...]
    match: Mapping[str, str]
    params: Mapping[str, Scalar]
    severity: Severity | None
    is_enabled: bool | None
    path: str
    line: int
    marks: Mapping[str, tuple[int, int]] = field(repr=False, compare=False)
    """Line and column of each `rules.pattern` and `params.name`."""

    def concerns(self, rule: Rule) -> bool:
        """Whether a pattern matches the rule's name."""
        return any(fnmatchcase(rule.name, pattern) for pattern in self.rules)

    def applies(self, place: Location) -> bool:
        """Whether all keys of `match` fit the location."""
        return all(fnmatchcase(place.value(k), pattern) for k, pattern in self.match.items())

    def problem(self, mark: str, message: str) -> FileProblem:
        """A problem at one of the override's `marks`."""
        line, column = self.marks.get(mark, (self.line, 1))
        return FileProblem(self.path, line, column, message)


@dataclass(frozen=True, slots=True)
class OverrideVariant:
    """Parameters and severity of a rule for a part of the fleet."""

    params: tuple[tuple[str, Scalar], ...]
    severity: Severity | None = None
    is_enabled: bool = True

    def applied(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The row with the variant's parameters and severity, for texts and life cycle."""
        more = {"severity": self.severity.value} if self.severity else {}
        return {**dict(self.params), **row, **more}


def variant_at(rule: Rule, overrides: Iterable[Override], place: Location) -> OverrideVariant:
    """The variant of a rule at a location; `overrides` are those that concern the rule."""
    params, severity, is_enabled = dict(rule.params), None, True
    for override in overrides:
        if override.applies(place):
            params |= override.params
            severity = override.severity or severity
            is_enabled = is_enabled if override.is_enabled is None else override.is_enabled
    return OverrideVariant(tuple(sorted(params.items())), severity, is_enabled)


@dataclass(frozen=True, slots=True)
class Locations:
    """Locations of every GPU and node of the fleet."""

    gpus: Mapping[str, Location] = field(default_factory=dict)
    nodes: Mapping[str, Location] = field(default_factory=dict)

    def of(self, row: Mapping[str, Any]) -> Location:
        """The location of a rule's row by its gpu_uuid or node; empty where it has neither."""
        place = self.gpus.get(str(row.get("gpu_uuid")))
        node = str(row.get("node") or "")
        return place or self.nodes.get(node) or Location(node)


class OverridePlan:
    """Evaluates one rule over a fleet: its variants, and the rows that belong to each."""

    def __init__(self, rule: Rule, overrides: Sequence[Override], places: Locations) -> None:
        self._rule = rule
        self._overrides = overrides
        self._locations = places
        self._known: dict[Location, OverrideVariant] = {}
        everywhere = {*places.gpus.values(), *places.nodes.values(), Location()}
        found = dict.fromkeys(self._at(place) for place in sorted(everywhere, key=repr))
        self.variants = [variant for variant in found if variant.is_enabled]
        """Distinct variants that are enabled."""

    def own(
        self, variant: OverrideVariant, rows: Iterable[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """The rows of a variant's evaluation that belong to it."""
        places = self._locations
        return [variant.applied(row) for row in rows if self._at(places.of(row)) == variant]

    async def rows(
        self, query: Callable[[Rule], Awaitable[Iterable[Mapping[str, Any]]]]
    ) -> list[dict[str, Any]]:
        """The rule's rows, each part of the fleet with its own parameters; `query` evaluates one variant."""
        rows: list[dict[str, Any]] = []
        for variant in self.variants:
            found = await query(replace(self._rule, params=dict(variant.params)))
            rows += self.own(variant, found)
        return rows

    def _at(self, place: Location) -> OverrideVariant:
        variant = self._known.get(place)
        if variant is None:
            variant = variant_at(self._rule, self._overrides, place)
            self._known[place] = variant
        return variant


def load_overrides(path: Path, rules: Sequence[Rule]) -> list[Override]:
    """The overrides of a file, checked against the rules. Raises RuleFileError."""
    return parse_overrides(read_text(path), str(path), rules)


def parse_overrides(text: str, path: str, rules: Sequence[Rule]) -> list[Override]:
    """The overrides in a file's text; `path` is for messages. Raises RuleFileError."""
    reader = YamlReader(path, text)
    nodes = reader.fields(reader.root(), required=("overrides",))
    overrides = [_override(reader, item) for item in reader.items(nodes.get("overrides"))]
    for override in overrides:
        reader.problems += _override_problems(override, rules)
    reader.raise_problems()
    return overrides


def _override(reader: YamlReader, node: Node) -> Override:
    nodes = reader.fields(node, required=("rules",), optional=_KEYS)
    marks: dict[str, tuple[int, int]] = {}
    patterns = []
    for item in reader.items(nodes.get("rules")):
        pattern = reader.text(item)
        if pattern is not None:
            patterns.append(pattern)
            marks[f"rules.{pattern}"] = reader.position(item)
    if not {"params", "severity", "enabled"} & nodes.keys():
        reader.note(node, "has no effect: give params, severity or enabled")
    match = reader.entries(nodes.get("match"))
    params = reader.parameters(nodes.get("params"))
    marks |= {f"params.{key}": reader.position(at) for key, (at, _) in params.items()}
    return Override(
        tuple(patterns),
        {key: reader.text(value) or "" for key, (_, value) in match.items()},
        {key: value for key, (_, value) in params.items()},
        reader.choice(nodes.get("severity"), "severity", Severity),
        reader.boolean(nodes.get("enabled")),
        reader.path,
        node.start_mark.line + 1,
        marks,
    )


def _override_problems(override: Override, rules: Sequence[Rule]) -> list[FileProblem]:
    """Problems: patterns that match no rule, unknown parameters, values of another type."""
    problems = [
        override.problem(f"rules.{pattern}", f"no rule is called {pattern!r}")
        for pattern in override.rules
        if not any(fnmatchcase(rule.name, pattern) for rule in rules)
    ]
    for rule in rules:
        for name, value in override.params.items() if override.concerns(rule) else ():
            if name not in rule.params:
                known = ", ".join(rule.params) or "none"
                message = f"{rule.name} has no parameter {name!r}; known: {known}"
                problems.append(override.problem(f"params.{name}", message))
            elif _kind(value) != _kind(rule.params[name]):
                message = f"{name} must be {_kind(rule.params[name])}, as in {rule.name}"
                problems.append(override.problem(f"params.{name}", message))
    return problems


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "a text" if isinstance(value, str) else "a number"
