"""Lists facts about GPU models that the catalogue does not have.

Sources: nvidia-smi output of H100, H200, L40S and RTX 2080 Super (idle clocks, P-states, reserved
memory, minimum limits, banks of the row remapper, speed of NVLinks); thresholds of A100, T4, A10G,
P100 and GeForce parts as nvidia-smi prints them. Hopper and Ada devices report margins instead of
absolute thresholds, so theirs are absent.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gpuwarden.models import GIB, GpuModel
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.vendors import device_uuid, source_of, tells

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Generation:
    """Facts common to the devices of one generation."""

    architecture: str
    compute_capability: str
    idle_sm_mhz: int
    idle_pstate: int
    pcie_generation: int
    throttle_celsius: float
    """Core temperature that software holds the device to."""
    vbios: str
    slowdown_celsius: float | None = None
    """Core temperature of hardware slowdown as reported; None: the device reports margins."""
    shutdown_celsius: float | None = None
    memory_max_celsius: float | None = None
    has_hbm: bool = False
    has_gpm: bool = False
    """GPM is available: activity of SMs, tensor cores and memory."""
    margin_shutdown_celsius: float = -8.0
    nvlink_version: int | None = None
    nvlink_bytes_per_second: float = 0.0
    """Speed of one link, one way."""
    remap_banks: int | None = None
    """Banks of the row remapper; None: pages are retired instead."""

    @property
    def hardware_throttle_celsius(self) -> float:
        """Core temperature at which the hardware halves the clocks."""
        return self.slowdown_celsius or self.throttle_celsius + 2

    @property
    def reports_margins(self) -> bool:
        """Reports T.Limit margins instead of absolute thresholds."""
        return self.slowdown_celsius is None


_BLACKWELL = Generation(
    "blackwell", "10.0", 120, 0, 5, 87.0, "97.00.82.00.11", has_hbm=True, has_gpm=True,
    nvlink_version=5, nvlink_bytes_per_second=50e9, remap_banks=4096,
)  # fmt: skip
_HOPPER = Generation(
    "hopper", "9.0", 345, 0, 5, 87.0, "96.00.A5.00.01", has_hbm=True, has_gpm=True,
    nvlink_version=4, nvlink_bytes_per_second=26.562e9, remap_banks=2560,
)  # fmt: skip
_A100 = Generation(
    "ampere", "8.0", 210, 0, 4, 85.0, "92.00.45.00.03", 89.0, 92.0, 95.0, has_hbm=True,
    nvlink_version=3, nvlink_bytes_per_second=25e9, remap_banks=640,
)  # fmt: skip
_AMPERE = Generation(
    "ampere", "8.6", 210, 8, 4, 88.0, "94.02.5C.00.0D", 95.0, 98.0,
    nvlink_version=3, nvlink_bytes_per_second=14.062e9, remap_banks=192,
)  # fmt: skip
_ADA = Generation(
    "ada", "8.9", 210, 8, 4, 83.0, "95.02.66.00.02", margin_shutdown_celsius=-5.0, remap_banks=192
)
_RTX_BLACKWELL = Generation(
    "blackwell", "12.0", 180, 8, 5, 85.0, "98.02.2E.00.03", margin_shutdown_celsius=-5.0,
    remap_banks=192,
)  # fmt: skip
_TURING = Generation(
    "turing", "7.5", 300, 8, 3, 85.0, "90.04.38.00.03", 93.0, 96.0,
    nvlink_version=2, nvlink_bytes_per_second=25.781e9,
)  # fmt: skip
_VOLTA = Generation(
    "volta", "7.0", 135, 0, 3, 83.0, "88.00.43.00.03", 87.0, 90.0, 85.0, has_hbm=True,
    nvlink_version=2, nvlink_bytes_per_second=25.781e9,
)  # fmt: skip
_PASCAL = Generation(
    "pascal", "6.0", 405, 0, 3, 80.0, "86.00.52.00.02", 82.0, 85.0, has_hbm=True,
    nvlink_version=1, nvlink_bytes_per_second=19.1e9,
)  # fmt: skip
_INSTINCT = Generation("cdna", "", 132, 0, 5, 95.0, "113-M3000108-103", 100.0, 105.0, has_hbm=True)

_ACCELERATOR = Generation("", "", 100, 0, 4, 95.0, "", 100.0, 105.0, has_hbm=True, has_gpm=True)
"""Of vendors whose sources tell little of it: limits are assumed."""

_WITH_MIG = (_BLACKWELL, _HOPPER, _A100)

_GENERATIONS: tuple[tuple[tuple[str, ...], Generation], ...] = (
    (("GB", "B200", "B300"), _BLACKWELL),
    (("GH", "H100", "H200"), _HOPPER),
    (("A100",), _A100),
    (("RTX-PRO", "RTX-50"), _RTX_BLACKWELL),
    (("L4", "RTX-6000-Ada", "RTX-40"), _ADA),
    (("A", "RTX-A", "RTX-30"), _AMPERE),
    (("T4", "RTX-20"), _TURING),
    (("V100",), _VOLTA),
    (("P100",), _PASCAL),
    (("MI",), _INSTINCT),
)
"""Generations by the start of the model's name; first match wins."""

