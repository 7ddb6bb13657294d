"""One AMD GPU as a probe, from the amdgpu driver's files in /sys: no library, no privilege.

There is one probe for each GPU, as for NVIDIA, so that a driver call that hangs stops nothing but
its own GPU. Columns are filled where the driver's reading means what the catalogue says:

- `temperature_celsius` is the edge sensor, as NVIDIA's core temperature is one sensor of the die.
  Junction is the hottest of many sensors, 20 degrees and more above it under load, and would
  make AMD GPUs look hotter than equally warm others. MI300 has no edge sensor: there it is
  junction. Slowdown and shutdown temperatures are those of the same sensor.
- Power of an APU is left out: it includes the CPU. (MI300A cannot be told apart: its is given.)
- `memory_total_bytes` of an APU is the memory set aside for it, which is what its driver calls VRAM.

`pcie_bw` is never read: it measures for a whole second. A GPU that sleeps (runtime suspend) is
not woken up: its row says that it is there, and nothing else.
"""

import errno
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpuwarden.clock import Clock
from gpuwarden_agent.events import event
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value
from gpuwarden_agent.probes import amd_sysfs as parse
from gpuwarden_agent.probes.fit import fit

log = logging.getLogger(__name__)
T = TypeVar("T")

SYS = Path("/sys")

RAS_EVERY_S = 60.0
"""Reading an error counter makes the driver ask every memory channel, and clear what it found."""

_CARD = re.compile(r"card\d+")

_NOT_THERE = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENODATA})
"""Errors that say that the device does not have the reading."""

_ASLEEP = frozenset({"suspended", "suspending"})


@dataclass(frozen=True, slots=True)
class Card:
    """An AMD GPU by its place on the PCI bus, which is the same after a reload of the driver."""

    device: Path
    """Folder of the PCI device."""
    pci_bus_id: str


@dataclass(frozen=True, slots=True)
class Sensors:
    """What the hwmon of a GPU has, learned once."""

    folder: Path
    core: str
    """Number of the sensor that stands for the core: "1" (edge) or "2" (junction)."""
    memory: str | None
    is_apu: bool


def find_cards(sys: Path = SYS) -> list[Card]:
    """AMD GPUs that the amdgpu driver serves, in the order of the PCI bus.

    Partitions of an MI300 are no PCI devices, and not listed: the board is. Nothing is woken up.
    """
    cards = {}
    for entry in _listed(sys / "class/drm"):
        if not _CARD.fullmatch(entry):
            continue
        device = (sys / "class/drm" / entry / "device").resolve()
        address = parse.pci_address(device.name)
        if address and _is_amd(device) and _driver(device) == "amdgpu":
            cards[address] = Card(device, device.name)
    return [cards[address] for address in sorted(cards)]


def driver_version(sys: Path = SYS) -> str | None:
    """Version of an amdgpu driver that came with ROCm; None: the kernel's own, which has none."""
    try:
        return parse.name(_text(sys / "module/amdgpu/version"))
    except OSError:
        return None


class Files:
    """Reads files of one device: what it does not have is absent, what fails is also counted."""

    def __init__(self, gpu: int) -> None:
        self.failed: Counter[str] = Counter()
        """Failed readings by "FILE: WHY"."""
        self._gpu = gpu

    def read(self, path: Path, parser: Callable[[str], T]) -> T | None:
        """What `parser` makes of the file; None: absent."""
        try:
            return parser(_text(path))
        except OSError as error:
            if error.errno not in _NOT_THERE:
                self._note(f"{path.name}: {errno.errorcode.get(error.errno or 0, 'OSError')}")
        except ValueError as error:
            self._note(f"{path.name}: {error}")
        return None

    def _note(self, reason: str) -> None:
        # Content is part of some reasons: a device that makes up new garbage must not fill memory.
        if reason not in self.failed and len(self.failed) >= 100:
            reason = "others"
        self.failed[reason] += 1
        if self.failed[reason] == 1:
            log.warning("reading failed", extra={"gpu": self._gpu, "error": reason})


