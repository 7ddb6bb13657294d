"""Checks the values of decoded batches and admits or refuses each batch; pure.

A batch is admitted or refused whole: one wrong row refuses it, with the table, the column, the number of wrong rows
and an example.

A call of Arrow takes some 8 us even for few rows, and a batch of 200 columns takes two for each column. So the
numbers of a small table are checked first for all columns of one type at once. Only columns in which this finds
something are checked one by one, and only the second check refuses.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.clock import EPOCH, from_ms, to_ms
from gpuwarden.metrics import Type
from gpuwarden.node_name import NodeNameError, check_node_name
from gpuwarden.schema import COLLECTOR_EVENTS, EVENTS, WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden_collector.ingest.decode import RefusedBody, invalid

NAME_BYTES_MAX = 256
"""Largest size of a name or UUID."""
TEXT_BYTES_MAX = 65_536
"""Largest size of any other text."""

INVENTORY_ROWS_MAX = 16_384
"""Most rows of nodes, and of GPUs, in a batch: each is merged by itself, and other batches wait for it."""

_NAMES = ("node", "gpu_uuid")
_CONTROLS = (
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}\x{61c}\x{200b}\x{200e}\x{200f}\x{2028}-\x{202e}"
    r"\x{2060}-\x{206f}\x{feff}\x{fff9}-\x{fffb}\x{e0000}-\x{e007f}]"
)
_TOGETHER_ROWS_MAX = 2_000
"""Columns with at most this many rows are checked together, which copies them."""
_SETS_ROWS_MAX = 200
"""Keys of at most this many rows are put into a set: its time grows with each row."""
_OBJECTS = {"nodes": "labels", "allocation_samples": "pod_labels", "gpus": "peers"}
"""Columns of JSON objects with texts, which views and pages parse: one invalid text would fail every query of all
nodes."""
_SAMPLE_TABLES = frozenset({"gpu_samples", "host_samples", "process_samples"})
"""Tables in which a key may occur once in a batch. Two events may have the same key, and of several
inventory rows with one key the last counts."""


@dataclass(frozen=True, slots=True)
class Window:
    """The timestamps that are admitted, in milliseconds since the epoch, ends included."""

    least_ms: int
    most_ms: int


def window(now: datetime, past_max_s: float, future_max_s: float) -> Window:
    """The admission window around `now`."""
    return Window(
        to_ms(now - timedelta(seconds=past_max_s)), to_ms(now + timedelta(seconds=future_max_s))
    )


def checked(tables: Mapping[str, Any], admitted: Window) -> dict[str, Any] | RefusedBody:
    """The tables, each column as one chunk, or why they are refused."""
    combined: dict[str, Any] = {}
    for name, data in tables.items():
        if reason := invalid(name, data):
            return RefusedBody(400, reason)
        table = WIRE_TABLES[name]
        if "ts" not in table.names and data.num_rows > INVENTORY_ROWS_MAX:
            return RefusedBody(
                422,
                f"{name} has {data.num_rows} rows; most is {INVENTORY_ROWS_MAX}: send smaller batches",
            )
        data = data.combine_chunks()
        scan = _scanned(table, data, admitted)
        for place in scan.suspect:
            column, values = table.columns[place], data.column(place)
            reason = _wrong_column(table, column, values, admitted)
            if reason:
                return RefusedBody(422, reason, _admitting_ahead_s(column, values, admitted))
        for place in scan.not_ascii:
            clean = without_controls(data.column(place))
            data = data.set_column(place, data.schema.field(place), clean)
        combined[name] = data
        if reason := _wrong_node(name, data):
            return RefusedBody(422, reason)
        if reason := _wrong_json(name, data) or _wrong_kind(name, data):
            return RefusedBody(422, reason)
        if name in _SAMPLE_TABLES and (key := _repeated_key(table, data)):
            return RefusedBody(422, key)
    return combined


@dataclass(frozen=True, slots=True)
class _ColumnGroup:
    """Columns of one type that are checked together: their indices and bounds."""

    dtype: Any
    places: tuple[int, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]


_NUMBERS = {
    Type.INT16: np.int16,
    Type.INT32: np.int32,
    Type.INT64: np.int64,
    Type.FLOAT32: np.float32,
    Type.FLOAT64: np.float64,
}


@dataclass(frozen=True, slots=True)
class _TablePlan:
    """How the columns of a table are checked together, by column index."""

    numbers: tuple[_ColumnGroup, ...]
    texts: _ColumnGroup
    """The bounds are of their size in bytes."""
    times: tuple[tuple[int, Column], ...]
    required: tuple[int, ...]
    free: frozenset[int]
    """Columns that admit any value."""

    @classmethod
    @cache
    def of(cls, name: str) -> "_TablePlan":
        """The plan of a table."""
        table = WIRE_TABLES[name]
        numbers: dict[Any, list[tuple[int, float, float]]] = {}
        texts, times, free = [], [], []
        for place, column in enumerate(table.columns):
            dtype = _NUMBERS.get(column.type)
            if column.type is Type.TIMESTAMP:
                times.append((place, column))
            elif column.type is Type.STRING:
                most = _text_bytes_max(table, column)
                texts.append((place, 1 if most == NAME_BYTES_MAX else 0, most))
            elif dtype is not None and (bounds := _bounds(column, dtype)):
                numbers.setdefault(dtype, []).append((place, *bounds))
            else:
                free.append(place)
        required = (place for place, column in enumerate(table.columns) if column.required)
        return cls(
            tuple(_column_group(dtype, columns) for dtype, columns in numbers.items()),
            _column_group(np.int32, texts),
            tuple(times),
            tuple(required),
            frozenset(free),
        )

    def bounded(self, admitted: Window) -> _ColumnGroup:
        """The columns of timestamps as integers, with the bounds of the window."""
        windows = [(place, _window_of(column, admitted)) for place, column in self.times]
        return _column_group(np.int64, [(place, w.least_ms, w.most_ms) for place, w in windows])


def _bounds(column: Column, dtype: Any) -> tuple[float, float] | None:
    """Bounds of a number that is not NULL; None: no bounds."""
    if column.type in (Type.FLOAT32, Type.FLOAT64):
        reach = float(np.finfo(dtype).max)
        least, most = column.limits or (-reach, reach)
        return max(least, -reach), min(most, reach)
    if column.limits is None:
        return None
    span = np.iinfo(dtype)
    least, most = column.limits
    return math.ceil(max(least, int(span.min))), math.floor(min(most, int(span.max)))


def _column_group(dtype: Any, columns: Sequence[tuple[int, float, float]]) -> _ColumnGroup:
    places, least, most = zip(*columns, strict=True) if columns else ((), (), ())
    return _ColumnGroup(dtype, places, least, most)


@dataclass(frozen=True, slots=True)
class _Scan:
    """Indices of columns that may be wrong, and of texts that may have control characters."""

    suspect: Sequence[int]
    not_ascii: Sequence[int]


def _scanned(table: Table, data: Any, admitted: Window) -> _Scan:
    """Check the columns together. Each column of `data` has one chunk."""
    rows = data.num_rows
    if not rows:
        return _Scan(range(data.num_columns), [])
    plan = _TablePlan.of(table.name)
    (batch,) = data.to_batches()
    arrays = batch.columns
    nulls = [values.null_count for values in arrays]
    left = {place for place, missing in enumerate(nulls) if missing < rows} - plan.free
    not_ascii = _not_ascii(plan.texts, arrays, left, rows)
    if rows > _TOGETHER_ROWS_MAX:
        return _Scan(range(data.num_columns), not_ascii)
    for group in (*plan.numbers, plan.bounded(admitted)):
        left -= _within_bounds(group, arrays, left, rows)
    left -= _within_bounds(plan.texts, arrays, left, rows, is_text=True)
    missing = (place for place in plan.required if nulls[place])
    return _Scan(sorted(left.union(missing)), not_ascii)


def _not_ascii(group: _ColumnGroup, arrays: Sequence[Any], of: set[int], rows: int) -> list[int]:
    """The columns with a byte that is not printable ASCII; all texts are checked as one array."""
    places, pieces = [], []
    for place in group.places:
        if place in of:
            values = arrays[place]
            _, offsets, text = values.buffers()
            start, end = np.frombuffer(offsets, np.int32, rows + 1, 4 * values.offset)[[0, -1]]
            if text is not None and end > start:
                places.append(place)
                pieces.append(np.frombuffer(text, np.uint8, end - start, start))
    if not pieces:
        return []
    whole = np.concatenate(pieces)
    # A byte below 0x20 wraps around to a large one, so one comparison covers both ends.
    if (whole - 0x20).max() < 0x5F:
        return []
    return [
        place for place, piece in zip(places, pieces, strict=True) if (piece - 0x20).max() >= 0x5F
    ]


def _wrong_node(name: str, data: Any) -> str | None:
    for node in data["node"].unique().to_pylist():
        try:
            check_node_name(node)
        except NodeNameError as error:
            return f"{name}.node: {error}"
    return None


def _wrong_kind(name: str, data: Any) -> str | None:
    """Refuse events of the kinds that only the collector writes: alerts quote their text."""
    if name != EVENTS.name:
        return None
    own = sorted(COLLECTOR_EVENTS.intersection(data["kind"].unique().to_pylist()))
    return f"events.kind: only the collector itself writes {own[0]}" if own else None


def _wrong_json(name: str, data: Any) -> str | None:
    column = _OBJECTS.get(name)
    if column is None or data[column].null_count == data.num_rows:
        return None
    for text in pc.unique(data[column]).to_pylist():
        if text is not None and not _are_labels(text):
            return f"{name}.{column}: must be a JSON object of printable texts, not {text[:100]!r}"
    return None


def _are_labels(text: str) -> bool:
    """Whether a text is a JSON object of texts with unique names, which DuckDB can parse as well."""
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return False
    if not isinstance(pairs, tuple):
        return False
    names = [name for name, _ in pairs]
    texts = [*names, *(value for _, value in pairs)]
    return len(set(names)) == len(names) and all(
        isinstance(one, str) and one.isprintable() for one in texts
    )


def without_controls(texts: Any) -> Any:
    """The texts with control characters and bidirectional controls replaced by U+FFFD: anyone who can start a process
    chooses its name, and terminals show it. Line ends and tabs stay."""
    return pc.replace_substring_regex(texts, _CONTROLS, "\ufffd")


def _within_bounds(
    group: _ColumnGroup, arrays: Sequence[Any], of: set[int], rows: int, *, is_text: bool = False
) -> set[int]:
    """The columns in which all values are within the bounds, also the values under a NULL."""
    bounds, pieces = [], []
    width, rows = group.dtype().itemsize, rows + is_text
    for place, least, most in zip(group.places, group.least, group.most, strict=True):
        if place in of:
            values = arrays[place]
            bounds.append((place, least, most))
            start = values.offset * width
            pieces.append(np.frombuffer(values.buffers()[1], group.dtype, rows, start))
    if not bounds:
        return set()
    whole = np.concatenate(pieces).reshape(len(bounds), rows)
    if is_text:  # offsets
        whole = whole[:, 1:] - whole[:, :-1]
    least_of, most_of = whole.min(axis=1).tolist(), whole.max(axis=1).tolist()
    # A comparison with NaN is false, so a column with NaN is checked by itself.
    return {
        place
        for (place, least, most), low, high in zip(bounds, least_of, most_of, strict=True)
        if low >= least and high <= most
    }


def _text_bytes_max(table: Table, column: Column) -> int:
    is_name = column.name in table.key or column.name in _NAMES
    return NAME_BYTES_MAX if is_name else TEXT_BYTES_MAX


def _wrong_column(table: Table, column: Column, values: Any, admitted: Window) -> str | None:
    rows = values.length()
    missing = values.null_count
    where = f"{table.name}.{column.name}"
    if column.required and missing:
        return f"{where} is required, and {missing} rows have no value"
    if missing == rows:
        return None
    match column.type:
        case Type.TIMESTAMP:
            return _wrong_time(where, values, _window_of(column, admitted))
        case Type.STRING:
            return _wrong_text(where, values, _text_bytes_max(table, column))
        case Type.FLOAT32 | Type.FLOAT64:
            return _not_finite(where, values) or _outside(where, values, column.limits)
        case _:
            return _outside(where, values, column.limits)


def _window_of(column: Column, admitted: Window) -> Window:
    # Only `ts` is the time of the row; a process may have started long ago.
    return admitted if column.name == "ts" else Window(to_ms(EPOCH), admitted.most_ms)


def _admitting_ahead_s(column: Column, values: Any, admitted: Window) -> tuple[float, float] | None:
    """`RefusedBody.admitting_ahead_s` of a refused column."""
    if column.type is not Type.TIMESTAMP or (column.required and values.null_count):
        return None
    extremes = _extremes(values.cast(pa.int64()))
    if extremes is None:
        return None
    bounds = _window_of(column, admitted)
    least_s = (extremes[1] - bounds.most_ms) / 1000
    most_s = (extremes[0] - bounds.least_ms) / 1000
    if bounds.least_ms == to_ms(EPOCH):  # any clock admits it
        most_s = math.inf if most_s >= 0 else -math.inf
    return (least_s, most_s) if least_s <= most_s else None


def _not_finite(where: str, values: Any) -> str | None:
    # The sum of finite values is finite unless it overflows, and takes a tenth of the time of a check of each.
    total = pc.sum(values).as_py()
    if math.isfinite(total):
        return None
    rows = values.length() - values.null_count - (pc.sum(pc.is_finite(values)).as_py() or 0)
    return f"{where}: {rows} rows are NaN or infinite; send NULL where absent" if rows else None


def _wrong_time(where: str, values: Any, admitted: Window) -> str | None:
    milliseconds = values.cast(pa.int64())
    extremes = _extremes(milliseconds)
    if extremes is None or (extremes[0] >= admitted.least_ms and extremes[1] <= admitted.most_ms):
        return None
    early, late = extremes[0] < admitted.least_ms, extremes[1] > admitted.most_ms
    rows = _rows_outside(milliseconds, admitted.least_ms, admitted.most_ms)
    example = _iso(extremes[0] if early else extremes[1])
    which = (
        "too old and too far ahead" if early and late else "too old" if early else "in the future"
    )
    return (
        f"{where}: {rows} rows are {which}, such as {example}; "
        f"admitted is {_iso(admitted.least_ms)} to {_iso(admitted.most_ms)}"
    )


def _outside(where: str, values: Any, limits: tuple[float, float] | None) -> str | None:
    if limits is None:
        return None
    extremes = _extremes(values)
    if extremes is None or (extremes[0] >= limits[0] and extremes[1] <= limits[1]):
        return None
    rows = _rows_outside(values, *limits)
    example = extremes[0] if extremes[0] < limits[0] else extremes[1]
    return f"{where}: {rows} rows are outside {limits[0]:g} to {limits[1]:g}, such as {example:g}"


def _wrong_text(where: str, values: Any, bytes_max: int) -> str | None:
    extremes = _extremes(pc.binary_length(values))
    if extremes is None:
        return None
    if bytes_max == NAME_BYTES_MAX and extremes[0] < 1:
        return f"{where}: the text is empty, and must name what the row is about"
    if extremes[1] > bytes_max:
        return f"{where}: a text of {extremes[1]} bytes; most is {bytes_max}"
    return None


def _extremes(values: Any) -> tuple[Any, Any] | None:
    both = pc.min_max(values)
    least = both["min"].as_py()
    return None if least is None else (least, both["max"].as_py())


def _rows_outside(values: Any, least: float, most: float) -> int:
    if pa.types.is_integer(values.type):
        # Arrow raises when it compares an integer beyond 2**53 with a float.
        reach = 2 ** (values.type.bit_width - 1)
        least = math.ceil(max(least, -reach))
        most = math.floor(min(most, reach - 1))
    outside = pc.or_(pc.less(values, least), pc.greater(values, most))
    return int(pc.sum(outside).as_py() or 0)


def _repeated_key(table: Table, data: Any) -> str | None:
    if data.num_rows < 2:
        return None
    columns = [data.column(name) for name in table.key]
    if data.num_rows <= _SETS_ROWS_MAX:
        rows = zip(*(_keys(values) for values in columns), strict=True)
        if len(set(rows)) == data.num_rows:
            return None
    elif _all_differ(columns):
        return None
    keys = data.select(list(table.key))
    counted = keys.group_by(list(table.key)).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    if not twice.num_rows:
        return None
    first = twice.slice(0, 1).to_pylist()[0]
    example = ", ".join(f"{name} {_shown(first[name])}" for name in table.key)
    times = first["count_all"]
    return (
        f"{table.name}: {twice.num_rows} keys occur more than once, such as {example} {times} times"
    )


def _keys(values: Any) -> list[Any]:
    """The values of a column of a key; timestamps as integers, which is faster."""
    if pa.types.is_timestamp(values.type):
        values = values.chunk(0).view(pa.int64())
    found: list[Any] = values.to_pylist()
    return found


def _all_differ(columns: Sequence[Any]) -> bool:
    """Whether no two rows are equal. False may also mean that this way cannot decide it.

    Ten times faster than grouping: each column is dictionary-encoded, and the codes of a row become one number.
    """
    numbers = np.zeros(columns[0].length(), np.int64)
    possible = 1
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode()
        size = len(encoded.dictionary)
        possible *= size
        if possible >= 1 << 62:
            return False
        numbers = numbers * size + encoded.indices.to_numpy()
    return np.unique(numbers).size == numbers.size


def _shown(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)[:100]


def _iso(ts_ms: int) -> str:
    try:
        return from_ms(ts_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{ts_ms} ms since 1970"
