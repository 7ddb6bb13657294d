"""A replay finds what live evaluation would have found, with a fraction of its queries."""

from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.alert import AlertState
from gpuwarden.clock import ManualClock
from gpuwarden.query import Result
from gpuwarden_rules.backtest.replay import first_sample_at, replay, step_s_of
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.overrides import Location, Locations, OverridePlan, parse_overrides
from gpuwarden_rules.evaluation.state import RuleState, step
from gpuwarden_rules.testing import MemoryDatabase

START = datetime(2026, 1, 1, tzinfo=UTC)
TOLERANCE_MIN = 2.01
"""The replay knows a change to within a minute, and live evaluation sees it on the next minute."""


HOLDS = (
    "SELECT DISTINCT node, 6.0 AS usd_per_hour FROM spans "
    "WHERE began_at <= $now::TIMESTAMP AND over_at > $now::TIMESTAMP"
)


def rule_of(hold: str = "0s", keep: str = "0s", params: str = "{}", uses: str = "") -> Rule:
    (rule,) = parse(
        f"""
        rules:
          - {{name: hot, severity: info, labels: [node], interval: 60s, for: {hold},
             keep_firing_for: {keep}, summary: "{{node}}", remedy: r, params: {params},
             sql: "{HOLDS} {uses}"}}
        """,
        "r.yaml",
    )
    return rule


@cache
def _with_spans() -> MemoryDatabase:
    database = MemoryDatabase()
    database.execute("CREATE TABLE spans (node VARCHAR, began_at TIMESTAMP, over_at TIMESTAMP)")
    return database


class History:
    """A Querier: the condition holds within spans of minutes, as (node, from, to)."""

    def __init__(self, *spans: tuple[str, int, int]) -> None:
        self.spans = spans
        self.queries = 0
        self._database = _with_spans()
        self._database.execute("DELETE FROM spans")
        for node, *ends in spans:
            at = [f"TIMESTAMP '2026-01-01' + to_minutes({minute})" for minute in ends]
            self._database.execute(f"INSERT INTO spans VALUES ('{node}', {', '.join(at)})")

    def nodes(self, at: datetime) -> list[str]:
        minute = (at - START).total_seconds() / 60
        return sorted({node for node, first, last in self.spans if first <= minute < last})

    async def query(self, sql, params=None, *, timeout_s=None, row_limit=None) -> Result:
        self.queries += 1
        return self._database.run(sql, params)


def live(rule: Rule, history: History, minutes: int) -> list[tuple[str, float, float | None]]:
    """Node, minute it fired and was over, of an evaluation every minute."""
    state, found = RuleState(), {}
    for minute in range(minutes + 1):
        now = START + timedelta(minutes=minute)
        rows = [{"node": node, "usd_per_hour": 6.0} for node in history.nodes(now)]
        state, transitions = step(state, rows, rule, now)
        for alert in (t.alert for t in transitions if t.alert.fired_at):
            found[alert.fingerprint, alert.active_at] = alert
    return sorted(map(minutes_of, found.values()))


def minutes_of(alert) -> tuple[str, float, float | None]:
    over = None
    if alert.state is AlertState.RESOLVED:
        over = (alert.resolved_at - START).total_seconds() / 60
    return alert.labels["node"], (alert.fired_at - START).total_seconds() / 60, over


async def test_an_episode_has_its_times_and_its_cost() -> None:
    history = History(("n1", 100, 220), ("n2", 300, 600))
    done = await replay(
        rule_of("10m", "5m"), history, START, START + timedelta(minutes=600), ManualClock(START)
    )
    assert [minutes_of(alert) for alert in done.episodes] == [
        ("n1", pytest.approx(110, abs=1), pytest.approx(225, abs=1)),
        ("n2", pytest.approx(310, abs=1), None),
    ]
    assert done.usd() == pytest.approx(6 * (125 + 300) / 60, abs=0.5)
    assert 120 <= done.evaluations < 150
    assert done.queries == history.queries < 20


