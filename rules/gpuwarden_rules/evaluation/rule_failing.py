"""Makes alerts of rules that fail, of a single slow rule, and of rules that need the lake while it is away.

If several rules are slow, the collector is the cause: the rule `rules_slow` reports it.
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
    summary: "Rule {rule} {trouble}, for {active}: {reason}"
    remedy: >-
      Its alerts do not change until it works. Run `gpuwarden rules check`. If it is slow, use a shorter
      window or a longer interval.
    sql: SELECT $now

  - name: lake_away
    severity: critical
    for: 1m
    keep_firing_for: 1m
    caused_by: {storage_stalled: []}
    summary: >-
      The lake's catalog has been unreadable for {active}: {value:rule is|rules are} not judged ({named}). Alerts of
      these do not change. Other rules are judged by the newest rows.
    remedy: >-
      Check that the catalog (PostgreSQL, or lake/catalog.sqlite) can be reached and read; `journalctl -u
      gpuwarden-collector -p err` shows what fails. A minute after that, all rules are judged again.
    sql: SELECT $now
"""
_NAMED_MAX = 5


def failing_rule() -> Rule:
    """The rule about failing rules; its SQL is never run."""
    return parse(_TEXT, NAME)[0]


def lake_away_rule() -> Rule:
    """The rule about the lake; its SQL is never run."""
    return parse(_TEXT, NAME)[1]


def lake_away_rows(stats: Mapping[str, RuleStatistics]) -> list[dict[str, Any]]:
    """One row, if rules cannot be judged without the lake."""
    since = {name: at for name, one in stats.items() if (at := one.unjudged_since) is not None}
    if not since:
        return []
    more = len(since) - _NAMED_MAX
    named = ", ".join(sorted(since)[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return [{"value": len(since), "named": named, "began_at": min(since.values())}]


def failing_rows(stats: Mapping[str, RuleStatistics]) -> list[dict[str, Any]]:
    """A row for each rule whose last evaluation failed, and for a single rule that is slower than its interval."""
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
