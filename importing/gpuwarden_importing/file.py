"""Collects what one file gives: rows until they are handed on, inventory, timestamps and what was skipped."""

from collections.abc import Iterator

from gpuwarden_importing.instants import Instants
from gpuwarden_importing.model import ImportedInventory, ImportTally, Origin, Row, TableRow, Value
from gpuwarden_importing.values import Converter, plain

_MEMO_MAX = 200_000


class LogFile:
    """A file while it is read; readers extend it."""

    def __init__(self, origin: Origin, tally: ImportTally, now_ms: int | None = None) -> None:
        """`now_ms`: for timestamps without a year, as in `Instants`."""
        self.origin = origin
        self.tally = tally
        self.instants = Instants(origin.zone, now_ms=now_ms)
        self.inventory = ImportedInventory()
        self._rows: list[TableRow] = []
        self._memo: dict[tuple[Converter, str], Value] = {}

    def add(self, table: str, row: Row) -> None:
        """Keep a row."""
        self._rows.append((table, row))

    def rows(self) -> list[TableRow]:
        """Hand on the rows that were added since the last time."""
        rows, self._rows = self._rows, []
        return rows

    def rest(self) -> Iterator[TableRow]:
        """Hand on the last rows and the inventory, and note the assumed zone."""
        yield from self.rows()
        yield from self.inventory.rows()
        self.note_zone()

    def note_zone(self) -> None:
        """Note which zone timestamps without a zone were read in."""
        if self.instants.has_assumed_zone:
            name = self.instants.odd_zone
            odd = f" ({name} is the name of several)" if name else ""
            self.tally.note(
                f"timestamps without a zone are taken as {self.origin.zone}{odd}: --timezone says else"
            )

    def read(self, name: str, text: str, convert: Converter, line: int) -> Value:
        """A value; None, counted as skipped, where it is not understood."""
        key = convert, text
        if key in self._memo:
            return self._memo[key]
        try:
            value = convert(text)
        except ValueError as error:
            self.tally.skip(f"{name} {error}", line)
            return None
        if len(self._memo) >= _MEMO_MAX:
            self._memo.clear()
        self._memo[key] = value
        return value

    def count_unmapped(self, name: str, text: str) -> None:
        """Count a value that has no column, if it is one."""
        if plain(text) is not None:
            self.tally.unmapped[name] += 1

    def time(self, text: str, line: int) -> int | None:
        """A timestamp in milliseconds; None, counted as skipped, where it is not understood."""
        try:
            ts_ms = self.instants.parse(text)
        except ValueError as error:
            self.tally.skip(f"timestamp {error}", line)
            return None
        if ts_ms is None:
            self.tally.skip("timestamp is absent", line)
        return ts_ms

    def assumed_time(self) -> int:
        """The time of rows without a timestamp, which is noted. Raises UnreadableError."""
        self.tally.note(f"no timestamps: all rows get the time {self.origin.at_source}")
        return self.origin.at()
