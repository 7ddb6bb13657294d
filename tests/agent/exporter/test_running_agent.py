"""The page of an agent that runs: it has the values of its probes, Xids too."""

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
from bench.this_host import free_port
from tests.agent.fakes import fake_probe

from gpuwarden.clock import SystemClock
from gpuwarden_agent.daemon import run
from gpuwarden_agent.settings import AgentSettings

DEADLINE_S = 20.0
LAST_XID = r'^DCGM_FI_DEV_XID_ERRORS\{.*UUID="GPU-1".*\} (\d+)$'


async def page_with(url: str, pattern: str) -> str:
    """The page once it has a line like that."""
    async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/metrics") as answer:
                    text = await answer.text()
                    if re.search(pattern, text, flags=re.MULTILINE):
                        return text
            await asyncio.sleep(0.05)


async def test_an_agents_page_shows_xids_as_they_come(stub_collector: Any, tmp_path: Path) -> None:
    gpu = fake_probe("gpu0", gpu_uuid="GPU-1")
    gpu.inventory = {"gpus": [{"gpu_uuid": "GPU-1", "gpu": 0, "vendor": "nvidia"}]}
    gpu.answer = lambda ts_ms: {"gpu_samples": [{"gpu": 0, "gpu_uuid": "GPU-1"}]}
    kmsg = fake_probe("kmsg", tables={"events": 1})
    told: list[dict[str, Any]] = []
    kmsg.answer = lambda ts_ms: {"events": [told.pop() for _ in range(len(told))]}
    port = free_port()
    settings = AgentSettings(
        node="n1",
        collector_url=(stub_collector.url,),
        state_dir=tmp_path,
        interval_s=0.1,
        batch_s=0.3,
        exporter_listen=f"127.0.0.1:{port}",
        exporter_names=("own", "dcgm"),
    )
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(run(settings, SystemClock(), stop, probes=[gpu, kmsg]))
        url = f"http://127.0.0.1:{port}"
        before = await page_with(url, LAST_XID)
        xid = {"kind": "xid", "severity": "critical", "message": "Xid 79", "gpu_uuid": "GPU-1"}
        told.append(xid | {"gpu": 0, "details": json.dumps({"xid": 79})})
        after = await page_with(url, r"^gpuwarden_gpu_xids_total")
        stop.set()
    assert re.findall(LAST_XID, before, flags=re.MULTILINE) == ["0"]
    assert re.findall(LAST_XID, after, flags=re.MULTILINE) == ["79"]
    assert re.search(r'^gpuwarden_gpu_xids_total\{.*xid="79"\} 1$', after, flags=re.MULTILINE)
