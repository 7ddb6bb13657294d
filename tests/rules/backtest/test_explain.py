"""An explanation shows what the rule saw, then and now, and what happened in between."""

from datetime import timedelta

import pytest

from gpuwarden_rules.backtest.explain import explanation
from gpuwarden_rules.definition.language import parse
from gpuwarden_rules.evaluation.engine import RuleEngine

RULE = """
rules:
  - {name: down, severity: warning, labels: [node], interval: 30s, for: 1m, summary: s, remedy: r,
     sql: "SELECT node, count(*) AS value FROM events WHERE ts <= $now::TIMESTAMP
     AND ts > $now::TIMESTAMP - INTERVAL 5 MINUTE GROUP BY node"}
"""


@pytest.fixture
async def fired(database, store, clock):
    """An engine, the fingerprint of its alert, and its row in the table."""
    engine = RuleEngine(parse(RULE, "r.yaml"), database, store, clock)
    row = {"ts": clock.now(), "node": "n1", "kind": "x", "severity": "info", "message": ""}
    database.insert("events", [{**row, "simulated": False}])
    for _ in range(3):
        await engine.evaluate("down")
        clock.advance(30)
    (alert,) = engine.alerts
    names = ("fingerprint", "rule", "summary", "remedy", "began_at", "active_at", "fired_at")
    row = {name: getattr(alert, name) for name in names}
    row |= {
        "severity": "warning",
        "consequence": "slow_work",
        "state": "firing",
        "labels": "{}",
        "simulated": False,
    }
    database.insert("alerts", [{**row, "seen_at": alert.seen_at}])
    return engine, alert


async def test_rows_then_and_now_and_the_times_between(fired, database, clock) -> None:
    engine, alert = fired
    clock.advance(3600)
    found = await explanation(engine, database, alert.fingerprint, clock.now())
    assert found is not None
    assert [(when, row) for when, _, row in found.rows] == [
        ("when it fired", {"node": "n1", "value": 1}),
        ("now", None),
    ]
    assert found.timeline() == [
        (alert.began_at, "began, as the samples say"),
        (alert.active_at, "found: pending"),
        (alert.active_at + timedelta(minutes=1), "fired"),
    ]


async def test_a_rule_that_is_gone_leaves_the_times(fired, database, store, clock) -> None:
    _, alert = fired
    engine = RuleEngine([], database, store, clock)
    found = await explanation(engine, database, alert.fingerprint, clock.now())
    assert found is not None
    assert (found.sql, found.rows, len(found.timeline())) == (None, [], 3)


async def test_sql_that_fails_now_is_said_in_its_place(fired, database, clock) -> None:
    engine, alert = fired
    database.execute("ALTER TABLE events RENAME TO elsewhere")
    found = await explanation(engine, database, alert.fingerprint, clock.now())
    assert found is not None
    database.execute("ALTER TABLE elsewhere RENAME TO events")
    assert all("events" in str(row) for _, _, row in found.rows)
