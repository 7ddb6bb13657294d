"""Reads what GPUs cost: over time, beside the time before, by owner, with what could be saved and the month's forecast.

All figures are sums of the view `waste`. Simulated GPUs count only if there are no others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo

from gpuwarden.budgets import forecast_sql
from gpuwarden.query import Querier, Record, query_all, text_sql, timestamp_sql
from gpuwarden.waste import CATEGORIES, NO_WASTE
from gpuwarden.waste_report import BY as REPORT_BY
from gpuwarden_dashboards.read.budgets import BudgetUse, read_budgets
from gpuwarden_dashboards.read.usage import GpuUsage, by_name, known_sum, sorted_usage, summed

BY: Mapping[str, str] = {**REPORT_BY, "category": "category"}
"""What money can be grouped and filtered by, as columns of `waste`."""
LINES_MAX = 200
TRENDS_MAX = 50
"""Lines with a trend of their own."""
SAVINGS_MAX = 20
HOUR, WEEK, YEAR = timedelta(hours=1), timedelta(days=7), timedelta(days=365)
_EARLIEST = datetime.min.replace(tzinfo=UTC)
NOT_WASTE: Sequence[str] = tuple(category for category in CATEGORIES if category in NO_WASTE)
WASTE_CATEGORIES: Sequence[str] = tuple(
    category for category in CATEGORIES if category not in NO_WASTE
)
HOURS_A_MONTH = 730.5


def hour_of(at: datetime) -> datetime:
    """The begin of its hour."""
    return at.replace(minute=0, second=0, microsecond=0)


def range_of(since: str, now: datetime) -> tuple[datetime, datetime]:
    """Begin and end of `24h`, `7d` and such, `month` or `last-month`: whole hours, the running one too."""
    end = hour_of(now) + HOUR
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if since == "month":
        return month, end
    if since == "last-month":
        return (month - timedelta(days=1)).replace(day=1), month
    if since.endswith("h"):
        return end - timedelta(hours=int(since[:-1])), end
    # Whole days, so that a bar is a day; the running one too.
    days = int(since[:-1])
    return now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days - 1), end


@dataclass(frozen=True, slots=True)
class MoneyQuestion:
    """A time range, whole hours, and what its money is grouped and filtered by."""

    begin: datetime
    end: datetime
    by: str = "username"
    only: Mapping[str, str] = field(default_factory=dict)
    """Names by what is filtered; "": nobody."""
    sort: str = "wasted_usd"
    zone: tzinfo = UTC
    """Of its days: one of them has 23 or 25 hours when clocks change."""

    @property
    def before(self) -> "MoneyQuestion":
        """The same for as much time before, as far as there are times."""
        time = min(self.end - self.begin, self.begin - _EARLIEST)
        return replace(self, begin=self.begin - time, end=self.begin, zone=UTC)

    @property
    def bucket(self) -> timedelta:
        """The time of a bar: an hour up to 60 of them, a day up to 62, a week up to ten years, else whole years."""
        time = self.end - self.begin
        if time <= 60 * HOUR:
            return HOUR
        if time <= timedelta(days=62):
            return timedelta(days=1)
        return WEEK if time <= 10 * YEAR else math.ceil(time / (60 * YEAR)) * YEAR

    @property
    def bucket_word(self) -> str:
        """The time of a bar in a word."""
        words = {HOUR: "hour", timedelta(days=1): "day", WEEK: "week", YEAR: "year"}
        return words.get(self.bucket) or f"{self.bucket // YEAR} years"

    @property
    def where(self) -> str:
        """SQL of the filter, with `params`."""
        conditions = [
            f"{BY[by]} = $only_{by}" if name else f"{BY[by]} IS NULL"
            for by, name in self.only.items()
        ]
        return " AND ".join(["true", *conditions])

    @property
    def params(self) -> Mapping[str, str]:
        """Values of the filter."""
        return {f"only_{by}": name for by, name in self.only.items() if name}

    @property
    def limits(self) -> Sequence[datetime]:
        """Begins of the bars: whole hours, at one time of day in the zone except for bars of an hour."""
        zone = UTC if self.bucket == HOUR else self.zone
        begin, end = (at.astimezone(zone).replace(tzinfo=None) for at in (self.begin, self.end))
        found = [self.begin]
        for n in range(1, math.ceil((end - begin) / self.bucket)):
            at = (begin + n * self.bucket).replace(tzinfo=zone).astimezone(UTC)
            found.append(at.replace(minute=0, second=0, microsecond=0))
        # The last one is the end if clocks skip its time.
        return [at for at in found if at < self.end]


@dataclass(frozen=True, slots=True)
class MoneyBar:
    """Hours and dollars of a stretch of time by category."""

    begin: datetime
    end: datetime
    categories: Mapping[str, tuple[float, float | None]]

    @property
    def hours(self) -> float:
        """GPU hours."""
        return sum(hours for hours, _ in self.categories.values())

    @property
    def usd(self) -> float | None:
        """Dollars; None: no price is known."""
        return known_sum(usd for _, usd in self.categories.values())


@dataclass(frozen=True, slots=True)
class MoneyLine:
    """One name: its usage, that of the time before, and waste over time."""

    usage: GpuUsage
    before: GpuUsage | None
    trend: Sequence[float] = ()
    """Wasted dollars, or GPU hours without prices, of each bar."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Something that can be done now."""

    what: str
    action: str
    owner: str | None
    usd_per_hour: float
    path: str
    """The address of its page."""

    @property
    def usd_per_month(self) -> float:
        """If it stays as it is."""
        return self.usd_per_hour * HOURS_A_MONTH

    @property
    def message(self) -> str:
        """A text to send to the owner."""
        greeting = f"{self.owner}: " if self.owner else ""
        return f"{greeting}{self.what} It costs ${self.usd_per_hour:,.2f} an hour. {self.action}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Dollars of the calendar month (UTC)."""

    so_far: float
    whole: float
    """If the hours that are left cost as those of the last seven days."""


