"""Reports by mail: when one is due, and each exactly once, whatever restarts, dies or runs beside."""

import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rules.notify.alerts import Incidents, make_alert, message_of
from tests.rules.notify.smtp_server import SmtpServer, TakenMail, smtp_server

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.query import QueryError
from gpuwarden_rules.notify.message import MailedReport, MessageKind, Notification
from gpuwarden_rules.notify.notifier import Notifier, attempt
from gpuwarden_rules.notify.outbox import Outbox
from gpuwarden_rules.notify.receivers import apprise_service, smtp_mail
from gpuwarden_rules.notify.receivers.apprise_service import AppriseService
from gpuwarden_rules.notify.receivers.factory import receiver_of
from gpuwarden_rules.notify.receivers.receiver import (
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
)
from gpuwarden_rules.notify.reports import (
    SETTLED_AFTER,
    ReportPeriod,
    ReportPlan,
    ScheduledReports,
    due,
)
from gpuwarden_rules.notify.sentences import Style
from gpuwarden_rules.notify.settings import parse

MONDAY = datetime(2026, 3, 23, 8, tzinfo=UTC)
WEEKLY = ReportPlan(receivers=("a",), every="week", day=0, at=time(8), zone=UTC, by="team")
REPORT = MailedReport(
    since=MONDAY, until=MONDAY, title="GPUs, 16 to 22 March 2026: $60.00", text="GPUs\n\nSpent: $60.00 · ü\n",
    html="<!doctype html><p>Spent <b>$60.00</b> · ü</p>\n" + "x" * 2000,
)  # fmt: skip
HOUR = timedelta(hours=1)

_ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns", "Pacific/Apia"]
)
_PLANS = st.builds(
    ReportPlan,
    receivers=st.just(("a",)),
    every=st.sampled_from(["week", "month"]),
    day=st.integers(1, 6),
    at=st.times().map(lambda at: at.replace(second=0, microsecond=0, tzinfo=None)),
    zone=_ZONES.map(ZoneInfo),
    by=st.just("team"),
)


def test_a_week_is_due_at_its_time_and_covers_the_days_before() -> None:
    done = to_ms(MONDAY - timedelta(days=3))
    assert due(WEEKLY, None, MONDAY + HOUR) is None
    assert due(WEEKLY, done, MONDAY + SETTLED_AFTER - timedelta(seconds=1)) is None
    found = due(WEEKLY, done, MONDAY + SETTLED_AFTER)
    assert found == ReportPeriod(
        datetime(2026, 3, 16, tzinfo=UTC), datetime(2026, 3, 23, tzinfo=UTC), MONDAY
    )
    assert due(WEEKLY, to_ms(MONDAY + SETTLED_AFTER), MONDAY + timedelta(days=6)) is None


def test_a_month_is_the_calendars_in_its_zone() -> None:
    plan = replace(WEEKLY, every="month", day=1, zone=ZoneInfo("Europe/Berlin"))
    found = due(plan, 0, datetime(2026, 4, 1, 12, tzinfo=UTC))
    assert found is not None
    assert (found.begin, found.end) == (
        datetime(2026, 2, 28, 23, tzinfo=UTC),
        datetime(2026, 3, 31, 22, tzinfo=UTC),
    )


