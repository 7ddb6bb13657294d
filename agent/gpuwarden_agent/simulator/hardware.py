"""What a simulated device is: the facts of a GPU model that the catalogue does not hold.

Sources: nvidia-smi output of H100, H200, L40S and RTX 2080 Super (idle clocks, P-states, reserved
memory, minimum limits); thresholds of A100, T4, A10G, P100 and GeForce parts as nvidia-smi prints
them. Hopper and Ada devices report margins instead of absolute thresholds, so theirs are absent.
"""

import random
from dataclasses import dataclass

from gpuwarden.models import GIB, GpuModel
from gpuwarden_agent.probe import Row

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Generation:
    """What the devices of one generation have in common."""

    idle_sm_mhz: int
    idle_pstate: int
    pcie_generation: int
    throttle_celsius: float
    """Core temperature that software holds the device to."""
    slowdown_celsius: float | None
    """Core temperature of hardware slowdown as reported; None: the device reports margins."""
    shutdown_celsius: float | None
    has_hbm: bool
    vbios: str

    @property
    def hardware_throttle_celsius(self) -> float:
        """Core temperature at which the hardware halves the clocks."""
        return self.slowdown_celsius or self.throttle_celsius + 2


_BLACKWELL = Generation(120, 0, 5, 87.0, None, None, True, "97.00.82.00.11")
_HOPPER = Generation(345, 0, 5, 87.0, None, None, True, "96.00.A5.00.01")
_A100 = Generation(210, 0, 4, 85.0, 89.0, 92.0, True, "92.00.45.00.03")
_AMPERE = Generation(210, 8, 4, 88.0, 95.0, 98.0, False, "94.02.5C.00.0D")
_ADA = Generation(210, 8, 4, 83.0, None, None, False, "95.02.66.00.02")
_RTX_BLACKWELL = Generation(180, 8, 5, 85.0, None, None, False, "98.02.2E.00.03")
_TURING = Generation(300, 8, 3, 85.0, 93.0, 96.0, False, "90.04.38.00.03")
_VOLTA = Generation(135, 0, 3, 83.0, 87.0, 90.0, True, "88.00.43.00.03")
_PASCAL = Generation(405, 0, 3, 80.0, 82.0, 85.0, True, "86.00.52.00.02")
_INSTINCT = Generation(132, 0, 5, 95.0, 100.0, 105.0, True, "113-M3000108-103")

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

_CPU_MODELS = {
    3: "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz",
    4: "AMD EPYC 7763 64-Core Processor",
    5: "Intel(R) Xeon(R) Platinum 8480+",
}


def generation_of(model: GpuModel) -> Generation:
    """The generation of a model of the catalogue. Raises ValueError for one that it does not know."""
    for starts, generation in _GENERATIONS:
        if model.name.startswith(starts):
            return generation
    raise ValueError(f"the simulator does not know the generation of {model.name!r}")


def is_geforce(model: GpuModel) -> bool:
    """Consumer devices: no serial number, no ECC, P2 under compute."""
    return model.name.startswith(("RTX-20", "RTX-30", "RTX-40", "RTX-50"))


def cpu_model_of(model: GpuModel) -> str:
    """A CPU that hosts of that GPU usually have."""
    return _CPU_MODELS[generation_of(model).pcie_generation]


def driver_facts(model: GpuModel) -> Row:
    """Columns of `nodes` that the GPU driver tells."""
    if generation_of(model) is _INSTINCT:
        return {"driver_version": "6.14.14"}
    return {"driver_version": "580.95.05", "cuda_version": "13.0"}


@dataclass(frozen=True, slots=True)
class Device:
    """One simulated GPU: its model's facts and its own small differences from its siblings."""

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
    absent: tuple[str, ...]
    """Columns of gpu_samples that the device cannot give."""

    @property
    def power_limit_min_watts(self) -> float:
        """Lowest limit that can be set: 200 W of 700 on H100, 100 W of 350 on L40S."""
        return float(round(self.model.tdp_watts * 0.2857))

    def describe(self) -> Row:
        """The device's row of `gpus`."""
        model, generation = self.model, self.generation
        return {
            "gpu_uuid": self.uuid,
            "gpu": self.index,
            "model": model.driver_name,
            "vendor": "amd" if generation is _INSTINCT else "nvidia",
            "serial": self.serial,
            "pci_bus_id": self.pci_bus_id,
            "vbios_version": generation.vbios,
            "memory_total_bytes": self.memory_total_bytes,
            "power_limit_default_watts": float(model.tdp_watts),
            "power_limit_min_watts": self.power_limit_min_watts,
            "power_limit_max_watts": float(model.tdp_watts),
            "temperature_slowdown_celsius": generation.slowdown_celsius,
            "temperature_shutdown_celsius": generation.shutdown_celsius,
            "sm_clock_max_mhz": model.sm_clock_max_mhz,
            "memory_clock_max_mhz": model.memory_clock_mhz,
            "pcie_generation_max": generation.pcie_generation,
            "pcie_width_max": 16,
            "nvlinks": model.nvlinks,
            "numa_node": self.numa_node,
            # Parts without MIG have no mode to be off.
            "mig_mode": False if generation in _WITH_MIG else None,
        }


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _absent_columns(model: GpuModel, generation: Generation) -> tuple[str, ...]:
    """What the driver of that model answers with "not supported"."""
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


def make_device(model: GpuModel, seed: str, index: int, gpus: int) -> Device:
    """The device at `index` of a node with `gpus` devices; the same seed gives the same device."""
    rng = random.Random(f"device/{seed}/{index}")
    generation = generation_of(model)
    uuid, serial = _uuid(rng), f"{rng.randrange(10**12, 2 * 10**12)}"
    # ECC of GDDR memory takes a sixteenth of it; HBM keeps its check bits beside the data.
    usable = 0.9956 if generation.has_hbm or is_geforce(model) else 0.9375
    idle_watts = model.idle_watts * rng.uniform(0.94, 1.06)
    return Device(
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
        absent=_absent_columns(model, generation),
    )
