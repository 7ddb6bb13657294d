"""The server on a real port, and a real Prometheus that scrapes it."""

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.prometheus_names import NAME_SETS
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.exporter.page import metrics_page
from gpuwarden_agent.exporter.server import listen_address, serving, takes_gzip

DEADLINE_S = 40.0


async def get(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_metrics_are_made_anew_at_each_request() -> None:
    pages = iter(["a 1\n", "a 2\n"])
    async with serving("127.0.0.1", 0, lambda: next(pages)) as url:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        assert await get(f"{url}/metrics") == (200, kind, "a 1\n")
        assert await get(f"{url}/metrics") == (200, kind, "a 2\n")


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip; q = 0.00", False),
        ("identity", False),
        ("gzipped", False),
        ("", False),
        (";;,,q=", False),
    ],
)
async def test_a_page_is_compressed_for_whom_takes_it(accepted: str, taken: bool) -> None:
    assert takes_gzip(accepted) == taken
    async with (
        serving("127.0.0.1", 0, lambda: "a 1\n") as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/metrics", headers={"Accept-Encoding": accepted}) as answer,
    ):
        assert answer.headers.get("Content-Encoding") == ("gzip" if taken else None)
        assert await answer.text() == "a 1\n"


async def test_health_is_told_and_nothing_else_is_there() -> None:
    async with serving("127.0.0.1", 0, lambda: "") as url:
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/other"))[0] == 404
        async with aiohttp.ClientSession() as session, session.post(f"{url}/metrics") as answer:
            assert answer.status == 405


async def test_the_port_is_free_again_afterwards() -> None:
    async with serving("127.0.0.1", 0, lambda: "") as url:
        port = int(url.rpartition(":")[2])
    async with serving("127.0.0.1", port, lambda: "") as url:
        assert (await get(f"{url}/healthz"))[0] == 200


async def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    async with serving("127.0.0.1", 0, lambda: "") as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(StartError) as raised:
            async with serving("127.0.0.1", port, lambda: ""):
                pass
    assert str(raised.value) == (
        f"exporter: 127.0.0.1:{port} is in use by another process:"
        " stop it or choose another port in exporter_listen"
    )


async def test_an_address_that_is_not_ours_is_one_line_too() -> None:
    with pytest.raises(StartError, match="choose another host in exporter_listen"):
        async with serving("192.0.2.1", 0, lambda: ""):
            pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9750", ("127.0.0.1", 9750)),
        ("[::1]:9750", ("::1", 9750)),
        ("gpu-1.example:0", ("gpu-1.example", 0)),
    ],
)
def test_the_exporter_listens_where_its_setting_says(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize(
    "text", ["9750", ":9750", "0.0.0.0", "h:70000", "h:port", "http://h:1", "u@h:1/x"]
)
def test_what_is_no_address_to_listen_on_is_a_line(text: str) -> None:
    with pytest.raises(StartError, match=re.escape(f"exporter_listen = {text} must be HOST:PORT")):
        listen_address(text)


@contextlib.contextmanager
def running_prometheus(target: str, folder: Path) -> Iterator[str]:
    """A Prometheus that scrapes `target` every second; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: gpuwarden\n"
        f"    static_configs: [{{targets: ['{target}']}}]\n"
    )
    flags = {
        "config.file": config,
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in flags.items())],
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(20)


async def ask(session: aiohttp.ClientSession, url: str, query: str) -> list[dict[str, Any]]:
    """Instant query; nothing while Prometheus starts."""
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(f"{url}/api/v1/query", params={"query": query}) as answer:
            if answer.status == 200:
                result: list[dict[str, Any]] = (await answer.json())["data"]["result"]
                return result
    return []


async def wait_for(session: aiohttp.ClientSession, url: str, query: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(DEADLINE_S):
        while not (found := await ask(session, url, query)):  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.1)
    return found


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not on the PATH")
async def test_a_real_prometheus_scrapes_all_sets_and_answers_a_query(
    tmp_path: Path, simulate: Any
) -> None:
    latest, counters = Latest(SystemClock()), Counters(ticks=7)
    simulate(latest, SystemClock())

    def page() -> str:
        return metrics_page("n1", latest, counters, NAME_SETS)

    async with serving("127.0.0.1", 0, page) as ours, aiohttp.ClientSession() as session:
        with running_prometheus(ours.removeprefix("http://"), tmp_path) as url:
            power = await wait_for(session, url, "gpuwarden_gpu_power_watts")
            assert {s["metric"]["gpu"] for s in power} == {"0", "1"}
            labels = {"node", "gpu_uuid", "model", "simulated", "instance", "job"}
            assert all(labels <= s["metric"].keys() for s in power)
            (up,) = await wait_for(session, url, "up")
            assert up["value"][1] == "1"
            # The same value in three units, joined by PromQL as a dashboard would.
            same = await wait_for(
                session,
                url,
                "sum(DCGM_FI_DEV_FB_USED) * 1048576 == sum(gpuwarden_gpu_memory_used_bytes)"
                " == sum(DCGM_FI_DEV_FB_USED_BYTES)",
            )
            assert float(same[0]["value"][1]) > 0
            (ticks,) = await wait_for(session, url, "gpuwarden_agent_ticks_total")
            assert ticks["value"][1] == "7"


@pytest.mark.parametrize(
    ("host", "named", "status"),
    [
        ("127.0.0.1", "evil.example", 421),
        ("127.0.0.1", "evil.example:9400", 421),
        ("127.0.0.1", "localhost:9400", 200),
        ("127.0.0.1", "127.0.0.1", 200),
        ("localhost", "evil.example", 421),
        ("0.0.0.0", "gpu-1.example:9400", 200),
    ],
)
async def test_on_loopback_no_name_of_the_web_leads_to_the_page(
    host: str, named: str, status: int
) -> None:
    async with serving(host, 0, lambda: "a 1\n") as url, aiohttp.ClientSession() as session:
        port = url.rpartition(":")[2]
        async with session.get(
            f"http://127.0.0.1:{port}/metrics", headers={"Host": named}
        ) as answer:
            assert answer.status == status
