"""The server of the pages' benchmark answers whatever is timed, with what was made."""

import json

import aiohttp
import pytest
from bench.dashboards.fill import FleetSize

pytest.importorskip("playwright")

from bench.dashboards.__main__ import ENDPOINTS, PAGES, SLOW, serving

pytestmark = pytest.mark.slow


async def test_every_address_that_is_timed_answers() -> None:
    size = FleetSize(10)
    async with serving(size.nodes) as (url, _), aiohttp.ClientSession(url) as session:
        for path in (*ENDPOINTS, *SLOW, *PAGES):
            async with session.get(path) as answer:
                assert answer.status == 200, (path, await answer.text())
        async with session.get("/v1/fleet") as answer:
            assert f'"gpus": {size.gpus}' in json.dumps(await answer.json())
