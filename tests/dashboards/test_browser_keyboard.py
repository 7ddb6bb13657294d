"""The first page, an incident and the money are read and used in a real Chromium with the keyboard alone."""

import pytest
from tests.dashboards.states import STATES, in_state
from tests.dashboards.test_browser import CHROMIUM, playwright

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,
]
FOCUS = """() => {
  const one = document.activeElement;
  const { width, height } = one.getBoundingClientRect();
  const style = getComputedStyle(one);
  return { text: one.outerHTML.slice(0, 160), isBody: one === document.body,
    isSeen: width > 0 && height > 0 && style.visibility === "visible" && style.outlineStyle !== "none" };
}"""
TABS_MAX = 60


async def tabbed_to(page, selector: str) -> int:
    """Press Tab until the focus is on the element; how often. Each focus on the way must be visible."""
    for pressed in range(1, TABS_MAX):
        await page.keyboard.press("Tab")
        focus = await page.evaluate(FOCUS)
        assert focus["isBody"] or focus["isSeen"], focus["text"]
        if await page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return pressed
    raise AssertionError(f"{selector} was not reached by {TABS_MAX} times Tab")


async def test_a_fleet_is_read_and_an_incident_acknowledged_without_a_mouse() -> None:
    said: list[str] = []
    async with in_state(STATES["many"]) as url, playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(url)
        await page.wait_for_selector("#trouble li")
        await page.wait_for_selector("#counted:not(:empty)")

        assert await tabbed_to(page, ".skip") == 1
        await page.keyboard.press("Enter")
        assert await tabbed_to(page, "#verdict a") == 1  # what is wrong is the first thing
        await tabbed_to(page, ".stage")
        for key in ("Home", "ArrowRight"):
            await page.keyboard.press(key)
        await playwright.expect(page.locator("#cell")).to_contain_text("gpu-00000 GPU 1")
        await tabbed_to(page, "#nodes a")
        await page.keyboard.press("/")
        await page.keyboard.type("state:idle")
        await playwright.expect(page.locator("#counted")).to_contain_text("6 of 6 GPUs")

        await page.goto(url)
        await page.wait_for_selector("#verdict a")
        await tabbed_to(page, "#verdict a")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/incidents/if3")
        await tabbed_to(page, "#ack")
        await page.keyboard.press("Enter")
        await playwright.expect(page.locator("#ask")).to_be_visible()
        assert await page.evaluate("document.activeElement.closest('dialog') !== null")
        await page.keyboard.press("Escape")
        await playwright.expect(page.locator("#ask")).to_be_hidden()
        assert await page.evaluate("document.activeElement.id") == "ack"

        await page.goto(f"{url}/incidents")
        await tabbed_to(page, "#stages a[href*=ended]")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**state=ended")
        await tabbed_to(page, "#filters [name=q]")
        await page.keyboard.type("still")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**q=still")
        await tabbed_to(page, ".filter a")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/incidents?state=ended")

        await page.goto(f"{url}/nodes/gpu-00003")
        await tabbed_to(page, "a[href*=matcher]")
        await page.keyboard.press("Enter")
        await playwright.expect(page.locator("#ask-matchers")).to_have_value("node=gpu-00003")

        await page.goto(f"{url}/money")
        await tabbed_to(page, ".stack a")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**begin=*")
        await browser.close()
    assert said == []
