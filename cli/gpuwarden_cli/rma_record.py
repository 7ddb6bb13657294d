"""Collects what a vendor asks about a board that may have to be replaced: `gpuwarden rma`.

It has the board, its node's software, counters at the begin and end of a time, events, alerts and extremes; no users and
no jobs. Messages of Xids name processes, as the kernel's log does. `read` runs the queries; the text is pure.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden.query import Querier, Record, query_all
from gpuwarden_cli.output import counted, render

if TYPE_CHECKING:
    from tarfile import TarInfo

REPLACE_RULES: Mapping[str, str] = {
    "row_remap_failed": "A memory row could not be remapped.",
    "memory_unrepairable": "Device memory has a fault that cannot be repaired.",
    "ecc_sram_threshold": "Uncorrectable SRAM errors are above NVIDIA's threshold.",
    "retired_pages_exhausted": "All memory pages that may be retired are.",
    "inforom_invalid": "The InfoROM has a wrong checksum.",
    "xid_after_reboots": "The same critical Xid came again after reboots.",
}
"""By rule: why NVIDIA replaces a board; the sources are on the rules' pages in docs/rules."""
BOARD = (
    "vendor", "model", "serial", "part_number", "gpu_uuid", "node", "gpu", "pci_bus_id", "chassis_serial", "slot", "tray", "module_id",
    "vbios_version", "inforom_version", "gsp_firmware_version", "ecc_mode", "mig_mode", "first_seen_at", "last_seen_at",
    "replaced_by", "simulated",
)  # fmt: skip
NODE = ("os", "kernel", "driver_version", "kernel_module", "cuda_version", "fabric_manager_version", "cpu_model", "agent_version")  # fmt: skip
ROWS_MAX = 10_000
EVENTS_SHOWN = 20

_BOARD = f"SELECT {', '.join(BOARD)} FROM gpus WHERE gpu_uuid = $gpu"
_NODE = f"SELECT {', '.join(NODE)} FROM nodes WHERE node = $node"
_IN_TIME = "gpu_uuid = $gpu AND ts > $since::TIMESTAMP"
_FIRST = f"SELECT * FROM gpu_health_samples WHERE {_IN_TIME} ORDER BY ts LIMIT 1"
_LAST = f"SELECT * FROM gpu_health_samples WHERE {_IN_TIME} ORDER BY ts DESC LIMIT 1"
# Of the kinds that are about the node alone a board's vendor needs those about the driver and power.
_EVENTS = """
SELECT ts, kind, severity, message, json_extract_string(details, '$.xid') AS xid FROM events
WHERE ts > $since::TIMESTAMP AND node = $node AND severity <> 'info'
    AND (gpu_uuid = $gpu OR (gpu_uuid IS NULL AND gpu IS NULL AND kind IN ('driver_not_loaded', 'driver_mismatch', 'sxid', 'agent_gap')))
ORDER BY ts DESC
"""
_RULES = ", ".join(f"'{rule}'" for rule in REPLACE_RULES)
_ALERTS = f"""
SELECT rule, severity, value, began_at, fired_at, resolved_at FROM alerts
WHERE gpu_uuid = $gpu AND fired_at IS NOT NULL AND coalesce(resolved_at, now()::TIMESTAMP) > $since::TIMESTAMP
    AND (rule IN ({_RULES}) OR consequence = 'failing_hardware' OR rule LIKE '%thermal%' OR rule LIKE 'gpu_power%')
ORDER BY fired_at DESC
"""
_OF_MINUTES = (
    "temperature_celsius_max", "memory_temperature_celsius_max", "power_watts_max", "pcie_generation_min", "pcie_width_min",
    "hw_thermal_seconds_delta", "sw_thermal_seconds_delta", "hw_power_brake_seconds_delta", "pcie_replays_delta", "busy_seconds",
)  # fmt: skip
_EXTREMES = f"""
WITH hours AS (SELECT ts, {", ".join(_OF_MINUTES)} FROM gpu_1h WHERE {_IN_TIME}),
minutes AS (
    SELECT ts, {", ".join(_OF_MINUTES)} FROM gpu_1m
    WHERE {_IN_TIME} AND ts > now()::TIMESTAMP - INTERVAL 3 HOUR AND date_trunc('hour', ts) NOT IN (SELECT ts FROM hours)
)
SELECT max(temperature_celsius_max) AS temperature_celsius_max, max(memory_temperature_celsius_max) AS memory_temperature_celsius_max,
    max(power_watts_max) AS power_watts_max, min(pcie_generation_min) AS pcie_generation_min, min(pcie_width_min) AS pcie_width_min,
    sum(hw_thermal_seconds_delta) AS hw_thermal_seconds, sum(sw_thermal_seconds_delta) AS sw_thermal_seconds,
    sum(hw_power_brake_seconds_delta) AS hw_power_brake_seconds, sum(pcie_replays_delta) AS pcie_replays,
    sum(busy_seconds) / 3600 AS busy_hours
FROM (FROM hours UNION ALL FROM minutes)
"""
_LINKS = "SELECT ts, link_type, link, error, errors FROM link_errors WHERE gpu_uuid = $gpu ORDER BY ts, link, error"
_TESTS = f"SELECT ts, test, status, value, unit, finding, tool FROM gpu_tests WHERE {_IN_TIME} ORDER BY ts DESC"


