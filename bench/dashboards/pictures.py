"""Takes a picture of every page, in light and dark, on a desktop, a phone and paper, into a folder, for people to look at.

    python -m bench.dashboards.pictures FOLDER [--states fleet empty one] [--only fleet gpu] [--views light-390] [--url URL]

State `fleet` is all pages of a collector with simulated GPUs and two hours of history, or of that at `--url`; the others
are in `states.py`, and have few pages each. All states take some minutes, which the options shorten. Each page is
checked: an error of a script, a failed request, one that scrolls sideways at 320 px, or a serious fault that
axe-core finds ends the run with 1. `index.html` in the folder shows all.
"""

import argparse
import asyncio
import contextlib
import html
import os
import shutil
import sys
import tempfile
import time
import urllib.parse
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from axe_playwright_python.base import AXE_FILE_PATH
from bench.dashboards.states import STATES, in_state
from bench.this_host import free_port
from playwright.async_api import Browser, Page, Response, TimeoutError, async_playwright

from gpuwarden_client.http import CallError, ask

READY_S = 600
QUIET_MS = 8000
SETTLED_MS = 1500
"""Charts are drawn a moment after their answers have come."""


@dataclass(frozen=True, slots=True)
class View:
    """How a page is shown."""

    name: str
    width: int
    height: int
    scheme: str
    has_axe: bool = False
    """Checked by axe-core, for which the pages' policy is off: the check is a script."""
    is_print: bool = False
    """As on paper: A4, landscape."""


VIEWS = (
    View("light-1440", 1440, 900, "light"),
    View("dark-1440", 1440, 900, "dark", has_axe=True),
    View("light-390", 390, 844, "light", has_axe=True),
    View("dark-390", 390, 844, "dark"),
    View("light-320", 320, 700, "light"),
    View("print", 1123, 794, "light", is_print=True),
)
FLEET = "fleet"


def paths(url: str) -> dict[str, str]:
    """Addresses of pages by name; those of a node, GPU, job, user, incident and rule as the fleet has them."""

    def first(sql: str) -> str | None:
        rows = ask(sql, url=url).rows
        return urllib.parse.quote(str(rows[0][0]), safe="") if rows else None

    worst = "FROM incidents_now ORDER BY usd_per_hour DESC NULLS LAST LIMIT 1"
    found = {
        "fleet": "/",
        "incidents": "/incidents",
        "silences": "/silences",
        "rules": "/rules",
        "money": "/money",
        "money-month": "/money?since=month&by=label",
        "report": "/money/report",
        "sql": "/sql?q=" + urllib.parse.quote("SELECT node, gpu, util_percent, power_watts FROM gpus_now ORDER BY power_watts DESC"),
        "collector": "/collector",
        "login": "/login",
        "login-refused": "/login?why=scope",
        "absent": "/no-such-page",
        "unknown-incident": "/incidents/none",
        "wrong-time": "/money?begin=yesterday",
    }  # fmt: skip
    of_row = {
        "incident": (f"SELECT id {worst}", "/incidents/{}"),
        "rule": ("SELECT rule FROM alerts WHERE rule LIKE 'gpu%' LIMIT 1", "/rules/{}"),
        "node": ("SELECT node FROM gpus_now ORDER BY node LIMIT 1", "/nodes/{}"),
        "gpu": ("SELECT coalesce(any_value(a.gpu_uuid), min(g.gpu_uuid)) FROM gpus_now g LEFT JOIN alerts a USING (gpu_uuid)", "/gpus/{}"),
        "rack": ("SELECT rack FROM racks ORDER BY gpus DESC LIMIT 1", "/racks/{}"),
        "compare": ("SELECT string_agg(gpu_uuid, '&of=') FROM (SELECT gpu_uuid FROM gpus_now ORDER BY gpu DESC, node LIMIT 3)", "/compare?of={}"),
        "job": ("SELECT job FROM gpu_holders_now WHERE job IS NOT NULL ORDER BY job LIMIT 1", "/jobs/{}"),
        "username": ('SELECT username FROM gpu_usage WHERE username IS NOT NULL GROUP BY 1 ORDER BY sum(wasted_usd) DESC NULLS LAST LIMIT 1', "/users/{}"),
    }  # fmt: skip
    for name, (sql, path) in of_row.items():
        if value := first(sql):
            found[name] = path.format(value)
    return found


