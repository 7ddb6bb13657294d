"""Rows for charts that run live: read as they were taken, shared by all pages, and drawn in a real Chromium."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import make_mocked_request
from tests.dashboards.test_browser import CHROMIUM, playwright, served

from gpuwarden.clock import ManualClock
from gpuwarden.metrics import METRICS, Kind
from gpuwarden.query import QueryError
from gpuwarden_dashboards.http import SharedAnswers
from gpuwarden_dashboards.read.live import LIVE_VALUES_MAX, LiveRows, read_live
from gpuwarden_dashboards.read.series import Place

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
NODE = Place(node="n1")
POINTS = """async () => {
  const { shown } = await import(document.querySelector("script[src*='place.js']").src.replace("place.js", "livecharts.js"));
  return [...shown][0].charts.flatMap(({ points }) => [...points].map(([key, { points: { at, value } }]) => [key, at, value]));
}"""


def add(db, at: datetime, util: float | None, gpu: int = 0) -> None:
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent, power_watts)"
        " VALUES (?, 'n1', ?, 'GPU-' || ?, true, ?, 400.123456)",
        [at.replace(tzinfo=None), gpu, gpu, util],
    )


async def test_each_row_is_read_and_a_missing_value_stays_missing(querier) -> None:
    for second in range(30):
        add(querier.db, NOW - timedelta(seconds=second), None if second == 2 else float(second), 1)
    found = await read_live(
        querier, NODE, ["power_watts", "util_percent"], NOW - timedelta(seconds=3), NOW
    )
    ms = [round((NOW - timedelta(seconds=s)).timestamp() * 1000) for s in (3, 2, 1, 0)]
    values = {"power_watts": [400.123] * 4, "util_percent": [3.0, None, 1.0, 0.0]}
    assert found == [LiveRows("n1", 1, "GPU-1", None, ms, values)]


async def test_the_first_rate_of_a_counter_comes_from_the_row_before(querier) -> None:
    for second, total in ((10, 100), (5, 600), (1, None), (0, 50)):
        querier.db.execute(
            "INSERT INTO host_samples (ts, node, simulated, disk_read_bytes_total) VALUES (?, 'n1', true, ?)",
            [(NOW - timedelta(seconds=second)).replace(tzinfo=None), total],
        )
    begin = NOW - timedelta(seconds=6)
    (host,) = await read_live(querier, NODE, ["host.disk_read_bytes_total"], begin, NOW)
    assert host.values == {"host.disk_read_bytes_total": [100.0, None, None]}


class Counting:
    """A querier that counts, and fails when it is told to."""

    def __init__(self, querier) -> None:
        self.querier, self.asked, self.fails = querier, 0, False

    async def query(self, sql, params=None, **more):
        if "$begin" in sql and "at_ms" in sql:
            self.asked += 1
            if self.fails:
                raise QueryError("too many queries run")
        return await self.querier.query(sql, params, **more)


async def test_pages_that_ask_at_once_share_one_query(querier) -> None:
    add(querier.db, datetime.now(UTC), 7.0)
    counting = Counting(querier)
    async with served(counting) as port, ClientSession(f"http://127.0.0.1:{port}") as session:

        async def ask(path: str):
            async with session.get(path) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        path = "/v1/live?node=n1&metrics=util_percent&seconds=20"
        said = await asyncio.gather(*(ask(path) for _ in range(5)))
    assert counting.asked == 1
    assert said[0]["rows"][0]["values"] == {"util_percent": [7.0]}
    assert said[0]["now_ms"] - said[0]["begin_ms"] == 20_000


async def test_an_answer_has_a_greatest_number_of_values(querier) -> None:
    now = datetime.now(UTC)
    querier.db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent)"
        " SELECT $1::TIMESTAMP - to_seconds(s), 'n1', g, 'GPU-' || g, true, 7 FROM range(330) s(s), range(100) g(g)",
        [now.replace(tzinfo=None)],
    )
    some = [one.name for one in METRICS["gpu_samples"] if one.kind is not Kind.FLAGS]
    count = LIVE_VALUES_MAX // (100 * 330) + 1
    counting = Counting(querier)
    async with served(counting) as port, ClientSession(f"http://127.0.0.1:{port}") as session:

        async def ask(query: str):
            async with session.get(f"/v1/live?node=n1&{query}") as answer:
                return answer.status, await answer.json()

        metrics = ",".join(some[:count])
        status, said = await ask(f"metrics={metrics}&seconds=330")
        assert (status, said["error"]) == (
            400, "these are more than 250000 values: ask for fewer seconds, metrics or GPUs",
        )  # fmt: skip
        status, said = await ask(f"metrics={metrics}&seconds=20")
        assert (status, len(said["rows"])) == (200, 100)
        asked = counting.asked
        assert (await ask("metrics=util_percent,nothing"))[0] == 400
        assert counting.asked == asked


async def test_answers_are_kept_for_their_age_and_within_a_number_of_bytes(monkeypatch) -> None:
    monkeypatch.setattr("gpuwarden_dashboards.http._KEPT_BYTES_MAX", 32_000)
    clock, made = ManualClock(NOW), []
    shared, request = SharedAnswers(clock), make_mocked_request("GET", "/")

    async def ask(key: str, age_s: float, text: str) -> None:
        async def make() -> str:
            made.append(key)
            return text

        await shared.answer(request, key, age_s, make)

    noise = random.Random(1).randbytes(3_000).hex()
    await ask("long", 60, "a")
    await ask("short", 0.9, noise)
    assert shared.kept_bytes > len(noise) / 2
    clock.advance(1)
    await ask("long", 60, "a")
    assert shared.kept_bytes < 100
    assert made == ["long", "short"]
    for number in range(12):
        await ask(f"short {number}", 0.9, noise)
    assert 2 * len(noise) < shared.kept_bytes <= 32_000
    await ask("short 11", 0.9, noise)
    assert made[-1] == "short 11" and made.count("short 11") == 1


def place(db, now: datetime) -> None:
    """A node with two GPUs, and a minute of rows."""
    at = now.replace(tzinfo=None)
    db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at) VALUES ('n1', 'a', 'b', true, ?)",
        [at],
    )
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, last_seen_at)"
        " SELECT 'GPU-' || g, 'n1', g, 'H100', true, $1 FROM range(2) t(g)",
        [at],
    )
    for second in range(60):
        for gpu in range(2):
            add(db, now - timedelta(seconds=second), float(second + gpu), gpu)


async def stored(db) -> dict[int, float]:
    rows = db.execute(
        "SELECT epoch_ms(ts), util_percent FROM gpu_samples WHERE gpu = 0 ORDER BY ts"
    ).fetchall()
    return dict(rows)


async def drawn(page) -> dict[int, float]:
    lines = {
        key: dict(zip(at, value, strict=True)) for key, at, value in await page.evaluate(POINTS)
    }
    return lines["util_percent GPU-0 "]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
async def test_a_live_page_draws_every_row_and_stops_when_nobody_looks(querier) -> None:
    place(querier.db, datetime.now(UTC))
    counting, wrong = Counting(querier), []
    expect = playwright.expect
    async with playwright.async_playwright() as driver, served(counting) as port:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1000, "height": 800})
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        await page.goto(f"http://127.0.0.1:{port}/nodes/n1")
        await page.get_by_role("button", name="live").click()
        assert "live=1" in page.url
        said = page.locator("#span")
        await expect(said).to_contain_text("s behind", timeout=15_000)
        buttons = page.locator("#live-charts figcaption button")
        await expect(buttons.first).to_have_text("GPU 0 0 %")
        assert await drawn(page) == await stored(querier.db)

        for gpu in range(2):
            add(querier.db, datetime.now(UTC), 42.0, gpu)
        await expect(buttons.first).to_have_text("GPU 0 42 %", timeout=15_000)
        assert await drawn(page) == await stored(querier.db)

        # A line that ends has no value any more, beside one that continues.
        for second in range(12):
            add(querier.db, datetime.now(UTC), 50.0 + second, 1)
            await page.wait_for_timeout(1000)
        await expect(buttons.nth(1)).to_contain_text("GPU 1 ")
        await expect(buttons.first).to_have_text("GPU 0 –", timeout=15_000)
        await expect(buttons.nth(1)).not_to_have_text("GPU 1 –")

        counting.fails = True
        await expect(said).to_contain_text("(503): the data cannot be read now", timeout=15_000)
        await expect(said).to_contain_text("asked again in 8 s", timeout=15_000)
        counting.fails = False
        await expect(said).to_contain_text("No new sample since", timeout=40_000)

        await page.evaluate(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        await page.wait_for_timeout(1000)
        asked = counting.asked
        await page.wait_for_timeout(5000)
        assert counting.asked == asked
        await page.get_by_role("button", name="1 h").click()
        await expect(page.locator("#live-charts")).to_have_count(0)
        await browser.close()
    assert wrong == []
