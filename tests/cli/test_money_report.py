"""`gpuwarden report money`: its time, and the document of a collector."""

import argparse
import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.made_up_store import LIMITS, put
from tests.rules.notify.smtp_server import smtp_server

from gpuwarden.clock import SystemClock
from gpuwarden_cli.main import main
from gpuwarden_cli.money_report import span
from gpuwarden_client.http import CallError
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database

NOTIFY = """
link: https://g.example/
receivers: [{{name: mail, apprise: "mailto://127.0.0.1:{port}?from=g@example.com&to=boss@example.com&mode=insecure"}}]
"""
NOW = datetime(2026, 3, 26, 8, 20, tzinfo=UTC)


def flags(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"month": False, "begin": None, "end": None, **given})


def days(**given: object) -> tuple[str, str]:
    begin, end = span(flags(**given), NOW)
    return begin.isoformat()[:16], end.isoformat()[:16]


def test_the_time_of_a_report() -> None:
    assert days() == ("2026-03-16T00:00", "2026-03-23T00:00")
    assert days(month=True) == ("2026-02-01T00:00", "2026-03-01T00:00")
    assert days(begin="2026-03-01") == ("2026-03-01T00:00", "2026-03-26T09:00")
    whole = ("2026-03-01T05:00", "2026-03-02T01:00")
    assert days(begin="2026-03-01T05:59", end="2026-03-02T00:01") == whole
    assert days(begin="2026-03-01T05:00+02:00", end="2026-03-02") == (
        "2026-03-01T03:00",
        "2026-03-02T00:00",
    )
    assert days(begin="2026-03-26", end="2027-01-01") == ("2026-03-26T00:00", "2026-03-26T09:00")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"end": "2026-03-01"}, "--end needs --begin"),
        ({"begin": "2026-03-02", "end": "2026-03-01"}, "must be after"),
        ({"begin": "2026-03-26T09:00"}, "must not be in the future"),
        ({"begin": "yesterday"}, "--begin 'yesterday' is not a date"),
    ],
)
def test_a_wrong_time_is_named(given, said) -> None:
    with pytest.raises(CallError, match=said):
        span(flags(**given), NOW)


@given(st.integers(978_307_200, 4_102_444_800), st.booleans())
def test_the_last_whole_week_or_month_is_over(seconds, month) -> None:
    now = datetime.fromtimestamp(seconds, UTC)
    begin, end = span(flags(month=month), now)
    assert begin < end <= now < end + (end - begin) + timedelta(days=4)
    assert (
        (begin.day == end.day == 1)
        if month
        else (end - begin, end.weekday()) == (timedelta(days=7), 0)
    )


async def test_a_report_of_a_collector(tmp_path, monkeypatch, capsys) -> None:
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    database = Database.open(tmp_path / "data", LIMITS)
    put(
        database,
        "waste_1h",
        "SELECT $until - to_hours(h) AS ts, 'n1' AS node, 'GPU-0' AS gpu_uuid, 0 AS gpu, 'idle_held' AS category, "
        "'vision' AS team, false AS simulated, 3600 AS seconds, 2.5 AS usd FROM range(1, 49) s(h)",
        {"until": this_hour.replace(tzinfo=None)},
    )
    database.close()
    prices = tmp_path / "prices.toml"
    prices.write_text("[[budget]]\nteam = 'vision'\nusd_per_month = 1e6\n")
    settings = CollectorSettings(port=0, data_dir=tmp_path / "data", prices_file=prices)
    begin = (this_hour - timedelta(hours=48)).isoformat()
    arguments = ["report", "money", "--begin", begin, "--end", this_hour.isoformat()]
    async with running(settings, SystemClock()) as collector:
        monkeypatch.setenv("GPUWARDEN_URL", collector.url)
        assert await asyncio.to_thread(main, arguments) == 0
        text = capsys.readouterr().out
        async with smtp_server() as server:
            receivers = tmp_path / "notify.yaml"
            receivers.write_text(NOTIFY.format(port=server.port))
            sent = [*arguments, "--file", str(receivers), "--mail"]
            assert await asyncio.to_thread(main, [*sent, "mail"]) == 0
            assert await asyncio.to_thread(main, [*sent, "nobody"]) != 0
            assert "--mail nobody: must be one of mail" in capsys.readouterr().err
        (taken,) = server.taken
    assert "Spent: $120.00 for 48.0 GPU hours." in text
    assert "vision: $120.00, wasted $120.00" in text
    assert "Budget of team vision: $" in text
    plain, styled = taken.mail.iter_parts()
    assert "Spent: $120.00 for 48.0 GPU hours." in plain.get_content()
    assert "<b>$120.00</b>" in styled.get_content()
    assert "https://g.example" in plain.get_content()
