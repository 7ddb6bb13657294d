"""The page over real HTTP."""

import pytest
from aiohttp import ClientSession, web

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.routes import routes


@pytest.fixture
async def url(querier):
    app = web.Application()
    app.add_routes(routes(querier, SystemClock()))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield site._server.sockets[0].getsockname()
    await runner.cleanup()


async def test_the_page_is_html_with_a_policy(url) -> None:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{url[1]}/") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "No agent has reported yet." in await answer.text()


async def test_a_store_that_cannot_be_read_is_said_in_one_line(url, querier) -> None:
    querier.db.execute("DROP VIEW gpus_now")
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{url[1]}/") as answer:
        assert answer.status == 503
        assert "the fleet cannot be read now" in await answer.text()
