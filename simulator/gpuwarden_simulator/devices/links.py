"""Simulates NVLinks of a GPU and InfiniBand ports of its node, every ten seconds.

The GPU's NVLink bytes are divided between the links that are up, to the last KiB, so that the sum of the
links is always that of the GPU. A port carries a share of the NVLink traffic of the GPU beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuwarden.models import GpuModel
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.hardware import (
    SimulatedGpu,
    generation_of,
    has_nvswitch,
    is_amd,
)

KIB = 1024
SWITCHES = 4

INFINIBAND_SHARE = 0.08
"""Bytes between nodes for each byte between GPUs of one node."""
PACKET_BYTES = 4096
KEEPALIVE_BYTES_PER_SECOND = 2_000


class LinkTrouble(NamedTuple):
    """Faults of one link."""

    is_down: bool = False
    downs: int = 0
    """How often it went down since the driver was loaded."""


@dataclass(slots=True)
class LinkBytes:
    """KiB that each link of a GPU has carried; divided at each reading from those of the GPU."""

    tx_kib: list[int]
    rx_kib: list[int]

    def share(self, tx_bytes: float, rx_bytes: float, down: Mapping[int, LinkTrouble]) -> None:
        """Divide the GPU's counters. If they fell, the driver was loaded again."""
        up: Sequence[int] = range(len(self.tx_kib))
        if down:
            up = [link for link in up if not (link in down and down[link].is_down)]
        _share(self.tx_kib, int(tx_bytes) // KIB, up)
        _share(self.rx_kib, int(rx_bytes) // KIB, up)


def _share(links: list[int], total: int, up: Sequence[int]) -> None:
    grown = total - sum(links)
    if grown < 0:
        links[:] = [0] * len(links)
        grown = total
    if not up or not grown:
        return
    each, rest = divmod(grown, len(up))
    for link in up:
        links[link] += each
    for link in up[:rest]:
        links[link] += 1


def link_count(model: GpuModel) -> int:
    """Number of NVLinks with rows; AMD's links are not simulated."""
    return 0 if is_amd(model) else model.nvlinks


def no_bytes(model: GpuModel) -> LinkBytes:
    """Counters before the first reading."""
    count = link_count(model)
    return LinkBytes([0] * count, [0] * count)


def link_templates(device: SimulatedGpu, devices: Sequence[SimulatedGpu]) -> tuple[Row, ...]:
    """The constant columns of a row of link_samples for each link."""
    count, generation = link_count(device.model), device.generation
    row: Row = {
        "gpu": device.index,
        "gpu_uuid": device.uuid,
        "link_type": "nvlink",
        "link": 0,
        "version": generation.nvlink_version,
        "active": True,
        "speed_bytes_per_second": generation.nvlink_bytes_per_second,
        "tx_bytes_total": 0,
        "rx_bytes_total": 0,
    }
    row |= dict.fromkeys(_NVLINK5_COUNTERS if generation.nvlink_version == 5 else _COUNTERS, 0)
    neighbour = device.index ^ 1
    rows = []
    for link in range(count):
        if has_nvswitch(device.model):
            remote: Row = {"remote_type": "switch", "remote_pci_bus_id": _switch(link)}
        elif neighbour < len(devices):
            remote = {"remote_type": "gpu", "remote_pci_bus_id": devices[neighbour].pci_bus_id}
        else:
            continue  # A bridge needs two boards.
        rows.append({**row, **remote, "link": link})
    return tuple(rows)


def _switch(link: int) -> str:
    return f"0000:{0xC1 + link % SWITCHES:02x}:00.0"


_COUNTERS = (
    "replay_errors_total",
    "recovery_errors_total",
    "crc_flit_errors_total",
    "crc_data_errors_total",
)

_NVLINK5_COUNTERS = (
    "malformed_packets_total",
    "buffer_overruns_total",
    "rx_errors_total",
    "rx_remote_errors_total",
    "rx_general_errors_total",
    "local_integrity_errors_total",
    "tx_discards_total",
    "recoveries_successful_total",
    "recoveries_failed_total",
    "effective_errors_total",
    "symbol_errors_total",
)


def link_rows(
    templates: Sequence[Row], carried: LinkBytes, troubles: Mapping[int, LinkTrouble]
) -> list[Row]:
    """The rows of link_samples of one GPU."""
    rows: list[Row] = []
    for link, usual in enumerate(templates):
        row = usual.copy()
        row["tx_bytes_total"] = carried.tx_kib[link] * KIB
        row["rx_bytes_total"] = carried.rx_kib[link] * KIB
        if link in troubles:
            _add_trouble(row, troubles[link])
        rows.append(row)
    return rows


def _add_trouble(row: Row, trouble: LinkTrouble) -> None:
    downs = trouble.downs
    if trouble.is_down:
        row["active"] = False
        row["speed_bytes_per_second"] = None
    if row["version"] == 5:
        row["recoveries_failed_total"] = downs
        row["recoveries_successful_total"] = 4 * downs
        row["rx_errors_total"] = row["effective_errors_total"] = 12 * downs
        row["symbol_errors_total"] = 900 * downs
    else:
        row["recovery_errors_total"] = downs
        row["replay_errors_total"] = 3 * downs
        row["crc_flit_errors_total"] = 40 * downs


@dataclass(frozen=True, slots=True)
class Adapters:
    """InfiniBand adapters of a node."""

    count: int
    bits_per_second: float

    def name(self, number: int) -> str:
        """Name of an adapter as the kernel gives it."""
        return f"mlx5_{number}"

    def numa_node(self, number: int) -> int:
        """NUMA node of an adapter: that of the GPU beside it."""
        return 0 if number < (self.count + 1) // 2 else 1


def adapters_of(model: GpuModel, gpus: int) -> Adapters:
    """One adapter beside each GPU on boards of large nodes, two GPUs an adapter on Volta's."""
    if is_amd(model) or ("SXM" not in model.name and not model.name.startswith(("GB", "GH"))):
        return Adapters(0, 0.0)
    match generation_of(model).architecture:
        case "hopper" | "blackwell":
            return Adapters(gpus, 800e9 if "B300" in model.name else 400e9)
        case "ampere":
            return Adapters(gpus, 200e9)
        case _:
            return Adapters((gpus + 1) // 2, 100e9)


class PortTrouble(NamedTuple):
    """Faults of one port."""

    is_down: bool = False
    downs: int = 0
    """How often it went down since the node was up."""


@dataclass(slots=True)
class Port:
    """Bytes that one port has carried, and its GPU's counter at the last reading."""

    tx_bytes: int
    seen_bytes: float
    discards: int = 0


def port_row(adapters: Adapters, number: int, port: Port, trouble: PortTrouble | None) -> Row:
    """The row of infiniband_samples of one port."""
    sent = port.tx_bytes // 4 * 4
    row: Row = {
        "device": adapters.name(number),
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "active",
        "physical_state": "LinkUp",
        "numa_node": adapters.numa_node(number),
        "rate_bits_per_second": adapters.bits_per_second,
        "tx_bytes_total": sent,
        "rx_bytes_total": sent,
        "tx_packets_total": sent // PACKET_BYTES,
        "rx_packets_total": sent // PACKET_BYTES,
        "tx_waits_total": sent // 50_000,
        "tx_discards_total": port.discards,
        "rx_errors_total": 0,
        "symbol_errors_total": 0,
        "link_downed_total": 0,
        "link_recoveries_total": 0,
        "local_integrity_errors_total": 0,
        "buffer_overruns_total": 0,
        "out_of_sequence_total": 0,
        "ack_timeouts_total": 0,
        "roce_slow_restarts_total": 0,
    }
    if trouble is not None:
        downs = trouble.downs
        row["link_downed_total"] = downs
        row["symbol_errors_total"] = 60 * downs
        row["rx_errors_total"] = 5 * downs
        row["ack_timeouts_total"] = 8 * downs
        if trouble.is_down:
            row["state"], row["physical_state"] = "down", "Polling"
            # The agent does not report the rate of a port that has not trained.
            del row["rate_bits_per_second"]
    return row


def carry(port: Port, gpu_bytes: float, dt: float, trouble: PortTrouble | None) -> None:
    """Add traffic from the NVLink counter of the port's GPU after `dt` seconds; a port that is down drops it."""
    grown = gpu_bytes - port.seen_bytes
    port.seen_bytes = gpu_bytes
    if grown < 0:  # the driver was loaded again
        return
    share = int(grown * INFINIBAND_SHARE)
    if trouble is not None and trouble.is_down:
        port.discards += min(share // PACKET_BYTES, int(100 * dt))
        return
    port.tx_bytes += share + int(KEEPALIVE_BYTES_PER_SECOND * dt)
