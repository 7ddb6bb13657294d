"""Makes the JSON documents of rules: a short one for lists, and a full one."""

import dataclasses
from typing import Any

from gpuwarden_rules.definition.charts import charts_of
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Location, variant_at
from gpuwarden_rules.definition.source import case_sources, rule_source
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.http.answers import instant


def described(engine: RuleEngine) -> list[dict[str, Any]]:
    """Each rule with its state and statistics."""
    return [_figures(engine, rule) for rule in engine.rules]


def written(engine: RuleEngine, rule: Rule) -> dict[str, Any]:
    """A rule with its statistics and everything from its files. Reads files. The engine's own rules have no SQL."""
    is_own = rule.name not in engine.stats
    overrides = [
        {
            "match": dict(override.match),
            "params": dict(override.params),
            "severity": override.severity,
            "enabled": override.is_enabled,
            "file": override.path,
            "line": override.line,
        }
        for override in engine.overrides.get(rule.name, ())
    ]
    return _figures(engine, rule) | {
        "remedy": str(rule.remedy),
        "page": dataclasses.asdict(rule.page) if rule.page else None,
        "one_of": [f"{table}.{column}" for table, column in rule.one_of],
        "optional": [f"{table}.{column}" for table, column in rule.optional],
        "sql": None if is_own else rule.sql,
        "source": rule_source(rule),
        "charts": [dataclasses.asdict(chart) for chart in charts_of(rule, rule.params)],
        "cases": [dataclasses.asdict(case) for case in case_sources(rule)],
        "overridden": overrides,
    }


def _figures(engine: RuleEngine, rule: Rule) -> dict[str, Any]:
    figures, overrides = engine.all_stats[rule.name], engine.overrides.get(rule.name, ())
    is_off = not variant_at(rule, overrides, Location()).is_enabled and not any(
        override.is_enabled for override in overrides
    )
    return {
        "rule": rule.name,
        "state": "disabled" if is_off else figures.state,
        "reason": figures.cannot_run or figures.last_error,
        "severity": rule.severity.value,
        "title": rule.page.title if rule.page else "",
        "labels": list(rule.labels),
        "interval_s": rule.interval_s,
        "for_s": rule.for_s,
        "keep_firing_for_s": rule.keep_firing_for_s,
        "params": dict(rule.params),
        "requires": [f"{table}.{column}" for table, column in rule.requires],
        "consequence": rule.consequence.value,
        "caused_by": {name: list(equal) for name, equal in rule.caused_by.items()},
        "summary": str(rule.summary),
        "file": rule.path,
        "line": rule.line,
        "overrides": len(overrides),
        "pending": figures.pending,
        "firing": figures.firing,
        "unknown": figures.unknown,
        "muted": figures.muted,
        "evaluations": figures.evaluations,
        "failures": figures.failures,
        "last_seconds": figures.last_seconds,
        "last_success_at": instant(figures.last_success_at),
    }
