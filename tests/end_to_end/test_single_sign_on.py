"""A person signs in at a real provider, in a real browser, and sees the pages of their team until they log out."""

import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp.test_utils import unused_port
from tests.collector.made_up_store import LIMITS
from tests.collector.two_teams import OTHERS, OWN, SECRET, fill

from gpuwarden.clock import SystemClock
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector.auth.token_file import NAME, load
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database

ACCESS = """
[teams.vision]
nodes = ["v*"]
[groups.vision-people]
role = "viewer"
team = "vision"
[oidc]
issuer = "http://localhost:{port}"
client_id = "gpuwarden"
client_secret_file = "{folder}/secret"
redirect_url = "http://127.0.0.1:{own_port}/login/callback"
scopes = ["openid", "profile"]
"""
CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.async_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


def _fill(data: Path) -> None:
    data.mkdir()
    database = Database.open(data, LIMITS)
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=5)
    fill(database, OWN, "own", at)
    fill(database, OTHERS, SECRET, at)
    database.close()


def _settings(data: Path, access: Path, port: int) -> CollectorSettings:
    return CollectorSettings(port=port, data_dir=data, require_tokens=True, access_file=access)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
async def test_a_person_signs_in_sees_their_team_and_logs_out(tmp_path: Path) -> None:
    from oidc_provider_mock import User, run_server_in_thread

    data, access = tmp_path / "data", tmp_path / "access.toml"
    _fill(data)
    people = [
        User(sub="s1", claims={"preferred_username": "ada", "groups": ["vision-people"]}),
        User(sub="s2", claims={"preferred_username": "eve", "groups": []}),
    ]
    with run_server_in_thread(user_claims=people) as server:
        (tmp_path / "secret").write_text("any")
        ports = {"port": server.server_port, "own_port": unused_port()}
        access.write_text(ACCESS.format(folder=tmp_path, **ports))
        async with (
            collecting(_settings(data, access, ports["own_port"]), SystemClock()) as collector,
            playwright.async_playwright() as driver,
        ):
            browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = await browser.new_page()
            page.set_default_timeout(120_000)
            expect = playwright.expect
            expect.set_options(timeout=120_000)

            async def signs_in(sub: str) -> None:
                await page.goto(f"{collector.url}/incidents")
                # Without a cookie the page loads itself once more.
                await expect(page).to_have_url(re.compile("again=1"))
                await page.get_by_role("link", name="Sign in").click()
                await page.locator("input[name=sub]").fill(sub)
                await page.get_by_role(
                    "button", name=re.compile("Authorize", re.IGNORECASE)
                ).first.click()

            await signs_in("s2")
            await expect(page.get_by_role("alert")).to_contain_text("none of your groups")
            await signs_in("s1")
            await expect(page).to_have_url(f"{collector.url}/incidents")
            wrong: list[str] = []
            page.on(
                "response",
                lambda r: wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None,
            )
            page.on("pageerror", lambda error: wrong.append(str(error)))
            await page.goto(f"{collector.url}/incidents")
            links = await page.locator("nav a").evaluate_all(
                "(all) => all.map((one) => one.pathname)"
            )
            assert {"/", "/money"} < set(links) and not {"/rules", "/collector"} & set(links)
            await expect(page.locator("header")).to_contain_text("ada (read, team vision)")
            for path in (
                *links,
                "/nodes/v1",
                "/gpus/GPU-v1",
                "/jobs/11",
                "/users/vera",
                "/alerts",
                "/sql?q=FROM+nodes",
            ):
                await page.goto(f"{collector.url}{path}", wait_until="networkidle")
                assert SECRET not in await page.content(), path
            assert wrong == []
            [entry] = load(data / NAME).entries
            assert (entry.comment, entry.team) == ("ada", "vision")
            await page.goto(f"{collector.url}/login")
            await page.get_by_role("button", name="log out", exact=True).click()
            await expect(page).to_have_url(re.compile("again=1"))
            await page.goto(f"{collector.url}/nodes/v1")
            await expect(page).to_have_url(re.compile("/login"))
            assert load(data / NAME).entries == []
            await browser.close()
