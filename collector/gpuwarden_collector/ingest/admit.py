"""Decides whether batches are admitted: a pure policy over decoded tables.

A batch is admitted or refused whole, so nothing is ever half done: one wrong row refuses the batch
with the table, the column, how many rows are wrong and an example.

A call of Arrow takes some 8 us however few rows it looks at, and a batch of 200 columns takes two for each.
So the numbers of a table of few rows are looked at together first, all columns of a type at once; only
columns that this does not clear are looked at one by one, and only that refuses.
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
from gpuwarden.schema import COLLECTOR_EVENTS, EVENTS, WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden_collector.ingest.decode import RefusedBody, invalid

NAME_BYTES_MAX = 256
"""Longest text of a name or UUID."""
TEXT_BYTES_MAX = 65_536
"""Longest text of any other cell."""

_NAMES = ("node", "gpu_uuid")
_CONTROLS = (
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}\x{61c}\x{200b}\x{200e}\x{200f}\x{2028}-\x{202e}"
    r"\x{2060}-\x{206f}\x{feff}\x{fff9}-\x{fffb}\x{e0000}-\x{e007f}]"
)
_TOGETHER_ROWS_MAX = 2_000
"""Columns with up to so many rows are looked at together: it copies them."""
_SETS_ROWS_MAX = 200
"""Keys of up to so many rows are put into a set: it takes a time for each of them."""
_OBJECTS = {"nodes": "labels", "allocation_samples": "pod_labels", "gpus": "peers"}
"""Columns of JSON objects of texts, which views and pages take apart: one that is none would fail each query of all
nodes."""
_SAMPLE_TABLES = frozenset({"gpu_samples", "host_samples", "process_samples"})
"""Tables in which a key may stand once a batch. Events of a kind may coincide, and of several
inventory rows with one key the last counts."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which timestamps are admitted, in milliseconds since the epoch, ends included."""

    least_ms: int
    most_ms: int


def window(now: datetime, past_max_s: float, future_max_s: float) -> Window:
    """The admission window around `now`."""
    return Window(
        to_ms(now - timedelta(seconds=past_max_s)), to_ms(now + timedelta(seconds=future_max_s))
    )


def refusal(tables: Mapping[str, Any], admitted: Window) -> RefusedBody | None:
    """Why the tables are refused; None admits them."""
    result = checked(tables, admitted)
    return result if isinstance(result, RefusedBody) else None


def checked(tables: Mapping[str, Any], admitted: Window) -> dict[str, Any] | RefusedBody:
    """The tables, each column in one piece, or why they are refused."""
    combined: dict[str, Any] = {}
    for name, data in tables.items():
        if reason := invalid(name, data):
            return RefusedBody(400, reason)
        table = WIRE_TABLES[name]
        data = data.combine_chunks()
        found = _looked_at(table, data, admitted)
        for place in found.not_cleared:
            column, values = table.columns[place], data.column(place)
            reason = _wrong_column(table, column, values, admitted)
            if reason:
                return RefusedBody(422, reason, _admitting_ahead_s(column, values, admitted))
        for place in found.odd_texts:
            clean = without_controls(data.column(place))
            data = data.set_column(place, data.schema.field(place), clean)
        combined[name] = data
        if reason := _wrong_json(name, data) or _wrong_kind(name, data):
            return RefusedBody(422, reason)
        if name in _SAMPLE_TABLES and (key := _key_twice(table, data)):
            return RefusedBody(422, key)
    return combined


@dataclass(frozen=True, slots=True)
class _Alike:
    """Columns whose values are looked at together: their places and bounds."""

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
class _Looks:
    """How the columns of a table are looked at together, by their place."""

    numbers: tuple[_Alike, ...]
    texts: _Alike
    """The bounds are of their bytes."""
    times: tuple[tuple[int, Column], ...]
    required: tuple[int, ...]
    free: frozenset[int]
    """Whatever stands there is admitted."""

    @classmethod
    @cache
    def of(cls, name: str) -> "_Looks":
        """Those of a table."""
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
            tuple(_alike(dtype, found) for dtype, found in numbers.items()),
            _alike(np.int32, texts),
            tuple(times),
            tuple(required),
            frozenset(free),
        )

    def bounded(self, admitted: Window) -> _Alike:
        """The times, as whole milliseconds."""
        windows = [(place, _window_of(column, admitted)) for place, column in self.times]
        return _alike(np.int64, [(place, w.least_ms, w.most_ms) for place, w in windows])


