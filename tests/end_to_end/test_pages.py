"""The pages over a simulated fleet with faults, in a real Chromium: shown, drilled into, accessible, small.

A page is one line of PAGES.
"""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest
from tests.end_to_end.conftest import World

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("pages"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
expect = playwright.expect
expect.set_options(timeout=120_000)

NODES, HISTORY_S = 8, 300
SCRIPT = """
[[fault]]
at = "5s"
node = "sim-0003"
gpu = 1
fault = "gpu_lost"

[[fault]]
at = "5s"
node = "sim-0005"
gpu = 2
fault = "row_remap_failed"

[[fault]]
at = "5s"
node = "sim-0007"
gpu = 0
fault = "memory_unrepairable"
"""
PAGES = {
    "/": "sim-0003",
    "/nodes/sim-0003": "fallen off the bus",
    "/gpus/{gpu_uuid}": "sim-0005",
    "/money?since=24h": "GPU hours",
    "/jobs/{job}": "{job}",
    "/users/{user}": "{user}",
    "/money?by=node&since=24h": "Wasted",
    "/sql?q=SELECT kind, node, gpu FROM events WHERE kind = 'gpu_lost'": "sim-0003",
    "/incidents": "sim-0003",
    "/rules": "gpu_lost",
    "/collector": "sim-0001",
    "/login": "token",
}
"""Path, and what the page must say about the fleet."""
CONTRAST = "runOnly: ['color-contrast']"
LOOKS = (
    ("light", 1440, ""),
    ("dark", 1440, CONTRAST),
    ("dark", 390, ""),
    ("light", 390, CONTRAST),
)
"""Theme, width, and which checks: what is there depends on the width, and its colours alone on the theme."""
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
SETTLE_MS = 300
"""From the text that is waited for until a page has everything."""
LOAD_BYTES_MAX = 200_000
AGAIN_BYTES_MAX = 60_000
"""Compressed, with headers; what is kept by its hash is not asked for again."""


@contextmanager
def browsing(url: str, **more: Any) -> Iterator[tuple[Any, list[str]]]:
    """A page, and what it complained of: errors, and requests to elsewhere."""
    said: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(**{"viewport": {"width": 1440, "height": 900}, **more})
        page.set_default_timeout(120_000)
        page.on("console", lambda m: said.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}"))
        page.on(
            "request",
            lambda r: None if r.url.startswith((url, "blob:", "data:")) else said.append(r.url),
        )
        try:
            yield page, said
        finally:
            browser.close()


@pytest.fixture(scope="module")
def world_of_faults(tmp_path_factory: Any) -> Iterator[World]:
    """A fleet whose faults fire, for all tests of this file. Its past is long enough for minutes that are
    rolled up."""
    world = World(tmp_path_factory.mktemp("pages"))
    script = world.folder / "faults.toml"
    script.write_text(SCRIPT)
    world.collector()
    simulator = world.start(
        "simulate", "--nodes", str(NODES), "--gpus-per-node", "8", "--script", str(script),
        "--history", str(HISTORY_S),
    )  # fmt: skip
    rules = "'gpu_lost', 'row_remap_failed', 'memory_unrepairable'"
    world.wait_for(
        lambda: (
            (world.one("SELECT count(*) FROM nodes") or 0) == NODES
            and (world.one(f"SELECT count(*) FROM alerts_now WHERE rule IN ({rules})") or 0) >= 1
            and (world.one("SELECT count(*) FROM waste WHERE job IS NOT NULL") or 0) > 0
        ),
        "the fleet reports and its faults fire",
        simulator,
        within_s=600,
    )
    yield world
    for process in reversed(world.processes):
        if process.popen.poll() is None:
            process.kill()


@pytest.fixture
def fleet(world_of_faults: World) -> dict[str, str]:
    """Names to put into paths."""
    world = world_of_faults
    job, user = world.ask(
        "SELECT job, username FROM waste WHERE job IS NOT NULL ORDER BY gpu_hours DESC LIMIT 1"
    )[0]
    uuid = world.one("SELECT gpu_uuid FROM gpus WHERE node = 'sim-0005' AND gpu = 2")
    return {"job": job, "user": user, "gpu_uuid": uuid}


def test_pages_show_the_faults_and_outlive_a_restart_of_the_collector(
    world_of_faults: World, fleet: dict[str, str]
) -> None:
    world = world_of_faults
    with browsing(world.url) as (page, said):
        sent = received(page)
        for path, shown in paths(fleet):
            for limit in (LOAD_BYTES_MAX, AGAIN_BYTES_MAX):
                sent.clear()
                page.goto(world.url + path)
                expect(page.locator("body")).to_contain_text(shown)
                page.wait_for_timeout(SETTLE_MS)
                assert sum(sent.values()) <= limit, (path, sent)
            print(path, dict(sent))
        assert said == []
        drills_down(page, world.url)
        asks_and_saves(page, world.url)
        assert said == []
        outlives_a_restart(page, world)
    assert all("Failed to load resource" in line for line in said)  # while it was away


def test_pages_have_no_serious_fault_of_accessibility_and_fit(
    world_of_faults: World, fleet: dict[str, str]
) -> None:
    world = world_of_faults
    base = pytest.importorskip("axe_playwright_python.base", reason="axe-core is not installed")
    found: Counter[str] = Counter()
    # The policy lets nothing be added to a page, and the checks are a script.
    with browsing(world.url, bypass_csp=True) as (page, _):
        for path, shown in paths(fleet):
            page.goto(world.url + path)
            expect(page.locator("body")).to_contain_text(shown)
            page.wait_for_timeout(SETTLE_MS)
            page.evaluate(base.AXE_FILE_PATH.read_text())
            for theme, width, checks in LOOKS:
                page.emulate_media(color_scheme=theme)
                page.set_viewport_size({"width": width, "height": 900})
                page.evaluate(DRAWN)
                result = page.evaluate(f"axe.run({{resultTypes: ['violations'], {checks}}})")
                for one in result["violations"]:
                    if one["impact"] in ("serious", "critical"):
                        nodes = [node["html"][:120] for node in one["nodes"][:3]]
                        found[f"{one['id']} {path} {theme} {width} {nodes}"] += 1
                if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    found[f"wider than the screen: {path} {width}"] += 1
    assert dict(found) == {}


def paths(fleet: dict[str, str]) -> Iterator[tuple[str, str]]:
    for path, shown in PAGES.items():
        yield path.format(**{k: quote(v, safe="") for k, v in fleet.items()}), shown.format(**fleet)


def received(page: Any) -> Counter[str]:
    """Bytes by path, as they come over the wire."""
    counts: Counter[str] = Counter()
    urls: dict[str, str] = {}
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")

    def began(event: dict[str, Any]) -> None:
        urls[event["requestId"]] = re.sub(r"https?://[^/]+|\?.*", "", event["request"]["url"])

    def ended(event: dict[str, Any]) -> None:
        counts[urls.get(event["requestId"], "?")] += int(event["encodedDataLength"])

    session.on("Network.requestWillBeSent", began)
    session.on("Network.loadingFinished", ended)
    return counts


def drills_down(page: Any, url: str) -> None:
    """From the map to a GPU, where a drag zooms."""
    page.goto(url)
    expect(page.locator("#counted")).to_contain_text("GPUs reporting")
    page.focus(".stage")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/gpus/|/nodes/"))
    plot = page.locator("figure .plot[aria-label*=' from ']").first
    expect(plot).to_be_visible()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 50)
    page.mouse.up()
    page.wait_for_url("**begin=*")