_NVSWITCH_STARTS = ("GB", "B200-SXM", "B300-SXM", "H200-SXM", "H100-SXM", "A100-SXM")
"""Boards whose NVLinks go to switches; those of other boards go to a neighbour."""

_FAN_STARTS = ("RTX",)
"""Boards with their own fans; data-centre boards use the server's."""

_DRIVER = "580.95.05"

_INFOROMS = {"hopper": "G520.0200.00.05", "ada": "G133.0242.00.03", "turing": "G183.0200.00.02"}

_CPU_MODELS = {
    3: "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz",
    4: "AMD EPYC 7763 64-Core Processor",
    5: "Intel(R) Xeon(R) Platinum 8480+",
}


def generation_of(model: GpuModel) -> Generation:
    """The generation of a model of the catalogue. Raises ValueError for one that it does not know."""
    if source_of(model) is not None:
        return _ACCELERATOR
    for starts, generation in _GENERATIONS:
        if model.name.startswith(starts):
            return generation
    raise ValueError(f"the simulator does not know the generation of {model.name!r}")


def is_geforce(model: GpuModel) -> bool:
    """Consumer devices: no serial number, no ECC, P2 under compute."""
    return model.name.startswith(("RTX-20", "RTX-30", "RTX-40", "RTX-50"))


def cpu_model_of(model: GpuModel) -> str:
    """A usual CPU in hosts with that GPU."""
    return _CPU_MODELS[generation_of(model).pcie_generation]


def driver_facts(model: GpuModel) -> Row:
    """Columns of `nodes` from the driver of NVIDIA or AMD."""
    if generation_of(model) is _INSTINCT:
        return {"driver_version": "6.14.14"}
    facts: Row = {"driver_version": _DRIVER, "cuda_version": "13.0", "kernel_module": "open"}
    if has_nvswitch(model):
        facts |= {"fabric_manager": "active", "fabric_manager_version": _DRIVER}
    return facts


def is_amd(model: GpuModel) -> bool:
    """Whether it is an AMD GPU, most of whose driver is not simulated."""
    return generation_of(model) is _INSTINCT


def has_nvswitch(model: GpuModel) -> bool:
    """Whether NVLinks go to switches; the node then registers with a fabric."""
    return model.name.startswith(_NVSWITCH_STARTS)


def has_ecc(model: GpuModel) -> bool:
    """Whether memory has ECC; that of GeForce has no check bits."""
    if source_of(model) is not None:
        return tells(model, "ecc_uncorrected_volatile_total")
    return not is_geforce(model)


def has_fan(model: GpuModel) -> bool:
    """Whether the board has its own fan."""
    return model.name.startswith(_FAN_STARTS)


