"""The page of money: bars, lines and totals are sums of the same rows, and what is not known is not shown as nothing."""

import csv
import io
import re
from bisect import bisect_right
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.http import ParameterError
from gpuwarden_dashboards.pages.money import RANGES, MoneyPage, MoneyRange, ticks
from gpuwarden_dashboards.read.money import BY, MoneyQuestion, bucket_sql, range_of, read_money
from gpuwarden_dashboards.templates import Templates

NOW = datetime(2026, 3, 12, 12, 30, tzinfo=UTC)
BEGIN, END = range_of("7d", NOW)
QUESTION = MoneyQuestion(BEGIN, END)


def add(querier, hours_ago, category, node, user, job, seconds, usd, *, simulated=False):
    querier.db.execute(
        "INSERT INTO waste_1h (ts, category, node, gpu, gpu_uuid, username, job, simulated, seconds, usd) "
        "VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?, ?)",
        [
            (NOW - timedelta(hours=hours_ago)).replace(minute=0, tzinfo=None),
            category, node, f"GPU-{node}", user, job, simulated, seconds, usd,
        ],
    )  # fmt: skip


@pytest.fixture
def spent(querier):
    """Two days of alice and bob, an hour of nobody, and a week before."""
    add(querier, 2, "productive", "n1", "alice", "7", 3600, 3.0)
    add(querier, 30, "idle_held", "n1", "alice", "8", 1800, 1.5)
    add(querier, 2, "busy", "n2", "bob", "9", 7200, None)
    add(querier, 3, "free", "n3", None, None, 3600, 2.0)
    add(querier, 200, "idle_held", "n1", "alice", "5", 3600, 1.0)
    return querier


@pytest.mark.parametrize("by", BY)
async def test_lines_and_bars_add_up_to_the_total(spent, by) -> None:
    money = await read_money(spent, MoneyQuestion(BEGIN, END, by), NOW)
    assert (money.total.gpu_hours, money.total.usd, money.total.wasted_usd) == (4.5, 6.5, 3.5)
    assert sum(line.usage.gpu_hours for line in money.lines) == 4.5
    assert sum(line.usage.usd or 0 for line in money.lines) == 6.5
    assert sum(bar.usd or 0 for bar in money.bars) == 6.5
    assert len(money.bars) == 7
    assert [bar.hours for bar in money.bars[-2:]] == [0.5, 4.0]
    assert money.before is not None
    assert money.before.wasted_usd == 1.0


async def test_the_most_waste_comes_first_with_its_trend_and_the_time_before(spent) -> None:
    money = await read_money(spent, QUESTION, NOW)
    nobody, alice, bob = money.lines
    assert (nobody.usage.name, nobody.trend, nobody.before) == (None, (), None)
    assert (alice.usage.name, alice.trend) == ("alice", [0, 0, 0, 0, 0, 1.5, 0])
    assert alice.before is not None
    assert alice.before.usd == 1.0
    assert (bob.usage.usd, bob.usage.wasted_usd) == (None, 0)


async def test_a_filter_leaves_one_name_or_nobody(spent) -> None:
    of_alice = MoneyQuestion(BEGIN, END, "job", {"username": "alice"})
    money = await read_money(spent, of_alice, NOW)
    assert {line.usage.name for line in money.lines} == {"7", "8"}
    assert money.before is not None
    assert money.before.usd == 1.0
    nobody = await read_money(spent, MoneyQuestion(BEGIN, END, "node", {"username": ""}), NOW)
    assert [line.usage.name for line in nobody.lines] == ["n3"]
    hostile = MoneyQuestion(BEGIN, END, "node", {"username": "' OR true --"})
    assert (await read_money(spent, hostile, NOW)).lines == []


def seen_first(querier, hours_ago) -> None:
    querier.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, simulated, first_seen_at) VALUES ('GPU-n1', 'n1', 0, false, ?)",
        [(NOW - timedelta(hours=hours_ago)).replace(tzinfo=None)],
    )


@pytest.mark.parametrize(
    ("earlier", "first_seen", "said"),
    [
        # Hours before now with waste, and when the first GPU was seen.
        ((200,), 1000, ""),
        ((200,), None, ""),
        ((), 40, "No data before 11 March: nothing to compare with."),
        ((), None, "No data before 11 March: nothing to compare with."),
        ((), 1000, "No data in the time before: nothing to compare with."),
        ((200,), 205, "No data before 3 March: the time before is not complete, and not compared."),
    ],
)
async def test_without_earlier_data_nothing_is_compared(querier, earlier, first_seen, said) -> None:
    for hours_ago in (2, 30, *earlier):
        add(querier, hours_ago, "idle_held", "n1", "alice", "7", 3600, 3.0)
    if first_seen is not None:
        seen_first(querier, first_seen)
    html = await asked(querier, "/money?since=7d")
    report = await asked(querier, "/money/report?since=7d")
    for text in (html, report):
        assert said in text
        assert ("against the time before" in text) == (not said)
        assert ("No data" in text) == bool(said)
    assert not re.search(r"\b0 %</span>", html)
    if not said:
        assert "+100 % against the time before" in html


