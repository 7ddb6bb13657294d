"""Evaluates what FuriosaAI's `furiosa-smi info` and `status` print with `--format json`.

Sources: developer.furiosa.ai, "Furiosa SMI CLI", for the values and their units; the names of the JSON
are those that all-smi reads, and that users of RNGD cards recorded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.collect.printed import (
    BYTES,
    CELSIUS,
    PERCENT,
    WATTS,
    amount,
    json_list,
    named,
    word,
)
from gpuwarden_agent.probe import Value

MHZ = {"mhz": 1.0, "ghz": 1e3}


@dataclass(frozen=True, slots=True)
class FuriosaNpu:
    """One card."""

    name: str
    """npu0, which `info` and `status` share."""
    uuid: str | None
    inventory: Mapping[str, Value]
    """Columns of `gpus`."""
    sample: Mapping[str, Value]
    """Columns of `gpu_samples`."""


def parse_npus(info: str, status: str) -> list[FuriosaNpu]:
    """Cards of both outputs, in the order of their names. Raises ValueError."""
    used = {word(named(entry, "device")): entry for entry in json_list(status)}
    cards: dict[str, FuriosaNpu] = {}
    for entry in json_list(info):
        name = word(named(entry, "dev_name"))
        if name is not None:
            cards[name] = _npu(name, entry, used.get(name))
    return [cards[name] for name in sorted(cards, key=_place)]


def _npu(name: str, info: Any, status: Any) -> FuriosaNpu:
    model = word(named(info, "arch"))
    total = amount(named(status, "memory", "DRAM", "total_size"), BYTES) or None
    used = amount(named(status, "memory", "DRAM", "used_size"), BYTES)
    return FuriosaNpu(
        name,
        word(named(info, "device_uuid")),
        {
            "model": f"FuriosaAI {model.upper()}" if model else "FuriosaAI NPU",
            "serial": word(named(info, "device_sn")),
            "pci_bus_id": word(named(info, "pci_bdf")),
            "memory_total_bytes": total,
        },
        {
            "util_percent": _mean(named(status, "pe_utilizations")),
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_free_bytes": total - used if total and used is not None else None,
            "temperature_celsius": amount(named(info, "temperature"), CELSIUS) or None,
            "power_watts": amount(named(info, "power"), WATTS) or None,
            "sm_clock_mhz": amount(named(info, "core_clock"), MHZ) or None,
        },
    )


def _mean(cores: object) -> float | None:
    """Mean of the processing elements; None: one of them is not told."""
    if not isinstance(cores, list) or not cores:
        return None
    told = [amount(named(core, "pe_utilization"), PERCENT) for core in cores]
    known = [percent for percent in told if percent is not None]
    return sum(known) / len(known) if len(known) == len(cores) else None


def _place(name: str) -> tuple[int, str]:
    number = re.search(r"\d{1,9}", name, re.ASCII)
    return (int(number[0]) if number else -1, name)
