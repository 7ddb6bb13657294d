"""Finds accelerators of vendors other than NVIDIA and AMD, and makes the probe of each vendor.

A vendor's module is loaded only where its sign is there: a device file, a driver's folder, a tool.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from gpuwarden_agent.collect.accelerators import AcceleratorProbe, AcceleratorSource, Host
from gpuwarden_agent.collect.files import read_text

INDEXES_EACH = 64
"""Indexes that a vendor's devices have; more devices than these no host has."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor whose devices one source reads."""

    module: str
    """Module with `find(host) -> AcceleratorSource | None`."""
    has_sign: Callable[[Host], bool]
    """Whether such a device may be here. Reads names of files, and PCI vendors."""


def _any(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def _has_tpu(host: Host) -> bool:
    """Only Google's chips have both such a file and Google's PCI vendor, which `find` looks for."""
    return _any(host.dev, "accel[0-9]*") or _any(host.dev / "vfio", "[0-9]*")


def _has_pci_vendor(host: Host, kind: str, vendor: str) -> bool:
    files = (host.sys / "class" / kind).glob("*/device/vendor")
    return any((read_text(file) or "").strip() == vendor for file in files)


def is_arm_board(host: Host) -> bool:
    """A Jetson is one; which, `find` reads."""
    places = ("firmware/devicetree/base/compatible", "devices/soc0/family")
    return any((host.sys / place).exists() for place in places)


VENDORS: tuple[Vendor, ...] = (
    Vendor("gpuwarden_agent.collect.tpu.source", _has_tpu),
    Vendor("gpuwarden_agent.collect.neuron.source", lambda host: _any(host.dev, "neuron[0-9]*")),
    Vendor(
        "gpuwarden_agent.collect.cambricon.source",
        lambda host: _any(host.dev, "cambricon_dev[0-9]*"),
    ),
    Vendor("gpuwarden_agent.collect.mthreads.source", lambda host: _any(host.dev, "mtgpu.[0-9]*")),
    Vendor("gpuwarden_agent.collect.rebellions.source", lambda host: _any(host.dev, "rbln[0-9]*")),
    Vendor(
        "gpuwarden_agent.collect.furiosa.source",
        lambda host: (host.sys / "class/rngd_mgmt").exists(),
    ),
    Vendor("gpuwarden_agent.collect.huawei.source", lambda host: _any(host.dev, "davinci[0-9]*")),
    Vendor(
        "gpuwarden_agent.collect.intel.gaudi",
        lambda host: _has_pci_vendor(host, "accel", "0x1da3"),
    ),
    Vendor(
        "gpuwarden_agent.collect.intel.gpu", lambda host: _has_pci_vendor(host, "drm", "0x8086")
    ),
    Vendor(
        "gpuwarden_agent.collect.tenstorrent.source",
        lambda host: _any(host.sys / "class/tenstorrent", "tenstorrent!*"),
    ),
    Vendor("gpuwarden_agent.collect.jetson.source", is_arm_board),
    Vendor("gpuwarden_agent.collect.apple.source", lambda host: host.platform == "darwin"),
)


def find_accelerators(
    host: Host, first: int, vendors: Sequence[Vendor] = VENDORS
) -> list[AcceleratorProbe]:
    """A probe for each vendor whose devices are here; their indexes begin at `first`."""
    probes: list[AcceleratorProbe] = []
    for vendor in vendors:
        if not vendor.has_sign(host):
            continue
        source: AcceleratorSource | None = import_module(vendor.module).find(host)
        if source is not None:
            # Each vendor has its own range, so that a device that comes later moves no other.
            probes.append(AcceleratorProbe(source, first + len(probes) * INDEXES_EACH))
    return probes
