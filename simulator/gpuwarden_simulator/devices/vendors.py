"""Lists what the sources of vendors other than NVIDIA and AMD tell about their devices.

Their nodes have the physics of GPUs, and only the columns that the probes of the agent fill: docs/gpus.md, "Other
accelerators". A test compares each list with what the probe reads from its vendor's published output.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwarden.instances import INSTANCES
from gpuwarden.models import GpuModel
from gpuwarden_agent.probe import Reading, Row

_IDENTITY = ("gpu", "gpu_uuid")
_MEMORY = ("memory_total_bytes", "memory_used_bytes")
_ERRORS = ("ecc_corrected_volatile_total", "ecc_uncorrected_volatile_total")
_ERRORS_EVER = ("ecc_corrected_aggregate_total", "ecc_uncorrected_aggregate_total")
_DRAM_ERRORS = ("dram_corrected_volatile_total", "dram_uncorrected_volatile_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSource:
    """One vendor's source."""

    backend: str
    """As `AcceleratorSource.backend`."""
    prefix: str
    """Of identities."""
    inventory: tuple[str, ...]
    """Columns of `gpus`, without identity, vendor, kind and model."""
    tables: Mapping[str, tuple[str, ...]]
    """Columns by table, without identity."""
    tells_processes: bool
    architecture: str | None = None
    driver_version: str | None = None
    host: Row | None = None
    """Columns of `nodes` that differ from those of a server with GPUs."""

    def tells(self, column: str) -> bool:
        """Whether it tells a column of samples."""
        return any(column in columns for columns in self.tables.values())


_OF_TOOLS = (
    "util_percent", *_MEMORY, "memory_free_bytes", "power_watts", "temperature_celsius",
)  # fmt: skip
"""What a tool prints that shows utilization, memory, power and temperature."""
_PLACE = ("pci_bus_id", "memory_total_bytes", "numa_node")

SOURCES: Sequence[SimulatedSource] = (
    SimulatedSource(
        backend="libtpu",
        prefix="TPU",
        inventory=_PLACE,
        tables={
            "gpu_samples": ("util_percent", *_MEMORY, "memory_free_bytes"),
            "gpu_detail_samples": ("dram_active_percent",),
        },
        tells_processes=True,
    ),
    SimulatedSource(
        backend="neuron",
        prefix="NEURON",
        inventory=(*_PLACE, "serial"),
        tables={
            "gpu_samples": ("util_percent", *_MEMORY, "memory_free_bytes"),
            "gpu_health_samples": (
                *_ERRORS,
                *_DRAM_ERRORS,
                "sram_corrected_volatile_total",
                "sram_uncorrected_volatile_total",
            ),
        },
        tells_processes=True,
        driver_version="2.24.7.0",
    ),
    SimulatedSource(
        backend="ascend",
        prefix="ASCEND",
        inventory=(*_PLACE, "serial", "vbios_version"),
        tables={
            "gpu_samples": ("util_percent", *_MEMORY, "power_watts", "temperature_celsius"),
            "gpu_health_samples": (
                *_ERRORS,
                *_DRAM_ERRORS,
                *_ERRORS_EVER,
                "dram_corrected_aggregate_total",
                "dram_uncorrected_aggregate_total",
                "retired_pages_corrected_total",
                "retired_pages_uncorrected_total",
                "retired_pages_pending",
            ),
        },
        tells_processes=True,
        driver_version="24.1.rc2",
    ),
    SimulatedSource(
        backend="gaudi",
        prefix="GAUDI",
        inventory=(*_PLACE, "serial", "module_id", "ecc_mode"),
        tables={
            "gpu_samples": (
                "util_percent",
                *_MEMORY,
                "memory_free_bytes",
                "power_watts",
                "temperature_celsius",
            ),
            "gpu_health_samples": (*_ERRORS, *_ERRORS_EVER),
        },
        tells_processes=False,
        driver_version="1.22.1-97ec1a4",
    ),
    SimulatedSource(
        backend="intel",
        prefix="INTEL",
        inventory=("pci_bus_id", "numa_node", "sm_clock_max_mhz", "power_limit_max_watts"),
        tables={
            "gpu_samples": (
                "util_percent",
                "sm_clock_mhz",
                "energy_joules_total",
                "power_limit_watts",
                "temperature_celsius",
                "memory_temperature_celsius",
            )
        },
        tells_processes=False,
    ),
    SimulatedSource(
        backend="tenstorrent",
        prefix="TT",
        inventory=("pci_bus_id", "numa_node", "serial", "vbios_version"),
        tables={"gpu_samples": ("sm_clock_mhz", "power_watts", "temperature_celsius")},
        tells_processes=True,
        driver_version="2.5.0",
    ),
    SimulatedSource(
        backend="mthreads",
        prefix="MTT",
        inventory=("memory_total_bytes",),
        tables={"gpu_samples": _OF_TOOLS},
        tells_processes=False,
    ),
    SimulatedSource(
        backend="cambricon",
        prefix="MLU",
        inventory=("pci_bus_id", "memory_total_bytes", "pcie_generation_max", "pcie_width_max"),
        tables={
            "gpu_samples": _OF_TOOLS,
            "gpu_detail_samples": ("pcie_generation", "pcie_width"),
        },
        tells_processes=False,
    ),
    SimulatedSource(
        backend="furiosa",
        prefix="FURIOSA",
        inventory=("pci_bus_id", "memory_total_bytes", "serial"),
        tables={"gpu_samples": (*_OF_TOOLS, "sm_clock_mhz")},
        tells_processes=False,
    ),
    SimulatedSource(
        backend="rebellions",
        prefix="RBLN",
        inventory=("pci_bus_id", "memory_total_bytes", "serial", "numa_node"),
        tables={"gpu_samples": (*_OF_TOOLS, "pstate")},
        tells_processes=True,
    ),
    SimulatedSource(
        backend="apple",
        prefix="APPLE",
        inventory=("sm_clock_max_mhz",),
        tables={
            "gpu_samples": ("util_percent", "power_watts", "temperature_celsius", "sm_clock_mhz")
        },
        tells_processes=False,
        host={"kernel": "24.6.0", "os": "macOS 15.6.1", "cpu_model": "Apple M4 Max"},
    ),
    SimulatedSource(
        backend="jetson",
        prefix="JETSON",
        inventory=("sm_clock_max_mhz", "architecture", "compute_capability"),
        tables={
            "gpu_samples": ("util_percent", "power_watts", "temperature_celsius", "sm_clock_mhz")
        },
        tells_processes=False,
        architecture="ampere",
        host={
            "kernel": "5.15.148-tegra",
            "os": "Ubuntu 22.04.5 LTS",
            "cpu_model": "ARMv8 Processor rev 1 (v8l)",
        },
    ),
)

