"""Reads test cases of rules: those of `idle.yaml` are in `idle.test.yaml`.

rules: idle.yaml                # default: the file's name without .test
evaluate: 1m                    # how often the rules are evaluated (default: their interval)
cases:
  - name: memory held and nothing run for half an hour
    tables:                     # see fixtures.py
      gpu_samples:
        - {node: n1, gpu: 0, gpu_uuid: GPU-a, every: 1m, util_percent: 0x39}
    expect:                     # no other alerts of the rule may exist then
      - {at: 20m, rule: gpu_idle_held, quiet: true}
      - at: 35m
        rule: gpu_idle_held
        firing:
          - {gpu: 0, value: 2100, usd_per_hour: 2.95, began: 0s, summary: [$1.72, alice]}
    promql: {gpu_idle_held: ...}   # why the rule's condition in PromQL differs here, if it does
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from yaml.nodes import Node, SequenceNode

from gpuwarden.alert import AlertState
from gpuwarden_rules.definition.language import Rule, load
from gpuwarden_rules.definition.yaml_positions import TEST_SUFFIX, YamlReader, read_text
from gpuwarden_rules.testing.fixtures import Rows, offset_s, rows_of

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Offset 0s of every case."""
PROPERTIES = (
    "value",
    "usd_per_hour",
    "began",
    "summary",
    "remedy",
    "simulated",
    "owner",
    "severity",
)


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected alert: some of its labels and other properties."""

    state: AlertState
    labels: Mapping[str, str]
    about: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.state} {braced({**self.labels, **self.about})}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """All expected alerts of one rule at one time."""

    at_s: float
    rule: str
    alerts: tuple[Expected, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: rows of tables, and the alerts that the rules must make."""

    path: str
    line: int
    name: str
    rules: Mapping[str, Rule]
    rows: Rows
    expectations: tuple[Expectation, ...]
    evaluate_s: float | None
    not_in_promql: Mapping[str, str]
    """Why a rule's condition in PromQL cannot give what the case expects, by rule."""


def load_cases(path: Path) -> list[Case]:
    """The cases of a test file. Raises RuleFileError with every problem in it and its rules."""
    reader = YamlReader(str(path), read_text(path))
    cases: list[Case] = []
    root = reader.root()
    if root is not None:
        nodes = reader.fields(root, required=("cases",), optional=("rules", "evaluate"))
        rules_name = reader.text(nodes.get("rules")) or (
            path.name.removesuffix(TEST_SUFFIX) + ".yaml"
        )
        rules = {rule.name: rule for rule in load(path.parent / rules_name)}
        evaluate_s = offset_s(reader, nodes["evaluate"]) if "evaluate" in nodes else None
        items = reader.items(nodes.get("cases"))
        cases = [_case(reader, node, rules, evaluate_s) for node in items]
    reader.raise_problems()
    return cases


def _case(
    reader: YamlReader, node: Node, rules: Mapping[str, Rule], evaluate_s: float | None
) -> Case:
    nodes = reader.fields(
        node, required=("name", "expect"), optional=("why", "tables", "evaluate", "promql")
    )
    name = reader.text(nodes.get("name")) or ""
    if "evaluate" in nodes:
        evaluate_s = offset_s(reader, nodes["evaluate"])
    rows = rows_of(reader, nodes.get("tables"), START)
    items = reader.items(nodes.get("expect"))
    found = [_expectation(reader, item, rules) for item in items]
    if "expect" in nodes and not items:
        reader.note(nodes["expect"], "a case must expect something")
    expectations = tuple(e for e in found if e is not None)
    promql = reader.entries(nodes.get("promql"))
    return Case(
        path=reader.path,
        line=node.start_mark.line + 1,
        name=name,
        rules=rules,
        rows=rows,
        expectations=expectations,
        evaluate_s=evaluate_s,
        not_in_promql={rule: reader.text(value) or "" for rule, (_, value) in promql.items()},
    )


def _expectation(reader: YamlReader, node: Node, rules: Mapping[str, Rule]) -> Expectation | None:
    states = (AlertState.FIRING, AlertState.PENDING)
    nodes = reader.fields(node, required=("at", "rule"), optional=(*states, "quiet"))
    name = reader.text(nodes.get("rule"))
    if name is None or "at" not in nodes:
        return None
    if name not in rules:
        reader.note(nodes["rule"], f"unknown rule {name!r}; known: {', '.join(rules)}")
        return None
    is_quiet = reader.scalar(nodes.get("quiet")) is True
    if is_quiet == bool({*states} & nodes.keys()):
        reader.note(node, "give either `quiet: true`, or alerts that are firing or pending")
    at_s = offset_s(reader, nodes["at"])
    alerts = [
        _expected(reader, item, state, rules[name])
        for state in states
        for item in reader.items(nodes.get(state))
    ]
    return Expectation(at_s, name, tuple(alerts))


def _expected(reader: YamlReader, node: Node, state: AlertState, rule: Rule) -> Expected:
    nodes = reader.fields(node, optional=(*rule.labels, *PROPERTIES))
    labels = {k: str(reader.scalar(nodes[k])) for k in rule.labels if k in nodes}
    about: dict[str, Any] = {}
    for name in PROPERTIES:
        if name not in nodes:
            continue
        if name in ("summary", "remedy"):
            value = nodes[name]
            parts = reader.items(value) if isinstance(value, SequenceNode) else [value]
            about[name] = [str(reader.scalar(part)) for part in parts]
        elif name == "began":
            about[name] = offset_s(reader, nodes[name])
        elif name in ("owner", "severity"):
            about[name] = reader.text(nodes[name])
        elif name == "simulated":
            about[name] = reader.scalar(nodes[name]) is True
        else:
            about[name] = _number(reader, nodes[name])
    return Expected(state, labels, about)


def _number(reader: YamlReader, node: Node) -> float | None:
    """A number, or None for `unknown`."""
    value = reader.scalar(node)
    if value == "unknown":
        return None
    if isinstance(value, str | bool):
        reader.note(node, "must be a number or `unknown`")
        return None
    return value


def braced(values: Mapping[str, Any]) -> str:
    """`{gpu=0, value=95}`."""
    return "{" + ", ".join(f"{name}={value}" for name, value in values.items()) + "}"
