"""Reads a rack: its trays with their nodes and GPUs, NVLinks, incidents, and what its hardware reported lately."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from gpuwarden.alert import WORST_FIRST
from gpuwarden.query import Querier, Record, query_all
from gpuwarden_dashboards.read.fleet import SILENT_AFTER
from gpuwarden_dashboards.read.topology import LINK_ERRORS

EVENTS_MAX = 50
_KINDS = (
    "sxid", "fabric_unhealthy", "link_down", "link_up", "gpu_lost", "gpu_reset_required", "gpu_unavailable",
)  # fmt: skip
"""Kinds of events that show a fault of switches, links or whole GPUs."""

_IS_OF_RACK = "$rack IN (n.labels['rack'], i.chassis_serial, i.fabric_cluster_uuid)"
_GPUS = rf"""
WITH trouble AS (
    SELECT gpu_uuid, list(concat(rule, ' (' || regexp_extract(muted, '^\w+') || ')') ORDER BY rule) AS rules
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL GROUP BY gpu_uuid
)
SELECT i.node, i.gpu, i.gpu_uuid, i.model, i.catalogue_model, i.tray, i.slot, i.chassis_serial, i.fabric_cluster_uuid,
    i.fabric_clique, i.usd_per_hour, g.util_percent, g.memory_used_bytes, g.power_watts, g.temperature_celsius,
    h.fabric_state, h.fabric_status, h.fabric_health, t.rules, g.gpu_uuid IS NULL AS silent, n.last_seen_at,
    n.labels['rack'] AS label, i.simulated
FROM gpus i
JOIN nodes n USING (node)
LEFT JOIN gpus_now g USING (gpu_uuid)
LEFT JOIN gpu_health_now h USING (gpu_uuid)
LEFT JOIN trouble t USING (gpu_uuid)
WHERE i.parent_gpu_uuid IS NULL AND i.replaced_by IS NULL AND n.forgotten_at IS NULL AND {_IS_OF_RACK}
ORDER BY i.tray NULLS LAST, i.node, i.gpu
"""
_OF_NODES = "node IN (SELECT unnest($nodes))"
_LINKS = f"""
SELECT node, count(*) AS links, count(*) FILTER (active) AS up FROM links_now
WHERE link_type = 'nvlink' AND {_OF_NODES} GROUP BY node
"""
_GROWN = " + ".join(
    f"coalesce(greatest(arg_max({name}, ts) - arg_min({name}, ts), 0), 0)" for name in LINK_ERRORS
)
_ERRORS = f"""
SELECT node, try_cast(sum(errors) AS BIGINT) AS errors FROM (
    SELECT node, gpu_uuid, link, {_GROWN} AS errors FROM link_samples
    WHERE link_type = 'nvlink' AND ts > now()::TIMESTAMP - INTERVAL 1 HOUR AND {_OF_NODES} GROUP BY ALL
) GROUP BY node
"""
_INCIDENTS = f"""
SELECT i.* FROM incidents_now i WHERE i.id IN (
    SELECT m.incident FROM incident_alerts m JOIN alerts a ON a.fingerprint = m.fingerprint AND a.active_at = m.active_at
    WHERE m.ended_at IS NULL AND a.{_OF_NODES})
ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, opened_at LIMIT 50
"""
_FIRING = f"SELECT node, count(*) AS firing FROM alerts_now WHERE state = 'firing' AND {_OF_NODES} GROUP BY node"
_EVENTS = f"""
SELECT ts, node, gpu, kind, severity, message FROM events
WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY AND {_OF_NODES} AND list_contains($kinds, kind)
ORDER BY ts DESC LIMIT {EVENTS_MAX}
"""


@dataclass(frozen=True, slots=True)
class RackTray:
    """A tray of a rack, which is a node."""

    node: str
    tray: int | None
    slot: int | None
    gpus: Sequence[Record]
    silent_since: datetime | None
    """Last contact of its node, if that is too long ago."""
    firing: int
    links: int | None
    """NVLinks of its GPUs; None: nothing is known of them now."""
    links_up: int | None
    link_errors: int | None
    """In the last hour; None: its links are not read."""

    @property
    def reporting(self) -> int:
        """GPUs with a sample in the last minute."""
        return sum(not gpu["silent"] for gpu in self.gpus)

    @property
    def power_watts(self) -> float | None:
        """Of all its GPUs that report it."""
        return summed(self.gpus, "power_watts")

    @property
    def temperature_celsius(self) -> float | None:
        """Of the hottest GPU."""
        return max(_known(self.gpus, "temperature_celsius"), default=None)

    @property
    def fabric(self) -> str | None:
        """What the NVLink fabric of its GPUs suffers from; `healthy`; None: unknown."""
        return fabric_of(self.gpus)


@dataclass(frozen=True, slots=True)
class RackNow:
    """The current state of a rack."""

    now: datetime
    name: str
    trays: Sequence[RackTray]
    incidents: Sequence[Record]
    events: Sequence[Record]

    @property
    def gpus(self) -> Sequence[Record]:
        """GPUs of all trays."""
        return [gpu for tray in self.trays for gpu in tray.gpus]

    def facts(self, column: str) -> Sequence[str]:
        """Values of a column of its GPUs, each once."""
        return sorted({str(value) for value in _known(self.gpus, column)})

    @property
    def power_watts(self) -> float | None:
        """Of all GPUs that report it."""
        return summed(self.gpus, "power_watts")

    @property
    def temperature_celsius(self) -> float | None:
        """Of the hottest GPU."""
        return max(_known(self.gpus, "temperature_celsius"), default=None)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs that have one."""
        return summed(self.gpus, "usd_per_hour")

    @property
    def reporting(self) -> int:
        """GPUs with a sample in the last minute."""
        return sum(tray.reporting for tray in self.trays)

    @property
    def links(self) -> tuple[int, int] | None:
        """NVLinks that are up, and all; None: unknown."""
        known = [tray for tray in self.trays if tray.links is not None]
        if not known:
            return None
        return sum(tray.links_up or 0 for tray in known), sum(tray.links or 0 for tray in known)

    @property
    def link_errors(self) -> int | None:
        """Errors of its NVLinks in the last hour; None: unknown."""
        known = [tray.link_errors for tray in self.trays if tray.link_errors is not None]
        return sum(known) if known else None

    @property
    def is_simulated(self) -> bool:
        """Whether any of it is simulated."""
        return any(gpu["simulated"] for gpu in self.gpus)


