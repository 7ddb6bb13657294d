"""Makes samples for remote write from rows, column by column.

Labels are encoded once for each series. Samples of a column are one numpy array of encoded messages, sorted by
series and time, and a series is a slice of it: a sample costs no call of Python.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import (
    DCGM_SETS,
    DCGM_TABLES,
    KEEP_PERIODS,
    KEEP_S,
    Exported,
    Row,
    dcgm_labels,
    names_of,
    own_labels,
)
from gpuwarden_prometheus.metrics import SOURCES
from gpuwarden_prometheus.remote_write.messages import STALE_NAN_BITS

SENT_SETS = ("own", *DCGM_SETS)
"""Name sets that can be sent: labels of others do not name the node."""
SAMPLE_BYTES = 18
"""An encoded sample with its tag: value and time are always written, and a time between 1971 and 2109 has 6 bytes."""
TS_MS_MIN, TS_MS_MAX = 2**35, 2**42 - 1
_TAG, _CONTENT, _VALUE, _TIME = 0x12, SAMPLE_BYTES - 2, 0x09, 0x10


class LabelSet:
    """Labels of a series."""

    __slots__ = ("encoded", "texts")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.texts: tuple[str, ...] = tuple(
            part for pair in sorted(labels.items()) for part in pair
        )
        """Names and values in turn, sorted by name; the name of the metric is `__name__`."""
        self.encoded: bytes | None = None
        """As a message of version 1; None: not needed yet."""

    @property
    def name(self) -> str:
        """Name of the metric."""
        return self.texts[self.texts.index("__name__") + 1]


class Series(NamedTuple):
    """Samples of a series, oldest first."""

    labels: LabelSet
    samples: bytes
    """SAMPLE_BYTES each, as both versions have them."""

    @property
    def samples_count(self) -> int:
        """Number of samples."""
        return len(self.samples) // SAMPLE_BYTES

    @property
    def times_ms(self) -> list[int]:
        """Times of the samples."""
        encoded = np.frombuffer(self.samples, np.uint8).reshape(-1, SAMPLE_BYTES)[:, 12:]
        times = sum(
            (encoded[:, place].astype(np.int64) & 0x7F) << (7 * place) for place in range(6)
        )
        return [int(time) for time in np.atleast_1d(times)]

    def part(self, start: int, end: int) -> "Series":
        """Some of the samples."""
        return Series(self.labels, self.samples[start * SAMPLE_BYTES : end * SAMPLE_BYTES])


@dataclass(frozen=True, slots=True)
class ExportedColumn:
    """A metric that a receiver gets."""

    exported: Exported
    name_set: str
    keep_ms: int
    """A series ends when its rows have no value for this time."""
    before: str | None
    """The table whose values of the same name come first; None: there is none."""


@dataclass(frozen=True, slots=True)
class LabelInventory:
    """Rows of nodes and GPUs by key, for labels."""

    nodes: Mapping[Any, Row] = field(default_factory=dict)
    gpus: Mapping[Any, Row] = field(default_factory=dict)


def chosen_metrics(
    name_sets: Iterable[str], is_wanted: Callable[[str], bool]
) -> dict[str, tuple[ExportedColumn, ...]]:
    """The metrics of some name sets by table. Of a name in two sets, the first set has it."""
    found: dict[str, list[ExportedColumn]] = {}
    taken: dict[str, tuple[str, str]] = {}
    wanted = [name for name in SENT_SETS if name in set(name_sets)]
    for name_set in wanted:
        for table in METRICS if name_set == "own" else DCGM_TABLES:
            cadence_s = {metric.name: metric.cadence_s for metric in METRICS[table]}
            for exported in names_of(name_set, table):
                first_set, first_table = taken.setdefault(exported.name, (name_set, table))
                if first_set != name_set or not is_wanted(exported.name):
                    continue
                keep_s = max(KEEP_S, KEEP_PERIODS * cadence_s[exported.columns[0]])
                before = None if first_table == table else first_table
                found.setdefault(table, []).append(
                    ExportedColumn(exported, name_set, round(1000 * keep_s), before)
                )
    return {table: tuple(metrics) for table, metrics in found.items()}


def labels_of(
    chosen: ExportedColumn,
    table: str,
    row: Row,
    inventory: LabelInventory,
    extra: Mapping[str, str],
) -> LabelSet | None:
    """Labels of a row's series; None: the name set does not have it. `extra` replaces labels of the same name."""
    gpu = inventory.gpus.get(row.get("gpu_uuid"), {})
    if chosen.name_set == "own":
        labels = own_labels(table, row, gpu)
    elif gpu.get("vendor") not in (None, "nvidia"):
        return None
    else:
        version = inventory.nodes.get(row["node"], {}).get("driver_version")
        labels = dcgm_labels(chosen.name_set, row, gpu, version)
    texts = {name: str(value) for name, value in labels.items() if value not in (None, "")}
    return LabelSet({**texts, **extra, "__name__": chosen.exported.name})


