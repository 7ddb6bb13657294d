"""Measures live charts in Chromium, 10 GPUs with 6 charts: time of the page's main thread, CPU of browser and server.

    python -m bench.dashboards.live [--seconds 60] [--viewers 1 5] [--most 5]

The server (`serve.py --live`) gets rows of every second in batches of five, as from agents. The points that the page
draws are compared with the rows that SQL answers; a difference ends the run with 1, and so does a main thread that is
busy for more than `--most` percent of a core. Times are of the thread's CPU, so that a busy host does not count. Needs
playwright and Debian's chromium.
"""

import argparse
import asyncio
import shutil
import sys
from typing import Any

import psutil
from bench.dashboards.__main__ import cpu_s, serving
from playwright.async_api import Browser, CDPSession, Page, async_playwright

from gpuwarden_client.http import ask

NODES = 4
JOB = "70000"
"""The job of all GPUs of these nodes that are not idle."""
GPUS, CHARTS, WINDOW_S = 10, 6, 300
READ = """async () => {
  const { shown } = await import(document.querySelector("script[src*='place.js']").src.replace("place.js", "livecharts.js"));
  const live = [...shown][0];
  return live.charts.map(({ chart, points }) => ({
    title: chart.title, origin: chart.origin, drawn: chart.drawn,
    lines: [...points].map(([key, { points: { at, value } }]) => [key, at, value]),
  }));
}"""
"""What the charts hold, and how many points each has drawn from `origin` on."""


async def opened(browser: Browser, url: str) -> Page:
    """A page that runs live, with all its points."""
    context = await browser.new_context(viewport={"width": 1440, "height": 1000})
    page = await context.new_page()
    await page.goto(f"{url}/jobs/{JOB}?live=1")
    await page.wait_for_selector("#live-charts figcaption button", timeout=120_000)
    return page


async def metrics(client: CDPSession) -> dict[str, float]:
    """Chromium's figures of a page so far, in seconds."""
    found = await client.send("Performance.getMetrics")
    return {one["name"]: one["value"] for one in found["metrics"]}


async def checked(page: Page, url: str) -> list[str]:
    """Differences between what is drawn and SQL."""
    charts: list[dict[str, Any]] = await page.evaluate(READ)
    wrong = []
    if len(charts) != CHARTS:
        wrong.append(f"{len(charts)} charts")
    for chart in charts:
        held = {key: dict(zip(at, value, strict=True)) for key, at, value in chart["lines"]}
        if len(held) != GPUS:
            wrong.append(f"{chart['title']}: {len(held)} lines")
        points = 0
        for key, line in held.items():
            metric, uuid = key.split()[:2]
            table = (
                "gpu_detail_samples"
                if metric.startswith(("sm_active", "nvlink"))
                else "gpu_samples"
            )
            begin, end = chart["origin"], max(line)
            sql = (
                f"SELECT epoch_ms(ts), {metric} FROM {table} WHERE gpu_uuid = '{uuid}'"
                f" AND ts >= make_timestamp({int(begin) * 1000}) AND ts <= make_timestamp({end * 1000}) ORDER BY ts"
            )
            rows = (await asyncio.to_thread(ask, sql, url=url)).rows
            stored = {int(ms): float(f"{value:.6g}") for ms, value in rows}
            shown = {ms: value for ms, value in line.items() if ms >= begin}
            points += len(stored)
            if shown != stored:
                wrong.append(f"{chart['title']} {uuid}: {len(shown)} points, {len(stored)} rows")
        # A point left of the edge is drawn too, so that the curve begins there.
        if not points <= chart["drawn"] <= points + 3 * GPUS or points < GPUS * (WINDOW_S - 30):
            wrong.append(f"{chart['title']}: {chart['drawn']} points drawn of {points} rows")
    return wrong


async def measured(browser: Browser, viewers: int, seconds: float, most: float) -> list[str]:
    """Print the figures with so many pages open; return what is wrong."""
    me = psutil.Process()
    async with serving(NODES, "--live") as (url, server):
        await asyncio.sleep(10)  # the server's own start
        began_s = cpu_s(server)
        await asyncio.sleep(seconds / 2)
        alone = 2 * (cpu_s(server) - began_s)
        pages = [await opened(browser, url) for _ in range(viewers)]
        clients = [await page.context.new_cdp_session(page) for page in pages]
        for client in clients:
            await client.send("Performance.enable", {"timeDomain": "threadTicks"})
        await asyncio.sleep(5)
        before = [await metrics(client) for client in clients]
        browser_s, server_s = browser_cpu_s(me), cpu_s(server)
        await asyncio.sleep(seconds)
        after = [await metrics(client) for client in clients]
        browser_s, server_s = browser_cpu_s(me) - browser_s, cpu_s(server) - server_s
        wrong = await checked(pages[0], url)
        for page in pages:
            await page.context.close()
    shares = [
        (z["TaskDuration"] - a["TaskDuration"]) / seconds
        for a, z in zip(before, after, strict=True)
    ]
    scripts = (after[0]["ScriptDuration"] - before[0]["ScriptDuration"]) / seconds
    print(
        f"{viewers} viewers: main thread of a page {100 * max(shares):.1f} % of a core (script"
        f" {100 * scripts:.1f} %), browser {100 * browser_s / seconds / viewers:.1f} % a page, server"
        f" {100 * (server_s - alone) / seconds:.1f} % more than without a viewer ({100 * alone / seconds:.1f} %)"
    )
    if max(shares) > most / 100:
        wrong.append(f"the main thread is busy for {100 * max(shares):.1f} % of a core")
    for one in wrong:
        print(f"  WRONG: {one}")
    sys.stdout.flush()
    return wrong


def browser_cpu_s(me: psutil.Process) -> float:
    """CPU seconds of all processes of Chromium so far."""
    total = 0.0
    for one in me.children(recursive=True):
        try:
            if "chrom" in one.name():
                times = one.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


async def main() -> int:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--viewers", type=int, nargs="+", default=[1, 5])
    arguments.add_argument("--most", type=float, default=100, help="most percent of a core")
    args = arguments.parse_args()
    wrong = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for viewers in args.viewers:
            wrong += await measured(browser, viewers, args.seconds, args.most)
        await browser.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
