"""Evaluates the file that Cambricon's `cnmon info -j` writes.

Cambricon publishes no page of it. Its names are those that programs read which run on MLU cards:
gpustack (runtime/detectors/cnmon), KaiTian (find_mlu), and SwanLab (the text of `cnmon info`, whose
"Power: Usage" is taken to be `Power.Usage` here).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.collect.printed import (
    CELSIUS,
    MIB,
    PERCENT,
    WATTS,
    amount,
    index,
    json_object,
    named,
    word,
)
from gpuwarden_agent.probe import Value

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Of PCIe, by GT/s."""


@dataclass(frozen=True, slots=True)
class MluCard:
    """One card of a report."""

    number: int
    uuid: str | None
    inventory: Mapping[str, Value]
    """Columns of `gpus`."""
    sample: Mapping[str, Value]
    """Columns of `gpu_samples`."""
    detail: Mapping[str, Value]
    """Columns of `gpu_detail_samples`."""


def parse_cards(text: str) -> list[MluCard]:
    """Cards by number. Raises ValueError."""
    listed = named(json_object(text), "CnmonInfo")
    if not isinstance(listed, list):
        raise ValueError("it has no list CnmonInfo")  # noqa: TRY004  # of text
    cards = {card.number: card for entry in listed if (card := _card(entry)) is not None}
    return [cards[number] for number in sorted(cards)]


def _card(entry: Any) -> MluCard | None:
    number = index(named(entry, "CardNum"))
    if number is None:
        return None
    model = word(named(entry, "ProductName"))
    total = amount(named(entry, "PhysicalMemUsage", "Total"), MIB) or None
    used = amount(named(entry, "PhysicalMemUsage", "Used"), MIB)
    return MluCard(
        number,
        word(named(entry, "UUID")),
        {
            "model": f"Cambricon {model}" if model else "Cambricon MLU",
            "pci_bus_id": _bus_id(named(entry, "PCI")),
            "memory_total_bytes": total,
            "pcie_generation_max": _generation(named(entry, "PCI", "MaxSpeed")),
            "pcie_width_max": _lanes(named(entry, "PCI", "MaxWidth")),
        },
        {
            "util_percent": amount(named(entry, "Utilization", "MLUAverage"), PERCENT),
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_free_bytes": total - used if total and used is not None else None,
            "temperature_celsius": amount(named(entry, "Temperature", "Chip"), CELSIUS) or None,
            "power_watts": amount(named(entry, "Power", "Usage"), WATTS) or None,
        },
        {
            "pcie_generation": _generation(named(entry, "PCI", "CurrentSpeed")),
            "pcie_width": _lanes(named(entry, "PCI", "CurrentWidth")),
        },
    )


def _bus_id(pci: object) -> str | None:
    """In the kernel's form, of texts in hexadecimal; None: they are something else."""
    words = [named(pci, name) for name in ("DomainID", "Bus", "Device", "Function")]
    if not all(isinstance(each, str) and re.fullmatch("[0-9a-fA-F]{1,4}", each) for each in words):
        return None
    domain, bus, device, function = (int(str(each), 16) for each in words)
    if bus > 0xFF or device > 0x1F or function > 7:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def _generation(value: object) -> int | None:
    speed = amount(value, {"": 1.0, "gt/s": 1.0})
    return None if speed is None else GENERATIONS.get(speed)


def _lanes(value: object) -> int | None:
    lanes = amount(value.strip().lstrip("xX") if isinstance(value, str) else value, {"": 1.0})
    return int(lanes) if lanes and lanes <= 64 else None
