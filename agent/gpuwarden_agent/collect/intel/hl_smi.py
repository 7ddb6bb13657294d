"""Evaluates what `hl-smi -Q NAMES -f csv` prints: a line with names and units, and one for each device.

Source of names and format: Intel Gaudi documentation, "System Management Interface Tool (hl-smi)"
(docs.habana.ai), and captures of it: `utilization.aip [%]`, `memory.used [MiB]`, values with or without
the unit after them.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwarden_agent.probe import Value

IDENTITY = ("index", "uuid", "name", "serial", "bus_id", "driver_version", "module_id")
SAMPLE = (
    "utilization.aip",
    "memory.total",
    "memory.used",
    "memory.free",
    "power.draw",
    "temperature.aip",
)
ERRORS = (
    "ecc.mode.current",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
)
MODELS = {
    "HL-20": "Intel Gaudi",
    "HL-22": "Intel Gaudi 2",
    "HL-28": "Intel Gaudi 2",
    "HL-32": "Intel Gaudi 3",
    "HL-33": "Intel Gaudi 3",
    "HL-38": "Intel Gaudi 3",
}
"""Generations by the beginning of the board's name."""
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)(?: ?(?:%|[A-Za-z]{1,3}))?", re.ASCII)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_UNITS = {"B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_NONE = {"", "N/A", "[N/A]", "NA", "NONE", "NOT SUPPORTED", "[NOT SUPPORTED]", "UNKNOWN", "ERROR"}


@dataclass(frozen=True, slots=True)
class Gaudi:
    """One device of `hl-smi`."""

    fields: Mapping[str, str]
    """Values that it tells, by name."""
    units: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """A value as it is; None: not told."""
        return self.fields.get(name)

    def number(self, name: str) -> float | None:
        """A number, without its unit; None: not told."""
        found = _NUMBER.fullmatch(self.fields.get(name, ""))
        return float(found[1]) if found else None

    def count(self, name: str) -> int | None:
        """A whole number; None: not told."""
        value = self.fields.get(name, "")
        return int(value) if _COUNT.fullmatch(value) else None

    def memory(self, name: str) -> int | None:
        """Bytes, by the unit after the value or in the line of names, else MiB; None: not told."""
        number, value = self.number(name), self.fields.get(name, "")
        if number is None:
            return None
        unit = value.lstrip("0123456789. ") or self.units.get(name) or "MiB"
        factor = _UNITS.get(unit.upper())
        return None if factor is None else int(number * factor)


def parse(text: str, names: Sequence[str]) -> list[Gaudi]:
    """Devices of a query of these names. Raises ValueError."""
    lines = [[cell.strip() for cell in cells] for cells in csv.reader(text.splitlines()) if cells]
    # A warning may come before the line of names.
    head = next((n for n, cells in enumerate(lines) if _names(cells) == list(names)), None)
    if head is None:
        raise ValueError(f"it has no line of names: {text.strip()[:80]!r}")
    units = dict(zip(names, map(_unit, lines[head]), strict=True))
    devices = []
    for cells in lines[head + 1 :]:
        if len(cells) != len(names):
            raise ValueError(f"a device has {len(cells)} values for {len(names)} names")
        told = {n: c for n, c in zip(names, cells, strict=True) if c.upper() not in _NONE}
        devices.append(Gaudi(told, {name: unit for name, unit in units.items() if unit}))
    if not devices:
        raise ValueError("it has no device")
    return devices


def _names(cells: Sequence[str]) -> list[str]:
    return [cell.partition("[")[0].strip() for cell in cells]


def _unit(cell: str) -> str:
    return cell.partition("[")[2].rstrip("] ")


def model_of(name: str | None) -> str:
    """The board's name with its generation: "Intel Gaudi 2 HL-225"."""
    if name is None:
        return "Intel Gaudi"
    generation = next((m for prefix, m in MODELS.items() if name.startswith(prefix)), "Intel Gaudi")
    return f"{generation} {name}"


def bus_of(device: Gaudi) -> str | None:
    """PCI bus id as the kernel writes it; None: not told."""
    bus = device.text("bus_id")
    return bus[-12:].lower() if bus is not None and _BUS.fullmatch(bus) else None


def sample(device: Gaudi) -> dict[str, Value]:
    """Columns of `gpu_samples`."""
    return {
        "util_percent": device.number("utilization.aip"),
        "memory_total_bytes": device.memory("memory.total"),
        "memory_used_bytes": device.memory("memory.used"),
        "memory_free_bytes": device.memory("memory.free"),
        "power_watts": device.number("power.draw"),
        "temperature_celsius": device.number("temperature.aip"),
    }


def health(device: Gaudi) -> dict[str, Value]:
    """Columns of `gpu_health_samples`."""
    return {
        f"ecc_{kind}_{span}_total": device.count(f"ecc.errors.{kind}.{span}.total")
        for kind in ("corrected", "uncorrected")
        for span in ("volatile", "aggregate")
    }


def ecc_mode(device: Gaudi) -> bool | None:
    """Whether ECC is switched on; None: not told."""
    word = (device.text("ecc.mode.current") or "").lower()
    return {
        "enabled": True,
        "on": True,
        "1": True,
        "disabled": False,
        "off": False,
        "0": False,
    }.get(word)
