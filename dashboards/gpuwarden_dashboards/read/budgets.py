"""Reads the budgets of the prices file with what this month costs and is expected to cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.budgets import budgets_sql
from gpuwarden.query import Querier, timestamp_sql

WARNED_SHARE = 0.8
"""Share of the budget from which the expected cost is a warning."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """A budget, and how far it is used up this month (UTC)."""

    kind: str
    """What it is for, one of `gpuwarden.budgets.BUDGET_KINDS`."""
    name: str
    """Empty: the fleet's."""
    usd_per_month: float
    spent_usd: float | None
    """None: no price is known."""
    forecast_usd: float | None
    """Of the whole month."""
    used_up_at: datetime | None
    """When it will be used up; None: it is, or not in this month."""

    @property
    def whose(self) -> str:
        """Whose it is, in words."""
        return "the fleet" if self.kind == "fleet" else f"{self.kind} {self.name}"

    @property
    def spent_share(self) -> float | None:
        """Spent share of the budget."""
        return None if self.spent_usd is None else self.spent_usd / self.usd_per_month

    @property
    def forecast_share(self) -> float | None:
        """Expected share of the budget at the end of the month."""
        return None if self.forecast_usd is None else self.forecast_usd / self.usd_per_month

    @property
    def severity(self) -> str | None:
        """critical: used up; warning: WARNED_SHARE of it is expected to be; None: neither, or not known."""
        if self.spent_share is not None and self.spent_share >= 1:
            return "critical"
        is_near = self.forecast_share is not None and self.forecast_share >= WARNED_SHARE
        return "warning" if is_near else None

    @property
    def outlook(self) -> str:
        """What to expect, in words."""
        if self.forecast_share is None:
            return "no price is known"
        if self.severity == "critical":
            return "used up"
        if self.used_up_at is not None:
            return f"will be used up on {self.used_up_at:%B} {self.used_up_at.day}"
        return f"{100 * self.forecast_share:.0f} % expected by the end of the month"


async def read_budgets(
    querier: Querier, now: datetime, only: Mapping[str, str] | None = None
) -> Sequence[BudgetUse]:
    """All budgets, those in most danger first; `only`: those of these names by kind alone. Raises
    QueryError."""
    if not (await querier.query("SELECT kind FROM budgets LIMIT 1")).rows:
        return ()
    rows = (await querier.query(budgets_sql(timestamp_sql(now)))).records()
    found = [
        BudgetUse(**{name: row[name] for name in BudgetUse.__dataclass_fields__}) for row in rows
    ]
    chosen = [one for one in found if not only or only.get(one.kind) == one.name]
    return sorted(chosen, key=lambda one: (-(one.forecast_share or 0.0), one.kind, one.name))
