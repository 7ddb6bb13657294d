"""Pages of a node, a GPU, a job and a user in a real Chromium, with a small fleet in which much is wrong."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.dashboards.test_browser import CHROMIUM, DRAWN, EVIL, playwright, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture
def fleet(querier):
    """A node with two GPUs that work for one job; a link of the first is down and its health changed."""
    db, now = querier.db, datetime.now(UTC).replace(tzinfo=None)
    db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at) VALUES ('n1', 'a', 'b', true, ?)",
        [now],
    )
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, last_seen_at, pci_bus_id, peers, numa_node)"
        " SELECT 'GPU-' || g, 'n1', g, 'H100', true, $1, 'bus' || g, MAP {'bus' || (1 - g): 'NV2'}, g"
        " FROM range(2) t(g)",
        [now],
    )
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent, power_watts, sm_clock_mhz,"
        " clocks_event_reasons) SELECT $1::TIMESTAMP - to_seconds(i), 'n1', g, 'GPU-' || g, true, 90 - 30 * g, 400,"
        " 1900, CASE WHEN g = 0 AND i % 100 < 20 THEN 64 ELSE 0 END FROM range(900) a(i), range(2) b(g)",
        [now],
    )
    db.execute(
        "INSERT INTO link_samples (ts, node, gpu, gpu_uuid, simulated, link_type, link, remote_type,"
        " remote_pci_bus_id, active, tx_bytes_total, rx_bytes_total) SELECT $1::TIMESTAMP - to_seconds(10 * i), 'n1', g,"
        " 'GPU-' || g, true, 'nvlink', l, 'gpu', 'bus' || (1 - g), NOT (g = 0 AND l = 1), -i, -i"
        " FROM range(60) a(i), range(2) b(g), range(2) c(l)",
        [now],
    )
    db.execute(
        "INSERT INTO gpu_health_samples (ts, node, gpu, gpu_uuid, simulated, recovery_action,"
        " remapped_rows_corrected_total) SELECT $1::TIMESTAMP - to_minutes(i), 'n1', 0, 'GPU-0', true, 'none', if(i < 5, 3, 2)"
        " FROM range(10) t(i)",
        [now],
    )
    db.execute(
        "INSERT INTO coverage (ts, node, simulated, probe, table_name, expected, taken, missed, skipped, late, failed)"
        " SELECT $1::TIMESTAMP - to_minutes(i), 'n1', true, 'host', 'host_samples', 60, 45, 0, 0, 0, 15 FROM range(5) t(i)",
        [now],
    )
    db.execute(
        "INSERT INTO process_samples (ts, node, gpu, gpu_uuid, simulated, pid, process_name, username, job,"
        " loader_workers) SELECT $1::TIMESTAMP - to_seconds(10 * i), 'n1', g, 'GPU-' || g, true, 7 + g, 'python', $2, '7', 4"
        " FROM range(60) a(i), range(2) b(g)",
        [now, EVIL],
    )
    db.execute(
        "INSERT INTO waste_1h (ts, category, node, gpu, gpu_uuid, username, job, simulated, seconds, usd,"
        " energy_kwh) SELECT $1::TIMESTAMP, 'idle_held', 'n1', g, 'GPU-' || g, $2, '7', true, 1800, 1.5, 0.2 FROM range(2) t(g)",
        [now - timedelta(hours=1), EVIL],
    )
    db.execute(
        "INSERT INTO diagnoses (subject, kind, bottleneck, confidence, summary, advice, evidence, misses, job, username,"
        " node, gpu, gpus, usd_per_hour, began_at, seen_at, simulated) VALUES ('GPU-1', 'gpu', 'loader_workers', 1,"
        " 'Waits for data.', 'More workers.', '[{\"value\": 3, \"threshold\": 2, \"text\": \"stall 30 %\"}]', '[]',"
        " '7', $2, 'n1', 1, 1, 2, $1, $1, true)",
        [now - timedelta(minutes=8), EVIL],
    )
    return querier


ODD = """async (base) => {
  const { median, oddity } = await import(`${base}/beside.js`);
  return median([3, 1, 2]) === 2 && median([4, 1, 2, 3]) === 2.5 && median([]) === null
    && oddity(70, 100, 2) === "30 % below the median" && oddity(130, 100, 2) === "30 % above the median"
    && oddity(90, 100, 1) === "" && oddity(70, 100, 20) === "" && oddity(null, 100, 1) === "";
}"""


async def is_compared(page) -> None:
    """With the GPUs of its node, one under the other, and with others of its model, of which there are too few."""
    expect = playwright.expect
    await page.select_option("#beside-of", "node")
    beside = page.locator("#beside li")
    await expect(beside).to_have_count(2)
    await expect(beside.nth(1)).to_contain_text("n1 GPU 1")
    await expect(beside.nth(1)).to_contain_text("60 %")
    await page.check("#band")
    await expect(page.locator("#band-why")).to_have_text("fewer than 4 others of its model report")
    assert "beside=node" in page.url and "band=1" in page.url
    icon = await page.locator("link[rel=icon]").get_attribute("href")
    assert await page.evaluate(ODD, icon.rpartition("/")[0])


async def hides_a_line(page, url: str) -> None:
    """With the mouse, and back with a key."""
    expect = playwright.expect
    await page.goto(url)
    chart = page.locator("#charts figure", has=page.locator("figcaption button")).first
    line, others = chart.locator("figcaption button").first, chart.locator("figcaption button")
    plot = chart.locator(".plot")
    await expect(line).to_have_attribute("aria-pressed", "true")
    before = "GPU utilization: GPU 0 from 90 % to 90 %; GPU 1 from 60 % to 60 %"
    await expect(plot).to_have_attribute("aria-label", before)
    await line.click()
    await expect(line).to_have_attribute("aria-pressed", "false")
    alone = "GPU utilization: GPU 1 from 60 % to 60 %"
    await expect(plot).to_have_attribute("aria-label", alone)
    await page.keyboard.press("Enter")
    await expect(plot).to_have_attribute("aria-label", before)
    await others.last.click(modifiers=["Shift"])
    await expect(line).to_have_attribute("aria-pressed", "false")
    await expect(others.last).to_have_attribute("aria-pressed", "true")


@pytest.mark.slow
async def test_a_gpu_its_node_job_and_user_are_shown_with_what_is_wrong(fleet) -> None:
    said: list[str] = []
    expect = playwright.expect
    expect.set_options(timeout=120_000)
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(120_000)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        url = f"http://127.0.0.1:{port}"

        await page.goto(f"{url}/gpus/GPU-0?compare=node")
        states = page.locator("#states .plot")
        await expect(states).to_have_attribute(
            "aria-label", "States: state: busy, throttled; HW heat: held"
        )
        assert await states.locator("canvas").first.evaluate(DRAWN)
        await expect(page.locator("#charts figcaption").first).to_contain_text("util of 1 other")
        await expect(page.locator("#topology .link.down title")).to_contain_text("1 of 2 nvlink")
        await page.click("text=links as a table")
        await expect(page.locator("#topology table").first).to_contain_text("GPU 1")
        await expect(page.locator("#health")).to_contain_text("2 → 3")
        await expect(page.locator("#coverage")).to_contain_text("75.0 %")
        await page.click("#catalogue summary")
        await page.fill("#picker", "rows remapped")
        await page.click("#catalogue td button >> nth=0")
        added = page.locator("#charts figure").last
        await expect(added).to_contain_text("Rows remapped because of corrected errors.")
        assert "metrics=remapped_rows_corrected_total" in page.url
        await added.locator("button", has_text="remove").click()
        assert "metrics=" not in page.url
        await page.select_option("#compare", "week")
        await page.wait_for_url("**compare=week**")
        caption = page.locator("#states figcaption")
        while "state: " not in await caption.inner_text():  # drawn again, the cursor is gone
            await states.press("ArrowLeft")
            await page.wait_for_timeout(200)

        await is_compared(page)

        await page.goto(f"{url}/money")
        await page.keyboard.press("/")
        await page.keyboard.type("node:n1")
        await page.keyboard.press("Enter")
        await expect(page.locator("#filter")).to_have_value("node:n1")
        await page.goto(f"{url}/jobs/7")
        await expect(page.locator("#heat .plot")).to_have_attribute(
            "aria-label", "util, mean of each: n1 0 90 %; n1 1 60 %"
        )
        assert await page.locator("#heat canvas").first.evaluate(DRAWN)
        await expect(page.locator("main")).to_contain_text("Running since ")
        workers = page.locator("figure", has_text="Data-loader workers").first
        await expect(workers.locator("figcaption")).to_contain_text("n1 1 python 8 4 processes")
        await page.click("summary:text-is('evidence')")
        await expect(page.locator(".evidence")).to_contain_text("stall 30 %")
        await page.click(f"a:text('{EVIL}')")
        await expect(page.locator("main")).to_contain_text("1.0 hours ($3.00) were wasted")
        await page.click("th a:text('energy')")
        await expect(page.locator("th[aria-sort]").first).to_have_text("energy")
        await hides_a_line(page, f"{url}/nodes/n1")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        for path in ("/nodes/n1", "/money?by=job", "/jobs/7", "/gpus/GPU-0"):
            await page.goto(url + path)
            assert await page.evaluate(wide) == 0, path
        await browser.close()
    assert said == []


async def refuse(route) -> None:
    """As a collector whose lake is away."""
    await route.fulfill(status=503, json={"error": "the lake is away"})


async def never(_route) -> None:
    """Leave a request without an answer."""


@pytest.mark.slow
@pytest.mark.parametrize("answer", [refuse, never])
async def test_charts_are_refreshed_while_coverage_health_and_links_fail(fleet, answer) -> None:
    expect, asked = playwright.expect, []
    expect.set_options(timeout=120_000)
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(120_000)
        for path in ("coverage", "health", "topology"):
            await page.route(f"**/v1/{path}?*", answer)
        page.on("request", lambda r: asked.append(r.url) if "/v1/series?" in r.url else None)
        await page.goto(f"http://127.0.0.1:{port}/gpus/GPU-0")
        await expect(page.locator("#states .plot")).to_have_attribute(
            "aria-label", "States: state: busy, throttled; HW heat: held"
        )
        if answer is refuse:
            for place in ("#coverage", "#health", "#topology"):
                await expect(page.locator(place)).to_have_text("Not shown: the lake is away")
        while len(asked) < 2:
            await page.wait_for_timeout(500)
        await expect(page.locator("#state")).to_be_hidden()
        await page.unroute_all()
        await page.click("[data-seconds='600']")  # another span is asked for at once
        await expect(page.locator("#coverage")).to_contain_text("75.0 %")
        await browser.close()
