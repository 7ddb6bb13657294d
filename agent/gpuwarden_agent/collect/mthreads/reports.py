"""Evaluates what Moore Threads' `mthreads-gmi -q --json` prints.

Moore Threads publishes no page of it. Its names are those that SwanLab reads on MTT S4000 (hardware
monitor of moorethreads); the name of the UUID is that of the tool's text.
"""

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class MttGpu:
    """One GPU of a report."""

    number: int
    uuid: str | None
    inventory: Mapping[str, Value]
    """Columns of `gpus`."""
    sample: Mapping[str, Value]
    """Columns of `gpu_samples`."""


@dataclass(frozen=True, slots=True)
class MttReport:
    """What the tool printed."""

    driver_version: str | None
    gpus: Sequence[MttGpu]
    """By number."""


def parse_report(text: str) -> MttReport:
    """The report. Raises ValueError."""
    printed = json_object(text)
    listed = named(printed, "GPU")
    if not isinstance(listed, list):
        raise ValueError("it has no list GPU")  # noqa: TRY004  # of text
    gpus = {gpu.number: gpu for entry in listed if (gpu := _gpu(entry)) is not None}
    driver = word(named(printed, "Driver Version"))
    return MttReport(driver, [gpus[number] for number in sorted(gpus)])


def _gpu(entry: Any) -> MttGpu | None:
    number = index(named(entry, "Index"))
    if number is None:
        return None
    model = word(named(entry, "Product Name"))
    total = amount(named(entry, "FB Memory Usage", "Total"), MIB) or None
    used = amount(named(entry, "FB Memory Usage", "Used"), MIB)
    celsius = amount(named(entry, "Temperature", "GPU Current Temp"), CELSIUS)
    return MttGpu(
        number,
        word(named(entry, "GPU UUID")) or word(named(entry, "UUID")),
        {
            "model": f"Moore Threads {model}" if model else "Moore Threads GPU",
            "memory_total_bytes": total,
        },
        {
            "util_percent": amount(named(entry, "Utilization", "Gpu"), PERCENT),
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_free_bytes": total - used if total and used is not None else None,
            "temperature_celsius": celsius or None,
            "power_watts": amount(named(entry, "Power Readings", "Power Draw"), WATTS) or None,
        },
    )
