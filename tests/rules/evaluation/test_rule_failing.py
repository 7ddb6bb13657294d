"""A rule that fails or is slow is itself an alert."""

from datetime import UTC, datetime, timedelta

from gpuwarden.alert import AlertState
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.evaluation.rule_failing import NAME, failing_rows, failing_rule
from gpuwarden_rules.evaluation.state import step
from gpuwarden_rules.evaluation.statistics import RuleStatistics
from gpuwarden_rules.incidents.graph import graph_of
from gpuwarden_rules.incidents.state import step as incidents_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_its_text_says_which_rule_since_when_and_why() -> None:
    rule = failing_rule()
    assert rule.name == NAME
    stats = {
        "good": RuleStatistics(),
        "bad": RuleStatistics(failing_since=NOW, last_error="Binder Error: no column x"),
        "slow": RuleStatistics(slow_since=NOW, last_seconds=31.25),
    }
    state, _ = step({}, failing_rows(stats), rule, NOW)
    state, transitions = step(state, failing_rows(stats), rule, NOW + timedelta(minutes=2))
    assert sorted(
        (t.alert.state, t.alert.labels["rule"], t.alert.summary) for t in transitions
    ) == [
        (AlertState.FIRING, "bad", "Rule bad fails, for 2 min: Binder Error: no column x"),
        (
            AlertState.FIRING,
            "slow",
            "Rule slow is slow, for 2 min: 31.2 s for the last evaluation",
        ),
    ]


def test_several_slow_rules_are_the_collectors() -> None:
    slow = RuleStatistics(slow_since=NOW, last_seconds=31.25)
    bad = RuleStatistics(failing_since=NOW)
    rows = failing_rows({"bad": bad, "one": slow, "two": slow})
    assert [row["rule"] for row in rows] == ["bad"]


def test_what_fails_and_lags_on_a_collector_short_of_cpu_is_one_incident() -> None:
    rules = [failing_rule(), *(rule for rule in builtin_rules() if rule.name in _LATE)]
    rows = [
        ("rule_failing", {"rule": "gpu_hot", "trouble": "fails", "reason": "longer than 30 s"}),
        ("ingest_lag", {"host": "h1", "value": 90.0}),
        ("storage_stalled", {"host": "h1", "value": 4000.0, "what": "rollups are behind"}),
        ("rules_slow", {"host": "h1", "value": 17.0, "allowed": 5.0, "slow": 9, "what": "is short of CPU"}),
    ]  # fmt: skip
    by_name = {rule.name: rule for rule in rules}
    alerts = []
    for name, row in rows:
        rule = by_name[name]
        found, _ = step({}, [row], rule, NOW)
        found, _ = step(found, [row], rule, NOW + timedelta(minutes=10))
        alerts += found.values()
    now = NOW + timedelta(minutes=11)
    (incident,) = incidents_of({}, alerts, graph_of(rules), {}, now).incidents.values()
    assert (incident.rule, len(incident.members)) == ("rules_slow", 4)
    assert incident.summary.startswith(
        "The collector on h1 is short of CPU: 9 rules take 17 s of 5 s"
    )


_LATE = ("ingest_lag", "storage_stalled", "rules_slow")
