"""Judges whether a node may return to the queue, by its readings and the fleet's: `gpuwarden accept`.

Nothing is run on the node: `gpuwarden agent test-gpus` does that, and sends its results. `read` runs the queries; `checks` is
pure. A reading that is missing is named, and is neither a pass nor a failure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.metrics import THROTTLED_BY
from gpuwarden.query import Querier, Record, query_all
from gpuwarden_cli.output import counted

OK, FAIL, UNKNOWN = "ok", "fail", "unknown"
REPORTS_S = 60
"""A node whose newest sample is older does not report."""
LIKE_MOST = {
    "driver_version": "driver", "vbios_version": "VBIOS", "inforom_version": "InfoROM", "ecc_mode": "ECC mode",
    "persistence_mode": "persistence mode", "mig_mode": "MIG mode", "power_limit_watts": "power limit",
}  # fmt: skip
"""Readings that are compared with most GPUs of the same model on other nodes, and their names."""
SPEED_LEAST = 0.9
"""Of the median of the fleet; nccl-tests fail below the same share of an expected bandwidth (src/util.cu)."""
BASELINE_LEAST = 2
"""GPUs of the same model on other nodes, or nodes, that a baseline needs."""
HELD_MOST = 0.1
"""Share of the load in which heat or the power supply may hold the clocks down."""

_NODE = """
SELECT gpus, epoch(now()::TIMESTAMP - last_seen_at) AS silent_s FROM nodes WHERE node = $node
"""
_GPUS = """
SELECT g.gpu, g.gpu_uuid, g.model, n.driver_version, g.vbios_version, g.inforom_version, g.ecc_mode, g.ecc_mode_pending,
    g.persistence_mode, g.mig_mode, g.pcie_width_max, g.nvlinks, s.power_limit_watts,
    s.gpu_uuid IS NOT NULL AS reports, d.pcie_width, d.nvlinks_active, h.remap_pending, h.remap_failed,
    h.recovery_action, h.memory_unrepairable, h.inforom_valid, h.ecc_uncorrected_volatile_total, h.fabric_health
FROM gpus g
JOIN nodes n USING (node)
LEFT JOIN gpus_now s ON s.gpu_uuid = g.gpu_uuid
LEFT JOIN gpu_health_now h ON h.gpu_uuid = g.gpu_uuid
LEFT JOIN (
    SELECT gpu_uuid, arg_max(pcie_width, ts) AS pcie_width, arg_max(nvlinks_active, ts) AS nvlinks_active
    FROM gpu_detail_samples WHERE node = $node AND ts > now()::TIMESTAMP - INTERVAL 10 MINUTE GROUP BY gpu_uuid
) d ON d.gpu_uuid = g.gpu_uuid
WHERE g.node = $node AND g.replaced_by IS NULL AND g.mig_instance IS NULL AND g.parent_gpu_uuid IS NULL
ORDER BY g.gpu
"""
_MOST = """
SELECT g.model, mode(n.driver_version) AS driver_version, mode(g.vbios_version) AS vbios_version,
    mode(g.inforom_version) AS inforom_version, mode(g.ecc_mode) AS ecc_mode, mode(g.persistence_mode) AS persistence_mode,
    mode(g.mig_mode) AS mig_mode, mode(s.power_limit_watts) AS power_limit_watts
FROM gpus g JOIN nodes n USING (node) LEFT JOIN gpus_now s ON s.gpu_uuid = g.gpu_uuid
WHERE g.node <> $node AND g.replaced_by IS NULL AND g.mig_instance IS NULL AND n.forgotten_at IS NULL
    AND g.model IN (SELECT model FROM gpus WHERE node = $node)
GROUP BY g.model
"""
_EVENTS = """
SELECT message, ts FROM events
WHERE node = $node AND ts > $since::TIMESTAMP AND severity = 'critical' ORDER BY ts DESC LIMIT 20
"""
_ALERTS = """
SELECT rule, gpu FROM alerts_now
WHERE node = $node AND state = 'firing' AND consequence IN ('lost_work', 'failing_hardware', 'unwatched') ORDER BY severity, rule, gpu
"""
# A trial without GPUs on a node that has some decides nothing.
_AS_REAL = "simulated = (SELECT bool_or(simulated) FROM gpus WHERE node = $node)"
_LAST_RUN = f"(SELECT arg_max(run, ts) FROM gpu_tests WHERE node = $node AND ts > $since::TIMESTAMP AND {_AS_REAL})"
_TESTS = f"""
SELECT t.run, t.gpu, t.test, t.status, t.value, t.unit, t.finding, split_part(t.tool, ' ', 1) AS library,
    coalesce(g.model, (SELECT min(model) FROM gpus WHERE node = $node)) AS model
