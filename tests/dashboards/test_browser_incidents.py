"""An incident in a real Chromium, on a real collector that asks for tokens: opened, acknowledged, silenced, its rule backtested, its policy tried."""

import asyncio
import re
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gpuwarden.access import Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden_agent.settings import AgentSettings, Timing
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_simulator import fleet_nodes
from gpuwarden_simulator.fleet import run_fleet

playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.slow,
]
RULES = """
rules:
  - name: power_drawn
    severity: critical
    consequence: lost_work
    labels: [node, gpu, gpu_uuid]
    interval: 1s
    judges_silent_nodes: true
    gather_for: 0s
    params: {above_watts: 1}
    requires: [gpu_samples.power_watts]
    chart: {power_watts: above_watts}
    summary: "<script>alert(1)</script> draws {value:.0f} W"
    remedy: Stop `it`.
    sql: |
      SELECT node, gpu, gpu_uuid, max(power_watts) AS value FROM gpu_samples
      WHERE ts > $now::TIMESTAMP - INTERVAL 1 HOUR AND ts <= $now::TIMESTAMP
      GROUP BY ALL HAVING value > $above_watts
"""
TOO_WIDE = """[...document.querySelectorAll("main *, header *")]
    .filter((one) => !one.closest(".scroll, .plot") && one.getBoundingClientRect().right > innerWidth)
    .map((one) => one.outerHTML.slice(0, 200))"""
POLICIES = "policies: [{name: cull, state: on, rule: power_drawn, steps: [{do: cancel_job}]}]"
OVERRIDES = "overrides: [{rules: ['*'], enabled: false}, {rules: [power_drawn], enabled: true}]"


def granted(folder: Path, scope: Scope) -> Token:
    token = Token.new(scope)
    entry = TokenEntry(token.id, scope, token.digest, SystemClock().now(), comment="ann")
    edit(folder / NAME, lambda book: (book.with_entry(entry), None))
    return token


@asynccontextmanager
async def collector_of(folder: Path):
    """A collector with one GPU's minute of samples, and only the rule above."""
    rules = folder / "rules"
    rules.mkdir()
    (rules / "mine.yaml").write_text(RULES)
    (rules / "overrides.yaml").write_text(OVERRIDES)
    (folder / "policies.yaml").write_text(POLICIES)
    sending = folder / "token"
    sending.write_text(granted(folder, Scope.INGEST).text)
    settings = CollectorSettings(
        port=0,
        data_dir=folder,
        require_tokens=True,
        rules_dirs=(rules,),
        policies_path=folder / "policies.yaml",
    )
    async with collecting(settings, SystemClock()) as collector:
        await run_fleet(
            fleet_nodes([1], model_named("L4-24GB"), 1, {}, ["sim-1"]),
            collector_url=collector.url,
            clock=SystemClock(),
            stop=asyncio.Event(),
            duration_s=1,
            history_s=60,
            state_dir=None,
            settings=AgentSettings(backend="simulator", token_file=sending),
            timing=Timing(stop_timeout_s=60),
        )
        yield collector


@asynccontextmanager
async def other_site(target: str):
    """A page of another origin that tries to silence everything in the visitor's name."""
    body = '{"matchers": ["node=~.*"], "for": "1h"}'
    script = f"fetch('{target}/v1/silences', {{method: 'POST', mode: 'no-cors', credentials: 'include', body: '{body}'}})"
    page = (
        f"<title>waiting</title><script>{script}.finally(() => document.title = 'tried')</script>"
    )

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", show)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/"
    finally:
        await runner.cleanup()


async def logged_in(page, url: str, token: Token, path: str) -> None:
    await page.goto(url + path)
    await page.fill("input[name=token]", token.text)
    await page.click("main button:text('log in')")
    await page.wait_for_url(f"**{path}*")


