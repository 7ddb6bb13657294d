"""Reads the GPU of a Jetson up to Orin from /sys, without privilege.

The driver nvgpu has its load and clock, thermal zones its temperature, and INA3221 monitors the power
of its rail. The GPU uses the host's memory: it has none of its own.
"""

import errno
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.accelerators import Accelerator, Host
from gpuwarden_agent.collect.files import NOT_THERE, DeviceFiles, is_there, listed, read_text
from gpuwarden_agent.collect.jetson.readings import (
    DEVICE,
    ZONE,
    Chip,
    celsius,
    chip_of,
    highest_megahertz,
    megahertz,
    model_of,
    percent_of_load,
    rail_of,
    thousandths,
)
from gpuwarden_agent.probe import ProbeError, Value

TREE = "firmware/devicetree/base"
PLACES = ("devices/platform", "devices/platform/bus@0", "devices")
"""Folders with the GPU's, where devfreq does not lead to it."""


@dataclass(frozen=True, slots=True)
class JetsonPaths:
    """Where readings of the GPU are; None: not on this board, or not yet."""

    load: Path | None
    clock: Path | None
    temperature: Path | None
    rail: tuple[Path, Path] | None
    """Voltage and current."""


def chip_here(sys: Path) -> Chip | None:
    """The chip of this Jetson; None: this is none, or one that NVML reads."""
    soc = sys / "devices/soc0"
    return chip_of(
        read_text(sys / TREE / "compatible"), read_text(soc / "family"), read_text(soc / "soc_id")
    )


def find(host: Host) -> "JetsonSource | None":
    """The source; None where no such chip is."""
    chip = chip_here(host.sys)
    return None if chip is None else JetsonSource(host, chip)


def find_paths(sys: Path) -> JetsonPaths:
    """Search all readings."""
    devfreq = _folder(sys / "class/devfreq")
    device = None if devfreq is None else devfreq / "device"
    candidates = [device, *(_folder(sys / place) for place in PLACES)]
    loads = (folder / "load" for folder in candidates if folder is not None)
    return JetsonPaths(
        next((path for path in loads if is_there(path)), None),
        None if devfreq is None else devfreq / "cur_freq",
        _zone(sys / "class/thermal"),
        _rail(sys / "class/hwmon"),
    )


class JetsonSource:
    """The GPU of this Jetson."""

    vendor = "nvidia"
    kind = "gpu"
    backend = "jetson"
    named = "1 Jetson GPU"
    count = 1
    tells_processes = False
    tables: Mapping[str, int] = {"gpu_samples": 1}

    def __init__(self, host: Host, chip: Chip) -> None:
        self._sys = host.sys
        self._chip = chip
        serial = (read_text(host.sys / TREE / "serial-number") or "").strip("\0 \n")
        self._uuid = f"JETSON-{serial or host.node}"
        # A sensor of a part without power says "try again".
        self._files = DeviceFiles({"gpu_uuid": self._uuid}, NOT_THERE | {errno.EAGAIN})
        self._paths: JetsonPaths | None = None

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "FILE: WHY"."""
        return self._files.failed

    def describe(self) -> Sequence[Accelerator]:
        """The GPU with its model."""
        # The driver may be loaded after the agent began.
        self._paths = find_paths(self._sys)
        clock = self._paths.clock
        inventory: dict[str, Value] = {
            "model": model_of(read_text(self._sys / TREE / "model"), self._chip),
            "architecture": self._chip.architecture,
            "compute_capability": self._chip.compute_capability,
        }
        if clock is not None:
            inventory["sm_clock_max_mhz"] = self._files.read(
                clock.with_name("available_frequencies"), highest_megahertz
            ) or self._files.read(clock.with_name("max_freq"), megahertz)
        return [Accelerator(self._uuid, inventory)]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """The GPU with its readings. Raises ProbeError when there is none."""
        paths = self._paths
        if paths is None or paths.load is None or not is_there(paths.load):
            paths = self._paths = find_paths(self._sys)
        sample: dict[str, Value] = {
            "util_percent": self._value(paths.load, percent_of_load),
            "sm_clock_mhz": self._value(paths.clock, megahertz),
            "temperature_celsius": self._value(paths.temperature, celsius),
            "power_watts": self._watts(paths),
        }
        if all(value is None for value in sample.values()):
            raise ProbeError("the Jetson's GPU has no readings in /sys: is nvgpu loaded?")
        return [Accelerator(self._uuid, rows={table: [sample] for table in tables})]

    def driver_version(self) -> str | None:
        """None: nvgpu has the kernel's version."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def _value(self, path: Path | None, parser: Callable[[str], float | None]) -> float | None:
        return None if path is None else self._files.read(path, parser)

    def _watts(self, paths: JetsonPaths) -> float | None:
        if paths.rail is None:
            return None
        volts, amperes = (self._files.read(path, thousandths) for path in paths.rail)
        if volts is None or amperes is None:
            return None
        # A current near zero is measured as a little less.
        return max(volts * amperes, 0.0)


def _folder(parent: Path) -> Path | None:
    names = sorted(name for name in listed(parent) if DEVICE.fullmatch(name))
    return parent / names[0] if names else None


def _zone(thermal: Path) -> Path | None:
    for name in sorted(listed(thermal)):
        kind = read_text(thermal / name / "type") if name.startswith("thermal_zone") else None
        if kind and ZONE.fullmatch(kind.strip()):
            return thermal / name / "temp"
    return None


def _rail(hwmon: Path) -> tuple[Path, Path] | None:
    rails: dict[str, tuple[Path, Path]] = {}
    for name in sorted(listed(hwmon)):
        folder = hwmon / name
        if "ina3221" not in (read_text(folder / "name") or ""):
            continue
        for channel in (1, 2, 3):
            label = (read_text(folder / f"in{channel}_label") or "").strip()
            rails[label] = folder / f"in{channel}_input", folder / f"curr{channel}_input"
    found = rail_of(rails)
    return None if found is None else rails[found]
