"""Bursts that people ask for: which are admitted, when they are handed out, and when they expire."""

from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.burst import BURSTS_HEADER, EXPIRES_S, NODE_HEADER, BurstRequest, bursts_of
from gpuwarden.clock import EPOCH, ManualClock
from gpuwarden_collector.http.bursts import (
    HOURLY_MAX,
    AskedBurst,
    BurstDesk,
    admitted,
    handed_out,
)


def asked(at_s: float, gpu: str = "GPU-1", node: str = "n1", number: int = 0) -> AskedBurst:
    request = BurstRequest(f"{number:012x}", gpu, 20.0, 30.0)
    return AskedBurst(node, request, None, EPOCH + timedelta(seconds=at_s))


def at(seconds: float):
    return EPOCH + timedelta(seconds=seconds)


def test_a_gpu_has_one_burst_at_a_time() -> None:
    known, refused = admitted([], asked(0), at(0))
    assert refused is None
    _, refused = admitted(known, asked(5, number=1), at(5))
    assert refused
    assert "is not over" in refused
    # Another GPU may, and this one after the request has expired, or after the burst.
    assert admitted(known, asked(5, "GPU-2"), at(5))[1] is None
    assert admitted(known, asked(EXPIRES_S), at(EXPIRES_S))[1] is None
    known, _ = handed_out(known, "n1", at(10))
    assert admitted(known, asked(39), at(39))[1]
    assert admitted(known, asked(40), at(40))[1] is None


def test_what_the_agent_does_not_have_yet_is_handed_out_first() -> None:
    known = [asked(n, f"GPU-{n}", number=n) for n in range(8)]
    known, _ = handed_out(known, "n1", at(8))
    late = [asked(9, "GPU-8", number=8), asked(9, "GPU-9", number=9)]
    known, given_ = handed_out([*known, *late], "n1", at(10))
    assert [one.gpu_uuid for one in given_[:2]] == ["GPU-8", "GPU-9"]
    assert [one.handed_out_at for one in known] == [at(8)] * 8 + [at(10)] * 2


def test_a_node_has_so_many_an_hour() -> None:
    known: list[AskedBurst] = []
    for number in range(HOURLY_MAX):
        known, refused = admitted(known, asked(number, f"GPU-{number}", number=number), at(number))
        assert refused is None
    _, refused = admitted(known, asked(100, "GPU-x"), at(100))
    assert refused == f"n1 has had {HOURLY_MAX} bursts within an hour"
    assert admitted(known, asked(100, "GPU-x", "n2"), at(100))[1] is None
    assert admitted(known, asked(3700, "GPU-x"), at(3700))[1] is None


@given(
    st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.floats(0, 200)), max_size=20),
    st.floats(0, 300),
)
def test_requests_are_handed_to_their_node_until_they_expire(
    several: list[tuple[str, float]], now_s: float
) -> None:
    known = [asked(at_s, f"GPU-{n}", node, n) for n, (node, at_s) in enumerate(several)]
    kept, given_ = handed_out(known, "n1", at(now_s))
    assert len(kept) == len(known), "none is lost"
    live = {one.request.id for one in known if one.node == "n1" and at(now_s) < one.expires_at}
    assert {one.id for one in given_} <= live
    assert len(given_) == min(8, len(live))
    for one in kept:
        assert (one.handed_out_at is not None) == (one.request in given_)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(EPOCH)


@pytest.fixture
async def desk(clock: ManualClock):
    made = BurstDesk(clock)
    app = web.Application()
    app.add_routes(made.routes())
    async with TestClient(TestServer(app)) as client:
        yield made, client


async def test_a_request_is_in_the_answers_to_its_node_and_to_no_other(desk, clock) -> None:
    made, client = desk
    assert made.header({NODE_HEADER: "n%C3%B6de"}) == {}
    wanted = {"node": "nöde", "gpu_uuid": "GPU-1", "hz": 10, "seconds": 5}
    answer = await client.post("/v1/bursts", json=wanted)
    assert answer.status == 201
    said = await answer.json()
    assert (said["state"], said["node"]) == ("waiting", "nöde")
    assert made.header({NODE_HEADER: "n2"}) == {}
    assert made.header({}) == {}
    # A token of another node does not get it.
    assert made.header({NODE_HEADER: "n%C3%B6de"}, "n2") == {}
    assert (await (await client.get(f"/v1/bursts/{said['id']}")).json())["state"] == "waiting"
    for _ in range(2):  # an answer may be lost
        header = made.header({NODE_HEADER: "n%C3%B6de"}, "nöde")[BURSTS_HEADER]
        assert bursts_of(header) == [BurstRequest(said["id"], "GPU-1", 10.0, 5.0)]
    shown = await (await client.get(f"/v1/bursts/{said['id']}")).json()
    assert shown["state"] == "handed out"
    clock.advance(EXPIRES_S)
    assert made.header({NODE_HEADER: "n%C3%B6de"}) == {}


async def test_a_request_that_no_agent_fetches_expires(desk, clock) -> None:
    _, client = desk
    said = await (await client.post("/v1/bursts", json={"node": "n1", "gpu_uuid": "G"})).json()
    clock.advance(EXPIRES_S)
    assert (await (await client.get(f"/v1/bursts/{said['id']}")).json())["state"] == "expired"
    assert (await client.get("/v1/bursts/nope")).status == 404


async def test_wrong_bodies_are_refused_with_a_sentence(desk) -> None:
    _, client = desk
    for body, status in (
        (b"{", 400),
        (b"[]", 400),
        (b'{"node": "n1", "gpu_uuid": "G", "hz": 99}', 400),
    ):
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/v1/bursts", data=body, headers=headers)
        assert answer.status == status
        assert (await answer.json())["error"]
    assert (await client.post("/v1/bursts", json={"node": "n1", "gpu_uuid": "G"})).status == 201
    assert (await client.post("/v1/bursts", json={"node": "n1", "gpu_uuid": "G"})).status == 409
