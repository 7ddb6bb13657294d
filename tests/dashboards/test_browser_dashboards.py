"""Dashboards in a real Chromium over the collector's own endpoints: made, pinned to, edited by two, shown on a wall."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from tests.dashboards.test_browser import CHROMIUM, DRAWN, EVIL, no_queries, playwright

from gpuwarden.access import CALLER, Caller, Scope
from gpuwarden.clock import SystemClock
from gpuwarden.dashboard import DashboardVersion, dashboard_of, text_of
from gpuwarden.query import QueryError
from gpuwarden_collector.http.annotations import annotation_routes
from gpuwarden_collector.http.dashboards import DashboardEndpoints
from gpuwarden_collector.storage.state import StateFile
from gpuwarden_dashboards.pages.dashboards import example
from gpuwarden_dashboards.routes import routes

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,
    pytest.mark.timeout(240),
]
NODES, GPUS = 8, 8
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def fleet(querier: Any) -> Any:
    """Nodes with 64 GPUs together, which have a minute of samples."""
    db, now = querier.db, datetime.now(UTC).replace(tzinfo=None)
    db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, last_seen_at)"
        " SELECT 'n' || n, 'a' || n, 'b', true, $1 FROM range($2) t(n)",
        [now, NODES],
    )
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated, last_seen_at)"
        " SELECT 'GPU-' || n || '-' || g, 'n' || n, g, 'H100', true, $1 FROM range($2) a(n), range($3) b(g)",
        [now, NODES, GPUS],
    )
    db.execute(
        "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent, power_watts, temperature_celsius)"
        " SELECT $1::TIMESTAMP - to_seconds(i), 'n' || n, g, 'GPU-' || n || '-' || g, true, 10 * g, 400, 85"
        " FROM range(60) a(i), range($2) b(n), range($3) c(g)",
        [now, NODES, GPUS],
    )
    return querier


def sql_of(querier: Any) -> Handler:
    """`POST /v1/sql` with instants as parameters."""

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        params = {
            name: datetime.fromisoformat(value["timestamp"]).replace(tzinfo=None)
            for name, value in (asked.get("params") or {}).items()
        }
        try:
            found = await querier.query(asked["sql"], params)
        except QueryError as error:
            return web.json_response({"error": str(error), "status": 400}, status=400)
        columns = [{"name": n, "type": t} for n, t in zip(found.columns, found.types, strict=True)]
        rows = [[v.isoformat() if isinstance(v, datetime) else v for v in r] for r in found.rows]
        return web.json_response(
            {"columns": columns, "rows": rows, "truncated": False, "elapsed_s": 0.01}
        )

    return answer


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
    app.add_routes(DashboardEndpoints(state, SystemClock()).routes())
    app.add_routes(annotation_routes(state, SystemClock()))
    app.router.add_post("/v1/sql", sql_of(querier))
    app.router.add_get("/v1/queries", no_queries)
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
async def browsing(querier: Any, folder: Path) -> AsyncIterator[tuple[Any, Any, str, list[str]]]:
    """A browser, a page, the address, and what the page complained of."""
    said: list[str] = []
    playwright.expect.set_options(timeout=20_000)
    async with playwright.async_playwright() as driver, serving(querier, folder) as url:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1200, "height": 800})
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        yield browser, page, url, said
        await browser.close()


async def put(page: Any, url: str, name: str, document: Any, version: int = 0) -> Any:
    path = f"{url}/v1/dashboards/{name}?version={version}"
    return await page.request.put(path, data=document)


async def test_one_is_made_pinned_to_edited_by_two_and_hung_on_a_wall(
    fleet: Any, tmp_path: Path
) -> None:
    expect = playwright.expect
    async with browsing(fleet, tmp_path) as (browser, page, url, said):
        await page.goto(f"{url}/dashboards")
        await page.click("text=make the example")
        await page.wait_for_url("**/dashboards/fleet-at-a-glance**")
        await expect(page.locator(".kind-number").first).to_contain_text(str(NODES * GPUS))
        hot = page.locator(".kind-number", has_text="Hottest GPU")
        await expect(hot).to_contain_text("85 °C")
        await expect(hot.locator(".figure.warning")).to_contain_text("warning")
        await expect(page.locator(".kind-map a")).to_have_count(NODES * GPUS)

        # A chart of a node, pinned there.
        await page.goto(f"{url}/nodes/n1")
        await page.click("[aria-label='pin the chart GPU utilization to a dashboard']")
        await page.click("dialog .main")
        await page.click("dialog a")
        chart = page.locator(".kind-chart")
        await chart.scroll_into_view_if_needed()
        await expect(chart.locator(".plot")).to_have_attribute(
            "aria-label", "n1 GPU utilization: GPU 0 from 0 % to 0 %; GPU 1 from 10 % to 10 %; "
            "GPU 2 from 20 % to 20 %; GPU 3 from 30 % to 30 %; GPU 4 from 40 % to 40 %; "
            "GPU 5 from 50 % to 50 %; GPU 6 from 60 % to 60 %; GPU 7 from 70 % to 70 %",
        )  # fmt: skip
        assert await chart.locator("canvas").first.evaluate(DRAWN)

        # An annotation is on its charts, and can be deleted.
        await page.click("#annotations summary")
        await page.fill("#annotations [name=text]", EVIL)
        await page.click("#annotations form button")
        await expect(page.locator("#annotations li")).to_contain_text(EVIL)
        await page.click("#annotations li button")
        await expect(page.locator("#annotations li")).to_have_count(0)

        await edited_by_two(browser, page, url)
        await seen_by_a_reader(browser, url)

        await page.goto(f"{url}/dashboards/fleet-at-a-glance?wall=1")
        await expect(hot).to_contain_text("85 °C")
        await expect(page.locator("nav")).to_be_hidden()
        fits = "document.documentElement.scrollHeight <= innerHeight && document.documentElement.scrollWidth <= innerWidth"
        assert await page.evaluate(fits)
        await page.keyboard.press("Escape")
        await expect(page.locator("nav")).to_be_visible()
        await rotates_and_is_old(page, url)
    # The save that is refused, as another browser was faster; requests to the collector that is away.
    assert [line for line in said if "409" not in line and "ERR_FAILED" not in line] == []


async def rotates_and_is_old(page: Any, url: str) -> None:
    """On the wall dashboards take turns, and what is old is named."""
    expect = playwright.expect
    assert (await put(page, url, "other", {"title": "Other", "panels": []})).ok
    names = "names=fleet-at-a-glance,other"
    await page.goto(f"{url}/dashboards/fleet-at-a-glance?wall=1&rotate=5s&{names}")
    await expect(page).to_have_title("Other · gpuwarden")
    await page.goto(f"{url}/dashboards/fleet-at-a-glance?wall=1")
    await expect(page.locator(".kind-map a").first).to_be_visible()
    await page.route("**/v1/**", lambda route: route.abort())
    await expect(page.locator("#state")).to_contain_text("this page shows old data")
    await expect(page.locator("nav")).to_be_hidden()


async def edited_by_two(browser: Any, page: Any, url: str) -> None:
    """By keyboard; the second save is refused with the first's version, and made after it."""
    expect = playwright.expect
    other = await browser.new_page(viewport={"width": 1200, "height": 800})
    for one in (page, other):
        await one.goto(f"{url}/dashboards/fleet-at-a-glance?edit=1")
        await expect(one.locator("article")).to_have_count(9)
    first = other.locator("article .body").first
    await first.focus()
    await other.keyboard.press("ArrowRight")
    await expect(other.locator("article h2").first).to_have_text("Mean utilization")
    await expect(other.locator("article .body:focus")).to_have_attribute(
        "aria-label", "GPUs that report"
    )
    await other.keyboard.press("Shift+ArrowRight")
    await other.keyboard.press("Enter")
    await other.fill("dialog [name=title]", EVIL)
    await other.click("dialog .main")
    await other.click("#save")
    await expect(other.locator("#outcome")).to_contain_text("Saved as version 3")
    moved = (
        await (await page.request.get(f"{url}/v1/dashboards/fleet-at-a-glance")).json()
    )["dashboard"]["panels"][1]  # fmt: skip
    assert (moved["title"], moved["width"]) == (EVIL, 4)

    await page.locator("article .body").first.focus()
    await page.keyboard.press("Delete")
    await page.click("#save")
    await expect(page.locator("#outcome")).to_contain_text("has saved version 3 meanwhile")
    await page.click("text=save mine after theirs")
    await expect(page.locator("#outcome")).to_contain_text("Saved as version 4")
    await expect(page.locator("article")).to_have_count(8)
    await page.click("#versions summary")
    await page.click("[aria-label='restore version 3']")
    await expect(page.locator("article")).to_have_count(9)
    await expect(page.locator("article h2").nth(1)).to_have_text(EVIL)
    await other.close()


