"""Evaluates what Rebellions' `rbln-smi --json` prints (`rbln-stat --json` before it).

Sources: docs.rbln.ai, "Device Monitoring (rbln-smi)", for the values and their units; the names of
the JSON are those that Backend.AI's plugin for ATOM and all-smi read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.collect.printed import (
    BYTES,
    CELSIUS,
    PERCENT,
    amount,
    index,
    json_object,
    named,
    word,
)
from gpuwarden_agent.probe import Value

WATTS = {"w": 1.0, "mw": 1e-3}
"""A number without unit is not understood."""
BYTES_MIN = 1 << 24
"""No NPU has less memory: a smaller number has another unit."""


@dataclass(frozen=True, slots=True)
class RblnNpu:
    """One NPU of a report."""

    number: int
    uuid: str | None
    inventory: Mapping[str, Value]
    """Columns of `gpus`."""
    sample: Mapping[str, Value]
    """Columns of `gpu_samples`."""
    processes: Sequence[tuple[int, int | None]]
    """Pids, and bytes of the NPU's memory; None: not told."""


@dataclass(frozen=True, slots=True)
class RblnReport:
    """What the tool printed."""

    driver_version: str | None
    npus: Sequence[RblnNpu]
    """By number."""


def parse_report(text: str) -> RblnReport:
    """The report. Raises ValueError."""
    printed = json_object(text)
    listed = named(printed, "devices")
    if not isinstance(listed, list):
        raise ValueError("it has no list devices")  # noqa: TRY004  # of text
    processes = _processes(named(printed, "contexts"))
    npus = {npu.number: npu for entry in listed if (npu := _npu(entry, processes)) is not None}
    driver = word(named(printed, "KMD_version"))
    return RblnReport(driver, [npus[number] for number in sorted(npus)])


def _npu(entry: Any, processes: Mapping[int, Mapping[int, int | None]]) -> RblnNpu | None:
    number = index(named(entry, "npu"))
    if number is None:
        return None
    model = word(named(entry, "name"))
    total = amount(named(entry, "memory", "total"), BYTES)
    used = amount(named(entry, "memory", "used"), BYTES)
    if total is None or total < BYTES_MIN:
        total = used = None
    state = re.fullmatch(r"P(\d{1,2})", word(named(entry, "pstate")) or "", re.ASCII)
    return RblnNpu(
        number,
        word(named(entry, "uuid")),
        {
            "model": f"Rebellions {model}" if model else "Rebellions NPU",
            "serial": word(named(entry, "sid")),
            "pci_bus_id": word(named(entry, "pci", "bus_id")),
            "numa_node": index(named(entry, "pci", "numa_node")),
            "memory_total_bytes": total,
        },
        {
            "util_percent": amount(named(entry, "util"), PERCENT),
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_free_bytes": total - used if total and used is not None else None,
            "temperature_celsius": amount(named(entry, "temperature"), CELSIUS) or None,
            "power_watts": amount(named(entry, "card_power"), WATTS) or None,
            "pstate": int(state[1]) if state else None,
        },
        sorted(processes.get(number, {}).items()),
    )


def _processes(contexts: object) -> dict[int, dict[int, int | None]]:
    """Bytes by pid, by NPU; a process may have several contexts."""
    found: dict[int, dict[int, int | None]] = {}
    for context in contexts if isinstance(contexts, list) else ():
        number, pid = index(named(context, "npu")), _pid(named(context, "pid"))
        if number is None or pid is None:
            continue
        memory = amount(named(context, "memalloc"), BYTES)
        held = found.setdefault(number, {})
        known = held.get(pid, 0)
        # A part that is not told makes the sum unknown.
        held[pid] = None if memory is None or known is None else known + int(memory)
    return found


def _pid(value: object) -> int | None:
    number = amount(value, {"": 1.0})
    return int(number) if number and number < 1 << 31 and number == int(number) else None
