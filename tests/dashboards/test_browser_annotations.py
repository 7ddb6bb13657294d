"""Annotations in a real Chromium over the collector's own endpoints: written, drawn, listed, deleted."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from tests.dashboards.test_browser import CHROMIUM, EVIL, playwright

from gpuwarden.access import CALLER, Caller, Scope
from gpuwarden.clock import SystemClock
from gpuwarden_collector.http.annotations import annotation_routes
from gpuwarden_collector.storage.state import StateFile
from gpuwarden_dashboards.routes import routes

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,
]


@pytest.fixture
def fleet(querier: Any) -> Any:
    """Two nodes of one GPU, which have a minute of samples."""
    db, now = querier.db, datetime.now(UTC).replace(tzinfo=None)
    for node in ("n0", "n1"):
        db.execute(
            "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at)"
            " VALUES ($1, $1, 'b', true, $2)",
            [node, now],
        )
        db.execute(
            "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, last_seen_at)"
            " VALUES ('GPU-' || $1, $1, 0, 'H100', true, $2)",
            [node, now],
        )
        db.execute(
            "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent)"
            " SELECT $2::TIMESTAMP - to_seconds(i), $1, 0, 'GPU-' || $1, true, 50 FROM range(60) t(i)",
            [node, now],
        )
    return querier


@web.middleware
async def scoped(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who asks, as the gate would say it: header X-Scope."""
    CALLER.set(Caller(Scope(request.headers.get("X-Scope", "edit")), "ada"))
    return await handler(request)


@asynccontextmanager
async def serving(querier: Any, folder: Path) -> AsyncIterator[str]:
    state = StateFile(folder / "state.sqlite")
    app = web.Application(middlewares=[scoped])
    app.add_routes(routes(querier, SystemClock()))
    app.add_routes(annotation_routes(state, SystemClock()))
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        state.close()


@asynccontextmanager
async def browsing(
    querier: Any, folder: Path, scope: str = "edit"
) -> AsyncIterator[tuple[Any, str, list[str]]]:
    """A page, the address, and what the page complained of."""
    said: list[str] = []
    playwright.expect.set_options(timeout=120_000)
    async with playwright.async_playwright() as driver, serving(querier, folder) as url:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(
            viewport={"width": 1200, "height": 800}, extra_http_headers={"X-Scope": scope}
        )
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        yield page, url, said
        await browser.close()


async def test_one_of_a_node_is_written_drawn_on_its_charts_alone_and_deleted(
    fleet: Any, tmp_path: Path
) -> None:
    expect = playwright.expect
    async with browsing(fleet, tmp_path) as (page, url, said):
        now = datetime.now(UTC)
        for text, about in (("fan replaced", {"node": "n0"}), ("deployed", {})):
            times = {
                "at": (now - timedelta(days=1)).isoformat(),
                "until": (now + timedelta(days=1)).isoformat(),
            }
            made = await page.request.post(
                f"{url}/v1/annotations", data={"text": text, **times, **about}
            )
            assert made.status == 201, await made.text()
        for node, texts in (("n1", ["deployed"]), ("n0", ["fan replaced", "deployed"])):
            await page.goto(f"{url}/nodes/{node}?last=600")
            await expect(page.locator("#annotations li")).to_have_count(len(texts))
            shown = page.locator("figure").first
            await expect(shown.locator(".plot")).not_to_have_attribute(
                "aria-label", re.compile("loading")
            )
            await shown.locator(".plot").press("ArrowLeft")
            caption = shown.locator("figcaption")
            await expect(caption).to_contain_text("deployed")
            assert ("fan replaced" in await caption.inner_text()) == ("fan replaced" in texts)
        await page.click("#annotations summary")
        await page.fill("#annotations [name=text]", EVIL)
        await page.click("#annotations form button")
        written = page.locator("#annotations li", has_text=EVIL)
        await expect(written).to_have_count(1)
        await written.locator("button").click()
        await expect(written).to_have_count(0)
    assert said == []