class _Group:
    """Rows of one key: a GPU, a link, a host, a process."""

    __slots__ = ("counters", "described", "labels", "node", "row", "slot")

    def __init__(self, row: Row, node: "_NodeTime", slot: int) -> None:
        self.row = row
        self.node = node
        self.slot = slot
        """Its row in the table of newest times."""
        self.labels: list[LabelSet | None] = []
        self.described: Any = None
        self.counters: dict[str, tuple[float, int]] = {}
        """Newest value and time of counters whose growth is exported."""


class _NodeTime:
    """The newest row of a node, in any table: agents send their rows in order."""

    __slots__ = ("newest_ms",)

    def __init__(self) -> None:
        self.newest_ms = 0


class NodeTimes:
    """The newest row of each node."""

    def __init__(self) -> None:
        self._by_node: dict[Any, _NodeTime] = {}

    def of(self, node: Any) -> _NodeTime:
        """That of a node."""
        return self._by_node.setdefault(node, _NodeTime())


class TableSeries:
    """The series of a table for one receiver."""

    def __init__(
        self,
        table: str,
        metrics: Sequence[ExportedColumn],
        extra: Mapping[str, str],
        times: NodeTimes,
    ) -> None:
        self.table = table
        self.metrics = metrics
        self._extra = extra
        source = SOURCES[table]
        self._key = (*source.key, *source.described)
        self._keep_ms = np.array([metric.keep_ms for metric in metrics], np.int64)
        self._rated = sorted({c for m in metrics if m.exported.is_rate for c in m.exported.columns})
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._last_ms = np.zeros((64, len(metrics)), np.int64)
        """Time of the newest sample by slot and metric; 0: none, or the series has ended."""
        self._free = [*range(63, -1, -1)]
        """Slots that no group has."""
        self._times = times
        self._inventory = LabelInventory()
        self.unsendable = 0
        """Samples whose time cannot be encoded."""

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        read = {column for metric in self.metrics for column in metric.exported.columns}
        return frozenset({"ts", *self._key, *read})

    def __len__(self) -> int:
        return len(self._groups)

    def use(self, inventory: LabelInventory) -> None:
        """Take labels from this inventory from now on."""
        self._inventory = inventory
        for group in self._groups.values():
            if self._described(group.row) != group.described:
                self._label(group)

    def take(self, rows: Any, others: Mapping[str, "TableSeries"]) -> Iterator[Series]:
        """The samples of an Arrow table's rows. `others`: all tables of the receiver, by name."""
        rows = rows.select([name for name in rows.schema.names if name in self.columns])
        rows = rows.combine_chunks()
        times_ms = np.floor_divide(rows["ts"].cast(pa.int64()).to_numpy(), 1000)
        numbers, groups = self._grouped(rows)
        order = np.lexsort((times_ms, numbers))
        numbers, times_ms = numbers[order], times_ms[order]
        keep = (times_ms >= TS_MS_MIN) & (times_ms <= TS_MS_MAX)
        self.unsendable += int(len(keep) - np.count_nonzero(keep))
        # A frame that was written twice has the same rows twice.
        keep[1:] &= (numbers[1:] != numbers[:-1]) | (times_ms[1:] != times_ms[:-1])
        if not keep.all():
            order, numbers, times_ms = order[keep], numbers[keep], times_ms[keep]
        if not len(order):
            return
        slots = np.array([group.slot for group in groups], np.int64)
        found = _SortedRows(groups, slots, numbers, times_ms, encoded_times(times_ms))
        self._note_newest(groups, numbers, times_ms)
        read = _Columns(rows, order)
        rates = {name: self._rates(read, name, numbers, times_ms, groups) for name in self._rated}
        for place, metric in enumerate(self.metrics):
            values, valid = _values(metric.exported, read, rates)
            yield from self._series(place, values, valid, found, others)

    def ended(self) -> Iterator[Series]:
        """The end of series whose rows have no value any more, although their node sends newer rows."""
        gone = []
        for key, group in self._groups.items():
            last_ms = self._last_ms[group.slot]
            until_ms = last_ms + self._keep_ms
            over = (last_ms > 0) & (group.node.newest_ms > until_ms)
            if not over.any():
                continue
            for place in np.flatnonzero(over).tolist():
                labels = group.labels[place]
                if labels is not None:
                    encoded = encoded_samples(until_ms[place : place + 1], _STALE)
                    yield Series(labels, encoded.tobytes())
            last_ms[over] = 0
            if not last_ms.any():
                gone.append(key)
        for key in gone:
            self._free.append(self._groups.pop(key).slot)

    def has_value(self, key: tuple[Any, ...], name: str, since_ms: int) -> bool:
        """Whether the series of a name has a sample after that time."""
        group = self._groups.get(key)
        return group is not None and any(
            metric.exported.name == name and self._last_ms[group.slot, place] > since_ms
            for place, metric in enumerate(self.metrics)
        )

    def _series(
        self,
        place: int,
        values: Any,
        valid: Any,
        rows: "_SortedRows",
        others: Mapping[str, "TableSeries"],
    ) -> Iterator[Series]:
        numbers, times_ms, encoded = rows.numbers, rows.times_ms, rows.template
        if valid.all():
            encoded = encoded.copy()
        else:
            values, numbers = values[valid], numbers[valid]
            times_ms, encoded = times_ms[valid], encoded[valid]
        if not len(values):
            return
        metric = self.metrics[place]
        encoded[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
        content = encoded.tobytes()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        ends = np.append(starts[1:], len(numbers))
        slots = rows.slots[numbers[starts]]
        newest_ms = self._last_ms[slots, place]
        for number, start, end in zip(
            numbers[starts].tolist(),
            (starts * SAMPLE_BYTES).tolist(),
            (ends * SAMPLE_BYTES).tolist(),
            strict=True,
        ):
            group = rows.groups[number]
            labels = group.labels[place]
            if labels is None or (metric.before and self._is_second(metric, group, others)):
                continue
            yield Series(labels, content[start:end])
        self._last_ms[slots, place] = np.maximum(newest_ms, times_ms[ends - 1])

    def _is_second(
        self, metric: ExportedColumn, group: _Group, others: Mapping[str, "TableSeries"]
    ) -> bool:
        """Whether another table has values for this series, which come first."""
        first = others.get(metric.before) if metric.before else None
        if first is None:
            return False
        key = tuple(group.row.get(name) for name in first._key)
        return first.has_value(key, metric.exported.name, group.node.newest_ms - metric.keep_ms)

    def _grouped(self, rows: Any) -> tuple[Any, list[_Group]]:
        """A number for each row, and the groups by number, in the order of their first rows."""
        codes = np.zeros(rows.num_rows, np.int64)
        names = [name for name in self._key if name in rows.schema.names]
        for name in names:
            column = pc.dictionary_encode(rows[name], null_encoding="encode").combine_chunks()
            codes = codes * (len(column.dictionary) + 1) + column.indices.to_numpy()
            _, codes = np.unique(codes, return_inverse=True)
        _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
        by_row = np.argsort(first)
        rank = np.empty_like(by_row)
        rank[by_row] = np.arange(len(by_row))
        heads = rows.select(names).take(pa.array(first[by_row])).to_pylist()
        return rank[numbers], [self._group(row) for row in heads]

    def _group(self, row: dict[str, Any]) -> _Group:
        key = tuple(row.get(name) for name in self._key)
        group = self._groups.get(key)
        if group is None:
            node = self._times.of(row["node"])
            if not self._free:
                size = len(self._last_ms)
                self._last_ms = np.concatenate([self._last_ms, np.zeros_like(self._last_ms)])
                self._free = [*range(2 * size - 1, size - 1, -1)]
            group = self._groups[key] = _Group(row, node, self._free.pop())
            self._label(group)
        return group

    def _label(self, group: _Group) -> None:
        group.described = self._described(group.row)
        group.labels = [
            labels_of(metric, self.table, group.row, self._inventory, self._extra)
            for metric in self.metrics
        ]

    def _described(self, row: Row) -> Any:
        """What labels of a row need of the inventory."""
        gpu = self._inventory.gpus.get(row.get("gpu_uuid"))
        node = self._inventory.nodes.get(row["node"])
        return gpu, node and node.get("driver_version")

    def _note_newest(self, groups: Sequence[_Group], numbers: Any, times_ms: Any) -> None:
        lasts = np.append(np.flatnonzero(np.diff(numbers)), len(numbers) - 1)
        for last in lasts.tolist():
            node = groups[numbers[last]].node
            node.newest_ms = max(node.newest_ms, int(times_ms[last]))

    def _rates(
        self, read: "_Columns", name: str, numbers: Any, times_ms: Any, groups: Sequence[_Group]
    ) -> tuple[Any, Any]:
        """Growth a second of a counter, and where it is known: not over a gap or a reset."""
        values, valid = read.numbers(name)
        rates, known = np.zeros(len(numbers)), np.zeros(len(numbers), bool)
        at = np.flatnonzero(valid)
        if not len(at):
            return rates, known
        v, t, g = values[at], times_ms[at], numbers[at]
        before_v, before_t = np.empty_like(v), np.empty_like(t)
        before_v[1:], before_t[1:] = v[:-1], t[:-1]
        starts = np.flatnonzero(np.diff(g, prepend=-1))
        for start in starts.tolist():
            known_value, known_ms = groups[g[start]].counters.get(name, (np.inf, 0))
            before_v[start], before_t[start] = known_value, known_ms
        for last in (*(starts[1:] - 1).tolist(), len(g) - 1):
            groups[g[last]].counters[name] = (float(v[last]), int(t[last]))
        seconds = (t - before_t) / 1000
        fine = (seconds > 0) & (seconds <= KEEP_S) & (v >= before_v)
        rates[at[fine]] = (v[fine] - before_v[fine]) / seconds[fine]
        known[at[fine]] = True
        return rates, known


class _SortedRows(NamedTuple):
    """Rows by group and time."""

    groups: Sequence[_Group]
    slots: Any
    """Slot by number of the group."""
    numbers: Any
    """Number of the group by row."""
    times_ms: Any
    template: Any
    """Encoded samples without values."""


class _Columns:
    """Columns of rows as numbers, in a given order."""

    def __init__(self, rows: Any, order: Any) -> None:
        self._rows = rows
        self._order = order
        self._names = set(rows.schema.names)

    def numbers(self, name: str) -> tuple[Any, Any]:
        """Values, and which are present; NULL, NaN and infinite values are absent."""
        if name not in self._names:
            return np.zeros(len(self._order)), np.zeros(len(self._order), bool)
        column = self._rows[name]
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        values = column.to_numpy()[self._order]
        if values.dtype != np.float64:
            values = values.astype(np.float64)
        return values, np.isfinite(values)


def _values(
    exported: Exported, read: _Columns, rates: Mapping[str, tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Values of a metric in its unit, and which are present."""
    if exported.is_rate:
        parts = [rates[name] for name in exported.columns]
        values, valid = sum(part[0] for part in parts), np.logical_and.reduce([p[1] for p in parts])
    else:
        values, valid = read.numbers(exported.columns[0])
    scale = exported.scale
    scaled = values if scale.times == 1 else values * scale.times
    return (scaled if scale.over == 1 else scaled / scale.over), valid


_STALE = np.array([STALE_NAN_BITS], "<u8")


def encoded_times(times_ms: Any) -> Any:
    """Samples of these times, whose values are missing, as an array of bytes."""
    encoded = np.empty((len(times_ms), SAMPLE_BYTES), np.uint8)
    encoded[:, 0], encoded[:, 1], encoded[:, 2], encoded[:, 11] = _TAG, _CONTENT, _VALUE, _TIME
    rest = times_ms.astype(np.uint64)
    for place in range(12, 18):
        encoded[:, place] = (rest & np.uint64(0x7F)) | np.uint64(0x80 if place < 17 else 0)
        rest >>= np.uint64(7)
    return encoded


def encoded_samples(times_ms: Any, values: Any) -> Any:
    """Samples of these times and 8-byte values, as an array of bytes."""
    encoded = encoded_times(times_ms)
    encoded[:, 3:11] = values.view(np.uint8).reshape(-1, 8)
    return encoded