def remap_banks_of(model: GpuModel) -> int | None:
    """Banks of the row remapper: 512 for each stack of HBM since Hopper; None: it has none."""
    generation = generation_of(model)
    if not has_ecc(model):
        return None
    if generation is _HOPPER and model.memory_gib > 80:
        return 3072
    return generation.remap_banks


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One simulated GPU: facts of its model, and small differences from others of the model."""

    model: GpuModel
    generation: Generation
    index: int
    uuid: str
    serial: str | None
    pci_bus_id: str
    numa_node: int
    memory_total_bytes: int
    memory_reserved_bytes: int
    idle_watts: float
    """Power with no context on the device."""
    context_watts: float
    """Power with a context that runs nothing: on parts that idle in P0 the clocks stay up."""
    inlet_celsius: float
    """Mean temperature of the air or water that reaches the device."""
    kelvin_per_watt: float
    """Thermal resistance from core to inlet with good cooling."""
    power_limit_min_watts: float
    """Lowest limit that can be set: 200 W of 700 on H100, 100 W of 350 on L40S."""
    busy_pstate: int
    """GeForce parts compute in P2."""
    absent: tuple[str, ...]
    """Columns of gpu_samples that the device does not have."""

    def describe(self) -> Row:
        """The device's row of `gpus`, without columns that depend on the node."""
        model, generation = self.model, self.generation
        is_nvidia = not is_amd(model)
        reports_margins = generation.reports_margins
        row: Row = {
            "gpu_uuid": self.uuid,
            "gpu": self.index,
            "model": model.driver_name,
            "vendor": "nvidia" if is_nvidia else "amd",
            "kind": "gpu",
            "serial": self.serial,
            "pci_bus_id": self.pci_bus_id,
            "vbios_version": generation.vbios,
            "memory_total_bytes": self.memory_total_bytes,
            "power_limit_default_watts": float(model.tdp_watts),
            "power_limit_min_watts": self.power_limit_min_watts,
            "power_limit_max_watts": float(model.tdp_watts),
            "temperature_slowdown_celsius": generation.slowdown_celsius,
            "temperature_shutdown_celsius": generation.shutdown_celsius,
            "temperature_memory_max_celsius": generation.memory_max_celsius,
            "sm_clock_max_mhz": model.sm_clock_max_mhz,
            "memory_clock_max_mhz": model.memory_clock_mhz,
            "pcie_generation_max": generation.pcie_generation,
            "pcie_width_max": 16,
            "nvlinks": model.nvlinks,
            "numa_node": self.numa_node,
            # Parts without MIG have no mode to be off.
            "mig_mode": False if generation in _WITH_MIG else None,
            "architecture": generation.architecture,
        }
        if not is_nvidia:
            return row
        if not reports_margins:
            row["temperature_gpu_max_celsius"] = generation.throttle_celsius
        else:
            row["margin_slowdown_celsius"] = -2.0
            row["margin_shutdown_celsius"] = generation.margin_shutdown_celsius
            row["margin_gpu_max_celsius"] = 0.0
            row["margin_memory_max_celsius"] = 0.0 if generation.has_hbm else None
        ecc = True if has_ecc(model) else None
        return row | {
            "compute_capability": generation.compute_capability,
            "inforom_version": _INFOROMS.get(generation.architecture),
            "ecc_mode": ecc,
            "ecc_mode_pending": ecc,
            "persistence_mode": not is_geforce(model),
            "compute_mode": "default",
            "gsp_firmware_version": _DRIVER if generation.pcie_generation >= 4 else None,
            "virtualization": "none",
            "module_id": self.index + 1 if has_nvswitch(model) else None,
        }


NVL72_TRAYS = 18
"""Compute trays of a rack."""
NVL72_TRAY_GPUS = 4
_LOWER_TRAYS, _SWITCH_TRAYS = 8, 9
"""Slots are counted from below: compute trays, the trays of the switches, compute trays."""


def has_rack(model: GpuModel) -> bool:
    """Whether its nodes are trays of racks with one NVLink domain each."""
    return model.name.startswith("GB")