async def taken(
    browser: Browser, url: str, name: str, view: View, folder: Path, expected: Collection[int] = ()
) -> list[str]:
    """Take a picture; what is wrong with the page. `expected`: statuses of requests that may fail."""
    context = await browser.new_context(
        viewport={"width": view.width, "height": view.height},
        color_scheme=view.scheme,  # type: ignore[arg-type]
        bypass_csp=view.has_axe,
    )
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{name} {view.name}: {error}"))

    def note(answer: Response) -> None:
        if answer.status >= 400 and answer.url != url and answer.status not in expected:
            wrong.append(f"{name} {view.name}: {answer.status} of {answer.url}")

    page.on("response", note)
    await page.goto(url, wait_until="load")
    with contextlib.suppress(TimeoutError):  # pages that follow the fleet ask on
        await page.wait_for_load_state("networkidle", timeout=QUIET_MS)
    await page.wait_for_timeout(SETTLED_MS)
    if view.is_print:
        await page.emulate_media(media="print")
    width = await page.evaluate("document.documentElement.scrollWidth")
    if width > view.width:
        wrong.append(f"{name} {view.name}: it is {width} px wide")
    await page.screenshot(path=folder / f"{name}-{view.name}.png", full_page=True)
    if view.has_axe:
        wrong += [f"{name} {view.name}: {fault}" for fault in await faults(page)]
    await context.close()
    return wrong


async def faults(page: Page) -> list[str]:
    """Serious faults that axe-core finds."""
    await page.evaluate(AXE_FILE_PATH.read_text())
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@contextlib.asynccontextmanager
async def simulated(gpus: int) -> AsyncIterator[str]:
    """Address of a collector with rules and so many simulated GPUs, when incidents and waste are there."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-pictures-") as folder:
        port = free_port()
        child = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("gpuwarden")),
            *("up", "--simulate", str(gpus), "--port", str(port), "--data", f"{folder}/data"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HOME": folder},
        )
        url = f"http://127.0.0.1:{port}"
        try:
            await asyncio.to_thread(_wait, url)
            yield url
        finally:
            child.terminate()
            await child.wait()


def _wait(url: str) -> None:
    wanted = (
        "SELECT (SELECT count(*) FROM incidents_now) > 2 AND (SELECT count(*) FROM waste_1h) > 0"
    )
    for _ in range(READY_S):
        with contextlib.suppress(CallError):
            if ask(wanted, url=url).rows[0][0]:
                return
        time.sleep(1)
    raise SystemExit(f"no incidents or no waste after {READY_S} s")


def index(folder: Path) -> str:
    """A page with all pictures."""
    figures = [
        f'<figure><figcaption>{html.escape(path.stem)}</figcaption><a href="{path.name}"><img src="{path.name}" width="420" loading="lazy"></a></figure>'
        for path in sorted(folder.glob("*.png"))
    ]
    style = "body{font:14px sans-serif;display:flex;flex-wrap:wrap}figure{margin:8px}img{border:1px solid #ccc}"
    return f"<!doctype html><meta charset=utf-8><title>pictures</title><style>{style}</style>{''.join(figures)}"


async def of_pages(
    browser: Browser,
    url: str,
    pages: Mapping[str, str],
    views: Sequence[View],
    folder: Path,
    expected: Collection[int] = (),
) -> list[str]:
    """Take pages in some views."""
    wrong: list[str] = []
    for name, path in pages.items():
        for view in views:
            wrong += await taken(browser, url + path, name, view, folder, expected)
        print(name, flush=True)
    return wrong


async def of_state(browser: Browser, state: str, given: argparse.Namespace) -> list[str]:
    """Take the pages of a state."""
    views = [view for view in VIEWS if view.name in given.views]

    def chosen(pages: Mapping[str, str]) -> dict[str, str]:
        return {name: path for name, path in pages.items() if not given.only or name in given.only}

    if state != FLEET:
        of = STATES[state]
        pages = {f"{state}-{name}": path for name, path in chosen(of.pages).items()}
        async with in_state(of) as url:
            return await of_pages(browser, url, pages, views, given.folder, of.expected)
    running = contextlib.nullcontext(given.url) if given.url else simulated(given.gpus)
    async with running as url:
        pages = chosen(await asyncio.to_thread(paths, url))
        return await of_pages(browser, url, pages, views, given.folder)


async def main(argv: Sequence[str] | None = None) -> int:
    """Take the pictures; 1: a page is wrong."""
    states, views = (FLEET, *STATES), [view.name for view in VIEWS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="of a running collector, instead of a simulated one")
    parser.add_argument("--states", nargs="+", default=states, choices=states)
    parser.add_argument(
        "--only", nargs="+", default=[], help="pages by name, as pictures have them"
    )
    parser.add_argument("--views", nargs="+", default=views, choices=views)
    parser.add_argument("--gpus", type=int, default=16, help="simulated ones of state fleet")
    given = parser.parse_args(argv)
    given.folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for state in given.states:
            wrong += await of_state(browser, state, given)
        await browser.close()
    (given.folder / "index.html").write_text(index(given.folder))
    print("\n".join(wrong) or f"{len([*given.folder.glob('*.png')])} pictures in {given.folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
