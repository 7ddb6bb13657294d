"""The report of money: the sums of the page, in HTML that mail programs show and in a text."""

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden.waste import CATEGORIES
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.money import REPORT_POLICY, MoneyPage
from gpuwarden_dashboards.read.money import MoneyQuestion
from gpuwarden_dashboards.read.report import read_report
from gpuwarden_dashboards.report import (
    category_parts,
    document,
    range_words,
)
from gpuwarden_dashboards.templates import NO_PRICE, Templates

NOW = datetime(2026, 3, 23, 8, tzinfo=UTC)
BEGIN, END = NOW.replace(hour=0) - timedelta(days=7), NOW.replace(hour=0)
TEMPLATES = Templates(load_assets())


@pytest.fixture
def spent(querier):
    """A week of two teams, a week before, an incident and a sick GPU."""
    sql = (
        "INSERT INTO waste_1h (ts, category, node, gpu, gpu_uuid, username, team, simulated, seconds, usd, energy_kwh, co2_kg) "
        "SELECT $ts::TIMESTAMP + to_hours(h), $category, 'n1', 0, 'GPU-0', $username, $team, false, 3600, 1.5, 0.5, 0.1 "
        "FROM range($hours) t(h)"
    )
    for category, user, team, at, hours in (
        ("productive", "ada", "vision", BEGIN, 30), ("idle_held", "<bob>", "<b>speech", BEGIN + timedelta(days=3), 10),
        ("idle_held", "ada", "vision", BEGIN - timedelta(days=2), 20),
    ):  # fmt: skip
        querier.db.execute(sql, {"ts": at.replace(tzinfo=None), "category": category, "username": user, "team": team, "hours": hours})  # fmt: skip
    at = BEGIN.replace(tzinfo=None)
    querier.db.execute(
        "INSERT INTO incidents (id, state, root, rule, severity, consequence, summary, remedy, place, labels, nodes, roots, "
        "alerts, firing, usd_per_hour, owner, simulated, began_at, opened_at) VALUES ('i1', 'open', 'f', 'gpu_idle_held', "
        "'warning', 'waste', 'GPU 0 of <n1> is idle.', 'Ask `bob`.', 'n1', '{}', 1, 1, 1, 1, 2.0, 'bob', false, $1, $1)",
        [at],
    )
    querier.db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels, summary, remedy, "
        "began_at, active_at, fired_at, seen_at, simulated) VALUES ('s', 'ecc', 'critical', 'failing_hardware', 'firing', "
        "'n1', 3, 'GPU-3', '{}', 'GPU 3 has <errors>.', 'Replace it.', $1, $1, $1, $1, false)",
        [at],
    )
    querier.db.execute("INSERT INTO budgets VALUES ('team', 'vision', 80.0)")
    return querier


async def made(
    querier, by="team", only=None, zone=UTC, link="https://g.example", begin=BEGIN, end=END
):
    report = await read_report(querier, MoneyQuestion(begin, end, by, only or {}, zone=zone), NOW)
    return document(report, TEMPLATES, link)


async def test_html_and_text_say_the_same_sums_and_what_to_do(spent) -> None:
    found = await made(spent)
    assert found.title == "GPUs, 16 to 22 March 2026: $60.00, 25 % wasted"
    for said in ("$60.00", "$15.00", "$45.00", "20.0 kWh", "40.0 GPU hours", "+100 % against the time before", "$80.00", "$1,461"):  # fmt: skip
        assert said in found.text
        assert said in found.html
    assert "bob: GPU 0 of <n1> is idle. It costs $2.00 an hour. Ask `bob`." in found.text
    assert "Budget of team vision: $75.00 of $80.00 spent; will be used up on March" in found.text
    assert "n1, GPU 3: GPU 3 has <errors>. Replace it." in found.text
    assert '<a href="https://g.example/incidents/i1">GPU 0 of &lt;n1&gt; is idle.</a>' in found.html
    assert "still sick" in found.html


async def test_mail_programs_show_all_of_it_and_no_name_becomes_markup(spent) -> None:
    html = (await made(spent)).html
    assert "&lt;b&gt;speech" in html
    for dropped in ("<script", "<svg", "<img", "<link", "<b>speech", "style=", "onclick", "url("):
        assert dropped not in html
    bars = re.findall(r'<table class="stack".*?</table>', html)
    assert len(bars) == 7 + 2 + 1
    for bar in bars:
        assert sum(map(float, re.findall(r'width="([\d.]+)%"', bar)[1:])) == pytest.approx(100, abs=0.5)  # fmt: skip
    assert '<td bgcolor="#2f8f5b" width="100.0%"' in html
    assert len(html) < 100_000, "Gmail cuts a mail at 102 KB"


async def test_a_name_cannot_act_on_a_terminal_nor_make_a_line(spent) -> None:
    spent.db.execute(
        "UPDATE waste_1h SET team = 'a\x1b[2J' || chr(10) || 'Spent: $0.00' WHERE team <> 'vision'"
    )
    text = (await made(spent)).text
    assert "\x1b" not in text
    assert "\nSpent: $0" not in text


