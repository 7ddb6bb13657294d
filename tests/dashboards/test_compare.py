"""GPUs of any nodes are beside each other in the order asked for, and what differs is marked."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.test_page import add_gpu, add_node, parsed

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.read.compare import odd_ones, read_compared
from gpuwarden_dashboards.routes import routes


@given(st.lists(st.sampled_from([None, 1, 2, 3]), max_size=8))
def test_unknown_values_are_never_odd_and_equal_values_are_alike(values: list[Any]) -> None:
    odd = odd_ones(values)
    assert all(values[at] is not None for at in odd)
    assert all((a in odd) == (b in odd) for a, x in enumerate(values) for b, y in enumerate(values) if x == y)  # fmt: skip
    assert bool(odd) == (len({value for value in values if value is not None}) > 1)


async def test_gpus_come_as_asked_once_and_unknown_names_are_named(querier) -> None:
    for node in ("n1", "n2", "n3"):
        add_node(querier.db, node)
        add_gpu(querier.db, node)
    querier.db.execute("UPDATE gpus SET vbios_version = CASE node WHEN 'n3' THEN 'b' ELSE 'a' END")
    found = await read_compared(querier, ["n3/0", "GPU-n1-0", "n9/0", "n1/0", "n2/0", "n9/0"])
    assert [gpu["node"] for gpu in found.gpus] == ["n3", "n1", "n2"]
    assert list(found.names) == ["n3/0", "GPU-n1-0", "n2/0"]
    assert list(found.unknown) == ["n9/0"]
    assert list(found.differing) == ["VBIOS"]
    (vbios,) = [row for row in found.settings if row.title == "VBIOS"]
    assert (list(vbios.values), vbios.odd) == (["b", "a", "a"], {0})


@pytest.fixture
async def client(querier):
    for node in ("n1", "a/b"):
        add_node(querier.db, node)
        add_gpu(querier.db, node)
    app = web.Application()
    app.add_routes(routes(querier, SystemClock()))
    async with TestClient(TestServer(app)) as made:
        yield made


async def test_rubbish_is_said_in_a_line(client) -> None:
    nothing = parsed(await (await client.get("/compare")).text()).text
    assert "Up to 8 GPUs of any nodes" in nothing
    html = await (await client.get("/compare", params={"of": "<script>alert(1)</script>"})).text()
    assert "There is no GPU &lt;script&gt;" in html and "<script>alert" not in html
    many = await client.get("/compare?" + "&of=n1/0" * 9)
    assert many.status == 400 and "names 9 GPUs; at most 8" in await many.text()