def rack_facts(model: GpuModel, seed: int, number: int) -> Row:
    """Columns of `gpus` from the rack of a fleet's node: 18 nodes share one. `number`: that of the node, from 0."""
    if not has_rack(model):
        return {}
    rack, tray = divmod(number, NVL72_TRAYS)
    rng = random.Random(f"rack/{seed}/{rack}")
    return {
        "fabric_cluster_uuid": str(UUID(int=rng.getrandbits(128))),
        "fabric_clique": 32766,
        "chassis_serial": f"18{rng.randrange(10**11):011d}",
        "tray": tray,
        "slot": tray + 1 if tray < _LOWER_TRAYS else tray + 1 + _SWITCH_TRAYS,
    }


def peers_of(device: SimulatedGpu, devices: Sequence[SimulatedGpu]) -> str:
    """Connections to the other GPUs of the node, named as by nvidia-smi topo, by PCI bus id."""
    ways = {}
    for other in devices:
        if other is device:
            continue
        links = device.model.nvlinks
        is_neighbour = other.index == device.index ^ 1
        if links and not is_amd(device.model) and (has_nvswitch(device.model) or is_neighbour):
            way = f"NV{links}"
        else:
            way = "NODE" if other.numa_node == device.numa_node else "SYS"
        ways[other.pci_bus_id] = way
    return json.dumps(ways)


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _absent_columns(model: GpuModel, generation: Generation) -> tuple[str, ...]:
    """Columns that the model's driver does not support."""
    absent: list[str] = []
    if not generation.has_hbm:
        absent.append("memory_temperature_celsius")
    if not model.nvlinks or generation is _INSTINCT:
        absent += ["nvlink_tx_bytes_total", "nvlink_rx_bytes_total"]
    if generation is _PASCAL:  # energy counters came with Volta
        absent.append("energy_joules_total")
    if generation is _INSTINCT:  # these are NVIDIA's notions
        absent += ["pstate", "clocks_event_reasons", "memory_reserved_bytes"]
        absent += ["encoder_util_percent", "decoder_util_percent", "sw_thermal_seconds_total"]
        absent += ["hw_thermal_seconds_total", "hw_power_brake_seconds_total"]
    return tuple(absent)


def make_device(model: GpuModel, seed: str, index: int, gpus: int, board: int = 0) -> SimulatedGpu:
    """The device at `index` of a node with `gpus` devices; the same seed gives the same device.

    `board`: number of earlier boards in its place.
    """
    rng = random.Random(f"device/{seed}/{index}" + (f"/{board}" if board else ""))
    generation, source = generation_of(model), source_of(model)
    uuid, serial = _uuid(rng), f"{rng.randrange(10**12, 2 * 10**12)}"
    if source is not None:
        uuid = device_uuid(source, seed, index, board)
    # ECC of GDDR memory takes a sixteenth of it; HBM keeps its check bits beside the data.
    usable = 0.9956 if generation.has_hbm or is_geforce(model) else 0.9375
    idle_watts = model.idle_watts * rng.uniform(0.94, 1.06)
    return SimulatedGpu(
        model=model,
        generation=generation,
        index=index,
        uuid=uuid,
        serial=None if is_geforce(model) else serial,
        pci_bus_id=f"{index // 15:04x}:{0x0A + 0x10 * (index % 15):02x}:00.0",
        numa_node=0 if index < (gpus + 1) // 2 else 1,
        memory_total_bytes=int(model.memory_gib * GIB * usable) // MIB * MIB,
        # H100 keeps 479 MiB for the driver, H200 614.
        memory_reserved_bytes=int(400 + 1.4 * model.memory_gib) * MIB,
        idle_watts=idle_watts,
        context_watts=idle_watts * (1.5 if generation.idle_pstate == 0 else 1.12),
        inlet_celsius=rng.uniform(21.5, 25.5),
        kelvin_per_watt=40.0 / model.tdp_watts * rng.uniform(0.92, 1.08),
        power_limit_min_watts=float(round(model.tdp_watts * 0.2857)),
        busy_pstate=2 if is_geforce(model) else 0,
        absent=_absent_columns(model, generation),
    )