FROM gpu_tests t LEFT JOIN gpus g USING (gpu_uuid)
WHERE t.node = $node AND t.ts > $since::TIMESTAMP AND t.run = {_LAST_RUN} ORDER BY t.gpu NULLS LAST, t.ts
"""
_SPEEDS = f"""
WITH newest AS (
    SELECT node, test, split_part(tool, ' ', 1) AS library, coalesce(gpu_uuid, node) AS subject, arg_max(value, ts) AS value
    FROM gpu_tests
    WHERE node <> $node AND status = 'ok' AND value IS NOT NULL AND test <> 'memory' AND ts > now()::TIMESTAMP - INTERVAL 90 DAY AND {_AS_REAL}
    GROUP BY ALL
),
models AS (SELECT node, min(model) AS model FROM gpus GROUP BY node)
SELECT coalesce(g.model, m.model) AS model, n.test, n.library, median(n.value) AS value, count(*) AS others
FROM newest n LEFT JOIN gpus g ON g.gpu_uuid = n.subject LEFT JOIN models m ON m.node = n.node
GROUP BY ALL
"""
_LOAD = f"""
SELECT s.gpu, count(*) AS samples, median(s.sm_clock_mhz) AS clock_mhz, max(s.temperature_celsius) AS temperature_celsius,
    avg((s.clocks_event_reasons & {THROTTLED_BY} <> 0)::TINYINT) AS held
FROM gpu_tests t JOIN gpu_samples s ON s.gpu_uuid = t.gpu_uuid AND s.ts BETWEEN t.began_at AND t.ts
WHERE t.node = $node AND t.ts > $since::TIMESTAMP AND t.test IN ('matmul_fp32', 'matmul_fp16') AND t.run = {_LAST_RUN}
    AND s.ts > $since::TIMESTAMP - INTERVAL 1 HOUR AND s.node = $node
