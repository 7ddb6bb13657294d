"""Pages, assets and data over real HTTP."""

import asyncio
import json
import re

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


async def test_a_store_that_cannot_be_read_is_said_in_one_line(url, querier) -> None:
    querier.db.execute("DROP VIEW gpus_now; DROP VIEW waste")
    _, text = await get(url, "/money", 503)
    assert "the data cannot be read now" in text
    for _ in range(2):  # of the same moment
        _, text = await get(url, "/v1/fleet", 503)
        assert "gpus_now" in json.loads(text)["error"]


async def get(url, path, status=200):
    async with ClientSession() as session:
        where = f"http://127.0.0.1:{url[1]}{path}"
        async with session.get(where, allow_redirects=False) as answer:
            assert answer.status == status, await answer.text()
            return answer, await answer.text()


async def test_assets_are_kept_for_ever_under_their_hash(url) -> None:
    _, html = await get(url, "/")
    named = re.findall(r'"(/assets/[^"]+)"', html)
    assert {"style.css", "theme.js", "fleet.js"} < {path.rpartition("/")[2] for path in named}
    for path in named:
        answer, _ = await get(url, path)
        assert "immutable" in answer.headers["Cache-Control"]
    version = named[0].split("/")[2]
    script, _ = await get(url, f"/assets/{version}/chart.js")  # imported by others, relatively
    assert script.content_type == "text/javascript"
    await get(url, "/assets/0000000000000000/style.css", 404)
    await get(url, f"/assets/{version}/..%2froutes.py", 404)


async def test_a_gpu_is_found_by_its_node_and_index(url, querier) -> None:
    querier.db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated) VALUES ('n 1', 'a', 'b', false)"
    )
    querier.db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, simulated) VALUES ('GPU-7', 'n 1', 3, false)"
    )
    answer, _ = await get(url, "/nodes/n%201?gpu=3", 303)
    assert answer.headers["Location"] == "/gpus/GPU-7"
    _, html = await get(url, "/gpus/GPU-7")
    groups = json.loads(re.search(r'id="groups">(.*?)</script>', html)[1])
    assert groups[0]["title"] == "Utilization"
    _, html = await get(url, "/nodes/n%201?gpu=9")  # no such GPU: the node
    assert 'data-node="n 1"' in html
    answer, html = await get(url, "/nodes/%3Cscript%3E", 404)
    assert answer.content_type == "text/html" and "there is no node &lt;script&gt;" in html
    await get(url, "/gpus/none", 404)


async def test_what_cannot_be_drawn_is_said_in_one_line(url) -> None:
    for path, reason in (
        ("/v1/series?metrics=util_percent", "either node or gpu_uuid"),
        ("/v1/series?node=n&gpu_uuid=g&metrics=util_percent", "either node or gpu_uuid"),
        ("/v1/series?node=n", "1 to 40 metrics"),
        ("/v1/series?node=n&metrics=nothing", "there is no metric nothing"),
        ("/v1/live?node=n", "1 to 24 metrics"),
        ("/v1/live?node=n&metrics=nothing", "there is no metric nothing"),
        ("/v1/live?node=n&metrics=util_percent&seconds=331", "seconds must be 1 to 330"),
        ("/v1/live?metrics=util_percent", "either node or gpu_uuid"),
        ("/v1/series?node=n&metrics=util_percent&begin=5&end=5", "the end must be after"),
        ("/v1/series?node=n&metrics=util_percent&begin=x", "begin must be a whole number"),
        ("/v1/series?node=n&metrics=util_percent&end=99999999999999999999", "end must be a whole"),
        ("/v1/money.csv?end=0001-01-01", "end must be a time from 1970 to 9998"),
        ("/v1/usual?gpu_uuid=g&metrics=util_percent&end=253402300799000", "end must be a whole"),
        ("/v1/timeline?node=n&columns=0", "columns must be 1 to 4000"),
        ("/v1/map?colour=red", "colour must be one of util_percent"),
        ("/v1/map/nodes", "give node 1 to 100 times"),
        ("/v1/fleet/past?by=%22", "a label of nodes"),
    ):
        _, text = await get(url, path, 400)
        assert reason in json.loads(text)["error"]
    # A time at the ends of time, on pages.
    for path in (
        "/incidents?at=0001-01-01T00:00", "/alerts?at=9999-12-31T23:59", "/money?end=0001-01-01",
        "/money/report?end=0001-01-01", "/users/x?end=0001-01-01", "/money?begin=9999-12-31",
    ):  # fmt: skip
        _, html = await get(url, path, 400)
        assert "must be a time from 1970 to 9998" in html


async def test_pages_that_are_open_share_an_answer_which_is_not_sent_twice(url, querier) -> None:
    asked = []
    ask = querier.query

    async def counted(sql, params=None, **limits):
        asked.append(sql)
        return await ask(sql, params, **limits)

    querier.query = counted
    async with ClientSession() as session:
        where = f"http://127.0.0.1:{url[1]}/v1/map/names"
        answers = await asyncio.gather(*(session.get(where) for _ in range(10)))
        assert len(asked) == 3
        (tag,) = {answer.headers["ETag"] for answer in answers}
        assert {answer.headers["Content-Encoding"] for answer in answers} == {"gzip"}
        assert (await answers[0].json())["nodes"] == []
        async with session.get(where, headers={"If-None-Match": tag}) as again:
            assert again.status == 304
            assert await again.read() == b""
        async with session.get(where, headers={"Accept-Encoding": "identity"}) as plain:
            assert "Content-Encoding" not in plain.headers
            assert (await plain.json())["nodes"] == []


async def test_the_schema_has_every_table_and_view_with_meanings(url) -> None:
    _, html = await get(url, "/sql")
    path = re.search(r'data-path="(/v1/schema[^"]+)"', html)[1]
    answer, text = await get(url, path)
    assert "immutable" in answer.headers["Cache-Control"]  # its address has its hash
    tables = {table["name"]: table for table in json.loads(text)["tables"]}
    assert {"gpus_now", "waste", "gpu_samples", "collector_samples"} <= tables.keys()
    lacking = [
        (name, column["name"])
        for name, table in tables.items()
        for column in table["columns"]
        if not column["meaning"] or not column["type"]
    ]
    assert lacking == []
    assert all(table["columns"] and table["meaning"] for table in tables.values())


async def test_a_link_from_elsewhere_comes_back_with_the_cookie_and_only_to_this_collector(
    url,
) -> None:
    where, cookie = f"http://127.0.0.1:{url[1]}/login", {"Cookie": "gpuwarden=x"}
    async with ClientSession() as session:
        for query, headers, leads_to, comes_again in (
            ("next=/money", {}, None, True),
            ("next=/money&again=1", {}, None, False),
            ("next=/money%3Fby%3Djob&again=1", cookie, "/money?by=job", False),
            ("next=/money&again=1&why=unknown", cookie, None, False),  # no loop
            ("next=//evil.example&again=1", cookie, None, False),
            ("next=/%09/evil.example&again=1", cookie, None, False),
        ):
            asked = session.get(f"{where}?{query}", headers=headers, allow_redirects=False)
            async with asked as answer:
                assert answer.headers.get("Location") == leads_to, query
                assert ("login.js" in await answer.text()) == comes_again, query
