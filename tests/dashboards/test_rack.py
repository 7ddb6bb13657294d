"""The page of a rack has a row for each tray with its GPUs, links and alerts; what is unknown stays unknown."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.dashboards.test_incidents import insert

from gpuwarden_dashboards.read.rack import fabric_of, read_rack

CHASSIS = "1820224190105"
NOW = datetime.now(UTC)


@pytest.fixture
def rack(querier):
    """Two trays of two GPUs each; the second tray's node is silent, and another rack is beside it."""
    db = querier.db
    now = NOW.replace(tzinfo=None)
    for number, (node, chassis) in enumerate([("n1", CHASSIS), ("n2", CHASSIS), ("n9", "18other")]):
        seen = now - timedelta(minutes=10) if node == "n2" else now
        insert(
            db, "nodes", node=node, agent_id="a", boot_id="b", simulated=False, last_seen_at=seen,
            labels=f"{{rack={chassis}}}",
        )  # fmt: skip
        for gpu in range(2):
            uuid = f"GPU-{node}-{gpu}"
            insert(
                db, "gpus", gpu_uuid=uuid, node=node, gpu=gpu, simulated=False, model="NVIDIA GB200", tray=number,
                slot=number + 1, chassis_serial=chassis, fabric_cluster_uuid=f"domain of {chassis}", fabric_clique=7,
                memory_numa_node=2 + gpu, usd_per_hour=5.0,
            )  # fmt: skip
            if node == "n2":
                continue
            insert(
                db, "gpu_samples", ts=now, node=node, gpu=gpu, gpu_uuid=uuid, simulated=False, util_percent=50.0,
                power_watts=700.0 + gpu, temperature_celsius=60.0 + gpu,
            )  # fmt: skip
            insert(
                db, "gpu_health_samples", ts=now, node=node, gpu=gpu, gpu_uuid=uuid, simulated=False,
                fabric_state="completed", fabric_status="success",
                fabric_health="route_unhealthy" if gpu else "healthy",
            )  # fmt: skip
            for seconds, errors in ((40, 3), (20, 10)):
                insert(
                    db, "link_samples", ts=now - timedelta(seconds=seconds), node=node, gpu=gpu, gpu_uuid=uuid,
                    simulated=False, link_type="nvlink", link=0, active=not gpu, rx_errors_total=errors,
                )  # fmt: skip
    labels = {"labels": f"{{node=n1, rack={CHASSIS}}}", "simulated": False}
    alert = {"fingerprint": "f1", "active_at": now, "rule": "fabric_unhealthy"}
    texts = {"severity": "critical", "consequence": "lost_work", "summary": "The fabric is not healthy.", "remedy": "Drain."}  # fmt: skip
    insert(
        db,
        "alerts",
        **alert,
        **texts,
        **labels,
        state="firing",
        node="n1",
        began_at=now,
        fired_at=now,
        seen_at=now,
    )
    insert(db, "incidents", id="i1", state="open", root="f1", rule="fabric_unhealthy", **texts, **labels, place=f"rack {CHASSIS}", nodes=1, roots=1, alerts=1, firing=1, began_at=now, opened_at=now)  # fmt: skip
    insert(db, "incident_alerts", incident="i1", **alert, labels=labels["labels"], joined_at=now)
    insert(db, "events", ts=now, node="n1", kind="sxid", severity="critical", message="SXid 20034 at switch 0.", simulated=False)  # fmt: skip
    return querier


@pytest.mark.usefixtures("fresh_now")
async def test_a_rack_is_read_by_tray(rack) -> None:
    found = await read_rack(rack, CHASSIS, NOW)
    assert found is not None
    first, second = found.trays
    assert [(tray.node, tray.tray, tray.slot) for tray in found.trays] == [
        ("n1", 0, 1),
        ("n2", 1, 2),
    ]
    assert (first.reporting, first.power_watts, first.temperature_celsius) == (2, 1401.0, 61.0)
    assert (first.links_up, first.links, first.link_errors, first.firing) == (1, 2, 14, 1)
    assert first.fabric == "route unhealthy"
    assert second.silent_since is not None
    unknown = (
        second.power_watts,
        second.temperature_celsius,
        second.links,
        second.link_errors,
        second.fabric,
    )
    assert unknown == (None,) * 5
    assert (found.power_watts, found.links, found.link_errors) == (1401.0, (1, 2), 14)
    assert [one["id"] for one in found.incidents] == ["i1"]
    assert [one["kind"] for one in found.events] == ["sxid"]
    assert await read_rack(rack, "domain of 18other", NOW) is not None
    assert await read_rack(rack, "no such", NOW) is None
    view = rack.db.execute(
        "SELECT rack, trays, nodes, gpus, gpus_reporting, power_watts FROM racks ORDER BY rack"
    )
    assert view.fetchall() == [(CHASSIS, 2, 2, 4, 2, 1401.0), ("18other", 1, 1, 2, 2, 1401.0)]


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], None),
        ([(None, None, None)], None),
        ([("completed", "success", "healthy"), (None, None, None)], "healthy"),
        (
            [("completed", "success", "healthy"), ("in_progress", None, None)],
            "registration in progress",
        ),
        ([("completed", "gpu_is_lost", None)], "registration ended with gpu_is_lost"),
        (
            [("completed", "success", "bandwidth_degraded,route_recovery")] * 2,
            "bandwidth degraded, route recovery",
        ),
    ],
)
def test_the_fabric_of_a_tray_is_what_its_worst_gpus_say(states, said) -> None:
    gpus = [
        dict(zip(("fabric_state", "fabric_status", "fabric_health"), one, strict=True))
        for one in states
    ]
    assert fabric_of(gpus) == said