async def test_an_incident_is_acknowledged_silenced_and_its_rule_backtested(tmp_path) -> None:
    said: list[str] = []
    async with (
        collector_of(tmp_path) as collector,
        other_site(collector.url) as evil,
        playwright.async_playwright() as driver,
    ):
        url, expect = collector.url, playwright.expect
        expect.set_options(timeout=120_000)
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 390, "height": 800})
        page.set_default_timeout(120_000)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        await logged_in(page, url, admin := granted(tmp_path, Scope.ADMIN), "/incidents")
        await expect(page.locator("article")).to_have_count(1)  # by itself, once it is opened
        await expect(page.locator("article .what")).to_contain_text(
            "<script>alert(1)</script> draws"
        )
        await page.click("article .what")

        await expect(page.locator("figure .plot")).to_have_attribute(
            "aria-label", re.compile("^power, above 1 W")
        )
        await expect(page.locator(".why th:text('value')")).to_be_visible()
        assert await page.evaluate(TOO_WIDE) == []
        await page.click("#ack")
        await page.fill("#ask-comment", "<b>on it</b>")
        await page.press("#ask-comment", "Enter")
        await expect(page.locator("#timeline")).to_contain_text("acknowledged by ann until")
        await expect(page.locator("#now")).to_contain_text("<b>on it</b>")
        await page.goto(f"{url}/incidents?state=acknowledged")
        await expect(page.locator("article")).to_have_count(1)
        await page.click("article .what")
        await page.click("[data-silence]")
        await expect(page.locator("[data-silence]")).to_have_count(0)

        await page.click("#silence")
        await expect(page.locator("#ask-covered")).to_contain_text("Covers 1 alert now")
        await page.fill("#ask-matchers", "wrong")
        await expect(page.locator("#ask-covered")).to_contain_text("is not a matcher")
        await page.fill("#ask-matchers", "node=sim-1")
        await page.route("**/v1/silences", lambda route: route.abort())
        await page.click("#ask-send")
        await expect(page.locator("#ask-failed")).to_have_text("the collector does not answer")
        await page.unroute_all()
        await page.click("#ask-send")
        await expect(page.locator("#did")).to_contain_text("silenced until")
        await page.goto(f"{url}/silences")
        await page.click("[data-silence]")
        await expect(page.locator("[data-again]")).to_have_count(1)
        said = [line for line in said if not re.search("400 .Bad Request|ERR_FAILED", line)]

        await backtests(page, url)
        await tries_a_policy(page, url)
        assert said == []

        await page.goto(evil)
        await expect(page).to_have_title("tried")
        await is_refused(url, evil, admin)

        reader = await (await browser.new_context()).new_page()
        await logged_in(reader, url, granted(tmp_path, Scope.READ), "/incidents")
        await expect(reader.locator("#may")).to_contain_text("may only read")
        await reader.click("article .what")
        await expect(reader.locator("#ack")).to_be_disabled()
        await browser.close()


async def is_refused(url: str, evil: str, admin: Token) -> None:
    """A browser that sends the cookie along from another site changes nothing."""
    cookie = {"Cookie": f"gpuwarden={admin.text}", "Origin": evil.rstrip("/")}
    asked = {"matchers": ["node=~.*"], "for": "1h"}
    async with aiohttp.ClientSession(headers=cookie) as session:
        async with session.post(f"{url}/v1/silences", json=asked) as answer:
            assert answer.status == 403
        async with session.get(f"{url}/v1/silences") as answer:
            assert (await answer.json())["silences"] == []


async def backtests(page, url: str) -> None:
    expect = playwright.expect
    await page.goto(f"{url}/rules?state=firing")
    await page.click("#rules a:text('power_drawn')")
    await page.select_option("#span", "1h")
    await page.click("#run")
    await expect(page.locator("#outcome")).to_contain_text("would have fired once")
    await expect(page.locator("#result svg")).to_have_attribute("aria-label", re.compile("^once, "))
    assert "backtest=" in page.url
    await page.goto(f"{url}/rules/node_down")
    await expect(page.locator("#rule dd").first).to_have_text("disabled")
    await page.goto(f"{url}/rules/rule_failing")
    await expect(page.locator("#rule .facts")).to_contain_text(
        "the collector itself makes its alerts"
    )
    await expect(page.locator("#testing")).to_be_hidden()


async def tries_a_policy(page, url: str) -> None:
    """A policy may act once somebody has read its dry run."""
    expect = playwright.expect
    await page.goto(f"{url}/policies")
    await expect(page.locator("#policies td.failed")).to_have_text(
        "not on: nobody has read its dry run"
    )
    assert await page.evaluate(TOO_WIDE) == []
    await page.click("#policies button")
    await expect(page.locator("#tried p").first).to_contain_text(
        "would have done cancel_job 1 time"
    )
    assert await page.evaluate(TOO_WIDE) == []
    await page.click("#tried button")
    await expect(page.locator("#policies td").nth(1)).to_have_text("on")
    await expect(page.locator("#tried button")).to_have_count(0)
