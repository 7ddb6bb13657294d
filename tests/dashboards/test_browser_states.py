"""The first page in a real Chromium where data, prices, judgement or answers are missing: it says so, and shows no zero."""

import pytest
from tests.dashboards.states import STATES, in_state
from tests.dashboards.test_browser import CHROMIUM, playwright

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,
]
SAID = {
    "empty": {"#verdict": "No data yet", "#empty": "install --collector http://127.0.0.1:"},
    "one": {"#totals": "GPUs reporting11 node", "#nodes": "gpu-00000"},
    "unjudged": {"#verdict": "Not judged yet", "#trouble": "Nothing is known yet"},
    "unpriced": {"#totals": "Wasted now–set prices", "#waste": "idle held"},
    "offline": {
        "#verdict": "Nothing was received for 1|systemctl status gpuwarden-agent",
        "#totals": "Wasted now–|Idle–",
        "#trouble": "No alert fires.",
    },
    "broken": {"#verdict": "No answer", "#state": "the query took longer"},
}
"""Texts of parts of the page, by state."""


async def test_what_is_missing_is_said() -> None:
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for state, parts in SAID.items():
            async with in_state(STATES[state]) as url:
                page = await browser.new_page(viewport={"width": 1440, "height": 900})
                page.set_default_timeout(120_000)
                await page.goto(url)
                for part, texts in parts.items():
                    for text in texts.split("|"):
                        place = page.locator(part)
                        await playwright.expect(place).to_contain_text(text, timeout=60_000)
                assert "[object" not in await page.inner_text("main"), state
                await page.close()
        await browser.close()
