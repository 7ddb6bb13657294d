"""Simulates the physics of one GPU: load determines power, power temperature, and both the clocks.

`step` is a pure function. Power is idle power plus a dynamic part that grows with
the square of the clock; a limit on power or heat is met by lowering the clock. Temperatures relax
exponentially, so a step may have any length. Time constants as on air-cooled data-centre devices.
"""

import math
import random
from functools import lru_cache
from typing import NamedTuple

from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.hardware import MIB, SimulatedGpu

IDLE, APPLICATION_CLOCKS, POWER_CAP, HW_SLOWDOWN = 0x1, 0x2, 0x4, 0x8
SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x20, 0x40, 0x80
"""Bits of clocks_event_reasons that the simulator sets."""

CORE_SECONDS, MEMORY_SECONDS = 25.0, 45.0
"""Time constants of core and memory temperature."""

CLOCK_SHARE_MIN = 0.3
SLOWED_CLOCK_SHARE = 0.45
"""Share of the clock under a hardware slowdown, which halves it at least."""

HYSTERESIS_KELVIN = 4.0

COOLING_SWING, COOLING_PERIOD_S = 0.28, 120.0
"""Variation and period of bad cooling; sometimes it reaches the hardware limit."""

LOAD_NVLINKS = 18
"""NVLinks of the board whose traffic loads are given for; fewer carry less."""

DAY_S = 86_400.0


class GpuLoad(NamedTuple):
    """The load of a job on one GPU, and the conditions of the GPU."""

    util_percent: float = 0.0
    memory_util_percent: float = 0.0
    power_share: float = 0.0
    """Dynamic power at full clock; 1 reaches the factory limit."""
    memory_share: float = 0.0
    """Share of the device's memory that the job holds."""
    has_context: bool = False
    pcie_tx_bytes_per_second: float = 0.0
    pcie_rx_bytes_per_second: float = 0.0
    nvlink_bytes_per_second: float = 0.0
    power_limit_share: float = 1.0
    """Power limit set, as a share of the factory's."""
    cooling_factor: float = 1.0
    """Thermal resistance relative to a device with good cooling."""
    cooling_swing: float = COOLING_SWING
    """Variation of bad cooling, as a share of it."""
    is_braked: bool = False
    """The power supply or the rack asks for less power."""
    clock_share_max: float = 1.0
    """Upper limit that is set for the clock, as a share."""


class GpuState(NamedTuple):
    """A GPU at an instant: readings of the last step, and counters since the driver was loaded."""

    util_percent: float
    memory_util_percent: float
    memory_used_bytes: int
    power_limit_watts: float
    power_watts: float
    power_instant_watts: float
    core_celsius: float
    memory_celsius: float
    sm_clock_mhz: int
    memory_clock_mhz: int
    pstate: int
    reasons: int
    energy_joules: float
    power_violation_s: float
    thermal_violation_s: float
    sw_thermal_s: float
    hw_thermal_s: float
    power_brake_s: float
    pcie_tx_bytes: float
    pcie_rx_bytes: float
    nvlink_tx_bytes: float
    nvlink_rx_bytes: float


def inlet_celsius(device: SimulatedGpu, at_s: float) -> float:
    """Air at the device's inlet: a degree and a half warmer in the afternoon (UTC) than the mean."""
    return device.inlet_celsius + _swing_celsius(at_s)


@lru_cache(maxsize=16)
def _swing_celsius(at_s: float) -> float:
    """The same for all devices of a tick."""
    return 1.5 * math.sin(2 * math.pi * (at_s / DAY_S - 0.375))


@lru_cache(maxsize=16)
def _kept(dt: float) -> tuple[float, float]:
    """The part of a temperature difference that remains, for core and memory."""
    return math.exp(-dt / CORE_SECONDS), math.exp(-dt / MEMORY_SECONDS)


