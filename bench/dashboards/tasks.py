"""Does what people come to the pages for, in Chromium from the page alone, and counts clicks, fields and seconds.

    python -m bench.dashboards.tasks [--url http://127.0.0.1:8750] [--tasks sick price] [--gpus 8]

Without `--url` a collector with simulated GPUs is started, and asked once it has incidents and waste. Each task begins
at the first page and ends where the answer can be read, which is printed; one that does not get there ends the run with 1.
Seconds are those of the pages, not of people: a click is made as soon as its target is there.
"""

import argparse
import asyncio
import contextlib
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime

from bench.dashboards.pictures import simulated
from bench.dashboards.states import STATES, in_state
from playwright.async_api import Error, Page, async_playwright

WAIT_MS = 60_000


class Hand:
    """Uses a page as a person with a mouse does, and counts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.clicks = 0
        self.fields = 0

    async def click(self, selector: str) -> None:
        """Click the first that matches, once it is there."""
        await self.page.locator(selector).first.click()
        self.clicks += 1

    async def fill(self, selector: str, text: str) -> None:
        """Fill a field."""
        await self.page.locator(selector).first.fill(text)
        self.fields += 1

    async def choose(self, selector: str, value: str) -> None:
        """Choose from a list: two clicks."""
        await self.page.locator(selector).first.select_option(value)
        self.clicks += 2

    async def read(self, selector: str, *, has: str = "") -> str:
        """The text of the first that matches and contains a text."""
        place = self.page.locator(selector, has_text=has).first
        await place.wait_for()
        return re.sub(r"\s+", " ", await place.inner_text())


async def wasted(hand: Hand) -> str:
    """Who wastes most, and what would be saved."""
    who = await hand.read("#waste ol li")
    await hand.click("#waste p a")
    return f"{who}; {await hand.read('.totals li', has='Could be saved')}"


async def slow(hand: Hand) -> str:
    """Why a job is slow."""
    await hand.click("#waste .tops div:last-child ol a")
    return await hand.read("main")


async def sick(hand: Hand) -> str:
    """Which GPU is sick, and what to do now."""
    return await hand.read("#verdict", has="First:")


async def at_night(hand: Hand) -> str:
    """What happened at a time of the day."""
    await hand.click("nav a:text('Incidents')")
    await hand.click(".menu summary")
    await hand.fill("[name=at]", f"{datetime.now(UTC):%Y-%m-%dT%H:%M}")
    await hand.click(".menu button")
    await hand.read(".chips", has="open around")
    return await hand.read("#list")


async def silence(hand: Hand) -> str:
    """Silence a node."""
    await hand.click("#nodes a")
    await hand.click("a:text('silence this node')")
    await hand.click("#ask-send")
    said = await hand.read("#did", has="silenced")
    await hand.page.locator("#list button", has_text="end now").first.click()
    return said


async def price(hand: Hand) -> str:
    """Where prices come from, and how to set one."""
    await hand.click("#totals a[href*=prices]")
    return await hand.read("pre", has="usd_per_hour")


async def compare(hand: Hand) -> str:
    """Two GPUs of a node beside each other."""
    await hand.click("#nodes a")
    return await hand.read("#charts figcaption", has="GPU 1")


async def weeks(hand: Hand) -> str:
    """This week against the last."""
    await hand.click("nav a:text('Money')")
    return await hand.read(".totals li", has="Spent")


async def report(hand: Hand) -> str:
    """The report of the week, to print or to send."""
    await hand.click("nav a:text('Money')")
    await hand.click("main a:text-is('Report')")
    return await hand.read("main")


TASKS: Mapping[str, Callable[[Hand], Awaitable[str]]] = {
    "wasted": wasted,
    "slow": slow,
    "sick": sick,
    "at_night": at_night,
    "silence": silence,
    "price": price,
    "compare": compare,
    "weeks": weeks,
    "report": report,
}


async def done(hand: Hand, task: Callable[[Hand], Awaitable[str]]) -> str | None:
    """Do a task from the first page, and print how much it took; what failed, or None."""
    began_s = time.perf_counter()
    try:
        await hand.page.goto(hand.url)
        said = await task(hand)
    except Error as error:
        return str(error).splitlines()[0]
    took_s = time.perf_counter() - began_s
    title = (task.__doc__ or "").rstrip(".")
    print(
        f"{title:45} {hand.clicks} clicks, {hand.fields} fields, {took_s:5.1f} s: {said[:160]}",
        flush=True,
    )
    return None


async def main(argv: Sequence[str] | None = None) -> int:
    """Do the tasks; 1: one cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running collector, instead of a simulated one")
    parser.add_argument("--state", choices=STATES, help="of states.py, instead of a collector")
    parser.add_argument("--tasks", nargs="+", default=[*TASKS], choices=TASKS)
    parser.add_argument("--gpus", type=int, default=8, help="simulated ones")
    parser.add_argument("--wait", type=float, default=WAIT_MS / 1000, help="seconds for a page")
    given = parser.parse_args(argv)
    wrong: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        url = given.url
        if url is None:
            state = STATES.get(given.state)
            started = simulated(given.gpus) if state is None else in_state(state)
            url = await stack.enter_async_context(started)
        driver = await stack.enter_async_context(async_playwright())
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name in given.tasks:
            page = await browser.new_page(viewport={"width": 1440, "height": 900})
            page.set_default_timeout(given.wait * 1000)
            failed = await done(Hand(page, url), TASKS[name])
            wrong += [f"{name}: {failed}"] if failed else []
            await page.close()
        await browser.close()
    print("\n".join(wrong) or f"{len(given.tasks)} tasks done")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
