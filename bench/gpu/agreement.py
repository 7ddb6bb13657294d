"""Compares our readings with nvidia-smi's, field by field.

Ours are read before and after nvidia-smi runs; a value agrees when it lies between those two, or within the
stated tolerance of one of them. A field that neither has agrees too.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from bench.gpu.machine import MIB, Machine, read_now

from gpuwarden_agent.probe import Reading, Value

ABSENT = re.compile(
    r"^\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions|GPU requires reset)\]?$",
    re.IGNORECASE,
)
IDENTIFYING = frozenset({"gpu_uuid", "serial"})
"""Columns that are compared and not shown: results are shared with others."""


@dataclass(frozen=True)
class Field:
    """A field of nvidia-smi and the column that says the same."""

    smi: str
    table: str
    column: str
    absolute: float = 0.0
    relative: float = 0.0
    times: float = 1.0
    """From nvidia-smi's unit to the column's."""


def _fields() -> tuple[Field, ...]:
    fast, detail, health, board = "gpu_samples", "gpu_detail_samples", "gpu_health_samples", "gpus"
    return (
        Field("name", board, "model"),
        Field("uuid", board, "gpu_uuid"),
        Field("serial", board, "serial"),
        Field("pci.bus_id", board, "pci_bus_id"),
        Field("vbios_version", board, "vbios_version"),
        Field("inforom.img", board, "inforom_version"),
        Field("compute_cap", board, "compute_capability"),
        Field("mig.mode.current", board, "mig_mode"),
        Field("persistence_mode", board, "persistence_mode"),
        Field("compute_mode", board, "compute_mode"),
        Field("ecc.mode.current", board, "ecc_mode"),
        Field("power.default_limit", board, "power_limit_default_watts", 0.02),
        Field("power.min_limit", board, "power_limit_min_watts", 0.02),
        Field("power.max_limit", board, "power_limit_max_watts", 0.02),
        Field("clocks.max.sm", board, "sm_clock_max_mhz"),
        Field("clocks.max.memory", board, "memory_clock_max_mhz"),
        Field("pcie.link.gen.max", board, "pcie_generation_max"),
        Field("pcie.link.width.max", board, "pcie_width_max"),
        Field("memory.total", fast, "memory_total_bytes", MIB, times=MIB),
        Field("memory.reserved", fast, "memory_reserved_bytes", 2 * MIB, times=MIB),
        Field("memory.used", fast, "memory_used_bytes", 4 * MIB, times=MIB),
        Field("memory.free", fast, "memory_free_bytes", 4 * MIB, times=MIB),
        Field("utilization.gpu", fast, "util_percent", 10),
        Field("utilization.memory", fast, "memory_util_percent", 10),
        Field("utilization.encoder", fast, "encoder_util_percent", 5),
        Field("utilization.decoder", fast, "decoder_util_percent", 5),
        Field("temperature.gpu", fast, "temperature_celsius", 2),
        Field("temperature.memory", fast, "memory_temperature_celsius", 2),
        Field("power.draw.average", fast, "power_watts", 5, 0.05),
        Field("power.draw.instant", fast, "power_instant_watts", 10, 0.15),
        Field("enforced.power.limit", fast, "power_limit_watts", 0.02),
        Field("clocks.sm", fast, "sm_clock_mhz", 60),
        Field("clocks.mem", fast, "memory_clock_mhz"),
        Field("pstate", fast, "pstate"),
        Field("clocks_event_reasons.active", fast, "clocks_event_reasons"),
        Field("clocks.gr", detail, "graphics_clock_mhz", 60),
        Field("clocks.video", detail, "video_clock_mhz", 60),
        Field("fan.speed", detail, "fan_percent", 3),
        Field("utilization.jpeg", detail, "jpeg_util_percent", 5),
        Field("utilization.ofa", detail, "ofa_util_percent", 5),
        Field("temperature.gpu.tlimit", detail, "temperature_margin_celsius", 2),
        Field("pcie.link.gen.gpucurrent", detail, "pcie_generation"),
        Field("pcie.link.width.current", detail, "pcie_width"),
        *(
            Field(f"ecc.errors.{fate}.{since}.total", health, f"ecc_{fate}_{since}_total")
            for fate in ("corrected", "uncorrected")
            for since in ("volatile", "aggregate")
        ),
        Field("remapped_rows.correctable", health, "remapped_rows_corrected_total"),
        Field("remapped_rows.uncorrectable", health, "remapped_rows_uncorrected_total"),
        Field("remapped_rows.pending", health, "remap_pending"),
        Field("remapped_rows.failure", health, "remap_failed"),
    )


FIELDS = _fields()


@dataclass(frozen=True)
class Compared:
    """One field under one load."""

    load: str
    field: str
    column: str
    tolerance: str
    ours: str
    theirs: str
    verdict: str
    """agree, differs, both absent, only ours, only theirs."""


def compare(machine: Machine, load: str) -> list[Compared]:
    """Ask both, ours on either side of theirs."""
    probe = machine.gpu_probe()
    before = read_now(probe)
    theirs = machine.smi([field.smi for field in FIELDS])
    after = read_now(probe)
    probe.close()
    return [
        judged(load, field, _value(before, field), _value(after, field), theirs.get(field.smi))
        for field in FIELDS
    ]


def judged(load: str, field: Field, before: Value, after: Value, said: str | None) -> Compared:
    """The verdict on a field; `said` None: nvidia-smi does not know it."""
    theirs = None if said is None or ABSENT.match(said) else as_value(said, field)
    ours = [value for value in (before, after) if value is not None]
    if theirs is None or not ours:
        verdict = "both absent" if theirs is None and not ours else (
            "only ours" if theirs is None else "only theirs"
        )  # fmt: skip
    else:
        verdict = "agree" if _is_near(ours, theirs, field) else "differs"
    tolerance = f"{field.absolute:g}" if field.absolute else "exact"
    if field.relative:
        tolerance += f" or {field.relative:.0%}"
    shown = " .. ".join(dict.fromkeys(str(value) for value in ours))
    if field.column in IDENTIFYING:
        shown, said = "hidden", "hidden"
    return Compared(load, field.smi, field.column, tolerance, shown, said or "", verdict)


def as_value(said: str, field: Field) -> float | str:
    """nvidia-smi's text in the column's unit."""
    words = {"enabled": 1.0, "disabled": 0.0, "yes": 1.0, "no": 0.0, "active": 1.0}
    if field.smi in ("name", "uuid", "serial", "vbios_version", "inforom.img", "compute_cap"):
        return said
    if field.smi == "pci.bus_id":
        return said.lower()[-12:]
    if field.smi == "compute_mode":
        return said.lower().replace(" ", "_")
    if said.lower() in words:
        return words[said.lower()]
    try:
        if said.startswith("0x"):
            return float(int(said, 16))
        return float(said.removeprefix("P")) * field.times
    except ValueError:
        return said


def _is_near(ours: Sequence[Value], theirs: float | str, field: Field) -> bool:
    if isinstance(theirs, str):
        return theirs in ours
    numbers = [float(value) for value in ours if isinstance(value, (int, float))]
    if not numbers:
        return False
    slack = max(field.absolute, field.relative * abs(theirs))
    return min(numbers) - slack <= theirs <= max(numbers) + slack


def _value(reading: Reading, field: Field) -> Value:
    rows = reading.get(field.table) or [{}]
    return rows[0].get(field.column)


def write(path: Path, compared: Sequence[Compared]) -> None:
    """Write all fields as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Compared)])
        writer.writeheader()
        writer.writerows(asdict(one) for one in compared)


def counted(compared: Sequence[Compared]) -> Mapping[str, int]:
    """How many fields by verdict."""
    counts: dict[str, int] = {}
    for one in compared:
        counts[one.verdict] = counts.get(one.verdict, 0) + 1
    return counts
