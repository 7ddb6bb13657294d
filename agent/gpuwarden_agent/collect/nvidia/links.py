"""Reads the links of a GPU: NVLinks, and C2C to a Grace CPU, each a row of `link_samples`.

Error counters come from nvmlDeviceGetNvLinkErrorCounter, link by link. The older field ids for them
(32-59, 96-119, 161-163) always return 0 on Hopper, so they are never read: where the call fails,
the errors are unknown.
"""

import math
from collections.abc import Sequence
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia.metrics import CALLS, FIELDS, ROWS
from gpuwarden_agent.collect.nvidia.nvml import Field
from gpuwarden_agent.collect.nvidia.query import (
    ASKED,
    LEARNED_FOR_S,
    Query,
    asked_of_link,
    read_columns,
    read_fields,
)
from gpuwarden_agent.probe import Row, Value

LINKS_MAX = 64
"""A larger number is a sentinel, or a field that this driver uses for something else."""

BYTES = FIELDS["link_samples"][:2]
FALLBACKS = tuple(zip(BYTES, FIELDS["nvlink5_bytes"], strict=True))
ERRORS = tuple(row for row in CALLS["link_samples"] if row.reading == "nvlink_errors")


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _number_of_links(value: Value) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= LINKS_MAX else None


class LinkReader:
    """Reads the links of one GPU."""

    def __init__(self, query: Query, clock: Clock) -> None:
        self._query = query
        self._clock = clock
        self._identities: dict[int, tuple[float, Row]] = {}
        """When it was asked what a link is, which does not change, and the answer."""
        self._states: dict[int, bool] = {}
        self._c2c_links = 0

    def learn(self) -> int | None:
        """Ask how many links there are; returns the number of NVLinks, None if unknown."""
        counts = read_columns(self._query, "link_counts", ASKED["link_counts"])
        self._c2c_links = _number_of_links(counts.get("c2c_links")) or 0
        return _number_of_links(counts.get("nvlinks"))

    def look(self, nvlinks: int) -> None:
        """Ask which of the NVLinks are up; the other methods use the answer."""
        self._states = {}
        for link in range(nvlinks):
            is_active = self._query.ask_of(ROWS["is_nvlink_active"], link)
            if is_active is not None:
                self._states[link] = is_active

    @property
    def active(self) -> int | None:
        """NVLinks that are up; None if no link gives its state, or there is none."""
        return sum(self._states.values()) if self._states else None

    def rows(self) -> list[Row]:
        """A row for each link that gives its state, and for each C2C link."""
        active = [link for link, is_active in self._states.items() if is_active]
        measured = self._fields("nvlink_fields", FIELDS["link_samples"], active)
        self._add_fallbacks(measured)
        rows: list[Row] = []
        for link, is_active in self._states.items():
            row: Row = {"link_type": "nvlink", "link": link, "active": is_active}
            if is_active:
                row |= self._identity(link) | measured[link] | self._errors(link)
            rows.append(row)
        return rows + self._c2c_rows()

    def ways(self) -> list[str | None]:
        """The other end of each NVLink that is up: "switch", or the bus id of a GPU."""
        found = (self._identity(link) for link, is_active in self._states.items() if is_active)
        return [
            "switch" if link["remote_type"] == "switch" else _text(link["remote_pci_bus_id"])
            for link in found
        ]

    def forget(self) -> None:
        """The device was opened again."""
        self._identities.clear()
        self._states.clear()

    def _fields(
        self, batch: str, fields: Sequence[Field], links: Sequence[int]
    ) -> dict[int, dict[str, Value]]:
        asked = [each for link in links for each in asked_of_link(fields, link)]
        read = read_fields(self._query, batch, asked)
        values: dict[int, dict[str, Value]] = {link: {} for link in links}
        for each in asked:
            if each.reading in read:
                values[each.query.scope][each.field.column] = read[each.reading]
        return values

    def _add_fallbacks(self, measured: dict[int, dict[str, Value]]) -> None:
        asked = [
            each
            for link, values in measured.items()
            for before, field in FALLBACKS
            if field.column not in values
            and not self._query.is_there((field.column, before.id, link))
            for each in asked_of_link((field,), link)
        ]
        read = read_fields(self._query, "nvlink5_bytes", asked)
        for each in asked:
            measured[each.query.scope][each.field.column] = read.get(each.reading)

    def _errors(self, link: int) -> Row:
        return {row.columns[0]: self._query.ask_of(row, link, *row.part) for row in ERRORS}

    def _identity(self, link: int) -> Row:
        now_s = self._clock.monotonic()
        asked_s, row = self._identities.get(link, (-math.inf, {}))
        if now_s - asked_s >= LEARNED_FOR_S:
            row = {
                "version": self._one("nvlink_version", link),
                "remote_type": self._one("nvlink_remote_type", link),
                "remote_pci_bus_id": self._one("nvlink_remote_bus_id", link),
            }
            self._identities[link] = now_s, row
        return row

    def _one(self, reading: str, link: int) -> Any:
        row = ROWS[reading]
        answer = self._query.ask_of(row, link)
        return None if answer is None else row.values(answer)[0]

    def _c2c_rows(self) -> list[Row]:
        measured = self._fields("c2c_fields", FIELDS["c2c"], range(self._c2c_links))
        return [
            {"link_type": "c2c", "link": link, "remote_type": "cpu", **values}
            for link, values in measured.items()
        ]