async def test_what_did_not_change_is_said_in_words(querier) -> None:
    for hours_ago, usd in ((2, 1000.0), (200, 1000.1)):
        add(querier, hours_ago, "idle_held", "n1", "alice", "7", 3600, usd)
    html = await asked(querier, "/money?since=7d")
    assert html.count("as in the time before") == 2
    of_bob = await asked(querier, "/money?since=7d&username=bob")
    assert "to compare" not in of_bob
    add(querier, 3, "free", "n1", "bob", "8", 3600, 1.0)
    of_bob = await asked(querier, "/money?since=24h&username=bob")
    assert "No data of this filter before 12 March 09:00 UTC: nothing to compare with." in of_bob


async def test_a_limit_of_rows_cuts_cheap_names_and_never_the_total(spent) -> None:
    whole = await read_money(spent, MoneyQuestion(BEGIN, END, "job"), NOW)

    class Limited:
        """As a collector with a limit of rows."""

        async def query(self, sql, params=None, **more):
            found = await spent.query(sql, params, **more)
            return replace(found, rows=found.rows[:5])

    cut = await read_money(Limited(), MoneyQuestion(BEGIN, END, "job"), NOW)
    assert len(cut.lines) < len(whole.lines)
    assert (cut.total, cut.bars) == (whole.total, whole.bars)
    assert cut.lines[0].usage.usd == max(line.usage.usd or 0 for line in whole.lines)


async def test_simulated_gpus_count_only_alone(spent) -> None:
    add(spent, 2, "free", "sim", None, None, 3600, 100.0, simulated=True)
    money = await read_money(spent, QUESTION, NOW)
    assert (money.total.usd, money.is_simulated) == (6.5, False)
    spent.db.execute("DELETE FROM waste_1h WHERE NOT simulated")
    money = await read_money(spent, QUESTION, NOW)
    assert (money.total.usd, money.is_simulated, money.before) == (100.0, True, None)


async def test_the_month_is_what_it_cost_and_what_the_last_days_say_of_the_rest(spent) -> None:
    money = await read_money(spent, QUESTION, NOW)
    assert money.forecast is not None
    assert money.forecast.so_far == 7.5  # the time before was in this month, too
    first = (NOW - timedelta(hours=30)).replace(minute=0)
    rate = 6.5 / ((NOW - first) / timedelta(hours=1))
    left = (datetime(2026, 4, 1, tzinfo=UTC) - NOW) / timedelta(hours=1)
    assert money.forecast.whole == pytest.approx(7.5 + rate * left)


async def test_without_prices_hours_are_shown(querier) -> None:
    add(querier, 2, "free", "n1", None, None, 3600, None)
    money = await read_money(querier, QUESTION, NOW)
    assert (money.total.usd, money.has_prices, money.forecast) == (None, False, None)
    html = page(querier).render(money, MoneyRange(QUESTION, "7d"))
    assert "<span>Spent</span><b>–</b>" in html
    assert "GPU hours by day" in html
    assert "set one in the prices file" in html


async def test_an_open_incident_is_what_can_be_saved(spent) -> None:
    spent.db.execute(
        "INSERT INTO incidents (id, state, root, rule, severity, consequence, summary, remedy, place, labels, nodes, roots, "
        "alerts, firing, usd_per_hour, owner, simulated, began_at, opened_at) VALUES ('i1', 'open', 'f', 'gpu_idle_held', "
        "'warning', 'wasted_money', 'GPU 0 of <n1> is idle.', 'Ask `alice`.', 'n1', '{}', 1, 1, 1, 1, 2.0, 'alice', false, $1, $1)",
        [NOW.replace(tzinfo=None)],
    )
    money = await read_money(spent, QUESTION, NOW)
    (saving,) = money.savings
    assert saving.usd_per_month == pytest.approx(1461)
    assert saving.message == "alice: GPU 0 of <n1> is idle. It costs $2.00 an hour. Ask `alice`."
    html = page(spent).render(money, MoneyRange(QUESTION, "7d"))
    assert "GPU 0 of &lt;n1&gt; is idle." in html
    assert 'href="/incidents/i1"' in html
    assert "<n1>" not in html


def page(querier) -> MoneyPage:
    return MoneyPage(Templates(load_assets()), querier, ManualClock(NOW))


