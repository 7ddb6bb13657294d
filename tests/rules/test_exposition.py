"""The engine's figures as Prometheus reads them."""

from datetime import UTC, datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families

from gpuwarden.alert import Consequence, Severity
from gpuwarden.incident import Incident, IncidentState
from gpuwarden_rules.evaluation.statistics import RuleStatistics
from gpuwarden_rules.exposition import rules_exposition

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def series(stats: dict[str, RuleStatistics]) -> dict[tuple[str, ...], float]:
    """Name without prefix, and label values, to value."""
    text = rules_exposition(stats, NOW)
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        (sample.name.removeprefix("gpuwarden_rules_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_rule_has_all_its_figures() -> None:
    stats = RuleStatistics(
        evaluations=7, skipped=9, failures=2, seconds_total=1.75, last_seconds=0.25,
        last_error="no", last_success_at=NOW - timedelta(seconds=90), pending=1, firing=3, dropped=4,
        unknown=5, muted=2, cannot_run="no column",
    )  # fmt: skip
    assert series({"hot": stats}) == {
        ("evaluations_total", "hot"): 7,
        ("evaluations_skipped_total", "hot"): 9,
        ("evaluation_failures_total", "hot"): 2,
        ("evaluation_seconds_total", "hot"): 1.75,
        ("alerts_dropped_total", "hot"): 4,
        ("last_evaluation_seconds", "hot"): 0.25,
        ("since_success_seconds", "hot"): 90,
        ("alerts", "hot", "pending"): 1,
        ("alerts", "hot", "firing"): 3,
        ("alerts", "hot", "unknown"): 5,
        ("alerts_muted", "hot"): 2,
        ("cannot_run", "hot"): 1,
    }


def test_what_has_not_happened_has_no_series_and_is_not_zero() -> None:
    text = rules_exposition({"hot": RuleStatistics()}, NOW)
    assert "seconds{" not in text
    assert "# TYPE gpuwarden_rules_since_success_seconds" not in text
    assert series({"hot": RuleStatistics()})["evaluations_total", "hot"] == 0
    assert rules_exposition({}, NOW) == ""


def test_a_clock_that_went_back_gives_no_negative_time() -> None:
    stats = RuleStatistics(last_success_at=NOW + timedelta(hours=1))
    assert series({"hot": stats})["since_success_seconds", "hot"] == 0


def test_open_incidents_are_counted_with_what_they_cost() -> None:
    def incident(number: int, usd: float | None, **more: object) -> Incident:
        known = {
            "severity": Severity.WARNING,
            "consequence": Consequence.WASTE,
            "usd_per_hour": usd,
        }
        fixed = {"summary": "s", "remedy": "r", "place": "", "labels": {}, "nodes": 1, "roots": 1}
        times = {"began_at": NOW, "opened_at": NOW}
        return Incident(id=str(number), root="f", rule="idle", **known | fixed | times | more)

    ended = {"state": IncidentState.RESOLVED}
    incidents = [incident(1, 2.5), incident(2, None), incident(3, 4.0), incident(4, 9.0, **ended)]
    incidents.append(incident(5, None, severity=Severity.CRITICAL))
    text = rules_exposition({}, NOW, incidents=incidents)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        'gpuwarden_incidents_open{consequence="waste",severity="critical"} 1.0',
        'gpuwarden_incidents_open{consequence="waste",severity="warning"} 3.0',
        'gpuwarden_incidents_usd_per_hour{consequence="waste",severity="warning"} 6.5',
    ]
