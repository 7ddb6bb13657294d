"""Reads one AMD GPU from the amdgpu driver's files in /sys: no library, no privilege.

There is one probe for each GPU, as for NVIDIA, so that a driver call that hangs affects only its own
GPU. Columns are filled if the driver's reading has the meaning of the catalogue:

- `temperature_celsius` is the edge sensor, as NVIDIA's core temperature is one sensor of the die.
  Junction is the hottest of many sensors, 20 degrees and more above it under load, and would
  make AMD GPUs look hotter than equally warm others. MI300 has no edge sensor: there it is
  junction. Slowdown and shutdown temperatures are those of the same sensor.
- Power of an APU is absent, because it includes the CPU. (MI300A cannot be distinguished and has it.)
- `memory_total_bytes` of an APU is the memory reserved for it, which its driver calls VRAM.

`pcie_bw` is never read, because it measures for a whole second. A GPU that sleeps (runtime suspend) is
not woken up: its row has only its identity.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.amd import gpu_metrics as amd_metrics
from gpuwarden_agent.collect.amd import sysfs as parse
from gpuwarden_agent.collect.amd.gpu_metrics import Metrics, number, numbers, xgmi_rows
from gpuwarden_agent.collect.amd.health import HealthReader
from gpuwarden_agent.collect.amd.partitions import PartitionReader
from gpuwarden_agent.collect.amd.smi import SmiMetrics
from gpuwarden_agent.collect.amd.throttling import Throttling
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.files import (
    DeviceFiles,
    driver_of,
    first_bytes,
    listed,
    read_text,
    text_of,
)
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value

SYS = Path("/sys")

ENERGY_UNITS_A_JOULE = 1 << 16
"""`energy_accumulator` counts 15.3 microjoules, from metrics of version 1.4 on."""

_CARD = re.compile(r"card\d+")

_ASLEEP = frozenset({"suspended", "suspending"})


@dataclass(frozen=True, slots=True)
class Card:
    """An AMD GPU by its place on the PCI bus, which is the same after a reload of the driver."""

    device: Path
    """Folder of the PCI device."""
    pci_bus_id: str


@dataclass(frozen=True, slots=True)
class Sensors:
    """The sensors in the hwmon folder of a GPU."""

    folder: Path
    core: str
    """Number of the sensor that stands for the core: "1" (edge) or "2" (junction)."""
    memory: str | None
    is_apu: bool


def find_cards(sys: Path = SYS) -> list[Card]:
    """AMD GPUs that the amdgpu driver serves, in the order of the PCI bus.

    An MI300 is one GPU: its partitions are not PCI devices. No GPU is woken up.
    """
    cards = {}
    for entry in listed(sys / "class/drm"):
        if not _CARD.fullmatch(entry):
            continue
        device = (sys / "class/drm" / entry / "device").resolve()
        address = parse.pci_address(device.name)
        if address and _is_amd(device) and driver_of(device) == "amdgpu":
            cards[address] = Card(device, device.name)
    return [cards[address] for address in sorted(cards)]


def driver_version(sys: Path = SYS) -> str | None:
    """Version of an amdgpu driver of ROCm; None: the kernel's own driver, which has no version."""
    version = read_text(sys / "module/amdgpu/version")
    return None if version is None else parse.name(version)


