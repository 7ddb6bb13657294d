"""Evaluates what macOS and macmon print about a Mac's chip.

Sources of the formats: the README and changelog of github.com/vladkens/macmon (0.6.1 to 0.8.2), and
`system_profiler -json SPHardwareDataType` as macOS 12 and later print it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwarden_agent.collect.printed import amount, json_object, word
from gpuwarden_agent.probe import Value


@dataclass(frozen=True, slots=True)
class Mac:
    """The computer, as `system_profiler` shows it."""

    uuid: str
    chip: str | None


@dataclass(frozen=True, slots=True)
class MacReport:
    """A line of `macmon pipe`."""

    chip: str | None = None
    gpu_cores: int | None = None
    clock_max_mhz: float | None = None
    is_old: bool = False
    """macmon before 0.8, which tells no share of time."""
    sample: Mapping[str, Value] = field(default_factory=dict)
    """Columns of `gpu_samples`."""


def parse_mac(text: str) -> Mac:
    """The computer, from `system_profiler -json SPHardwareDataType`. Raises ValueError."""
    listed = json_object(text).get("SPHardwareDataType")
    entry = listed[0] if isinstance(listed, list) and listed else None
    if not isinstance(entry, Mapping) or (uuid := word(entry.get("platform_UUID"))) is None:
        raise ValueError("no platform_UUID")
    return Mac(uuid, word(entry.get("chip_type")))


def parse_report(text: str) -> MacReport:
    """One line of `macmon pipe --soc-info`. Raises ValueError."""
    line = json_object(text)
    if not line.keys() & {"gpu_freq_mhz", "gpu_usage", "gpu_power"}:
        raise ValueError("it has nothing of a GPU")
    chip = line.get("soc")
    chip = chip if isinstance(chip, Mapping) else {}
    active = _number(line.get("gpu_active_ratio"))
    clock = _number(line.get("gpu_freq_mhz"))
    if clock is None and isinstance(usage := line.get("gpu_usage"), list) and usage:
        # The second value is multiplied by the clock's share of its maximum: no share of time.
        clock = _number(usage[0])
    sensors = line.get("temp")
    celsius = _number(sensors.get("gpu_temp_avg")) if isinstance(sensors, Mapping) else None
    clocks = chip.get("gpu_freqs")
    known = [_number(each) or 0.0 for each in clocks] if isinstance(clocks, list) else []
    cores = _number(chip.get("gpu_cores"))
    return MacReport(
        word(chip.get("chip_name")),
        int(cores) if cores else None,
        max(known, default=0.0) or None,
        is_old="gpu_active_ratio" not in line,
        sample={
            "util_percent": None if active is None else 100 * active,
            "power_watts": _number(line.get("gpu_power")),
            # Means over the sensors that answered, and over the time at work: 0 is a mean of none.
            "temperature_celsius": celsius or None,
            "sm_clock_mhz": clock or None,
        },
    )


def model_of(chip: str | None, gpu_cores: int | None) -> str:
    """The GPU's name: one chip is sold with several numbers of GPU cores."""
    name = chip or "Apple GPU"
    return f"{name} ({gpu_cores}-core GPU)" if gpu_cores else name


def _number(value: object) -> float | None:
    """A number from 0 on; None: none, or one that is impossible."""
    return None if isinstance(value, str) else amount(value, {"": 1.0})