class AmdGpuProbe:
    """One AMD GPU. `gpu` is its index on the node, after NVIDIA's where both are."""

    simulated = False
    blocking = True
    tables: Mapping[str, int] = {"gpu_samples": 1, "events": 1}
    backend = "amdgpu"

    def __init__(self, card: Card, gpu: int, clock: Clock, node: str) -> None:
        """`node` is part of the identity of a GPU without a unique id."""
        self.name = f"gpu{gpu}"
        self.gpu_uuid: str | None = None
        """None until the GPU was awake once."""
        self._card = card
        self._gpu = gpu
        self._clock = clock
        self._node = node
        self._files = Files(gpu)
        self._is_open = False
        self._sensors: Sensors | None = None
        self._described: Row | None = None
        self._ras: dict[str, Mapping[str, int]] = {}
        self._ras_at_s = -float("inf")

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "FILE: WHY", since the start."""
        return self._files.failed

    def describe(self) -> Reading:
        with self._in_use() as is_awake:
            if is_awake:
                self._described = self._inventory()
            return {"gpus": [self._described]} if self._described else {}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        with self._in_use() as is_awake:
            identity: Row = {"gpu": self._gpu, "gpu_uuid": self.gpu_uuid}
            if not is_awake:
                return {"gpu_samples": [identity]} if self.gpu_uuid else {}
            row = fit("gpu_samples", self._device_values() | self._sensor_values())
            if not row and not self._look_for_card():
                return {"gpu_samples": [identity]}  # it fell asleep, or is gone, meanwhile
            if not row:
                raise ProbeError(f"{self._named} gave no reading at all")
            events = self._ras_events()
        reading: dict[str, list[Row]] = {"gpu_samples": [identity | row]}
        return reading | {"events": events} if events else reading

    def close(self) -> None:
        """Nothing to give back: no file stays open."""

    @property
    def _named(self) -> str:
        return f"GPU {self._gpu} (AMD, {self._card.pci_bus_id})"

    @contextmanager
    def _in_use(self) -> Iterator[bool]:
        """Whether the GPU is awake, and then opened; after a ProbeError it is opened anew."""
        try:
            is_awake = self._look_for_card()
            if is_awake and not self._is_open:
                self._open()
            yield is_awake
        except ProbeError:
            self._is_open = False
            raise

    def _open(self) -> None:
        identity = self._identify()
        if identity != self.gpu_uuid:
            self._described = None
            self._ras.clear()
        self.gpu_uuid = identity
        self._is_open = True

    def _look_for_card(self) -> bool:
        """Whether it is awake. Raises ProbeError when it is gone."""
        device = self._card.device
        if not device.is_dir():
            raise ProbeError(
                f"{self._named} is lost: it is no longer on the PCI bus; drain the node and reboot it",
                kind="gpu_lost",
            )
        # The driver makes `drm` last: before, files that stay away and files to come look the same.
        if _driver(device) is None or not (device / "drm").is_dir():
            raise ProbeError(
                f"{self._named} has no driver that is ready: load the amdgpu kernel module",
                kind="driver_not_loaded",
            )
        if self._files.read(device / "power/runtime_status", parse.word) in _ASLEEP:
            return False
        # From the device itself, unlike `vendor`, which the kernel remembers.
        if parse.is_off_bus(_first_bytes(device / "config", 2)):
            raise ProbeError(
                f"{self._named} is lost: it fell off the bus; drain the node and reboot it",
                kind="gpu_lost",
            )
        return True

    def _identify(self) -> str:
        path = self._card.device / "unique_id"
        try:
            chip_id = parse.unique_id(_text(path))
        except FileNotFoundError:
            chip_id = None
        except (OSError, ValueError) as error:
            # As during a reset. Taking the place for an identity now would make it two GPUs.
            raise ProbeError(f"{self._named} does not tell its unique id: {error}") from error
        return parse.gpu_uuid(chip_id, self._card.pci_bus_id, self._node)

    def _device_values(self) -> dict[str, Value]:
        read, device = self._files.read, self._card.device
        total = read(device / "mem_info_vram_total", parse.positive)
        return {
            "util_percent": read(device / "gpu_busy_percent", parse.number),
            "memory_util_percent": read(device / "mem_busy_percent", parse.number),
            "memory_total_bytes": total,
            "memory_used_bytes": total and read(device / "mem_info_vram_used", parse.number),
        }

    def _sensor_values(self) -> dict[str, Value]:
        sensors = self._learn_sensors()
        if sensors is None:
            return {}
        read, hwmon = self._files.read, sensors.folder
        values: dict[str, Value] = {
            "temperature_celsius": read(hwmon / f"temp{sensors.core}_input", parse.celsius),
            "sm_clock_mhz": read(hwmon / "freq1_input", parse.mhz),
            "memory_clock_mhz": read(hwmon / "freq2_input", parse.mhz),
        }
        if sensors.memory:
            memory = read(hwmon / f"temp{sensors.memory}_input", parse.celsius)
            values["memory_temperature_celsius"] = memory
        if sensors.is_apu:
            return values
        average = read(hwmon / "power1_average", parse.millionth)
        instant = read(hwmon / "power1_input", parse.millionth)
        return values | {
            "power_watts": instant if average is None else average,
            "power_instant_watts": instant,
            "power_limit_watts": read(hwmon / "power1_cap", parse.millionth),
            "energy_joules_total": read(hwmon / "energy1_input", parse.millionth),
        }

    def _learn_sensors(self) -> Sensors | None:
        """The hwmon of the GPU, which has another number after the driver was loaded anew."""
        if self._sensors and self._sensors.folder.is_dir():
            return self._sensors
        read, parent = self._files.read, self._card.device / "hwmon"
        self._sensors = None
        for folder in (parent / entry for entry in sorted(_listed(parent))):
            if read(folder / "name", parse.word) != "amdgpu":
                continue
            numbers = {}
            # Older kernels have no labels, and the sensors in this order.
            for nth, usual in (("1", "edge"), ("2", "junction"), ("3", "mem")):
                if (folder / f"temp{nth}_input").exists():
                    label = read(folder / f"temp{nth}_label", parse.word) or usual
                    numbers[label] = nth
            self._sensors = Sensors(
                folder,
                core=numbers.get("edge") or numbers.get("junction") or "1",
                memory=numbers.get("mem"),
                is_apu=read(folder / "in1_label", parse.word) == "vddnb",
            )
            break
        return self._sensors

    def _inventory(self) -> Row:
        read, device = self._files.read, self._card.device
        product = read(device / "product_name", parse.name)
        device_id = read(device / "device", lambda text: int(text, 16))
        values: dict[str, Value] = {
            "gpu_uuid": self.gpu_uuid,
            "gpu": self._gpu,
            "model": parse.model(product, device_id),
            "vendor": "amd",
            "serial": read(device / "serial_number", parse.name),
            "pci_bus_id": self._card.pci_bus_id,
            "vbios_version": read(device / "vbios_version", parse.name),
            "memory_total_bytes": read(device / "mem_info_vram_total", parse.positive),
            "sm_clock_max_mhz": read(device / "pp_dpm_sclk", parse.highest_level_mhz),
            "memory_clock_max_mhz": read(device / "pp_dpm_mclk", parse.highest_level_mhz),
            "pcie_generation_max": self._of_the_way("max_link_speed", parse.pcie_generation),
            "pcie_width_max": self._of_the_way("max_link_width", parse.pcie_width),
            "numa_node": read(device / "numa_node", parse.numa_node),
        }
        return fit("gpus", values | self._limits())

    def _limits(self) -> dict[str, Value]:
        sensors = self._learn_sensors()
        if sensors is None:
            return {}
        read, hwmon = self._files.read, sensors.folder
        slowdown = read(hwmon / f"temp{sensors.core}_crit", parse.celsius)
        shutdown = read(hwmon / f"temp{sensors.core}_emergency", parse.celsius)
        if slowdown is not None and shutdown is not None and slowdown > shutdown:
            # Navi 10 says 118 and 99 of its edge: a slowdown that can never come is none.
            slowdown = None
        values: dict[str, Value] = {
            "temperature_slowdown_celsius": slowdown,
            "temperature_shutdown_celsius": shutdown,
        }
        if sensors.is_apu:
            return values
        return values | {
            "power_limit_default_watts": read(hwmon / "power1_cap_default", parse.millionth),
            # Older kernels say 0 of every board, which is absent here.
            "power_limit_min_watts": read(hwmon / "power1_cap_min", parse.millionth),
            "power_limit_max_watts": read(hwmon / "power1_cap_max", parse.millionth),
        }

    def _of_the_way(self, file: str, parser: Callable[[str], int | None]) -> int | None:
        """The least of GPU, slot and every bridge between.

        A board has bridges of its own, so the GPU's own link says nothing about the slot.
        """
        folders = [self._card.device]
        for folder in self._card.device.parents:
            if parse.pci_address(folder.name) is None:
                break
            folders.append(folder)
        links = [self._files.read(folder / file, parser) for folder in folders]
        # Without the GPU's own word the bridges' would be a guess.
        return min(link for link in links if link is not None) if links[0] is not None else None

    def _ras_events(self) -> list[Row]:
        """An event when error counters grew since the last look, a minute ago.

        What stood there at the first look is old: the counters begin when the driver is loaded.
        """
        now_s = self._clock.monotonic()
        if now_s - self._ras_at_s < RAS_EVERY_S:
            return []
        self._ras_at_s = now_s
        folder = self._card.device / "ras"
        grown: dict[str, Mapping[str, int]] = {}
        for entry in sorted(_listed(folder)):
            block, is_count, _ = entry.partition("_err_count")
            counts = self._files.read(folder / entry, parse.ras_counts) if is_count else None
            if counts is None:
                continue
            if more := parse.growth(self._ras.get(block), counts):
                grown[block] = more
            self._ras[block] = counts
        if not grown:
            return []
        severity, words = parse.ras_verdict(grown)
        return [
            event(
                "ras_errors",
                f"{self._named} counted new hardware errors: {words}",
                severity=severity,
                gpu=self._gpu,
                gpu_uuid=self.gpu_uuid,
                details={"pci_bus_id": self._card.pci_bus_id, "errors": grown},
            )
        ]


def _is_amd(device: Path) -> bool:
    try:
        return _text(device / "vendor").strip() == parse.AMD
    except OSError:
        return False


def _driver(device: Path) -> str | None:
    try:
        return os.path.basename(os.readlink(device / "driver"))
    except OSError:
        return None


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: Path) -> str:
    return _first_bytes_of(path, 4096).decode(errors="replace")


def _first_bytes(path: Path, count: int) -> bytes:
    """Empty where the file cannot be read."""
    try:
        return _first_bytes_of(path, count)
    except OSError:
        return b""


def _first_bytes_of(path: Path, count: int) -> bytes:
    # Attributes of sysfs are made by one read, and each read asks the device again.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, count)
    finally:
        os.close(file)
