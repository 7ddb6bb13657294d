"""Reads CSV of `nvidia-smi --query-gpu` and `--query-compute-apps`, with --loop or without.

Blocks of lines are converted by column, each distinct text once, so that a million lines take seconds. A file may
have other text, repeated headers, and several queries in sequence.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden_importing.cells import CellColumn, LineBlock, count_present, filled, split, times
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.identity import GPUS_MAX, Identities, LineOrder, ReportedIdentity
from gpuwarden_importing.model import (
    ImportedRows,
    ImportTally,
    Origin,
    Row,
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
    POWER,
    REASONS,
    TIME,
    UUID,
    canonical,
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
    plain,
    text,
)

BLOCK_ROWS = 20_000
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_.]*)(?:\s*\[([^\]]+)\])?\Z")
_KEYS = frozenset({TIME, INDEX, UUID, BUS_ID, DRIVER, HOST, COUNT})
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
    columns: dict[int, CellColumn] = field(default_factory=dict)

    def column(self, at: int, convert: Converter) -> CellColumn:
        """The column at an index, made once."""
        found = self.columns.get(at)
        if found is None:
            found = self.columns[at] = CellColumn(self.names[at], convert)
        return found

    def block(self) -> LineBlock:
        """An empty block for its lines."""
        return LineBlock(len(self.names), self.delimiter)

    def at(self, name: str) -> int | None:
        """Index of a field."""
        return self.names.index(name) if name in self.names else None

    def fields(self) -> Iterator[tuple[int, LogField]]:
        """Index and column of known fields, best first."""
        known = APP_FIELDS if self.is_apps else {} if self.is_pages else CSV_FIELDS
        found = [(at, known[name]) for at, name in enumerate(self.names) if name in known]
        yield from sorted(found, key=lambda each: each[1].rank)


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
    if not _known(full) and not (is_apps and has_memory) and not is_pages:
        return None
    return CsvLayout(full, delimiter, units, is_apps, is_pages, is_apps and not has_memory)


def _known(names: Iterable[str]) -> set[str]:
    families = (EVENT_REASONS, "ecc.", "clocks.")
    return {n for n in names if n in CSV_FIELDS or n in _KEYS or n.startswith(families)}


def fields_in(header: str) -> int:
    """Number of known fields of nvidia-smi in a header."""
    layout = layout_of(header, is_first=True)
    return len(_known(layout.names)) if layout else 0


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


def read(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`."""
    layout = layout_of_fields(origin.fields) if origin.fields else None
    block = layout.block() if layout else None
    file = _File(origin, tally)
    is_first = True
    header = ""
    if layout is not None:
        _check(layout)
    for number, line in enumerate(lines, 1):
        # A line of values usually begins with a digit; a header never does.
        may_be_header = line[:1].isalpha() or line[:1] in '" '
        if layout is not None and block is not None and line != header:
            found = layout_of(line) if may_be_header else None
            if found is None and (layout.has_no_table or block.add(line, number)):
                if layout.has_no_table and line.strip():
                    tally.skip("lines of a query without a table", number)
                elif len(block.numbers) >= BLOCK_ROWS:
                    yield from file.take(layout, block)
                continue
        else:
            found = layout_of(line, is_first=is_first) if line != header else None
        if line == header or not line.strip():
            continue
        is_first = False
        if found is None:
            tally.skip(_why(line, layout), number)
            continue
        if layout is not None and block is not None:
            yield from file.take(layout, block)
        if layout is None or found.names != layout.names:
            _check(found)
            layout, block = found, found.block()
        header = line
    if layout is None or block is None:
        raise UnreadableError("it has no header: name its columns with --fields, as in --query-gpu")
    yield from file.take(layout, block)
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


def _why(line: str, layout: CsvLayout | None) -> str:
    if layout is None:
        return "text before the first header"
    is_row = layout.delimiter in line
    return f"not the {len(layout.names)} cells of the header" if is_row else "other text"


Values = dict[tuple[str, str], Any]
"""Arrays by table and column."""