SPANS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.integers(6, 120)), max_size=6
)


@settings(max_examples=25, deadline=None)
@given(SPANS, st.sampled_from([0, 3, 10, 30]), st.sampled_from([0, 4, 20]))
async def test_a_replay_finds_what_live_evaluation_finds(
    spans: list[tuple[str, int, int]], hold: int, keep: int
) -> None:
    """As long as what holds, and what does not, lasts longer than the time between two evaluations."""
    merged: list[tuple[str, int, int]] = []
    for node, first, length in sorted(spans):
        if not merged or merged[-1][0] != node or first - merged[-1][2] > 6:
            merged.append((node, first, first + length))
        else:
            node, begin, end = merged.pop()
            merged.append((node, begin, max(end, first + length)))
    history = History(*merged)
    rule = rule_of(f"{hold}m", f"{keep}m")
    done = await replay(rule, history, START, START + timedelta(minutes=500), ManualClock(START))
    found, expected = sorted(map(minutes_of, done.episodes)), live(rule, history, 500)
    lasting = [e for e in expected if all(abs(e[1] - m[2]) > TOLERANCE_MIN for m in merged)]
    for node, fired, over in lasting:
        near = [f for f in found if f[0] == node and abs(f[1] - fired) <= TOLERANCE_MIN]
        assert near, (expected, found)
        assert any(
            (f[2] is None) == (over is None) and (over is None or abs(f[2] - over) <= TOLERANCE_MIN)
            for f in near
        ), (expected, found)
    assert len(found) <= len(expected) + len(expected) - len(lasting) + 1


async def test_a_replay_has_each_place_as_its_overrides_say() -> None:
    """One node's rule is off, and another's has a window that asks for closer evaluations."""
    rule = rule_of(params="{window: 10m}", uses="AND $window > 0")
    overrides = parse_overrides(
        """
        overrides:
          - {rules: [hot], match: {node: n1}, enabled: false}
          - {rules: [hot], match: {node: n2}, params: {window: 2m}, severity: critical}
        """,
        "overrides.yaml",
        [rule],
    )
    places = Locations(nodes={node: Location(node) for node in ("n1", "n2", "n3")})
    history = History(("n1", 10, 50), ("n2", 10, 50), ("n3", 10, 50))
    plan = OverridePlan(rule, overrides, places)
    done = await replay(
        rule, history, START, START + timedelta(minutes=60), ManualClock(START), plan=plan
    )
    severities = {alert.labels["node"]: alert.severity.value for alert in done.episodes}
    assert severities == {"n2": "critical", "n3": "info"}
    assert done.step_s == 120
    assert done.queries == history.queries


@pytest.mark.parametrize(
    ("hold", "windows", "seconds"),
    [
        ("0s", [], 60),  # nothing tells how long it lasts
        ("0s", ["2m", "1h"], 120),
        ("0s", ["10s"], 60),  # no oftener than it is evaluated
        ("0s", ["30m"], 300),
        ("4m", ["2m"], 240),  # what lasts less does not fire
        ("30m", ["2m"], 300),
        ("2m", [], 120),
    ],
)
def test_looks_are_no_further_apart_than_what_fires_lasts(
    hold: str, windows: list[str], seconds: float
) -> None:
    names = [f"w{number}_window" for number in range(len(windows))]
    params = ", ".join(f"{n}: {w}" for n, w in zip(names, windows, strict=True))
    uses = "".join(f" AND ${name} > 0" for name in names)
    assert step_s_of(rule_of(hold, params=f"{{{params}}}", uses=uses)) == seconds


async def test_history_begins_at_the_first_sample(database) -> None:
    assert await first_sample_at(database) is None
    row = {"node": "n1", "kind": "x", "severity": "info", "message": "", "simulated": False}
    database.insert("events", [{**row, "ts": START}])
    assert await first_sample_at(database) == START
