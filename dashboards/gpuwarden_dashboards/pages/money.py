"""Serves the page of money: what GPUs cost, what was wasted, and what can be saved."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from aiohttp import web

from gpuwarden.own import DAYS as OWN_DAYS
from gpuwarden.own import RENT_KINDS, OwnCase, read_own
from gpuwarden.query import both
from gpuwarden.waste import CATEGORIES
from gpuwarden_dashboards.http import SECURITY_POLICY, choice, fixed_range, given_range, html
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.money import (
    BY,
    HOUR,
    LINES_MAX,
    WASTE_CATEGORIES,
    Money,
    MoneyQuestion,
    hour_of,
    range_of,
    read_money,
)
from gpuwarden_dashboards.read.report import read_report
from gpuwarden_dashboards.read.usage import SORTS
from gpuwarden_dashboards.report import STACK, STYLE_HASH, document, not_compared
from gpuwarden_dashboards.templates import CATEGORY_TITLES, NO_PRICE

RANGES: Mapping[str, str] = {
    "24h": "last 24 h", "7d": "last 7 days", "30d": "last 30 days", "month": "this month", "last-month": "last month",
    "365d": "last year",
}  # fmt: skip
ADVICE: Mapping[str, str] = {
    "starved": "The input is too slow: more loader workers, larger reads, data nearer to the GPU. The page of "
    "the job has the measurements.",
    "throttled": "Heat or the power supply holds the clocks down: look at fans, dust, inlet temperature and "
    "power brakes of the nodes.",
    "idle_held": "Processes hold GPUs on which nothing runs: end forgotten notebooks and jobs, and give an idle "
    "limit to interactive sessions.",
    "allocated_idle": "Jobs hold GPUs that they never used: request fewer, or end the job.",
    "free": "Nobody held these GPUs: run queued work on them, lend them, or return nodes.",
    "hung": "Jobs stood still while they held GPUs: end them, and set time limits for collectives and steps.",
    "lost": "GPUs, drivers or nodes were lost: repair or replace them, and see their events.",
}
"""Advice by category of waste."""
PAGES = {"username": "/users/", "job": "/jobs/", "node": "/nodes/"}
"""Pages of a name."""
REPORT_POLICY = SECURITY_POLICY.replace("style-src 'self'", f"style-src 'sha256-{STYLE_HASH}'")
"""The report is one file that needs no other: its style sheet is in it."""
_STEPS = (1, 2, 2.5, 5, 10)
_LEAST = 1e-6


@dataclass(frozen=True, slots=True)
class MoneyRange:
    """A question with the parameters of its address."""

    question: MoneyQuestion
    since: str
    """One of `RANGES`; "": begin and end are given."""

    @property
    def given(self) -> dict[str, str]:
        """Query parameters of the address."""
        asked = self.question
        time = {"since": self.since} if self.since else self.fixed
        sort = {} if asked.sort == "wasted_usd" else {"sort": asked.sort}
        return {**time, "by": asked.by, **sort, **asked.only}

    @property
    def fixed(self) -> dict[str, str]:
        """The range as fixed times."""
        return fixed_range(self.question.begin, self.question.end)

    @property
    def sort(self) -> str:
        """The order of the lines."""
        return self.question.sort

    @property
    def words(self) -> str:
        """The range in words."""
        if self.since:
            return RANGES[self.since]
        return f"{self.question.begin:%Y-%m-%d %H:%M} to {self.question.end:%Y-%m-%d %H:%M} UTC"

    def path(self, **changed: str | None) -> str:
        """The address with parameters changed; None: without it."""
        given: dict[str, str | None] = {**self.given, **changed}
        if changed.get("begin"):
            given["since"] = None
        return "/money?" + urlencode(
            {name: value for name, value in given.items() if value is not None}
        )


def ticks(most: float) -> Sequence[float]:
    """Four to six round values from 0 to at least the highest one."""
    if most < _LEAST:
        return (0.0, 1.0)
    power = 10.0 ** math.floor(math.log10(most / 5))
    step = next(power * one for one in _STEPS if power * one * 5 >= most)
    return tuple(step * n for n in range(math.ceil(most / step) + 1))


class MoneyPage(Page):
    """GET /money, /money/report and /v1/money.csv."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page, the same as a report to print, and its lines as CSV."""
        return [
            web.get("/money", self._show),
            web.get("/money/report", self._report),
            web.get("/v1/money.csv", self._csv),
        ]

    def render(self, money: Money, asked: MoneyRange, own: Sequence[OwnCase] = ()) -> str:
        """Its HTML."""
        values = [bar.usd if money.has_prices else bar.hours for bar in money.bars]
        return self._templates.render(
            "money.html", money=money, asked=asked, own=own, rent_kinds=RENT_KINDS, groups=tuple(BY), ranges=RANGES, stack=STACK,
            waste_categories=WASTE_CATEGORIES, titles=CATEGORY_TITLES, no_price=NO_PRICE,
            not_compared=not_compared(money, asked.question), categories=tuple(CATEGORIES), meanings=CATEGORIES, advice=ADVICE, pages=PAGES, lines_max=LINES_MAX,
            ticks=ticks(max((value or 0.0 for value in values), default=0.0)), at="/money",
        )  # fmt: skip

    async def _show(self, request: web.Request) -> web.Response:
        asked = self._asked(request)
        now = self._clock.now()
        reading = read_money(self._querier, asked.question, now)
        if asked.question.only:
            return html(self.render(await reading, asked))
        since = hour_of(now) - timedelta(days=OWN_DAYS)
        money, own = await both(reading, read_own(self._querier, since, now))
        return html(self.render(money, asked, own))

    async def _report(self, request: web.Request) -> web.Response:
        asked = self._asked(request)
        report = await read_report(self._querier, asked.question, self._clock.now())
        answer = html(document(report, self._templates, "").html)
        answer.headers["Content-Security-Policy"] = REPORT_POLICY
        return answer

    async def _csv(self, request: web.Request) -> web.Response:
        asked = self._asked(request)
        money = await read_money(self._querier, asked.question, self._clock.now())
        text = io.StringIO()
        writer = csv.writer(text)
        categories = [category for category in CATEGORIES if category in money.total.categories]
        hours = [f"{category}_gpu_hours" for category in categories]
        writer.writerow(
            [
                asked.question.by,
                "gpu_hours",
                "usd",
                "wasted_gpu_hours",
                "wasted_usd",
                "energy_kwh",
                "co2_kg",
                *hours,
            ]
        )
        for line in money.lines:
            one = line.usage
            split = [one.categories.get(category, (0.0, None))[0] for category in categories]
            writer.writerow(
                [
                    one.name,
                    one.gpu_hours,
                    one.usd,
                    one.wasted_hours,
                    one.wasted_usd,
                    one.energy_kwh,
                    one.co2_kg,
                    *split,
                ]
            )
        name = f"gpuwarden-money-{asked.question.begin:%Y%m%d}-{asked.question.by}.csv"
        return web.Response(
            text=text.getvalue(), content_type="text/csv",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )  # fmt: skip

    def _asked(self, request: web.Request) -> MoneyRange:
        by = choice(request, "by", "username", BY)
        sort = choice(request, "sort", "wasted_usd", ("name", *SORTS))
        only = {name: request.query[name] for name in BY if name in request.query}
        now = self._clock.now()
        since = ""
        if given := given_range(request, now):
            begin, end = hour_of(given[0]), hour_of(given[1] - timedelta(microseconds=1)) + HOUR
        else:
            since = choice(request, "since", "7d", RANGES)
            begin, end = range_of(since, now)
        return MoneyRange(MoneyQuestion(begin, end, by, only, sort), since)