_BACKENDS = {
    "google": "libtpu",
    "aws": "neuron",
    "huawei": "ascend",
    "intel": "gaudi",
    "apple": "apple",
    "tenstorrent": "tenstorrent",
    "mthreads": "mthreads",
    "cambricon": "cambricon",
    "furiosa": "furiosa",
    "rebellions": "rebellions",
}


def source_of(model: GpuModel) -> SimulatedSource | None:
    """The source of a model's devices; None: NVML or amdgpu."""
    backend = _BACKENDS.get(model.vendor)
    if model.name.startswith("Jetson"):
        backend = "jetson"
    elif (model.vendor, model.kind) == ("intel", "gpu"):
        backend = "intel"
    return next((source for source in SOURCES if source.backend == backend), None)


def is_nvidia(model: GpuModel) -> bool:
    """Whether NVML reads it, and the driver reports Xids."""
    return model.vendor == "nvidia" and source_of(model) is None


def tells(model: GpuModel, column: str) -> bool:
    """Whether the source of another vendor's devices tells a column of samples."""
    source = source_of(model)
    return source is not None and source.tells(column)


def device_uuid(source: SimulatedSource, seed: str, index: int, board: int) -> str:
    """Identity of a device; the same seed gives the same one."""
    rng = random.Random(f"accelerator/{seed}/{index}/{board}")
    return f"{source.prefix}-{rng.getrandbits(64):016x}"


def described(source: SimulatedSource, model: GpuModel, row: Row) -> Row:
    """A row of `gpus` with what the source tells."""
    more: Row = {"architecture": source.architecture, "compute_capability": "8.7"}
    whole = row | more | {"module_id": row["gpu"], "vbios_version": "7.3.0.1.231"}
    told = {name: whole[name] for name in source.inventory if whole.get(name) is not None}
    names: Row = {"vendor": model.vendor, "kind": model.kind, "model": model.driver_name}
    return {name: row[name] for name in _IDENTITY} | names | told


def node_facts(source: SimulatedSource, model: GpuModel, devices: int) -> Row:
    """Columns of `nodes` from the driver, and from the firmware of clouds that alone have such devices."""
    row: Row = {} if source.driver_version is None else {"driver_version": source.driver_version}
    clouds = {"google": "gcp", "aws": "aws"}
    cloud = clouds.get(model.vendor)
    for one in INSTANCES:
        if (one.cloud, one.model, one.gpus) == (cloud, model.name, devices):
            return row | {"cloud": cloud, "instance_type": one.name, "region": one.price_region}
    return row


def told_tables(source: SimulatedSource, tables: Mapping[str, int]) -> dict[str, int]:
    """Tables of a node, with seconds between readings, without those that the source does not fill."""
    of_gpus = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples")
    without = {table for table in of_gpus if table not in source.tables}
    if not source.tells_processes:
        without.add("process_samples")
    return {table: seconds for table, seconds in tables.items() if table not in without}


def told(source: SimulatedSource, reading: Reading) -> dict[str, list[Row]]:
    """A node's reading without what the source does not tell."""
    kept: dict[str, list[Row]] = {}
    for table, rows in reading.items():
        if table in source.tables:
            columns = (*_IDENTITY, *source.tables[table])
            kept[table] = [{name: row[name] for name in columns if name in row} for row in rows]
        elif table in told_tables(source, {table: 1}):
            kept[table] = list(rows)
    return kept
