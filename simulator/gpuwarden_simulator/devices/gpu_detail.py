"""Simulates the ten-second rows of a GPU: activity of its units, PCIe link, slower sensors.

There is no state between two readings: activity follows from the load of the last second, rates are
differences of the byte counters of `gpu_samples`, and error counters are a function of time.
Activity is spread as in AcmeTrace: at a utilization of 98 % a third to nine tenths of the SM cycles.
"""

import random
from typing import NamedTuple

from gpuwarden.models import GpuModel
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.gpu import IDLE, GpuLoad, GpuState
from gpuwarden_simulator.devices.hardware import SimulatedGpu, has_fan, is_amd, is_geforce

PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9}

MIB, GIB = 1 << 20, 1 << 30
BAR1_IDLE_BYTES, BAR1_BUSY_BYTES = 1 * MIB, 3 * MIB
"""What nvidia-smi -q has of an H100 without and with a process."""
BAR1_SMALL_BYTES = 256 * MIB
"""Of a T4, and of a GeForce without resizable BAR."""

OCCUPANCY_SHARE = 0.28
"""Resident warps of a working SM, as a share of the maximum."""


class PcieTrouble(NamedTuple):
    """Faults of the GPU's PCIe link."""

    generation: int | None = None
    width: int | None = None
    replays: int = 0
    """Packets sent again since the driver was loaded, in addition to the usual few."""


class Mark(NamedTuple):
    """Byte counters at the last reading."""

    at_ms: int
    pcie_tx_bytes: float
    pcie_rx_bytes: float
    nvlink_tx_bytes: float
    nvlink_rx_bytes: float


WELL = PcieTrouble()


def mark(at_ms: int, state: GpuState) -> Mark:
    """The counters to compare the next reading with."""
    return Mark(
        at_ms,
        state.pcie_tx_bytes,
        state.pcie_rx_bytes,
        state.nvlink_tx_bytes,
        state.nvlink_rx_bytes,
    )


def template(device: SimulatedGpu) -> Row:
    """The columns that rarely change, for a device whose driver has just been loaded."""
    model, generation = device.model, device.generation
    row: Row = {
        "gpu": device.index,
        "gpu_uuid": device.uuid,
        "pcie_generation": generation.pcie_generation,
        "pcie_width": 16,
        "pcie_replays_total": 0,
    }
    if is_amd(model):
        return row | {"bar1_total_bytes": model.memory_gib * GIB}
    row["bar1_total_bytes"] = _bar1_bytes(model)
    row["pcie_replay_rollovers_total"] = 0
    if generation.has_gpm:
        row |= dict.fromkeys(_HOPPER_PCIE_COUNTERS, 0) | dict.fromkeys(_UNUSED_PIPES, 0.0)
    row |= dict.fromkeys(_UNUSED_VIOLATIONS, 0.0)
    if generation.pcie_generation >= 4 and not is_geforce(model):
        row |= {"jpeg_util_percent": 0.0, "ofa_util_percent": 0.0}
    if model.nvlinks:
        row["nvlinks_active"] = model.nvlinks
    return row


_HOPPER_PCIE_COUNTERS = (
    "pcie_l0_to_recovery_total",
    "pcie_correctable_errors_total",
    "pcie_naks_received_total",
    "pcie_receiver_errors_total",
    "pcie_bad_tlps_total",
    "pcie_naks_sent_total",
    "pcie_bad_dllps_total",
    "pcie_nonfatal_errors_total",
    "pcie_fatal_errors_total",
    "pcie_unsupported_requests_total",
    "pcie_lcrc_errors_total",
    "pcie_lane_errors_total",
)

_UNUSED_PIPES = (
    "tensor_fp64_active_percent",
    "tensor_integer_active_percent",
    "fp64_active_percent",
)

_UNUSED_VIOLATIONS = (
    "sync_boost_violation_seconds_total",
    "board_limit_violation_seconds_total",
    "low_util_violation_seconds_total",
    "reliability_violation_seconds_total",
)


def usual_replays(device: SimulatedGpu, seed: str) -> int:
    """Packets that a healthy link sent again since the driver was loaded; nine on a real H100."""
    return random.Random(f"replays/{seed}/{device.index}").choice((0, 0, 0, 1, 2, 9))


