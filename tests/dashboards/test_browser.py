"""The pages in a real Chromium: drawn, drilled into, zoomed, and old when the collector is gone."""

import shutil
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from gpuwarden.clock import SystemClock
from gpuwarden.query import QueryError
from gpuwarden_dashboards.pages.page import judged
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
    for node, seconds_ago in ((EVIL, 1), ("n2", 4000)):
        db.execute(
            "INSERT INTO nodes (node, agent_id, boot_id, labels, simulated, last_seen_at)"
            " VALUES (?, 'a', 'b', MAP {'rack': 'r7'}, true, ?)",
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


async def no_annotations(_request: web.Request) -> web.Response:
    """`GET /v1/annotations` where none is written."""
    return web.json_response({"annotations": [], "truncated": False})


@asynccontextmanager
async def served(querier, port=0, judgement=judged, **limits):
    app = web.Application()
    app.add_routes(routes(querier, SystemClock(), judgement, **limits))
    app.router.add_post("/v1/sql", answering(querier))
    app.router.add_get("/v1/queries", no_queries)
    app.router.add_get("/v1/annotations", no_annotations)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


@pytest.mark.slow
async def test_pages_are_drawn_zoomed_and_old_when_the_collector_is_gone(fleet) -> None:
    said: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1000, "height": 800})
        page.set_default_timeout(120_000)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        async with served(fleet) as port:
            url = f"http://127.0.0.1:{port}"
            expect = playwright.expect
            await page.goto(url)
            style = await page.locator("link[rel=stylesheet]").get_attribute("href")
            await understands_queries_and_places(page, style.rpartition("/")[0])
            await shows_the_fleet(page, fleet.db)
            # The third cell of the first node, below the node's name.
            await page.locator(".stage canvas").click(position={"x": 2 * 88 + 5, "y": 30})
            await page.wait_for_url("**/gpus/**")
            plot = page.locator("#charts .plot").first
            await expect(plot).to_have_attribute(
                "aria-label", r"Utilization: util from 0 % to 99 %"
            )
            assert await plot.locator("canvas").first.evaluate(DRAWN)
            await expect(
                page.locator("#charts figcaption .strip", has_text="software")
            ).to_have_text("software thermal slowdown")

            await plot.scroll_into_view_if_needed()
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


async def shows_the_fleet(page, db) -> None:
    """Two nodes with cells of 88 pixels in one line."""
    expect = playwright.expect
    counted, cell, filter_box = (page.locator(f"#{name}") for name in ("counted", "cell", "filter"))
    await expect(counted).to_have_text("4 of 8 GPUs reporting")
    assert await page.locator(".stage canvas").evaluate(DRAWN)
    await expect(page.locator("#totals")).to_contain_text("GPUs reporting4 of 82 nodes")
    await expect(page.locator("#trouble a").first).to_have_text(f"{EVIL} is hot")
    row = page.locator("tr[data-node='n2']")
    await expect(row).to_contain_text("not reporting, last 1 h")
    await expect(row).to_contain_text("4 not reporting")
    await expect(page.locator("tbody tr").first).to_contain_text(EVIL)  # it has the alert

    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent) SELECT"
        " now()::TIMESTAMP, 'n2', 3, 'GPU-n2-3', true, 7"
    )
    await expect(counted).to_have_text("5 of 8 GPUs reporting", timeout=10_000)  # without a reload
    await page.locator(".stage").focus()
    for key in ("End", "ArrowLeft", "ArrowRight"):
        await page.keyboard.press(key)
    await expect(cell).to_have_text("n2 GPU 3, H100, busy, utilization 7 %, rack r7")
    await page.keyboard.press("ArrowLeft")
    await expect(cell).to_contain_text("n2 GPU 2, H100, not reporting for 1 h")

    await filter_box.fill("rack=r7 node:n2 -state:busy")
    await expect(counted).to_have_text("0 of 3 GPUs reporting")
    await expect(page.locator("#nodes tbody tr")).to_have_count(1)
    await page.select_option("#group", "state")
    await page.select_option("#colour", "state")
    await expect(page.locator("#heads .head")).to_have_text(
        ["not reporting3 GPUs · 3 not reporting"]
    )
    for part in ("filter=rack%3Dr7+node%3An2", "group=state", "colour=state"):
        assert part in page.url
    await page.reload()  # the address is the state
    await expect(counted).to_have_text("0 of 3 GPUs reporting")
    await filter_box.fill("hall=3")
    await expect(counted).to_have_text("no GPU has hall")

    await filter_box.fill("rack=")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(filter_box).to_have_value("rack=r7 ")
    await filter_box.fill("gpu-n2-1")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/gpus/GPU-n2-1")
    await page.goto(page.url.partition("/gpus")[0])
    await expect(counted).to_have_text("5 of 8 GPUs reporting")
    db.execute("DELETE FROM gpu_samples WHERE node = 'n2'")


