"""Money has one definition: alert, page, report, digest and SQL give the same cents on a simulated week."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.alert import Alert
from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.query import Querier
from gpuwarden.waste import COUNTED_MINUTES, WasteScope, waste_sql
from gpuwarden.waste_report import NOBODY, report_sql
from gpuwarden_collector.rule_stores import SqlAlertStore
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.money import MoneyPage, MoneyRange
from gpuwarden_dashboards.read.fleet import read_fleet
from gpuwarden_dashboards.read.money import MoneyQuestion, read_money
from gpuwarden_dashboards.read.report import read_report
from gpuwarden_dashboards.report import document
from gpuwarden_dashboards.templates import Templates
from gpuwarden_dashboards.templates import usd as dollars
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.notify.digest import read
from gpuwarden_rules.testing.database import MemoryDatabase

WEEK = timedelta(days=7)
MINUTE = timedelta(minutes=1)
PRICES = (2.95, 3.61, 1.37)
"""USD an hour of each GPU, each on a node of its own; one without costs as the first."""
HELD = 20 * 2**30
KINDS = {
    # idle_seconds, busy_seconds, util_percent_avg, memory_used_bytes_max, power_watts_avg
    "free": (60, 0, 0, 0, 90.0),
    "held": (60, 0, 0, HELD, None),
    "busy": (0, 60, 97, HELD, 600.0),
    "hot": (0, 60, 99, HELD, 400.0),
    "starved": (30, 30, 35, HELD, 300.0),
    "slow": (10, 50, 60, HELD, 350.0),
    "given": (60, 0, 0, 0, 90.0),
    "serving": (57, 3, 4, HELD, 120.0),
    "poked": (58, 2, 2, HELD, 120.0),
    "asleep": (60, 0, 0, HELD, 90.0),
}
"""Minutes of a GPU; `given`: to a job; `lost`: there are none; `gap`: nor has its node any."""
Span = tuple[str, int]
PAGE_TEMPLATES = Templates(load_assets())
PAGE = MoneyPage(PAGE_TEMPLATES, cast(Querier, None), SystemClock())


class AlertsWriter:
    """Keeps alerts in the database."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def write(self, changes: Any) -> None:
        """Replace the existing ones."""
        self._database.execute("DELETE FROM alerts")
        rows = changes.upserted["alerts"].to_pylist()
        self._database.insert("alerts", [{k: _utc(v) for k, v in r.items()} for r in rows])


