"""Reads a rule's condition in PromQL, over the names of the agent's exporter, or why PromQL cannot say it.

    promql:
      let: {share: "rate(gpuwarden_gpu_hw_thermal_seconds_total[$window])"}
      expr: max by ($labels) ($share) >= $share_min        begins and holds the alert
      keeps: max by ($labels) ($share) > 0                 keeps one that fires: `holds = NULL` in the SQL
      summary: "GPU {gpu} of {node} ..."                   default: the rule's, if it has labels, value and parameters only
      differs: Limits of models are not exported.          what it says less than the SQL, or otherwise
    promql: {reason: Its rows are events.}

`$labels` are the rule's labels, `$name` an expression of `let` or a parameter: a duration in `[...]` and after
`offset`, elsewhere seconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from yaml.nodes import Node

from gpuwarden_rules.definition import templates
from gpuwarden_rules.definition.yaml_positions import Scalar, YamlReader

KEYS = ("let", "expr", "keeps", "summary", "differs", "reason")
_NAME = re.compile(r"(?P<before>\[|offset\s+)?\$(?P<name>[a-z][a-z0-9_]*)")
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromqlCondition:
    """A rule's condition in PromQL. Either `expr` or `reason` is empty."""

    expr: str = ""
    """Series for which the condition holds, with the rule's labels."""
    keeps: str = ""
    """Series whose alert stays if it fires; empty: none."""
    summary: templates.Template | None = None
    differs: str = ""
    """What it says less than the SQL, or otherwise."""
    reason: str = ""
    """Why PromQL cannot say the rule."""


def promql_of(
    reader: YamlReader,
    node: Node | None,
    labels: tuple[str, ...],
    params: Mapping[str, Scalar],
    summary: templates.Template,
) -> PromqlCondition | None:
    """The condition that a rule's `promql` has; problems are noted in the reader."""
    if node is None:
        return None
    nodes = reader.fields(node, optional=KEYS)
    texts = {
        key: " ".join((reader.text(nodes.get(key)) or "").split()) for key in ("differs", "reason")
    }
    if ("expr" in nodes) == ("reason" in nodes):
        reader.note(node, "give either `expr`, or the `reason` why PromQL cannot say the rule")
    named = {name: _value(value) for name, value in params.items()}
    named["labels"] = (", ".join(labels), "")
    for name, (key, value) in reader.entries(nodes.get("let")).items():
        if name in named:
            reader.note(key, f"${name} has a value already")
        named[name] = (f"({_put(reader, value, named)})", "")
    expr, keeps = (
        _put(reader, nodes[key], named) if key in nodes else "" for key in ("expr", "keeps")
    )
    text: templates.Template | None = summary
    if "summary" in nodes:
        text, problems = templates.parse(reader.text(nodes["summary"]) or "")
        for offset, message in problems:
            reader.note(nodes["summary"], message, offset)
    for field in text.fields if text and expr else ():
        if field.name not in (*labels, "value", *params):
            reader.note(
                nodes.get("summary", node),
                f"the summary uses {{{field.name}}}, which PromQL does not have: it has labels, value and parameters",
            )
    return PromqlCondition(expr=expr, keeps=keeps, summary=text if expr else None, **texts)


def _value(value: Scalar) -> tuple[str, str]:
    """A parameter as a number, and as a duration."""
    if isinstance(value, bool | str):
        return str(value), ""
    return f"{value:g}" if value == round(value, 9) and abs(value) < 1e5 else repr(value), span(
        value
    )


def span(seconds: float) -> str:
    """PromQL's text of a duration: `3m`, `7d`, `90s`; empty if it is not whole seconds."""
    if seconds <= 0 or seconds != int(seconds):
        return ""
    size, unit = next(found for found in _UNITS if seconds % found[0] == 0)
    return f"{int(seconds) // size}{unit}"


def _put(reader: YamlReader, node: Node, named: Mapping[str, tuple[str, str]]) -> str:
    """The expression with the values of its names, on one line."""

    def put(match: re.Match[str]) -> str:
        before, name = match["before"] or "", match["name"]
        if name not in named:
            known = ", ".join(f"${one}" for one in named)
            reader.note(node, f"${name} has no value; known: {known}")
        number, duration = named.get(name, ("", ""))
        return before + (duration if before else number)

    return " ".join(_NAME.sub(put, reader.text(node) or "").split())