def _bounds(column: Column, dtype: Any) -> tuple[float, float] | None:
    """Of a number that is there; None: there are none."""
    if column.type in (Type.FLOAT32, Type.FLOAT64):
        reach = float(np.finfo(dtype).max)
        least, most = column.limits or (-reach, reach)
        return max(least, -reach), min(most, reach)
    if column.limits is None:
        return None
    span = np.iinfo(dtype)
    least, most = column.limits
    return math.ceil(max(least, int(span.min))), math.floor(min(most, int(span.max)))


def _alike(dtype: Any, found: Sequence[tuple[int, float, float]]) -> _Alike:
    places, least, most = zip(*found, strict=True) if found else ((), (), ())
    return _Alike(dtype, places, least, most)


@dataclass(frozen=True, slots=True)
class _Found:
    """Places of the columns in which something may be wrong, and of texts that may have control characters."""

    not_cleared: Sequence[int]
    odd_texts: Sequence[int]


def _looked_at(table: Table, data: Any, admitted: Window) -> _Found:
    """`data` has its columns in one piece."""
    rows = data.num_rows
    if not rows:
        return _Found(range(data.num_columns), [])
    looks = _Looks.of(table.name)
    (batch,) = data.to_batches()
    arrays = batch.columns
    nulls = [values.null_count for values in arrays]
    left = {place for place, missing in enumerate(nulls) if missing < rows} - looks.free
    odd = _odd_texts(looks.texts, arrays, left, rows)
    if rows > _TOGETHER_ROWS_MAX:
        return _Found(range(data.num_columns), odd)
    for alike in (*looks.numbers, looks.bounded(admitted)):
        left -= _cleared(alike, arrays, left, rows)
    left -= _cleared(looks.texts, arrays, left, rows, is_text=True)
    return _Found(sorted(left.union(place for place in looks.required if nulls[place])), odd)


def _odd_texts(alike: _Alike, arrays: Sequence[Any], of: set[int], rows: int) -> list[int]:
    """Which of the columns have a byte that is not printable ASCII; looked at in one piece."""
    found, pieces = [], []
    for place in alike.places:
        if place in of:
            values = arrays[place]
            _, offsets, text = values.buffers()
            start, end = np.frombuffer(offsets, np.int32, rows + 1, 4 * values.offset)[[0, -1]]
            if text is not None and end > start:
                found.append(place)
                pieces.append(np.frombuffer(text, np.uint8, end - start, start))
    if not pieces:
        return []
    whole = np.concatenate(pieces)
    # What is below a space becomes large: one comparison for both ends.
    if (whole - 0x20).max() < 0x5F:
        return []
    return [
        place for place, piece in zip(found, pieces, strict=True) if (piece - 0x20).max() >= 0x5F
    ]


def _wrong_kind(name: str, data: Any) -> str | None:
    """What the collector says of nodes and GPUs becomes alerts in its words."""
    if name != EVENTS.name:
        return None
    own = sorted(COLLECTOR_EVENTS.intersection(data["kind"].unique().to_pylist()))
    return f"events.kind: {own[0]} is an event of the collector's own" if own else None


def _wrong_json(name: str, data: Any) -> str | None:
    column = _OBJECTS.get(name)
    if column is None or data[column].null_count == data.num_rows:
        return None
    for text in pc.unique(data[column]).to_pylist():
        if text is not None and not _are_labels(text):
            return f"{name}.{column}: no JSON object of printable texts, such as {text[:100]!r}"
    return None


def _are_labels(text: str) -> bool:
    """Whether a text is a JSON object of texts, each name once, that DuckDB reads as well."""
    try:
        pairs = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return False
    if not text.lstrip().startswith("{") or not isinstance(pairs, tuple):
        return False
    names = [name for name, _ in pairs]
    texts = [*names, *(value for _, value in pairs)]
    return len(set(names)) == len(names) and all(
        isinstance(one, str) and one.isprintable() for one in texts
    )


def without_controls(texts: Any) -> Any:
    """Texts in which control characters, and those that turn the direction of a line, are replaced by U+FFFD: names
    come from whoever can start a process, and are shown in terminals. Line ends and tabs stay."""
    return pc.replace_substring_regex(texts, _CONTROLS, "\ufffd")


