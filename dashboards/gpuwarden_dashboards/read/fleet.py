"""Reads what is wrong in the fleet now, and the GPUs of a few nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.alert import WORST_FIRST
from gpuwarden.query import Querier, query_all

LISTED_MAX = 5
"""Incidents, and alerts outside them, that the page lists."""

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
SELECT id, rule, severity, place, summary, began_at, usd_per_hour, usd_so_far,
    greatest(0, firing - roots) AS follows, simulated, muted, unknown_since, count(*) OVER () AS total
FROM incidents_now
ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, opened_at
LIMIT {LISTED_MAX}
"""

_ALERTS = f"""
SELECT fingerprint, rule, severity, node, gpu, summary, began_at, usd_per_hour, usd_so_far, simulated, muted,
    unknown_since, stale_since, count(*) OVER () AS total
FROM alerts_now
WHERE state = 'firing' AND (fingerprint, active_at) NOT IN (
    SELECT (fingerprint, active_at) FROM incident_alerts
    WHERE ended_at IS NULL AND incident IN (SELECT id FROM incidents WHERE state = 'open')
)
ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at
LIMIT {LISTED_MAX}
"""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong now; records have the columns of the queries above."""

    now: datetime
    incidents: Sequence[Record]
    """Open ones, the gravest first."""
    alerts: Sequence[Record]
    """Firing ones that are in no open incident."""


async def read_tiles(querier: Querier, nodes: Sequence[str]) -> dict[str, list[Record]]:
    """The GPUs of some nodes by node, in the order of their index; those that are silent too."""
    by_node: dict[str, list[Record]] = {node: [] for node in nodes}
    for gpu in (await querier.query(_TILES, {"nodes": list(nodes)})).records():
        by_node[gpu["node"]].append(gpu)
    return by_node


TROUBLE = ((_INCIDENTS, None), (_ALERTS, None))
"""Queries of what is wrong, in the order of `Trouble`."""


async def read_trouble(querier: Querier, now: datetime) -> Trouble:
    """What is wrong now. Raises QueryError."""
    found = await query_all(querier, TROUBLE)
    return Trouble(now, *(result.records() for result in found))