class _File(LogFile):
    """A file; it converts blocks of lines."""

    def __init__(self, origin: Origin, tally: ImportTally) -> None:
        super().__init__(origin, tally)
        self._gpus = Identities()
        self._order = LineOrder()
        self._pages: dict[str, Row] = {}
        self._addresses: set[tuple[str, str]] = set()
        self._reasons_told = 0xFFFF
        self._has_reasons = False

    def take(self, layout: CsvLayout, block: LineBlock) -> Iterator[ImportedRows]:
        """Rows of a block."""
        cells, numbers = block.take()
        if not numbers:
            return
        times = self._times(layout, cells, numbers)
        if times.null_count:
            cells, numbers = _rows_of(times.is_valid(), cells, numbers)
            times = times.drop_null()
            if not numbers:
                return
        identity = self._identity(layout, cells, numbers, times)
        if identity["gpu_uuid"].null_count:
            named = identity["gpu_uuid"].is_valid()
            cells, numbers = _rows_of(named, cells, numbers)
            times = times.filter(named)
            identity = {name: column.filter(named) for name, column in identity.items()}
            if not numbers:
                return
        values: Values = {}
        for at, known in layout.fields():
            unit = layout.units[at] or known.unit
            column = layout.column(at, converter(known.quantity, unit))
            _fill(
                values, (known.table, known.column), column.values(cells[at], numbers, self.tally)
            )
        if INSTANT in values and _fill_power(values, identity["gpu_uuid"]):
            self.tally.note(INSTANT_NOTE)
        if layout.is_pages:
            self._count_pages(layout, cells, times.to_pylist(), identity)
            return
        if "max_memory_usage" in layout.names:
            self.tally.note("accounted processes: use and memory are those of their whole lives")
        if not layout.is_apps:
            self._add_reasons(layout, cells, numbers, values)
        for table in sorted({table for table, _ in values} - {GPUS}):
            own = {column: v for (name, column), v in values.items() if name == table}
            yield ImportedRows(table, {"ts": times, **identity, **own})
        if not layout.is_apps:
            self._add_inventory(layout, cells, numbers, values, identity)
        self._count_unmapped(layout, cells)

    def _count_pages(
        self,
        layout: CsvLayout,
        cells: Sequence[Any],
        times: Sequence[int],
        identity: dict[str, Any],
    ) -> None:
        """Count retired pages by GPU and cause; a line without an address is not a page."""
        address, cause = layout.at("retired_pages.address"), layout.at("retired_pages.cause")
        if address is None or cause is None:
            raise UnreadableError(
                "ask --query-retired-pages for retired_pages.address,retired_pages.cause"
            )
        gpus = zip(
            *(identity[name].to_pylist() for name in ("node", "gpu", "gpu_uuid")), strict=True
        )
        said = zip(cells[address].to_pylist(), cells[cause].to_pylist(), strict=True)
        for ts_ms, (node, gpu, uuid), (where, why) in zip(times, gpus, said, strict=True):
            if plain(where) is None:
                continue
            row = self._pages.setdefault(uuid, {"node": node, "gpu": gpu, "gpu_uuid": uuid})
            kind = "uncorrected" if "double" in why.lower() else "corrected"
            column = f"retired_pages_{kind}_total"
            if row.setdefault("ts", ts_ms) != ts_ms and (uuid, where) in self._addresses:
                continue  # the same page in a later output
            self._addresses.add((uuid, where))
            row["ts"] = ts_ms
            row[column] = int(row.get(column) or 0) + 1

    def rest(self) -> Iterator[ImportedRows]:
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

    def _times(self, layout: CsvLayout, cells: Sequence[Any], numbers: Sequence[int]) -> Any:
        at = layout.at(TIME)
        if at is None:
            return pa.array([self.assumed_time()] * len(numbers), pa.int64())
        return times(cells[at], numbers, self.instants, self.tally)

    def _identity(
        self, layout: CsvLayout, cells: Sequence[Any], numbers: Sequence[int], times: Any
    ) -> dict[str, Any]:
        count = len(numbers)

        def column(name: str, convert: Converter) -> Any:
            at = layout.at(name)
            if at is None:
                return pa.nulls(count)
            return layout.column(at, convert).values(cells[at], numbers, self.tally)

        hosts = pa.nulls(count) if self.origin.node else column(HOST, text)
        names = pc.unique(hosts).to_pylist()
        named = {host: self.origin.node_or(host) for host in names}
        nodes = pa.array([named[host] for host in hosts.to_pylist()], pa.string())
        indices, uuids = column(INDEX, converter("count")), column(UUID, text)
        if not {UUID, BUS_ID, INDEX} & {*layout.names}:
            indices, uuids = self._by_order(layout, nodes.to_pylist(), times.to_pylist())
        elif uuids.null_count:
            told = (nodes, uuids, column(BUS_ID, bus_id), indices)
            lines = map(
                ReportedIdentity._make, zip(*(each.to_pylist() for each in told), strict=True)
            )
            uuids = pa.array(self._gpus.uuids(lines), pa.string())
            self._note_identity(layout)
            for number, is_named in zip(numbers, uuids.is_valid().to_pylist(), strict=True):
                if not is_named:
                    self.tally.skip("no GPU is named", number)
        return {"node": nodes, "gpu": indices, "gpu_uuid": uuids}

    def _by_order(
        self, layout: CsvLayout, nodes: Sequence[str], times: Sequence[int]
    ) -> tuple[Any, Any]:
        """Indices and UUIDs by the order of lines. Raises UnreadableError."""
        if layout.is_apps:
            raise UnreadableError(
                "it does not say which GPU a process is on: ask --query-compute-apps for gpu_uuid too"
            )
        if len({*nodes}) > 1 or (TIME not in layout.names and len(times) > GPUS_MAX):
            raise UnreadableError(
                "it does not say which GPU a line is of: ask --query-gpu for uuid too"
            )
        found = self._order.indices(times)
        if self._order.gpus == 1:
            note = "all lines are read as one GPU of the node"
        else:
            note = (
                f"each {self._order.gpus} lines are read as so many GPUs by index, in their order"
            )
        self.tally.note(f"no uuid, bus id or index in the file: {note}")
        named = [place_uuid(None, i, node) for i, node in zip(found, nodes, strict=True)]
        return pa.array(
            found if self._order.gpus > 1 else [None] * len(found), pa.int64()
        ), pa.array(named)

    def _note_identity(self, layout: CsvLayout) -> None:
        if UUID in layout.names:
            note = "some lines have no uuid: a PCI bus id or an index identifies the GPU"
        else:
            place = "PCI bus id" if BUS_ID in layout.names else "index"
            note = f"no uuid in the file: the GPU's {place} and its node stand for it"
        self.tally.note(note)

    def _add_reasons(
        self, layout: CsvLayout, cells: Sequence[Any], numbers: Sequence[int], values: Values
    ) -> None:
        """Make the mask of clock event reasons from columns of single reasons."""
        told_bits = 0
        mask = pa.nulls(len(numbers), pa.int64())
        for at, name in enumerate(layout.names):
            bit = REASONS.get(name.removeprefix(EVENT_REASONS))
            if bit is None or not name.startswith(EVENT_REASONS):
                continue
            told_bits |= bit
            flags = layout.column(at, flag).values(cells[at], numbers, self.tally)
            bits = pc.multiply(flags.cast(pa.bool_()).cast(pa.int64()), bit)
            both = pc.add(pc.fill_null(mask, 0), pc.fill_null(bits, 0))
            mask = pc.if_else(pc.or_(pc.is_valid(mask), pc.is_valid(bits)), both, mask)
        if not told_bits:
            return
        key = (SAMPLES, "clocks_event_reasons")
        if key not in values:
            self._reasons_told &= told_bits
            self._has_reasons = True
        _fill(values, key, mask)

    def _add_inventory(
        self,
        layout: CsvLayout,
        cells: Sequence[Any],
        numbers: Sequence[int],
        values: Values,
        identity: dict[str, Any],
    ) -> None:
        last = {uuid: row for row, uuid in enumerate(identity["gpu_uuid"].to_pylist())}
        nodes = {node: row for row, node in enumerate(identity["node"].to_pylist())}
        columns: dict[str, Any] = {}
        for name, convert in ((BUS_ID, bus_id), (DRIVER, text), (COUNT, converter("count"))):
            if (at := layout.at(name)) is not None:
                column = layout.column(at, convert)
                columns[name] = column.values(cells[at], numbers, self.tally)

        def told_of(name: str, row: int) -> Value:
            value: Value = columns[name][row].as_py() if name in columns else None
            return value

        for uuid, row in last.items():
            gpu: Row = {c: v[row].as_py() for (table, c), v in values.items() if table == GPUS}
            total = values.get((SAMPLES, "memory_total_bytes"))
            gpu["memory_total_bytes"] = None if total is None else total[row].as_py()
            gpu |= {"pci_bus_id": told_of(BUS_ID, row), "vendor": "nvidia"}
            gpu["gpu"] = identity["gpu"][row].as_py()
            node = identity["node"][row].as_py()
            self._gpus.learn(ReportedIdentity(node, uuid, gpu["pci_bus_id"], gpu["gpu"]))
            self.inventory.add_gpu(uuid, node, gpu)
        for node, row in nodes.items():
            facts = {"driver_version": told_of(DRIVER, row), "gpus": told_of(COUNT, row)}
            self.inventory.add_node(node, facts)

    def _count_unmapped(self, layout: CsvLayout, cells: Sequence[Any]) -> None:
        known = {at for at, _ in layout.fields()} | layout.columns.keys()
        for at, name in enumerate(layout.names):
            if at in known or name in _KEYS or (layout.is_apps and name in CSV_FIELDS):
                continue
            if count := count_present(cells[at]):
                self.tally.unmapped[name] += count


def _rows_of(
    kept: Any, cells: Sequence[Any], numbers: Sequence[int]
) -> tuple[list[Any], list[int]]:
    """Cells and numbers of the lines in a mask."""
    return [column.filter(kept) for column in cells], pa.array(numbers).filter(kept).to_pylist()


def _fill_power(values: Values, uuids: Any) -> bool:
    """Give GPUs without any average the instant reading as `power_watts`; whether there were such."""
    instant = values[INSTANT]
    before = values.get(POWER, pa.nulls(len(instant)))
    averaged = pc.is_in(uuids, value_set=pc.unique(uuids.filter(before.is_valid())))
    known = filled(before, pc.if_else(averaged, None, instant))
    if known.null_count == before.null_count:
        return False
    values[POWER] = known
    return True


def _fill(values: Values, key: tuple[str, str], said: Any) -> None:
    """Set a column, or fill its NULLs."""
    values[key] = filled(values[key], said) if key in values else said
