"""What the fleet's page reads: every GPU with its state, names, totals, what is wrong, the past, and who has a name."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from tests.dashboards.fleet_rows import FleetSize, alerts, inventory, rollups, sample_sql

from gpuwarden_dashboards.read.fleet import (
    COLOURS,
    LISTED_MAX,
    STATES,
    read_fleet,
    read_map,
    read_matches,
    read_names,
    read_nodes,
)
from gpuwarden_dashboards.read.fleet_past import read_past, read_week
from gpuwarden_dashboards.read.money import MoneyQuestion, range_of, read_money

NOW = datetime.now(UTC)
pytestmark = pytest.mark.usefixtures("fresh_now")


def add_gpu(db, node, gpu, seconds_ago, *, uuid=None, **columns) -> str:
    uuid = uuid or f"GPU-{node}-{gpu}"
    db.execute(
        "INSERT OR IGNORE INTO nodes (node, agent_id, boot_id, simulated, labels) VALUES (?, 'a', 'b', false,"
        " MAP {'rack': 'r1'})",
        [node],
    )
    db.execute(
        "INSERT INTO gpus (gpu_uuid, node, gpu, model, usd_per_hour, temperature_slowdown_celsius, simulated,"
        " last_seen_at) VALUES (?, ?, ?, 'H100', 2.0, 90, false, now()::TIMESTAMP - to_seconds(?))",
        [uuid, node, gpu, seconds_ago],
    )
    names = "".join(f", {name}" for name in columns)
    db.execute(
        f"INSERT INTO gpu_samples (ts, node, gpu, gpu_uuid, simulated{names}) SELECT now()::TIMESTAMP"
        f" - to_seconds(?), ?, ?, ?, false{', ?' * len(columns)}",
        [seconds_ago, node, gpu, uuid, *columns.values()],
    )
    return uuid


def add_alert(db, uuid, *, severity="critical", muted=None, usd=None, fingerprint="f") -> None:
    db.execute(
        "INSERT INTO alerts (fingerprint, rule, severity, consequence, state, node, gpu, gpu_uuid, labels, summary,"
        " remedy, usd_per_hour, began_at, active_at, fired_at, seen_at, muted, simulated) SELECT ?, 'r', ?, 'waste',"
        " 'firing', 'n1', 1, ?, '{}', 's', 'r', ?, now(), now(), now(), now(), ?, true",
        [fingerprint, severity, uuid, usd, muted],
    )


async def test_each_gpu_has_a_state_and_what_is_not_read_is_null(querier) -> None:
    db = querier.db
    add_gpu(db, "n1", 0, 2, util_percent=2.0, temperature_celsius=50)
    hot = add_gpu(db, "n1", 1, 2, util_percent=97.6, clocks_event_reasons=0x40, power_watts=612.4)
    add_gpu(db, "n1", 2, 2)
    add_gpu(db, "n2", 0, 90, util_percent=70.0)
    add_alert(db, hot, usd=1.5)
    add_alert(db, hot, fingerprint="quiet", severity="warning", muted="silenced by a", usd=0.5)
    found = json.loads(await read_map(querier, "util_percent"))
    assert found["values"] == [2, 98, None, None]
    assert [(STATES[state & 15], state >> 4) for state in found["states"]] == [
        ("idle", 0), ("throttled", 3), ("unknown", 0), ("not reporting", 0),
    ]  # fmt: skip
    (silent_ms,) = found["silent_since_ms"]
    assert silent_ms == pytest.approx((NOW - timedelta(seconds=90)).timestamp() * 1000, abs=60_000)

    async def values(colour):
        return json.loads(await read_map(querier, colour))["values"]

    assert await values("power_watts") == [None, 612, None, None]
    assert await values("usd_wasted_per_hour") == [200, 150, 0, None]
    assert await values("temperature_margin_celsius") == [40, None, None, None]
    db.execute(
        "INSERT INTO gpu_detail_samples BY NAME SELECT now()::TIMESTAMP ts, 'n1' AS node, 0 AS gpu, 'GPU-n1-0' AS gpu_uuid,"
        " false AS simulated, 31 AS temperature_margin_celsius, 12 AS sm_active_percent"
    )
    assert await values("temperature_margin_celsius") == [31, None, None, None]
    assert await values("sm_active_percent") == [12, None, None, None]
    assert await values("state") == []

    totals = (await read_fleet(querier, NOW))[1]
    assert (totals["gpus"], totals["reporting"], totals["nodes"]) == (4, 3, 2)
    assert [totals[name] for name in STATES[:-1]] == [1, 0, 1, 1]
    assert totals["alerting"] == 1
    assert totals["usd_wasted_per_hour"] == 3.5
    assert totals["usd_per_hour"] == 8
    assert totals["without_price"] == 0
    db.execute("UPDATE gpus SET usd_per_hour = NULL WHERE node = 'n2'")
    assert (await read_fleet(querier, NOW))[1]["without_price"] == 1


async def test_names_are_in_the_order_of_the_map_until_it_says_another_version(querier) -> None:
    db = querier.db
    for gpu in (1, 0):
        add_gpu(db, "n2", gpu, 1)
    add_gpu(db, "n1", 0, 1)
    add_gpu(db, "n0", 0, 1)
    db.execute("DELETE FROM gpus WHERE node = 'n0'")
    db.execute(
        "INSERT INTO process_samples (ts, node, gpu, gpu_uuid, simulated, pid, username, job) SELECT"
        " now()::TIMESTAMP, 'n2', 1, 'GPU-n2-1', false, 7, 'ali', '70'"
    )
    names = json.loads(await read_names(querier))
    assert names["nodes"] == ["n1", "n2"]
    assert names["hosts"] == ["n0"]  # it has no GPU
    totals = (await read_fleet(querier, NOW))[1]
    assert (totals["nodes"], totals["nodes_with_gpus"]) == (3, 2)
    assert [names["kinds"][kind] for kind in names["kind_of"]] == [
        {"gpus": [0], "models": ["H100"]},
        {"gpus": [0, 1], "models": ["H100", "H100"]},
    ]
    assert names["labels"] == [{"rack": "r1"}]
    assert names["holders"] == [{"username": "ali", "job": "70"}]
    assert names["holder_of"] == [-1, -1, 0]
    assert json.loads(await read_map(querier, "state"))["version"] == names["version"]
    add_gpu(db, "n3", 0, 1)
    assert json.loads(await read_map(querier, "state"))["version"] != names["version"]
    db.execute("UPDATE nodes SET forgotten_at = now() WHERE node = 'n3'")
    assert json.loads(await read_map(querier, "state"))["version"] == names["version"]


async def test_an_empty_fleet_is_empty(querier) -> None:
    for colour in COLOURS:
        found = json.loads(await read_map(querier, colour))
        assert (found["values"], found["states"], found["silent_since_ms"]) == ([], [], [])
    assert json.loads(await read_names(querier))["nodes"] == []
    assert (await read_fleet(querier, NOW))[1]["gpus"] == 0
    assert (await read_past(querier, "", NOW, is_large=False)).groups == {}
    assert (await read_week(querier, NOW))["all"]["hours"] == 0


@pytest.fixture
def filled(querier):
    size = FleetSize(16, minute_hours=7)
    for rows in (inventory, rollups, alerts):
        for table, select in rows(size, NOW):
            querier.db.execute(f"INSERT INTO {table} BY NAME {select}")
    for table in ("gpu_samples", "host_samples", "process_samples"):
        querier.db.execute(
            f"INSERT INTO {table} BY NAME {sample_sql(table, size, 'now()::TIMESTAMP')}"
        )
    return querier, size


async def test_a_fleet_with_a_past_is_counted_right(filled) -> None:
    querier, size = filled
    totals = (await read_fleet(querier, NOW))[1]
    assert (totals["gpus"], totals["reporting"]) == (size.gpus, size.reporting)
    assert (totals["idle"], totals["alerting"]) == (size.idle, size.alerting)
    past = await read_past(querier, "", NOW, is_large=False)
    assert sum(value is not None for value in past.groups[""]["power_watts"]) >= 71
    idle = [value for value in past.groups[""]["idle"] if value is not None]
    assert set(idle) == {13}  # of 128 every tenth
    racks = await read_past(querier, "rack", NOW, is_large=True)
    assert racks.groups.keys() == {"r0", "r1"}
    assert racks.step_s == 3600
    assert sum(value is not None for value in racks.groups["r1"]["util_percent"]) == 48
    week = await read_week(querier, NOW)
    money = await read_money(querier, MoneyQuestion(*range_of("7d", NOW)), NOW)
    assert 100 * size.gpus < week["all"]["hours"] == pytest.approx(money.total.gpu_hours)
    assert week["all"]["usd"] == pytest.approx(money.total.usd)
    assert week["all"]["wasted_usd"] == pytest.approx(money.total.wasted_usd)
    assert [one["name"] for one in week["top"]["team"]] == ["vision"]
    assert all(one["most"] == "idle_held" for one in week["top"]["username"])
    nodes = await read_nodes(querier, ["gpu-00003", "gpu-00001", "none", "gpu-00007"])
    assert [one["node"] for one in nodes] == ["gpu-00003", "gpu-00001", "gpu-00007"]
    assert nodes[1]["cpu_util_percent"] == 11
    assert nodes[2]["power_watts"] is None  # it does not report


async def test_search_finds_nodes_gpus_users_and_jobs_by_name(filled) -> None:
    querier, _ = filled

    async def found(words):
        return [(one["kind"], one["name"]) for one in await read_matches(querier, words)]

    assert await found("GPU-00012") == [("node", "gpu-00012")]
    (uuid,) = querier.db.execute(
        "SELECT gpu_uuid FROM gpus WHERE node = 'gpu-00002' AND gpu = 3"
    ).fetchone()
    assert await found(uuid[:12]) == [("gpu", uuid)]
    assert (await found("user1"))[0] == ("username", "user1")
    assert await found("70002") == [("job", "70002")]
    assert await found("100%") == []
    assert await found("  ") == []


async def test_what_is_wrong_comes_by_consequence_and_only_once(querier) -> None:
    db = querier.db
    for name, severity, consequence, usd in (
        ("idle", "warning", "waste", 90),
        ("sick", "warning", "failing_hardware", None),
        ("slow", "critical", "slow_work", 1),
    ):
        db.execute(
            "INSERT INTO incidents (id, state, root, rule, severity, consequence, summary, remedy, place, labels,"
            " nodes, roots, alerts, firing, usd_per_hour, simulated, began_at, opened_at)"
            " SELECT $1, 'open', 'x', 'r', $2, $3, $1, 'r', 'n1', '{}', 1, 1, 3, 3, $4, true, now(), now()",
            [name, severity, consequence, usd],
        )
    for number in range(LISTED_MAX + 3):
        add_alert(db, "GPU-1", fingerprint=f"f{number}")
    db.execute(
        "INSERT INTO incident_alerts SELECT 'idle', fingerprint, active_at, rule, labels, NULL, active_at, NULL"
        " FROM alerts WHERE fingerprint = 'f0'"
    )
    found, _ = await read_fleet(querier, NOW)
    assert [one["id"] for one in found.incidents] == ["slow", "sick", "idle"]
    assert found.incidents[0]["follows"] == 2
    assert len(found.alerts) == LISTED_MAX
    assert found.alerts[0]["total"] == LISTED_MAX + 2
    assert "f0" not in {one["fingerprint"] for one in found.alerts}
    assert [found.incidents[0][name] for name in ("total", "loud", "critical")] == [3, 3, 1]
    db.execute("UPDATE incidents SET muted = 'silenced by a' WHERE id = 'slow'")
    found, _ = await read_fleet(querier, NOW)
    assert [one["id"] for one in found.incidents] == ["sick", "idle", "slow"]
    assert [found.incidents[0][name] for name in ("total", "loud", "critical")] == [3, 2, 0]
