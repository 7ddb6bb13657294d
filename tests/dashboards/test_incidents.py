"""Pages of incidents, alerts, silences and rules over real HTTP and a real DuckDB."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpuwarden.clock import SystemClock
from gpuwarden.judgement import Judgement, JudgementState
from gpuwarden_dashboards.routes import routes

EVIL = "<script>alert(1)</script>"
NOW = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
pytestmark = pytest.mark.usefixtures("fresh_now")


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def insert(db, table: str, **row) -> None:
    names, marks = ", ".join(row), ", ".join("?" for _ in row)
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def alert(db, fingerprint: str, incident: str | None, **more) -> None:
    """A firing alert of node n1 GPU 3 that began 50 min ago, as part of an incident."""
    cause, ended = more.pop("cause", None), more.get("resolved_at")
    row = {
        "fingerprint": fingerprint, "rule": "gpu_hot", "severity": "critical", "consequence": "slow_work",
        "state": "resolved" if ended else "firing", "node": "n1", "gpu": 3, "gpu_uuid": "GPU-3",
        "labels": "{node=n1, gpu=3, gpu_uuid=GPU-3, job=7}", "summary": f"{EVIL} is hot",
        "remedy": "Run `nvidia-smi`.", "usd_per_hour": 3.0, "began_at": ago(50), "active_at": ago(50),
        "fired_at": ago(45), "seen_at": ago(0), "simulated": False, "owner": "ann", **more,
    }  # fmt: skip
    insert(db, "alerts", **row)
    if incident:
        insert(
            db, "incident_alerts", incident=incident, fingerprint=fingerprint, active_at=row["active_at"],
            rule=row["rule"], labels=row["labels"], cause=cause, joined_at=ago(45), ended_at=ended,
        )  # fmt: skip


def incident(db, key: str, root: str, **more) -> None:
    row = {
        "id": key, "state": "open", "root": root, "rule": "gpu_hot", "severity": "critical",
        "consequence": "slow_work", "summary": f"{key}: {EVIL} is hot", "remedy": "Cool it.", "place": "n1 GPU 3",
        "labels": "{node=n1, gpu=3, gpu_uuid=GPU-3}", "nodes": 1, "roots": 1, "alerts": 1, "firing": 1,
        "usd_per_hour": 3.0, "simulated": False, "began_at": ago(50), "opened_at": ago(44), **more,
    }  # fmt: skip
    insert(db, "incidents", **row)


@pytest.fixture
async def client(querier):
    db = querier.db
    incident(db, "lost", "f0", consequence="lost_work", alerts=2, firing=2)
    alert(db, "f0", "lost", consequence="lost_work")
    alert(db, "f1", "lost", rule="gpu_slow", cause="f0", severity="warning", summary="slow")
    incident(db, "acked", "f2", muted="acknowledged until 18:00 UTC by bo: seen")
    alert(db, "f2", "acked", node="n2", labels="{node=n2}", muted="acknowledged until ...")
    insert(
        db, "silences", changes=0, id="s1", matchers="[]", fingerprint="f2", author="bo", comment=EVIL,
        starts_at=ago(30), ends_at=ago(-60),
    )  # fmt: skip
    incident(db, "over", "f3", state="resolved", resolved_at=ago(5), firing=0)
    alert(db, "f3", "over", resolved_at=ago(5), resolved_reason="the node was removed")
    insert(
        db, "silences", changes=0, id="s2", matchers='["node=n1", "rule=~gpu_h.*"]', author="cy", comment="move",
        starts_at=ago(20), ends_at=ago(10),
    )  # fmt: skip
    incident(db, "gone", "f4", state="merged", merged_into="lost", resolved_at=ago(40))
    alert(db, "f5", None, state="pending", fired_at=None, rule="gpu_soon")
    app = web.Application()
    app.add_routes(routes(querier, SystemClock()))
    async with TestClient(TestServer(app)) as client:
        yield client


async def get(client, path: str, status: int = 200) -> str:
    answer = await client.get(path)
    text = await answer.text()
    assert answer.status == status, text
    assert "<script>alert" not in text
    return text


async def test_what_policies_did_is_in_the_timeline_of_the_incident_and_of_the_alert(
    client, querier
) -> None:
    ((active_at,),) = querier.db.execute("SELECT active_at FROM alerts WHERE fingerprint = 'f0'").fetchall()  # fmt: skip
    case = {
        "id": "c1", "policy": "cull", "rule": "gpu_hot", "act": "cancel_job", "state": "with_others", "fingerprint": "f0",
        "summary": "", "note": f"with {EVIL}", "began_at": ago(50), "active_at": active_at, "act_at": ago(12), "ended_at": ago(11),
    }  # fmt: skip
    insert(querier.db, "policy_cases", **case)
    insert(querier.db, "policy_cases", **{**case, "id": "c2", "active_at": ago(900), "note": "of an earlier episode"})  # fmt: skip
    for path in ("/incidents/lost", "/alerts/f0"):
        page = await get(client, path)
        assert "policy cull asked for cancel_job" in page
        assert "policy cull, cancel_job: with others: with " in page
        assert "of an earlier episode" not in page


async def test_incidents_are_listed_by_stage_filtered_and_ordered_by_consequence(
    client, querier
) -> None:
    incident(querier.db, "idle", "f9", consequence="waste", severity="warning")
    page = await get(client, "/incidents")
    assert page.index('id="item-lost"') < page.index('id="item-idle"')
    assert 'id="item-acked"' not in page
    assert "1 follow" in page
    assert " so far, $3.00/h" in page
    assert "bo: seen" in await get(client, "/incidents?state=acknowledged")
    over = await get(client, "/incidents?state=ended&since=1h")
    assert 'id="item-over"' in over
    assert "item-gone" not in over
    assert "item-over" not in await get(client, "/incidents?state=ended&since=1h&node=x*")
    for chosen in ("node=n?&gpu=3", "user=ann&job=7", "rule=gpu_slow", "severity=critical"):
        found = await get(client, f"/incidents?{chosen}")
        assert ('item-lost"' in found, 'item-idle"' in found) == (True, False), chosen
    assert "matches the filter" in await get(client, "/incidents?node=%3Cscript%3Ealert")
    assert "state must be one of" in await get(client, "/incidents?state=no", 400)


async def test_lists_are_narrowed_by_text_team_and_time_and_each_filter_can_be_taken_away(
    client, querier
) -> None:
    querier.db.execute(
        "INSERT INTO nodes (node, agent_id, boot_id, simulated, labels)"
        " VALUES ('n2', 'a', 'b', true, MAP {'team': 'vision'})"
    )

    async def found(path: str) -> set[str]:
        return set(re.findall(r'id="item-(\w+)"', await get(client, path)))

    assert await found("/incidents?q=HOT+gpu-3") == {"lost"}  # words in any order, also of labels
    assert await found("/incidents?q=slow") == {"lost"}  # the text of an alert that follows
    assert await found("/incidents?q=cold") == set()
    for name in ("gpu_uuid", "fingerprint", '"node"', "{"):  # names of labels are not searched
        assert await found(f"/incidents?q={name}") == set()
    assert await found("/incidents?q=n2&state=all") == {"acked"}
    assert await found("/incidents?team=vision&state=all") == {"acked"}
    assert await found("/incidents?team=audio&state=all") == set()
    assert await found("/incidents?state=all") == {"lost", "acked", "over"}
    assert await found(f"/incidents?at={ago(20):%Y-%m-%dT%H:%M}") == {"lost", "acked", "over"}
    assert await found(f"/incidents?at={ago(20):%Y-%m-%dT%H:%M}&state=ended") == {"over"}
    assert await found(f"/incidents?at={ago(90):%Y-%m-%dT%H:%M}") == set()
    assert "f1" in "".join(re.findall(r'id="item-(\w+)"', await get(client, "/alerts?q=slow")))
    page = await get(client, "/incidents?q=hot&node=n*&severity=critical&since=30d")
    for without in (
        "node=n%2A&amp;severity=critical",
        "severity=critical&amp;q=hot",
        "node=n%2A&amp;q=hot",
    ):
        assert f'href="/incidents?{without}&amp;since=30d"' in page
    assert 'href="/incidents?state=ended&amp;node=n%2A' in page
    await get(client, "/incidents?at=yesterday", 400)


async def test_lists_say_that_rules_have_not_run_instead_of_that_nothing_fires(querier) -> None:
    app = web.Application()
    found = Judgement(JudgementState.NOT_YET, datetime(2026, 1, 1, 12, tzinfo=UTC), 60, 3)
    app.add_routes(routes(querier, SystemClock(), lambda: found))
    async with TestClient(TestServer(app)) as client:
        for path in ("/incidents", "/alerts"):
            page = await get(client, path)
            assert "3 of 60 rules have run" in page
            assert "Nothing is" not in page
            over = await get(client, f"{path}?state=ended")
            assert "Nothing ended" in over
            assert "3 of 60 rules" not in over
        fleet = await (await client.get("/v1/fleet")).json()
        assert fleet["unjudged"] == found.sentence
        found = Judgement(JudgementState.YES, None, 60, 60)
        page = await get(client, "/incidents")
        assert "Nothing is open" in page
        assert "rules have run" not in page


async def test_an_incident_says_what_follows_what_happened_and_what_can_be_done(client) -> None:
    page = await get(client, "/incidents/lost")
    assert "follows from gpu_hot" in page
    assert 'data-fingerprints="f0"' in page  # the root alone is acknowledged
    assert "rule=gpu_hot" in page
    assert 'href="/nodes/n1?gpu=3"' in page
    assert "Merged into it" in page
    when = [page.index(text) for text in (
        "the silence by cy ended", "silenced (node=n1, rule=~gpu_h.*) by cy", "the incident was opened",
        "the condition began",
    )]  # fmt: skip
    assert when == sorted(when)
    acked = await get(client, "/incidents/acked")
    assert 'data-silence="s1"' in acked
    assert "acknowledged by bo until" in acked
    over = await get(client, "/incidents/over")
    assert "resolved: the node was removed" in over
    assert 'id="ack"' not in over
    assert "continues in" in await get(client, "/incidents/gone")
    await get(client, "/incidents/none", 404)


async def test_alerts_have_lists_and_pages_of_their_own(client, querier) -> None:
    page = await get(client, "/alerts")
    assert "item-f0" in page
    assert "item-f2" not in page
    assert "item-f5" in await get(client, "/alerts?state=pending")
    assert "the node was removed" in await get(client, "/alerts?state=ended&rule=gpu_*")
    again = ago(5)
    alert(querier.db, "f3", None, active_at=again, began_at=again, fired_at=again)
    one = await get(client, "/alerts/f3")
    assert "2 episodes" in one
    assert "Why it fires" in one
    before = int(ago(50).replace(tzinfo=UTC).timestamp() * 1000)
    assert "Why it fired" in await get(client, f"/alerts/f3?active_at={before}")
    await get(client, "/alerts/none", 404)