async def seen_by_a_reader(browser: Any, url: str) -> None:
    """Nothing that changes is offered."""
    expect = playwright.expect
    page = await browser.new_page(extra_http_headers={"X-Scope": "read"})
    await page.goto(f"{url}/dashboards/fleet-at-a-glance")
    await expect(page.locator("article")).to_have_count(9)
    await expect(page.locator("#edit")).to_be_hidden()
    await page.goto(f"{url}/dashboards")
    await expect(page.locator("#listed")).to_contain_text("Fleet at a glance")
    await expect(page.locator("#make")).to_be_hidden()
    await page.goto(f"{url}/nodes/n1")
    await expect(page.locator("#charts figure").first).to_be_visible()
    assert await page.locator(".pin").count() == 0
    await page.close()


async def test_panels_out_of_view_are_not_asked_and_those_alike_are_asked_once(
    fleet: Any, tmp_path: Path
) -> None:
    """30 panels over 64 GPUs: charts of a place share a request, so do panels with the same SQL."""
    expect = playwright.expect
    metrics = ("util_percent", "power_watts", "temperature_celsius")
    charts = [
        {"title": f"chart {n}", "kind": "chart", "chart": f"node=n1&metrics={metrics[n % 3]}", "width": 4}
        for n in range(6)
    ]  # fmt: skip
    same = [
        {"title": f"same {n}", "kind": kind, "sql": "SELECT count(*) AS gpus FROM gpus", "width": 3, "height": 1}
        for n, kind in enumerate(("number", "table", "number", "table"))
    ]  # fmt: skip
    rest = [
        {"title": f"other {n}", "kind": "number", "sql": f"SELECT {n} AS n FROM gpus_now LIMIT 1", "height": 6}
        for n in range(20)
    ]  # fmt: skip
    document = {"title": "Many", "panels": [*same, *charts, *rest]}
    async with browsing(fleet, tmp_path) as (_, page, url, said):
        assert (await put(page, url, "many", document)).ok
        asked: list[str] = []
        page.on(
            "request",
            lambda r: asked.append(
                json.loads(r.post_data)["sql"] if r.url.endswith("/v1/sql") else r.url
            ),
        )
        fixed = int(datetime.now(UTC).timestamp() * 1000)
        await page.goto(f"{url}/dashboards/many?begin={fixed - 60_000}&end={fixed}")
        await expect(page.locator(".kind-number").first).to_contain_text("64")
        for number in range(6):
            shown = page.locator("article", has_text=f"chart {number}").locator(".plot")
            await expect(shown).not_to_have_attribute("aria-label", f"chart {number}: loading")
        series = [one for one in asked if "/v1/series" in one]
        counts = [one for one in asked if one == document["panels"][0]["sql"]]
        assert len(series) == 1 and all(metric in series[0] for metric in metrics)
        assert len(counts) == 1
        assert not [one for one in asked if one.startswith("SELECT 19 ")]
        await page.locator("article").last.scroll_into_view_if_needed()
        await expect(page.locator("article").last).to_contain_text("19")
        others = {one for one in asked if one.startswith("SELECT ") and "AS n" in one}
        assert len(others) < 20
        assert len([one for one in asked if "/v1/series" in one]) == 1  # a fixed time is asked once
    assert said == []


