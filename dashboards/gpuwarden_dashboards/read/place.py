"""Reads a node or a GPU, except for its charts: inventory, GPUs, processes, firing alerts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import mean
from typing import Any

from gpuwarden.alert import WORST_FIRST
from gpuwarden.durations import readable
from gpuwarden.query import Querier, Record, query_all
from gpuwarden.rollups import IDLE_BELOW_PERCENT
from gpuwarden_dashboards.read.fleet import SILENT_AFTER
from gpuwarden_dashboards.read.processes import PROCESSES, ProcessLine, process_lines
from gpuwarden_dashboards.read.series import GPUS_MAX, Place

_HIDDEN = {
    "node",
    "gpu",
    "simulated",
    "revision",
    "peers",
    "first_seen_at",
    "usd_per_hour_source",
}

GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    ("Utilization", ("util_percent", "sm_active_percent", "tensor_active_percent")),
    ("Memory used", ("memory_used_bytes",)),
    ("Power", ("power_watts",)),
    ("Temperature", ("temperature_celsius", "memory_temperature_celsius")),
    ("Clocks", ("sm_clock_mhz",)),
    ("PCIe", ("pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second")),
    ("NVLink", ("nvlink_rx_bytes_per_second", "nvlink_tx_bytes_per_second")),
    ("CPU of its processes", ("process.cpu_percent",)),
)
"""Charts of a GPU: title and metrics."""
NODE_GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    ("GPU utilization", ("util_percent",)),
    ("GPU memory used", ("memory_used_bytes",)),
    ("GPU power", ("power_watts",)),
    ("GPU temperature", ("temperature_celsius",)),
    ("GPU clock", ("sm_clock_mhz",)),
    ("Power of the whole node", ("host.host_power_watts",)),
    ("CPU", ("host.cpu_util_percent", "host.cpu_iowait_percent")),
    ("Pressure", ("host.psi_cpu_some_percent", "host.psi_io_some_percent", "host.psi_memory_some_percent")),
    ("Memory", ("host.memory_used_bytes", "host.memory_cached_bytes")),
    ("Disk", ("host.disk_read_bytes_total", "host.disk_write_bytes_total")),
    ("Network", ("host.network_rx_bytes_total", "host.network_tx_bytes_total")),
    ("InfiniBand and RoCE", ("infiniband.rx_bytes_total", "infiniband.tx_bytes_total")),
)  # fmt: skip
"""Charts of a node: a line for each GPU, then the host."""

_ALERTS = f"""
SELECT * FROM alerts_now WHERE state = 'firing' AND {{where}}
ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at LIMIT 50
"""


_MIG = """
SELECT gpu_uuid, gpu, mig_instance, memory_total_bytes FROM gpus
WHERE {where} AND mig_instance IS NOT NULL AND replaced_by IS NULL ORDER BY gpu, mig_instance
"""
_GPUS = r"""
WITH trouble AS (
    SELECT gpu_uuid, list(concat(rule, ' (' || regexp_extract(muted, '^\w+') || ')') ORDER BY rule) AS rules
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL GROUP BY gpu_uuid
)
SELECT i.node, i.gpu, i.gpu_uuid, i.model, g.util_percent, g.memory_used_bytes,
    g.memory_total_bytes, g.power_watts, g.power_limit_watts, g.temperature_celsius, g.sm_clock_mhz,
    i.usd_per_hour, t.rules, g.gpu_uuid IS NULL AS silent, i.memory_numa_node, g.idle_since
FROM gpus i
LEFT JOIN gpus_now g USING (gpu_uuid)
LEFT JOIN trouble t USING (gpu_uuid)
WHERE i.mig_instance IS NULL AND i.replaced_by IS NULL AND i.node = $node
ORDER BY i.gpu
"""
_BESIDE = f"""
WITH working AS (
    SELECT gpu_uuid, job FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
)
SELECT DISTINCT gpu_uuid FROM working WHERE job IN (SELECT job FROM working WHERE gpu_uuid IN
    (SELECT gpu_uuid FROM gpus WHERE {{where}})) ORDER BY gpu_uuid LIMIT {GPUS_MAX}
