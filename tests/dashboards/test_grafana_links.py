"""Pages link to Grafana's dashboards where a setting names it, and to no other place."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_dashboards.routes import routes

URL = "https://grafana.example/sub"


async def linked(querier: Any, grafana_url: str | None, *paths: str) -> list[list[str]]:
    """Links called Grafana of each page."""
    app = web.Application()
    app.add_routes(routes(querier, SystemClock(), grafana_url=grafana_url))
    found = []
    async with TestClient(TestServer(app)) as client:
        for path in paths:
            answer = await client.get(path)
            assert answer.status == 200, await answer.text()
            links = re.findall(r'<a href="([^"]+)">Grafana</a>', await answer.text())
            found.append([unescape(link) for link in links])
    return found


@pytest.fixture
def fleet(querier: Any) -> Any:
    """A GPU of node `n 1`, which job 7 of ada held an hour ago."""
    now = datetime.now(UTC).replace(tzinfo=None)
    rows = {
        "gpus": {"gpu_uuid": "GPU-1", "node": "n 1", "gpu": 3, "simulated": False, "last_seen_at": now},
        "nodes": {"node": "n 1", "agent_id": "a", "boot_id": "b", "simulated": False, "last_seen_at": now},
        "process_1m": {"ts": now - timedelta(hours=1), "node": "n 1", "gpu": 3, "gpu_uuid": "GPU-1", "pid": 1,
            "job": "7", "username": "ada", "samples": 1, "simulated": False},
    }  # fmt: skip
    for table, row in rows.items():
        marks = ", ".join("?" for _ in row)
        querier.db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))  # fmt: skip
    return querier


async def test_pages_of_nodes_gpus_and_jobs_link_to_their_dashboards(fleet: Any) -> None:
    found = await linked(fleet, f"{URL}/", "/nodes/n%201", "/gpus/GPU-1", "/jobs/7", "/users/ada")
    assert found == [
        [f"{URL}/d/gpuwarden-node?var-node=n+1"],
        [f"{URL}/d/gpuwarden-gpu?var-node=n+1&var-gpu=3"],
        [f"{URL}/d/gpuwarden-job?var-job=7"],
        [f"{URL}/d/gpuwarden-job?var-user=ada"],
    ]


@pytest.mark.parametrize("url", ["grafana", "javascript:alert(1)", "https://", "https://g/?a=b"])
def test_what_is_no_address_is_one_line(url: str, querier: Any) -> None:
    with pytest.raises(StartError, match="grafana_url: .* is not an address: write it as https://"):
        routes(querier, SystemClock(), grafana_url=url)