async def test_a_wall_that_is_left_turns_no_more_and_an_old_version_ends_with_a_save(
    fleet: Any, tmp_path: Path
) -> None:
    expect = playwright.expect
    async with browsing(fleet, tmp_path) as (_, page, url, said):
        for name in ("one", "two"):
            assert (await put(page, url, name, {"title": name, "panels": []})).ok
        assert (await put(page, url, "one", {"title": "one b", "panels": []}, 1)).ok
        await page.clock.install()
        held: list[Any] = []
        await page.goto(f"{url}/dashboards/one?version=1&wall=1&rotate=60s")
        await expect(page.locator("#board")).to_contain_text("No panel yet")
        await page.clock.fast_forward(61_000)
        await expect(page).to_have_title("two · gpuwarden")
        assert "version" not in page.url
        await page.route("**/v1/dashboards", lambda route: held.append(route))
        async with page.expect_request("**/v1/dashboards"):
            await page.clock.fast_forward(61_000)
        await page.keyboard.press("Escape")
        await page.click("#edit")
        await held.pop().continue_()
        await page.clock.fast_forward(200_000)
        await page.fill("#name", "two b")
        await page.click("#save")
        await expect(page.locator("#outcome")).to_contain_text("Saved as version 2")
        assert held == []
        kept = await (await page.request.get(f"{url}/v1/dashboards/one")).json()
        assert (kept["version"], kept["title"]) == (2, "one b")

        # What another saves while the wall stands comes onto it.
        await page.goto(f"{url}/dashboards/two?wall=1")
        await expect(page).to_have_title("two b · gpuwarden")
        assert (await put(page, url, "two", {"title": "two c", "panels": []}, 2)).ok
        await page.clock.fast_forward(61_000)
        await expect(page).to_have_title("two c · gpuwarden")

        # While a save is on its way nothing else is saved or changed.
        await page.goto(f"{url}/dashboards/one?version=1&edit=1")
        await page.route("**/v1/dashboards/one?version=2", lambda route: held.append(route))
        async with page.expect_request("**/v1/dashboards/one?version=2"):
            await page.click("#save")
        assert await page.locator("#editing").evaluate("(one) => one.inert")
        await held.pop().continue_()
        await expect(page.locator("#outcome")).to_contain_text("Saved as version 3")
        assert "version" not in page.url
        assert not await page.locator("#editing").evaluate("(one) => one.inert")
    assert said == []


