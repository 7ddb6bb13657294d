"""Ten stretches of a GPU's life, with what they cost by hand: everything that names dollars names the same cents."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from tests.test_money import PRICES, Span, Week, cents

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.read.fleet import read_fleet
from gpuwarden_dashboards.read.fleet_past import read_week
from gpuwarden_dashboards.read.money import MoneyQuestion, read_money
from gpuwarden_dashboards.read.report import read_report
from gpuwarden_dashboards.report import document
from gpuwarden_dashboards.templates import Templates
from gpuwarden_dashboards.templates import usd as dollars
from gpuwarden_rules.backtest.replay import Replay, replay
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.testing.database import MemoryDatabase

pytestmark = pytest.mark.slow
HELD, FREE, ALLOCATED = "gpu_idle_held", "gpu_idle_free", "gpu_allocated_idle"
USD_HOUR = PRICES[0]


@dataclass(frozen=True)
class MoneyCase:
    """What a GPU did until now, after two days of work, and what of it was idle."""

    spans: list[Span]
    category: str
    idle_minutes: int
    """Counted by hand."""
    rule: str | None
    """The rule whose alert tells it; None: nobody is told."""
    is_over: bool = False
    """Whether the alert has ended."""

    @property
    def usd(self) -> float:
        """By hand."""
        return self.idle_minutes * USD_HOUR / 60


CASES = {
    "a job that sleeps since six hours": MoneyCase([("held", 360)], "idle_held", 360, HELD),
    "a job that sleeps since 100 minutes": MoneyCase([("held", 100)], "idle_held", 100, HELD),
    "a GPU that nobody has": MoneyCase([("free", 360)], "free", 360, FREE),
    "a GPU that a job was given and does not use": MoneyCase(
        [("given", 180)], "allocated_idle", 180, ALLOCATED
    ),
    "a server that answers for three seconds of each minute": MoneyCase(
        [("serving", 360)], "idle_held", 0, None
    ),
    "a job that sleeps, with three hours of which nobody knows": MoneyCase(
        [("asleep", 120), ("gap", 180), ("asleep", 60)], "idle_held", 180, HELD
    ),
    "a job that slept for two hours and works again": MoneyCase(
        [("held", 120), ("busy", 45)], "idle_held", 120, HELD, is_over=True
    ),
    "a job that sleeps and that a monitoring tool wakes for a moment": MoneyCase(
        [("held", 100), ("poked", 1), ("held", 100)], "idle_held", 200, HELD
    ),
    "a job that slept too short to be told": MoneyCase([("held", 20)], "idle_held", 20, None),
    "a GPU that was free until its job came to sleep": MoneyCase(
        [("free", 90), ("held", 80)], "idle_held", 80, HELD
    ),
}


@pytest.fixture(scope="module")
def database() -> Iterator[MemoryDatabase]:
    memory = MemoryDatabase()
    yield memory
    memory.close()


async def replayed(week: Week, rule: str, begin: datetime) -> Replay:
    """A backtest of the rule from before an instant until now."""
    (one,) = (one for one in builtin_rules() if one.name == rule)
    return await replay(one, week.database, begin - timedelta(hours=1), week.now, SystemClock())


def test_all_that_names_dollars_of_a_case_names_those_counted_by_hand(
    database: MemoryDatabase,
) -> None:
    week = Week(database)
    # GPUs that all have one price.
    cases = dict(enumerate(CASES.values(), start=len(PRICES)))
    for number, case in cases.items():
        week.lived(number, [("busy", 2 * 1440), *case.spans])
    week.rolled()
    alerts = week.alerts()
    page = asyncio.run(read_fleet(database, week.now))[0]
    # The page has no room for all.
    listed = {one["node"]: one for one in page.alerts}
    assert len(listed) > 2
    backtests = {
        rule: asyncio.run(replayed(week, rule, week.end - timedelta(hours=6)))
        for rule in (HELD, FREE, ALLOCATED)
    }

    asked = MoneyQuestion(week.begin, week.end + timedelta(hours=1), "node")
    money = asyncio.run(read_money(database, asked, week.now))
    lines = {line.usage.name: line.usage for line in money.lines}
    sql = "SELECT node, category, sum(usd) FROM waste GROUP BY ALL"
    waste = {(node, category): usd for node, category, usd in database.run(sql).rows}

    says: dict[str, dict[str, float | None]] = {}
    for (name, case), number in zip(CASES.items(), cases, strict=True):
        uuid, node = f"GPU-{number}", f"n{number}"
        says[name] = {
            "waste": waste.get((node, case.category), 0.0),
            "page of money": lines[node].categories.get(case.category, (0, 0.0))[1],
        }
        fires = case.rule is not None and not case.is_over
        assert (uuid in alerts) == fires
        if fires:
            assert alerts[uuid].rule == case.rule
            says[name]["alert"] = alerts[uuid].usd_so_far(week.now)
            if (row := listed.get(node)) is not None:
                says[name]["first page"] = row["usd_so_far"]
        if case.rule is not None:
            done = backtests[case.rule]
            episodes = [one for one in done.episodes if one.labels["gpu_uuid"] == uuid]
            # A gap of hours makes two alerts of one idle time.
            assert len(episodes) == 1 + any(kind == "gap" for kind, _ in case.spans)
            says[name]["backtest"] = replace(done, episodes=tuple(episodes)).usd()
    by_hand = {name: dict.fromkeys(says[name], cents(case.usd)) for name, case in CASES.items()}
    assert by_hand == {
        name: {what: None if usd is None else cents(usd) for what, usd in of_case.items()}
        for name, of_case in says.items()
    }

    report = asyncio.run(read_report(database, asked, week.now))
    assert (
        f"Spent: {dollars(money.total.usd)} for" in document(report, Templates(load_assets())).text
    )
    week_of_page = asyncio.run(read_week(database, week.now))["all"]
    (wasted,) = week.one("SELECT sum(usd) FROM waste WHERE is_waste")
    assert cents(week_of_page["wasted_usd"] or 0) == cents(wasted or 0)


def test_an_alert_that_comes_back_after_a_gap_costs_what_the_one_before_it_did_not(
    database: MemoryDatabase,
) -> None:
    case = CASES["a job that sleeps, with three hours of which nobody knows"]
    week = Week(database)
    week.lived(0, [("busy", 2 * 1440), *case.spans])
    week.rolled()
    database.advance_idleness()
    begin = week.end - timedelta(minutes=360)
    first, second = asyncio.run(replayed(week, HELD, begin)).episodes
    assert first.resolved_at is not None
    database.insert("alerts", [{
        "fingerprint": first.fingerprint, "rule": first.rule, "severity": "warning", "consequence": "waste",
        "state": "resolved", "node": "n0", "gpu_uuid": "GPU-0", "labels": "{}", "summary": first.summary, "remedy": "",
        "began_at": first.began_at, "active_at": first.active_at, "fired_at": first.fired_at, "seen_at": first.seen_at,
        "resolved_at": first.resolved_at, "simulated": False,
    }])  # fmt: skip
    alert = week.alerts()["GPU-0"]
    assert alert.began_at == second.began_at == first.began_at
    assert "of which 3.0 h without samples" in alert.summary
    assert first.accounted_usd == pytest.approx(2 * USD_HOUR)
    assert alert.accounted_usd == pytest.approx(USD_HOUR) == pytest.approx(second.accounted_usd)
