"""Evaluates files of /sys on a Jetson: which chip it is, and readings of its GPU.

Sources: Jetson Linux Developer Guide (r35, r36), "Platform Power and Performance": devfreq, thermal
zones, INA3221 monitors and their rails; kernel documents of devfreq, thermal and hwmon.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

DEVICE = re.compile(r"(?:[0-9a-f]{4,16}\.)?(?:gpu|gm20b|gp10b|gv11b|ga10b)(?:\.0)?")
"""Names of the GPU in /sys/class/devfreq and /sys/devices."""
ZONE = re.compile(r"gpu(?:[-_]therm(?:al)?)?", re.IGNORECASE)
"""The GPU's thermal zone: "gpu-thermal" since JetPack 6, "GPU-therm" before."""
RAILS = ("VDD_GPU", "GPU", "VDD_SYS_GPU", "POM_5V_GPU", "VDD_GPU_SOC")
"""Rails that feed the GPU and no CPU, the purest first. VDD_GPU_SOC feeds the rest of the chip, too."""
OFF_CELSIUS = -100.0
"""A sensor of a part without power shows -256."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A system on a chip whose GPU the driver nvgpu serves."""

    name: str
    architecture: str
    compute_capability: str


CHIPS = {
    "tegra210": Chip("NVIDIA Jetson Nano", "maxwell", "5.3"),
    "tegra186": Chip("NVIDIA Jetson TX2", "pascal", "6.2"),
    "tegra194": Chip("NVIDIA Jetson Xavier", "volta", "7.2"),
    "tegra234": Chip("NVIDIA Jetson Orin", "ampere", "8.7"),
}
"""By the word in the device tree. Later chips have NVIDIA's other driver, and NVML reads them."""
SOC_IDS = {"33": "tegra210", "24": "tegra186", "25": "tegra194", "35": "tegra234"}
"""Words of chips by /sys/devices/soc0/soc_id, which containers can read."""


def chip_of(compatible: str | None, family: str | None, soc_id: str | None) -> Chip | None:
    """The chip, by the device tree or the kernel's name for it; None: it is none of these."""
    for word in re.findall(r"nvidia,(tegra\d+)", compatible or ""):
        if word in CHIPS:
            return CHIPS[word]
    if (family or "").strip().lower() != "tegra":
        return None
    return CHIPS.get(SOC_IDS.get((soc_id or "").strip(), ""))


def model_of(text: str | None, chip: Chip) -> str:
    """The board's name in the device tree; without one, the chip's."""
    name = " ".join((text or "").replace("\0", " ").split())
    if not name:
        return chip.name
    return name if name.startswith("NVIDIA") else f"NVIDIA {name}"


def rail_of(labels: Collection[str]) -> str | None:
    """The rail of the GPU among these; None: all of them feed a CPU, too, or no GPU."""
    return next((rail for rail in RAILS if rail in labels), None)


def percent_of_load(text: str) -> float:
    """Tenths of a percent, 0 to 1000, as percent. Raises ValueError."""
    load = _whole(text)
    if not 0 <= load <= 1000:
        raise ValueError("is not a load of 0 to 1000")
    return load / 10


def megahertz(text: str) -> float | None:
    """Hz as MHz; None: the clock is off. Raises ValueError."""
    hertz = _whole(text)
    if hertz < 0:
        raise ValueError("is not a frequency")
    return hertz / 1e6 or None


def highest_megahertz(text: str) -> float | None:
    """The highest of a list of frequencies; None: there is none. Raises ValueError."""
    return max((megahertz(word) or 0.0 for word in text.split()), default=0.0) or None


def celsius(text: str) -> float | None:
    """Thousandths of a degree as degrees; None: the sensor is off. Raises ValueError."""
    degrees = _whole(text) / 1000
    return degrees if degrees > OFF_CELSIUS else None


def thousandths(text: str) -> float:
    """mV as V, mA as A. Raises ValueError."""
    return _whole(text) / 1000


def _whole(text: str) -> int:
    word = text.strip()
    if not re.fullmatch(r"-?\d{1,15}", word, re.ASCII):
        raise ValueError("is not a whole number")
    return int(word)
