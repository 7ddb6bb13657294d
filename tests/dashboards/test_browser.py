"""The pages in a real Chromium: drawn, drilled into, zoomed, and old when the collector is gone."""

import shutil
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from gpuwarden.clock import SystemClock
from gpuwarden.query import QueryError
from gpuwarden_dashboards.routes import routes

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

EVIL = "<script>alert(1)</script>"
DRAWN = """(canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.some((part) => part > 0);
}"""


@pytest.fixture
def fleet(querier):
    """Two nodes; the second is silent, a GPU of the first has an alert, and its name is an attack."""
    db, now = querier.db, datetime.now(UTC).replace(tzinfo=None)
    for node, seconds_ago in ((EVIL, 1), ("n2", 400)):
        db.execute(
            "INSERT INTO nodes (node, agent_id, boot_id, labels, simulated, last_seen_at)"
            " VALUES (?, 'a', 'b', '{\"rack\": \"r7\"}', true, ?)",
            [node, now - timedelta(seconds=seconds_ago)],
        )
        for gpu in range(4):
            db.execute(
                "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, last_seen_at)"
                " VALUES (?, ?, ?, 'H100', true, ?)",
                [f"GPU-{node}-{gpu}", node, gpu, now - timedelta(seconds=seconds_ago)],
            )
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent, power_watts,"
        " memory_used_bytes, memory_total_bytes, sm_clock_mhz, clocks_event_reasons)"
        " SELECT $1::TIMESTAMP - to_seconds(i), $2, g, 'GPU-' || $2 || '-' || g, true, (i + 25 * g) % 100,"
        " 300 + i % 90, 2e10, 8e10, 1900, CASE WHEN i % 50 < 9 THEN 32 ELSE 0 END"
        " FROM range(900) a(i), range(4) b(g)",
        [now, EVIL],
    )
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels, summary,"
        " remedy, began_at, active_at, fired_at, seen_at, simulated) SELECT 'f', 'r', 'critical', 'slow_work', 'firing',"
        " $2, 1, 'GPU-' || $2 || '-1', '{}', $2 || ' is hot', 'Cool it.', $1, $1, $1, $1, true",
        [now - timedelta(minutes=5), EVIL],
    )
    return querier


def answering(querier):
    """`POST /v1/sql` as the collector has it."""

    async def answer(request: web.Request) -> web.Response:
        try:
            result = await querier.query((await request.json())["sql"])
        except QueryError as error:
            return web.json_response({"error": str(error), "status": 400}, status=400)
        columns = [
            {"name": n, "type": t} for n, t in zip(result.columns, result.types, strict=True)
        ]
        rows = [[v.isoformat() if isinstance(v, datetime) else v for v in r] for r in result.rows]
        said = {"columns": columns, "rows": rows, "truncated": False, "elapsed_s": 0.01}
        return web.json_response(said)

    return answer


async def no_queries(_request: web.Request) -> web.Response:
    """`GET /v1/queries` where none is saved."""
    return web.json_response({"queries": []})


@asynccontextmanager
async def served(querier, port=0):
    app = web.Application()
    app.add_routes(routes(querier, SystemClock()))
    app.router.add_post("/v1/sql", answering(querier))
    app.router.add_get("/v1/queries", no_queries)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


@pytest.mark.timeout(120)
async def test_pages_are_drawn_zoomed_and_old_when_the_collector_is_gone(fleet) -> None:
    said: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1000, "height": 800})
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        async with served(fleet) as port:
            url = f"http://127.0.0.1:{port}"
            await page.goto(url)
            expect = playwright.expect
            await expect(page.locator("#counted")).to_have_text("4 of 8 GPUs reporting")
            assert await page.locator("#map canvas").evaluate(DRAWN)
            await expect(page.locator("#lists summary")).to_contain_text(f"{EVIL} is hot")
            await expect(page.locator("tr[data-node='n2']")).to_contain_text("not reporting")

            await page.fill("#filter", "r7 n2")
            await expect(page.locator("#counted")).to_have_text("0 of 4 GPUs reporting")
            assert "filter=r7+n2" in page.url
            await page.reload()  # the address is the state
            await expect(page.locator("#counted")).to_have_text("0 of 4 GPUs reporting")
            await page.fill("#filter", "")

            # The third cell of the first node: cells of 18 pixels.
            await page.locator("#map canvas").click(position={"x": 2 * 18 + 5, "y": 5})
            await page.wait_for_url("**/gpus/**")
            plot = page.locator("#charts .plot").first
            await expect(plot).to_have_attribute(
                "aria-label", r"Utilization: util from 0 % to 99 %"
            )
            assert await plot.locator("canvas").first.evaluate(DRAWN)
            await expect(
                page.locator("#charts figcaption .strip", has_text="software")
            ).to_have_text("software thermal slowdown")

            box = await plot.bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 50)
            await page.mouse.down()
            await page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50)
            await page.mouse.up()
            await page.wait_for_url("**begin=*")
            await plot.press("-")
            await page.click("#charts >> text=as a table >> nth=0")
            await expect(page.locator("#charts table tbody tr").first).to_be_visible()

            await page.fill("#picker", "power_instant_watts")
            await page.click("#pick button")
            await expect(page.locator("#charts figure")).to_have_count(9)
            assert "metrics=power_instant_watts" in page.url
            await page.click("#theme")
            assert await page.locator("html").get_attribute("data-theme") == "dark"
            assert said == []
            await asks_in_sql(page, url)
            assert all("400 (Bad Request)" in line for line in said)
            said.clear()
            await page.goto(f"{url}/gpus/GPU-n2-0")
            await page.click("text=10 min")
        await expect(page.locator("#state")).to_contain_text("does not answer", timeout=15_000)
        async with served(fleet, port):
            await expect(page.locator("#state")).to_be_hidden(timeout=20_000)
        await browser.close()
    assert all("Failed to load resource" in line for line in said)  # while it was away


async def asks_in_sql(page, url) -> None:
    expect = playwright.expect
    query = "SELECT node, gpu, power_watts FROM gpus_now ORDER BY gpu"
    await page.goto(f"{url}/sql?q={query}")  # a link that was shared
    await expect(page.locator("#outcome")).to_contain_text("4 rows")
    await page.click("#result th button >> nth=1")
    await page.click("#result th button >> nth=1")
    await expect(page.locator("#result tbody tr").first.locator("td").nth(1)).to_have_text("3")
    await expect(page.locator("#result tbody td").first).to_have_text(EVIL)
    await page.fill("#sql", "SELECT ts, gpu, util_percent FROM gpu_samples ORDER BY ts, clocks_ev")
    await page.press("#sql", "End")
    await page.type("#sql", "e")
    await expect(page.locator("#hint")).to_contain_text("gpu_samples.clocks_event_reasons")
    await page.press("#sql", "Tab")
    await page.press("#sql", "Control+Enter")
    await expect(page.locator("#outcome")).to_contain_text("3,600 rows, the first 2,000 shown")
    assert await page.locator("#chart canvas").first.evaluate(DRAWN)
    async with page.expect_download() as download:
        await page.click("[data-ending=json]")
    assert (await (await download.value).path()).stat().st_size > 100_000
    await page.fill("#sql", "SELECT nothing FROM gpus_now")
    await page.click("#run")
    await expect(page.locator("#outcome")).to_contain_text("nothing")
    await expect(page.locator("#outcome")).to_have_class("failed")
