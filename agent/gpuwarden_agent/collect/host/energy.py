"""Reads the energy of CPUs and their memory, and the power of the whole node, from files of the kernel.

RAPL counts microjoules of each package and of its DRAM up to `max_energy_range_uj` and begins again at 0
(Documentation/power/powercap/powercap.rst); AMD's packages are there, too. Since CVE-2020-8694 only root and
CAP_DAC_READ_SEARCH may read the counters. The power of the node is that of ACPI's meter
(Documentation/hwmon/acpi_power_meter.rst), which asks the BMC: slow, so seldom.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.files import read_text

COLUMNS = {"package": "cpu_energy_joules_total", "dram": "dram_energy_joules_total"}
"""Column of `host_samples` by the start of a zone's name: package-0, dram."""


@dataclass(frozen=True, slots=True)
class RaplZone:
    """A counter of energy."""

    path: Path
    """Its folder."""
    column: str
    range_uj: int
    """The counter's largest value."""


def find_zones(sys: Path) -> list[RaplZone]:
    """Packages, and the DRAM of each."""
    return [*_zones(sys / "class/powercap")]


def _zones(folder: Path) -> Iterator[RaplZone]:
    for path in sorted(folder.glob("intel-rapl:*")):
        name = (read_text(path / "name") or "").strip()
        column = COLUMNS.get(name.partition("-")[0])
        largest = (read_text(path / "max_energy_range_uj") or "").strip()
        if column is not None and largest.isdecimal():
            yield RaplZone(path, column, int(largest))


def unwrapped(last: tuple[int, int] | None, now_uj: int, range_uj: int) -> tuple[int, int]:
    """The counter and the sum of what it counted since the first reading, after one more reading. Read it more often
    than it takes to begin again: minutes under load."""
    if last is None:
        return now_uj, 0
    before, total = last
    return now_uj, total + (now_uj - before if now_uj >= before else range_uj - before + now_uj)


class RaplReader:
    """Joules of the zones since the reader was made."""

    def __init__(self, sys: Path, failed: Counter[str]) -> None:
        self._zones = find_zones(sys)
        self._failed = failed
        self._sums: dict[Path, tuple[int, int]] = {}

    def read(self) -> Mapping[str, Mapping[str, float]]:
        """Joules by column and zone. A column of which a zone cannot be read is absent: its sum would be too small."""
        found: dict[str, dict[str, float]] = {}
        unreadable = set()
        for zone in self._zones:
            text = (read_text(zone.path / "energy_uj") or "").strip()
            if not text.isdecimal():
                unreadable.add(zone.column)
                continue
            now = unwrapped(self._sums.get(zone.path), int(text), zone.range_uj)
            self._sums[zone.path] = now
            found.setdefault(zone.column, {})[zone.path.name] = now[1] / 1e6
        for column in unreadable:
            found.pop(column, None)
        if unreadable:
            self._failed["energy_uj"] += 1
            # Without the permission it stays so; a reading each second would only cost.
            self._zones = [zone for zone in self._zones if zone.column not in unreadable]
        return found


def node_watts(sys: Path) -> float | None:
    """The reading of ACPI's power meter. None: there is none, or it is not ready."""
    for path in sorted((sys / "class/hwmon").glob("hwmon*")):
        if (read_text(path / "name") or "").strip() != "power_meter":
            continue
        for place in (path, path / "device"):
            for name in ("power1_average", "power1_input"):
                text = (read_text(place / name) or "").strip()
                if text.isdecimal():
                    return int(text) / 1e6
    return None