def detail_row(
    usual: Row,
    device: SimulatedGpu,
    state: GpuState,
    load: GpuLoad,
    before: Mark | None,
    at_ms: int,
    *,
    replays: int = 0,
    pcie: PcieTrouble = WELL,
    links_down: int = 0,
) -> Row:
    """The row of gpu_detail_samples. `usual`: the device's `template`; `before`: None leaves out
    rates; `replays`: what the link had before `pcie`.
    """
    generation = device.generation
    is_idle = bool(state.reasons & IDLE)
    row: Row = {**usual, "graphics_clock_mhz": state.sm_clock_mhz}
    if is_idle and generation.idle_pstate == 8:
        row["pcie_generation"] = 1
    row["pcie_replays_total"] = replays + pcie.replays
    if pcie is not WELL:
        _add_pcie_trouble(row, pcie)
    if is_amd(device.model):
        return row | {"bar1_used_bytes": state.memory_used_bytes}
    row["bar1_used_bytes"] = BAR1_IDLE_BYTES if is_idle else BAR1_BUSY_BYTES
    if links_down:
        row["nvlinks_active"] = device.model.nvlinks - links_down
    row["video_clock_mhz"] = max(int(state.sm_clock_mhz * 0.78), 405) // 15 * 15
    if generation.reports_margins:
        row["temperature_margin_celsius"] = float(_margin(device, state))
    if has_fan(device.model):
        row["fan_percent"] = _fan_percent(device, state)
    row["app_clocks_violation_seconds_total"] = (
        state.power_violation_s + state.thermal_violation_s + state.power_brake_s
    )
    row["base_clocks_violation_seconds_total"] = state.hw_thermal_s + state.power_brake_s
    if generation.has_gpm:
        _add_activity(row, state, load)
        if before is not None and at_ms > before.at_ms:
            _add_rates(row, device, state, before, (at_ms - before.at_ms) / 1000)
    return row


def _add_pcie_trouble(row: Row, pcie: PcieTrouble) -> None:
    if pcie.generation is not None:
        row["pcie_generation"] = min(pcie.generation, int(row["pcie_generation"] or 1))
    if pcie.width is not None:
        row["pcie_width"] = pcie.width
    replays = pcie.replays
    if "pcie_replay_rollovers_total" in row:
        row["pcie_replay_rollovers_total"] = replays // 4
    if "pcie_bad_dllps_total" in row:
        row["pcie_bad_tlps_total"] = row["pcie_lcrc_errors_total"] = replays
        row["pcie_naks_sent_total"] = row["pcie_naks_received_total"] = replays
        row["pcie_bad_dllps_total"] = replays // 3
        row["pcie_l0_to_recovery_total"] = replays // 4
        row["pcie_correctable_errors_total"] = row["pcie_receiver_errors_total"] = replays


def _bar1_bytes(model: GpuModel) -> int:
    """A window of a power of two, into which all memory fits: 128 GiB of an H100 with 80 GB."""
    if is_geforce(model) or model.name == "T4-16GB":
        return BAR1_SMALL_BYTES
    return GIB << (model.memory_gib - 1).bit_length()


def sm_active_percent(util_percent: float, power_share: float) -> float:
    """SM cycles with work, which draw the power; a kernel that only spins has almost none."""
    return min(max(92.0 * power_share - 3.0, 0.0), util_percent)


def _add_activity(row: Row, state: GpuState, load: GpuLoad) -> None:
    util = state.util_percent
    active = sm_active_percent(util, load.power_share)
    # Power per time that a kernel runs tells how dense its arithmetic is.
    density = min(load.power_share / (util / 100), 1.0) if util else 0.0
    tensor = active * 0.5 * density
    row["graphics_active_percent"] = util
    row["sm_active_percent"] = active
    row["sm_occupancy_percent"] = active * OCCUPANCY_SHARE
    row["tensor_active_percent"] = row["tensor_half_active_percent"] = tensor
    row["integer_active_percent"] = active * 0.12
    row["fp32_active_percent"] = active * 0.15
    row["fp16_active_percent"] = active * 0.02
    row["dram_active_percent"] = state.memory_util_percent * 0.8


def _add_rates(row: Row, device: SimulatedGpu, state: GpuState, before: Mark, dt: float) -> None:
    row["pcie_tx_bytes_per_second"] = (state.pcie_tx_bytes - before.pcie_tx_bytes) / dt
    row["pcie_rx_bytes_per_second"] = (state.pcie_rx_bytes - before.pcie_rx_bytes) / dt
    if device.model.nvlinks:
        row["nvlink_tx_bytes_per_second"] = (state.nvlink_tx_bytes - before.nvlink_tx_bytes) / dt
        row["nvlink_rx_bytes_per_second"] = (state.nvlink_rx_bytes - before.nvlink_rx_bytes) / dt


def _margin(device: SimulatedGpu, state: GpuState) -> int:
    """To the hottest sensor; HBM may be eight kelvin hotter than the core."""
    hottest = max(state.core_celsius, state.memory_celsius - 8.0)
    return round(device.generation.throttle_celsius - hottest)


def _fan_percent(device: SimulatedGpu, state: GpuState) -> float:
    """Fan speed; GeForce boards stop their fans below 50 degrees."""
    if is_geforce(device.model) and state.core_celsius < 50:
        return 0.0
    return float(round(min(max(30.0 + 1.6 * (state.core_celsius - 45.0), 30.0), 100.0)))
