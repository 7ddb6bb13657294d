"""Reads Intel's discrete GPUs (Data Center GPU Max and Flex, Arc) from files of the drivers xe and i915.

Of the kernel's documentation: Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon (energy, power,
temperatures; only of discrete GPUs), sysfs of tiles and GTs (drivers/gpu/drm/xe/xe_gt_idle.c, xe_gt_freq.c; i915's
gt/gtN). An integrated GPU has no such sensors and is left out: it costs nothing beside its CPU.

Utilization is the time in which a GT was not in its deepest idle state (C6), of the busiest GT: it says that somebody
worked, not how many engines did.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import DeviceFiles, listed, read_text
from gpuwarden_agent.collect.hwmon import HwmonSensors, hwmon_of
from gpuwarden_agent.probe import ProbeError, Value

VENDOR = "0x8086"
MODELS: Mapping[str, str] = {
    # PCI device id (the kernel's include/drm/intel/pciids.h): name
    "0x0bd5": "Intel Data Center GPU Max 1550",
    "0x0bd6": "Intel Data Center GPU Max 1550",
    "0x0bda": "Intel Data Center GPU Max 1100",
    "0x0bdb": "Intel Data Center GPU Max 1100",
    "0x56c0": "Intel Data Center GPU Flex 170",
    "0x56c1": "Intel Data Center GPU Flex 140",
    "0x56a0": "Intel Arc A770",
    "0x56a1": "Intel Arc A750",
    "0xe20b": "Intel Arc B580",
    "0xe20c": "Intel Arc B570",
}
IDLE_SLACK_MS = 20.0
"""The driver adds to the counter when a GT wakes up or is read: a second may have a little more than 1,000 ms."""


@dataclass(frozen=True, slots=True)
class IntelGpu:
    """One discrete GPU."""

    device: Path
    """Its PCI folder."""
    address: str
    model: str


def find(host: Host) -> "IntelGpuSource | None":
    """The source; None without a discrete GPU."""
    gpus = [*_gpus(host.sys)]
    return IntelGpuSource(host, gpus) if gpus else None


def _gpus(sys: Path) -> Iterator[IntelGpu]:
    found = {}
    for name in listed(sys / "class/drm"):
        if not name.startswith("card") or not name[4:].isdecimal():
            continue
        device = (sys / "class/drm" / name / "device").resolve()
        if (read_text(device / "vendor") or "").strip() != VENDOR or hwmon_of(device) is None:
            continue
        kind = (read_text(device / "device") or "").strip()
        found[device.name] = IntelGpu(device, device.name, MODELS.get(kind, f"Intel GPU {kind}"))
    return iter(sorted(found.values(), key=lambda gpu: gpu.address))


def busy_percent(
    before: Mapping[str, int] | None, after: Mapping[str, int], elapsed_ms: float
) -> float | None:
    """Share of the time in which the busiest GT was not in C6. None: without two readings of one."""
    if not before or elapsed_ms <= 0:
        return None
    shares = []
    for name, idle_ms in after.items():
        rested_ms = idle_ms - before.get(name, idle_ms + 1)
        if 0 <= rested_ms <= elapsed_ms + IDLE_SLACK_MS:
            shares.append(100 - 100 * min(rested_ms / elapsed_ms, 1.0))
    return max(shares) if shares else None


class IntelGpuSource:
    """All discrete GPUs of Intel in this host."""

    vendor = "intel"
    kind = "gpu"
    backend = "intel"
    tells_processes = False
    tables: Mapping[str, int] = {"gpu_samples": 1}

    def __init__(self, host: Host, gpus: Sequence[IntelGpu]) -> None:
        self.count = len(gpus)
        self.named = counted(len(gpus), "Intel GPU")
        self._host = host
        self._gpus = gpus
        self._files = {gpu.address: DeviceFiles({"pci": gpu.address}) for gpu in gpus}
        self._idle: dict[str, tuple[float, Mapping[str, int]]] = {}

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "FILE: WHY", of all GPUs."""
        sums: dict[str, int] = {}
        for files in self._files.values():
            for reason, times in files.failed.items():
                sums[reason] = sums.get(reason, 0) + times
        return sums

    def describe(self) -> Sequence[Accelerator]:
        """GPUs by PCI address."""
        return [
            Accelerator(
                self._uuid(gpu),
                {
                    "model": gpu.model,
                    "pci_bus_id": gpu.address,
                    "numa_node": _numa_node(gpu.device),
                    "sm_clock_max_mhz": self._highest(gpu, "rp0_freq", "rps_RP0_freq_mhz"),
                    "power_limit_max_watts": self._sensors(gpu).micro("power1_rated_max"),
                },
            )
            for gpu in self._gpus
        ]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """GPUs with their readings; one that is gone is left out. Raises ProbeError when all are."""
        found = []
        for gpu in self._gpus:
            sensors, sample = self._sensors(gpu), self._sample(gpu)
            sample |= {
                "energy_joules_total": sensors.micro("energy1_input"),
                "power_limit_watts": sensors.micro("power1_max"),
                "temperature_celsius": sensors.celsius("pkg") or sensors.celsius(),
                "memory_temperature_celsius": sensors.celsius("vram"),
            }
            if any(value is not None for value in sample.values()):
                rows = {table: [sample] for table in tables}
                found.append(Accelerator(self._uuid(gpu), rows=rows))
        if not found:
            raise ProbeError("no Intel GPU has readings in /sys: is xe or i915 loaded?")
        return found

    def driver_version(self) -> str | None:
        """None: xe and i915 have the kernel's version."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def _sample(self, gpu: IntelGpu) -> dict[str, Value]:
        now = self._host.clock.monotonic()
        idle = {}
        for place in _gts(gpu.device):
            for name in ("gtidle/idle_residency_ms", "rc6_residency_ms"):
                value = self._files[gpu.address].read(place / name, int)
                if value is not None:
                    idle[str(place)] = value
        at, before = self._idle.get(gpu.address, (now, None))
        self._idle[gpu.address] = now, idle
        return {
            "util_percent": busy_percent(before, idle, 1000 * (now - at)),
            "sm_clock_mhz": self._highest(gpu, "act_freq", "rps_act_freq_mhz"),
        }

    def _highest(self, gpu: IntelGpu, xe: str, i915: str) -> int | None:
        """The greatest value of its GTs: xe's `freq0/NAME`, i915's `NAME`."""
        values = [
            value
            for place in _gts(gpu.device)
            for path in (place / "freq0" / xe, place / i915)
            if (value := self._files[gpu.address].read(path, int)) is not None
        ]
        return max(values, default=None)

    def _sensors(self, gpu: IntelGpu) -> HwmonSensors:
        return HwmonSensors(hwmon_of(gpu.device), self._files[gpu.address])

    def _uuid(self, gpu: IntelGpu) -> str:
        return f"INTEL-{self._host.node}-{gpu.address}"


def _gts(device: Path) -> list[Path]:
    """Folders of its GTs: xe's tileN/gtN, else i915's drm/cardN/gt/gtN."""
    tiles = [*device.glob("tile*/gt*")]
    return sorted(tiles or device.glob("drm/card*/gt/gt*"))


def _numa_node(device: Path) -> int | None:
    text = (read_text(device / "numa_node") or "").strip()
    return int(text) if text.isdecimal() else None
