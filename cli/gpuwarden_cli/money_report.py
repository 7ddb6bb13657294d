"""Makes the report of money for a command: its time, from the flags, and the document."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpuwarden.query import Querier
from gpuwarden_client.http import CallError

if TYPE_CHECKING:
    from gpuwarden_dashboards.report import ReportDocument

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
    querier: Querier, begin: datetime, end: datetime, by: str, now: datetime
) -> "ReportDocument":
    """The document of a time. Raises QueryError."""
    from gpuwarden_dashboards.assets import load_assets
    from gpuwarden_dashboards.read.money import MoneyQuestion
    from gpuwarden_dashboards.read.report import read_report
    from gpuwarden_dashboards.report import document
    from gpuwarden_dashboards.templates import Templates

    report = await read_report(querier, MoneyQuestion(begin, end, by), now)
    return document(report, Templates(load_assets()), UTC)
