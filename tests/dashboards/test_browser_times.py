"""Times in the reader's zone or in UTC, in a real Chromium whose zone changes its clocks in the night of the test."""

from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.dashboards.test_browser import CHROMIUM, playwright, served

BEGIN_MS = 1_793_491_200_000
"""2026-11-01 00:00 UTC; at 06:00 UTC clocks in New York go from 02:00 back to 01:00."""
HOUR_MS = 3_600_000
WALL = """async () => {
  const times = await import(document.querySelector("script[src*='times.js']").src);
  const hours = Array.from({ length: 24 }, (_, hour) => BEGIN + hour * 3.6e6);
  return hours.map((ms) => [times.stamp(ms), times.zoneName(ms), times.fromWall(times.wall(ms)) - ms]);
}""".replace("BEGIN", str(BEGIN_MS))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture
def fleet(querier):
    seen = datetime(2026, 11, 1, 5, 30)  # noqa: DTZ001  DuckDB keeps UTC without a zone
    querier.db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at) VALUES ('n1', 'a', 'b', true, $1)",
        [seen],
    )
    querier.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, last_seen_at)"
        " VALUES ('GPU-0', 'n1', 0, 'H100', true, $1)",
        [seen],
    )
    return querier


async def opened(browser, **context):
    return await (await browser.new_context(timezone_id="America/New_York", **context)).new_page()


async def test_the_readers_zone_is_shown_and_utc_when_it_is_chosen(fleet) -> None:
    expect, wrong = playwright.expect, []
    expect.set_options(timeout=15_000)
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await opened(browser)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        url = f"http://127.0.0.1:{port}"
        await page.goto(f"{url}/gpus/GPU-0?begin={BEGIN_MS}&end={BEGIN_MS + HOUR_MS}")
        seen, button, span = (page.locator(at) for at in ("dd time", "#zone", "#span"))
        await expect(seen).to_have_text("2026-11-01 01:30:00 EDT")
        assert await seen.get_attribute("datetime") == "2026-11-01T05:30:00+00:00"
        assert await seen.get_attribute("title") == "2026-11-01 05:30:00 UTC"
        await expect(span).to_contain_text("2026-10-31 20:00:00 to 21:00 EDT")
        await expect(page.locator("#begin")).to_have_value("2026-10-31T20:00")

        await button.click()
        await expect(button).to_have_text("UTC")
        await expect(seen).to_have_text("2026-11-01 05:30:00 UTC")
        await expect(span).to_contain_text("2026-11-01 00:00:00 to 01:00 UTC")
        await page.reload()
        await expect(seen).to_have_text("2026-11-01 05:30:00 UTC")
        await expect(page.locator("#begin")).to_have_value("2026-11-01T00:00")
        await button.click()
        await expect(seen).to_have_text("2026-11-01 01:30:00 EDT")

        there = await page.evaluate(WALL)
        assert [wall for wall, _, _ in there[4:8]] == [
            "2026-11-01 00:00:00",
            "2026-11-01 01:00:00",
            "2026-11-01 01:00:00",  # the hour that comes twice
            "2026-11-01 02:00:00",
        ]
        assert [zone for _, zone, _ in there[5:7]] == ["EDT", "EST"]
        # Of an hour that comes twice the reader cannot say which; all others come back as they were.
        assert {number for number, (_, _, moved) in enumerate(there) if moved} <= {5, 6}
        await browser.close()
    assert wrong == []


async def test_fields_are_in_the_readers_zone_and_addresses_in_utc(fleet) -> None:
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await opened(browser)
        await page.goto(
            f"http://127.0.0.1:{port}/money?begin=2026-03-01T12:00&end=2026-03-02T12:00"
        )
        begin = page.locator("input[name=begin]")
        await playwright.expect(begin).to_have_value("2026-03-01T07:00")
        await begin.fill("2026-03-01T08:00")
        await page.locator("form.zoned button").click()
        await page.wait_for_url("**begin=2026-03-01T13**")
        asked = parse_qs(urlsplit(page.url).query)
        assert (asked["begin"], asked["end"]) == (["2026-03-01T13:00"], ["2026-03-02T12:00"])
        await playwright.expect(begin).to_have_value("2026-03-01T08:00")
        await browser.close()


async def test_without_a_script_times_are_utc_and_say_so(fleet) -> None:
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await opened(browser, java_script_enabled=False)
        await page.goto(f"http://127.0.0.1:{port}/gpus/GPU-0")
        await playwright.expect(page.locator("dd time")).to_have_text("2026-11-01 05:30:00 UTC")
        await playwright.expect(page.locator("#zone")).to_be_hidden()
        await browser.close()