def summed(records: Iterable[Record], column: str) -> float | None:
    """Sum of what is known; None: nothing is."""
    known = _known(records, column)
    return sum(known) if known else None


def fabric_of(gpus: Iterable[Record]) -> str | None:
    """What the NVLink fabric of GPUs suffers from, in words; `healthy`; None: unknown."""
    found: dict[str, None] = {}
    for gpu in gpus:
        state, status, health = (gpu[f"fabric_{one}"] for one in ("state", "status", "health"))
        if state is None:
            continue
        if state != "completed":
            found[f"registration {state.replace('_', ' ')}"] = None
        elif status not in (None, "success"):
            found[f"registration ended with {status}"] = None
        elif health not in (None, "healthy"):
            found[health.replace("_", " ").replace(",", ", ")] = None
        else:
            found.setdefault("healthy", None)
    bad = [words for words in found if words != "healthy"]
    return "; ".join(bad) or next(iter(found), None)


async def read_rack(querier: Querier, rack: str, now: datetime) -> RackNow | None:
    """Read a rack by its label, chassis or NVLink domain; None: there is none. Raises QueryError."""
    gpus = (await querier.query(_GPUS, {"rack": rack})).records()
    if not gpus:
        return None
    of_nodes = {"nodes": sorted({gpu["node"] for gpu in gpus})}
    found = await query_all(
        querier,
        (
            (_LINKS, of_nodes),
            (_ERRORS, of_nodes),
            (_FIRING, of_nodes),
            (_INCIDENTS, of_nodes),
            (_EVENTS, {**of_nodes, "kinds": list(_KINDS)}),
        ),
    )
    links, errors, firing, incidents, events = (result.records() for result in found)
    of_node = [{one["node"]: one for one in records} for records in (links, errors, firing)]
    trays = [
        _tray(node, list(of_it), now, *(records.get(node, {}) for records in of_node))
        for (_, node), of_it in groupby(gpus, key=lambda gpu: (gpu["tray"], gpu["node"]))
    ]
    return RackNow(now, gpus[0]["label"] or rack, trays, incidents, events)


def _tray(
    node: str,
    gpus: Sequence[Record],
    now: datetime,
    links: Record,
    errors: Record,
    firing: Record,
) -> RackTray:
    first: Mapping[str, object] = gpus[0]
    seen = gpus[0]["last_seen_at"]
    tray, slot = first["tray"], first["slot"]
    return RackTray(
        node,
        tray if isinstance(tray, int) else None,
        slot if isinstance(slot, int) else None,
        gpus,
        seen if seen is not None and now - seen > SILENT_AFTER else None,
        firing.get("firing", 0),
        links.get("links"),
        links.get("up"),
        errors.get("errors"),
    )


def _known(records: Iterable[Record], column: str) -> list[float]:
    return [record[column] for record in records if record[column] is not None]