def start(device: SimulatedGpu, load: GpuLoad, at_s: float, rng: random.Random) -> GpuState:
    """A GPU that has had `load` for a while, its driver loaded for days.

    Counters depend on `rng` alone, not on the load: after a restart of the simulator its counters are
    reset, as by a reloaded driver, and never jump.
    """
    up_s = rng.uniform(5, 40) * DAY_S
    watts = _unhindered_watts(device, load)
    watts = min(watts, device.model.tdp_watts * load.power_limit_share)
    core = inlet_celsius(device, at_s) + device.kelvin_per_watt * load.cooling_factor * watts
    core = min(core, device.generation.throttle_celsius)
    pcie_bytes = up_s * rng.uniform(2e8, 1.2e9)
    nvlink_bytes = up_s * rng.uniform(2e9, 2e10) if device.model.nvlinks else 0.0
    sw_thermal_s, hw_thermal_s = rng.uniform(1, 90), rng.uniform(0.1, 4)
    return GpuState(
        util_percent=load.util_percent,
        memory_util_percent=load.memory_util_percent,
        memory_used_bytes=_held_bytes(device, load),
        power_limit_watts=device.model.tdp_watts * load.power_limit_share,
        power_watts=watts,
        power_instant_watts=watts,
        core_celsius=core,
        memory_celsius=_memory_target(device, core, watts),
        sm_clock_mhz=device.generation.idle_sm_mhz,
        memory_clock_mhz=device.model.memory_clock_mhz,
        pstate=device.generation.idle_pstate,
        reasons=0,
        energy_joules=up_s * device.model.tdp_watts * rng.uniform(0.35, 0.65),
        power_violation_s=up_s * rng.uniform(0.005, 0.04),
        thermal_violation_s=sw_thermal_s + hw_thermal_s,
        sw_thermal_s=sw_thermal_s,
        hw_thermal_s=hw_thermal_s,
        power_brake_s=rng.uniform(0.05, 3),
        pcie_tx_bytes=pcie_bytes * rng.uniform(0.2, 0.5),
        pcie_rx_bytes=pcie_bytes,
        nvlink_tx_bytes=nvlink_bytes,
        nvlink_rx_bytes=nvlink_bytes * rng.uniform(0.97, 1.03),
    )


def restart(device: SimulatedGpu, load: GpuLoad, at_s: float, rng: random.Random) -> GpuState:
    """A GPU whose driver has just been loaded: temperature by `load`, all counters at 0."""
    return start(device, load, at_s, rng)._replace(
        energy_joules=0.0,
        power_violation_s=0.0,
        thermal_violation_s=0.0,
        sw_thermal_s=0.0,
        hw_thermal_s=0.0,
        power_brake_s=0.0,
        pcie_tx_bytes=0.0,
        pcie_rx_bytes=0.0,
        nvlink_tx_bytes=0.0,
        nvlink_rx_bytes=0.0,
    )


def _base_watts(device: SimulatedGpu, load: GpuLoad) -> float:
    return device.context_watts if load.has_context else device.idle_watts


def _unhindered_watts(device: SimulatedGpu, load: GpuLoad) -> float:
    base = _base_watts(device, load)
    return base + (device.model.tdp_watts - base) * load.power_share


def _memory_target(device: SimulatedGpu, core: float, watts: float) -> float:
    """HBM sits beside the core: 4 to 7 kelvin hotter when idle, 8 to 13 under load."""
    return core + 4.5 + 7.0 * watts / device.model.tdp_watts


