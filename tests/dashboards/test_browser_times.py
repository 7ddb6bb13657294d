"""Times in the reader's zone or in UTC, in a real Chromium whose zone changes its clocks in the night of the test."""

from datetime import datetime
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

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
TICKS = """async ([begin, end, count]) => {
  const from = (name) => import(document.querySelector("script[src*='place.js']").src.replace("place.js", name));
  const [{ timeTicks }, { stamp }] = await Promise.all([from("chart.js"), from("times.js")]);
  return timeTicks(Date.parse(begin), Date.parse(end), count).map((ms) => stamp(ms).slice(5, 16));
}"""
pytestmark = [
    pytest.mark.slow,
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
    page = await (await browser.new_context(timezone_id="America/New_York", **context)).new_page()
    page.set_default_timeout(120_000)
    return page


async def test_the_readers_zone_is_shown_and_utc_when_it_is_chosen(fleet) -> None:
    expect, wrong = playwright.expect, []
    expect.set_options(timeout=120_000)
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


async def test_axes_have_round_times_of_the_readers_clock_where_it_changes(fleet) -> None:
    spans = (
        # The hour that comes twice, alone and within a night; the hour that is left out, too; two weeks on a phone.
        ("2026-11-01T05:30Z", "2026-11-01T06:30Z", 4, ["01:30", "01:45", "01:00", "01:15"]),
        ("2026-11-01T00:00Z", "2026-11-01T12:00Z", 6, ["20:00", "22:00", "00:00", "02:00", "04:00", "06:00"]),
        ("2026-03-08T06:30Z", "2026-03-08T07:30Z", 4, ["01:30", "01:45", "03:00", "03:15"]),
        ("2026-03-08T05:00Z", "2026-03-08T13:00Z", 4, ["00:00", "04:00", "06:00", "08:00"]),
        ("2026-05-08T00:00Z", "2026-05-22T01:00Z", 2, ["00:00", "00:00"]),
    )  # fmt: skip
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await opened(browser)
        await page.goto(f"http://127.0.0.1:{port}/gpus/GPU-0")
        for begin, end, count, expected in spans:
            there = await page.evaluate(TICKS, [begin, end, count])
            assert [one[6:] for one in there] == expected, (begin, there)
        await browser.close()


async def test_a_form_that_is_sent_again_keeps_its_times_and_its_state(fleet) -> None:
    asked = {"begin": "2026-11-01T05:00", "end": "2026-11-01T06:00"}  # 01:00 EDT, 01:00 EST
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await opened(browser)
        url = f"http://127.0.0.1:{port}"
        await page.goto(f"{url}/money?{urlencode(asked)}")
        form = page.locator("form.zoned")
        await playwright.expect(form.locator("[name=end]")).to_have_value("2026-11-01T01:00")
        await playwright.expect(form.locator(".zone")).to_have_text("EDT")
        async with page.expect_request(lambda one: "/money?" in one.url) as again:
            await form.locator("button").click()
        sent = dict(parse_qsl(urlsplit((await again.value).url).query))
        assert {name: sent[name] for name in asked} == asked

        # The span of charts, too; what is changed is a time of the reader's clock.
        begin, end = BEGIN_MS + 6.5 * HOUR_MS, BEGIN_MS + 8 * HOUR_MS  # 01:30 EST, 03:00 EST
        await page.goto(f"{url}/gpus/GPU-0?begin={begin:.0f}&end={end:.0f}")
        await playwright.expect(page.locator("#begin")).to_have_value("2026-11-01T01:30")
        await playwright.expect(page.locator("#range .zone")).to_have_text("EST")
        await page.fill("#end", "2026-11-01T04:00")
        await page.click("#range button")
        await page.wait_for_url(f"**end={end + HOUR_MS:.0f}")
        assert parse_qs(urlsplit(page.url).query)["begin"] == [f"{begin:.0f}"]

        await page.goto(f"{url}/incidents?at=2026-03-01T12:00&state=ended")
        await playwright.expect(page.locator("[name=at]")).to_have_value("2026-03-01T07:00")
        async with page.expect_request(lambda one: one.is_navigation_request()) as again:
            await page.evaluate("document.querySelector('#filters').requestSubmit()")
        sent = dict(parse_qsl(urlsplit((await again.value).url).query))
        assert (sent["at"], sent["state"]) == ("2026-03-01T12:00", "ended")
        await browser.close()


async def test_without_a_script_times_are_utc_and_say_so(fleet) -> None:
    async with playwright.async_playwright() as driver, served(fleet) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await opened(browser, java_script_enabled=False)
        await page.goto(f"http://127.0.0.1:{port}/gpus/GPU-0")
        await playwright.expect(page.locator("dd time")).to_have_text("2026-11-01 05:30:00 UTC")
        await playwright.expect(page.locator("#zone")).to_be_hidden()
        await browser.close()