@given(plan=_PLANS, steps=st.lists(st.integers(1, 40 * 86_400), min_size=1, max_size=30))
def test_each_time_has_one_report_and_the_late_one_is_the_last(
    plan: ReportPlan, steps: list[int]
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    done, made = to_ms(now), []
    for step in steps:
        now += timedelta(seconds=step)
        found = due(plan, done, now)
        if found is None:
            continue
        assert found.due_at <= now - SETTLED_AFTER
        assert found.begin < found.end <= found.due_at + HOUR
        assert all(
            (at.minute, at.second, at.microsecond) == (0, 0, 0) for at in (found.begin, found.end)
        )
        assert due(plan, to_ms(found.due_at), now) is None, "not twice at one time"
        assert due(plan, done, now) == found, "the same after a crash before it was noted"
        longest = timedelta(days=8 if plan.every == "week" else 32)
        assert now - SETTLED_AFTER < found.due_at + longest, "not the one before the last"
        made.append(found)
        done = to_ms(found.due_at)
    assert all(a.end <= b.begin for a, b in pairwise(made)), "no hour twice"


@given(plan=_PLANS)
def test_reports_that_follow_each_other_leave_out_no_hour(plan: ReportPlan) -> None:
    now, done, made = datetime(2026, 1, 1, tzinfo=UTC), 0, []
    for _ in range(400):
        if found := due(plan, done, now):
            made.append(found)
            done = to_ms(found.due_at)
        now += timedelta(days=1)
    assert len(made) >= (57 if plan.every == "week" else 13)
    assert all(a.end == b.begin for a, b in pairwise(made))


def message(**changed: object) -> Notification:
    plain = Notification(
        id="0123",
        receiver="a",
        kind=MessageKind.REPORT,
        group="report",
        made_at=MONDAY,
        report=REPORT,
    )
    return replace(plain, **changed)  # type: ignore[arg-type]


def address(server: SmtpServer, rest: str = "") -> str:
    return f"mailto://127.0.0.1:{server.port}?from=gpuwarden@example.com&name=GPUs&to=a@example.com,b@example.com&mode=insecure{rest}"


async def send(url: str, sent: Notification) -> object:
    service = AppriseService(url, "text", Style(UTC))
    try:
        return await service.send(sent)
    finally:
        await service.close()


async def test_a_mail_has_the_text_and_the_html_and_stays_the_same_mail() -> None:
    async with smtp_server() as server:
        assert await send(address(server, "&cc=c@example.com"), message()) == Delivered("sent")
        assert await send(address(server), message()) == Delivered("sent")
    first, again = server.taken
    assert first.recipients == ["a@example.com", "b@example.com", "c@example.com"]
    assert first.sender == "gpuwarden@example.com"
    assert first.mail["Subject"] == REPORT.title
    assert first.mail["Message-ID"] == again.mail["Message-ID"] == "<0123@example.com>"
    assert first.mail["Auto-Submitted"] == "auto-generated"
    assert first.mail["Date"].datetime == MONDAY
    assert first.mail.get_content_type() == "multipart/alternative"
    text, html = first.mail.iter_parts()
    assert (text.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
    assert text.get_content().replace("\r\n", "\n") == REPORT.text
    assert html.get_content().replace("\r\n", "\n").strip() == REPORT.html


@pytest.mark.parametrize(
    ("said", "outcome"),
    [("451 later", DeliveryDelayed), ("421 busy", DeliveryDelayed), ("554 spam", DeliveryRefused), ("552 too large", DeliveryRefused)],
)  # fmt: skip
async def test_a_server_that_does_not_take_it_delays_or_refuses_it(said, outcome) -> None:
    async def answer(taken: TakenMail) -> str:
        return said

    async with smtp_server() as server:
        server.answer = answer
        found = await send(address(server).replace("127", "bob:geheimnis@127"), message())
    assert isinstance(
        found, DeliveryDelayed if "geheim" in str(found) else (DeliveryDelayed, DeliveryRefused)
    )
    async with smtp_server() as server:
        server.answer = answer
        found = await send(address(server), message())
    assert isinstance(found, outcome)
    assert "geheimnis" not in str(found)


async def test_a_recipient_that_is_refused_does_not_bring_it_twice_to_the_others() -> None:
    async with smtp_server() as server:
        server.refused = ("b@example.com",)
        assert await send(address(server), message()) == Delivered("1 of 2 recipients refused")
        server.refused = ("a@example.com", "b@example.com")
        assert isinstance(await send(address(server), message()), DeliveryDelayed)
    assert isinstance(await send(address(server), message()), DeliveryDelayed), "it is gone"


@pytest.mark.parametrize("sent", [message(), message_of(make_alert())], ids=["report", "alert"])
async def test_a_server_that_is_slow_to_take_a_mail_gets_it_once(sent, monkeypatch) -> None:
    async def answer(taken: TakenMail) -> str:
        await asyncio.sleep(0.5)
        return "250 taken"

    monkeypatch.setattr(apprise_service, "TIMEOUT_S", 0.1)
    async with smtp_server() as server:
        server.answer = answer
        service = AppriseService(address(server), "text", Style(UTC))
        assert await attempt(service, sent) == Delivered("sent")
        await service.close()
    assert server.tried == len({taken.recipients[0] for taken in server.taken})


async def test_the_end_of_a_mail_may_take_longer_than_a_command(monkeypatch) -> None:
    async def answer(taken: TakenMail) -> str:
        await asyncio.sleep(2)
        return "250 taken"

    monkeypatch.setattr(smtp_mail, "COMMAND_S", 1.0)
    async with smtp_server() as server:
        server.answer = answer
        assert await send(address(server), message()) == Delivered("sent")
        monkeypatch.setattr(smtp_mail, "DATA_S", 1.0)
        assert isinstance(await send(address(server), message()), DeliveryDelayed)


@pytest.mark.parametrize("said", ["500 what", "221"])
async def test_a_mail_that_was_taken_is_sent_whatever_the_server_says_at_the_end(said) -> None:
    async with smtp_server() as server:
        server.to_quit = said
        assert await send(address(server), message()) == Delivered("sent")


@pytest.mark.parametrize(
    ("said", "outcome"),
    [("552 too large", DeliveryRefused), ("554 not you", DeliveryDelayed), ("451 later", DeliveryDelayed)],
)  # fmt: skip
async def test_a_server_can_refuse_the_size_before_the_mail_comes(said, outcome) -> None:
    async with smtp_server() as server:
        server.to_sender = said
        assert isinstance(await send(address(server), message()), outcome)
    assert server.tried == 0


async def test_a_stop_does_not_wait_for_the_mail_server() -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def answer(taken: TakenMail) -> str:
        asked.set()
        await never.wait()
        return "250 taken"

    async with smtp_server() as server:
        server.answer = answer
        service = AppriseService(address(server), "text", Style(UTC))
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            sending = group.create_task(service.send(message()))
            await asked.wait()
            await service.close()
        assert isinstance(sending.result(), DeliveryDelayed)
        never.set()


TEXT = "receivers: [{{name: mail, apprise: '{url}'}}]\nreports: [{{receivers: [mail]}}]"


class Office:
    """A collector's notifier with a real outbox and a real mail server, and the claims of its lake."""

    def __init__(
        self,
        folder: Path,
        server: SmtpServer,
        clock: ManualClock,
        claims: dict[str, str],
        who: str = "one",
    ) -> None:
        self.notify = parse(TEXT.format(url=address(server)), "n.yaml", {})
        self.clock, self.claims, self.who = clock, claims, who
        self.periods: list[ReportPeriod] = []
        self.failing = 0
        receivers = {
            r.name: receiver_of(r, self.notify.style, clock) for r in self.notify.receivers
        }
        incidents = Incidents()
        self.notifier = Notifier(
            self.notify, receivers, Outbox(folder / who, clock), lambda: incidents.view([], clock.now()), None, clock,
            reports=ScheduledReports(self.notify.reports, self.make, self.claim),
        )  # fmt: skip

    async def make(self, plan: ReportPlan, period: ReportPeriod, now: datetime) -> MailedReport:
        if self.failing:
            self.failing -= 1
            raise QueryError("the store is away")
        self.periods.append(period)
        return REPORT

    async def claim(self, name: str) -> bool:
        return self.claims.setdefault(name, self.who) == self.who

    async def run(self, hours: list[float]) -> None:
        """Update after each of these times, and send what waits."""
        stop = asyncio.Event()
        await self.notifier._load()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.notifier.run(stop))
            await self.notifier.update()
            for one in hours:
                self.clock.advance(one * 3600)
                await self.notifier.update()
            async with asyncio.timeout(30):
                while self.notifier.outbox.waiting.total():  # noqa: ASYNC110  # the notifier's own thread
                    await asyncio.sleep(0.01)
            stop.set()


def office(
    folder: Path,
    server: SmtpServer,
    clock: ManualClock,
    claims: dict[str, str] | None = None,
    who: str = "one",
) -> Office:
    return Office(folder, server, clock, {} if claims is None else claims, who)


async def test_a_report_comes_once_also_after_a_restart_in_its_minute(tmp_path) -> None:
    clock = ManualClock(MONDAY - timedelta(days=1))
    async with smtp_server() as server:
        await office(tmp_path, server, clock).run([23.5, 0.6, 0.0])
        assert len(server.taken) == 1
        await office(tmp_path, server, clock).run([0.0, 24.0])
        assert len(server.taken) == 1
        later = office(tmp_path, server, clock)
        await later.run([24.0 * 7])
    assert len(server.taken) == 2
    assert [one.begin for one in later.periods] == [datetime(2026, 3, 23, tzinfo=UTC)]
    assert len({taken.mail["Message-ID"] for taken in server.taken}) == 2


async def test_of_two_collectors_one_sends_it(tmp_path) -> None:
    clock, claims = ManualClock(MONDAY - timedelta(days=1)), {}
    async with smtp_server() as server:
        one, two = (office(tmp_path, server, clock, claims, who) for who in ("one", "two"))
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run([25.0, 0.1]))
            group.create_task(two.run([0.0, 0.1]))
    assert len(server.taken) == 1
    assert bool(one.periods) != bool(two.periods)
    assert len(claims) == 1


