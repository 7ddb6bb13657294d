"""Measures the fleet's page in Chromium: time to first useful paint and to interactive, bytes, server CPU, queries.

    python -m bench.dashboards [--nodes 64 1250 12500] [--pages 10] [--seconds 20]

A server of its own (`serve.py`) has that many nodes with 8 GPUs, a week of hours and waste, and minutes of 8 hours
(of 12,500 nodes only hours, as the page reads no more then). What the page shows is compared with what was made;
a difference ends the run with 1. Needs playwright and Debian's chromium.
"""

import argparse
import asyncio
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from aiohttp import ClientSession
from bench.dashboards.fill import FleetSize
from playwright.async_api import Browser, Page, async_playwright

START_S = 1800
ENDPOINTS = (
    "/v1/fleet", "/v1/map?colour=util_percent", "/v1/map/names", "/v1/map/nodes?node=gpu-00003",
)  # fmt: skip
"""Requests that a page makes at once when it is opened."""
SLOW = ("/v1/fleet/week", "/v1/fleet/past?by=", "/v1/fleet/past?by=rack")
"""Requests that it makes once a minute."""
PAGES = ("/money?by=username", "/money?by=team&since=24h", "/money?by=label")
"""Other pages, of a week or a day of waste and of the hour that runs."""


@asynccontextmanager
async def serving(nodes: int, *more: str) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Address and process of a server with so many nodes; `more`: options of it."""
    with tempfile.TemporaryDirectory(prefix="bench-dashboards-") as folder:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.dashboards.serve", str(Path(folder) / "store")),
            str(nodes),
            *more,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                port = (await child.stdout.readline()).decode().strip()
            if not port:
                raise SystemExit("the server ended before it listened")
            yield f"http://127.0.0.1:{port}", psutil.Process(child.pid)
        finally:
            if child.returncode is None:
                child.terminate()
                await child.wait()


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process and all below it, those that ended too."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    times = process.cpu_times()
    return total + times.children_user + times.children_system


async def latencies(url: str, rounds: int) -> dict[str, float]:
    """Milliseconds until all that a page asks for at once is there: median; and of what is asked once a minute."""
    found: dict[str, float] = {}
    async with ClientSession(url) as session:

        async def ask(path: str) -> float:
            began_s = time.perf_counter()
            async with session.get(path) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            return (time.perf_counter() - began_s) * 1000

        for path in SLOW:
            found[path] = await ask(path)
        each: dict[str, list[float]] = {path: [] for path in (*PAGES, *ENDPOINTS, "all at once")}
        for path in PAGES * 3:
            each[path].append(await ask(path))
        for _ in range(rounds):
            await asyncio.sleep(1.1)  # what is shared is old then
            took = await asyncio.gather(*(ask(path) for path in ENDPOINTS))
            for path, ms in zip(ENDPOINTS, took, strict=True):
                each[path].append(ms)
            each["all at once"].append(max(took))
    return found | {path: statistics.median(ms) for path, ms in each.items()}


async def opened(page: Page, url: str) -> dict[str, float]:
    """Milliseconds until the map is drawn and until it answers a key, and bytes over the wire until then."""
    client = await page.context.new_cdp_session(page)
    await client.send("Network.enable")
    received = [0.0]

    def count(event: dict[str, Any]) -> None:
        received[0] += event["encodedDataLength"]

    client.on("Network.loadingFinished", count)
    await page.goto(url)
    await page.wait_for_selector("#counted:not(:empty)", timeout=120_000)
    await page.focus(".stage")
    await page.keyboard.press("Home")
    await page.wait_for_selector("#cell:not(:empty)", timeout=120_000)
    now_ms = await page.evaluate("performance.now()")
    drawn_ms = await page.evaluate("performance.getEntriesByName('drawn')[0].startTime")
    paint = await page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    )
    # The browser draws in its next frame.
    return {"paint": paint, "useful": drawn_ms + 16, "interactive": now_ms, "bytes": received[0]}


async def checked(page: Page, url: str, size: FleetSize) -> list[str]:
    """Differences between what the page shows and what was made."""
    await page.goto(f"{url}/?colour=state&group=team")
    for place in ("#waste li", "#totals li", "#trouble li", "#counted:not(:empty)"):
        await page.wait_for_selector(place, timeout=120_000)
    wrong = []
    said = {
        name: await page.inner_text(f"#{name}")
        for name in ("counted", "totals", "legend", "trouble")
    }
    for place, text in (
        ("counted", f"{size.reporting:,} of {size.gpus:,} GPUs reporting"),
        ("totals", f"Idle {size.idle:,}"),
        ("totals", f"GPUs with an alert {size.alerting:,}"),
        ("legend", f"not reporting {size.gpus - size.reporting:,}"),
        ("trouble", f"{min(40, size.alerting):,} open incident"),
    ):
        if re.sub(r"\s+", " ", text) not in re.sub(r"\s+", " ", said[place]):
            wrong.append(f"{place} lacks {text!r}: {said[place]!r}")
    cells = await page.inner_text("#heads")
    grouped = sum(int(found.replace(",", "")) for found in re.findall(r"([\d,]+) GPUs?\b", cells))
    if grouped != size.gpus:
        wrong.append(f"{grouped:,} GPUs in groups, not {size.gpus:,}")
    return wrong


async def measured(browser: Browser, nodes: int, pages: int, seconds: float) -> list[str]:
    """Print the figures of one size; return the differences."""
    size = FleetSize(nodes)
    async with serving(nodes) as (url, process):
        took = await latencies(url, 8)
        runs = []
        for _ in range(3):
            context = await browser.new_context(viewport={"width": 1440, "height": 900})
            runs.append(await opened(await context.new_page(), url))
            await context.close()
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        wrong = await checked(page, url, size)
        await page.close()
        idle_s = cpu_s(process)
        await asyncio.sleep(seconds)
        began_s = cpu_s(process)
        idle_s = began_s - idle_s
        several = [await browser.new_page() for _ in range(pages)]
        await asyncio.gather(*(page.goto(url) for page in several))
        began_s = cpu_s(process)
        await asyncio.sleep(seconds)
        busy_s = cpu_s(process) - began_s - idle_s
        for page in several:
            await page.close()
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print(f"{nodes:,} nodes, {size.gpus:,} GPUs")
    print(f"  first paint {middle['paint']:.0f} ms, map drawn {middle['useful']:.0f} ms, "
          f"interactive {middle['interactive']:.0f} ms, {middle['bytes'] / 1000:.0f} kB")  # fmt: skip
    print(f"  {pages} pages open: {busy_s / seconds:.3f} cores of the server more than none")
    for path, ms in took.items():
        print(f"  {path:38} {ms:7.0f} ms")
    for one in wrong:
        print(f"  WRONG: {one}")
    sys.stdout.flush()
    return wrong


async def main() -> int:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nodes", type=int, nargs="+", default=[64, 1250, 12_500])
    arguments.add_argument("--pages", type=int, default=10)
    arguments.add_argument("--seconds", type=float, default=20)
    args = arguments.parse_args()
    wrong = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for nodes in args.nodes:
            wrong += await measured(browser, nodes, args.pages, args.seconds)
        await browser.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