async def test_an_unknown_price_is_said_once_and_is_no_zero(spent) -> None:
    spent.db.execute("UPDATE waste_1h SET usd = NULL")
    found = await made(spent)
    assert (found.html.count(NO_PRICE), found.text.count(NO_PRICE)) == (1, 1)
    assert found.title == "GPUs, 16 to 22 March 2026: 40.0 h, 25 % wasted"
    assert "Spent: – for 40.0 GPU hours" in found.text
    assert "$0" not in found.html.replace("$0.", "")


async def test_the_page_allows_the_style_sheet_of_the_report_alone(spent) -> None:
    page = MoneyPage(TEMPLATES, spent, ManualClock(NOW))
    handlers = {route.path: route.handler for route in page.routes()}
    path = "/money/report?begin=2026-03-16&end=2026-03-23&by=team"
    answer = await handlers["/money/report"](make_mocked_request("GET", path))
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert answer.headers["Content-Security-Policy"] == REPORT_POLICY
    assert f"style-src 'sha256-{digest}';" in REPORT_POLICY
    assert "script-src 'self'" in REPORT_POLICY
    assert 'href="/incidents/i1"' in answer.text


_USD = st.one_of(st.none(), st.floats(0, 1e6))
_OF_CATEGORIES = st.dictionaries(st.sampled_from([*CATEGORIES]), st.tuples(st.floats(0, 1e6), _USD))


@given(categories=_OF_CATEGORIES, more=st.floats(0, 1e6), has_prices=st.booleans())
def test_a_bar_is_as_wide_as_its_share_of_the_largest(categories, more, has_prices) -> None:
    values = [(usd or 0.0) if has_prices else hours for hours, usd in categories.values()]
    parts = category_parts(categories, sum(values) + more, has_prices=has_prices)
    assert sum(part.width for part in parts) == pytest.approx(100, abs=0.3)
    assert all(0 < part.width <= 100.0001 for part in parts)


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ("2026-03-16", "2026-03-23", "16 to 22 March 2026"),
        ("2026-03-16", "2026-03-17", "16 March 2026"),
        ("2026-02-23", "2026-03-02", "23 February to 1 March 2026"),
        ("2025-12-29", "2026-01-05", "29 December 2025 to 4 January 2026"),
        ("2026-03-16T05:00", "2026-03-17", "2026-03-16 05:00 to 2026-03-17 00:00 UTC"),
    ],
)
def test_a_time_in_words(begin, end, words) -> None:
    first, until = (datetime.fromisoformat(at).replace(tzinfo=UTC) for at in (begin, end))
    assert range_words(first, until, UTC) == words


def test_days_are_those_of_the_zone_also_when_clocks_change() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    begin, end = (datetime(2026, 3, day, tzinfo=berlin).astimezone(UTC) for day in (23, 30))
    assert end - begin == timedelta(hours=167)
    assert range_words(begin, end, berlin) == "23 to 29 March 2026"


@pytest.mark.parametrize(
    ("zone", "year", "month", "hours_of"),
    [("Europe/Berlin", 2026, 10, {25: 25}), ("Europe/Berlin", 2026, 3, {29: 23}), ("America/New_York", 2026, 11, {1: 25}),
     ("America/Santiago", 2026, 9, {6: 23}), ("Asia/Kolkata", 2026, 10, {})],
)  # fmt: skip
async def test_each_day_of_a_month_is_one_bar_also_when_clocks_change(
    querier, zone, year, month, hours_of
) -> None:
    place = ZoneInfo(zone)
    next_month = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=place)
    begin, end = (
        at.astimezone(UTC).replace(minute=0)
        for at in (datetime(year, month, 1, tzinfo=place), next_month)
    )
    querier.db.execute(
        "INSERT INTO waste_1h (ts, category, node, gpu, gpu_uuid, team, simulated, seconds, usd) "
        "SELECT ts, 'productive', 'n1', 0, 'GPU-0', 'vision', false, 3600, 1.0 "
        "FROM range($1::TIMESTAMP, $2::TIMESTAMP, INTERVAL 1 HOUR) t(ts)",
        [begin.replace(tzinfo=None), end.replace(tzinfo=None)],
    )
    html = (await made(querier, zone=place, begin=begin, end=end)).html
    bars = re.findall(r"nowrap>(\w{3} \d\d \w{3})&nbsp;</td>.*?&nbsp;\$([\d.]+)</td></tr>", html)
    days = [next_month - timedelta(days=n) for n in range(31, 0, -1)]
    asked = [at for at in days if at.month == month]
    assert [name for name, _ in bars] == [f"{at:%a %d %b}" for at in asked]
    assert [float(usd) for _, usd in bars] == [hours_of.get(at.day, 24) for at in asked]
