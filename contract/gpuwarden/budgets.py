"""Defines what a calendar month (UTC) costs, what it is expected to cost, and how far budgets are used up.

A month is expected to cost what it has cost, and for each hour that is left what an hour of the last seven days has
cost, or of the time since the fleet's first hour in them. The page of money, the reports and the view `budgets_now`
take their forecasts from here. docs/money.md explains it.
"""

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

BUDGET_KINDS = ("team", "username", "account", "category", "fleet")
"""What a budget can be for; `fleet` has no name."""
SQL_NOW = "now()::TIMESTAMP"

BUDGETS = Table("budgets", "budget of the prices file", ("kind", "name"), (
    Column("kind", Type.STRING, "team, username, account, category (of waste) or fleet.", required=True),
    Column("name", Type.STRING, "Whose it is; empty: the fleet's.", required=True),
    Column("usd_per_month", Type.FLOAT64, "Amount for a calendar month (UTC).", required=True),
))  # fmt: skip

_WEEK = "ts >= {now} - INTERVAL 7 DAY"
_MONTH = "ts >= date_trunc('month', {now})"
_READ = "ts > {now} - INTERVAL 31 DAY"
"""A bound that covers the month and the last seven days."""
_ACCOUNT = "(SELECT any_value(account) FROM (SELECT job AS of_slurm, account FROM slurm_jobs) WHERE of_slurm = job)"
_SUMS = (
    f"count(*) FILTER ({_MONTH}) AS month_rows, sum(usd) FILTER ({_MONTH}) AS month_usd, "
    f"count(*) FILTER ({_WEEK}) AS week_rows, sum(usd) FILTER ({_WEEK}) AS week_usd"
)
_SUMS_AGAIN = (
    "sum(month_rows) AS month_rows, sum(month_usd) AS month_usd, sum(week_rows) AS week_rows, "
    "sum(week_usd) AS week_usd, min(first_at) AS first_at"
)
_SPENT = "if(coalesce(month_rows, 0) = 0, 0, month_usd)"
"""Dollars of the month; NULL: no price is known."""
_RATE = (
    "if(coalesce(week_rows, 0) = 0, 0, "
    "week_usd / greatest(date_diff('millisecond', first_at, {now}) / 3.6e6, 1))"
)
"""Dollars an hour; NULL: no price is known. 0 for who used nothing for seven days."""
_LEFT = "date_diff('millisecond', {now}, date_trunc('month', {now}) + INTERVAL 1 MONTH) / 3.6e6"


def forecast_sql(now: str, where: str = "true") -> str:
    """SELECT of `simulated`, `spent_usd` and `forecast_usd` of the month that has `now`, SQL of a TIMESTAMP."""
    sums = _at(_SUMS, now)
    rows = f"SELECT simulated, {sums} FROM waste WHERE {_at(_READ, now)} AND ({where}) GROUP BY simulated"
    # Of all, not of who was asked for: who is new has used nothing before, but could have.
    first = f"SELECT simulated, min(ts) AS first_at FROM waste WHERE {_at(_WEEK, now)} GROUP BY simulated"
    return f"SELECT simulated, {_spent(now)} FROM ({rows}) LEFT JOIN ({first}) USING (simulated)"


def budgets_sql(now: str) -> str:
    """SELECT of the budgets with what the month has cost, is expected to cost, and when each is used up.

    Simulated GPUs count only if there are no others.
    """
    sums = (
        f"SELECT team, username, job, category, simulated, {_at(_SUMS, now)}, "
        f"min(ts) FILTER ({_at(_WEEK, now)}) AS first_at FROM waste "
        f"WHERE {_at(_READ, now)} GROUP BY ALL"
    )
    rows = (
        "SELECT * REPLACE (min(first_at) OVER (PARTITION BY simulated) AS first_at), "
        f"{_ACCOUNT} AS account FROM ({sums}) "
        "QUALIFY simulated = bool_and(simulated) OVER ()"
    )
    names = " ".join(
        f"WHEN '{kind}' THEN " + ("true" if kind == "fleet" else f'b.name = s."{kind}"')
        for kind in BUDGET_KINDS
    )
    joined = (
        "SELECT b.kind, b.name, b.usd_per_month, coalesce(bool_or(s.simulated), false) AS simulated, "
        f"{_SUMS_AGAIN} FROM budgets b LEFT JOIN ({rows}) s ON CASE b.kind {names} ELSE false END "
        "GROUP BY ALL"
    )
    return (
        "SELECT kind, name, usd_per_month, spent_usd, forecast_usd, "
        "if(spent_usd < usd_per_month AND forecast_usd > usd_per_month, "
        f"{now} + to_milliseconds(((usd_per_month - spent_usd) / usd_per_hour * 3.6e6)::BIGINT), NULL) "
        "AS used_up_at, simulated "
        f"FROM (SELECT *, {_spent(now)}, {_at(_RATE, now)} AS usd_per_hour FROM ({joined}))"
    )


def budgets_view_sql() -> str:
    """CREATE of the view `budgets_now`."""
    return (
        "-- Budgets with what this month (UTC) has cost and is expected to cost.\n"
        "--   spent_usd: Dollars of this month (UTC) until now; NULL: no price is known.\n"
        "--   forecast_usd: Dollars of the whole month, if the hours that are left cost as those of the last seven days.\n"
        "--   used_up_at: When the budget will be used up; NULL: it is, or not in this month.\n"
        "--   simulated: True where the rows that it counts are simulated.\n"
        f"CREATE OR REPLACE VIEW budgets_now AS\n{budgets_sql(SQL_NOW)};\n"
    )


def _spent(now: str) -> str:
    return _at(f"{_SPENT} AS spent_usd, {_SPENT} + {_RATE} * {_LEFT} AS forecast_usd", now)


def _at(sql: str, now: str) -> str:
    return sql.replace("{now}", now)