async def asked(querier, path: str) -> str:
    shown = page(querier)
    handlers = {route.path: route.handler for route in shown.routes()}
    answer = await handlers[path.partition("?")[0]](make_mocked_request("GET", path))
    return answer.text


async def test_an_address_keeps_what_was_chosen(spent) -> None:
    html = await asked(spent, "/money?by=job&username=alice&since=30d&sort=usd")
    assert 'href="/money?since=30d&amp;by=team&amp;sort=usd&amp;username=alice"' in html
    assert 'href="/money?since=month&amp;by=job&amp;sort=usd&amp;username=alice"' in html
    assert 'href="/money?since=30d&amp;by=job&amp;sort=usd"' in html, "without the filter"
    assert 'href="/jobs/7"' in html
    assert "begin=2026-03-12T00%3A00&amp;end=2026-03-12T13%3A00" in html, "a bar leads to its day"
    fixed = await asked(spent, "/money?begin=2026-03-12T00:10&end=2026-03-12T12:10")
    assert "2026-03-12 00:00 to 2026-03-12 13:00 UTC" in fixed
    for wrong in ("by=colour", "since=1s", "sort=x", "begin=2026-03-12&end=2026-03-11"):
        with pytest.raises(ParameterError):
            await asked(spent, f"/money?{wrong}")


async def test_csv_has_the_lines_with_hours_by_label(spent) -> None:
    rows = [*csv.DictReader(io.StringIO(await asked(spent, "/v1/money.csv?by=username&sort=name")))]
    assert [row["username"] for row in rows] == ["alice", "bob", ""]
    assert (rows[0]["usd"], rows[0]["idle_held_gpu_hours"]) == ("4.5", "0.5")
    assert rows[1]["usd"] == "", "an unknown price is not 0"


@given(st.floats(0, 1e9))
def test_ticks_are_few_round_and_reach_the_highest_value(most) -> None:
    found = ticks(most)
    assert 2 <= len(found) <= 6
    assert found[0] == 0
    assert found[-1] >= most * (1 - 1e-9)
    if most > 1e-6:
        assert len(found) >= 3
        assert found[-1] <= most * 2 + 1e-9


@pytest.mark.parametrize("since", RANGES)
@given(seconds=st.integers(978_307_200, 4_102_444_800))
def test_ranges_are_whole_hours_and_have_at_most_sixty_bars(since, seconds) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    begin, end = range_of(since, now)
    assert begin < end
    assert (end <= now) == (since == "last-month")
    for at in (begin, end):
        assert (at.minute, at.second, at.microsecond) == (0, 0, 0)
    question = MoneyQuestion(begin, end)
    assert 1 <= len(question.limits) <= 62
    assert question.before.end == begin


_HOUR_S = 3600
_ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "America/Santiago",
    "Australia/Lord_Howe",
]


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    begin_h=st.integers(0, 500_000),
    hours=st.one_of(st.integers(1, 100), st.integers(60, 1600), st.integers(1, 20_000)),
    zone=st.sampled_from(_ZONES).map(ZoneInfo),
)
def test_bars_follow_each_other_and_sql_numbers_hours_as_they_do(
    querier, begin_h, hours, zone
) -> None:
    begin = datetime.fromtimestamp(begin_h * _HOUR_S, UTC)
    question = MoneyQuestion(begin, begin + timedelta(hours=hours), zone=zone)
    limits = [*question.limits, question.end]
    assert limits[0] == begin
    assert all(a < b for a, b in pairwise(limits))
    assert all(b - a <= question.bucket + timedelta(hours=1) for a, b in pairwise(limits))
    assert all((at.minute, at.second) == (0, 0) for at in limits)
    near = sorted(
        {at + n * timedelta(hours=1) for at in limits for n in (-2, -1, 0, 1)}
        & {begin + n * timedelta(hours=1) for n in range(hours)}
    )
    sql = f"SELECT {bucket_sql(question)} FROM (SELECT unnest($1::TIMESTAMP[]) AS ts)"
    rows = querier.db.execute(sql, [[at.replace(tzinfo=None) for at in near]]).fetchall()
    assert [n for (n,) in rows] == [bisect_right(question.limits, at) - 1 for at in near]
    assert {n for (n,) in rows} == {*range(len(limits) - 1)}


@pytest.mark.parametrize(
    ("times", "by"),
    [
        ("begin=1970-01-01&end=1970-02-01", "day"),
        ("begin=9998-12-31T23:00&end=9998-12-31T23:59:59", "hour"),
        ("begin=1970-01-01&end=9998-12-31T23:59:59", "134 years"),
        ("begin=1&end=2026-03-12", "year"),
        ("begin=2020-01-01&end=2026-03-12", "week"),
    ],
)
async def test_any_time_is_answered_with_some_bars(spent, times, by) -> None:
    html = await asked(spent, f"/money?{times}")
    nothing = "No GPU was seen in that time" in html
    assert nothing == ("end=1970" in times or "begin=9998" in times)
    assert nothing or f"Dollars by {by}</h2>" in html
    assert html.count('class="hit"') <= 600


