"""One NVIDIA GPU as a probe: its samples of each second, ten seconds and minute, and its inventory.

There is one probe for each GPU, each on its own thread of the sampler, so that a GPU whose driver
calls hang stops nothing but itself. Counters are passed on as the driver gives them, wraps and
resets included: whoever takes differences repairs them.

The catalogue's `source` names the calls. A reading is made absent where the driver is known to
answer something untrue; the reason stands where that is done, and in docs/gpus.md.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import fit
from gpuwarden_agent.collect.nvidia import nvml_driver as nvml
from gpuwarden_agent.collect.nvidia.fields import KIB, NS, Field, asked_once, read_columns
from gpuwarden_agent.collect.nvidia.gpu_detail import DetailReader
from gpuwarden_agent.collect.nvidia.gpu_health import HealthReader
from gpuwarden_agent.collect.nvidia.inventory import PCI_DEVICES, InventoryReader, thousandth
from gpuwarden_agent.collect.nvidia.links import LinkReader
from gpuwarden_agent.collect.nvidia.mig import MigReader
from gpuwarden_agent.collect.nvidia.nvml_driver import Device, NvmlError
from gpuwarden_agent.collect.nvidia.query import Asker, probe_error
from gpuwarden_agent.collect.nvidia.timing import CallReport
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value

LOCK_WAIT_S = 1.0
"""How long to wait for another user of the device, whose call may hang."""

UNTRUE_UTILIZATIONS = 2
"""Samples of utilization to leave out after the driver woke the GPU up."""

PSTATE_UNKNOWN = 32

FIELDS = asked_once(
    (
        Field("memory_temperature_celsius", 82),
        Field("energy_joules_total", 83, over=1000),
        Field("power_watts", 185, over=1000),
        Field("power_instant_watts", 186, over=1000),
        Field("power_limit_watts", 190, over=1000),
        Field("power_violation_seconds_total", 74, over=NS),
        Field("thermal_violation_seconds_total", 75, over=NS),
        Field("sw_thermal_seconds_total", 269, over=NS),
        Field("hw_thermal_seconds_total", 270, over=NS),
        Field("hw_power_brake_seconds_total", 271, over=NS),
        Field("nvlink_tx_bytes_total", 138, times=KIB, scope=nvml.ALL_LINKS),
        Field("nvlink_rx_bytes_total", 139, times=KIB, scope=nvml.ALL_LINKS),
        Field("pcie_tx_bytes_total", 197),
        Field("pcie_rx_bytes_total", 198),
    )
)
"""What one nvmlDeviceGetFieldValues asks every second."""

FIELDS_WITHOUT_NVLINK = tuple(each for each in FIELDS if each.query.scope != nvml.ALL_LINKS)

_NEVER_ZERO = frozenset(
    {"power_watts", "power_instant_watts", "power_limit_watts", "memory_temperature_celsius"}
)
"""A powered board draws and may draw something, and its memory is not at the freezing point: a
driver that says 0 here has nothing to ask."""


class GpuProbe:
    """One GPU. Opened by its first describe or read, and again after it was lost."""

    simulated = False
    blocking = True
    tables: Mapping[str, int] = {
        "gpu_samples": 1,
        "gpu_detail_samples": 10,
        "link_samples": 10,
        "gpu_health_samples": 60,
    }

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
        self._asker = Asker(device.index, clock, device)
        self._details = DetailReader(device, self._asker, clock)
        self._health = HealthReader(device, self._asker)
        self._links = LinkReader(device, self._asker, clock)
        self._inventory = InventoryReader(device, self._asker, pci_devices, bus_ids)
        self._mig = MigReader(device, self._asker, clock)
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

    def calls(self) -> Sequence[CallReport]:
        """What each driver call of this GPU costs, and which readings it does not have."""
        return self._asker.calls()

    def describe(self) -> Reading:
        with self._in_use():
            self._asker.begin(60, due_s=60)
            self._learn_modes()
            modes: Row = {"nvlinks": self._nvlinks, "mig_mode": self._is_mig}
            self._look_at_links()
            row = self._inventory.read(modes, self._links.ways())
            return {"gpus": [row, *self._mig.inventory()]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        wanted = self.tables.keys() if due is None else self.tables.keys() & set(due)
        due_s = max((self.tables[table] for table in wanted), default=1)
        reading: dict[str, list[Row]] = {}
        with self._in_use():
            if "gpu_samples" in wanted:
                self._asker.begin(1, due_s)
                reading["gpu_samples"] = self._samples()
            self._asker.begin(10, due_s)
            if wanted & {"gpu_detail_samples", "link_samples"}:
                self._look_at_links()
            if "gpu_detail_samples" in wanted:
                values = self._details.read(bool(self._is_mig))
                values["nvlinks_active"] = self._links.active
                details = self._rows("gpu_detail_samples", values)
                reading["gpu_detail_samples"] = details + self._mig_details()
            if "link_samples" in wanted:
                links = self._links.rows()
                reading["link_samples"] = [
                    self._identity() | fit("link_samples", row) for row in links
                ]
            if "gpu_health_samples" in wanted:
                self._asker.begin(60, due_s)
                values = self._health.read(self._inventory.architecture(), bool(self._is_mig))
                reading["gpu_health_samples"] = self._rows("gpu_health_samples", values)
        return reading

    def close(self) -> None:
        """Give back what the driver keeps for this GPU; its handles are the library's."""
        self._details.close()
        self._mig.forget()

    def _identity(self) -> Row:
        return {"gpu": self._device.index, "gpu_uuid": self._device.uuid}

    def _rows(self, table: str, values: Mapping[str, Value]) -> list[Row]:
        row = fit(table, values)
        return [self._identity() | row] if row else []

    def _samples(self) -> list[Row]:
        fields = FIELDS_WITHOUT_NVLINK if self._nvlinks == 0 else FIELDS
        # Without NVLinks, 0 bytes would be a claim about links that the board does not have.
        values = _without_untrue_zeros(
            read_columns(self._device, self._asker, "fast_fields", fields)
        )
        values |= self._utilization() | self._memory() | self._state()
        self._add_fallbacks(values)
        rows = self._rows("gpu_samples", values)
        if not rows:
            raise ProbeError(f"GPU {self._device.index} gave no reading at all")
        return rows + (self._mig.samples() if self._is_mig else [])

    def _mig_details(self) -> list[Row]:
        return self._mig.details() if self._is_mig else []

    def _look_at_links(self) -> None:
        # NVLinks cannot be asked about while the GPU is cut into MIG devices.
        self._links.look(0 if self._is_mig else self._nvlinks or 0)

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
        self._asker.begin(60, due_s=60)
        self._forget()
        self._learn_modes()
        is_persistent = self._asker.ask(self._device.is_persistent)
        # Without persistence mode the GPU sleeps when its last user leaves, and being woken up shows
        # as work: an idle L40S with driver 595 answers 100 % right after.
        self._untrue_utilizations = 0 if is_persistent else UNTRUE_UTILIZATIONS
        self._is_open = True

    def _forget(self) -> None:
        self._details.close()
        self._links.forget()
        self._inventory.forget()
        self._mig.forget()

    def _learn_modes(self) -> None:
        self._is_mig = self._asker.ask(self._device.is_mig_enabled)
        self._nvlinks = self._links.learn()
        self._mig.learn(bool(self._is_mig))

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
            missing["power_watts"] = thousandth(ask(device.power_usage_mw))
        if "power_limit_watts" not in values:
            missing["power_limit_watts"] = thousandth(ask(device.enforced_power_limit_mw))
        if "energy_joules_total" not in values:
            missing["energy_joules_total"] = thousandth(ask(device.total_energy_mj))
        values.update(_without_untrue_zeros(missing))


def _without_untrue_zeros(values: dict[str, Value]) -> dict[str, Value]:
    return {name: v for name, v in values.items() if v != 0 or name not in _NEVER_ZERO}
