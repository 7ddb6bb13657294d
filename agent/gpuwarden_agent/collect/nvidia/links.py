"""A GPU's links, each a row of `link_samples` every ten seconds: NVLinks, and C2C to a Grace CPU.

Error counters come from nvmlDeviceGetNvLinkErrorCounter, link by link. The older field ids for them
(32-59, 96-119, 161-163) answer success and 0 on Hopper whatever happened, so they are never read:
where the call does not answer, the errors are unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia.fields import (
    KIB,
    Field,
    asked_of_link,
    asked_once,
    read_columns,
    read_fields,
)
from gpuwarden_agent.collect.nvidia.nvml_driver import Device
from gpuwarden_agent.collect.nvidia.query import LEARNED_FOR_S, Asker
from gpuwarden_agent.probe import Row, Value

LINK_COUNTS = asked_once((Field("nvlinks", 91), Field("c2c_links", 170)))
LINKS_MAX = 64
"""More is no number of links: a sentinel, or a field that means something else to this driver."""

GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""nvmlNvlinkVersion_t (1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0) to the generation."""

REMOTE_TYPES = {0: "gpu", 1: "cpu", 2: "switch"}
"""nvmlIntNvLinkDeviceType_t; 1 is an IBM POWER."""

ERROR_COUNTERS = (
    ("replay_errors_total", 0),
    ("recovery_errors_total", 1),
    ("crc_flit_errors_total", 2),
    ("crc_data_errors_total", 3),
    ("ecc_data_errors_total", 4),
)
"""nvmlNvLinkErrorCounter_t."""


def bit_error_rate(encoded: int) -> float | None:
    """A rate as NVLink 5 encodes it: mantissa in bits 8 to 11, and in bits 0 to 7 the power of ten
    that it is divided by. Best is 15e-255: no error was seen yet.
    """
    if not 0 <= encoded <= 0xFFF:
        return None
    return float(f"{encoded >> 8}e-{encoded & 0xFF}")


LINK_FIELDS = (
    Field("tx_bytes_total", 138, times=KIB),
    Field("rx_bytes_total", 139, times=KIB),
    Field("speed_bytes_per_second", 164, times=10**6),
    Field("malformed_packets_total", 206),
    Field("buffer_overruns_total", 207),
    Field("rx_errors_total", 208),
    Field("rx_remote_errors_total", 209),
    Field("rx_general_errors_total", 210),
    Field("local_integrity_errors_total", 211),
    Field("tx_discards_total", 212),
    Field("recoveries_successful_total", 213),
    Field("recoveries_failed_total", 214),
    Field("effective_errors_total", 219),
    Field("effective_bit_error_rate", 220, decoded=bit_error_rate),
    Field("symbol_errors_total", 221),
    Field("symbol_bit_error_rate", 222, decoded=bit_error_rate),
)
FALLBACK_FIELDS = {138: Field("tx_bytes_total", 202), 139: Field("rx_bytes_total", 204)}
"""NVLink 5 counts bytes under ids of its own; read where the driver does not fill the first ones."""

