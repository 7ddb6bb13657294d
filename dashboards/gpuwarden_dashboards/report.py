"""Makes the document of a report: a title, a text, and HTML for a file, a mail and a page. Pure.

Mail programs drop much of HTML. After caniemail.com, which tests them, Gmail and Outlook for Windows show no `<svg>`
(html-svg, 2020), many show images only when asked, and all show background colours (css-background-color). So charts
are tables whose cells have a colour and a width, as attributes; the style sheet only makes it look better, and a page
needs no permission for inline styles.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from markupsafe import Markup

from gpuwarden.untrusted_text import printable
from gpuwarden_dashboards.read.budgets import BudgetUse
from gpuwarden_dashboards.read.money import (
    NOT_WASTE,
    WASTE_CATEGORIES,
    Money,
    MoneyBar,
    MoneyQuestion,
)
from gpuwarden_dashboards.read.report import MoneyReport
from gpuwarden_dashboards.read.usage import GpuUsage
from gpuwarden_dashboards.templates import CATEGORY_TITLES, NO_PRICE, Templates, percent, usd

LINES_MAX = 20
"""Most lines of names; the others are counted."""
SAVINGS_MAX = 10
STACK: Sequence[str] = (*NOT_WASTE, *WASTE_CATEGORIES)
COLOURS: Mapping[str, str] = {
    "productive": "#2f8f5b", "busy": "#9aa5b8", "gaps": "#c3cbd9", "starved": "#e0a030", "throttled": "#c65f2e", "idle_held": "#b3261e",
    "allocated_idle": "#d86a63", "free": "#c9a0c0", "hung": "#6b2fa0", "lost": "#3d3d46", "unknown": "#d5d9e0",
}  # fmt: skip
"""Colours of categories, as on the pages in light."""
SPENT, WARNED, USED_UP, EXPECTED, REST = "#3551c8", "#d08a16", "#b42318", "#c3c9d6", "#eef0f4"
STYLE = """
body { margin: 0; background: #fff; color: #171a1f; font: 14px/1.45 system-ui, "Segoe UI", Roboto, Arial, sans-serif; }
.page { max-width: 760px; margin: 0 auto; padding: 16px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; } p { margin: 4px 0; }
.soft { color: #596171; } .bad { color: #b42318; } .near { color: #8a5300; } .good { color: #18794e; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
.list th, .list td { padding: 4px 8px 4px 0; border-bottom: 1px solid #e3e6eb; vertical-align: top; }
.list thead th { color: #596171; font-size: 12px; } .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.list .stack td { padding: 0; border: 0; } .list th, .list td { overflow-wrap: anywhere; } .list thead th { overflow-wrap: normal; } .list .number, .day { white-space: nowrap; overflow-wrap: normal; }
.totals td { padding: 8px 16px 8px 0; vertical-align: top; } .totals b { font-size: 22px; } .stack td { height: 10px; font-size: 1px; line-height: 10px; }
a { color: #3551c8; }
@media (max-width: 480px) { .page { padding: 8px; } .wide { display: none; } .totals b { font-size: 17px; } .totals td { padding-right: 8px; } }
@media print { body { font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; } .page { max-width: none; padding: 0; }
  .no-print { display: none; } tr, h2 { break-inside: avoid; } h2 { break-after: avoid; } @page { margin: 15mm; } }
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
"""For the policy of a page: it allows this style sheet alone."""


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """A rendered report."""

    title: str
    text: str
    html: str


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar, in percent of the width."""

    width: float
    colour: str


def document(report: MoneyReport, templates: Templates, link: str | None = None) -> ReportDocument:
    """The document. `link`: the collector's address, before addresses of its pages; None: no links."""
    zone = report.question.zone
    title = _title(report, zone)
    values = {
        "report": report,
        "money": report.money,
        "total": report.money.total,
        "before": report.money.before,
        "compared": report.money.before if report.money.is_compared else None,
        "not_compared": not_compared(report.money, report.question),
        "title": title,
        "words": range_words(report.question.begin, report.question.end, zone),
        "about": _about(report),
        "style": Markup(STYLE),
        "link": link,
        "zone": zone,
        "shown": report.money.lines[:LINES_MAX],
        "savings": report.money.savings[:SAVINGS_MAX],
        "categories": _categories(report.money.total),
        "colours": COLOURS,
        "titles": CATEGORY_TITLES,
        "no_price": NO_PRICE,
        "days": _days(report, zone),
        "bar_of": lambda usage: _bar_of(usage, report),
        "budget_bar": budget_parts,
        "change": change,
        "amount": lambda dollars, hours: amount(dollars, hours, has_prices=report.money.has_prices),
    }
    return ReportDocument(
        title, _text(report, title, zone, link), templates.render("report.html", **values)
    )


def range_words(begin: datetime, end: datetime, zone: tzinfo) -> str:
    """`16 to 22 March 2026`; with times and zone if it is not of whole days."""
    first, until = begin.astimezone(zone), end.astimezone(zone)
    if any((at.hour, at.minute) != (0, 0) for at in (first, until)):
        return f"{first:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} {until:%Z}"
    last = until - timedelta(days=1)
    if first.date() == last.date():
        return f"{first.day} {first:%B %Y}"
    if (first.year, first.month) == (last.year, last.month):
        return f"{first.day} to {last.day} {last:%B %Y}"
    year = "" if first.year == last.year else f" {first.year}"
    return f"{first.day} {first:%B}{year} to {last.day} {last:%B %Y}"


def change(now: float | None, then: float | None) -> str:
    """`+12 % against the time before`; empty: one of them is not known."""
    if now is None or not then:
        return ""
    percents = round(100 * (now - then) / then)
    return f"{percents:+,} % against the time before" if percents else "as in the time before"


def not_compared(money: Money, question: MoneyQuestion) -> str:
    """Why nothing is compared with the time before, in one line; empty: it is, or there is nothing to compare."""
    if money.is_compared or not money.total.gpu_hours:
        return ""
    whose = " of this filter" if question.only else ""
    if money.data_from is None:
        return f"No data{whose} in the time before: nothing to compare with."
    at = money.data_from.astimezone(question.zone)
    day = f"{at.day} {at:%B}" + ("" if at.year == question.end.year else f" {at.year}")
    time = f" {at:%H:%M %Z}" if question.bucket_word == "hour" else ""
    reason = (
        "nothing to compare with"
        if money.before is None
        else "the time before is not complete, and not compared"
    )
    return f"No data{whose} before {day}{time}: {reason}."


def amount(dollars: float | None, hours: float, *, has_prices: bool) -> str:
    """Dollars, or GPU hours where no price is known."""
    return usd(dollars) if has_prices else f"{hours:,.1f} h"


def _title(report: MoneyReport, zone: tzinfo) -> str:
    money = report.money
    spent = amount(money.total.usd, money.total.gpu_hours, has_prices=money.has_prices)
    if not money.total.gpu_hours:
        spent = "none was seen"
    share = money.total.wasted_share
    if not money.has_prices and money.total.gpu_hours:
        share = money.total.wasted_hours / money.total.gpu_hours
    wasted = "" if share is None else f", {percent(100 * share)} wasted"
    simulated = " (simulated)" if money.is_simulated else ""
    words = range_words(report.question.begin, report.question.end, zone)
    return f"GPUs, {words}: {spent}{wasted}{simulated}"


def _about(report: MoneyReport) -> str:
    """What the report is about, in words."""
    only = report.question.only
    return ", ".join(f"{by} {name or 'nobody known'}" for by, name in only.items()) or "the fleet"


def _categories(usage: GpuUsage) -> Sequence[str]:
    return [
        category
        for category in STACK
        if category in usage.categories and usage.categories[category][0]
    ]


def category_parts(
    categories: Mapping[str, tuple[float, float | None]], most: float, *, has_prices: bool
) -> list[BarPart]:
    """Parts of a bar that is as wide as `most` is large; the rest is the last."""
    found = []
    for category in STACK:
        hours, dollars = categories.get(category, (0.0, None))
        value = (dollars or 0.0) if has_prices else hours
        if most and value / most >= 0.002:
            found.append(BarPart(100 * value / most, COLOURS[category]))
    return _filled(found)


def _filled(parts: Iterable[BarPart]) -> list[BarPart]:
    found = [*parts]
    rest = 100 - sum(part.width for part in found)
    return [*found, BarPart(rest, REST)] if rest > 0.2 else found


def _value(of: MoneyBar | GpuUsage, report: MoneyReport) -> float:
    hours = of.hours if isinstance(of, MoneyBar) else of.gpu_hours
    return (of.usd or 0.0) if report.money.has_prices else hours


def _bar_of(usage: GpuUsage, report: MoneyReport) -> list[BarPart]:
    most = max((_value(line.usage, report) for line in report.money.lines), default=0.0)
    return category_parts(usage.categories, most, has_prices=report.money.has_prices)


def _days(report: MoneyReport, zone: tzinfo) -> list[tuple[str, list[BarPart], str]]:
    """Name, bar and amount of each stretch of time."""
    money = report.money
    most = max((_value(bar, report) for bar in money.bars), default=0.0)
    # Where the zone is half an hour off UTC, a day begins up to this much before its midnight.
    early = timedelta() if report.question.bucket_word == "hour" else timedelta(minutes=45)
    form = {"hour": "%d %b %H:%M", "day": "%a %d %b", "week": "%d %b %Y"}.get(
        report.question.bucket_word, "%Y"
    )
    return [
        (
            f"{(bar.begin + early).astimezone(zone):{form}}",
            category_parts(bar.categories, most, has_prices=money.has_prices),
            amount(bar.usd, bar.hours, has_prices=money.has_prices),
        )
        for bar in money.bars
    ]


def budget_parts(one: BudgetUse) -> list[BarPart]:
    """The bar of a budget: spent, and what is expected besides, of the budget."""
    if one.spent_share is None or one.forecast_share is None:
        return [BarPart(100, REST)]
    spent, expected = min(one.spent_share, 1.0), min(one.forecast_share, 1.0)
    colour = {"critical": USED_UP, "warning": WARNED}.get(one.severity or "", SPENT)
    parts = (BarPart(100 * spent, colour), BarPart(100 * max(expected - spent, 0.0), EXPECTED))
    return _filled(part for part in parts if part.width >= 0.2)


def _text(report: MoneyReport, title: str, zone: tzinfo, link: str | None) -> str:
    """The report for who reads no HTML."""
    sections = [
        [title, f"About: {_about(report)}.", *_totals(report)],
        _names(report),
        _to_do(report),
        _month(report),
        _incidents(report, zone),
        _sick(report),
        [link] if link else [],
    ]
    # Names come from processes: they must not act on a terminal, nor make lines of their own.
    return "\n\n".join("\n".join(map(printable, lines)) for lines in sections if lines) + "\n"


def _totals(report: MoneyReport) -> list[str]:
    money, total = report.money, report.money.total
    before = money.before if money.is_compared else None
    if not total.gpu_hours:
        return ["No GPU was seen in that time, or its hours are not rolled up yet."]
    said = change(total.usd, before.usd) if before else ""
    lines = [
        f"Spent: {usd(total.usd)} for {total.gpu_hours:,.1f} GPU hours{', ' + said if said else ''}."
    ]
    said = change(total.wasted_usd, before.wasted_usd) if before else ""
    lines.append(
        f"Wasted: {usd(total.wasted_usd)}, {total.wasted_hours:,.1f} GPU hours{', ' + said if said else ''}."
    )
    lines.append(f"Busy: {percent(100 * total.used_share)} of the GPU hours.")
    if money.savings:
        saved = sum(one.usd_per_month for one in money.savings)
        lines.append(f"Could be saved: {usd(saved)} a month, if what is open now continues.")
    if total.energy_kwh is not None:
        co2 = "" if total.co2_kg is None else f", {total.co2_kg:,.1f} kg of CO2"
        lines.append(f"Energy: {total.energy_kwh:,.1f} kWh{co2}.")
    if said := not_compared(money, report.question):
        lines.append(said)
    return lines if money.has_prices else [*lines, NO_PRICE]


def _names(report: MoneyReport) -> list[str]:
    lines = [
        f"  {line.usage.name or 'nobody known'}: {usd(line.usage.usd)}, wasted {usd(line.usage.wasted_usd)}, "
        f"{line.usage.gpu_hours:,.1f} GPU hours"
        for line in report.money.lines[:LINES_MAX]
    ]
    more = len(report.money.lines) - LINES_MAX
    return (
        [f"By {report.question.by}:", *lines, *([f"  and {more} more"] if more > 0 else [])]
        if lines
        else []
    )


def _to_do(report: MoneyReport) -> list[str]:
    lines = [
        f"  {usd(one.usd_per_month)} a month. {one.message}"
        for one in report.money.savings[:SAVINGS_MAX]
    ]
    return ["What to do:", *lines] if lines else []


def _month(report: MoneyReport) -> list[str]:
    forecast, lines = report.money.forecast, []
    if forecast:
        lines.append(
            f"This month: {usd(forecast.so_far)} so far, {usd(forecast.whole)} expected (UTC)."
        )
    return lines + [
        f"  Budget of {one.whose}: {usd(one.spent_usd)} of {usd(one.usd_per_month)} spent; {one.outlook}."
        for one in report.money.budgets
    ]


def _incidents(report: MoneyReport, zone: tzinfo) -> list[str]:
    lines = [
        f"  {one.severity}, {one.opened_at.astimezone(zone):%d %b %H:%M}: {one.summary}"
        for one in report.incidents
    ]
    return [f"Incidents: {report.incidents_found}", *lines] if lines else []


def _sick(report: MoneyReport) -> list[str]:
    lines = [f"  {one.place}: {one.summary} {one.remedy}" for one in report.sick]
    return [f"Sick GPUs: {report.sick_found}", *lines] if lines else []
