"""Expands blocks of a test file into rows of a table.

    {node: n1, gpu: 0, gpu_uuid: GPU-a, every: 1m, for: 2h, util_percent: "90x59 0x59", pstate: 0}

A block makes a row each `every`, from `from` (default 0s) on; numeric columns take a number (every
row the same) or notation, which must give as many values as the others or as `for`
says; `_` is NULL. Other columns take one value; instants are offsets from the case's start, as in
`started_at: -2h`. Without `every` a block is one row. A column that is not named is NULL.

The notation is promtool's expanding notation:

    7            7                      7x3          7 7 7 7 (the value, then three more)
    0+60x3       0 60 120 180           100-10x2     100 90 80
    _            no value (NULL)        _x3          three without a value
    91 92 _ 95   several, in order

As in promtool, `ax3` is four values and `_x3` is three. Numbers may have a fraction and an exponent.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from yaml.nodes import Node, ScalarNode

from gpuwarden.durations import seconds_of
from gpuwarden.metrics import Type
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden.table import LIST, MAP, Column, Table
from gpuwarden_rules.definition.yaml_positions import YamlReader

Rows = dict[str, list[dict[str, Any]]]

TIMING = ("every", "from", "for")
ROWS_MAX = 1_000_000
_NUMERIC = (Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64)
_PLAIN = re.compile(r"[-+]?\d+(\.\d+)?\Z")
_REQUIRED: dict[Type, Any] = {
    Type.STRING: "",
    Type.BOOL: False,
    **dict.fromkeys((Type.INT16, Type.INT32, Type.INT64), 1),
}
_EMPTY: dict[str, Any] = {LIST: (), MAP: {}}
"""Values of required columns that a block does not name."""


def rows_of(reader: YamlReader, node: Node | None, start: datetime) -> Rows:
    """Rows by table of a case's `tables`; problems are noted in the reader."""
    rows: Rows = {}
    for name, (key, blocks) in reader.entries(node).items():
        table = TABLES.get(name)
        if table is None:
            reader.note(key, f"unknown table {name!r}; known: {', '.join(TABLES)}")
            continue
        for block in reader.items(blocks):
            rows.setdefault(name, []).extend(_block(reader, block, table, start))
    return rows


def offset_s(reader: YamlReader, node: Node | None) -> float:
    """Seconds of an offset such as `35m` or `-2h`; 0 without a node, or where a problem was noted."""
    value = reader.scalar(node)
    if value == 0 and value is not False:
        return 0.0
    text = value if isinstance(value, str) else ""
    seconds = seconds_of(text.removeprefix("-"))
    if node is not None and value is not None and seconds is None:
        reader.note(node, f"{value!r} is not an offset; write 90s, 10m, 2h or -1d")
    return (seconds or 0.0) * (-1 if text.startswith("-") else 1)


def _block(reader: YamlReader, node: Node, table: Table, start: datetime) -> list[dict[str, Any]]:
    columns = {column.name: column for column in stored_columns(table)}
    own_time = ("ts",) if "ts" in columns else ()
    settable = [name for name in columns if name not in own_time]
    timing = TIMING if own_time else ()
    nodes = reader.fields(node, optional=(*settable, *timing))
    values = {
        name: _value(reader, nodes[name], column, start)
        for name, column in columns.items()
        if name in nodes and name not in own_time
    }
    count = _count(reader, node, nodes, values)
    fixed = {
        c.name: _EMPTY[c.nested] if c.nested else _REQUIRED[c.type]
        for c in columns.values()
        if c.required and c.type in _REQUIRED
    }
    every_s = offset_s(reader, nodes.get("every"))
    from_s = offset_s(reader, nodes.get("from"))
    rows = []
    for i in range(count):
        row = {**fixed, **{k: v[i] if isinstance(v, list) else v for k, v in values.items()}}
        if own_time:
            row["ts"] = start + timedelta(seconds=from_s + i * every_s)
        rows.append(row)
    return rows


def _value(reader: YamlReader, node: Node, column: Column, start: datetime) -> Any:
    """One value for all rows, or a list of values."""
    if column.type is Type.TIMESTAMP:
        return start + timedelta(seconds=offset_s(reader, node))
    if column.type in _NUMERIC and isinstance(node, ScalarNode) and not _PLAIN.match(node.value):
        # The node's text, because YAML reads an unquoted 0x59 as a hexadecimal number.
        try:
            return expand(node.value)
        except ValueError as error:
            reader.note(node, str(error))
            return []
    if column.nested == LIST:
        return tuple(reader.text(of) or "" for of in reader.items(node))
    if column.nested:
        return {key: reader.text(of) or "" for key, (_, of) in reader.entries(node).items()}
    value = reader.scalar(node)
    wanted: Any = {Type.STRING: str, Type.BOOL: bool}.get(column.type, int | float)
    is_wrong = not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)
    if value is not None and is_wrong:
        reader.note(node, f"{column.name} is {column.type.value}, not {value!r}")
    return value


def _count(
    reader: YamlReader, node: Node, nodes: Mapping[str, Node], values: Mapping[str, Any]
) -> int:
    """Rows of a block; 0 where a problem was noted."""
    lengths = {name: len(value) for name, value in values.items() if isinstance(value, list)}
    if "every" not in nodes:
        for name in (*lengths, *({"for"} & nodes.keys())):
            reader.note(nodes[name], f"{name} needs `every` beside it")
        return 0 if lengths else 1
    every_s = offset_s(reader, nodes["every"])
    if every_s <= 0:
        reader.note(nodes["every"], "must be above 0")
        return 0
    if "for" in nodes:
        wanted = round(offset_s(reader, nodes["for"]) / every_s)
    else:
        wanted = max(lengths.values(), default=0)
    uneven = [name for name, length in lengths.items() if length != wanted]
    for name in uneven:
        reader.note(nodes[name], f"{name} has {lengths[name]} values, the block {wanted} rows")
    if not lengths and "for" not in nodes:
        reader.note(node, "`every` needs notation in a column, or `for`")
    if wanted > ROWS_MAX:
        reader.note(node, f"more than {ROWS_MAX} rows")
    return wanted if 0 < wanted <= ROWS_MAX and not uneven else 0


VALUES_MAX = 1_000_000
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_PART = re.compile(
    rf"(?:(?P<gap>_)|(?P<start>{_NUMBER})(?P<step>[-+](?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)?)(?:x(?P<times>\d{{1,7}}))?\Z"
)


def expand(text: str) -> list[float | None]:
    """The values that the notation stands for. Raises ValueError naming the part that is wrong."""
    values: list[float | None] = []
    for part in text.split():
        match = _PART.match(part)
        if match is None:
            raise ValueError(f"{part!r} is not notation: write 5, 5x10, 0+60x10, _ or _x10")
        times = match["times"]
        if match["step"] and times is None:
            raise ValueError(f"{part!r} has a step but no xN")
        if len(values) + int(times or 1) > VALUES_MAX:
            raise ValueError(f"{part!r} makes more than {VALUES_MAX} values")
        if match["gap"]:
            values += [None] * int(times or 1)
        else:
            start, step = float(match["start"]), float(match["step"] or 0)
            values += [start + step * i for i in range(int(times or 0) + 1)]
    return values