async def test_a_report_that_cannot_be_made_is_made_when_it_can(tmp_path, caplog) -> None:
    clock = ManualClock(MONDAY - timedelta(days=1))
    async with smtp_server() as server:
        made = office(tmp_path, server, clock)
        made.failing = 2
        await made.run([25.0, 0.01, 0.01, 0.01])
    assert len(server.taken) == 1
    assert caplog.text.count("digest or report not made") == 1


PROGRAM = """
import asyncio, sys
from pathlib import Path
from gpuwarden.clock import ManualClock
from tests.rules.notify.smtp_server import SmtpServer
from tests.rules.notify.test_reports import MONDAY, HOUR, office

async def main():
    made = office(Path(sys.argv[1]), SmtpServer(int(sys.argv[2])), ManualClock(MONDAY + HOUR))
    await made.run([])
    print("sent", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_kill_at_any_moment_loses_no_report_and_makes_no_second_one(tmp_path) -> None:
    kills = 5
    async with smtp_server() as server:
        await office(tmp_path, server, ManualClock(MONDAY - timedelta(days=1))).run([])

        async def answer(taken: TakenMail) -> str:
            await asyncio.sleep(0.05)
            return "250 taken"

        server.answer = answer
        for kill in range(kills + 1):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, str(tmp_path), str(server.port), cwd=Path(__file__).parents[3]
            )  # fmt: skip
            if kill < kills:
                async with asyncio.timeout(60):
                    # Before, while and after it stores the message; then while the server takes the mail.
                    while kill >= 2 and server.tried < kill - 1 and process.returncode is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                    await asyncio.sleep(0.1 * kill if kill < 2 else 0.01)
                if process.returncode is None:
                    process.kill()
            await process.wait()
        assert process.returncode == 0
    assert server.taken
    assert len({taken.mail["Message-ID"] for taken in server.taken}) == 1, (
        "mail programs can tell that it is the same"
    )
    assert len(server.taken) <= kills
