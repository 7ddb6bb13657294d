"""Finds TPU chips by their PCI devices, and the processes that have them open.

Sources: device ids, memory and cores of a chip, and names of device files as in Google's `tpu-info` 0.14.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.files import listed, read_text

GOOGLE = "0x1ae0"
"""PCI vendor."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TpuModel:
    """A generation of chips."""

    name: str
    memory_bytes: int
    cores: int
    """Devices that the metric service counts on one chip."""


MODELS: dict[str, TpuModel] = {
    "0x005e": TpuModel("Google TPU v4", 32 * GIB, 1),
    "0x0063": TpuModel("Google TPU v5e", 16 * GIB, 1),
    "0x0062": TpuModel("Google TPU v5p", 95 * GIB, 1),
    "0x006f": TpuModel("Google TPU v6e", 32 * GIB, 1),
    "0x0076": TpuModel("Google TPU7x", 192 * GIB, 2),
}
"""By PCI device id."""
MODEL_V2 = TpuModel("Google TPU v2", 16 * GIB, 2)
MODEL_V3 = TpuModel("Google TPU v3", 32 * GIB, 2)
V2_OR_V3 = "0x0027"
V2_SUBSYSTEM, V3_SUBSYSTEM = "0x004e", "0x004f"


@dataclass(frozen=True, slots=True)
class TpuChip:
    """A chip of this host."""

    pci_bus_id: str
    model: TpuModel
    numa_node: int | None
    file: str
    """Its device file, which one process at a time has open: /dev/accel0, /dev/vfio/12."""


def find_chips(sys: Path, dev: Path) -> list[TpuChip]:
    """Chips in the order of their device files, in which libtpu numbers them."""
    found: dict[str, TpuChip] = {}
    for address in sorted(listed(sys / "bus/pci/devices")):
        folder = sys / "bus/pci/devices" / address
        if _word(folder / "vendor") != GOOGLE:
            continue
        model = _model(folder)
        file = _file(folder, dev)
        # Functions of one device are cores of one chip: the first one stands for it.
        if model is not None and file is not None:
            place, _, _ = address.partition(".")
            found.setdefault(place, TpuChip(address, model, _numa_node(folder), file))
    return sorted(found.values(), key=lambda chip: _natural(chip.file))


def owners(proc: Path, files: set[str]) -> dict[str, set[int]] | None:
    """Pids that have each device file open; None where those of other users cannot be read."""
    found: dict[str, set[int]] = {file: set() for file in files}
    for pid in listed(proc):
        if not pid.isdecimal():
            continue
        try:
            targets = list(_open_files(proc / pid / "fd"))
        except PermissionError:
            return None
        for target in targets:
            if target in found:
                found[target].add(int(pid))
    return found


def _open_files(folder: Path) -> Iterator[str]:
    """Raises PermissionError."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return  # the process has ended
    for name in names:
        try:
            yield os.readlink(folder / name)
        except FileNotFoundError:
            continue


def _model(folder: Path) -> TpuModel | None:
    device = _word(folder / "device")
    if device == V2_OR_V3:
        subsystem = _word(folder / "subsystem_device")
        return {V2_SUBSYSTEM: MODEL_V2, V3_SUBSYSTEM: MODEL_V3}.get(subsystem)
    return MODELS.get(device)


def _file(folder: Path, dev: Path) -> str | None:
    """The device file: of the accel driver up to v4, of VFIO from v5 on."""
    accel = next(
        (name for name in listed(folder / "accel") if re.fullmatch(r"accel\d+", name)), None
    )
    if accel is not None:
        return str(dev / accel)
    try:
        return str(dev / "vfio" / os.path.basename(os.readlink(folder / "iommu_group")))
    except OSError:
        return None


def _numa_node(folder: Path) -> int | None:
    text = _word(folder / "numa_node")
    return int(text) if text.isdecimal() else None


def _word(path: Path) -> str:
    return (read_text(path) or "").strip()


def _natural(text: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", text)]
