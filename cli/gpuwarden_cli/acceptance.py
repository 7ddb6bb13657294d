"""Judges whether a node may return to the queue, by its readings and the fleet's: `gpuwarden accept`.

Nothing is run on the node. `read` runs the queries; `checks` is pure. A reading that is missing is named, and is neither a
pass nor a failure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

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


async def read(querier: Querier, node: str, since: datetime) -> AcceptanceFacts | None:
    """Facts about a node; None: there is no such node. Raises QueryError."""
    asked = [(sql, {"node": node}) for sql in (_NODE, _GPUS, _MOST, _ALERTS)]
    answers = await query_all(querier, [*asked, (_EVENTS, {"node": node, "since": since})])
    own, gpus, most, alerts, events = [answer.records() for answer in answers]
    if not own:
        return None
    return AcceptanceFacts(own[0], gpus, {row["model"]: row for row in most}, events, alerts, since)


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