def _clocks(
    device: SimulatedGpu, state: GpuState, load: GpuLoad, inlet: float, limit_watts: float
) -> tuple[float, int, float]:
    """Lower the clock to the strictest limit. Returns the share of the maximum, the reasons, and the
    resulting power.
    """
    generation, core = device.generation, state.core_celsius
    base = _base_watts(device, load)
    full = base + (device.model.tdp_watts - base) * load.power_share
    dynamic = full - base
    if dynamic <= 0:
        keeps_clocks = load.has_context and generation.idle_pstate == 0
        return 1.0, 0 if keeps_clocks else IDLE, base
    share, reasons = 1.0, 0
    if base + dynamic * load.clock_share_max**2 > limit_watts:  # locked clocks need no cap
        share = math.sqrt(max(limit_watts - base, 0.0) / dynamic)
        reasons |= POWER_CAP
    if core >= generation.throttle_celsius - HYSTERESIS_KELVIN:
        kelvin_per_watt = device.kelvin_per_watt * load.cooling_factor
        budget = (generation.throttle_celsius - inlet) / kelvin_per_watt
        if core >= _held(generation.throttle_celsius, state, SW_THERMAL) and budget < full:
            share = min(share, math.sqrt(max(budget - base, 0.0) / dynamic))
            reasons |= SW_THERMAL
        if core >= _held(generation.hardware_throttle_celsius, state, HW_THERMAL):
            share = min(share, SLOWED_CLOCK_SHARE)
            reasons |= HW_THERMAL | HW_SLOWDOWN
    if load.is_braked:
        share = min(share, SLOWED_CLOCK_SHARE)
        reasons |= POWER_BRAKE | HW_SLOWDOWN
    if load.clock_share_max < 1.0:
        share = min(share, load.clock_share_max)
        reasons |= APPLICATION_CLOCKS
    share = max(share, CLOCK_SHARE_MIN)
    return share, reasons, base + dynamic * share * share


def _held(limit_celsius: float, state: GpuState, reason: int) -> float:
    """Once engaged, a limit holds until the core is some kelvin cooler."""
    return limit_celsius - HYSTERESIS_KELVIN if state.reasons & reason else limit_celsius


def step(
    device: SimulatedGpu, state: GpuState, load: GpuLoad, at_s: float, dt: float, rng: random.Random
) -> GpuState:
    """The GPU after `dt` seconds of `load`, which end at `at_s`."""
    inlet = inlet_celsius(device, at_s)
    limit = max(device.model.tdp_watts * load.power_limit_share, device.power_limit_min_watts)
    share, reasons, watts = _clocks(device, state, load, inlet, limit)
    is_idle = bool(reasons & IDLE)
    watts = min(watts * (0.99 + 0.02 * rng.random()), limit)

    factor = load.cooling_factor
    if factor > 1.0:
        factor *= 1.0 + load.cooling_swing * math.sin(2 * math.pi * at_s / COOLING_PERIOD_S)
    target = inlet + device.kelvin_per_watt * factor * watts
    keep_core, keep_memory = _kept(dt)
    core = target + (state.core_celsius - target) * keep_core
    memory_target = _memory_target(device, core, watts)
    memory = memory_target + (state.memory_celsius - memory_target) * keep_memory

    is_thermal = bool(reasons & (SW_THERMAL | HW_THERMAL))
    links_share = device.model.nvlinks / LOAD_NVLINKS
    nvlink_bytes = load.nvlink_bytes_per_second * links_share * share * dt
    return GpuState(
        util_percent=_wavering(load.util_percent, rng),
        memory_util_percent=load.memory_util_percent * share,
        memory_used_bytes=_held_bytes(device, load),
        power_limit_watts=limit,
        power_watts=watts,
        power_instant_watts=watts * (0.985 + 0.03 * rng.random()),
        core_celsius=core,
        memory_celsius=memory,
        sm_clock_mhz=device.generation.idle_sm_mhz if is_idle else _sm_clock(device, share),
        memory_clock_mhz=_memory_clock(device, is_idle),
        pstate=device.generation.idle_pstate if is_idle else device.busy_pstate,
        reasons=reasons,
        energy_joules=state.energy_joules + watts * dt,
        power_violation_s=state.power_violation_s + (dt if reasons & POWER_CAP else 0.0),
        thermal_violation_s=state.thermal_violation_s + (dt if is_thermal else 0.0),
        sw_thermal_s=state.sw_thermal_s + (dt if reasons & SW_THERMAL else 0.0),
        hw_thermal_s=state.hw_thermal_s + (dt if reasons & HW_THERMAL else 0.0),
        power_brake_s=state.power_brake_s + (dt if reasons & POWER_BRAKE else 0.0),
        pcie_tx_bytes=state.pcie_tx_bytes + load.pcie_tx_bytes_per_second * share * dt,
        pcie_rx_bytes=state.pcie_rx_bytes + load.pcie_rx_bytes_per_second * share * dt,
        nvlink_tx_bytes=state.nvlink_tx_bytes + nvlink_bytes,
        nvlink_rx_bytes=state.nvlink_rx_bytes + nvlink_bytes,
    )


