"""Simulates the minute rows of a GPU: memory errors and the fabric.

Healthy boards correct an error sometimes. All counters are functions of time, so a reading may come
at any time; `HealthTrouble` has the effects of a script.
"""

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.hardware import (
    SimulatedGpu,
    has_ecc,
    has_nvswitch,
    is_amd,
    remap_banks_of,
)
from gpuwarden_simulator.devices.vendors import tells

DAY_S = 86_400.0


class Errors(NamedTuple):
    """Memory errors, by where they were and whether they were corrected."""

    dram_corrected: int = 0
    dram_uncorrected: int = 0
    sram_corrected: int = 0
    sram_uncorrected: int = 0


class HealthTrouble(NamedTuple):
    """Effects of a script on the memory of a GPU."""

    volatile: Errors = Errors()
    """Since the driver was loaded."""
    lifetime: Errors = Errors()
    """Since the simulation began."""
    rows_corrected: int = 0
    rows_uncorrected: int = 0
    is_pending: bool = False
    has_failed: bool = False
    pages: int = 0
    """Retired pages, on boards without spare rows."""
    action: str | None = None
    """Recovery action of the driver; None: that of pending remaps."""
    is_inforom_damaged: bool = False
    is_unrepairable: bool = False
    is_fabric_down: bool = False


WELL = HealthTrouble()


@dataclass(frozen=True, slots=True)
class MemoryAging:
    """How the memory of one device ages."""

    usual: Row
    """Columns that do not change on a healthy device."""
    days_up: float
    """How long the driver had been loaded when the simulation began."""
    errors_per_day: float
    """Corrected ones."""
    errors_before: int
    """Corrected in the device's life before the driver was loaded."""
    banks: int | None


def make_new_memory(device: SimulatedGpu, seed: str) -> MemoryAging:
    """The memory of an unused device; times count from its installation."""
    return replace(make_memory(device, seed), days_up=0.0, errors_before=0)


def make_memory(device: SimulatedGpu, seed: str) -> MemoryAging:
    """The memory of a device; the same seed gives the same memory."""
    rng = random.Random(f"memory/{seed}/{device.index}")
    model = device.model
    usual: Row = {"gpu": device.index, "gpu_uuid": device.uuid}
    # One device in four has a cell that flips sometimes; others correct nothing for months.
    errors_per_day = rng.choice((0.0, 0.0, 0.05, rng.uniform(0.5, 6)))
    banks = remap_banks_of(model)
    if is_amd(model):
        usual |= {"ecc_uncorrected_volatile_total": 0}
        return MemoryAging(usual, rng.uniform(5, 40), errors_per_day, 0, None)
    usual["inforom_valid"] = True
    if has_ecc(model):
        usual |= {"ecc_uncorrected_volatile_total": 0, "ecc_uncorrected_aggregate_total": 0}
        usual |= dict.fromkeys(_columns("dram", "uncorrected"), 0)
        if banks is not None or tells(model, "sram_corrected_volatile_total"):
            usual |= dict.fromkeys(
                (*_columns("sram", "corrected"), *_columns("sram", "uncorrected")), 0
            )
        if banks is not None:
            usual |= _no_remaps(banks)
        else:
            usual |= {"retired_pages_corrected_total": 0, "retired_pages_uncorrected_total": 0}
            usual |= {"retired_pages_pending": False}
    if device.generation.has_gpm:
        usual |= {"sram_threshold_exceeded": False, "memory_unrepairable": False}
    if banks is not None:
        usual["recovery_action"] = "none"
    if has_nvswitch(model) and device.generation.has_gpm:
        usual |= {"fabric_state": "completed", "fabric_status": "success"}
        usual |= {"fabric_health": "healthy"}
    return MemoryAging(usual, rng.uniform(5, 40), errors_per_day, rng.randrange(0, 60), banks)


def _columns(place: str, fate: str) -> tuple[str, str]:
    return f"{place}_{fate}_volatile_total", f"{place}_{fate}_aggregate_total"


def _no_remaps(banks: int) -> Row:
    return {
        "remapped_rows_corrected_total": 0,
        "remapped_rows_uncorrected_total": 0,
        "remap_pending": False,
        "remap_failed": False,
        "remap_banks_max": banks,
        "remap_banks_high": 0,
        "remap_banks_partial": 0,
        "remap_banks_low": 0,
        "remap_banks_none": 0,
    }


