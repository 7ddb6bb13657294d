"""What the page shows: the state of the fleet now, read through the Querier port."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.alert import WORST_FIRST
from gpuwarden.query import Querier

NODES_MAX = 200
ALERTS_MAX = 50
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
    (SELECT count(*) FROM nodes) AS nodes,
    (SELECT count(*) FROM gpus WHERE mig_instance IS NULL AND replaced_by IS NULL) AS gpus_known
FROM gpus_now
WHERE mig_instance IS NULL
"""

_NODES = f"""
WITH trouble AS (
    SELECT node, count(*) AS alerts FROM alerts_now WHERE state = 'firing' GROUP BY node
)
SELECT n.node, n.simulated, n.last_seen_at, h.cpu_util_percent, h.cpu_iowait_percent,
    h.memory_used_bytes, h.memory_total_bytes, coalesce(t.alerts, 0) AS alerts
FROM nodes n
LEFT JOIN nodes_now h USING (node)
LEFT JOIN trouble t USING (node)
ORDER BY alerts DESC, n.node
LIMIT {NODES_MAX}
"""

_GPUS = f"""
WITH trouble AS (
    SELECT gpu_uuid, list(rule ORDER BY rule) AS rules
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL GROUP BY gpu_uuid
)
SELECT g.node, g.gpu, g.gpu_uuid, g.model, g.util_percent, g.memory_used_bytes,
    g.memory_total_bytes, g.power_watts, g.temperature_celsius, t.rules
FROM gpus_now g
LEFT JOIN trouble t USING (gpu_uuid)
WHERE g.mig_instance IS NULL AND g.node IN (SELECT node FROM ({_NODES}))
ORDER BY g.node, g.gpu
"""

_ALERTS = f"""
SELECT rule, severity, node, gpu, summary, remedy, began_at, fired_at, usd_per_hour, usd_so_far,
    simulated, count(*) OVER () AS firing
FROM alerts_now
WHERE state = 'firing'
ORDER BY
    {WORST_FIRST},
    usd_so_far DESC NULLS LAST, fired_at
LIMIT {ALERTS_MAX}
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
    alerts: Sequence[Record]

    @property
    def firing(self) -> int:
        """Alerts that fire, those beyond the list too."""
        return int(self.alerts[0]["firing"]) if self.alerts else 0


async def read_fleet(querier: Querier, now: datetime) -> Fleet:
    """The state of the fleet now. Raises QueryError."""
    totals, nodes, gpus, alerts = [
        (await querier.query(sql)).records() for sql in (_TOTALS, _NODES, _GPUS, _ALERTS)
    ]
    by_node: dict[str, list[Record]] = {record["node"]: [] for record in nodes}
    for gpu in gpus:
        by_node.setdefault(gpu["node"], []).append(gpu)
    return Fleet(now, totals[0], nodes, by_node, alerts)