GROUP BY s.gpu ORDER BY s.gpu
"""


@dataclass(frozen=True, slots=True)
class AcceptanceCheck:
    """One condition, and whether the node fulfils it."""

    name: str
    status: str
    """OK, FAIL or UNKNOWN."""
    finding: str


@dataclass(frozen=True, slots=True)
class AcceptanceFacts:
    """What is known of a node and of others like it."""

    node: Record
    gpus: Sequence[Record]
    most: Mapping[str, Record]
    """By model: the values of most GPUs of other nodes."""
    events: Sequence[Record]
    """Critical ones, newest first."""
    alerts: Sequence[Record]
    """That fire."""
    since: datetime
    tests: Sequence[Record] = ()
    """Results of the last run of `gpuwarden agent test-gpus` since then."""
    speeds: Sequence[Record] = ()
    """Medians of tests of other nodes, by model, test and library."""
    load: Sequence[Record] = ()
    """What the agent read of each GPU while it multiplied matrices in that run."""


async def read(querier: Querier, node: str, since: datetime) -> AcceptanceFacts | None:
    """Facts about a node; None: there is no such node. Raises QueryError."""
    asked: list[tuple[str, dict[str, Any]]] = [
        (sql, {"node": node}) for sql in (_NODE, _GPUS, _MOST, _ALERTS, _SPEEDS)
    ]
    asked += [(sql, {"node": node, "since": since}) for sql in (_EVENTS, _TESTS, _LOAD)]
    answers = await query_all(querier, asked)
    own, gpus, most, alerts, speeds, events, tests, load = [one.records() for one in answers]
    if not own:
        return None
    return AcceptanceFacts(
        own[0],
        gpus,
        {row["model"]: row for row in most},
        events,
        alerts,
        since,
        tests,
        speeds,
        load,
    )


def checks(facts: AcceptanceFacts) -> list[AcceptanceCheck]:
    """All conditions, in the order in which a person would look."""
    return [
        *_of_node(facts),
        *_like_most(facts),
        _ecc(facts),
        _memory(facts),
        _widths(facts),
        _links(facts),
        _quiet(facts),
        _alerts(facts),
        _tests(facts),
        _speed(facts),
        _load(facts),
    ]


def _of_node(facts: AcceptanceFacts) -> Iterator[AcceptanceCheck]:
    silent_s = facts.node["silent_s"]
    reports = silent_s is not None and silent_s <= REPORTS_S
    yield AcceptanceCheck(
        "reports", OK if reports else FAIL, "its agent reports" if reports else _silent(silent_s)
    )
    silent = [f"GPU {gpu['gpu']}" for gpu in facts.gpus if not gpu["reports"]]
    known, seen = len(facts.gpus), facts.node["gpus"]
    if silent:
        yield AcceptanceCheck("gpus", FAIL, f"no samples of {', '.join(silent)} in the last minute")
    elif not known:
        yield AcceptanceCheck("gpus", FAIL, "it has no GPU")
    elif seen is not None and seen < known:
        yield AcceptanceCheck("gpus", FAIL, f"the driver has {seen} GPUs, and {known} were there")
    else:
        yield AcceptanceCheck("gpus", OK, f"{known} report")


def _silent(silent_s: float | None) -> str:
    return (
        "it has never reported" if silent_s is None else f"its newest data are {silent_s:.0f} s old"
    )


def _like_most(facts: AcceptanceFacts) -> Iterator[AcceptanceCheck]:
    for column, name in LIKE_MOST.items():
        pairs = [
            (gpu, gpu[column], facts.most.get(gpu["model"], {}).get(column)) for gpu in facts.gpus
        ]
        judged = [
            (gpu, own, usual) for gpu, own, usual in pairs if own is not None and usual is not None
        ]
        if not judged:
            why = (
                "not read here"
                if all(own is None for _, own, _ in pairs)
                else "no other node has this model"
            )
            yield AcceptanceCheck(name, UNKNOWN, why)
            continue
        other = [
            f"GPU {gpu['gpu']} has {_said(own)}, most have {_said(usual)}"
            for gpu, own, usual in judged
            if own != usual
        ]
        values = ", ".join(dict.fromkeys(_said(own) for _, own, _ in judged))
        yield AcceptanceCheck(
            name, FAIL if other else OK, "; ".join(other) or f"{values}, as most of its model"
        )


def _ecc(facts: AcceptanceFacts) -> AcceptanceCheck:
    pending = [
        f"GPU {gpu['gpu']} changes its ECC mode at the next reboot"
        for gpu in facts.gpus
        if gpu["ecc_mode_pending"] is not None and gpu["ecc_mode_pending"] != gpu["ecc_mode"]
    ]
    return _of_gpus(
        "ECC errors", facts.gpus, "ecc_uncorrected_volatile_total",
        lambda errors: f"{counted(errors, 'uncorrected memory error')} since the driver was loaded" if errors else None,
        "none uncorrected since the driver was loaded", pending,
    )  # fmt: skip


def _memory(facts: AcceptanceFacts) -> AcceptanceCheck:
    flags = {
        "remap_pending": "waits to remap a row", "remap_failed": "could not remap a row",
        "memory_unrepairable": "has unrepairable memory",
    }  # fmt: skip
    found = [
        f"GPU {gpu['gpu']} {words}" for gpu in facts.gpus for flag, words in flags.items() if gpu[flag]
    ]  # fmt: skip
    found += [f"GPU {g['gpu']} has an invalid InfoROM" for g in facts.gpus if g["inforom_valid"] is False]  # fmt: skip
    return _of_gpus(
        "health", facts.gpus, "recovery_action",
        lambda action: None if action == "none" else f"asks for {action}",
        "no row to remap, no recovery asked for", found,
    )  # fmt: skip


def _widths(facts: AcceptanceFacts) -> AcceptanceCheck:
    return _all_there(
        "PCIe width", facts.gpus, "pcie_width", "pcie_width_max", "lanes", "all lanes"
    )


def _links(facts: AcceptanceFacts) -> AcceptanceCheck:
    found = [
        f"GPU {gpu['gpu']}: the fabric has {gpu['fabric_health']}"
        for gpu in facts.gpus
        if gpu["fabric_health"] not in (None, "healthy")
    ]
    return _all_there(
        "NVLink", facts.gpus, "nvlinks_active", "nvlinks", "NVLinks up", "all links are up", found
    )


def _all_there(
    name: str,
    gpus: Iterable[Record],
    has: str,
    should: str,
    what: str,
    well: str,
    found: Sequence[str] = (),
) -> AcceptanceCheck:
    """A check that a column `has` of each GPU is not below its column `should`."""
    known = [gpu for gpu in gpus if gpu[has] is not None and gpu[should] is not None]
    short = [
        f"GPU {gpu['gpu']} has {gpu[has]} of {gpu[should]} {what}"
        for gpu in known
        if gpu[has] < gpu[should]
    ]
    return _verdict(name, [*found, *short], well, is_known=bool(known))


def _quiet(facts: AcceptanceFacts) -> AcceptanceCheck:
    found = [f"{event['message']} ({event['ts']:%H:%M} UTC)" for event in facts.events]
    return _verdict("events", found[:3], f"none critical since {facts.since:%Y-%m-%d %H:%M} UTC")


def _alerts(facts: AcceptanceFacts) -> AcceptanceCheck:
    found = [
        row["rule"] + ("" if row["gpu"] is None else f" of GPU {row['gpu']}")
        for row in facts.alerts
    ]
    return _verdict("alerts", found, "none of lost work or failing hardware fires")


def _tests(facts: AcceptanceFacts) -> AcceptanceCheck:
    name = "tests"
    if not facts.tests:
        said = f"none since {facts.since:%Y-%m-%d %H:%M} UTC: gpuwarden agent test-gpus on the node"
        return AcceptanceCheck(name, UNKNOWN, said)
    failed = [f"{_where(one)}{one['test']}: {one['finding']}" for one in facts.tests if one["status"] == "fail"]  # fmt: skip
    passed = sum(one["status"] == "ok" for one in facts.tests)
    return _verdict(name, failed, f"{passed} of run {facts.tests[0]['run']} passed")


def _speed(facts: AcceptanceFacts) -> AcceptanceCheck:
    usual = {(row["model"], row["test"], row["library"]): row for row in facts.speeds}
    slow, judged = [], 0
    for one in facts.tests:
        other = usual.get((one["model"], one["test"], one["library"]))
        if one["value"] is None or other is None or other["others"] < BASELINE_LEAST:
            continue
        judged += 1
        if one["value"] < SPEED_LEAST * other["value"]:
            slow.append(f"{_where(one)}{one['test']} {one['value']:.4g} {one['unit']}, others {other['value']:.4g}")  # fmt: skip
    if not judged:
        why = "no other node's tests to compare with" if facts.tests else "not tested"
        return AcceptanceCheck("speed", UNKNOWN, why)
    return _verdict("speed", slow, f"{counted(judged, 'rate')} of at least {SPEED_LEAST:.0%} of others'")  # fmt: skip


def _load(facts: AcceptanceFacts) -> AcceptanceCheck:
    known = [row for row in facts.load if row["held"] is not None]
    held = [
        f"GPU {row['gpu']} is held down {row['held']:.0%} of the time by heat or its power supply, at {row['temperature_celsius']:g} °C"
        for row in known
        if row["held"] > HELD_MOST
    ]  # fmt: skip
    clocks = [row["clock_mhz"] for row in known if row["clock_mhz"] is not None]
    well = f"at least {min(clocks):.0f} MHz" if clocks else "not held down"
    return _verdict("clocks under load", held, well, is_known=bool(known))


def _where(one: Record) -> str:
    return "" if one["gpu"] is None else f"GPU {one['gpu']} "


def _of_gpus(
    name: str,
    gpus: Iterable[Record],
    column: str,
    wrong: Callable[[Any], str | None],
    well: str,
    found: Sequence[str],
) -> AcceptanceCheck:
    """A check of a column of each GPU; `wrong`: words for a value, or None; `found`: what is wrong besides."""
    values = [(gpu["gpu"], gpu[column]) for gpu in gpus if gpu[column] is not None]
    said = [f"GPU {gpu}: {words}" for gpu, value in values if (words := wrong(value))]
    return _verdict(name, [*found, *said], well, is_known=bool(values))


def _verdict(
    name: str, found: Sequence[str], well: str, *, is_known: bool = True
) -> AcceptanceCheck:
    if found:
        return AcceptanceCheck(name, FAIL, "; ".join(found))
    return AcceptanceCheck(name, OK, well) if is_known else AcceptanceCheck(name, UNKNOWN, "not read here")  # fmt: skip


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