C2C_FIELDS = (
    Field("active", 171),
    Field("speed_bytes_per_second", 172, times=10**6),
    Field("replay_errors_total", 232),
)


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a link is; it does not change, and is asked for rarely."""

    asked_s: float
    version: int | None
    remote_type: str | None
    remote_pci_bus_id: str | None


def _number_of_links(value: Value) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= LINKS_MAX else None


class LinkReader:
    """Reads the links of one GPU."""

    def __init__(self, device: Device, asker: Asker, clock: Clock) -> None:
        self._device = device
        self._asker = asker
        self._clock = clock
        self._identities: dict[int, _Identity] = {}
        self._states: dict[int, bool] = {}
        self._c2c_links = 0

    def learn(self) -> int | None:
        """Ask how many links there are, and give the number of NVLinks; None: not told."""
        counts = read_columns(self._device, self._asker, "link_counts", LINK_COUNTS)
        self._c2c_links = _number_of_links(counts.get("c2c_links")) or 0
        return _number_of_links(counts.get("nvlinks"))

    def look(self, nvlinks: int) -> None:
        """Ask which of the NVLinks are up, for what follows."""
        self._states = {}
        for link in range(nvlinks):
            is_active = self._asker.ask_of(self._device.is_nvlink_active, link)
            if is_active is not None:
                self._states[link] = is_active

    @property
    def active(self) -> int | None:
        """NVLinks that are up; None where no link tells, also where there is none."""
        return sum(self._states.values()) if self._states else None

    def rows(self) -> list[Row]:
        """A row for each link that tells its state, and for each C2C link."""
        active = [link for link, is_active in self._states.items() if is_active]
        measured = self._fields("nvlink_fields", LINK_FIELDS, active)
        self._add_fallbacks(measured)
        rows: list[Row] = []
        for link, is_active in self._states.items():
            row: Row = {"link_type": "nvlink", "link": link, "active": is_active}
            if is_active:
                row |= self._identity(link) | measured[link] | self._errors(link)
            rows.append(row)
        return rows + self._c2c_rows()

    def ways(self) -> list[str | None]:
        """What each NVLink that is up leads to: "switch", or the bus id of a GPU."""
        found = (self._known(link) for link, is_active in self._states.items() if is_active)
        return [
            "switch" if each.remote_type == "switch" else each.remote_pci_bus_id for each in found
        ]

    def forget(self) -> None:
        """The device was opened again."""
        self._identities.clear()
        self._states.clear()

    def _fields(
        self, batch: str, fields: Sequence[Field], links: Sequence[int]
    ) -> dict[int, dict[str, Value]]:
        asked = [each for link in links for each in asked_of_link(fields, link)]
        read = read_fields(self._device, self._asker, batch, asked)
        values: dict[int, dict[str, Value]] = {link: {} for link in links}
        for each in asked:
            if each.reading in read:
                values[each.query.scope][each.field.column] = read[each.reading]
        return values

    def _add_fallbacks(self, measured: dict[int, dict[str, Value]]) -> None:
        asked = [
            each
            for link, values in measured.items()
            for first, field in FALLBACK_FIELDS.items()
            if field.column not in values and not self._asker.is_there((field.column, first, link))
            for each in asked_of_link((field,), link)
        ]
        read = read_fields(self._device, self._asker, "nvlink5_bytes", asked)
        for each in asked:
            measured[each.query.scope][each.field.column] = read.get(each.reading)

    def _errors(self, link: int) -> Row:
        return {
            column: self._asker.ask_of(self._device.nvlink_errors, link, counter)
            for column, counter in ERROR_COUNTERS
        }

    def _identity(self, link: int) -> Row:
        known = self._known(link)
        return {
            "version": known.version,
            "remote_type": known.remote_type,
            "remote_pci_bus_id": known.remote_pci_bus_id,
        }

    def _known(self, link: int) -> _Identity:
        now_s = self._clock.monotonic()
        known = self._identities.get(link)
        if known is None or now_s - known.asked_s >= LEARNED_FOR_S:
            device, ask_of = self._device, self._asker.ask_of
            version = ask_of(device.nvlink_version, link)
            remote = ask_of(device.nvlink_remote_type, link)
            known = _Identity(
                now_s,
                GENERATIONS.get(version or 0),
                None if remote is None else REMOTE_TYPES.get(remote),
                ask_of(device.nvlink_remote_bus_id, link),
            )
            self._identities[link] = known
        return known

    def _c2c_rows(self) -> list[Row]:
        measured = self._fields("c2c_fields", C2C_FIELDS, range(self._c2c_links))
        return [
            {"link_type": "c2c", "link": link, "remote_type": "cpu", **values}
            for link, values in measured.items()
        ]