def asks_and_saves(page: Any, url: str) -> None:
    """A query runs, is drawn, comes as Parquet, and is saved for others."""
    page.goto(f"{url}/sql")
    page.fill("#sql", "SELECT node, count(*) AS gpus FROM gpus GROUP BY node ORDER BY node")
    page.press("#sql", "Control+Enter")
    expect(page.locator("#outcome")).to_contain_text(f"{NODES} rows")
    expect(page.locator("#chart .amount").first).to_be_visible()
    with page.expect_download() as download:
        page.click("[data-ending=parquet]")
    assert download.value.path().read_bytes()[:4] == b"PAR1"
    page.fill("#save input", "GPUs <b>by node")
    page.click("#save button")
    expect(page.locator("#kept li")).to_contain_text("GPUs <b>by node")
    page.reload()
    page.click("#kept summary")
    page.click("#kept li button >> nth=0")
    expect(page.locator("#outcome")).to_contain_text(f"{NODES} rows")
    page.click("text=delete")
    expect(page.locator("#kept")).to_be_hidden()


def outlives_a_restart(page: Any, world: Any) -> None:
    """A page says that the collector is away, and continues by itself when it is back."""
    page.goto(world.url)
    expect(page.locator("#counted")).to_contain_text("GPUs reporting")
    next(p for p in world.processes if p.log.name.startswith("collector")).kill()
    expect(page.locator("#state")).to_contain_text("does not answer")
    world.collector()
    expect(page.locator("#state")).to_be_hidden(timeout=120_000)
    expect(page.locator("#counted")).to_contain_text("GPUs reporting")


def test_a_browser_logs_in_once_and_sees_what_its_token_allows(world: Any) -> None:
    config = world.folder / "collector.toml"
    config.write_text(
        f'require_tokens = true\nport = {world.port}\ndata_dir = "{world.folder}/store"\n'
    )
    world.wait_ready(world.start("collector", "run", "--config", str(config)))
    made = world.run(
        "token", "create", "--scope", "read", "--comment", "ada", "--config", str(config)
    )
    (token,) = re.findall(r"gw_read_\w+", made.stdout)
    with browsing("http://") as (page, _):
        page.goto(f"{world.url}/money?by=team")
        expect(page).to_have_url(re.compile(r"/login\?next=%2Fmoney%3Fby%3Dteam"))
        page.fill("[name=token]", token)
        page.click("main button")
        expect(page).to_have_url(f"{world.url}/money?by=team")
        expect(page.locator("header")).to_contain_text("ada (read)")
        assert page.get_attribute("html", "data-scope") == "read"
        assert page.evaluate("document.cookie") == ""

        # A link that somebody sent leads to the page, though the cookie is not sent to it at first.
        page.route("http://elsewhere.example/", lambda route: route.fulfill(
            content_type="text/html",
            body=f"""<a href="{world.url}/money?by=job">look</a>
            <form method="post" action="{world.url}/logout"><button>win</button></form>""",
        ))  # fmt: skip
        page.goto("http://elsewhere.example/")
        page.click("text=look")
        expect(page).to_have_url(f"{world.url}/money?by=job")

        # A form of that site is refused.
        page.goto("http://elsewhere.example/")
        page.click("text=win")
        expect(page.locator("body")).to_contain_text("a page of another site may not do this")
        page.goto(f"{world.url}/money?by=job")
        expect(page.locator("header")).to_contain_text("ada (read)")

        page.goto(f"{world.url}/login?next=/\t/localhost/")
        page.fill("[name=token]", token)
        page.click("text=log in >> nth=-1")
        expect(page).to_have_url(f"{world.url}/")
        page.goto(f"{world.url}/login")
        page.click("text=log out")
        expect(page).to_have_url(re.compile("/login.*again=1"))
        page.goto(f"{world.url}/sql")
        expect(page).to_have_url(re.compile("/login"))
    assert token not in world.processes[0].output
