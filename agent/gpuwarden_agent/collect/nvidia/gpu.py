"""Reads one NVIDIA GPU: its samples of each second, ten seconds and minute, and its inventory.

There is one probe for each GPU, each on its own thread of the sampler, so that a GPU whose driver calls
hang affects only itself. Counters are those of the driver, with wraps and resets: code that takes
differences handles them.

`metrics.py` lists the readings. A reading is made absent if the driver is known to return a wrong value;
the reason is written there, and in docs/gpus.md.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia.burst import NvmlBurst
from gpuwarden_agent.collect.nvidia.gpm import GpmReader
from gpuwarden_agent.collect.nvidia.inventory import InventoryReader
from gpuwarden_agent.collect.nvidia.links import LinkReader
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.mig import MigReader
from gpuwarden_agent.collect.nvidia.nvml import NvmlCalls, NvmlError
from gpuwarden_agent.collect.nvidia.query import ASKED, Query, probe_error, read_calls, read_columns
from gpuwarden_agent.collect.nvidia.timing import CallReport
from gpuwarden_agent.collect.nvidia.utilization import UtilizationReader
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value

LOCK_WAIT_S = 1.0
"""How long to wait for another thread that uses the device, whose call may hang."""

WRONG_UTILIZATIONS = 2
"""Samples of utilization to drop after the driver woke the GPU up."""

FANS_MAX = 16
"""A larger number of fans is not valid."""

AMPERE = 7
"""nvmlDeviceArchitecture_t of the first GPUs that remap rows; older ones retire pages."""

FAST_WITHOUT_NVLINK = tuple(each for each in ASKED["gpu_samples"] if not each.field.needs)

_NEVER_ZERO = frozenset(
    {"power_watts", "power_instant_watts", "power_limit_watts", "memory_temperature_celsius"}
)
"""Columns in which 0 means that the driver has no sensor."""


class GpuProbe:
    """Reads one GPU. Opens it at the first describe or read, and again after it was lost."""

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
        device: NvmlCalls,
        clock: Clock,
        bus_ids: dict[str, tuple[int, str]] | None = None,
    ) -> None:
        """`bus_ids`: gets index and UUID by PCI bus id once they are known."""
        self.name = f"gpu{device.index}"
        self._device = device
        self._clock = clock
        self._query = Query(device, clock)
        self._utilization = UtilizationReader(self._query)
        self._gpm = GpmReader(self._query, clock)
        self._links = LinkReader(self._query, clock)
        self._inventory = InventoryReader(self._query, bus_ids=bus_ids)
        self._mig = MigReader(self._query, clock)
        self._is_open = False
        self._is_mig: bool | None = None
        self._nvlinks: int | None = None
        self._wrong_utilizations = 0
        self._has_average_power = False

    @property
    def gpu_uuid(self) -> str | None:
        """None until the GPU was opened once."""
        return self._device.uuid

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings by "CALL: RETURN CODE", since the start."""
        return self._query.failed

    def calls(self) -> Sequence[CallReport]:
        """Cost of each driver call of this GPU, and which readings it does not support."""
        return self._query.calls()

    def describe(self) -> Reading:
        with self._in_use():
            self._query.begin(60, due_s=60)
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
                self._query.begin(1, due_s)
                reading["gpu_samples"] = self._samples()
            self._query.begin(10, due_s)
            if wanted & {"gpu_detail_samples", "link_samples"}:
                self._look_at_links()
            if "gpu_detail_samples" in wanted:
                values = read_details(self._query, bool(self._is_mig)) | self._gpm.read()
                values["nvlinks_active"] = self._links.active
                details = self._rows("gpu_detail_samples", values)
                reading["gpu_detail_samples"] = details + self._mig_details()
            if "link_samples" in wanted:
                links = self._links.rows()
                reading["link_samples"] = [
                    self._identity() | coerce("link_samples", row) for row in links
                ]
            if "gpu_health_samples" in wanted:
                self._query.begin(60, due_s)
                values = read_health(
                    self._query, self._inventory.architecture(), bool(self._is_mig)
                )
                reading["gpu_health_samples"] = self._rows("gpu_health_samples", values)
        return reading

    def burst(self) -> NvmlBurst:
        """Quick readings of the whole GPU."""
        return NvmlBurst(self._device, self._clock)

    def close(self) -> None:
        """Free what the driver keeps for this GPU; its handles belong to the library."""
        self._gpm.close()
        self._mig.forget()

    def _identity(self) -> Row:
        return {"gpu": self._device.index, "gpu_uuid": self._device.uuid}

    def _rows(self, table: str, values: Mapping[str, Value]) -> list[Row]:
        row = coerce(table, values)
        return [self._identity() | row] if row else []

    def _samples(self) -> list[Row]:
        # Without NVLinks the driver returns 0 bytes for links that do not exist.
        asked = FAST_WITHOUT_NVLINK if self._nvlinks == 0 else ASKED["gpu_samples"]
        values = _without_wrong_zeros(read_columns(self._query, "fast_fields", asked))
        if not self._is_mig:
            values |= self._utilization.read()
        known = values.keys() | self._query.waiting("fast_fields", asked)
        calls = read_calls(self._query, "gpu_samples", known, whole(bool(self._is_mig)))
        values |= _without_wrong_zeros(calls)
        if self._wrong_utilizations and "util_percent" in values:
            self._wrong_utilizations -= 1
            del values["util_percent"]
            values.pop("memory_util_percent", None)
        self._fill_power(values)
        rows = self._rows("gpu_samples", values)
        if not rows:
            raise ProbeError(f"GPU {self._device.index} gave no reading at all")
        return rows + (self._mig.samples() if self._is_mig else [])

    def _fill_power(self, values: dict[str, Value]) -> None:
        """Take the instant reading on a GPU that has given no average since it was opened (RTX PRO 6000)."""
        self._has_average_power = self._has_average_power or "power_watts" in values
        if not self._has_average_power and "power_instant_watts" in values:
            values["power_watts"] = values["power_instant_watts"]

    def _mig_details(self) -> list[Row]:
        return self._mig.details() if self._is_mig else []

    def _look_at_links(self) -> None:
        # NVLinks cannot be read in MIG mode.
        self._links.look(0 if self._is_mig else self._nvlinks or 0)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Hold the opened device; after a ProbeError it is opened again."""
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
        self._query.forget()
        self._query.begin(60, due_s=60)
        self._forget()
        self._learn_modes()
        is_persistent = self._query.ask(ROWS["is_persistent"])
        # Without persistence mode the GPU sleeps after its last user, and its wake-up looks like work:
        # an idle L40S with driver 595 then returns 100 %.
        self._wrong_utilizations = 0 if is_persistent else WRONG_UTILIZATIONS
        self._is_open = True

    def _forget(self) -> None:
        self._has_average_power = False
        self._utilization.forget()
        self._gpm.close()
        self._links.forget()
        self._inventory.forget()
        self._mig.forget()

    def _learn_modes(self) -> None:
        self._is_mig = self._query.ask(ROWS["is_mig_enabled"])
        self._nvlinks = self._links.learn()
        self._mig.learn(bool(self._is_mig))


def whole(is_mig: bool) -> tuple[str, ...]:
    """The need "whole" if the engines belong to the whole GPU. In MIG mode they belong to the MIG devices,
    and the 0 of the whole GPU would look idle.
    """
    return () if is_mig else ("whole",)


def read_details(query: Query, is_mig: bool) -> dict[str, Value]:
    """Columns of `gpu_detail_samples` without those of GPM and links; `is_mig`: MIG mode is on."""
    values = read_columns(query, "detail_fields", ASKED["gpu_detail_samples"])
    values |= read_calls(query, "gpu_detail_samples", values, whole(is_mig))
    return values | {"fan_percent": _fan_percent(query)}


def _fan_percent(query: Query) -> int | None:
    fans = query.ask(ROWS["fans"]) or 0
    if fans > FANS_MAX:
        return None
    speeds = [query.ask_of(ROWS["fan_percent"], fan) for fan in range(fans)]
    return max((speed for speed in speeds if speed is not None), default=None)


def _without_wrong_zeros(values: dict[str, Value]) -> dict[str, Value]:
    return {name: v for name, v in values.items() if v != 0 or name not in _NEVER_ZERO}


def read_health(query: Query, architecture: int | None, is_mig: bool) -> dict[str, Value]:
    """Columns of `gpu_health_samples`. `architecture`: None if unknown; `is_mig`: MIG is on.

    Boards without ECC answer some of these calls with zeroes (GeForce does for remapped rows), which
    would mean that memory nobody checks is sound. So most are called on boards with ECC alone.
    """
    modes = query.ask(ROWS["ecc_modes"])
    has = conditions(
        has_ecc=query.is_there("ecc_modes"),
        is_ecc_on=modes is None or modes[0],
        architecture=architecture,
        is_mig=is_mig,
    )
    asked = [a for a in ASKED["gpu_health_samples"] if not a.field.needs or a.field.needs in has]
    values = read_columns(query, "health_fields", asked)
    return values | read_calls(query, "gpu_health_samples", values, has)


def conditions(
    *, has_ecc: bool, is_ecc_on: bool, architecture: int | None, is_mig: bool
) -> frozenset[str]:
    """The needs of rows in `metrics.py` that this GPU fulfils."""
    if not has_ecc:
        return frozenset()
    has = {"ecc"}
    if is_ecc_on:
        has.add("ecc_on")
    if architecture is None or architecture >= AMPERE:
        has.add("remaps")
        # With MIG devices, remapped rows are not available (nvidia-smi: N/A). The call reports that;
        # the fields may not.
        if not is_mig:
            has.add("remap_fields")
    if architecture is None or architecture < AMPERE:
        has.add("retires")
    return frozenset(has)
