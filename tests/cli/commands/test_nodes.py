"""`gpuwarden nodes`: who reports, who is billed until when, and who is forgotten."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.cli.commands.test_report import NOW, stored

from gpuwarden.clock import SystemClock
from gpuwarden.waste import FORGOTTEN_AFTER_DAYS
from gpuwarden_cli.main import main
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings

HOUR = timedelta(hours=1)


def test_a_silent_node_is_billed_until_it_is_forgotten(
    data_dir: Path, monkeypatch: Any, capsys: Any
) -> None:
    node = {"agent_id": "a", "boot_id": "b", "simulated": False}
    gone = NOW.replace(microsecond=0) - 30 * HOUR
    stored(
        data_dir,
        nodes=[
            {"node": "gone", **node, "last_seen_at": gone},
            {"node": "here", **node, "last_seen_at": NOW + HOUR},
        ],
        gpus=[
            {"gpu_uuid": f"GPU-{name}", "node": name, "simulated": False, "last_seen_at": seen}
            for name, seen in (("gone", gone), ("here", NOW + HOUR))
        ],
    )
    answers: list[Any] = []

    async def asked() -> None:
        settings = CollectorSettings(port=0, data_dir=data_dir)
        async with running(settings, SystemClock()) as collector:
            monkeypatch.setenv("GPUWARDEN_URL", collector.url)
            listing = ["ask", "nodes", "--format", "json"]
            for command in (listing, ["nodes", "forget", "gone", "here", "who"], listing):
                code = await asyncio.to_thread(main, command)
                answers.append((code, capsys.readouterr().out))

    asyncio.run(asked())
    before, after = (
        {row["node"]: (row["state"], row["billed_until"]) for row in json.loads(answers[n][1])}
        for n in (0, 2)
    )

    def text(instant: Any) -> str:
        return f"{instant.isoformat(timespec='milliseconds')}Z"

    assert before == {
        "gone": ("silent", text(gone + timedelta(days=FORGOTTEN_AFTER_DAYS))),
        "here": ("reports", None),
    }
    assert after == {
        "gone": ("forgotten", text(gone + timedelta(minutes=2))),
        "here": ("reports", None),
    }
    assert answers[1] == (
        1,
        (
            "gone is forgotten: it is billed until its last sample\n"
            "here: here sends data: stop its agent, and the node leaves by itself\n"
            "who: there is no node 'who'\n"
        ),
    )