"""


_WEEK = """
SELECT sum(usd) AS usd, sum(usd) FILTER (is_waste) AS wasted_usd FROM waste
WHERE {where} AND ts >= now()::TIMESTAMP - INTERVAL 7 DAY
"""
_DIAGNOSES = """
SELECT gpu, bottleneck, summary, advice, usd_per_hour, began_at FROM diagnoses
WHERE kind = 'gpu' AND ended_at IS NULL AND {where} AND seen_at > now()::TIMESTAMP - INTERVAL 10 MINUTE
ORDER BY usd_per_hour DESC NULLS LAST, gpu
"""
_RACK = """
SELECT coalesce(n.labels['rack'], min(g.chassis_serial), min(g.fabric_cluster_uuid)) AS rack, min(g.tray) AS tray
FROM nodes n LEFT JOIN gpus g ON g.node = n.node AND g.replaced_by IS NULL WHERE n.node = $node GROUP BY n.labels
"""
_SPOOL = "SELECT spool_batches, spool_bytes FROM nodes_now WHERE node = $node"
_SUBJECT = "subject IN (SELECT unnest($gpu_uuids))"


@dataclass(frozen=True, slots=True)
class PlaceVerdict:
    """What a page of a node or a GPU says first."""

    level: str
    """critical, warning, info, good, or "": nothing is known."""
    word: str
    sentence: str
    action: str = ""
    since: datetime | None = None
    usd_per_hour: float | None = None
    path: str = ""
    """The address of its evidence."""


@dataclass(frozen=True, slots=True)
class PlaceNow:
    """Current state of a node or a GPU."""

    now: datetime
    node: str
    gpu: int | None
    gpu_uuid: str | None
    silent_since: datetime | None
    """Time of its last sample, if that is too long ago."""
    facts: Sequence[tuple[str, str | datetime]]
    gpus: Sequence[Record]
    """All GPUs of the node."""
    mig: Sequence[Record]
    """MIG devices of the node or the GPU."""
    parent_gpu_uuid: str | None
    """The GPU that a MIG device is part of."""
    beside: Sequence[str]
    """GPUs of the same jobs now."""
    processes: Sequence[Record]
    alerts: Sequence[Record]
    diagnoses: Sequence[Record] = ()
    """Verdicts that hold now, the most expensive first."""
    week_usd: float | None = None
    """What it cost in seven days; None: no known price."""
    week_wasted_usd: float | None = None
    spool: Record | None = None
    """`spool_batches` and `spool_bytes` of its agent; None: not known now."""
    rack: str | None = None
    tray: int | None = None
    """Number of its tray in the rack."""

    @property
    def verdict(self) -> PlaceVerdict:
        """The worst that is known: silence, an alert, what the diagnosis found; else what it does."""
        if self.silent_since is not None:
            return PlaceVerdict(
                "warning",
                "Not reporting",
                f"The last sample came {readable((self.now - self.silent_since).total_seconds())} ago.",
                "Check the node and its agent.",
                self.silent_since,
            )
        if self.alerts:
            worst = self.alerts[0]
            others = len(self.alerts) - 1
            return PlaceVerdict(
                worst["severity"],
                worst["severity"].capitalize(),
                worst["summary"] + (f" {others} more below." if others else ""),
                worst["remedy"] or "",
                worst["began_at"],
                worst["usd_per_hour"],
                f"/alerts/{worst['fingerprint']}",
            )
        if self.diagnoses:
            first = self.diagnoses[0]
            subject = "" if self.gpu_uuid is not None else f"GPU {first['gpu']}: "
            is_loss = bool(first["usd_per_hour"])
            return PlaceVerdict(
                "info" if is_loss else "good",
                "Could be faster" if is_loss else "Well",
                subject + first["summary"],
                first["advice"] or "",
                first["began_at"],
                first["usd_per_hour"],
            )
        return self._at_work()

    def _at_work(self) -> PlaceVerdict:
        gpus = [one for one in self.gpus if self.gpu_uuid in (None, one["gpu_uuid"])]
        known = [one["util_percent"] for one in gpus if one["util_percent"] is not None]
        if not gpus:
            return PlaceVerdict("good", "Well", "No alert is firing.")
        if not known:
            return PlaceVerdict("", "Not judged", "Its readings do not say what it does.")
        busy = sum(1 for percent in known if percent >= IDLE_BELOW_PERCENT)
        if self.gpu_uuid is None:
            said = f"{busy} of {len(gpus)} GPUs are busy, and no alert is firing."
            return PlaceVerdict("good", "Well", said)
        said = "A kernel runs on it" if busy else "Nothing runs on it"
        return PlaceVerdict(
            "good" if busy else "", "Busy" if busy else "Idle", f"{said}, and no alert is firing."
        )

    @property
    def process_lines(self) -> Sequence[ProcessLine]:
        """Its processes below what started them."""
        return process_lines(self.processes)

    @property
    def holders(self) -> Sequence[tuple[str | None, str | None]]:
        """Owner and job of its processes."""
        return [*dict.fromkeys((one["username"], one["job"]) for one in self.processes)]

    @property
    def reading(self) -> Record | None:
        """The newest sample of the GPU; None: a node, or a GPU that is silent."""
        of_it = (one for one in self.gpus if one["gpu_uuid"] == self.gpu_uuid and not one["silent"])
        return next(of_it, None)

    @property
    def totals(self) -> Mapping[str, float]:
        """Sums, maxima and means over the GPUs of the node; without those that no GPU reports."""
        read = {
            name: [gpu[name] for gpu in self.gpus if gpu[name] is not None]
            for name in ("power_watts", "temperature_celsius", "util_percent")
        }
        how: Mapping[str, Callable[[list[float]], float]] = {
            "power_watts": sum,
            "temperature_celsius": max,
            "util_percent": mean,
        }
        return {name: how[name](values) for name, values in read.items() if values}

    @property
    def shared_memory(self) -> Sequence[tuple[int, int]]:
        """Index and NUMA node of GPUs whose memory is part of the host's (Grace)."""
        known = [(gpu["gpu"], gpu["memory_numa_node"]) for gpu in self.gpus]
        return [(gpu, node) for gpu, node in known if node is not None]

    @property
    def siblings(self) -> Mapping[str, Sequence[str]]:
        """GPUs to compare this one with, by `node` and `job`."""
        if self.gpu_uuid is None:
            return {}
        found = {"node": [gpu["gpu_uuid"] for gpu in self.gpus], "job": self.beside}
        return {name: uuids for name, uuids in found.items() if set(uuids) - {self.gpu_uuid}}

    @property
    def compare(self) -> Sequence[tuple[str, str]]:
        """Choices for the comparison: value and text."""
        own = [] if self.gpu_uuid is None else [("own", "its own weeks")]
        return [*own, *((name, f"other GPUs of the {name}") for name in self.siblings)]

    @property
    def title(self) -> str:
        """Title of the page."""
        return self.node if self.gpu_uuid is None else f"{self.node} GPU {self.gpu}"


