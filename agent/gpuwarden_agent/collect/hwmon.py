"""Reads sensors of a PCI device from the kernel's hwmon folder of it (Documentation/hwmon/sysfs-interface.rst)."""

from pathlib import Path

from gpuwarden_agent.collect.files import DeviceFiles, listed, read_text


def hwmon_of(device: Path) -> Path | None:
    """Folder with the sensors of a device; None: its driver has none."""
    names = sorted(name for name in listed(device / "hwmon") if name.startswith("hwmon"))
    return device / "hwmon" / names[0] if names else None


def thousandths(text: str) -> float:
    """Millidegrees, millivolts, milliamperes."""
    return int(text) / 1e3


def millionths(text: str) -> float:
    """Microwatts, microjoules."""
    return int(text) / 1e6


class HwmonSensors:
    """HwmonSensors of one device."""

    def __init__(self, folder: Path | None, files: DeviceFiles) -> None:
        self._folder = folder
        self._files = files

    def celsius(self, *labels: str) -> float | None:
        """The temperature with one of these labels; without labels, the first one."""
        if self._folder is None:
            return None
        for number in range(1, 9):
            path = self._folder / f"temp{number}_input"
            label = (read_text(path.with_name(f"temp{number}_label")) or "").strip()
            if not labels or label in labels:
                value = self._files.read(path, thousandths)
                if value is not None or not labels:
                    return value
        return None

    def micro(self, name: str) -> float | None:
        """power1_input in watts, energy1_input in joules."""
        return None if self._folder is None else self._files.read(self._folder / name, millionths)
