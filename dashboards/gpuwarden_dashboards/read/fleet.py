"""Reads the state of the fleet now: totals, open incidents with their alerts, nodes with their GPUs, and a map of every GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.alert import WORST_FIRST
from gpuwarden.query import Querier, query_all

NODES_MAX = 200
INCIDENTS_MAX = 50
ALERTS_MAX = 50
"""Alerts without an incident that the page lists."""
MEMBERS_MAX = 20
"""Alerts of one incident that the page lists."""
IDLE_BELOW_PERCENT = 5.0
"""Utilization below which a GPU counts as idle on the page."""

_TOTALS = f"""
SELECT
    count(*) AS gpus,
    count(*) FILTER (util_percent >= {IDLE_BELOW_PERCENT}) AS busy,
    count(*) FILTER (util_percent < {IDLE_BELOW_PERCENT}) AS idle,
    count(*) FILTER (util_percent IS NULL) AS unknown,
    sum(power_watts)::DOUBLE AS power_watts,
    sum(usd_per_hour) AS usd_per_hour,
    sum(usd_per_hour) FILTER (util_percent < {IDLE_BELOW_PERCENT}) AS usd_per_hour_idle,
    (SELECT count(*) FROM nodes WHERE forgotten_at IS NULL) AS nodes,
    (SELECT count(*) FROM gpus LEFT JOIN nodes USING (node)
        WHERE mig_instance IS NULL AND replaced_by IS NULL AND forgotten_at IS NULL) AS gpus_known
FROM gpus_now
WHERE mig_instance IS NULL
"""

_NODES = f"""
WITH trouble AS (
    SELECT node, count(*) AS alerts FROM alerts_now WHERE state = 'firing' GROUP BY node
)
SELECT n.node, n.simulated, n.last_seen_at, n.labels, h.cpu_util_percent, h.cpu_iowait_percent,
    h.memory_used_bytes, h.memory_total_bytes, coalesce(t.alerts, 0) AS alerts
FROM nodes n
LEFT JOIN nodes_now h USING (node)
LEFT JOIN trouble t USING (node)
WHERE n.forgotten_at IS NULL
ORDER BY alerts DESC, n.node
LIMIT {NODES_MAX}
"""

_TILES = r"""
WITH trouble AS (
    SELECT gpu_uuid, list(concat(rule, ' (' || regexp_extract(muted, '^\w+') || ')') ORDER BY rule) AS rules
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL GROUP BY gpu_uuid
)
SELECT i.node, i.gpu, i.gpu_uuid, i.model, g.util_percent, g.memory_used_bytes,
    g.memory_total_bytes, g.power_watts, g.temperature_celsius, t.rules, g.gpu_uuid IS NULL AS silent
FROM gpus i
LEFT JOIN gpus_now g USING (gpu_uuid)
LEFT JOIN trouble t USING (gpu_uuid)
WHERE i.mig_instance IS NULL AND i.replaced_by IS NULL AND i.node IN (SELECT unnest($nodes))
ORDER BY i.node, i.gpu
"""

_INCIDENTS = f"""
SELECT id, rule, severity, place, summary, remedy, began_at, usd_per_hour, usd_so_far,
    greatest(0, firing - roots) AS follows, simulated, muted, unknown_since, count(*) OVER () AS total
FROM incidents_now
ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, opened_at
LIMIT {INCIDENTS_MAX}
"""

_ALERTS = f"""
WITH members AS (
    SELECT fingerprint, active_at, incident, cause
    FROM incident_alerts
    WHERE ended_at IS NULL AND incident IN (SELECT id FROM incidents_now)
)
SELECT a.fingerprint, a.rule, a.severity, a.node, a.gpu, a.summary, a.remedy, a.began_at, a.fired_at,
    a.usd_per_hour, a.usd_so_far, a.simulated, a.muted, a.unknown_since,
    a.stale_since, m.incident, m.cause,
    count(*) OVER () AS firing, count(*) OVER (PARTITION BY m.incident) AS beside