_NO_READINGS = frozenset({"ts", "node", "gpu", "gpu_uuid", "simulated", "remap_banks_max"})
_OF_NEW: Mapping[str, Any] = {
    "inforom_valid": True, "recovery_action": "none", "fabric_state": "completed", "fabric_status": "success",
    "fabric_health": "healthy",
}  # fmt: skip


def _is_new(name: str, value: Any) -> bool:
    return bool(value == _OF_NEW[name]) if name in _OF_NEW else not value


@dataclass(frozen=True, slots=True)
class RmaRecord:
    """What is known of a board. Instants are aware, UTC."""

    since: datetime
    until: datetime
    board: Record
    node: Record
    first_health: Record
    """The first health sample of the time; empty: there is none."""
    last_health: Record
    events: Sequence[Record]
    """Newest first."""
    alerts: Sequence[Record]
    extremes: Record
    links: Sequence[Record]
    tests: Sequence[Record]
    """Of `gpuwarden agent test-gpus`, newest first."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why the board is replaced, by the alerts of the time, newest first."""
        found: dict[str, datetime] = {}
        for alert in self.alerts:
            if alert["rule"] in REPLACE_RULES:
                found.setdefault(alert["rule"], alert["fired_at"])
        return [
            f"{REPLACE_RULES[rule]} ({rule}, {at:%Y-%m-%d %H:%M} UTC)" for rule, at in found.items()
        ]

    def counters(self) -> list[tuple[str, Any, Any]]:
        """Health readings that are not those of a new board: name, at the begin, at the end."""
        return [
            (name, self.first_health.get(name), value)
            for name, value in self.last_health.items()
            if name not in _NO_READINGS and value is not None and not _is_new(name, value)
        ]

    def document(self) -> Mapping[str, Any]:
        """For JSON."""
        return {
            "since": self.since, "until": self.until, "board": self.board, "node": self.node, "reasons": self.reasons,
            "counters": [{"name": n, "first": a, "last": b} for n, a, b in self.counters()], "events": self.events,
            "alerts": self.alerts, "extremes": self.extremes, "links": self.links,
            "tests": self.tests,
        }  # fmt: skip


async def read(
    querier: Querier, gpu_uuid: str, node: str, since: datetime, until: datetime
) -> RmaRecord:
    """The record of a GPU that is in `gpus`. Raises QueryError."""
    params = {"gpu": gpu_uuid, "node": node, "since": since}
    sqls = (_BOARD, _NODE, _FIRST, _LAST, _EVENTS, _ALERTS, _EXTREMES, _LINKS, _TESTS)
    asked = [(sql, {k: v for k, v in params.items() if f"${k}" in sql}) for sql in sqls]
    found = [answer.records() for answer in await query_all(querier, asked)]
    board, of_node, first, last, events, alerts, extremes, links, tests = found
    return RmaRecord(
        since, until, board[0], of_node[0] if of_node else {}, first[0] if first else {}, last[0] if last else {},
        events[:ROWS_MAX], alerts[:ROWS_MAX], extremes[0], links[:ROWS_MAX], tests[:ROWS_MAX],
    )  # fmt: skip


