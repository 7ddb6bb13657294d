"""The engine's figures as Prometheus reads them."""

import re
from datetime import UTC, datetime, timedelta

from gpuwarden_rules.evaluation.exposition import exposition
from gpuwarden_rules.evaluation.statistics import RuleStatistics

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SAMPLE = re.compile(
    r"(gpuwarden_rules_[a-z_]+)\{[a-z]+=\"[a-z_]+\"(,[a-z]+=\"[a-z]+\")?\} [0-9.e+-]+\Z"
)


def test_a_rule_has_all_its_figures() -> None:
    stats = RuleStatistics(
        evaluations=7, failures=2, seconds_total=1.75, last_seconds=0.25, last_at=NOW,
        last_error="no", last_success_at=NOW - timedelta(seconds=90), pending=1, firing=3, dropped=4,
        unknown=5, muted=2, cannot_run="no column",
    )  # fmt: skip
    text = exposition({"hot": stats}, NOW)
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'gpuwarden_rules_evaluations_total{rule="hot"} 7',
        'gpuwarden_rules_evaluation_failures_total{rule="hot"} 2',
        'gpuwarden_rules_evaluation_seconds_total{rule="hot"} 1.75',
        'gpuwarden_rules_alerts_dropped_total{rule="hot"} 4',
        'gpuwarden_rules_last_evaluation_seconds{rule="hot"} 0.25',
        'gpuwarden_rules_since_success_seconds{rule="hot"} 90',
        'gpuwarden_rules_alerts{rule="hot",state="pending"} 1',
        'gpuwarden_rules_alerts{rule="hot",state="firing"} 3',
        'gpuwarden_rules_alerts{rule="hot",state="unknown"} 5',
        'gpuwarden_rules_alerts_muted{rule="hot"} 2',
        'gpuwarden_rules_cannot_run{rule="hot"} 1',
    ]


def test_what_has_not_happened_has_no_series_and_is_not_zero() -> None:
    text = exposition({"hot": RuleStatistics()}, NOW)
    assert "seconds{" not in text
    assert "# TYPE gpuwarden_rules_since_success_seconds" not in text
    assert 'gpuwarden_rules_evaluations_total{rule="hot"} 0\n' in text


def test_a_clock_that_went_back_gives_no_negative_time() -> None:
    stats = RuleStatistics(last_success_at=NOW + timedelta(hours=1))
    assert 'gpuwarden_rules_since_success_seconds{rule="hot"} 0\n' in exposition(
        {"hot": stats}, NOW
    )


def test_families_stand_together_after_one_head_and_rules_in_order() -> None:
    lines = exposition(
        {"b": RuleStatistics(), "a": RuleStatistics(evaluations=12_345_678)}, NOW
    ).splitlines()
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    current = ""
    for line in lines:
        if line.startswith("#"):
            current = line.split()[2]
        else:
            match = SAMPLE.match(line)
            assert match
            assert match[1] == current
    assert lines[2:4] == [
        'gpuwarden_rules_evaluations_total{rule="a"} 12345678',
        'gpuwarden_rules_evaluations_total{rule="b"} 0',
    ]


def test_without_rules_there_is_nothing_to_say() -> None:
    assert exposition({}, NOW) == ""
