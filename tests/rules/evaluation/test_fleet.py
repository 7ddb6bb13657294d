"""The columns that a fleet reports decide which rules can run, the places of its GPUs which overrides apply."""

from datetime import timedelta

from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.definition.overrides import Location
from gpuwarden_rules.evaluation.fleet import absent_columns, is_needed, locations

POWER, SM = ("gpu_samples", "power_watts"), ("gpu_detail_samples", "sm_active_percent")
IDENTITY = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False}


async def test_a_column_without_a_value_is_absent_and_an_empty_table_is_not(
    database, clock
) -> None:
    now = clock.now()
    database.insert("gpu_samples", [{**IDENTITY, "ts": now, "power_watts": 300.0}])
    assert await absent_columns(database, [POWER, SM], now) == {}
    database.insert("gpu_detail_samples", [{**IDENTITY, "ts": now}])
    absent = await absent_columns(database, [POWER, SM, SM], now)
    assert absent == {SM: "no GPU of the fleet reports gpu_detail_samples.sm_active_percent"}
    database.insert("gpu_detail_samples", [{**IDENTITY, "ts": now, "sm_active_percent": 0.0}])
    assert await absent_columns(database, [POWER, SM], now) == {}


async def test_what_was_reported_long_ago_does_not_count(database, clock) -> None:
    now = clock.now()
    old = now - timedelta(hours=1)
    database.insert("gpu_samples", [{**IDENTITY, "ts": old, "power_watts": 300.0}])
    database.insert("gpu_samples", [{**IDENTITY, "ts": now}])
    assert list(await absent_columns(database, [POWER], now)) == [POWER]


async def test_events_without_details_say_nothing_about_those_to_come(database, clock) -> None:
    event = {"ts": clock.now(), "node": "n1", "kind": "agent_started", "severity": "info"}
    database.insert("events", [{**event, "message": "", "simulated": False}])
    assert await absent_columns(database, [("events", "details")], clock.now()) == {}


async def test_places_have_model_node_and_labels(database) -> None:
    node = {"agent_id": "a", "boot_id": "b", "simulated": False}
    database.insert(
        "nodes",
        [
            {**node, "node": "n1", "labels": '{"team": "vision"}'},
            {**node, "node": "n2", "labels": "not JSON"},
            {**node, "node": "deep", "labels": "[" * 65_536},
        ],
    )
    gpu = {"gpu": 0, "simulated": False}
    database.insert(
        "gpus",
        [
            {**gpu, "gpu_uuid": "GPU-a", "node": "n1", "model": "NVIDIA H100"},
            {**gpu, "gpu_uuid": "GPU-b", "node": "n2", "model": "x", "catalogue_model": "L4"},
            {**gpu, "gpu_uuid": "GPU-c", "node": "n2", "catalogue_model": "T4"},
        ],
    )
    found = await locations(database)
    vision = frozenset({("team", "vision")})
    assert found.gpus["GPU-a"] == found.nodes["n1"] == Location("n1", "NVIDIA H100", vision)
    assert found.gpus["GPU-b"] == Location("n2", "L4")
    assert found.nodes["n2"] == Location("n2")  # of two models
    assert found.nodes["deep"] == Location("deep")
    assert found.of({"node": "n3"}) == Location("n3")
    assert found.of({}) == Location()


async def test_rules_over_events_alone_need_not_know_the_fleet() -> None:
    """So that what pages first does not wait for it."""
    needs = {rule.name: is_needed(rule) for rule in builtin_rules()}
    assert (needs["xid_critical"], needs["sxid_fatal"], needs["gpu_lost"]) == (False, False, True)
