"""Lists the kinds of faults: names, options and durations.

`Fault` is a fault at one place; `docs/simulator.md` describes the effects. Times are milliseconds
since the first tick of the node.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gpuwarden.models import GpuModel
from gpuwarden_simulator.devices.hardware import (
    generation_of,
    has_ecc,
    has_fan,
    has_nvswitch,
    remap_banks_of,
)
from gpuwarden_simulator.devices.links import adapters_of, link_count
from gpuwarden_simulator.devices.vendors import is_nvidia, source_of, tells
from gpuwarden_simulator.jobs.workload import Workload


class FaultKind(StrEnum):
    """What can go wrong."""

    ECC_CORRECTED = "ecc_corrected"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ROW_REMAP = "row_remap"
    ROW_REMAP_FAILED = "row_remap_failed"
    XID = "xid"
    NVLINK_DOWN = "nvlink_down"
    PCIE_DEGRADED = "pcie_degraded"
    HANG = "hang"
    STRAGGLER = "straggler"
    MEMORY_LEAK = "memory_leak"
    THERMAL_THROTTLE = "thermal_throttle"
    POWER_THROTTLE = "power_throttle"
    POWER_CAPPED = "power_capped"
    POWER_BRAKE = "power_brake"
    GPU_LOST = "gpu_lost"
    REBOOT = "reboot"
    INFINIBAND_DOWN = "infiniband_down"
    NFS_SLOW = "nfs_slow"
    SHM_FULL = "shm_full"
    JOB = "job"
    CLOCKS_LOCKED = "clocks_locked"
    FAN_STUCK = "fan_stuck"
    ORPHAN_MEMORY = "orphan_memory"
    PAGES_RETIRED = "pages_retired"
    INFOROM_INVALID = "inforom_invalid"
    MEMORY_UNREPAIRABLE = "memory_unrepairable"
    RECOVERY = "recovery"
    FABRIC_DOWN = "fabric_down"
    BOARD_REPLACED = "board_replaced"


class Lasts(StrEnum):
    """Whether a fault has an end."""

    MOMENT = "moment"
    """It has no duration."""
    MAY_END = "may end"
    MUST_END = "must end"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a fault, in addition to time and place."""

    type: type
    """int, float or str; `is_duration`: milliseconds, written as "90s" or "10m"."""
    default: int | float | str | None = None
    is_required: bool = False
    is_duration: bool = False
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """Options of one kind of fault."""

    options: Mapping[str, Option]
    is_of_gpu: bool = True
    """False: a fault of the node."""
    lasts: Lasts = Lasts.MAY_END


_FLAP = Option(int, is_duration=True, least=2_000)
_PLACE = Option(str, "dram", choices=("dram", "sram"))