def _cleared(
    alike: _Alike, arrays: Sequence[Any], of: set[int], rows: int, *, is_text: bool = False
) -> set[int]:
    """Which of the columns have nothing but values within their bounds, also where they are NULL."""
    found, pieces = [], []
    width, rows = alike.dtype().itemsize, rows + is_text
    for place, least, most in zip(alike.places, alike.least, alike.most, strict=True):
        if place in of:
            values = arrays[place]
            found.append((place, least, most))
            start = values.offset * width
            pieces.append(np.frombuffer(values.buffers()[1], alike.dtype, rows, start))
    if not found:
        return set()
    whole = np.concatenate(pieces).reshape(len(found), rows)
    if is_text:  # offsets
        whole = whole[:, 1:] - whole[:, :-1]
    least_of, most_of = whole.min(axis=1).tolist(), whole.max(axis=1).tolist()
    # A comparison with NaN is false: what is no number is looked at by itself.
    return {
        place
        for (place, least, most), low, high in zip(found, least_of, most_of, strict=True)
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
    # Only `ts` says when a row was made; a process may have started long ago.
    return admitted if column.name == "ts" else Window(to_ms(EPOCH), admitted.most_ms)


def _admitting_ahead_s(column: Column, values: Any, admitted: Window) -> tuple[float, float] | None:
    """As `RefusedBody` has it, of a column that is refused."""
    if column.type is not Type.TIMESTAMP or (column.required and values.null_count):
        return None
    found = _extremes(values.cast(pa.int64()))
    if found is None:
        return None
    bounds = _window_of(column, admitted)
    least_s = (found[1] - bounds.most_ms) / 1000
    most_s = (found[0] - bounds.least_ms) / 1000
    if bounds.least_ms == to_ms(EPOCH):  # whatever a clock shows
        most_s = math.inf if most_s >= 0 else -math.inf
    return (least_s, most_s) if least_s <= most_s else None


def _not_finite(where: str, values: Any) -> str | None:
    # The sum of finite values is finite but for overflow, and costs a tenth of looking at each.
    total = pc.sum(values).as_py()
    if math.isfinite(total):
        return None
    rows = values.length() - values.null_count - (pc.sum(pc.is_finite(values)).as_py() or 0)
    return f"{where}: {rows} rows are NaN or infinite; send NULL where absent" if rows else None


def _wrong_time(where: str, values: Any, admitted: Window) -> str | None:
    milliseconds = values.cast(pa.int64())
    found = _extremes(milliseconds)
    if found is None or (found[0] >= admitted.least_ms and found[1] <= admitted.most_ms):
        return None
    early, late = found[0] < admitted.least_ms, found[1] > admitted.most_ms
    rows = _rows_outside(milliseconds, admitted.least_ms, admitted.most_ms)
    example = _iso(found[0] if early else found[1])
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
    found = _extremes(values)
    if found is None or (found[0] >= limits[0] and found[1] <= limits[1]):
        return None
    rows = _rows_outside(values, *limits)
    example = found[0] if found[0] < limits[0] else found[1]
    return f"{where}: {rows} rows are outside {limits[0]:g} to {limits[1]:g}, such as {example:g}"


def _wrong_text(where: str, values: Any, bytes_max: int) -> str | None:
    found = _extremes(pc.binary_length(values))
    if found is None:
        return None
    if bytes_max == NAME_BYTES_MAX and found[0] < 1:
        return f"{where}: an empty text; it names what the row is about"
    if found[1] > bytes_max:
        return f"{where}: a text of {found[1]} bytes; most is {bytes_max}"
    return None


def _extremes(values: Any) -> tuple[Any, Any] | None:
    both = pc.min_max(values)
    least = both["min"].as_py()
    return None if least is None else (least, both["max"].as_py())


def _rows_outside(values: Any, least: float, most: float) -> int:
    if pa.types.is_integer(values.type):
        # With a float Arrow compares no integer beyond 2**53: it raises.
        reach = 2 ** (values.type.bit_width - 1)
        least = math.ceil(max(least, -reach))
        most = math.floor(min(most, reach - 1))
    outside = pc.or_(pc.less(values, least), pc.greater(values, most))
    return int(pc.sum(outside).as_py() or 0)


def _key_twice(table: Table, data: Any) -> str | None:
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
        f"{table.name}: {twice.num_rows} keys stand more than once, such as {example} {times} times"
    )


def _keys(values: Any) -> list[Any]:
    """The values of a column that is part of a key; times as whole milliseconds, which take less time."""
    if pa.types.is_timestamp(values.type):
        values = values.chunk(0).view(pa.int64())
    found: list[Any] = values.to_pylist()
    return found


def _all_differ(columns: Sequence[Any]) -> bool:
    """Whether no two rows are equal. False may also mean that it cannot be told this way.

    Ten times faster than grouping: each column becomes codes, the codes of a row one number.
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
