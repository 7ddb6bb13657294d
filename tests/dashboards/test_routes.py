"""Pages, assets and data over real HTTP."""

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


async def get(url, path, status=200):
    async with ClientSession() as session:
        where = f"http://127.0.0.1:{url[1]}{path}"
        async with session.get(where, allow_redirects=False) as answer:
            assert answer.status == status, await answer.text()
            return answer, await answer.text()


async def test_assets_are_kept_for_ever_under_their_hash(url) -> None:
    _, html = await get(url, "/")
    named = re.findall(r'"(/assets/[^"]+)"', html)
    assert {path.rpartition("/")[2] for path in named} == {"style.css", "theme.js", "fleet.js"}
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
    await get(url, "/nodes/none", 404)
    await get(url, "/gpus/none", 404)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/series?metrics=util_percent", "either node or gpu_uuid"),
        ("/v1/series?node=n&gpu_uuid=g&metrics=util_percent", "either node or gpu_uuid"),
        ("/v1/series?node=n", "1 to 40 metrics"),
        ("/v1/series?node=n&metrics=nothing", "there is no metric nothing"),
        ("/v1/series?node=n&metrics=util_percent&begin=5&end=5", "the end must be after"),
        ("/v1/series?node=n&metrics=util_percent&begin=x", "begin must be a whole number"),
        ("/v1/series?node=n&metrics=util_percent&end=99999999999999999999", "end must be a whole"),
        ("/v1/timeline?node=n&columns=0", "columns must be 1 to 4000"),
        ("/v1/map?colour=red", "colour must be one of util_percent"),
    ],
)
async def test_what_cannot_be_drawn_is_said_in_one_line(url, path, reason) -> None:
    _, text = await get(url, path, 400)
    assert reason in json.loads(text)["error"]


async def test_the_map_has_every_gpu_and_its_state(url, querier) -> None:
    db = querier.db
    for node, gpu, seconds_ago in (("n1", 0, 2), ("n1", 1, 2), ("n2", 0, 90)):
        uuid = f"GPU-{node}-{gpu}"
        db.execute(
            "INSERT INTO gpus (gpu_uuid, node, gpu, model, simulated) VALUES (?, ?, ?, 'H100', true)",
            [uuid, node, gpu],
        )
        db.execute(
            "INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated, util_percent) VALUES"
            " (now()::TIMESTAMP - to_seconds(?), ?, ?, ?, true, 40)",
            [seconds_ago, node, gpu, uuid],
        )
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels, summary,"
        " remedy, began_at, active_at, seen_at, simulated) SELECT 'f', 'r', 'critical', 'waste', 'firing', 'n1', 1,"
        " 'GPU-n1-1', '{}', 's', 'r', now(), now(), now(), true"
    )
    _, text = await get(url, "/v1/map")
    first, second = json.loads(text)["nodes"]
    assert (first["name"], first["gpus"], first["values"], first["states"]) == (
        "n1", [0, 1], [40.0, 40.0], [0, 3],
    )  # fmt: skip
    assert (second["values"], second["states"]) == ([None], [1])
    assert "H100" in second["text"]


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
