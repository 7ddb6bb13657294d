"""Reads a rule's condition in PromQL, over the names of the agent's exporter, or why PromQL cannot say it.

    promql:
      let: {share: "rate(gpuwarden_gpu_hw_thermal_seconds_total[$window])"}
      expr: max by ($labels) ($share) >= $share_min        begins and holds the alert
      keeps: max by ($labels) ($share) > 0                 keeps one that fires: `holds = NULL` in the SQL
      summary: "GPU {gpu} of {node} ..."                   default: the rule's, if it has labels, value and parameters only
      differs: Limits of models are not exported.          what it says less than the SQL, or otherwise
    promql: {reason: Its rows are events.}

A rule in the form needs none of it: `form_promql` makes expressions or reason; what is written here replaces them. Its summary is
the rule's, or its title where that has columns that PromQL lacks.

`$labels` are the rule's labels, `$name` an expression of `let` or a parameter: a duration in `[...]` and after
`offset`, elsewhere seconds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from yaml.nodes import Node

from gpuwarden_rules.definition import templates
from gpuwarden_rules.definition.form_promql import UnsayableError, promql_of_form, span
from gpuwarden_rules.definition.form_sql import Form
from gpuwarden_rules.definition.yaml_positions import Scalar, YamlReader

KEYS = ("let", "expr", "keeps", "summary", "differs", "reason")
_NAME = re.compile(r"(?P<before>\[|offset\s+)?\$(?P<name>[a-z][a-z0-9_]*)")


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
    node: Node,
    labels: tuple[str, ...],
    params: Mapping[str, Scalar],
    summary: templates.Template,
    made: PromqlCondition | None,
) -> PromqlCondition:
    """The condition that a rule's `promql` has. `made`: that of its form, which it replaces or completes; problems are
    noted in the reader."""
    nodes = reader.fields(node, optional=KEYS)
    texts = {
        key: " ".join((reader.text(nodes.get(key)) or "").split()) for key in ("differs", "reason")
    }
    is_made = made is not None and not {"expr", "reason"} & nodes.keys()
    if ("expr" in nodes) == ("reason" in nodes) and not is_made:
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
    if made is not None and is_made:
        expr, keeps, texts["reason"] = made.expr, keeps or made.keeps, made.reason
    text: templates.Template | None = summary
    if "summary" in nodes:
        text, problems = templates.parse(reader.text(nodes["summary"]) or "")
        for offset, message in problems:
            reader.note(nodes["summary"], message, offset)
    elif made is not None and is_made:
        text = made.summary
    for name in _lacking(text, labels, params) if text and expr else ():
        reader.note(
            nodes.get("summary", node),
            f"the summary uses {{{name}}}, which PromQL does not have: it has labels, value and parameters",
        )
    return PromqlCondition(expr=expr, keeps=keeps, summary=text if expr else None, **texts)


def made_of(
    form: Form, params: Mapping[str, Scalar], summary: templates.Template, title: str
) -> PromqlCondition:
    """The condition of a form. `title`: of the rule's page."""
    try:
        expr, keeps = promql_of_form(form, params)
    except UnsayableError as error:
        return PromqlCondition(reason=str(error))
    if _lacking(summary, form.labels, params):
        place = "GPU {gpu} of {node}" if "gpu" in form.labels else "{node}"
        summary, _ = templates.parse(f"{place}: {title.replace('{', '').replace('}', '')}.")
    return PromqlCondition(expr=expr, keeps=keeps, summary=summary)


def _lacking(
    text: templates.Template, labels: tuple[str, ...], params: Mapping[str, Scalar]
) -> list[str]:
    """Fields of a text that PromQL does not have."""
    known = {*labels, "value", *params}
    return [field.name for field in text.fields if field.name not in known]


def _value(value: Scalar) -> tuple[str, str]:
    """A parameter as a number, and as a duration."""
    if isinstance(value, bool | str):
        return str(value), ""
    return f"{value:g}" if value == round(value, 9) and abs(value) < 1e5 else repr(value), span(
        value
    )


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
