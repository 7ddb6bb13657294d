"""The page of collector and agents: the worst first, narrowed by the server, and no zero for what is unknown."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_dashboards.assets import load_assets
from gpuwarden_dashboards.pages.collector import CollectorPage
from gpuwarden_dashboards.read.collector import read_collector
from gpuwarden_dashboards.templates import Templates

NOW = datetime.now(UTC)
pytestmark = pytest.mark.usefixtures("fresh_now")


@pytest.fixture
def agents(querier):
    """A good agent, and one of each kind of trouble."""
    db, at = querier.db, NOW.replace(tzinfo=None)
    for node, version, seen_s, lag_s, taken in (
        ("good", "2.0", 1, 2, 60),
        ("silent", "2.0", 300, None, None),
        ("behind", "2.0", 1, 50, 60),
        ("gaps", "2.0", 1, 2, 30),
        ("lost", "1.0", 1, 2, 60),
    ):
        db.execute(
            "INSERT INTO nodes (node, agent_id, boot_id, agent_version, labels, simulated, last_seen_at)"
            " VALUES (?, 'a', 'b', ?, MAP {'rack': 'r7'}, false, ?)",
            [node, version, at - timedelta(seconds=seen_s)],
        )
        if lag_s is not None:
            db.execute(
                "INSERT INTO host_samples (ts, node, simulated) VALUES (?, ?, false)",
                [at - timedelta(seconds=lag_s), node],
            )
        if taken is not None:
            db.execute(
                "INSERT INTO coverage (ts, node, simulated, probe, table_name, expected, taken, missed,"
                " skipped, late, failed) VALUES (?, ?, false, 'host', 'host_samples', 60, ?, 0, 0, ?, 0)",
                [at - timedelta(minutes=2), node, taken, 60 - taken],
            )
    db.execute(
        "INSERT INTO events (ts, node, kind, severity, message, simulated) VALUES"
        " (?, 'lost', 'batches_dropped', 'critical', 'The spool is <full>.', false)",
        [at - timedelta(hours=2)],
    )
    return querier


async def test_agents_come_worst_first_and_narrowed(agents) -> None:
    found = await read_collector(agents, NOW)
    assert [one.node for one in found.agents] == ["lost", "silent", "behind", "gaps", "good"]
    named = {one.node: one for one in found.agents}
    assert (named["silent"].lag_s, named["silent"].coverage_percent) == (None, None)
    assert (named["gaps"].coverage_percent, named["gaps"].missing) == (50.0, {"late": 30})
    assert found.versions == [("2.0", 4), ("1.0", 1)]
    for state in ("silent", "behind", "gaps"):
        assert [a.node for a in (await read_collector(agents, NOW, state)).agents] == [state]
    assert (await read_collector(agents, NOW, "losses")).counts["losses"] == 1
    assert (await read_collector(agents, NOW, words=["r7", "goo"])).found == 1
    html = CollectorPage(Templates(load_assets()), agents, SystemClock()).render(found, "all", '"x')
    assert "The spool is &lt;full&gt;." in html
    assert 'value="&#34;x"' in html