@dataclass(frozen=True, slots=True)
class Money:
    """The answer."""

    total: GpuUsage
    before: GpuUsage | None
    """None: the time before has no rows."""
    bars: Sequence[MoneyBar]
    lines: Sequence[MoneyLine]
    savings: Sequence[Saving]
    forecast: Forecast | None
    is_simulated: bool
    budgets: Sequence[BudgetUse] = ()
    """Those that the question is about, those in most danger first."""
    data_from: datetime | None = None
    """When the data begins, if that is after the begin of the time before: the times cannot be compared."""

    @property
    def is_compared(self) -> bool:
        """Whether the time before has data, from its begin on."""
        return self.before is not None and self.data_from is None

    @property
    def has_prices(self) -> bool:
        """Whether bars are dollars; else GPU hours."""
        return self.total.usd is not None


_SUMS = """category, is_waste, simulated, sum(gpu_hours) AS gpu_hours, sum(usd) AS usd,
    sum(energy_kwh) AS energy_kwh, sum(co2_kg) AS co2_kg"""


def _of_names_and_bars(question: MoneyQuestion) -> str:
    """SELECT of sums by bar and category with `is_bar`, and by name and category: rows are read once for both.

    Bars come first, then the most expensive names: what a limit of rows may cut are cheap ones.
    """
    rows = f"SELECT *, {BY[question.by]} AS name, {bucket_sql(question)} AS bucket FROM waste WHERE {_asked(question)}"
    by = "category, is_waste, simulated"
    return (
        f"SELECT name, bucket, grouping(name) = 1 AS is_bar, {_SUMS} FROM ({rows}) "
        f"GROUP BY GROUPING SETS ((name, {by}), (bucket, {by})) ORDER BY is_bar DESC, usd DESC NULLS LAST"
    )


def _asked(question: MoneyQuestion) -> str:
    return f"ts >= {timestamp_sql(question.begin)} AND ts < {timestamp_sql(question.end)} AND {question.where}"


def bucket_sql(question: MoneyQuestion) -> str:
    """SQL of the number of the bar that has the hour `ts`.

    Bars of one length are numbered by a division; a bar before which clocks changed begins a new count.
    """
    seconds = int(question.bucket.total_seconds())
    limits = question.limits
    first = [n for n, at in enumerate(limits) if n == 0 or at - limits[n - 1] != question.bucket]
    whens = [
        f"WHEN ts >= {timestamp_sql(limits[n])} "
        f"THEN least({n} + floor(epoch(ts - {timestamp_sql(limits[n])}) / {seconds}), {until - 1})"
        for n, until in zip(first, [*first[1:], len(limits)], strict=True)
    ]
    return f"CAST(CASE {' '.join(reversed(whens))} END AS INTEGER)"


_OPEN = """
SELECT id, summary, remedy, owner, usd_per_hour, simulated FROM incidents_now
WHERE usd_per_hour > 0 AND muted IS NULL
ORDER BY usd_per_hour DESC LIMIT 100
"""
_FIRST_SEEN = "SELECT simulated, min(first_seen_at) AS first_seen_at FROM gpus WHERE first_seen_at IS NOT NULL GROUP BY simulated"