async def test_a_wrong_metric_stops_no_other_panel_and_what_failed_is_asked_again(
    fleet: Any, tmp_path: Path
) -> None:
    expect = playwright.expect
    panels: list[dict[str, Any]] = [
        {"title": metric, "kind": "chart", "chart": f"node=n1&metrics={metric}", "width": 4}
        for metric in ("util_percent", "no_such_metric", "power_watts")
    ]
    panels.append({"title": "old", "kind": "number", "sql": "SELECT 7 AS n WHERE $begin < $end"})
    # Saved when that metric was known: a save is refused now.
    sized = [{"width": 6, "height": 4, **one} for one in panels]
    some = DashboardVersion("some", 1, "Some", len(panels), "ada", datetime.now(UTC), False, 1)
    state = StateFile(tmp_path / "state.sqlite")
    with state.writing() as writing:
        writing.save_dashboard(some, text_of({"title": "Some", "panels": sized}))
    state.close()
    async with browsing(fleet, tmp_path) as (_, page, url, said):
        answers = [lambda route: route.fulfill(status=503, json={"error": "not now"})]
        await page.route(
            "**/v1/sql", lambda route: answers.pop()(route) if answers else route.continue_()
        )
        await page.clock.install()
        fixed = int(datetime.now(UTC).timestamp() * 1000)
        await page.goto(f"{url}/dashboards/some?begin={fixed - 60_000}&end={fixed}")
        for title in ("util_percent", "power_watts"):
            plot = page.locator("article", has_text=title).locator(".plot")
            await expect(plot).to_have_attribute("aria-label", re.compile("GPU 7 from"))
        await expect(
            page.locator("article", has_text="no_such_metric").locator(".failed")
        ).to_be_visible()
        await expect(page.locator(".kind-number .failed")).to_contain_text("not now")
        await page.clock.fast_forward(30_000)
        await expect(page.locator(".kind-number")).to_contain_text("7")
    assert [line for line in said if "400" not in line and "503" not in line] == []


