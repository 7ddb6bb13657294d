"""Makes the report of money for a command: its time, from the flags, and the document."""

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

from gpuwarden.clock import SystemClock
from gpuwarden.query import Querier
from gpuwarden_client.http import CallError

if TYPE_CHECKING:
    from gpuwarden_dashboards.report import ReportDocument
    from gpuwarden_rules.notify.message import MailedReport
    from gpuwarden_rules.notify.reports import ReportPeriod, ReportPlan
    from gpuwarden_rules.notify.settings import Notify

HOUR = timedelta(hours=1)


def span(args: argparse.Namespace, now: datetime) -> tuple[datetime, datetime]:
    """Begin and end of the time: whole hours (UTC), at most until the end of this one. Raises CallError."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if args.begin is None:
        if args.end is not None:
            raise CallError("--end needs --begin")
        if args.month:
            end = today.replace(day=1)
            return (end - timedelta(days=1)).replace(day=1), end
        end = today - timedelta(days=today.weekday())
        return end - timedelta(days=7), end
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    begin = _instant(args.begin, "--begin").replace(minute=0, second=0, microsecond=0)
    end = this_hour + HOUR if args.end is None else _instant(args.end, "--end")
    if end != end.replace(minute=0, second=0, microsecond=0):
        end = end.replace(minute=0, second=0, microsecond=0) + HOUR
    end = min(end, this_hour + HOUR)
    if begin >= this_hour + HOUR:
        raise CallError("--begin must not be in the future")
    if begin >= end:
        raise CallError("--end must be after --begin")
    return begin, end


def _instant(text: str, flag: str) -> datetime:
    try:
        given = datetime.fromisoformat(text)
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError):
        raise CallError(f"{flag} {text!r} is not a date: 2026-03-01, or 2026-03-01T12:00") from None


async def made(
    querier: Querier,
    begin: datetime,
    end: datetime,
    by: str,
    now: datetime,
    *,
    only: Mapping[str, str] | None = None,
    zone: tzinfo = UTC,
    link: str | None = None,
) -> "ReportDocument":
    """The document of a time. `zone`: of its days; `link`: the collector's address. Raises QueryError."""
    from gpuwarden_dashboards.assets import load_assets
    from gpuwarden_dashboards.read.money import MoneyQuestion
    from gpuwarden_dashboards.read.report import read_report
    from gpuwarden_dashboards.report import document
    from gpuwarden_dashboards.templates import Templates

    report = await read_report(querier, MoneyQuestion(begin, end, by, only or {}, zone=zone), now)
    return document(report, Templates(load_assets()), link.rstrip("/") if link else None)


async def mailed(
    querier: Querier, link: str | None, plan: "ReportPlan", period: "ReportPeriod", now: datetime
) -> "MailedReport":
    """The document of a plan of the file of receivers. Raises QueryError."""
    from gpuwarden_rules.notify.message import MailedReport

    found = await made(
        querier, period.begin, period.end, plan.by, now, only=plan.only, zone=plan.zone, link=link
    )
    return MailedReport(
        since=period.begin, until=period.end, title=found.title, text=found.text, html=found.html
    )


async def sent(
    notify: "Notify", receiver: str, found: "ReportDocument", span_of: tuple[datetime, datetime]
) -> tuple[bool, str]:
    """Send a document by a receiver now, not by the outbox: whether it was taken, and the answer. Raises CallError for an
    unknown or personal receiver."""
    from gpuwarden_rules.notify.message import MailedReport, MessageKind, Notification, message_id
    from gpuwarden_rules.notify.notifier import attempt
    from gpuwarden_rules.notify.receivers.factory import receiver_of
    from gpuwarden_rules.notify.receivers.receiver import Delivered

    plan = next((plan for plan in notify.receivers if plan.name == receiver), None)
    if plan is None or notify.policy.recipients[receiver].is_personal:
        names = [n for n, one in notify.policy.recipients.items() if not one.is_personal]
        raise CallError(f"--mail {receiver}: must be one of {', '.join(names)}")
    clock = SystemClock()
    now = clock.now()
    report = MailedReport(
        since=span_of[0], until=span_of[1], title=found.title, text=found.text, html=found.html
    )
    message = Notification(
        id=message_id("report", receiver, now.isoformat()), receiver=receiver, kind=MessageKind.REPORT,
        group="report", made_at=now, report=report,
    )  # fmt: skip
    opened = receiver_of(plan, notify.style, clock)
    try:
        outcome = await attempt(opened, message)
    finally:
        await opened.close()
    if isinstance(outcome, Delivered):
        return True, outcome.note
    return False, outcome.reason
