"""Makes a file of alerting rules for Prometheus from rules that have their condition in PromQL.

An alert begins where `expr` has a series, and stays where `keeps` has one of an alert that fires: Prometheus' own
series `ALERTS` tells which do. Names are those of our exporter, or of dcgm-exporter for the rules whose metrics it
has in the same unit.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import DCGM_TABLES, names_of
from gpuwarden_rules.definition.form_promql import span
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.templates import Template, TemplateField

INTERVAL_S_MAX = 60.0
"""Longest interval of a group: `ALERTS` is seen for five minutes."""
_HEADER = "# Alerting rules of gpuwarden for Prometheus 2.42 or newer, made by `gpuwarden rules export-prometheus`.\n"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COUNTED = re.compile(r"\s*([^|]*\S)\s*\|\s*([^|]*\S)\s*\Z")
_DCGM_LABELS = {
    "node": "Hostname",
    "gpu_uuid": "UUID",
    "mig_instance": "GPU_I_ID",
    "model": "modelName",
}


class _NameMissingError(LookupError):
    """A name set lacks a metric."""


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """A rule for Prometheus: its expressions with the names of a set."""

    rule: Rule
    expr: str
    keeps: str
    labels: Mapping[str, str]
    """Name of each label of the rule in the set."""

    @property
    def whole(self) -> str:
        """The expression of the file."""
        if not self.keeps:
            return self.expr
        labels = ", ".join(self.labels.values())
        fires = f'ALERTS{{alertname="{self.rule.name}", alertstate="firing"}}'
        return f"({self.expr})\nor\n({self.keeps})\nand on ({labels}) {fires}"


def alerting_rules(rules: Iterable[Rule], name_set: str = "own") -> list[AlertingRule]:
    """Those of the rules that PromQL can say with the names of a set."""
    found = []
    for rule in rules:
        if rule.promql is None or not rule.promql.expr:
            continue
        words = _words(name_set)
        try:
            expr, keeps = (_named(text, words) for text in (rule.promql.expr, rule.promql.keeps))
        except _NameMissingError:
            continue
        labels = {label: words.get(label) or label for label in rule.labels}
        found.append(AlertingRule(rule, expr, keeps, labels))
    return found


def rule_file(rules: Iterable[AlertingRule], link: str | None = None) -> str:
    """The file's text. `link`: address of the collector's pages, for links to those of the rules."""
    groups: dict[str, dict[str, Any]] = {}
    for one in rules:
        interval = span(min(one.rule.interval_s, INTERVAL_S_MAX))
        name = f"gpuwarden_{Path(one.rule.path).stem}_{interval}"
        group = groups.setdefault(name, {"name": name, "interval": interval, "rules": []})
        group["rules"].append(_entry(one, link))
    text = yaml.safe_dump(
        {"groups": list(groups.values())}, sort_keys=False, allow_unicode=True, width=110
    )
    return _HEADER + text


def _entry(one: AlertingRule, link: str | None) -> dict[str, Any]:
    rule = one.rule
    condition = rule.promql
    assert condition is not None
    assert condition.summary is not None
    entry: dict[str, Any] = {"alert": rule.name, "expr": one.whole}
    for key, seconds in (("for", rule.for_s), ("keep_firing_for", rule.keep_firing_for_s)):
        if seconds:
            entry[key] = span(seconds)
    entry["labels"] = {"severity": rule.severity.value, "consequence": rule.consequence.value}
    annotations = {"summary": _text(condition.summary, one)}
    if _has_fields(rule.remedy, rule):
        annotations["remedy"] = _text(rule.remedy, one)
    elif rule.page and rule.page.actions:
        annotations["remedy"] = rule.page.actions
    if link is not None:
        annotations["runbook_url"] = f"{link.rstrip('/')}/rules/{rule.name}"
    elif rule.doc:
        annotations["runbook_url"] = rule.doc
    return entry | {"annotations": annotations}


@cache
def _words(name_set: str) -> dict[str, str | None]:
    """Names of a set for our own names and labels; None: the set lacks the metric, or has it in another unit."""
    if name_set == "own":
        return {}
    words: dict[str, str | None] = {}
    for table in METRICS:
        theirs = {}
        if table in DCGM_TABLES:
            theirs = {e.columns: e for e in names_of(name_set, table) if not e.is_rate}
        for exported in names_of("own", table):
            same = theirs.get(exported.columns)
            is_same = same is not None and (same.scale.times, same.scale.over) == (
                exported.scale.times,
                exported.scale.over,
            )
            words[exported.name] = same.name if same is not None and is_same else None
    labels = _DCGM_LABELS | ({"node": "hostname"} if name_set == "dcgm49" else {})
    return {**words, **labels}


def _named(text: str, words: Mapping[str, str | None]) -> str:
    """The expression with the names of a set. Raises _NameMissingError."""

    def put(match: re.Match[str]) -> str:
        found = words.get(match[0], match[0])
        if found is None:
            raise _NameMissingError(match[0])
        return found

    return _WORD.sub(put, text)


def _has_fields(template: Template, rule: Rule) -> bool:
    known = (*rule.labels, "value", *rule.params)
    return all(field.name in known for field in template.fields)


def _text(template: Template, one: AlertingRule) -> str:
    """The text as a template of Prometheus."""
    return "".join(_pieces(template, one)).strip()


def _pieces(template: Template, one: AlertingRule) -> Iterator[str]:
    for piece in template.pieces:
        if isinstance(piece, str):
            yield piece.replace("{{", '{{ "{{" }}')
        elif piece.name in one.labels:
            yield f"{{{{ $labels.{one.labels[piece.name]} }}}}"
        elif piece.name == "value":
            yield _value(piece)
        else:
            yield Template((piece,)).render(one.rule.params)


def _value(field: TemplateField) -> str:
    """`$value` in the form of a field."""
    if counted := _COUNTED.match(field.form):
        number = '{{ $value | printf "%.0f" }}'
        return f"{number} {{{{ if eq $value 1.0 }}}}{counted[1]}{{{{ else }}}}{counted[2]}{{{{ end }}}}"
    match field.form:
        case "duration":
            return "{{ $value | humanizeDuration }}"
        case "bytes":
            return "{{ $value | humanize1024 }}B"
        case "":
            return "{{ $value | humanize }}"
    digits = re.search(r"\.(\d)", field.form)
    return f'{{{{ $value | printf "%.{digits[1] if digits else 0}f" }}}}'
