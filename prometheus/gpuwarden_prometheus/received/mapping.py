"""Maps samples of series to parts of rows; pure, except its cache of series."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from gpuwarden.prometheus_names import dcgm_value
from gpuwarden_collector.ingest.port import RowPart
from gpuwarden_prometheus.received.identity import (
    UnknownDeviceError,
    facts_of,
    key_of,
    node_of,
)
from gpuwarden_prometheus.received.names import NamedColumn, named_columns

SERIES_MAX = 50_000
"""Series that are known by their labels; then they are forgotten and found again."""
LABEL_CHARS_MAX = 256
"""Longest name or value of a label that is used."""
ROWS_MAX = 10_000
"""Most rows that the samples of a request may be of: each is joined, made and stored by itself."""
_QUIET = ("up", "scrape_", "go_", "promhttp_", "process_", "python_", "ALERTS", "gpuwarden_agent_", "gpuwarden_collector_")  # fmt: skip
"""Begins of names that say nothing about GPUs and hosts: they are counted together."""
OF_PROGRAMS = "of programs themselves"

LabelPairs = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """A value of a series; the time is in milliseconds."""

    ts_ms: int
    value: float


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the values of a series belong."""

    table: str
    source: str
    key: str
    columns: Sequence[tuple[str, NamedColumn]]
    facts: dict[str, str]


class OtherNodeError(Exception):
    """A series is about another node than the sender may send; the text says which."""


class TooManyRowsError(Exception):
    """The samples of a request are of more rows than ROWS_MAX; the text is one line for the sender."""


class SeriesMap:
    """Maps series; remembers where those of the last requests belong."""

    def __init__(self) -> None:
        self._places: dict[bytes, Sequence[_Place] | str] = {}
        """By digest of labels and node: the labels themselves take thirty times the room."""

    def mapping(self, only_node: str | None, span_ms: tuple[int, int]) -> "RequestMapping":
        """Map one request. `only_node`: the node that its token is for; `span_ms`: first and last time of samples."""
        return RequestMapping(self, only_node, span_ms)

    def places(self, pairs: LabelPairs, only_node: str | None) -> Sequence[_Place] | str:
        """Where a series belongs, or the reason why nowhere. Raises OtherNodeError."""
        key = _digest(pairs, only_node)
        known = self._places.get(key)
        if known is None:
            known = _places_of(dict(pairs), only_node)
            if len(self._places) >= SERIES_MAX:
                self._places.clear()
            self._places[key] = known
        return known


class RequestMapping:
    """The parts of rows of one request."""

    def __init__(
        self, series_map: SeriesMap, only_node: str | None, span_ms: tuple[int, int]
    ) -> None:
        self._map = series_map
        self._only_node = only_node
        self._span_ms = span_ms
        self._parts: dict[tuple[str, str, str, int], RowPart] = {}
        self.skipped: Counter[tuple[str, str]] = Counter()

    @property
    def parts(self) -> Sequence[RowPart]:
        """The parts so far."""
        return [*self._parts.values()]

    def take(self, pairs: LabelPairs, samples: Iterable[Sample]) -> None:
        """Add a series; `pairs` has its name as `__name__`. Raises OtherNodeError, TooManyRowsError."""
        pairs = tuple(
            [pair for pair in pairs if max(len(pair[0]), len(pair[1])) <= LABEL_CHARS_MAX]
        )
        places = self._map.places(pairs, self._only_node)
        name = next((value for label, value in pairs if label == "__name__"), "")
        least_ms, most_ms = self._span_ms
        for ts_ms, value in samples:
            if isinstance(places, str):
                self.skipped[places, OF_PROGRAMS if name.startswith(_QUIET) else name] += 1
            elif math.isnan(value):
                # A stale marker too: the row has no value, which is NULL.
                self.skipped["no_value", name] += 1
            elif not least_ms <= ts_ms <= most_ms:
                self.skipped["too_old" if ts_ms < least_ms else "in_the_future", name] += 1
            else:
                for place in places:
                    self._add(place, ts_ms, value, name)

    def _add(self, place: _Place, ts_ms: int, value: float, name: str) -> None:
        at = place.table, place.source, place.key, ts_ms
        part = self._parts.get(at)
        if part is None:
            if len(self._parts) >= ROWS_MAX:
                raise TooManyRowsError(
                    f"the samples are of more than {ROWS_MAX} rows, that is devices and times: send smaller requests"
                )
            part = self._parts[at] = RowPart(*at, {}, {})
        for fact, text in place.facts.items():
            part.facts.setdefault(fact, text)
        for cell, column in place.columns:
            said = dcgm_value(value) if column.is_dcgm else value
            if said is None or not math.isfinite(said):
                self.skipped["no_value", name] += 1
            else:
                # Divide by the exporter's factor, which restores the exact value.
                part.cells.setdefault(cell, said * column.times / column.over)


def _digest(pairs: LabelPairs, only_node: str | None) -> bytes:
    text = "\0".join([only_node or "", *chain.from_iterable(pairs)])
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).digest()


def _places_of(labels: Mapping[str, str], only_node: str | None) -> Sequence[_Place] | str:
    name = labels.get("__name__", "")
    columns = named_columns().get(name) or named_columns().get(_other_name(name))
    if columns is None:
        return "unmapped"
    held = [one for one in columns if all(c.holds(labels) for c in one.conditions)]
    if not held:
        return "other_labels"
    try:
        node, is_named = node_of(labels, is_host=held[0].table == "host_samples")
        if only_node is not None and node != only_node:
            if is_named:
                raise OtherNodeError(
                    f"the token is for node {only_node}, and {name} is of node {node}: use a token for any node"
                )
            node = only_node
        return [*_by_table(name, labels, node, held)]
    except UnknownDeviceError as error:
        return str(error)


def _by_table(
    name: str, labels: Mapping[str, str], node: str, columns: Sequence[NamedColumn]
) -> Iterable[_Place]:
    for table in {one.table: None for one in columns}:
        facts = facts_of(name, table, labels, node)
        cells = [(one.cell(labels), one) for one in columns if one.table == table and one.column]
        yield _Place(table, node, key_of(table, facts), cells, facts)


_SUFFIXES = ("_ratio", "_bytes", "_total", "_bytes_total", "_watts", "_joules_total", "_celsius", "_seconds_total")  # fmt: skip


def _other_name(name: str) -> str:
    """The name in our table of one that is written another way.

    OpenTelemetry's names get their unit when Prometheus has them; NVIDIA's fleet intelligence agent writes DCGM's in
    lower case; device-metrics-exporter may put `amd_` in front.
    """
    if name.startswith("dcgm_fi_"):
        return name.upper()
    if name.startswith("amd_"):
        return name.removeprefix("amd_")
    if name.startswith(("hw_", "system_")):
        for suffix in _SUFFIXES:
            if name.removesuffix(suffix) in named_columns():
                return name.removesuffix(suffix)
    return name
