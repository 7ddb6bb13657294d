"""The rules without SQL: a rule that fails, or alone is slow, is itself an alert, and so is that rules
cannot be judged because the lake's catalogue is away.

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
    sql: SELECT $now

  - name: lake_away
    severity: critical
    for: 1m
    keep_firing_for: 1m
    caused_by: {storage_stalled: []}
    summary: >-
      The lake's catalogue cannot be read, for {active} now: {value:rule is|rules are} not judged ({named}), whose
      alerts stay as they are. The others are judged by the newest rows.
    remedy: >-
      See that the catalogue (PostgreSQL, or lake/catalog.sqlite) can be reached and read; `journalctl -u
      gpuwarden-collector -p err` says what fails. All rules are judged again within a minute of that.
    sql: SELECT $now
"""
_NAMED_MAX = 5


def failing_rule() -> Rule:
    """The rule; its SQL is never run."""
    return parse(_TEXT, NAME)[0]


def lake_away_rule() -> Rule:
    """The other one; nor is this one's."""
    return parse(_TEXT, NAME)[1]


def lake_away_rows(stats: Mapping[str, RuleStatistics]) -> list[dict[str, Any]]:
    """A row where rules cannot be judged without the lake."""
    since = {name: at for name, one in stats.items() if (at := one.unjudged_since) is not None}
    if not since:
        return []
    more = len(since) - _NAMED_MAX
    named = ", ".join(sorted(since)[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return [{"value": len(since), "named": named, "began_at": min(since.values())}]


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