PARSED = """async (base) => {
  const { parse, exactly, matching } = await import(`${base}/fleetquery.js`);
  const { layout, hit, corner, step, blocks } = await import(`${base}/fleetmap.js`);
  const { Fleet } = await import(`${base}/fleetdata.js`);
  const fleet = new Fleet(["idle", "busy", "throttled", "unknown", "not reporting"], ["none", "info", "warning", "critical"]);
  fleet.setNames({
    version: "1", nodes: ["n10", "n9"], kinds: [{ gpus: [0, 1, 2], models: ["H100", "H100", "A 100"] }, { gpus: [0], models: ["H100"] }],
    kind_of: [0, 1], labels: [{ rack: "r1" }, {}], label_of: [0, 1], holders: [{ username: "ali", job: "7" }, { username: "bob", job: null }],
    holder_of: [0, 1, -1, -1],
  });
  fleet.setMap({ version: "1", colour: "util_percent", unit: "percent", scale: 1, values: [3, 80, null, null], states: [0, 49, 3, 4], silent_since_ms: [5] });
  const found = (text) => [...matching(fleet, parse(text)).mask].join("");
  const queries = ["", "n10", "H100 -ali", "username=ali,bob", "state:alerting", 'model="a 100"', "value<50", "gpu=0 node=n*0", "!rack=r1", "nothing=1", "username:", "-", '"', "rack=", "a:b:c"];
  const fleetmap = {};
  const per = fleet.most;
  const groups = fleet.grouped("rack", null).map((group) => ({ name: group.name, cells: blocks(group.cells, fleet.nodeOf, per) }));
  const plan = layout(groups, per, 300, 20);
  const places = [];
  groups.forEach((group, number) => group.cells.forEach((gpu, at) => {
    const { x, y } = corner(plan, { group: number, at });
    const there = hit(plan, x + 1, y + 1);
    places.push(gpu < 0 ? there === null : there?.group === number && there.at === at);
  }));
  const many = layout([{ cells: Int32Array.from({ length: 100000 }, (_, at) => at) }], 8, 1200);
  let at = { group: 0, at: 0 };
  const walked = [];
  for (const way of [[1, 0], [1, 0], [1, 0], [1, 0], [-1, 0], [0, 1], [0, -1]]) { at = step(plan, at, ...way); walked.push(groups[at.group].cells[at.at]); }
  return { masks: queries.map(found), exact: [exactly("job", "a b"), exactly("rack", "r1")], order: fleet.cells(null), groups: groups.map((one) => [one.name, one.cells]),
    places, many: [many.cell, many.height < 900], walked, worst: fleet.worstNodes(null).map((node) => fleet.nodes[node]) };
}"""


async def understands_queries_and_places(page, base) -> None:
    """The pure parts: the language of the filter, and where cells are."""
    found = await page.evaluate(PARSED, base)
    assert found["masks"] == [
        "1111", "1110", "0101", "1100", "0100", "0010", "1000", "1000", "0001", "0000", "1111", "1111", "1111",
        "1111", "0000",
    ]  # fmt: skip
    assert found["exact"] == ['job="a b"', "rack=r1"]
    assert found["order"] == [3, 0, 1, 2]  # n9 before n10
    assert found["groups"] == [["r1", [0, 1, 2]], ["", [3, -1, -1]]]
    assert all(found["places"])
    assert found["many"] == [2, True]
    assert found["walked"] == [1, 2, 3, 3, 2, 3, 0]
    assert found["worst"] == ["n10", "n9"]


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
