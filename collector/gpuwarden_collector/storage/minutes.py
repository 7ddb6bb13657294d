"""Computes minutes from samples in numpy, all GPUs, nodes or processes in one operation.

The result is that of `rollup_sql` for a rollup of minutes, at a fraction of its cost. Rows are sorted once
by key and time. The rows of a minute of a key (a group) become a column of a matrix, so each summary is
one operation over all groups. Groups of similar size share a matrix, so that a key with a thousand times
the samples of others makes no matrix larger than twice its rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.metrics import Type
from gpuwarden.rollups import (
    ACTIVITY,
    EXPECTED,
    IDLE_BELOW_PERCENT,
    LOOKBACK_MINUTES,
    REASONS,
    Rollup,
    RollupPart,
)
from gpuwarden_collector.storage.schemas import ARROW_TYPES

Array = np.ndarray[Any, np.dtype[Any]]

_MINUTE_US = 60_000_000
_INT64_MAX = (1 << 63) - 1


def columns_of(part: RollupPart, rollup: Rollup) -> tuple[str, ...]:
    """Columns of samples that a part of a rollup needs."""
    more = ("util_percent", "clocks_event_reasons") if part.has_activity else ()
    sources = (summary.source for summary in part.summaries)
    return tuple(dict.fromkeys((*rollup.by, "ts", "simulated", *part.carried, *sources, *more)))


def counters_of(part: RollupPart, rollup: Rollup) -> tuple[str, ...]:
    """Columns of the samples before a minute that it looks back at: key, `ts` and counters."""
    return (*rollup.by, "ts", *_counters(part))


def _counters(part: RollupPart) -> tuple[str, ...]:
    """Columns that only grow: those of which the increase is summarised."""
    return tuple(summary.source for summary in part.summaries if summary.how == "delta")


COVERAGE_COLUMNS = ("table_name", "node", "gpu_uuid", "ts", "expected")


@dataclass(frozen=True, slots=True)
class PartRows:
    """The result of a part."""

    rows: Any
    """Arrow table: columns of the part by key and `ts`."""
    readings: Any
    """Arrow table of `counters_of`: readings that the next minutes look back at."""


def part_rows(
    part: RollupPart, rollup: Rollup, samples: Any, before: Any, begin: datetime
) -> PartRows:
    """Compute the minutes of all samples. `samples`: Arrow table of `columns_of` from `begin` (a whole minute,
    naive UTC); `before`: of `counters_of`, with earlier samples or `PartRows.readings`."""
    read = counters_of(part, rollup)
    # Earlier rows come last, so that columns of samples alone need no padding.
    rows = pa.concat_tables([samples.select(read), before.select(read)])
    groups = _Groups(rows, rollup.by, int(np.datetime64(begin, "us").astype(np.int64)))
    return _Computation(part, rollup, groups, samples).result()


def rollup_rows(rollup: Rollup, parts: Sequence[Any], coverage: Any) -> Any:
    """Join the rows of a rollup's parts. `coverage`: Arrow table of `COVERAGE_COLUMNS` for the minutes; None: no
    part has coverage."""
    key = (*rollup.by, "ts")
    place = _places(parts, key)
    counts = {part.count.name for part in rollup.parts}
    of_row = np.unique(np.concatenate(place), return_index=True)[1]
    keys = pa.concat_tables([rows.select(key) for rows in parts]).take(pa.array(of_row))
    columns = {name: keys[name] for name in key}
    for number, rows in enumerate(parts):
        at = np.full(len(of_row), -1)
        at[place[number]] = np.arange(len(rows))
        taken = pa.array(at, mask=at < 0)
        for name in rows.column_names:
            if name in key:
                continue
            column = rows[name]
            is_absent = column.null_count == len(column)
            column = pa.nulls(len(at), column.type) if is_absent else column.take(taken)
            known = columns.get(name)
            columns[name] = column if known is None else pc.coalesce(known, column)
    for name in counts:
        columns[name] = columns[name].fill_null(0)
    for part in rollup.parts:
        if part.has_coverage and coverage is not None:
            chosen = coverage.filter(pc.equal(coverage["table_name"], part.table))
            columns[EXPECTED.name] = _expected(keys, chosen, rollup)
    return pa.table(columns)


def _places(tables: Sequence[Any], key: Sequence[str]) -> list[Array]:
    """For each row of each table a number from 0 without gaps, equal for rows with the same key."""
    every = pa.concat_tables([table.select(key) for table in tables])
    codes = _codes([every[name] for name in key])
    numbers = np.unique(codes, return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(table) for table in tables])[:-1])


def _expected(keys: Any, coverage: Any, rollup: Rollup) -> Any:
    """Expected samples by key: those of the key itself, or else of its node."""
    us = coverage["ts"].cast(pa.int64()).to_numpy()
    # A row counts the minute that ends at its instant.
    minute = (us - 1000) // _MINUTE_US * _MINUTE_US
    due = coverage.select([*rollup.by, "expected"]).append_column(
        "ts", pa.array(minute.astype("datetime64[us]"))
    )
    found = _due(keys, due, (*rollup.by, "ts"))
    if "gpu_uuid" in rollup.by:
        of_node = due.filter(pc.is_null(due["gpu_uuid"]))
        found = pc.coalesce(found, _due(keys, of_node, ("node", "ts")))
    return found


def _due(keys: Any, due: Any, key: Sequence[str]) -> Any:
    of_keys, of_due = _places([keys, due], key)
    size = max(of_keys.max(initial=-1), of_due.max(initial=-1)) + 1
    counted, total = np.zeros(size, np.bool_), np.zeros(size, np.int64)
    known = due["expected"].is_valid().to_numpy()
    counted[of_due[known]] = True
    np.add.at(total, of_due, due["expected"].fill_null(0).to_numpy())
    total, counted = total[of_keys], counted[of_keys]
    fits = (total >= -(1 << 31)) & (total < 1 << 31)
    return pa.chunked_array(
        [pa.array(np.where(fits, total, 0).astype(np.int32), mask=~(counted & fits))]
    )


class _Groups:
    """Rows by key and minute, in that order."""

    def __init__(self, rows: Any, by: Sequence[str], begin_us: int) -> None:
        self.rows = rows
        self.by = by
        ts = rows["ts"].cast(pa.int64()).to_numpy()
        key = _codes([rows[name] for name in by])
        self.order = _sorted(key, ts)
        key, ts = key[self.order], ts[self.order]
        minute = ts // _MINUTE_US
        is_first = np.ones(len(key), np.bool_)
        is_first[1:] = (key[1:] != key[:-1]) | (minute[1:] != minute[:-1])
        self.start = np.flatnonzero(is_first)
        self.size = np.diff(self.start, append=len(key))
        self.key = key[self.start]
        self.minute = minute[self.start]
        self.is_new = self.minute >= begin_us // _MINUTE_US

    def __len__(self) -> int:
        return len(self.start)

    def blocks(self) -> Iterator["_Block"]:
        """All groups, by similar size, and new ones apart from earlier ones."""
        kind = np.ceil(np.log2(self.size)).astype(np.int64) * 2 + self.is_new
        for number in np.unique(kind):
            yield _Block(self, np.flatnonzero(kind == number), is_new=bool(number % 2))

    def earlier(self, is_known: Array) -> Array:
        """For each group the newest known group of the same key among the minutes that it looks back at; -1: none."""
        found = np.full(len(self), -1)
        for back in range(LOOKBACK_MINUTES, 0, -1):
            is_near = self.key[back:] == self.key[:-back]
            is_near &= self.minute[back:] - self.minute[:-back] <= LOOKBACK_MINUTES
            is_near &= is_known[:-back]
            at = np.flatnonzero(is_near)
            found[at + back] = at
        return found

    def newest(self, is_known: Array) -> Array:
        """The newest known group of each key, if the next minutes look back at it."""
        if not len(self):
            return np.empty(0, np.int64)
        since = self.minute.max() + 1 - LOOKBACK_MINUTES
        at = np.flatnonzero(is_known & (self.minute >= since))
        is_last = np.ones(len(at), np.bool_)
        is_last[:-1] = self.key[at[1:]] != self.key[at[:-1]]
        return at[is_last]


def _codes(columns: Sequence[Any]) -> Array:
    """A number for each row, equal for equal rows, in no order."""
    codes = np.zeros(len(columns[0]), np.int64)
    if not len(codes):
        return codes
    many = 1
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode").combine_chunks()
        size = max(len(encoded.dictionary), 1)
        if many * size >= 1 << 30:
            known, codes = np.unique(codes, return_inverse=True)
            many = len(known)
        codes = codes * size + encoded.indices.to_numpy()
        many *= size
    if many >= 1 << 30:
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def _sorted(key: Array, ts: Array) -> Array:
    """The stable order by key and time."""
    if not len(key):
        return np.empty(0, np.int64)
    since = ts - ts.min()
    bits = int(since.max()).bit_length()
    if int(key.max()).bit_length() + bits > 63:
        return np.lexsort((ts, key))
    return np.argsort((key << bits) | since, kind="stable")


class _Block:
    """Groups of similar size, as a matrix for each column of rows: one group a column, in the order of time."""

    def __init__(self, groups: _Groups, at: Array, *, is_new: bool) -> None:
        self.at = at
        """Indexes of the groups."""
        self.is_new = is_new
        self.size = groups.size[at]
        slots = np.arange(self.size.max())[:, None]
        is_there = slots < self.size
        self._is_there = None if is_there.all() else is_there
        self.places = groups.order[groups.start[at] + np.where(is_there, slots, 0)]
        """Row of each element; an arbitrary row where the group has none."""

    def column(self, values: Array, is_valid: Array | None) -> "_Column":
        """A column of the rows."""
        there = self._is_there
        if is_valid is not None:
            valid = is_valid[self.places]
            there = valid if there is None else valid & there
            if there.all():
                there = None
        return _Column(values[self.places], there, self.size)


class _Column:
    """Values of a block, with a mask of the known ones."""

    def __init__(self, values: Array, is_there: Array | None, size: Array) -> None:
        self.values = values
        self._is_there = is_there
        self._groups = np.arange(values.shape[1])
        self.count = size if is_there is None else np.count_nonzero(is_there, axis=0)
        """Number of known values of each group."""
        self.is_known = self.count > 0
        self._is_float = values.dtype.kind == "f"

    @cached_property
    def _missing(self) -> Array | None:
        return None if self._is_there is None else ~self._is_there

    def _with(self, value: Any) -> Array:
        """Its values, with this one in place of missing ones."""
        if self._missing is not None:
            self.values[self._missing] = value
        return self.values

    @cached_property
    def is_huge(self) -> bool:
        """Whether a sum of its integers may exceed 64 bits."""
        values = self.values
        most = max(-int(values.min(initial=0)), int(values.max(initial=0)))
        return bool(most * (len(values) + 1) > _INT64_MAX)

    def sum(self) -> Array:
        """The sum of each group, in the order of time."""
        kind = np.float64 if self._is_float else np.longdouble if self.is_huge else np.int64
        return _added(self._with(0), kind)

    def average(self) -> Array:
        """The average of each group, divided as in DuckDB: 64-bit integers as long doubles."""
        wide = np.longdouble if self.values.dtype == np.int64 else np.float64
        divided = self.sum().astype(wide) / np.maximum(self.count, 1).astype(wide)
        return np.asarray(divided.astype(np.float64))

    def least(self) -> Array:
        """The minimum of each group. NaN is the greatest value, as in DuckDB."""
        if self._is_float:
            return np.asarray(np.fmin.reduce(self._with(np.nan), axis=0))
        return np.asarray(np.minimum.reduce(self._with(np.iinfo(self.values.dtype).max), axis=0))

    def greatest(self) -> Array:
        """The maximum of each group."""
        low = -np.inf if self._is_float else np.iinfo(self.values.dtype).min
        return np.asarray(np.maximum.reduce(self._with(low), axis=0))

    def p95(self) -> Array:
        """The 95th percentile of each group, as `quantile_disc`."""
        high = np.nan if self._is_float else np.iinfo(self.values.dtype).max
        ordered = np.sort(self._with(high), axis=0)
        rank = np.maximum(self.count - self.count * 5 // 100, 1) - 1
        return np.asarray(ordered[rank, self._groups])

    @cached_property
    def last_slot(self) -> Array:
        """Slot of the last known value of each group; the last slot if there is none."""
        if self._is_there is None:
            return np.asarray(self.count - 1)
        return np.asarray(len(self.values) - 1 - np.argmax(self._is_there[::-1], axis=0))

    @cached_property
    def first_slot(self) -> Array:
        """Slot of the first known value of each group."""
        if self._is_there is None:
            return np.zeros(len(self._groups), np.int64)
        return np.asarray(np.argmax(self._is_there, axis=0))

    def at(self, slots: Array) -> Array:
        """One value of each group."""
        return np.asarray(self.values[slots, self._groups])

    def counted(self, is_so: Array) -> Array:
        """Number of known values of each group for which the condition holds."""
        if self._is_there is not None:
            is_so = is_so & self._is_there
        return np.asarray(np.count_nonzero(is_so, axis=0))

    def gained(self) -> tuple[Array, Array, Array]:
        """The gain of a counter over each group; whether it has two values; whether the sum exceeds 64 bits."""
        before, now = self.values[:-1], self.values[1:]
        if self._is_there is not None:
            slots = np.where(self._is_there, np.arange(len(self.values))[:, None], -1)
            known = np.maximum.accumulate(slots, axis=0)[:-1]
            before = np.take_along_axis(self.values, np.maximum(known, 0), axis=0)
            gains = _step(before, now)
            gains[(known < 0) | ~self._is_there[1:]] = 0
        else:
            gains = _step(before, now)
        total = _added(gains, np.float64 if self._is_float else np.int64)
        is_over = np.zeros(len(self._groups), np.bool_)
        if not self._is_float and self.is_huge:
            is_over = _added(gains, np.longdouble) > _INT64_MAX
        return total, self.count > 1, is_over


def _added(values: Array, kind: Any) -> Array:
    """The sum of each column of a matrix, row after row."""
    if values.shape[1] == 1:
        # For one column numpy would add in another order.
        return np.asarray(np.add.accumulate(values, axis=0, dtype=kind)[-1])
    return np.asarray(np.add.reduce(values, axis=0, dtype=kind))


def _step(before: Array, now: Array) -> Array:
    """The gain of counters between two readings, as `rollup_sql._step`."""
    is_more = now >= before
    if is_more.all():
        return np.asarray(now - before)
    is_anew = now.astype(np.float64) < before.astype(np.float64) / 2
    if now.dtype.kind == "f":
        # NaN is the greatest value.
        is_more |= np.isnan(now)
        is_anew |= np.isnan(before) & ~np.isnan(now)
    return np.where(is_more, now - before, np.where(is_anew, now, now.dtype.type(0)))


def _loaded(column: Any) -> tuple[Array | None, Array | None]:
    """Values of a column, and a mask if some are NULL. None: all are.

    Texts and instants are taken from rows later, so their values here do not matter.
    """
    if column.null_count == len(column):
        return None, None
    is_valid = pc.is_valid(column).to_numpy() if column.null_count else None
    if pa.types.is_string(column.type) or pa.types.is_timestamp(column.type):
        return np.zeros(len(column), np.int8), is_valid
    filler = False if pa.types.is_boolean(column.type) else 0
    values = column.fill_null(filler) if column.null_count else column
    return values.to_numpy(), is_valid


class _Made:
    """A column of the result: a value or NULL for each group."""

    def __init__(self, groups: int, dtype: Any) -> None:
        self.values = np.zeros(groups, dtype)
        self.is_known = np.zeros(groups, np.bool_)

    def put(self, at: Array, values: Array, is_known: Array) -> None:
        """Set the values of some groups."""
        self.values[at] = values
        self.is_known[at] = is_known

    def arrow(self, chosen: Array) -> Any:
        """The values of chosen groups as an Arrow array."""
        return pa.array(self.values[chosen], mask=~self.is_known[chosen])


class _Counter:
    """Steps, first and last reading of a counter in each group, from which its gain is computed."""

    def __init__(self, groups: int, dtype: Any) -> None:
        self.steps, self.first, self.last = (_Made(groups, dtype) for _ in range(3))
        self.is_over = np.zeros(groups, np.bool_)
        self.last_row = np.zeros(groups, np.int64)

    def gained(self, earlier: Array) -> tuple[Array, Array]:
        """The gain by group, and whether it is known. `earlier`: `_Groups.earlier` of the counter."""
        has_before = (earlier >= 0) & self.first.is_known
        with np.errstate(invalid="ignore", over="ignore"):
            across = _step(self.last.values[earlier], self.first.values)
            across = np.where(has_before, across, across.dtype.type(0))
            total = np.where(self.steps.is_known, self.steps.values + across, across)
        is_known = self.steps.is_known | has_before
        if total.dtype.kind != "f":
            # A sum of two gains that overflowed has become smaller.
            is_known = is_known & ~self.is_over & ~((across >= 0) & (total < across))
        return total, is_known


class _Computation:
    """Computes the summaries of a part over all groups."""

    def __init__(self, part: RollupPart, rollup: Rollup, groups: _Groups, samples: Any) -> None:
        self._part = part
        self._samples = samples
        self._by = rollup.by
        self._groups = groups
        self._made: dict[str, _Made] = {}
        self._counters: dict[str, _Counter] = {}
        self._first_ms, self._last_ms, self._spacing = (
            _Made(len(groups), np.int64) for _ in range(3)
        )
        self._last_row = np.zeros(len(groups), np.int64)

    def result(self) -> PartRows:
        """Compute all summaries."""
        groups, part = self._groups, self._part
        counters = _counters(part)
        loaded = {
            name: _loaded((groups.rows if name in counters else self._samples)[name])
            for name in self._samples.column_names
            if name != "ts" and name not in self._by
        }
        self._counters = {
            name: _Counter(len(groups), values.dtype)
            for name in counters
            if (values := loaded[name][0]) is not None
        }
        with np.errstate(invalid="ignore", over="ignore"):
            for block in groups.blocks():
                self._add_times(block)
                for name, (values, is_valid) in loaded.items():
                    if values is None:
                        continue
                    if name in self._counters:
                        self._add_counter(block, name, block.column(values, is_valid))
                    elif block.is_new:
                        self._add_column(block, name, values, is_valid)
            self._add_gains()
            self._add_seconds()
            return PartRows(self._table(), self._readings())

    def _put(self, name: str, block: _Block, values: Array, is_known: Array) -> None:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = _Made(len(self._groups), values.dtype)
        made.put(block.at, values, is_known)

    def _add_times(self, block: _Block) -> None:
        times = self._times[block.places]
        first, last = times[0], times[block.size - 1, np.arange(len(block.at))]
        always = np.ones(len(block.at), np.bool_)
        self._first_ms.put(block.at, first, always)
        self._last_ms.put(block.at, last, always)
        self._last_row[block.at] = block.places[block.size - 1, np.arange(len(block.at))]
        if len(times) > 1:
            gaps = times[1:] - times[:-1]
            gaps[np.arange(1, len(times))[:, None] >= block.size] = _INT64_MAX
            self._spacing.put(block.at, gaps.min(axis=0), block.size > 1)

    @cached_property
    def _times(self) -> Array:
        us: Array = self._groups.rows["ts"].cast(pa.int64()).to_numpy()
        return us // 1000

    def _add_counter(self, block: _Block, name: str, column: _Column) -> None:
        counter, at = self._counters[name], block.at
        counter.first.put(at, column.at(column.first_slot), column.is_known)
        counter.last.put(at, column.at(column.last_slot), column.is_known)
        counter.last_row[at] = block.places[column.last_slot, np.arange(len(at))]
        if block.is_new and len(column.values) > 1:
            total, is_known, is_over = column.gained()
            counter.steps.put(at, total, is_known)
            counter.is_over[at] = is_over

    def _add_column(self, block: _Block, name: str, values: Array, is_valid: Array | None) -> None:
        column = block.column(values, is_valid)
        if name == "simulated":
            self._put(name, block, column.counted(column.values) > 0, column.is_known)
            return
        if name in self._part.carried:
            rows = block.places[column.last_slot, np.arange(len(block.at))]
            self._put(name, block, rows, column.is_known)
            return
        for summary in self._part.summaries:
            if summary.source == name and summary.how == "last":
                self._put(summary.column.name, block, column.at(column.last_slot), column.is_known)
        if self._part.has_activity and name == "util_percent":
            idle, busy, _ = (c.name for c in ACTIVITY)
            found = column.counted(column.values < IDLE_BELOW_PERCENT)
            self._put(idle, block, found, column.is_known)
            self._put(busy, block, column.count - found, column.is_known)
            self._put("util_percent", block, column.count, column.is_known)
        if self._part.has_activity and name == "clocks_event_reasons":
            self._add_reasons(block, column)
        for summary in self._part.summaries:
            if summary.source != name:
                continue
            match summary.how:
                case "avg":
                    made = column.average()
                case "min":
                    made = column.least()
                case "max":
                    made = column.greatest()
                case "p95":
                    made = column.p95()
                case _:
                    continue
            self._put(summary.column.name, block, made, column.is_known)

    def _add_reasons(self, block: _Block, column: _Column) -> None:
        found = int(np.bitwise_or.reduce(column.values, axis=None))
        for bit, reason in REASONS.items():
            counts = np.zeros(len(block.at), np.int64)
            if found & bit:
                counts = column.counted((column.values & bit) != 0)
            self._put(reason.name, block, counts, column.is_known)

    def _add_gains(self) -> None:
        groups = self._groups
        everywhere = np.ones(len(groups), np.bool_)
        self._before = groups.earlier(everywhere)
        rows = [self._last_row[groups.newest(everywhere)]]
        for name, counter in self._counters.items():
            is_known = counter.last.is_known
            earlier = self._before if is_known.all() else groups.earlier(is_known)
            for summary in self._part.summaries:
                if summary.source != name:
                    continue
                if summary.how == "last":
                    self._made[summary.column.name] = counter.last
                    continue
                total, is_sure = counter.gained(earlier)
                made = self._made[summary.column.name] = _Made(len(groups), total.dtype)
                made.values, made.is_known = total, is_sure
            rows.append(counter.last_row[groups.newest(is_known)])
        self._reading_rows = np.unique(np.concatenate(rows))

    def _add_seconds(self) -> None:
        """Multiply counts of samples by the seconds that a sample represents: the least time between two."""
        if not self._part.has_activity:
            return
        groups = self._groups
        least = np.where(self._spacing.is_known, self._spacing.values, _INT64_MAX)
        before = self._first_ms.values - self._last_ms.values[self._before]
        least = np.minimum(least, np.where(self._before >= 0, before, _INT64_MAX))
        least = np.where((least == 0) | (least == _INT64_MAX), 1000, least)
        each = np.minimum(60.0, least / 1000.0)
        idle, busy, unknown = (c.name for c in ACTIVITY)
        for name in (idle, busy, *(c.name for c in REASONS.values())):
            made = self._made.get(name)
            if made is not None:
                made.values = (made.values * each).astype(np.float32)
        known = self._made.pop("util_percent", None)
        left = _Made(len(groups), np.float32)
        left.put(
            np.arange(len(groups)),
            (groups.size - (0 if known is None else known.values)) * each,
            np.ones(len(groups), np.bool_),
        )
        self._made[unknown] = left

    def _table(self) -> Any:
        groups, samples = self._groups, self._samples
        chosen = np.flatnonzero(groups.is_new)
        of_key = pa.array(groups.order[groups.start[chosen]])
        columns = {name: samples[name].take(of_key) for name in self._by}
        columns["ts"] = pa.array((groups.minute[chosen] * _MINUTE_US).astype("datetime64[us]"))
        columns[self._part.count.name] = pa.array(groups.size[chosen].astype(np.int32))
        columns["simulated"] = self._column("simulated", Type.BOOL, chosen)
        for name in self._part.carried:
            made = self._made.get(name)
            columns[name] = (
                pa.nulls(len(chosen), samples[name].type)
                if made is None
                else samples[name].take(made.arrow(chosen))
            )
        if self._part.has_activity:
            for column in (*ACTIVITY, *REASONS.values()):
                columns[column.name] = self._column(column.name, column.type, chosen)
        for summary in self._part.summaries:
            column = summary.column
            columns[column.name] = self._column(column.name, column.type, chosen)
        return pa.table(columns)

    def _column(self, name: str, kind: Type, chosen: Array) -> Any:
        arrow = ARROW_TYPES[kind]
        made = self._made.get(name)
        if made is None:
            return pa.nulls(len(chosen), arrow)
        values, is_known = made.values[chosen], made.is_known[chosen]
        if kind in (Type.FLOAT32, Type.FLOAT64):
            dtype = np.float32 if kind is Type.FLOAT32 else np.float64
            if values.dtype != dtype:
                wide, values = values, values.astype(dtype)
                # A value too large for the type became infinite.
                is_known = is_known & ~(np.isinf(values) & np.isfinite(wide))
            if name.endswith(("_avg", "_delta")):
                is_known = is_known & ~np.isposinf(values)
        elif kind in (Type.INT16, Type.INT32) and values.dtype == np.int64:
            limits = np.iinfo(np.int16 if kind is Type.INT16 else np.int32)
            is_known = is_known & (values >= limits.min) & (values <= limits.max)
            values = np.where(is_known, values, 0).astype(limits.dtype)
        return pa.array(values, arrow, mask=~is_known)

    def _readings(self) -> Any:
        names = (*self._by, "ts", *_counters(self._part))
        return self._groups.rows.select(names).take(pa.array(self._reading_rows))