def budget(querier, kind: str, name: str, usd: float) -> None:
    querier.db.execute("INSERT INTO budgets VALUES (?, ?, ?)", [kind, name, usd])


async def test_a_budget_is_forecast_as_the_page_forecasts_the_same_filter(spent) -> None:
    spent.db.execute("UPDATE waste_1h SET team = 'vision' WHERE username = 'alice'")
    for kind, name, usd in (
        ("team", "vision", 20.0), ("username", "alice", 5.0), ("category", "free", 400.0), ("fleet", "", 100.0), ("team", "none", 7.0),
    ):  # fmt: skip
        budget(spent, kind, name, usd)
    money = await read_money(spent, QUESTION, NOW)
    found = {(one.kind, one.name): one for one in money.budgets}
    assert len(found) == 5
    for (kind, name), one in found.items():
        only = {} if kind == "fleet" else {kind: name}
        asked = await read_money(spent, MoneyQuestion(BEGIN, END, "job", only), NOW)
        if name == "none":
            assert (one.spent_usd, one.forecast_usd, asked.forecast) == (0, 0, None)
            continue
        assert asked.forecast is not None
        assert one.spent_usd == asked.forecast.so_far
        assert one.forecast_usd == pytest.approx(asked.forecast.whole)
        assert only == {} or [b.name for b in asked.budgets] == [name]
    alice = found["username", "alice"]
    assert (alice.spent_usd, alice.severity, alice.outlook) == (5.5, "critical", "used up")
    vision = found["team", "vision"]
    assert (vision.severity, vision.used_up_at is not None) == ("warning", True)
    rate = (vision.forecast_usd - 5.5) / (
        (datetime(2026, 4, 1, tzinfo=UTC) - NOW) / timedelta(hours=1)
    )
    at = NOW + timedelta(hours=(20.0 - 5.5) / rate)
    assert abs(vision.used_up_at - at) < timedelta(seconds=1)
    assert vision.outlook == f"will be used up on {at:%B} {at.day}"
    assert found["category", "free"].severity is None


async def test_an_hour_of_a_new_user_is_not_expected_to_go_on_for_a_month(querier) -> None:
    add(querier, 100, "productive", "n1", "alice", "7", 3600, 1.0)
    add(querier, 1, "productive", "n1", "eve", "8", 3600, 10.0)
    add(querier, 180, "productive", "n1", "gone", "6", 3600, 4.0)
    add(querier, 1, "productive", "sim", "eve", "9", 3600, 100.0, simulated=True)
    for name in ("eve", "gone"):
        budget(querier, "username", name, 5000.0)
    left = (datetime(2026, 4, 1, tzinfo=UTC) - NOW) / timedelta(hours=1)
    for name, whole in (("eve", 10.0 + 10.0 / 100.5 * left), ("gone", 4.0)):
        money = await read_money(querier, MoneyQuestion(BEGIN, END, "job", {"username": name}), NOW)
        assert money.forecast is not None
        assert money.forecast.whole == pytest.approx(whole)
        assert [one.forecast_usd for one in money.budgets] == [pytest.approx(whole)]


async def test_the_page_shows_budgets_that_belong_to_its_filter(spent) -> None:
    budget(spent, "username", "<alice>", 5.0)
    html = await asked(spent, "/money")
    assert "Budgets of this month" in html
    assert "username &lt;alice&gt;" in html
    assert "0 % expected by the end of the month" in html
    assert "Budgets of this month" not in await asked(spent, "/money?username=bob")
    spent.db.execute("DELETE FROM budgets")
    assert "Budgets" not in await asked(spent, "/money")


async def test_the_spending_of_simulated_gpus_is_no_budgets_beside_real_ones(spent) -> None:
    budget(spent, "fleet", "", 1000.0)
    add(spent, 2, "free", "sim", None, None, 3600, 100.0, simulated=True)
    (one,) = (await read_money(spent, QUESTION, NOW)).budgets
    assert one.spent_usd == 7.5
    spent.db.execute("DELETE FROM waste_1h WHERE NOT simulated")
    (one,) = (await read_money(spent, QUESTION, NOW)).budgets
    assert one.spent_usd == 100.0
    spent.db.execute("UPDATE waste_1h SET usd = NULL")
    (one,) = (await read_money(spent, QUESTION, NOW)).budgets
    assert (one.spent_usd, one.forecast_usd, one.outlook) == (None, None, "no price is known")
