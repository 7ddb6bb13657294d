"""`gpuwarden report own` and `right-size` ask a collector that runs, with the offers of its prices file."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

from tests.collector.made_up_store import LIMITS, put

from gpuwarden.clock import SystemClock
from gpuwarden_cli.main import main
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database

PRICES = """
[[offer]]
model = "H100-SXM"
purchase_usd = 30000
reserved_usd_per_hour = 2.0
"""


async def test_reports_of_a_collector(tmp_path, monkeypatch, capsys) -> None:
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    until = {"until": (this_hour - timedelta(hours=1)).replace(tzinfo=None)}
    database = Database.open(tmp_path / "data", LIMITS)
    put(
        database,
        "gpus",
        "SELECT 'GPU-0' AS gpu_uuid, 'n1' AS node, 0 AS gpu, 'NVIDIA H100 80GB HBM3' AS model, false AS simulated, "
        "$until - to_days(2) AS first_seen_at, $until AS last_seen_at",
        until,
    )
    put(
        database,
        "waste_1h",
        "SELECT $until - to_hours(h) AS ts, 'n1' AS node, 'GPU-0' AS gpu_uuid, 0 AS gpu, 'busy' AS category, "
        "false AS simulated, 3600 AS seconds, 2.5 AS usd FROM range(1, 25) s(h)",
        until,
    )
    database.close()
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICES)
    settings = CollectorSettings(port=0, data_dir=tmp_path / "data", threads=1, prices_file=prices)
    async with running(settings, SystemClock()) as collector:
        monkeypatch.setenv("GPUWARDEN_URL", collector.url)

        async def said(*arguments: str) -> str:
            assert await asyncio.to_thread(main, ["report", *arguments]) == 0
            return capsys.readouterr().out

        text = await said("own")
        (case,) = json.loads(await said("own", "--format", "json"))
        csv = await said("own", "--format", "csv")
        quiet = await said("right-size", "--all")
        by_user = json.loads(await said("right-size", "--by", "username", "--format", "json"))
    # 30,000 over 48 months, and power and cooling 30 % of the whole.
    assert case["own_usd_a_month"] == 30_000 / 48 / 0.7
    assert case["reserved_usd_a_month"] == 30.4375 * 24 * 2.0
    assert (case["model"], case["gpus"], case["used_at_once"]) == ("H100-SXM-80GB", 1, 1)
    assert "1 reserved at $2.00 an hour cost $1,461 a month, used or not" in text
    assert "prices.toml:2" in case["own_assumptions"]
    assert csv.startswith("model,simulated,days,")
    assert "No process held a whole GPU in that time." in quiet
    assert by_user == []