async def read_place(querier: Querier, place: Place, now: datetime) -> PlaceNow | None:
    """Read a node or one GPU; None: there is no such node or GPU. Raises QueryError."""
    table, where = "nodes" if place.node else "gpus", place.where
    params = place.params
    # Alone and first: for what never reported, the others would read samples for nothing.
    known = (await querier.query(f"SELECT * FROM {table} WHERE {where}", params)).records()
    if not known:
        return None
    item = known[0]
    queries = (
        (PROCESSES.format(where=where), params),
        (_ALERTS.format(where=where), params),
        (_MIG.format(where=place.where_node), params),
        (_BESIDE.format(where=where), params),
        (_GPUS, {"node": item["node"]}),
        (_DIAGNOSES.format(where=where if place.node else _SUBJECT), params),
        (_WEEK.format(where=where), params),
        (_SPOOL, {"node": item["node"]}),
        (_RACK, {"node": item["node"]}),
    )
    found = await query_all(querier, queries)
    processes, alerts, mig, beside, gpus, diagnoses, week, spool, racks = (
        result.records() for result in found
    )
    uuid, parent = item.get("gpu_uuid"), item.get("parent_gpu_uuid")
    if uuid is not None:
        mig = [one for one in mig if one["gpu"] == item["gpu"]]
    seen = item["last_seen_at"]
    return PlaceNow(
        now,
        item["node"],
        item.get("gpu") if table == "gpus" else None,
        uuid,
        seen if seen is not None and now - seen > SILENT_AFTER else None,
        [
            (_spaced(name), _text_of(value))
            for name, value in item.items()
            if _is_shown(name, value)
        ],
        gpus,
        mig,
        parent,
        [str(one["gpu_uuid"]) for one in beside],
        processes,
        alerts,
        diagnoses,
        week[0]["usd"],
        week[0]["wasted_usd"],
        next((one for one in spool if one["spool_batches"] is not None), None),
        *((racks[0]["rack"], racks[0]["tray"]) if racks else ()),
    )


async def read_gpu_uuid(querier: Querier, node: str, gpu: int) -> str | None:
    """UUID of the GPU with an index on a node. Raises QueryError."""
    found = await querier.query(
        "SELECT gpu_uuid FROM gpus WHERE node = $node AND gpu = $gpu AND mig_instance IS NULL"
        " AND replaced_by IS NULL LIMIT 1",
        {"node": node, "gpu": gpu},
    )
    return str(found.rows[0][0]) if found.rows else None


def _is_shown(name: str, value: object) -> bool:
    return name not in _HIDDEN and value not in (None, "", "{}", [])


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _text_of(value: Any) -> str | datetime:
    return value if isinstance(value, datetime) else str(value)