async def test_many_annotations_around_the_span_hide_none_in_it(fleet: Any, tmp_path: Path) -> None:
    end = int(datetime.now(UTC).timestamp() * 1000)
    panel = {"title": "n", "kind": "number", "sql": "SELECT 7 AS n WHERE $begin < $end"}
    one = {"id": "a", "text": "deployed", "begin_ms": end - 30_000, "end_ms": None, "tags": []}
    one |= {"node": None, "gpu": None, "job": None, "author": None}

    async def answer(route: Any) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        is_wide = int(asked["end"][0]) - int(asked["begin"][0]) > 60_000
        await route.fulfill(json={"annotations": [] if is_wide else [one], "truncated": True})

    async with browsing(fleet, tmp_path) as (_, page, url, said):
        assert (await put(page, url, "n", {"title": "n", "panels": [panel]})).ok
        await page.route("**/v1/annotations?*", answer)
        await page.goto(f"{url}/dashboards/n?begin={end - 60_000}&end={end}")
        await page.click("#annotations summary")
        await playwright.expect(page.locator("#annotations li")).to_contain_text("deployed")
        await playwright.expect(page.locator("#annotations")).to_contain_text(
            "newest 1 of the span; there are more"
        )
    assert said == []


async def test_an_annotation_of_a_node_is_on_the_panels_that_show_it(
    fleet: Any, tmp_path: Path
) -> None:
    by_node = "SELECT ts, node, util_percent FROM gpu_samples WHERE ts > now()::TIMESTAMP - INTERVAL 10 MINUTE"
    all_of = by_node.replace(" node,", "")
    panels: list[dict[str, Any]] = [
        {"title": "its own", "kind": "chart", "chart": "node=n0&metrics=util_percent"},
        {"title": "of another", "kind": "chart", "chart": "node=n1&metrics=util_percent"},
        {"title": "by node", "kind": "line", "sql": by_node},
        {"title": "of all", "kind": "line", "sql": all_of},
        {"title": "said in the SQL", "kind": "line", "sql": f"{all_of} AND node = 'n0'"},
    ]
    for panel in panels:
        panel["width"] = 4
    async with browsing(fleet, tmp_path) as (_, page, url, said):
        assert (await put(page, url, "mine", {"title": "mine", "panels": panels})).ok
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
        await page.goto(f"{url}/dashboards/mine")
        await playwright.expect(page.locator("#annotations li")).to_have_count(2)
        for panel in panels:
            shown = page.locator("article", has=page.locator(f"h2:text-is('{panel['title']}')"))
            await playwright.expect(shown.locator(".plot")).not_to_have_attribute(
                "aria-label", re.compile("loading")
            )
            await shown.locator(".plot").press("ArrowLeft")
            caption = shown.locator("figcaption")
            await playwright.expect(caption).to_contain_text("deployed")
            is_about = panel["title"] not in ("of another", "of all")
            assert ("fan replaced" in await caption.inner_text()) == is_about, panel["title"]
    assert said == []


async def test_rubbish_is_refused_in_words_and_an_unknown_one_can_be_made(
    fleet: Any, tmp_path: Path
) -> None:
    expect = playwright.expect
    async with browsing(fleet, tmp_path) as (_, page, url, _said):
        await page.goto(f"{url}/dashboards")
        for content, words in (
            (b"{", "the file is not JSON"),
            (b'{"title": "x", "panels": [{"title": "y", "kind": "pie"}]}', "panels[0].kind: it must be one of"),
        ):  # fmt: skip
            file = {"name": "a.json", "mimeType": "application/json", "buffer": content}
            await page.set_input_files("#import input", files=[file])
            await page.click("#import button")
            await expect(page.locator("#outcome")).to_contain_text(words)
        made = json.dumps(example() | {"title": EVIL}).encode()
        file = {"name": "b.json", "mimeType": "application/json", "buffer": made}
        await page.set_input_files("#import input", files=[file])
        await page.click("#import button")
        await page.wait_for_url("**/dashboards/script-alert-1-script**")
        await expect(page.locator("h1")).to_contain_text(EVIL)
        await page.goto(f"{url}/dashboards/none")
        await expect(page.locator("#board")).to_contain_text("there is no dashboard none")
        await page.click("text=make it")
        await page.wait_for_url("**/dashboards/none?*")
        await expect(page.locator("#editing")).to_be_visible()


def test_the_example_is_a_dashboard() -> None:
    assert dashboard_of(example()) == example()
