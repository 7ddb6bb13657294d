"""Takes a picture of every page, in light and dark, on a desktop and a phone, into a folder, for people to look at.

    python -m bench.dashboards.pictures FOLDER [--url http://127.0.0.1:8750] [--only money gpu] [--gpus 16] [--fleets 0 1 125]

Without `--url` a collector with simulated GPUs and two hours of history is started, and then servers of `serve.py` with so
many nodes of 8 GPUs, whose first page is taken. Each picture is checked: an error of a script, a failed request, or
a page that scrolls sideways at 320 px ends the run with 1. `index.html` in the folder shows all.
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
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.dashboards.__main__ import serving
from bench.this_host import free_port
from playwright.async_api import Browser, Response, TimeoutError, async_playwright

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


VIEWS = (
    View("light-1440", 1440, 900, "light"),
    View("dark-1440", 1440, 900, "dark"),
    View("light-390", 390, 844, "light"),
    View("dark-390", 390, 844, "dark"),
)
NARROW = View("light-320", 320, 700, "light")


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
        "sql": "/sql?q=" + urllib.parse.quote("SELECT node, gpu, util_percent, power_watts FROM gpus_now ORDER BY power_watts DESC"),
        "collector": "/collector",
        "login": "/login",
        "absent": "/no-such-page",
    }  # fmt: skip
    of_row = {
        "incident": (f"SELECT id {worst}", "/incidents/{}"),
        "rule": ("SELECT rule FROM alerts WHERE rule LIKE 'gpu%' LIMIT 1", "/rules/{}"),
        "node": ("SELECT node FROM gpus_now ORDER BY node LIMIT 1", "/nodes/{}"),
        "gpu": ("SELECT coalesce(any_value(a.gpu_uuid), min(g.gpu_uuid)) FROM gpus_now g LEFT JOIN alerts a USING (gpu_uuid)", "/gpus/{}"),
        "job": ("SELECT job FROM gpu_holders_now WHERE job IS NOT NULL ORDER BY job LIMIT 1", "/jobs/{}"),
        "user": ('SELECT "user" FROM gpu_usage WHERE "user" IS NOT NULL GROUP BY 1 ORDER BY sum(wasted_usd) DESC NULLS LAST LIMIT 1', "/users/{}"),
    }  # fmt: skip
    for name, (sql, path) in of_row.items():
        if value := first(sql):
            found[name] = path.format(value)
    return found


async def taken(browser: Browser, url: str, name: str, view: View, folder: Path) -> list[str]:
    """Take a picture; what is wrong with the page."""
    context = await browser.new_context(
        viewport={"width": view.width, "height": view.height},
        color_scheme=view.scheme,  # type: ignore[arg-type]
    )
    page = await context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"{name} {view.name}: {error}"))

    def note(answer: Response) -> None:
        if answer.status >= 400 and answer.url != url:
            wrong.append(f"{name} {view.name}: {answer.status} of {answer.url}")

    page.on("response", note)
    await page.goto(url, wait_until="load")
    with contextlib.suppress(TimeoutError):  # pages that follow the fleet ask on
        await page.wait_for_load_state("networkidle", timeout=QUIET_MS)
    await page.wait_for_timeout(SETTLED_MS)
    width = await page.evaluate("document.documentElement.scrollWidth")
    if width > view.width:
        wrong.append(f"{name} {view.name}: it is {width} px wide")
    await page.screenshot(path=folder / f"{name}-{view.name}.png", full_page=True)
    await context.close()
    return wrong


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


async def of_pages(browser: Browser, url: str, only: Sequence[str], folder: Path) -> list[str]:
    """Take all pages in all views."""
    wrong: list[str] = []
    for name, path in (await asyncio.to_thread(paths, url)).items():
        if only and name not in only:
            continue
        for view in (*VIEWS, NARROW):
            wrong += await taken(browser, url + path, name, view, folder)
        print(name, flush=True)
    return wrong


async def main(argv: Sequence[str] | None = None) -> int:
    """Take the pictures; 1: a page is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", help="of a running collector, instead of a simulated one")
    parser.add_argument("--only", nargs="+", default=[], help="pages by name")
    parser.add_argument("--gpus", type=int, default=16, help="simulated ones; 0: none")
    parser.add_argument("--fleets", type=int, nargs="*", default=[0, 1, 125], help="nodes")
    given = parser.parse_args(argv)
    given.folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        if given.url:
            wrong += await of_pages(browser, given.url, given.only, given.folder)
        else:
            if given.gpus:
                async with simulated(given.gpus) as url:
                    wrong += await of_pages(browser, url, given.only, given.folder)
            for nodes in given.fleets:
                async with serving(nodes) as (url, _):
                    for view in VIEWS:
                        wrong += await taken(browser, url, f"fleet-of-{nodes}", view, given.folder)
        await browser.close()
    (given.folder / "index.html").write_text(index(given.folder))
    print("\n".join(wrong) or f"{len([*given.folder.glob('*.png')])} pictures in {given.folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