FROM alerts_now a LEFT JOIN members m USING (fingerprint, active_at)
WHERE a.state = 'firing'
QUALIFY row_number() OVER (
    PARTITION BY m.incident
    ORDER BY m.cause IS NOT NULL, {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at
) <= CASE WHEN m.incident IS NULL THEN {ALERTS_MAX} ELSE {MEMBERS_MAX} END
ORDER BY m.cause IS NOT NULL, {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at
"""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fleet:
    """One look at the fleet; records have the columns of the queries above."""

    now: datetime
    totals: Record
    nodes: Sequence[Record]
    gpus: dict[str, list[Record]]
    """By node, in the order of their index."""
    incidents: Sequence[Record]
    """Open ones, the gravest first."""
    alerts: dict[str | None, list[Record]]
    """Firing ones by incident, roots first; under None those that are in none yet."""

    @property
    def open_incidents(self) -> int:
        """Open incidents, those beyond the list too."""
        return int(self.incidents[0]["total"]) if self.incidents else 0

    @property
    def firing(self) -> int:
        """Alerts that fire, those beyond the lists too."""
        return next((int(found[0]["firing"]) for found in self.alerts.values()), 0)


COLOURS = {
    "util_percent": "n.util_percent",
    "power_watts": "n.power_watts",
    "temperature_celsius": "n.temperature_celsius",
    "memory_percent": "100.0 * n.memory_used_bytes / nullif(n.memory_total_bytes, 0)",
}
"""What cells of the map can be coloured by."""

_MAP = """
WITH trouble AS (
    SELECT gpu_uuid, max(CASE severity WHEN 'critical' THEN 3 WHEN 'warning' THEN 2 ELSE 0 END) AS state
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL AND muted IS NULL
    GROUP BY gpu_uuid
), holders AS (
    SELECT node, string_agg(DISTINCT concat_ws(' ', username, slurm_job_id, pod), ' ') AS holders
    FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND GROUP BY node
)
SELECT i.node AS name,
    concat_ws(' ', any_value(d.labels), string_agg(DISTINCT i.model, ' '), any_value(h.holders)) AS text,
    list(i.gpu ORDER BY i.gpu) AS gpus,
    list(round({value}, 1) ORDER BY i.gpu) AS values,
    list(CASE WHEN n.gpu_uuid IS NULL THEN 1 ELSE coalesce(t.state, 0) END ORDER BY i.gpu) AS states
FROM gpus i
LEFT JOIN gpus_now n USING (gpu_uuid)
LEFT JOIN trouble t USING (gpu_uuid)
LEFT JOIN nodes d ON d.node = i.node
LEFT JOIN holders h ON h.node = i.node
WHERE i.mig_instance IS NULL AND i.replaced_by IS NULL
GROUP BY i.node ORDER BY i.node
"""


async def read_tiles(querier: Querier, nodes: Sequence[str]) -> dict[str, list[Record]]:
    """The GPUs of some nodes by node, in the order of their index; those that are silent too."""
    by_node: dict[str, list[Record]] = {node: [] for node in nodes}
    for gpu in (await querier.query(_TILES, {"nodes": list(nodes)})).records():
        by_node[gpu["node"]].append(gpu)
    return by_node


async def read_fleet(querier: Querier, now: datetime) -> Fleet:
    """The state of the fleet now. Raises QueryError."""
    asked = (_TOTALS, _NODES, _INCIDENTS, _ALERTS)
    found = await query_all(querier, [(sql, None) for sql in asked])
    totals, nodes, incidents, alerts = (result.records() for result in found)
    by_incident: dict[str | None, list[Record]] = {}
    for alert in alerts:
        by_incident.setdefault(alert["incident"], []).append(alert)
    gpus = await read_tiles(querier, [record["node"] for record in nodes])
    return Fleet(now, totals[0], nodes, gpus, incidents, by_incident)


async def read_map(querier: Querier, colour: str) -> list[Record]:
    """Every GPU of the fleet, a record a node: `values` by `colour`, and `states`: 0 well, 1 not
    reporting, 2 with a warning, 3 with a critical alert. Raises QueryError."""
    sql = _MAP.replace("{value}", COLOURS[colour])
    return (await querier.query(sql)).records()