SPECS: Mapping[FaultKind, FaultSpec] = {
    FaultKind.ECC_CORRECTED: FaultSpec(
        {"per_minute": Option(int, 1000, least=1, most=10_000_000), "place": _PLACE}
    ),
    FaultKind.ECC_UNCORRECTED: FaultSpec(
        {"errors": Option(int, 1, least=1, most=1_000_000), "place": _PLACE}, lasts=Lasts.MOMENT
    ),
    FaultKind.ROW_REMAP: FaultSpec(
        {
            "rows": Option(int, 1, least=1, most=512),
            "cause": Option(str, "uncorrected", choices=("uncorrected", "corrected")),
        }
    ),
    FaultKind.ROW_REMAP_FAILED: FaultSpec({}, lasts=Lasts.MOMENT),
    FaultKind.XID: FaultSpec(
        {
            "code": Option(int, is_required=True, least=1, most=999),
            "text": Option(str),
            "times": Option(int, 1, least=1, most=10_000),
            "every": Option(int, 30_000, is_duration=True, least=1_000),
        },
        lasts=Lasts.MOMENT,
    ),
    FaultKind.NVLINK_DOWN: FaultSpec(
        {"link": Option(int, is_required=True, least=0, most=63), "flap": _FLAP}
    ),
    FaultKind.PCIE_DEGRADED: FaultSpec(
        {
            "generation": Option(int, least=1, most=5),
            "width": Option(int, least=1, most=16),
            "replays_per_minute": Option(int, 0, least=0, most=1_000_000),
        }
    ),
    FaultKind.HANG: FaultSpec({"main": Option(str, "spin", choices=("spin", "blocked"))}),
    FaultKind.STRAGGLER: FaultSpec({"clock": Option(float, 0.6, least=0.3, most=0.99)}),
    FaultKind.MEMORY_LEAK: FaultSpec(
        {
            "where": Option(str, "gpu", choices=("gpu", "host")),
            "full_after": Option(int, 600_000, is_duration=True, least=10_000),
        }
    ),
    FaultKind.THERMAL_THROTTLE: FaultSpec(
        {
            "resistance": Option(float, 3.4, least=1.1, most=8),
            "swing": Option(float, 0.28, least=0, most=0.5),
        }
    ),
    FaultKind.POWER_THROTTLE: FaultSpec({"demand": Option(float, 1.4, least=1.05, most=3)}),
    FaultKind.POWER_CAPPED: FaultSpec({"share": Option(float, 0.5, least=0.3, most=0.95)}),
    FaultKind.POWER_BRAKE: FaultSpec({}),
    FaultKind.GPU_LOST: FaultSpec({}),
    FaultKind.REBOOT: FaultSpec({}, is_of_gpu=False, lasts=Lasts.MUST_END),
    FaultKind.INFINIBAND_DOWN: FaultSpec(
        {"adapter": Option(int, 0, least=0, most=63), "flap": _FLAP}, is_of_gpu=False
    ),
    FaultKind.NFS_SLOW: FaultSpec(
        {"latency_ms": Option(int, 250, least=5, most=60_000)}, is_of_gpu=False
    ),
    FaultKind.SHM_FULL: FaultSpec({}, is_of_gpu=False),
    FaultKind.JOB: FaultSpec({"workload": Option(str, is_required=True, choices=tuple(Workload))}),
    FaultKind.CLOCKS_LOCKED: FaultSpec({"clock": Option(float, 0.6, least=0.3, most=0.99)}),
    FaultKind.FAN_STUCK: FaultSpec({"percent": Option(int, 0, least=0, most=100)}),
    FaultKind.ORPHAN_MEMORY: FaultSpec({}),
    FaultKind.PAGES_RETIRED: FaultSpec(
        {"pages": Option(int, 1, least=1, most=64)}, lasts=Lasts.MOMENT
    ),
    FaultKind.INFOROM_INVALID: FaultSpec({}),
    FaultKind.MEMORY_UNREPAIRABLE: FaultSpec({}, lasts=Lasts.MOMENT),
    FaultKind.RECOVERY: FaultSpec(
        {
            "action": Option(
                str,
                "gpu_reset",
                choices=("gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
            )
        }
    ),
    FaultKind.FABRIC_DOWN: FaultSpec({}),
    FaultKind.BOARD_REPLACED: FaultSpec({}, lasts=Lasts.MOMENT),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one place."""

    kind: FaultKind
    begin_ms: int
    end_ms: int | None = None
    """None: it does not end."""
    gpu: int | None = None
    options: Mapping[str, int | float | str | None] | None = None

    def is_active(self, at_ms: int) -> bool:
        """Whether it is active at that instant; the end is exclusive."""
        return self.begin_ms <= at_ms and (self.end_ms is None or at_ms < self.end_ms)

    def active_ms(self, from_ms: int, to_ms: int) -> int:
        """How long it was active between two instants."""
        end_ms = to_ms if self.end_ms is None else min(self.end_ms, to_ms)
        return max(end_ms - max(self.begin_ms, from_ms), 0)

    def _option(self, name: str) -> int | float | str | None:
        given = (self.options or {}).get(name)
        return SPECS[self.kind].options[name].default if given is None else given

    def number(self, name: str) -> float:
        """An option that has a value, as a number."""
        value = self._option(name)
        assert isinstance(value, int | float)
        return value

    def whole(self, name: str) -> int | None:
        """An option that is a whole number; None: not set, without a default."""
        value = self._option(name)
        assert value is None or isinstance(value, int)
        return value

    def word(self, name: str) -> str | None:
        """An option that is a text; None: not set, without a default."""
        value = self._option(name)
        assert value is None or isinstance(value, str)
        return value


_LACKING: Mapping[FaultKind, tuple[Callable[[GpuModel], bool], str]] = {
    **dict.fromkeys((FaultKind.ECC_CORRECTED, FaultKind.ECC_UNCORRECTED), (has_ecc, "has no ECC")),
    **dict.fromkeys(
        (FaultKind.ROW_REMAP, FaultKind.ROW_REMAP_FAILED, FaultKind.RECOVERY),
        (lambda model: remap_banks_of(model) is not None, "does not remap rows"),
    ),
    FaultKind.PAGES_RETIRED: (
        lambda model: (
            (is_nvidia(model) and has_ecc(model) and remap_banks_of(model) is None)
            or tells(model, "retired_pages_uncorrected_total")
        ),
        "does not retire pages",
    ),
    FaultKind.XID: (is_nvidia, "has no Xids, which are NVIDIA's"),
    FaultKind.INFOROM_INVALID: (is_nvidia, "has no InfoROM"),
    FaultKind.FAN_STUCK: (
        lambda model: has_fan(model) and is_nvidia(model),
        "has no fan of its own",
    ),
    FaultKind.MEMORY_UNREPAIRABLE: (
        lambda model: is_nvidia(model) and generation_of(model).has_gpm,
        "does not say whether its memory can be repaired",
    ),
    FaultKind.FABRIC_DOWN: (
        lambda model: has_nvswitch(model) and generation_of(model).has_gpm,
        "has no NVLink fabric that says how it is",
    ),
}
"""Condition on the model for a fault, and the text for other models."""

_SHOWN_BY: Mapping[FaultKind, tuple[str, ...]] = {
    FaultKind.PCIE_DEGRADED: ("pcie_generation",),
    FaultKind.STRAGGLER: ("sm_clock_mhz",),
    FaultKind.MEMORY_LEAK: ("memory_used_bytes",),
    FaultKind.THERMAL_THROTTLE: ("temperature_celsius",),
    FaultKind.POWER_THROTTLE: ("clocks_event_reasons", "sm_clock_mhz"),
    FaultKind.POWER_CAPPED: ("clocks_event_reasons", "power_limit_watts"),
    FaultKind.POWER_BRAKE: ("clocks_event_reasons", "sm_clock_mhz"),
    FaultKind.CLOCKS_LOCKED: ("sm_clock_mhz",),
    FaultKind.ORPHAN_MEMORY: ("memory_used_bytes",),
}
"""Columns of which a vendor's source must tell one, so that the fault shows."""


def misfit(fault: Fault, model: GpuModel, gpus: int) -> str | None:
    """Why a node of that kind cannot have the fault, as the end of a sentence; None: it can."""
    if fault.gpu is not None and not 0 <= fault.gpu < gpus:
        return f"gpu = {fault.gpu} must be 0 to {gpus - 1}"
    if fault.kind in _LACKING:
        can_have, lack = _LACKING[fault.kind]
        if not can_have(model):
            return f"{model.name} {lack}"
    source, shown_by = source_of(model), _SHOWN_BY.get(fault.kind)
    if source is not None and shown_by and not any(map(source.tells, shown_by)):
        return f"{model.name}: nothing that its source tells shows it"
    if fault.kind is FaultKind.NVLINK_DOWN:
        links, link = link_count(model), fault.number("link")
        if not links:
            return f"{model.name} has no NVLinks that are simulated"
        if link >= links:
            return f"link = {link:g} must be 0 to {links - 1}"
    if fault.kind is FaultKind.INFINIBAND_DOWN:
        adapters, adapter = adapters_of(model, gpus).count, fault.number("adapter")
        if not adapters:
            return f"nodes with {model.name} have no InfiniBand"
        if adapter >= adapters:
            return f"adapter = {adapter:g} must be 0 to {adapters - 1}"
    return None