async def read_money(querier: Querier, question: MoneyQuestion, now: datetime) -> Money:
    """What was asked. Raises QueryError."""
    asked = [
        _of_names_and_bars(question),
        _of_names_and_bars(question.before),
        _OPEN,
        forecast_sql(timestamp_sql(now), question.where),
        _FIRST_SEEN,
    ]
    unfiltered = (_OPEN, _FIRST_SEEN)
    found = await query_all(
        querier, [(sql, {} if sql in unfiltered else question.params) for sql in asked]
    )
    rows, *others = (result.records() for result in found)
    is_simulated = bool(rows) and all(row["simulated"] for row in rows)
    rows, before, open_ones, spending, seen = (
        [row for row in of if row["simulated"] == is_simulated] for of in (rows, *others)
    )
    in_time, rows = _parted(rows)
    in_time_before, before = _parted(before)
    lines = _lines(rows, before, question.sort)
    total = summed(None, in_time)
    trends = await _trends(querier, question, lines, total, is_simulated=is_simulated)
    return Money(
        total=total,
        before=summed(None, in_time_before) if in_time_before else None,
        bars=_bars(question, in_time),
        lines=[replace(line, trend=trends.get(line.usage.name, ())) for line in lines],
        savings=[] if question.only else _savings(open_ones),
        forecast=_forecast(spending),
        budgets=await read_budgets(querier, now, question.only),
        is_simulated=is_simulated,
        data_from=_data_from(
            question, in_time, in_time_before, seen[0]["first_seen_at"] if seen else None
        ),
    )


def _data_from(
    question: MoneyQuestion,
    rows: Sequence[Record],
    before: Sequence[Record],
    first_seen_at: datetime | None,
) -> datetime | None:
    """See `Money.data_from`. `rows`, `before`: of bars; `first_seen_at`: when the first GPU was seen; None: not known."""
    if before:
        first = int(min(row["bucket"] for row in before))
        # Without the first GPU's time the first bars may be of a fleet that was off.
        is_late = first_seen_at is not None and first_seen_at >= question.before.limits[first]
        return first_seen_at if first and is_late else None
    if not rows or (first_seen_at is not None and first_seen_at < question.before.begin):
        return None
    first = int(min(row["bucket"] for row in rows))
    return question.limits[first]


def _parted(rows: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Rows of bars, and rows of names."""
    return [row for row in rows if row["is_bar"]], [row for row in rows if not row["is_bar"]]


def _lines(rows: Sequence[Record], before: Sequence[Record], sort: str) -> Sequence[MoneyLine]:
    now_by, before_by = by_name(rows), by_name(before)
    usages = sorted_usage([summed(name, of) for name, of in now_by.items()], sort)
    return [
        MoneyLine(usage, summed(usage.name, of) if (of := before_by.get(usage.name)) else None)
        for usage in usages[:LINES_MAX]
    ]


def _bars(question: MoneyQuestion, rows: Sequence[Record]) -> Sequence[MoneyBar]:
    """All bars, also those without rows."""
    limits = question.limits
    found: list[list[Record]] = [[] for _ in limits]
    for row in rows:
        found[row["bucket"]].append(row)
    return [
        MoneyBar(begin, end, summed(None, of).categories)
        for begin, end, of in zip(limits, [*limits[1:], question.end], found, strict=True)
    ]


async def _trends(
    querier: Querier, question: MoneyQuestion, lines: Sequence[MoneyLine], total: GpuUsage, *, is_simulated: bool
) -> Mapping[str | None, Sequence[float]]:  # fmt: skip
    """Waste of each bar, of the first lines."""
    names = [line.usage.name for line in lines[:TRENDS_MAX]]
    listed = ", ".join(text_sql(name) for name in names if name is not None)
    if not listed:
        return {}
    value = "gpu_hours" if total.usd is None else "usd"
    sql = (
        f"SELECT {BY[question.by]} AS name, {bucket_sql(question)} AS bucket, sum({value}) AS wasted FROM waste "
        f"WHERE {_asked(question)} AND is_waste AND simulated = {is_simulated} "
        f"AND {BY[question.by]} IN ({listed}) GROUP BY ALL"
    )
    count = len(question.limits)
    found: dict[str | None, list[float]] = {}
    for row in (await querier.query(sql, question.params)).records():
        found.setdefault(row["name"], [0.0] * count)[row["bucket"]] = row["wasted"] or 0.0
    return found


def _savings(rows: Sequence[Record]) -> Sequence[Saving]:
    return [
        Saving(
            row["summary"], row["remedy"] or "", row["owner"], row["usd_per_hour"], f"/incidents/{row['id']}"
        )
        for row in rows[:SAVINGS_MAX]
    ]  # fmt: skip


def _forecast(rows: Sequence[Record]) -> Forecast | None:
    if not rows or rows[0]["forecast_usd"] is None:
        return None
    return Forecast(rows[0]["spent_usd"], rows[0]["forecast_usd"])
