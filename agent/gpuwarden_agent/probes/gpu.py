"""One NVIDIA GPU as a probe: a row of `gpu_samples` a second, and its row of `gpus`.

There is one probe for each GPU, each on its own thread of the sampler, so that a GPU whose driver
calls hang stops nothing but itself. Counters are passed on as the driver gives them, wraps and
resets included: whoever takes differences repairs them.

The catalogue's `source` names the calls. A reading is made absent where the driver is known to
answer something untrue; the reason stands where that is done.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value
from gpuwarden_agent.probes import nvml_driver as nvml
from gpuwarden_agent.probes.asker import Asker, probe_error
from gpuwarden_agent.probes.fit import fit
from gpuwarden_agent.probes.nvml_driver import Device, FieldQuery, FieldValue, NvmlError

LOCK_WAIT_S = 1.0
"""How long to wait for another user of the device, whose call may hang."""

UNTRUE_UTILIZATIONS = 2
"""Samples of utilization to leave out after the driver woke the GPU up."""

PSTATE_UNKNOWN = 32

PCI_DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Field:
    """A value of the batch: its column, and `times / over` from NVML's unit to the column's."""

    column: str
    query: FieldQuery
    times: int = 1
    over: int = 1


FIELDS: tuple[Field, ...] = (
    Field("memory_temperature_celsius", FieldQuery(82)),
    Field("energy_joules_total", FieldQuery(83), over=1000),
    Field("power_watts", FieldQuery(185), over=1000),
    Field("power_instant_watts", FieldQuery(186), over=1000),
    Field("power_limit_watts", FieldQuery(190), over=1000),
    Field("power_violation_seconds_total", FieldQuery(74), over=10**9),
    Field("thermal_violation_seconds_total", FieldQuery(75), over=10**9),
    Field("sw_thermal_seconds_total", FieldQuery(269), over=10**9),
    Field("hw_thermal_seconds_total", FieldQuery(270), over=10**9),
    Field("hw_power_brake_seconds_total", FieldQuery(271), over=10**9),
    Field("nvlink_tx_bytes_total", FieldQuery(138, nvml.ALL_LINKS), times=1024),
    Field("nvlink_rx_bytes_total", FieldQuery(139, nvml.ALL_LINKS), times=1024),
    Field("pcie_tx_bytes_total", FieldQuery(197)),
    Field("pcie_rx_bytes_total", FieldQuery(198)),
)
"""What one nvmlDeviceGetFieldValues asks every second."""

NVLINK_COUNT = FieldQuery(91)

_NEVER_ZERO = frozenset(
    {"power_watts", "power_instant_watts", "power_limit_watts", "memory_temperature_celsius"}
)
"""A powered board draws and may draw something, and its memory is not at the freezing point: a
driver that says 0 here has nothing to ask."""


class GpuProbe:
    """One GPU. Opened by its first describe or read, and again after it was lost."""

    simulated = False
    blocking = True
    tables: Mapping[str, int] = {"gpu_samples": 1}

    def __init__(
        self,
        device: Device,
        clock: Clock,
        pci_devices: Path = PCI_DEVICES,
        bus_ids: dict[str, tuple[int, str]] | None = None,
    ) -> None:
        """`bus_ids`: where to note index and UUID by PCI bus id once they are known."""
        self.name = f"gpu{device.index}"
        self._device = device
        self._pci_devices = pci_devices
        self._bus_ids = bus_ids
        self._asker = Asker(device.index, clock)
        self._is_open = False
        self._is_mig: bool | None = None
        self._nvlinks: int | None = None
        self._untrue_utilizations = 0

    @property
    def gpu_uuid(self) -> str | None:
        """None until the GPU was opened once."""
        return self._device.uuid

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "CALL: RETURN CODE", since the start."""
        return self._asker.failed

    def describe(self) -> Reading:
        with self._in_use():
            self._learn_modes()
            return {"gpus": [self._inventory()]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        with self._in_use():
            values = self._fields() | self._utilization() | self._memory() | self._state()
            self._add_fallbacks(values)
            row = fit("gpu_samples", values)
            if not row:
                raise ProbeError(f"GPU {self._device.index} gave no reading at all")
        identity: Row = {"gpu": self._device.index, "gpu_uuid": self._device.uuid}
        return {"gpu_samples": [identity | row]}

    def close(self) -> None:
        """Nothing to give back: NVML's handles are the library's."""

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Hold the device, opened; after a ProbeError it is opened anew."""
        if not self._device.lock.acquire(timeout=LOCK_WAIT_S):
            raise ProbeError(
                f"GPU {self._device.index} is held by a driver call that does not return",
                kind="probe_stuck",
            )
        try:
            if not self._is_open:
                self._open()
            yield
        except ProbeError:
            self._is_open = False
            raise
        finally:
            self._device.lock.release()

    def _open(self) -> None:
        try:
            self._device.open()
        except NvmlError as error:
            raise probe_error(error, self._device.index) from error
        self._asker.forget()
        self._learn_modes()
        is_persistent = self._asker.ask(self._device.is_persistent)
        # Without persistence mode the GPU sleeps when its last user leaves, and being woken up shows
        # as work: an idle L40S with driver 595 answers 100 % right after.
        self._untrue_utilizations = 0 if is_persistent else UNTRUE_UTILIZATIONS
        self._is_open = True

    def _learn_modes(self) -> None:
        self._is_mig = self._asker.ask(self._device.is_mig_enabled)
        self._nvlinks = self._field(NVLINK_COUNT)

    def _field(self, query: FieldQuery) -> int | None:
        def field_values() -> Sequence[FieldValue]:
            return self._device.field_values([query])

        answers = self._asker.ask(field_values)
        return int(answers[0].value) if answers and answers[0].value is not None else None

    def _fields(self) -> dict[str, Value]:
        """The batch. Its answers succeed and fail one by one."""
        fields = [field for field in FIELDS if self._asker.is_there(field.column)]
        if self._nvlinks == 0:
            # 0 bytes would be a claim about links that the board does not have.
            fields = [field for field in fields if field.query.scope != nvml.ALL_LINKS]

        if not fields:
            return {}

        def field_values() -> Sequence[FieldValue]:
            return self._device.field_values([field.query for field in fields])

        values: dict[str, Value] = {}
        for field, answer in zip(fields, self._asker.ask(field_values) or (), strict=False):
            if answer.value is None:
                call = f"nvmlDeviceGetFieldValues({field.query.field})"
                # INVALID_ARGUMENT for one value of a batch: a field newer than this driver.
                code = nvml.NOT_SUPPORTED if answer.code == nvml.INVALID_ARGUMENT else answer.code
                self._asker.note(NvmlError(code, call), field.column)
                continue
            raw = answer.value * field.times
            # Whole numbers stay whole: a float would round counters above 2**53.
            values[field.column] = raw if field.over == 1 else raw / field.over
        return _without_untrue_zeros(values)

    def _utilization(self) -> dict[str, Value]:
        if self._is_mig:
            # In MIG mode the whole GPU has no utilization, and a 0 would read as an idle GPU.
            return {}
        values: dict[str, Value] = {
            "encoder_util_percent": self._asker.ask(self._device.encoder_utilization),
            "decoder_util_percent": self._asker.ask(self._device.decoder_utilization),
        }
        rates = self._asker.ask(self._device.utilization)
        if rates is None:
            return values
        if self._untrue_utilizations:
            self._untrue_utilizations -= 1
            return values
        return values | {"util_percent": rates[0], "memory_util_percent": rates[1]}

    def _memory(self) -> dict[str, Value]:
        info = self._asker.ask(self._device.memory_v2, self._device.memory_v1)
        if info is None:
            return {}
        return {
            "memory_total_bytes": info.total_bytes,
            # Version 1 counts what the driver reserves as used, and cannot tell them apart.
            "memory_used_bytes": info.used_bytes,
            "memory_free_bytes": info.free_bytes,
            "memory_reserved_bytes": info.reserved_bytes,
        }

    def _state(self) -> dict[str, Value]:
        device, ask = self._device, self._asker.ask
        pstate = ask(device.performance_state)
        return {
            "temperature_celsius": ask(device.temperature_v, device.temperature),
            "sm_clock_mhz": ask(device.sm_clock_mhz),
            "memory_clock_mhz": ask(device.memory_clock_mhz),
            "clocks_event_reasons": ask(
                device.clocks_event_reasons, device.clocks_throttle_reasons
            ),
            "pstate": None if pstate == PSTATE_UNKNOWN else pstate,
        }

    def _add_fallbacks(self, values: dict[str, Value]) -> None:
        """What the batch did not give and an older call may."""
        device, ask = self._device, self._asker.ask
        missing: dict[str, Value] = {}
        if "power_watts" not in values:
            missing["power_watts"] = _thousandth(ask(device.power_usage_mw))
        if "power_limit_watts" not in values:
            missing["power_limit_watts"] = _thousandth(ask(device.enforced_power_limit_mw))
        if "energy_joules_total" not in values:
            missing["energy_joules_total"] = _thousandth(ask(device.total_energy_mj))
        values.update(_without_untrue_zeros(missing))

    def _inventory(self) -> Row:
        device, ask = self._device, self._asker.ask
        bus_id = ask(device.pci_bus_id)
        if bus_id and device.uuid and self._bus_ids is not None:
            self._bus_ids[bus_id] = (device.index, device.uuid)
        limits = ask(device.power_limit_range_mw) or (None, None)
        memory = ask(device.memory_v2, device.memory_v1)
        values: dict[str, Value] = {
            "gpu_uuid": self._device.uuid,
            "gpu": device.index,
            "model": ask(device.name),
            "vendor": "nvidia",
            "serial": ask(device.serial),
            "pci_bus_id": bus_id,
            "vbios_version": ask(device.vbios_version),
            "memory_total_bytes": memory.total_bytes if memory else None,
            "power_limit_default_watts": _thousandth(ask(device.default_power_limit_mw)),
            "power_limit_min_watts": _thousandth(limits[0]),
            "power_limit_max_watts": _thousandth(limits[1]),
            "temperature_slowdown_celsius": _threshold(ask(device.slowdown_celsius)),
            "temperature_shutdown_celsius": _threshold(ask(device.shutdown_celsius)),
            "sm_clock_max_mhz": ask(device.sm_clock_max_mhz),
            "memory_clock_max_mhz": ask(device.memory_clock_max_mhz),
            "pcie_generation_max": ask(device.pcie_generation_max),
            "pcie_width_max": ask(device.pcie_width_max),
            "nvlinks": self._nvlinks,
            "numa_node": numa_node(self._pci_devices, bus_id) if bus_id else None,
            "mig_mode": self._is_mig,
        }
        return fit("gpus", values)


def numa_node(pci_devices: Path, bus_id: str) -> int | None:
    """The NUMA node of a PCI device as sysfs has it; None where the platform does not say (-1).

    nvmlDeviceGetNumaNodeId answers another question: the node that the GPU's own memory is, on
    coherent platforms.
    """
    try:
        node = int((pci_devices / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _thousandth(value: int | None) -> float | None:
    return None if value in (None, nvml.BLANK) else value / 1000


def _threshold(celsius: int | None) -> float | None:
    """Ada and newer have margins instead of thresholds, for which this call is deprecated: only
    what can be the temperature of a slowdown is taken for one.
    """
    return float(celsius) if celsius is not None and 40 <= celsius <= 150 else None


def _without_untrue_zeros(values: dict[str, Value]) -> dict[str, Value]:
    return {name: v for name, v in values.items() if v != 0 or name not in _NEVER_ZERO}