class AmdGpuProbe:
    """One AMD GPU. `gpu` is its index on the node, after NVIDIA's where both are."""

    simulated = False
    blocking = True
    tables: Mapping[str, int] = {
        "gpu_samples": 1,
        "gpu_detail_samples": 10,
        "link_samples": 10,
        "gpu_health_samples": 60,
        "events": 60,
    }
    backend = "amdgpu"
    reported_kinds = frozenset({"ecc_uncorrected"})
    """Kinds of change events that its own events replace: `ras_errors` names the block, too."""

    def __init__(self, card: Card, gpu: int, clock: Clock, node: str, sys: Path = SYS) -> None:
        """`node` is part of the identity of a GPU without a unique id."""
        self.name = f"gpu{gpu}"
        self.gpu_uuid: str | None = None
        """None until the GPU was awake once."""
        self._card = card
        self.gpu = gpu
        """Its index on the node."""
        self.node_facts: Row = {}
        """Columns of `nodes` of a GPU that came after the node was described."""
        self._clock = clock
        self._node = node
        self._files = DeviceFiles({"gpu": gpu})
        self._is_open = False
        self._sensors: Sensors | None = None
        self._described: Row | None = None
        self._health = HealthReader(self._files, card.device)
        self._throttling = Throttling()
        self._partitions = PartitionReader(self._files, sys, card.device, card.pci_bus_id)
        self._smi = SmiMetrics(self._files, card.pci_bus_id)

    @property
    def device(self) -> Path:
        """Folder of its PCI device."""
        return self._card.device

    @property
    def pci_bus_id(self) -> str:
        """Its place on the PCI bus."""
        return self._card.pci_bus_id

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "FILE: WHY", since the start."""
        return self._files.failed

    def describe(self) -> Reading:
        with self._in_use() as is_awake:
            if is_awake:
                self._partitions.learn()
                self._described = self._inventory()
            nodes = {"nodes": [self.node_facts]} if self.node_facts else {}
            if not self._described:
                return nodes
            parts = self._partitions.inventory(self._described)
            return {"gpus": [self._described, *parts], **nodes}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        wanted = self.tables.keys() if due is None else self.tables.keys() & set(due)
        reading: dict[str, list[Row]] = {table: [] for table in wanted}
        with self._in_use() as is_awake:
            if not is_awake:
                if self.gpu_uuid and "gpu_samples" in wanted:
                    reading["gpu_samples"] = [self._identity()]
                return reading
            metrics = self._metrics() if wanted - {"gpu_health_samples", "events"} else {}
            if "gpu_samples" in wanted:
                parts = self._partitions.samples(self.gpu_uuid, self.gpu, metrics)
                reading["gpu_samples"] = [self._sample(metrics), *parts]
            if "gpu_detail_samples" in wanted:
                reading["gpu_detail_samples"] = self._rows(
                    "gpu_detail_samples", self._details(metrics)
                )
            if "link_samples" in wanted:
                reading["link_samples"] = [
                    row for link in xgmi_rows(metrics) for row in self._rows("link_samples", link)
                ]
            if "gpu_health_samples" in wanted:
                values, grown = self._health.read()
                reading["gpu_health_samples"] = self._rows("gpu_health_samples", values)
                if grown:
                    reading["events"] = [self._ras_event(grown)]
        return reading

    def close(self) -> None:
        """Shut AMD's library down if it is loaded."""
        self._smi.close()

    @property
    def _named(self) -> str:
        return f"GPU {self.gpu} (AMD, {self._card.pci_bus_id})"

    def _identity(self) -> Row:
        return {"gpu": self.gpu, "gpu_uuid": self.gpu_uuid}

    def _rows(self, table: str, values: Mapping[str, Value]) -> list[Row]:
        row = coerce(table, values)
        return [self._identity() | row] if row else []

    @contextmanager
    def _in_use(self) -> Iterator[bool]:
        """Open the GPU if it is awake; yields whether it is. After a ProbeError it is opened again."""
        try:
            is_awake = self._is_awake()
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
            self._health.forget()
            self._partitions.forget()
            self._throttling = Throttling()
        self.gpu_uuid = identity
        self._is_open = True

    def _is_awake(self) -> bool:
        """Whether it is awake. Raises ProbeError when it is gone."""
        device = self._card.device
        if not device.is_dir():
            raise ProbeError(
                f"{self._named} is lost: it is no longer on the PCI bus; drain the node and reboot it",
                kind="gpu_lost",
            )
        # The driver makes `drm` last: before that, a missing file may still come.
        if driver_of(device) is None or not (device / "drm").is_dir():
            raise ProbeError(
                f"{self._named} has no driver that is ready: load the amdgpu kernel module",
                kind="driver_not_loaded",
            )
        if self._files.read(device / "power/runtime_status", parse.word) in _ASLEEP:
            return False
        # From the device itself, unlike `vendor`, which the kernel caches.
        if parse.is_off_bus(first_bytes(device / "config", 2)):
            raise ProbeError(
                f"{self._named} is lost: it fell off the bus; drain the node and reboot it",
                kind="gpu_lost",
            )
        return True

    def _identify(self) -> str:
        path = self._card.device / "unique_id"
        try:
            chip_id = parse.unique_id(text_of(path))
        except FileNotFoundError:
            chip_id = None
        except (OSError, ValueError) as error:
            # As during a reset. To use the place as identity now would make it a second GPU.
            raise ProbeError(f"{self._named} does not tell its unique id: {error}") from error
        return parse.gpu_uuid(chip_id, self._card.pci_bus_id, self._node)

    def _metrics(self) -> Metrics:
        data = self._files.read_whole(self._card.device / "gpu_metrics", bytes)
        if not data:
            return {}
        try:
            if amd_metrics.is_newer(amd_metrics.version(data)):
                return self._smi.read()
            return amd_metrics.parse_gpu_metrics(data)
        except ValueError as error:
            self._files.note(f"gpu_metrics: {error}")
            return {}

    def _sample(self, metrics: Metrics) -> Row:
        """Raises ProbeError when the GPU gives nothing."""
        files = coerce("gpu_samples", self._device_values(metrics) | self._sensor_values(metrics))
        if not files and not self._is_awake():
            return self._identity()  # it fell asleep meanwhile
        if not files:
            raise ProbeError(f"{self._named} gave no reading at all")
        throttling = self._throttling.columns(metrics, self._clock.monotonic())
        return self._identity() | files | coerce("gpu_samples", throttling)

    def _details(self, metrics: Metrics) -> dict[str, Value]:
        read, device = self._files.read, self._card.device
        sensors = self._learn_sensors()
        video = [clock for clock in numbers(metrics, "current_vclk0") if clock is not None]
        replays = number(metrics, "pcie_replay_count_acc")
        if replays is None:
            replays = read(device / "pcie_replay_count", parse.number)
        values: dict[str, Value] = {
            "pcie_generation": self._slowest_link("current_link_speed", parse.pcie_generation),
            "pcie_width": self._slowest_link("current_link_width", parse.pcie_width),
            "pcie_replays_total": replays,
            "pcie_replay_rollovers_total": number(metrics, "pcie_replay_rover_count_acc"),
            "pcie_l0_to_recovery_total": number(metrics, "pcie_l0_to_recov_count_acc"),
            "pcie_naks_sent_total": number(metrics, "pcie_nak_sent_count_acc"),
            "pcie_naks_received_total": number(metrics, "pcie_nak_rcvd_count_acc"),
            "bar1_total_bytes": read(device / "mem_info_vis_vram_total", parse.positive),
            "bar1_used_bytes": read(device / "mem_info_vis_vram_used", parse.number),
            "video_clock_mhz": max(video, default=number(metrics, "current_vclk0")),
        }
        if sensors:
            values["graphics_clock_mhz"] = read(sensors.folder / "freq1_input", parse.mhz)
            values["fan_percent"] = read(sensors.folder / "pwm1", parse.fan_percent)
            # https://docs.kernel.org/gpu/amdgpu/thermal.html
            values["voltage_volts"] = read(sensors.folder / "in0_input", parse.volts)
        return values

    def _device_values(self, metrics: Metrics) -> dict[str, Value]:
        read, device = self._files.read, self._card.device
        total = read(device / "mem_info_vram_total", parse.positive)
        busy = read(device / "gpu_busy_percent", parse.number)
        memory_busy = read(device / "mem_busy_percent", parse.number)
        if busy is None:
            busy = number(metrics, "average_gfx_activity")
        if memory_busy is None:
            memory_busy = number(metrics, "average_umc_activity")
        return {
            "util_percent": busy,
            "memory_util_percent": memory_busy,
            "memory_total_bytes": total,
            "memory_used_bytes": total and read(device / "mem_info_vram_used", parse.number),
        }

    def _sensor_values(self, metrics: Metrics) -> dict[str, Value]:
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
        joules = read(hwmon / "energy1_input", parse.millionth)
        units = number(metrics, "energy_accumulator")
        if joules is None and units:
            joules = units / ENERGY_UNITS_A_JOULE
        return values | {
            "power_watts": instant if average is None else average,
            "power_instant_watts": instant,
            "power_limit_watts": read(hwmon / "power1_cap", parse.millionth),
            "energy_joules_total": joules,
        }

    def _learn_sensors(self) -> Sensors | None:
        """Find the hwmon folder of the GPU, whose number changes when the driver is loaded again."""
        if self._sensors and self._sensors.folder.is_dir():
            return self._sensors
        read, parent = self._files.read, self._card.device / "hwmon"
        self._sensors = None
        for folder in (parent / entry for entry in sorted(listed(parent))):
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
            "gpu": self.gpu,
            "model": parse.model(product, device_id),
            "vendor": "amd",
            "kind": "gpu",
            "mig_mode": self._partitions.is_cut,
            "serial": read(device / "serial_number", parse.name),
            "pci_bus_id": self._card.pci_bus_id,
            "vbios_version": read(device / "vbios_version", parse.name),
            "memory_total_bytes": read(device / "mem_info_vram_total", parse.positive),
            "sm_clock_max_mhz": read(device / "pp_dpm_sclk", parse.highest_level_mhz),
            "memory_clock_max_mhz": read(device / "pp_dpm_mclk", parse.highest_level_mhz),
            "pcie_generation_max": self._slowest_link("max_link_speed", parse.pcie_generation),
            "pcie_width_max": self._slowest_link("max_link_width", parse.pcie_width),
            "numa_node": read(device / "numa_node", parse.numa_node),
        }
        return coerce("gpus", values | self._limits())

    def _limits(self) -> dict[str, Value]:
        sensors = self._learn_sensors()
        if sensors is None:
            return {}
        read, hwmon = self._files.read, sensors.folder
        slowdown = read(hwmon / f"temp{sensors.core}_crit", parse.celsius)
        shutdown = read(hwmon / f"temp{sensors.core}_emergency", parse.celsius)
        if slowdown is not None and shutdown is not None and slowdown > shutdown:
            # Navi 10 has 118 and 99 for its edge: such a slowdown can never happen.
            slowdown = None
        values: dict[str, Value] = {
            "temperature_slowdown_celsius": slowdown,
            "temperature_shutdown_celsius": shutdown,
        }
        if sensors.is_apu:
            return values
        return values | {
            "power_limit_default_watts": read(hwmon / "power1_cap_default", parse.millionth),
            # Older kernels have 0 for every board; it becomes absent.
            "power_limit_min_watts": read(hwmon / "power1_cap_min", parse.millionth),
            "power_limit_max_watts": read(hwmon / "power1_cap_max", parse.millionth),
        }

    def _slowest_link(self, file: str, parser: Callable[[str], int | None]) -> int | None:
        """The minimum of the links of GPU, slot and all bridges between them.

        A board has its own bridges, so the GPU's own link says nothing about the slot.
        """
        folders = [self._card.device]
        for folder in self._card.device.parents:
            if parse.pci_address(folder.name) is None:
                break
            folders.append(folder)
        links = [self._files.read(folder / file, parser) for folder in folders]
        # Without the GPU's own link, those of the bridges would be a guess.
        return min(link for link in links if link is not None) if links[0] is not None else None

    def _ras_event(self, grown: Mapping[str, Mapping[str, int]]) -> Row:
        severity, words = parse.ras_verdict(grown)
        return event(
            "ras_errors",
            f"{self._named} counted new hardware errors: {words}",
            severity=severity,
            gpu=self.gpu,
            gpu_uuid=self.gpu_uuid,
            details={"pci_bus_id": self._card.pci_bus_id, "errors": grown},
        )


def _is_amd(device: Path) -> bool:
    return (read_text(device / "vendor") or "").strip() == parse.AMD
