"""Reads CSV of `nvidia-smi --query-gpu` and `--query-compute-apps`, with --loop or without.

Lines are read in blocks, as a later line may name the GPU of an earlier one. A file may have other text, repeated
headers, and several queries in sequence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuwarden.schema import WIRE_TABLES
from gpuwarden_importing.cells import split, split_to
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.identity import GPUS_MAX, Identities, LineOrder, ReportedIdentity
from gpuwarden_importing.model import (
    ImportTally,
    Origin,
    Row,
    TableRow,
    UnreadableError,
    Value,
    place_uuid,
)
from gpuwarden_importing.smi_fields import (
    ALWAYS_TOLD,
    APP_FIELDS,
    BUS_ID,
    COUNT,
    CSV_FIELDS,
    DRIVER,
    EVENT_REASONS,
    HOST,
    INDEX,
    INSTANT,
    INSTANT_NOTE,
    KEYS,
    POWER,
    REASONS,
    TIME,
    UUID,
    canonical,
    is_field,
)
from gpuwarden_importing.values import (
    GPUS,
    HEALTH,
    SAMPLES,
    Converter,
    LogField,
    bus_id,
    converter,
    flag,
    text,
)

BLOCK_ROWS = 20_000
_COUNT = converter("count")
_REASONS = (SAMPLES, "clocks_event_reasons")
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_.]*)(?:\s*\[([^\]]+)\])?\Z")
_DATA = re.compile(r"GPU-[0-9a-f]{8}-|\d (?:MiB|MHz|W|%)(?:,|$)|\[(?:N/A|Not Supported)\]")


@dataclass(slots=True)
class CsvLayout:
    """The columns of a header."""

    names: tuple[str, ...]
    delimiter: str = ","
    units: tuple[str, ...] = ()
    is_apps: bool = False
    is_pages: bool = False
    """Whether lines are retired pages."""
    has_no_table: bool = False
    """Whether no table has the rows of the query."""

    def at(self, name: str) -> int | None:
        """Index of a field."""
        return self.names.index(name) if name in self.names else None

    def fields(self) -> list[tuple[int, LogField]]:
        """Index and column of known fields, best first."""
        known = APP_FIELDS if self.is_apps else {} if self.is_pages else CSV_FIELDS
        found = [(at, known[name]) for at, name in enumerate(self.names) if name in known]
        return sorted(found, key=lambda each: each[1].rank)

    def reasons(self) -> list[tuple[int, int]]:
        """Index and bit of columns of single clock event reasons."""
        if self.is_apps:
            return []
        return [
            (at, REASONS[name.removeprefix(EVENT_REASONS)])
            for at, name in enumerate(self.names)
            if name.startswith(EVENT_REASONS) and name.removeprefix(EVENT_REASONS) in REASONS
        ]

    def unmapped(self) -> list[int]:
        """Indices of columns that are not read."""
        read = {at for at, _ in (*self.fields(), *self.reasons())}
        if self.is_pages:
            read |= {at for at, name in enumerate(self.names) if name.startswith("retired_pages.")}
        return [
            at
            for at, name in enumerate(self.names)
            if at not in read and name not in KEYS and not (self.is_apps and name in CSV_FIELDS)
        ]


def layout_of(line: str, *, is_first: bool = False) -> CsvLayout | None:
    """The layout, if the line is a header; a single name is a header only as the first line."""
    for delimiter in (",", ";", "\t"):
        cells = split(line, delimiter)
        found = [_NAME.match(cell.strip().strip('"').strip()) for cell in cells]
        if (len(cells) > 1 or (is_first and delimiter == ",")) and all(found):
            names = [found_[1] for found_ in found if found_]
            units = tuple(found_[2] or "" for found_ in found if found_)
            return _layout(names, delimiter, units)
    return None


def _layout(names: Sequence[str], delimiter: str, units: tuple[str, ...]) -> CsvLayout | None:
    is_apps = "pid" in names
    has_memory = bool({"used_gpu_memory", "used_memory", "max_memory_usage"} & {*names})
    is_pages = "retired_pages.address" in names or "retired_pages.cause" in names
    full = tuple(canonical(name) for name in names)
    if is_apps:
        # In a query of processes "name" is the process's name, not the GPU's.
        full = tuple("process_name" if n == "name" else canonical(n) for n in names)
    if not any(map(is_field, full)) and not (is_apps and has_memory) and not is_pages:
        return None
    return CsvLayout(full, delimiter, units, is_apps, is_pages, is_apps and not has_memory)


def own_names(names: Iterable[str]) -> set[str]:
    """The names that are fields of nvidia-smi, and no columns of tables."""
    columns = {name for table in WIRE_TABLES.values() for name in table.names}
    bare = {name.partition("[")[0].strip() for name in names}
    return {name for name in bare if is_field(name) and name not in columns}


def layout_of_fields(names: Iterable[str]) -> CsvLayout:
    """The layout of --fields. Raises UnreadableError."""
    wanted = [name.strip() for name in names]
    found = _layout(wanted, ",", tuple("" for _ in wanted))
    if found is None:
        raise UnreadableError("none of the names in --fields is a field of nvidia-smi")
    return found


def looks_headless(line: str) -> bool:
    """Whether a line looks like values of nvidia-smi's CSV."""
    return line.count(",") >= 1 and bool(_DATA.search(line))


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`."""
    file = _File(origin, tally)
    layout = layout_of_fields(origin.fields) if origin.fields else None
    if layout is not None:
        _check(layout)
    block: list[tuple[int, list[str]]] = []
    header, is_first = "", True
    for number, line in enumerate(lines, 1):
        if line == header or not line.strip():
            continue
        # A line of values usually begins with a digit; a header never does.
        found = None
        if layout is None or line[:1].isalpha() or line[:1] in '" ':
            found = layout_of(line, is_first=is_first and layout is None)
        is_first = False
        if found is not None:
            if layout is not None:
                yield from file.take(layout, block, is_last=True)
            _check(found)
            layout, block, header = found, [], line
        elif layout is None:
            tally.skip("text before the first header", number)
        elif layout.has_no_table:
            tally.skip("lines of a query without a table", number)
        elif (cells := split_to(len(layout.names), line, layout.delimiter)) is None:
            is_row = layout.delimiter in line
            why = f"not the {len(layout.names)} cells of the header" if is_row else "other text"
            tally.skip(why, number)
        else:
            block.append((number, cells))
            if len(block) >= BLOCK_ROWS:
                yield from file.take(layout, block, is_last=False)
                block = []
    if layout is None:
        raise UnreadableError("it has no header: name its columns with --fields, as in --query-gpu")
    yield from file.take(layout, block, is_last=True)
    yield from file.rest()


def _check(layout: CsvLayout) -> None:
    """Raise UnreadableError when no name is a field of nvidia-smi, which would give GPUs without values."""
    fields = [known for _, known in layout.fields()]
    is_placed = bool({INDEX, BUS_ID} & {*layout.names})
    if layout.has_no_table or layout.is_pages or UUID in layout.names or (fields and is_placed):
        return
    if any(known.table != GPUS for known in fields):
        return
    raise UnreadableError(
        f"none of its columns ({', '.join(layout.names[:6])}) is a value of nvidia-smi: name them with"
        " --fields as in --query-gpu, such as timestamp,index,utilization.gpu, or in the header"
    )


class _Line(NamedTuple):
    """A line with a time."""

    number: int
    cells: list[str]
    ts_ms: int
    node: str
    gpu: Value
    uuid: str


Values = dict[tuple[str, str], Value]
"""Values of a line by table and column."""


class _File(LogFile):
    """A file; it converts blocks of lines."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self._gpus = Identities()
        self._order = LineOrder()
        self._waiting: list[_Line] = []
        """Lines of a round that may go on in the next block."""
        self._averaged: set[str] = set()
        """GPUs that gave an average power."""
        self._pages: dict[str, Row] = {}
        self._addresses: set[tuple[str, str]] = set()
        self._reasons_told = 0xFFFF
        self._has_reasons = False

    def take(
        self, layout: CsvLayout, block: Sequence[tuple[int, list[str]]], *, is_last: bool
    ) -> list[TableRow]:
        """Rows of a block; `is_last`: of its layout."""
        lines = [line for each in block if (line := self._line(layout, *each)) is not None]
        if {UUID, BUS_ID, INDEX} & {*layout.names}:
            lines = self._identified(layout, lines)
        else:
            lines = self._by_order(layout, self._waiting + lines, is_last=is_last)
        if layout.is_pages:
            self._count_pages(layout, lines)
        elif lines:
            self._add_lines(layout, lines)
        for at in layout.unmapped():
            for line in lines:
                self.count_unmapped(layout.names[at], line.cells[at])
        return self.rows()

    def _line(self, layout: CsvLayout, number: int, cells: list[str]) -> _Line | None:
        def value(name: str, convert: Converter) -> Value:
            at = layout.at(name)
            return None if at is None else self.read(name, cells[at], convert, number)

        at = layout.at(TIME)
        ts_ms = self.assumed_time() if at is None else self.time(cells[at].strip(' "\r'), number)
        if ts_ms is None:
            return None
        host = None if self.origin.node else value(HOST, text)
        node = self.origin.node_or(None if host is None else str(host))
        uuid = value(UUID, text)
        return _Line(
            number, cells, ts_ms, node, value(INDEX, _COUNT), "" if uuid is None else str(uuid)
        )

    def _add_lines(self, layout: CsvLayout, lines: Sequence[_Line]) -> None:
        if "max_memory_usage" in layout.names:
            self.tally.note("accounted processes: use and memory are those of their whole lives")
        fields = [
            (at, known, converter(known.quantity, layout.units[at] or known.unit))
            for at, known in layout.fields()
        ]
        reasons, told_bits = layout.reasons(), 0
        for _, bit in reasons:
            told_bits |= bit
        if told_bits and f"{EVENT_REASONS}active" not in layout.names:
            self._reasons_told &= told_bits
            self._has_reasons = True
        readings: list[Values] = []
        for line in lines:
            values: Values = {}
            for at, known, convert in fields:
                value = self.read(layout.names[at], line.cells[at], convert, line.number)
                key = known.table, known.column
                if values.get(key) is None:
                    values[key] = value
            if reasons and values.get(_REASONS) is None:
                values[_REASONS] = self._mask(layout, line, reasons)
            if values.get(POWER) is not None:
                self._averaged.add(line.uuid)
            readings.append(values)
        for line, values in zip(lines, readings, strict=True):
            if values.get(INSTANT) is not None and line.uuid not in self._averaged:
                values[POWER] = values[INSTANT]
                self.tally.note(INSTANT_NOTE)
            rows: dict[str, Row] = {}
            for (table, column), value in values.items():
                rows.setdefault(table, {})[column] = value
            rows.pop(GPUS, None)
            identity: Row = {
                "ts": line.ts_ms,
                "node": line.node,
                "gpu": line.gpu,
                "gpu_uuid": line.uuid,
            }
            for table, row in rows.items():
                self.add(table, identity | row)
        if not layout.is_apps:
            self._add_inventory(layout, lines, readings)

    def _mask(
        self, layout: CsvLayout, line: _Line, reasons: Sequence[tuple[int, int]]
    ) -> int | None:
        """The mask of clock event reasons, of columns of single reasons."""
        mask = None
        for at, bit in reasons:
            is_active = self.read(layout.names[at], line.cells[at], flag, line.number)
            if is_active is not None:
                mask = (mask or 0) | (bit if is_active else 0)
        return mask

    def _count_pages(self, layout: CsvLayout, lines: Sequence[_Line]) -> None:
        """Count retired pages by GPU and cause; a line without an address is not a page."""
        address, cause = layout.at("retired_pages.address"), layout.at("retired_pages.cause")
        if address is None or cause is None:
            raise UnreadableError(
                "ask --query-retired-pages for retired_pages.address,retired_pages.cause"
            )
        for line in lines:
            where = text(line.cells[address])
            if where is None:
                continue
            identity: Row = {"node": line.node, "gpu": line.gpu, "gpu_uuid": line.uuid}
            row = self._pages.setdefault(line.uuid, identity)
            kind = "uncorrected" if "double" in line.cells[cause].lower() else "corrected"
            column = f"retired_pages_{kind}_total"
            page = line.uuid, str(where)
            if row.setdefault("ts", line.ts_ms) != line.ts_ms and page in self._addresses:
                continue  # the same page in a later output
            self._addresses.add(page)
            row["ts"] = line.ts_ms
            row[column] = int(row.get(column) or 0) + 1

    def rest(self) -> Iterator[TableRow]:
        """Hand on the counts of retired pages and the inventory, and note missing reasons."""
        for row in self._pages.values():
            self.add(HEALTH, row)
        yield from super().rest()
        missing = ALWAYS_TOLD & ~self._reasons_told
        if self._has_reasons and missing:
            names = [name for name, bit in REASONS.items() if bit & missing]
            self.tally.note(
                f"clocks_event_reasons cannot hold what was not asked for: {', '.join(names)}"
            )

    def _identified(self, layout: CsvLayout, lines: list[_Line]) -> list[_Line]:
        """The lines with the UUIDs of their GPUs."""
        if all(line.uuid for line in lines):
            return lines
        told = [self._told(layout, line) for line in lines]
        self._note_identity(layout)
        identified = []
        for line, uuid in zip(lines, self._gpus.uuids(told), strict=True):
            if uuid is None:
                self.tally.skip("no GPU is named", line.number)
            else:
                identified.append(line._replace(uuid=uuid))
        return identified

    def _told(self, layout: CsvLayout, line: _Line) -> ReportedIdentity:
        at = layout.at(BUS_ID)
        bus = None if at is None else self.read(BUS_ID, line.cells[at], bus_id, line.number)
        return ReportedIdentity(line.node, line.uuid or None, bus, line.gpu)

    def _by_order(self, layout: CsvLayout, lines: list[_Line], *, is_last: bool) -> list[_Line]:
        """The lines with index and UUID by their order. Raises UnreadableError."""
        if not lines:
            return []
        if layout.is_apps:
            raise UnreadableError(
                "it does not say which GPU a process is on: ask --query-compute-apps for gpu_uuid too"
            )
        if len({line.node for line in lines}) > 1 or (
            TIME not in layout.names and len(lines) > GPUS_MAX
        ):
            raise UnreadableError(
                "it does not say which GPU a line is of: ask --query-gpu for uuid too"
            )
        indices = self._order.indices([line.ts_ms for line in lines], is_last=is_last)
        self._waiting = lines[len(indices) :]
        count = self._order.gpus
        if count == 1:
            note = "all lines are read as one GPU of the node"
        else:
            note = f"each {count} lines are read as so many GPUs by index, in their order"
        self.tally.note(f"no uuid, bus id or index in the file: {note}")
        placed = []
        for line, index in zip(lines, indices, strict=False):
            if index is None:
                self.tally.skip(
                    f"a round of fewer than {count} GPUs, which does not say which is missing",
                    line.number,
                )
                continue
            uuid = place_uuid(None, index, line.node)
            placed.append(line._replace(gpu=index if count > 1 else None, uuid=uuid))
        return placed

    def _note_identity(self, layout: CsvLayout) -> None:
        if UUID in layout.names:
            note = "some lines have no uuid: a PCI bus id or an index identifies the GPU"
        else:
            place = "PCI bus id" if BUS_ID in layout.names else "index"
            note = f"no uuid in the file: the GPU's {place} and its node stand for it"
        self.tally.note(note)

    def _add_inventory(
        self, layout: CsvLayout, lines: Sequence[_Line], readings: Sequence[Values]
    ) -> None:
        last = {line.uuid: at for at, line in enumerate(lines)}
        nodes = {line.node: line for line in lines}

        def fact(line: _Line, name: str, convert: Converter) -> Value:
            at = layout.at(name)
            return None if at is None else self.read(name, line.cells[at], convert, line.number)

        for uuid, at in last.items():
            line, values = lines[at], readings[at]
            gpu: Row = {column: v for (table, column), v in values.items() if table == GPUS}
            gpu["memory_total_bytes"] = values.get((SAMPLES, "memory_total_bytes"))
            gpu |= {"pci_bus_id": fact(line, BUS_ID, bus_id), "vendor": "nvidia", "gpu": line.gpu}
            self._gpus.learn(ReportedIdentity(line.node, uuid, gpu["pci_bus_id"], line.gpu))
            self.inventory.add_gpu(uuid, line.node, gpu)
        for node, line in nodes.items():
            facts = {
                "driver_version": fact(line, DRIVER, text),
                "gpus": fact(line, COUNT, _COUNT),
            }
            self.inventory.add_node(node, facts)
