"""Notification as part of the collector: what stops its start, and one alert's whole way."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.rules.conftest import MemoryStore
from tests.rules.incidents.test_service import IncidentMemory
from tests.rules.notify.smtp_server import smtp_server

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_cli.composition.notifications import Notifications
from gpuwarden_cli.settings import notify_of
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_rules.definition.language import parse
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.incidents.service import IncidentService
from gpuwarden_rules.notify.outbox import FILE_NAME, Outbox
from gpuwarden_rules.testing import MemoryDatabase

RULE = """
rules:
  - name: always
    severity: critical
    interval: 1s
    gather_for: 0s
    summary: It holds.
    remedy: Do nothing.
    sql: SELECT 1 AS value WHERE $now IS NOT NULL
"""
REPORTS = """
receivers: [{{name: mail, apprise: "mailto://127.0.0.1:{port}?from=g@example.com&to=boss@example.com&mode=insecure"}}]
reports: [{{receivers: [mail]}}]
"""
DEADLINE_S = 240


async def always(name: str) -> bool:
    """Claims of a collector that has its lake alone."""
    return True


def test_a_wrong_file_stops_the_start_with_one_line(tmp_path) -> None:
    path = tmp_path / "notify.yaml"
    path.write_text("receivers: [{name: a}, {name: b}]")
    with pytest.raises(StartError) as error:
        notify_of(path)
    assert str(error.value).startswith(f"{path}:1:13: a receiver has exactly one of")
    assert str(error.value).endswith(f"(and 1 more problem: `gpuwarden notify check {path}`)")


async def test_without_a_file_nobody_is_told(tmp_path) -> None:
    notifications = Notifications(None, tmp_path, SystemClock())
    await notifications.run(None, None, asyncio.Event(), always)
    assert notifications.figures() == ""
    assert list(tmp_path.iterdir()) == []


@asynccontextmanager
async def running(
    notifications: Notifications, store: MemoryStore, kept: IncidentMemory
) -> AsyncIterator[None]:
    """An engine of one rule, its incidents and its notifier."""
    database = MemoryDatabase()
    engine = RuleEngine(
        parse(RULE, "r"), database, store, SystemClock(), on_change=lambda alert: incidents.wake()
    )
    incidents = IncidentService(
        lambda: engine.alerts if engine.is_running else None,
        lambda: engine.rules,
        kept,
        database,
        SystemClock(),
        notifications.wake,
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.run(stop))
        group.create_task(incidents.run(stop))
        group.create_task(notifications.run(incidents, database, stop, always))
        try:
            yield
        finally:
            stop.set()
    database.close()


async def test_an_alert_of_an_engine_is_told_once_over_two_runs(tmp_path) -> None:
    told, path, store = tmp_path / "alerts.jsonl", tmp_path / "notify.yaml", MemoryStore()
    kept = IncidentMemory()
    path.write_text(f"receivers: [{{name: log, file: {told}}}]")
    settings = CollectorSettings(data_dir=tmp_path / "store", notify_file=path)
    notifications = Notifications(settings.notify_file, settings.data_dir, SystemClock())
    async with running(notifications, store, kept):
        async with asyncio.timeout(DEADLINE_S):
            while not told.exists() or not told.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert 'gpuwarden_notify_waiting{receiver="log"}' in notifications.figures()
    message = json.loads(told.read_text().splitlines()[0])
    assert message["title"] == "CRITICAL fleet: always"
    assert message["firing"][0]["summary"] == "It holds."
    assert (tmp_path / "store" / "notify.sqlite").exists()
    again = Notifications(settings.notify_file, settings.data_dir, SystemClock())
    async with running(again, store, kept):
        await asyncio.sleep(1.5)
    assert len(told.read_text().splitlines()) == 1


@pytest.mark.slow
async def test_a_collector_mails_the_report_that_it_missed_once(tmp_path) -> None:
    path, data = tmp_path / "notify.yaml", tmp_path / "data"
    settings = CollectorSettings(port=0, data_dir=data, notify_file=path)
    async with smtp_server() as server:
        path.write_text(REPORTS.format(port=server.port))
        (plan,) = notify_of(path).reports
        for run in range(2):
            outbox = Outbox(data / FILE_NAME, SystemClock())
            if run == 0:  # as one that was last sent long ago
                outbox.commit({}, {}, [], digests={plan.name: 0})
            outbox.close()
            async with (
                collecting(settings, SystemClock()) as collector,
                asyncio.timeout(DEADLINE_S),
            ):
                assert await collector.cluster.claim("anything"), "it has its lake alone"
                while not server.taken:  # noqa: ASYNC110  # another connection
                    await asyncio.sleep(0.05)
            outbox = Outbox(data / FILE_NAME, SystemClock())
            assert outbox.digests()[plan.name] > 0
            assert outbox.waiting.total() == 0
            outbox.close()
    (taken,) = server.taken
    assert "none was seen" in taken.mail["Subject"]
    assert [part.get_content_type() for part in taken.mail.iter_parts()] == [
        "text/plain",
        "text/html",
    ]
