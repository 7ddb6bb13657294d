"""Rules that cannot judge a device: which, and what they lack."""

from datetime import timedelta

from gpuwarden_rules.definition.language import builtin_rules, parse
from gpuwarden_rules.evaluation.unable import OF_DEVICES, XIDS, read_unable, rules_of_gpus, unable

RULES = parse(
    """
rules:
  - {name: braked, severity: warning, labels: [node, gpu, gpu_uuid], interval: 30s, summary: s, remedy: r,
     requires: [gpu_samples.clocks_event_reasons, gpu_1m.power_watts_avg, process_samples.pid],
     sql: "SELECT node, gpu, gpu_uuid, 1 AS value FROM gpu_samples WHERE clocks_event_reasons > 0 AND ts <= $now::TIMESTAMP"}
  - {name: busy, severity: warning, labels: [node, gpu, gpu_uuid], interval: 30s, summary: s, remedy: r,
     requires: [gpu_1m.util_percent_avg],
     sql: "SELECT node, gpu, gpu_uuid, 1 AS value FROM gpu_1m WHERE util_percent_avg > 0 AND ts <= $now::TIMESTAMP"}
  - {name: linked, severity: warning, labels: [node, gpu, gpu_uuid], interval: 30s, summary: s, remedy: r,
     requires: [link_samples.link_type],
     sql: "SELECT node, gpu, gpu_uuid, 1 AS value FROM link_samples WHERE link_type = 'x' AND ts <= $now::TIMESTAMP"}
  - {name: coded, severity: warning, labels: [node, gpu, gpu_uuid, xid], interval: 30s, summary: s, remedy: r,
     requires: [events.details],
     sql: "SELECT node, gpu, gpu_uuid, '1' AS xid, 1 AS value FROM events WHERE details > '' AND ts <= $now::TIMESTAMP"}
  - {name: held, severity: warning, labels: [node, gpu, gpu_uuid], interval: 30s, summary: s, remedy: r,
     requires: [gpu_1m.idle_seconds], optional: [gpu_1m.memory_used_bytes_max],
     sql: "SELECT node, gpu, gpu_uuid, memory_used_bytes_max AS value FROM gpu_1m WHERE idle_seconds > 0 AND ts <= $now::TIMESTAMP"}
  - {name: slowed, severity: warning, labels: [node, gpu, gpu_uuid], interval: 30s, summary: s, remedy: r,
     one_of: [gpu_1m.reason_software_thermal_slowdown_seconds, gpu_1m.sw_thermal_seconds_delta], optional: [gpu_1m.util_percent_avg],
     sql: "SELECT node, gpu, gpu_uuid, util_percent_avg AS value FROM gpu_1m WHERE ts <= $now::TIMESTAMP
       AND reason_software_thermal_slowdown_seconds + sw_thermal_seconds_delta > 0"}
  - {name: down, severity: warning, labels: [node], interval: 30s, summary: s, remedy: r,
     requires: [host_samples.cpu_util_percent],
     sql: "SELECT node, 1 AS value FROM host_samples WHERE cpu_util_percent > 0 AND ts <= $now::TIMESTAMP"}
""",
    "r.yaml",
)


def said(vendor: str, told: dict[str, set[str]]) -> dict[str, list[str]]:
    return {one.rule.name: list(one.missing) for one in unable(RULES, vendor, told)}


def test_what_a_source_does_not_tell_is_named_by_its_samples() -> None:
    told = {"gpus": {"model"}, "gpu_samples": {"util_percent"}}
    assert said("google", told) == {
        "braked": ["gpu_samples.clocks_event_reasons", "gpu_samples.power_watts"],
        "linked": ["link_samples"],
        "coded": [XIDS],
        "held": ["gpu_samples.memory_used_bytes"],
        "slowed": ["gpu_samples.clocks_event_reasons", "gpu_samples.sw_thermal_seconds_total"],
    }
    only_one = {**told, "gpu_samples": {"util_percent", "sw_thermal_seconds_total"}}
    assert "slowed" not in said("google", only_one)
    told["gpu_samples"] |= {"clocks_event_reasons", "power_watts", "memory_used_bytes"}
    assert said("nvidia", told) == {"linked": ["link_samples"]}
    # Rules about nodes, and tables of processes, do not depend on the source.
    assert len(rules_of_gpus(RULES)) == 6


async def test_stored_samples_of_the_last_hour_tell_it(database, clock) -> None:
    now = clock.now()
    row = {"node": "n1", "gpu": 0, "gpu_uuid": "TPU-1", "simulated": False}
    old = now - timedelta(hours=2)
    database.insert(
        "gpu_samples",
        [
            {**row, "ts": now, "util_percent": 3.0, "memory_used_bytes": 7},
            {**row, "ts": old, "util_percent": 3.0, "clocks_event_reasons": 1},
        ],
    )
    database.insert(
        "gpus", [{**row, "vendor": "google", "first_seen_at": old, "last_seen_at": now}]
    )
    found = await read_unable(database, RULES, "TPU-1", now)
    assert found is not None
    assert {one.rule.name: list(one.missing) for one in found} == {
        "braked": ["gpu_samples.clocks_event_reasons", "gpu_samples.power_watts"],
        "linked": ["link_samples"],
        "coded": [XIDS],
        "slowed": ["gpu_samples.clocks_event_reasons", "gpu_samples.sw_thermal_seconds_total"],
    }
    assert await read_unable(database, RULES, "TPU-2", now) is None
    assert await read_unable(database, builtin_rules(), "TPU-1", now)
    assert set(OF_DEVICES) > {"gpus"}