def _wavering(util_percent: float, rng: random.Random) -> float:
    """Utilization of GPUs of one job differs by a point; an idle GPU has 0."""
    if not util_percent:
        return 0.0
    return min(max(util_percent + 2.0 * rng.random() - 1.0, 0.0), 100.0)


def _held_bytes(device: SimulatedGpu, load: GpuLoad) -> int:
    """CUDA allocates memory in pages of 2 MiB."""
    usable = device.memory_total_bytes - device.memory_reserved_bytes
    return int(usable * load.memory_share) // (2 * MIB) * (2 * MIB)


def _sm_clock(device: SimulatedGpu, share: float) -> int:
    """Devices change clocks in steps of 15 MHz."""
    top = device.model.sm_clock_max_mhz
    return top if share >= 1.0 else max(int(top * share) // 15 * 15, 15)


def _memory_clock(device: SimulatedGpu, is_idle: bool) -> int:
    """Parts that idle in P8 lower the memory clock; HBM parts keep it."""
    is_lowered = is_idle and device.generation.idle_pstate == 8
    return min(405, device.model.memory_clock_mhz) if is_lowered else device.model.memory_clock_mhz


def gpu_row(device: SimulatedGpu, state: GpuState) -> Row:
    """The row of gpu_samples, without columns that the device does not have.

    NVML answers utilization and temperatures in whole numbers, power in milliwatts, NVLink in KiB.
    """
    row: Row = {
        "gpu": device.index,
        "gpu_uuid": device.uuid,
        "util_percent": float(round(state.util_percent)),
        "memory_util_percent": float(round(state.memory_util_percent)),
        "encoder_util_percent": 0.0,
        "decoder_util_percent": 0.0,
        "memory_total_bytes": device.memory_total_bytes,
        "memory_used_bytes": state.memory_used_bytes,
        "memory_free_bytes": (
            device.memory_total_bytes - device.memory_reserved_bytes - state.memory_used_bytes
        ),
        "memory_reserved_bytes": device.memory_reserved_bytes,
        "power_watts": int(state.power_watts * 1000) / 1000,
        "power_instant_watts": int(state.power_instant_watts * 1000) / 1000,
        "power_limit_watts": state.power_limit_watts,
        "energy_joules_total": int(state.energy_joules * 1000) / 1000,
        "temperature_celsius": float(round(state.core_celsius)),
        "memory_temperature_celsius": float(round(state.memory_celsius)),
        "sm_clock_mhz": state.sm_clock_mhz,
        "memory_clock_mhz": state.memory_clock_mhz,
        "clocks_event_reasons": state.reasons,
        "power_violation_seconds_total": state.power_violation_s,
        "thermal_violation_seconds_total": state.thermal_violation_s,
        "sw_thermal_seconds_total": state.sw_thermal_s,
        "hw_thermal_seconds_total": state.hw_thermal_s,
        "hw_power_brake_seconds_total": state.power_brake_s,
        "pstate": state.pstate,
        "pcie_tx_bytes_total": int(state.pcie_tx_bytes),
        "pcie_rx_bytes_total": int(state.pcie_rx_bytes),
        "nvlink_tx_bytes_total": int(state.nvlink_tx_bytes) // 1024 * 1024,
        "nvlink_rx_bytes_total": int(state.nvlink_rx_bytes) // 1024 * 1024,
    }
    for name in device.absent:
        del row[name]
    return row