def text(record: RmaRecord, width: int | None = None) -> str:
    """The record for a ticket."""
    days = (record.until - record.since).days
    board = {**record.board, **record.node}
    parts = [_section("Board", [[k, _said(v)] for k, v in board.items() if v is not None], width)]
    reasons = [f"  - {reason}" for reason in record.reasons]
    if reasons:
        parts.append("\n".join(["Reasons to replace it", "", *reasons]) + "\n")
    else:
        parts.append(
            f"Reasons to replace it\n\n  None in {counted(days, 'day')}: {', '.join(REPLACE_RULES)} did not fire.\n"
        )
    counters = [[name, _said(first), _said(last)] for name, first, last in record.counters()]
    if counters:
        table = render(["reading", f"{record.since:%Y-%m-%d}", "now"], counters, "table", width=width)  # fmt: skip
        parts.append(f"Counters and flags that are set\n\n{table}")
    elif not record.last_health:
        parts.append("Counters and flags that are set\n\n  Not known: there is no health sample.\n")
    else:
        parts.append("Counters and flags that are set\n\n  None.\n")
    if xids := _xids(record.events):
        parts.append(f"Xids\n\n{render(['xid', 'times', 'last'], xids, 'table', width=width)}")
    for title, rows, names in (
        ("Events", record.events, ("ts", "kind", "severity", "message")),
        ("Alerts", record.alerts, ("fired_at", "resolved_at", "rule", "severity", "value")),
        ("Errors of links, last day", record.links, ("ts", "link_type", "link", "error", "errors")),
        ("Tests", record.tests, ("ts", "test", "status", "value", "unit", "finding")),
    ):
        if rows:
            shown = [[_said(row[name]) for name in names] for row in rows[:EVENTS_SHOWN]]
            more = len(rows) - len(shown)
            tail = f"  and {more:,} more: --archive has them\n" if more > 0 else ""
            parts.append(f"{title}\n\n{render(names, shown, 'table', width=width)}{tail}")
    extremes = [[k, _said(v)] for k, v in record.extremes.items() if v is not None]
    if extremes:
        parts.append(_section("Extremes and sums of the time", extremes, width))
    return "\n".join(parts)


def _section(title: str, rows: Sequence[Sequence[Any]], width: int | None) -> str:
    table = "\n".join(render(["", ""], rows, "table", width=width).splitlines()[2:])
    return f"{title}\n\n{table}\n"


def _xids(events: Sequence[Record]) -> list[list[Any]]:
    """Code, number and last time of each Xid, by code."""
    found: dict[str, list[datetime]] = {}
    for event in events:
        if event["xid"] is not None:
            found.setdefault(event["xid"], []).append(event["ts"])
    ordered = sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
    return [[xid, len(times), _said(max(times))] for xid, times in ordered]


def _said(value: Any) -> Any:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return round(value, 2) if isinstance(value, float) else value


def write_archive(path: Path, record: RmaRecord, attached: Sequence[Path]) -> None:
    """Write record.txt, record.json, a CSV of each list, and the files beside it. Raises OSError; a file that is there is
    not written over."""
    import tarfile

    tables = {
        "events": record.events,
        "alerts": record.alerts,
        "links": record.links,
        "tests": record.tests,
    }
    files = {
        "record.txt": text(record),
        "record.json": json.dumps(record.document(), indent=1, default=str, ensure_ascii=False) + "\n",
        **{f"{name}.csv": _csv(rows) for name, rows in tables.items() if rows},
    }  # fmt: skip
    try:
        with path.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name, content in files.items():
                body = content.encode()
                member = tarfile.TarInfo(f"rma/{name}")
                member.size, member.mtime, member.mode = len(body), int(record.until.timestamp()), 0o644  # fmt: skip
                tar.addfile(member, io.BytesIO(body))
            for one in attached:
                tar.add(one, f"rma/{one.name}", recursive=False, filter=_without_owner)
    except FileExistsError:
        raise
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _without_owner(member: "TarInfo") -> "TarInfo":
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)


def _csv(rows: Sequence[Record]) -> str:
    import csv

    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
