"""Reads how the GPUs of a node are connected: NVLink and other links, PCIe, paths between GPUs, network adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.metrics import METRICS, Kind
from gpuwarden.query import Querier, query_all

_RATE_OVER = "2 MINUTE"
_ERRORS_OVER = "1 HOUR"
LINK_ERRORS = tuple(
    m.name
    for m in METRICS["link_samples"]
    if m.kind is Kind.COUNTER and not m.name.endswith("bytes_total")
)
"""Counters of errors of a link."""
_PORT_ERRORS = (
    "tx_discards_total", "rx_errors_total", "symbol_errors_total", "link_downed_total", "link_recoveries_total",
    "local_integrity_errors_total", "buffer_overruns_total", "out_of_sequence_total", "ack_timeouts_total",
)  # fmt: skip
_KEYS = {
    "link_samples": ("gpu_uuid", "link_type", "link"),
    "infiniband_samples": ("device", "port"),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Records with the columns of the queries below. Rates are bytes per second over two minutes; errors are
    the increases of the counters in the last hour, without zeros."""

    node: str
    gpus: Sequence[Mapping[str, Any]]
    """With the MIG devices of each under `mig`."""
    links: Sequence[Mapping[str, Any]]
    ports: Sequence[Mapping[str, Any]]
    ways: Sequence[tuple[int, int, str]]
    """Indices of two GPUs, and the path between them as `nvidia-smi topo` names it."""


async def read_topology(querier: Querier, node: str, end: datetime) -> Topology:
    """The topology at `end`. Raises QueryError."""
    gpus_sql = f"""
        SELECT g.gpu, g.gpu_uuid, g.model, g.pci_bus_id, g.numa_node, g.cpu_affinity, g.nvlinks, g.pcie_generation_max,
            g.pcie_width_max, g.peers, g.parent_gpu_uuid, g.mig_instance, g.memory_total_bytes, d.* EXCLUDE (of_gpu)
        FROM gpus g LEFT JOIN (
            SELECT gpu_uuid AS of_gpu, pcie_generation, pcie_width, pcie_rx_bytes_per_second, pcie_tx_bytes_per_second
            FROM gpu_detail_samples WHERE node = $node AND ts <= $end AND ts > $end - INTERVAL {_RATE_OVER}
            QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC) = 1
        ) d ON d.of_gpu = g.gpu_uuid
        WHERE g.node = $node AND g.replaced_by IS NULL ORDER BY g.gpu, g.mig_instance NULLS FIRST
    """
    links_sql = _counted_sql(
        "link_samples", LINK_ERRORS, "version, remote_type, remote_pci_bus_id, active, speed_bytes_per_second"
    )  # fmt: skip
    ports_sql = _counted_sql(
        "infiniband_samples", _PORT_ERRORS, "link_layer, state, physical_state, numa_node, rate_bits_per_second"
    )  # fmt: skip
    params = {"node": node, "end": end}
    found = await query_all(querier, [(sql, params) for sql in (gpus_sql, links_sql, ports_sql)])
    rows, links, ports = (result.records() for result in found)
    gpus = [row for row in rows if row["parent_gpu_uuid"] is None and row["mig_instance"] is None]
    devices = [row for row in rows if row not in gpus]
    ways = _ways(gpus)
    for gpu in gpus:
        del gpu["peers"]
        gpu["mig"] = [
            {name: device[name] for name in ("gpu_uuid", "mig_instance", "memory_total_bytes")}
            for device in devices
            if device["parent_gpu_uuid"] == gpu["gpu_uuid"]
            or (device["parent_gpu_uuid"] is None and device["gpu"] == gpu["gpu"])
        ]
    return Topology(
        node,
        gpus,
        [_with_errors(link, LINK_ERRORS) for link in links],
        [_with_errors(port, _PORT_ERRORS) for port in ports],
        ways,
    )


def _counted_sql(table: str, counters: Sequence[str], state: str) -> str:
    """SELECT of the newest state of each link or port, its rates, and the increases of its error counters."""
    keys = ", ".join(_KEYS[table])
    states = state.split(", ")
    ways = ("tx_bytes_total", "rx_bytes_total")
    # A row as one value: each group finds its first and newest row with one comparison per row.
    row = ", ".join(f"'{name}': {name}" for name in ("ts", *states, *ways, *counters))
    recent = f"FILTER (ts > $end - INTERVAL {_RATE_OVER})"
    seconds = "nullif(date_diff('ms', recent.ts, newest.ts), 0) / 1000"
    rates = ", ".join(
        f"CASE WHEN newest.{name} >= recent.{name} THEN (newest.{name} - recent.{name}) / ({seconds}) END "
        f"AS {name.removesuffix('_total')}_per_second"
        for name in ways
    )
    # A counter that fell was reset.
    errors = ", ".join(
        f"newest.{name} - if(newest.{name} < earliest.{name}, 0, earliest.{name}) AS {name}"
        for name in counters
    )
    return f"""
        WITH ends AS (
            SELECT {keys}, arg_min({{{row}}}, ts) AS earliest, arg_min({{{row}}}, ts) {recent} AS recent,
                arg_max({{{row}}}, ts) AS newest
            FROM {table} WHERE node = $node AND ts <= $end AND ts > $end - INTERVAL {_ERRORS_OVER} GROUP BY {keys}
        )
        SELECT {keys}, epoch_ms(newest.ts) AS seen_ms, {", ".join(f"newest.{name} AS {name}" for name in states)},
            {rates}, {errors}
        FROM ends ORDER BY {keys}
    """


def _with_errors(record: dict[str, Any], counters: Sequence[str]) -> dict[str, Any]:
    gained = {name: record.pop(name) for name in counters}
    return {**record, "errors": {name: value for name, value in gained.items() if value}}


def _ways(gpus: Sequence[Mapping[str, Any]]) -> list[tuple[int, int, str]]:
    by_bus = {gpu["pci_bus_id"]: gpu["gpu"] for gpu in gpus if gpu["pci_bus_id"]}
    return [
        (gpu["gpu"], by_bus[bus], way)
        for gpu in gpus
        for bus, way in (gpu["peers"] or {}).items()
        if bus in by_bus
    ]
