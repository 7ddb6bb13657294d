"""The one rule without SQL: a rule that fails, or alone is slow, is itself an alert.

Where several are slow it is not theirs: the rule `rules_slow` says that of the collector.
"""

from collections.abc import Mapping
from typing import Any

from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.evaluation.statistics import RuleStatistics

NAME = "rule_failing"

_TEXT = """
rules:
  - name: rule_failing
    severity: warning
    labels: [rule]
    for: 1m
    keep_firing_for: 2m
    caused_by: {rules_slow: []}
    summary: "Rule {rule} {trouble}, for {active} now: {reason}"
    remedy: >-
      Its alerts stay as they were until it works. Run `gpuwarden rules check`; where it is slow,
      narrow its window or lengthen its interval.
    doc: docs/rules.md
    sql: SELECT $now
"""


def failing_rule() -> Rule:
    """The rule; its SQL is never run."""
    (rule,) = parse(_TEXT, NAME)
    return rule


def failing_rows(stats: Mapping[str, RuleStatistics]) -> list[dict[str, Any]]:
    """A row for each rule whose last evaluation failed, and for one that alone took longer than its interval."""
    rows = []
    is_alone = sum(figures.slow_since is not None for figures in stats.values()) == 1
    for name, figures in stats.items():
        if figures.failing_since:
            trouble, began_at = "fails", figures.failing_since
            reason = figures.last_error or "see the collector's log"
        elif figures.slow_since and is_alone:
            trouble, began_at = "is slow", figures.slow_since
            reason = f"{figures.last_seconds or 0:.1f} s for the last evaluation"
        else:
            continue
        row = {"rule": name, "trouble": trouble, "reason": reason}
        rows.append({**row, "began_at": began_at})
    return rows