class Week:
    """A simulated week of a small fleet that ends now, in a transaction: SQL's `now()` stands still in it."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database
        with suppress(duckdb.TransactionException):
            database.execute("ROLLBACK")
        database.execute("BEGIN")
        self.now: datetime = self.one("SELECT now()::TIMESTAMP")[0]
        self.closed_until = self.now.replace(second=0, microsecond=0)
        self.end = self.closed_until - self.closed_until.minute % COUNTED_MINUTES * MINUTE
        """Until when the view `waste` counts; minutes that are closed go on after it."""
        self.begin = self.end - WEEK
        self.jobs: dict[int, str] = {}
        """Job of a GPU; of others 55."""

    def lived(self, gpu: int, spans: list[Span]) -> datetime:
        """Write what a GPU did, the last span until now; when that began."""
        node, uuid = f"n{gpu}", f"GPU-{gpu}"
        one = {"node": node, "simulated": False, "first_seen_at": self.begin}
        self.database.insert("nodes", [{**one, "agent_id": "a", "boot_id": "b", "last_seen_at": self.now, "labels": '{"team": "t"}'}])  # fmt: skip
        board = {"gpu_uuid": uuid, "gpu": gpu, "model": "NVIDIA H100", "sm_clock_max_mhz": 2000}
        usd_per_hour = PRICES[gpu] if gpu < len(PRICES) else PRICES[0]
        prices = {"usd_per_hour": usd_per_hour, "usd_per_kwh": 0.2, "co2_g_per_kwh": 400.0}
        self.database.insert("gpus", [{**one, **board, **prices, "last_seen_at": self.now}])
        until = self.end
        for kind, minutes in reversed(spans):
            since = max(self.begin, until - minutes * MINUTE)
            if since < until:
                self._fill(gpu, kind, since, self.closed_until if until == self.end else until)
                began_at, until = since, since
        return began_at if len(spans) == 1 else self.end - spans[-1][1] * MINUTE

    def _fill(self, gpu: int, kind: str, since: datetime, until: datetime) -> None:
        minutes = int((until - since) / MINUTE)
        ts = f"TIMESTAMP '{since.replace(tzinfo=None)}' + to_minutes(m)"
        key = f"{ts} AS ts, 'n{gpu}' AS node, false AS simulated, 60 AS samples"
        source = f"FROM range({minutes}) r(m)"
        if kind == "gap":
            return
        self.database.execute(f"INSERT INTO host_1m BY NAME SELECT {key} {source}")
        if kind == "lost":
            return
        if kind == "given":
            self.database.execute(f"""
                INSERT INTO allocation_samples BY NAME SELECT {ts} + to_seconds(s) AS ts, 'n{gpu}' AS node,
                'GPU-{gpu}' AS gpu_uuid, {gpu} AS gpu, false AS simulated, 'slurm' AS scheduler, '56' AS job,
                'bob' AS username, 0 AS processes {source}, range(0, 60, 10) q(s)""")
        idle, busy, util, used, watts = KINDS[kind]
        hot = 30 if kind == "hot" else 0
        self.database.execute(f"""
            INSERT INTO gpu_1m BY NAME SELECT {key}, 'GPU-{gpu}' AS gpu_uuid, {gpu} AS gpu, 6 AS detail_samples,
            1 AS health_samples, {idle} AS idle_seconds, {busy} AS busy_seconds, 0 AS unknown_seconds,
            {util} AS util_percent_avg, {util} AS util_percent_p95, {used} AS memory_used_bytes_max,
            {"NULL" if watts is None else watts} AS power_watts_avg, power_watts_avg * epoch(ts) AS energy_joules_total_last,
            1500 AS sm_clock_mhz_avg,
            {hot} AS hw_thermal_seconds_delta {source}""")
        if used:
            self.database.execute(f"""
                INSERT INTO process_1m BY NAME SELECT {key}, 'GPU-{gpu}' AS gpu_uuid, {gpu} AS gpu, 7 AS pid,
                'ada' AS username, '{self.jobs.get(gpu, "55")}' AS job, 'python' AS process_name,
                TIMESTAMP '{self.begin.replace(tzinfo=None)}' AS started_at,
                {used} AS gpu_memory_bytes_max {source}""")
        if kind in ("starved", "busy"):
            at = {"began_at": since + 2 * MINUTE, "seen_at": until, "ended_at": until}
            found = "loader_workers" if kind == "starved" else "compute_bound"
            self.database.insert("diagnoses", [{
                "subject": f"GPU-{gpu}", "kind": "gpu", "bottleneck": found, "confidence": 1.0, "summary": "",
                "evidence": "[]", "misses": "[]", "gpus": 1, "simulated": False, **at,
            }])  # fmt: skip

    def rolled(self) -> None:
        """Roll up the hours that are over, as the collector does."""
        begin, end = (at.replace(minute=0, tzinfo=None) for at in (self.begin, self.end))
        sql = waste_sql(WasteScope(begin, end))
        self.database.execute(f"INSERT INTO waste_1h BY NAME {sql}")

    def alerts(self) -> dict[str, Alert]:
        """Alerts of the rules about idle GPUs now, by GPU; saved, too."""

        self.database.advance_idleness()
        clock = ManualClock(self.now)
        writer: Any = AlertsWriter(self.database)
        names = ("gpu_idle_held", "gpu_allocated_idle", "gpu_idle_free")
        rules = [rule for rule in builtin_rules() if rule.name in names]
        store = SqlAlertStore(writer, self.database, clock)
        engine = RuleEngine(rules, self.database, store, clock)

        async def evaluated() -> None:
            for rule in rules:
                await engine.evaluate(rule.name)
            await engine.close()

        asyncio.run(evaluated())
        return {alert.labels["gpu_uuid"]: alert for alert in engine.alerts}

    def one(self, sql: str, *params: Any) -> tuple[Any, ...]:
        """The only row of a query."""
        (row,) = self.database.run(sql, {f"p{n}": value for n, value in enumerate(params)}).rows
        return row

    def month_usd(self) -> float:
        """What SQL has of the month that runs."""
        (usd,) = self.one(
            "SELECT sum(usd) FROM waste WHERE ts >= date_trunc('month', $p0::TIMESTAMP)", self.now
        )
        return float(usd or 0)


def _utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def cents(usd: float) -> int:
    """What a person reads."""
    return round(100 * usd)


@pytest.fixture(scope="module")
def database() -> Iterator[MemoryDatabase]:
    memory = MemoryDatabase()
    yield memory
    memory.close()


_KIND = st.sampled_from([*KINDS, "lost"])
_SPANS = st.lists(st.tuples(_KIND, st.integers(7, 3000)), min_size=4, max_size=9)
_LAST = st.integers(45, 5000)


def _over_a_week(spans: list[Span], *last: Span) -> list[Span]:
    return [("busy", 7 * 1440), *spans, *last]


def report_and_page_say(week: Week, by: str, usd: float, wasted: float) -> None:
    """The report and the page have what SQL has."""
    database = week.database
    since = (week.now - timedelta(days=8)).replace(minute=0, second=0, microsecond=0)
    rows = database.run(report_sql(by), {"since": since})
    lines = [
        one
        for row in rows.rows
        if not (one := dict(zip(rows.columns, row, strict=True)))["is_total"]
    ]
    assert cents(sum(line["usd"] for line in lines)) == cents(usd)
    assert cents(sum(line["wasted_usd"] or 0 for line in lines)) == cents(wasted)
    until = week.now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    asked = MoneyRange(MoneyQuestion(since, until, by), "")
    money = asyncio.run(read_money(database, asked.question, week.now))
    shown = {one.usage.name or NOBODY: one.usage.wasted_usd or 0 for one in money.lines}
    # Closer than a cent: half a cent, summed in another order, is rounded up or down.
    said = {one["name"]: one["wasted_usd"] or 0 for one in lines}
    assert shown == pytest.approx(said, rel=0, abs=1e-6)
    assert cents(sum(bar.usd or 0 for bar in money.bars)) == cents(usd)
    html = PAGE.render(money, asked)
    assert f"<span>Spent</span><b>{dollars(usd)}</b>" in html
    assert f"<span>Wasted</span><b>{dollars(wasted)}</b>" in html
    read_again = asyncio.run(read_report(database, asked.question, week.now))
    printed = document(read_again, PAGE_TEMPLATES)
    assert f"Spent<br><b>{dollars(usd)}</b>" in printed.html
    assert f"Spent: {dollars(usd)} for" in printed.text
    assert f"Wasted: {dollars(wasted)}, " in printed.text
    forecast = read_again.money.forecast
    assert forecast is not None
    assert cents(forecast.so_far) == cents(week.month_usd())


@pytest.mark.slow
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    spans=st.tuples(_SPANS, _SPANS, _SPANS),
    last=st.tuples(_LAST, _LAST),
    by=st.sampled_from(["gpu", "job"]),
)
def test_all_of_the_time_is_billed_once_and_everything_says_the_same_cents(
    database: MemoryDatabase, spans: Any, last: tuple[int, int], by: str
) -> None:
    week = Week(database)
    # Before it became idle the GPU worked, longer than the hour in which that was.
    began = {
        "GPU-0": week.lived(0, _over_a_week(spans[0], ("busy", 90), ("free", last[0]))),
        "GPU-1": week.lived(1, _over_a_week(spans[1], ("hot", 90), ("held", last[1]))),
    }
    week.lived(2, _over_a_week(spans[2]))
    week.rolled()

    # Every second of every GPU has one label, and costs its price.
    hours, usd, wasted = week.one(
        "SELECT sum(gpu_hours), sum(usd), sum(usd) FILTER (is_waste) FROM waste"
    )
    assert hours == pytest.approx(3 * 168)
    assert cents(usd) == cents(168 * sum(PRICES))

    report_and_page_say(week, by, usd, wasted)

    # An alert costs what the report has of its label since it began, however long ago that is.
    alerts = week.alerts()
    listed = asyncio.run(read_fleet(database, week.now))[0].alerts
    said = {(a["node"], a["rule"]): a["usd_so_far"] for a in listed}
    assert {"GPU-0", "GPU-1"} <= alerts.keys()
    for uuid, category in (("GPU-0", "free"), ("GPU-1", "idle_held")):
        alert = alerts[uuid]
        # The week ends up to two minutes and a step before now: what began is counted back from now.
        assert abs(alert.began_at - began[uuid]) <= (COUNTED_MINUTES + 2) * MINUTE
        (spent,) = week.one(
            "SELECT sum(usd) FROM waste WHERE gpu_uuid = $p0 AND category = $p1 "
            "AND ts >= date_trunc('hour', $p2::TIMESTAMP)",
            *(uuid, category, alert.began_at),
        )
        assert spent == pytest.approx(PRICES[int(uuid[-1])] * last[int(uuid[-1])] / 60, abs=0.4)
        shown = alert.usd_so_far(week.now)
        assert shown is not None
        # The rule counts the begin of a short idle time back from now: what it finds late costs nobody.
        late = max((alert.began_at - began[uuid]) / MINUTE, 0)
        usd_late = PRICES[int(uuid[-1])] * math.ceil(late) / 60
        assert 0 <= cents(spent) - cents(shown) <= math.ceil(100 * usd_late)
        assert cents(shown) == cents(said[alert.labels["node"], alert.rule])
        assert "$" not in alert.summary

    # The digest of a day has what SQL has of it.
    until = week.end.replace(minute=0)
    since = until - timedelta(days=1)
    digest = asyncio.run(read(database, since, until, 5))
    (of_day,) = week.one(
        "SELECT coalesce(sum(usd) FILTER (is_waste), 0) FROM waste WHERE ts >= $p0 AND ts < $p1",
        since,
        until,
    )
    assert cents(digest.usd or 0) == cents(of_day)

    # Energy is what was measured: never 0 for what was not.
    kinds = week.one(
        "SELECT count(energy_kwh) FILTER (category = 'idle_held' AND node = 'n1' AND ts >= $p0), "
        "sum(energy_kwh * 0.4), sum(co2_kg) FROM waste",
        began["GPU-1"] + timedelta(hours=1),
    )
    assert kinds[0] == 0
    assert kinds[1] == pytest.approx(kinds[2])
