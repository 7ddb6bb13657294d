"""Makes reports of whole weeks or months, each once: decides when one is due, and asks for its document. `due` is pure.

The document comes from the caller, because reports read what the page of money reads. Of several collectors of one
lake, the one whose claim is accepted sends a report.
"""

import calendar
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from gpuwarden.clock import to_ms
from gpuwarden_rules.notify.message import MailedReport, MessageKind, Notification, message_id

EVERY = ("week", "month")
DAYS = tuple(day.lower() for day in calendar.day_name)
SETTLED_AFTER = timedelta(minutes=5)
"""The last hour is labelled about two minutes after its end; a report waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlan:
    """What a report has, when it is made, and its receivers."""

    receivers: tuple[str, ...]
    every: str
    """One of EVERY."""
    day: int
    """Weekday, 0 is Monday; of a report each month: its day, 1 to 28."""
    at: time
    zone: tzinfo
    by: str
    only: Mapping[str, str] = field(default_factory=dict)
    """Names by what they are of: the report is about them alone."""

    @property
    def name(self) -> str:
        """Identity of the report, also after a restart and in another collector."""
        only = ",".join(f"{by}={name}" for by, name in sorted(self.only.items()))
        parts = (self.every, str(self.day), f"{self.at:%H:%M}", str(self.zone), self.by, only)
        return f"report {' '.join(filter(None, parts))} {','.join(sorted(self.receivers))}"


@dataclass(frozen=True, slots=True)
class ReportPeriod:
    """The time of a report, in whole hours (UTC)."""

    begin: datetime
    end: datetime
    due_at: datetime


ReportMaker = Callable[[ReportPlan, ReportPeriod, datetime], Awaitable[MailedReport]]
"""Makes the document at a time. Raises QueryError."""
Claim = Callable[[str], Awaitable[bool]]
"""Whether this collector does what has that name, for which only one of those that share a lake is accepted. Always the
same answer. Raises QueryError if that is not known now."""


def due(plan: ReportPlan, done_ms: int | None, now: datetime) -> ReportPeriod | None:
    """The period of the report that must be made now; None: it is made, or was not due yet.

    `done_ms`: when the last one that was made was due. After a long absence only the last one is made. Without
    `done_ms` a report waits for its next time.
    """
    last = _period(plan, now - SETTLED_AFTER)
    return last if done_ms is not None and done_ms < to_ms(last.due_at) else None


def _period(plan: ReportPlan, now: datetime) -> ReportPeriod:
    """The last period that was due at or before `now`."""
    today = now.astimezone(plan.zone).date()
    on = _last_day(plan, today)
    due_at = _instant(plan, on, plan.at)
    if due_at > now:
        on = _last_day(plan, on - timedelta(days=1))
        due_at = _instant(plan, on, plan.at)
    if plan.every == "week":
        begin, end = on - timedelta(days=7), on
    else:
        end = on.replace(day=1)
        begin = (end - timedelta(days=1)).replace(day=1)
    return ReportPeriod(_midnight(plan, begin), _midnight(plan, end), due_at)


def _last_day(plan: ReportPlan, until: date) -> date:
    """The last day on or before `until` on which the report is made."""
    if plan.every == "week":
        return until - timedelta(days=(until.weekday() - plan.day) % 7)
    if until.day >= plan.day:
        return until.replace(day=plan.day)
    return (until.replace(day=1) - timedelta(days=1)).replace(day=plan.day)


def _instant(plan: ReportPlan, on: date, at: time) -> datetime:
    return datetime.combine(on, at, plan.zone).astimezone(UTC)


def _midnight(plan: ReportPlan, on: date) -> datetime:
    """Begin of the day; whole hours, also where the zone is half an hour off."""
    return _instant(plan, on, time()).replace(minute=0, second=0, microsecond=0)


class ScheduledReports:
    """The reports of the file of receivers."""

    def __init__(self, plans: Sequence[ReportPlan], make: ReportMaker, claim: Claim) -> None:
        self.plans = plans
        self._make = make
        self._claim = claim

    async def made(
        self, plan: ReportPlan, period: ReportPeriod, now: datetime
    ) -> list[Notification]:
        """Messages with the report, one for each receiver; none if another collector sends it. Raises QueryError."""
        key = f"{plan.name} {to_ms(period.due_at)}"
        if not await self._claim(key):
            return []
        report = await self._make(plan, period, now)
        return [
            Notification(
                id=message_id(key, receiver),
                receiver=receiver,
                kind=MessageKind.REPORT,
                group=plan.name,
                made_at=now,
                report=report,
            )
            for receiver in plan.receivers
        ]