def health_row(
    memory: MemoryAging, elapsed_s: float, loaded_s: float, trouble: HealthTrouble = WELL
) -> Row:
    """The row of gpu_health_samples, `elapsed_s` after the simulation began.

    `loaded_s`: when, on the same scale, the driver was loaded; below 0: before the beginning.
    """
    row = dict(memory.usual)
    if trouble is not WELL:
        _add_flags(row, trouble)
    if "ecc_uncorrected_volatile_total" not in row:
        return row
    before = memory.days_up * DAY_S
    life = int(memory.errors_per_day * (before + elapsed_s) / DAY_S)
    at_load = int(memory.errors_per_day * (before + max(loaded_s, -before)) / DAY_S)
    volatile = trouble.volatile._replace(
        dram_corrected=trouble.volatile.dram_corrected + life - at_load
    )
    lifetime = trouble.lifetime._replace(
        dram_corrected=trouble.lifetime.dram_corrected + memory.errors_before + life
    )
    for since, errors in (("volatile", volatile), ("aggregate", lifetime)):
        values = errors._asdict()
        row[f"ecc_corrected_{since}_total"] = errors.dram_corrected + errors.sram_corrected
        row[f"ecc_uncorrected_{since}_total"] = errors.dram_uncorrected + errors.sram_uncorrected
        for name, value in values.items():
            row[f"{name}_{since}_total"] = value
    _remove_absent(row, memory)
    if trouble is not WELL and memory.banks is not None:
        _add_remaps(row, memory.banks, trouble)
    return row


def _add_flags(row: Row, trouble: HealthTrouble) -> None:
    """Add other effects of a script, as far as the device's driver reports them."""
    if trouble.pages and "retired_pages_uncorrected_total" in row:
        row["retired_pages_uncorrected_total"] = trouble.pages
    if trouble.action is not None and "recovery_action" in row:
        row["recovery_action"] = trouble.action
    if trouble.is_inforom_damaged and "inforom_valid" in row:
        row["inforom_valid"] = False
    if trouble.is_unrepairable and "memory_unrepairable" in row:
        row["memory_unrepairable"] = True
    if trouble.is_fabric_down and "fabric_health" in row:
        row["fabric_health"] = "route_unhealthy"


def _remove_absent(row: Row, memory: MemoryAging) -> None:
    """Remove counters that the device's driver does not have."""
    absent: list[str] = []
    if "sram_corrected_volatile_total" not in memory.usual:
        absent += [*_columns("sram", "corrected"), *_columns("sram", "uncorrected")]
    if "inforom_valid" not in memory.usual:  # AMD's driver has one sum since it was loaded
        absent += [*_columns("dram", "corrected"), *_columns("dram", "uncorrected")]
        absent += ["ecc_corrected_aggregate_total", "ecc_uncorrected_aggregate_total"]
    for name in absent:
        row.pop(name, None)


def _add_remaps(row: Row, banks: int, trouble: HealthTrouble) -> None:
    rows = trouble.rows_corrected + trouble.rows_uncorrected
    row["remapped_rows_corrected_total"] = trouble.rows_corrected
    row["remapped_rows_uncorrected_total"] = trouble.rows_uncorrected
    row["remap_pending"] = trouble.is_pending
    row["remap_failed"] = trouble.has_failed
    # Each row takes a spare of a bank of its own; a failed one had none left.
    exhausted, used = int(trouble.has_failed), min(rows, banks - int(trouble.has_failed))
    row["remap_banks_max"] = banks - exhausted - used
    row["remap_banks_high"] = used
    row["remap_banks_none"] = exhausted
    if trouble.is_pending and trouble.action is None:
        row["recovery_action"] = "gpu_reset"
    if trouble.lifetime.sram_uncorrected >= SRAM_ERRORS_MAX and "sram_threshold_exceeded" in row:
        row["sram_threshold_exceeded"] = True


SRAM_ERRORS_MAX = 4
"""Uncorrected SRAM errors in a device's life above which to replace it; NVIDIA's limit is not public."""
