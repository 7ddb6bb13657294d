"""Converts lines of CSV to columns, each distinct text once, so that a million lines take seconds.

pyarrow parses blocks of lines with equal numbers of cells. The lines of a block are chosen first, which costs 0.3 of
10 s of CPU for a million lines: pyarrow stops at repeated headers and other text, and splits a timestamp at its
comma.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from gpuwarden_importing.instants import Instants
from gpuwarden_importing.model import ImportTally, Value
from gpuwarden_importing.values import Converter, plain

_MEMO_MAX = 200_000
_OWN_TIMES = r"^\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:[0-5]\d(\.\d{1,3})?$"
"""Timestamps of nvidia-smi: each minute is parsed once, seconds are numbers."""


_COMMA_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d),(\d{1,9})(?=\s*(?:Z|[+-]\d\d:?\d\d)?\"?\s*[,\r\n])"
)


def split(line: str, delimiter: str) -> list[str]:
    """The cells of a line."""
    if '"' in line:
        try:
            return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            pass
    return line.rstrip("\r\n").split(delimiter)


@dataclass(slots=True)
class LineBlock:
    """Lines with the same number of cells, until `take`."""

    width: int
    delimiter: str
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, line: str, number: int) -> bool:
        """Add a line; False: it has another number of cells."""
        if line.count(self.delimiter) != self.width - 1 or '"' in line:
            cells = split(line, self.delimiter)
            if len(cells) == self.width + 1:
                # Python's logging writes a comma before the milliseconds, as ISO 8601 allows.
                cells = split(_COMMA_TIME.sub(r"\1.\2", line, count=1), self.delimiter)
            if len(cells) != self.width:
                return False
            # Delimiters between quotes become blanks.
            bare = [re.sub(rf"[{self.delimiter}\r\n]", " ", c).replace('"', "") for c in cells]
            line = self.delimiter.join(bare) + "\n"
        self.lines.append(line)
        self.numbers.append(number)
        return True

    def take(self) -> tuple[list[Any], list[int]]:
        """Dictionary-encoded columns of texts, and the line numbers."""
        text, numbers = "".join(self.lines), self.numbers
        self.lines, self.numbers = [], []
        if not numbers:
            return [pa.array([], pa.string()).dictionary_encode()] * self.width, []
        return _parsed(text, self.width, self.delimiter, len(numbers)), numbers


def _parsed(text: str, width: int, delimiter: str, count: int) -> list[Any]:
    names = [str(at) for at in range(width)]
    content = text.encode(errors="replace")
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(content),
            arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(content) + 1
            ),
            arrow_csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string())),
                strings_can_be_null=False,
            ),
        )
        if table.num_rows == count:
            return [column.combine_chunks() for column in table.columns]
    except pa.ArrowException:
        pass  # such as a carriage return in a line, which changes its count of lines
    rows = [line.rstrip("\r\n").split(delimiter) for line in text.split("\n")[:count]]
    return [
        pa.array([row[at] if at < len(row) else "" for row in rows]).dictionary_encode()
        for at in range(width)
    ]


@dataclass(slots=True)
class CellColumn:
    """A column of a CSV, with a memo of converted texts."""

    name: str
    convert: Converter
    memo: dict[str, Value] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """Reasons by text that was not understood."""

    def values(self, cells: Any, numbers: Sequence[int], tally: ImportTally) -> Any:
        """Values of the cells; NULL, counted as skipped, for texts that are not understood."""
        texts = cells.dictionary.to_pylist()
        if len(self.memo) > _MEMO_MAX:
            self.memo.clear()
            self.wrong.clear()
        found = [self._value(text) for text in texts]
        bad = {at for at, text in enumerate(texts) if text in self.wrong}
        if bad:
            for index, number in zip(cells.indices.to_pylist(), numbers, strict=True):
                if index in bad:
                    tally.skip(f"{self.name} {self.wrong[texts[index]]}", number)
        return natural(found).take(cells.indices)

    def _value(self, text: str) -> Value:
        if text in self.memo:
            return self.memo[text]
        try:
            value = self.convert(text)
        except ValueError as error:
            value, self.wrong[text] = None, str(error)
        self.memo[text] = value
        return value


def natural(values: Sequence[Value]) -> Any:
    """An array in the type of the values."""
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeError, OverflowError):
        return pa.array(
            [v.encode(errors="replace").decode() if isinstance(v, str) else v for v in values]
        )


def filled(before: Any, said: Any) -> Any:
    """`before`, with its NULLs filled from `said`."""
    if pa.types.is_null(before.type):
        return said
    if pa.types.is_null(said.type):
        return before
    if before.type != said.type:
        before, said = before.cast(pa.float64()), said.cast(pa.float64())
    return pc.coalesce(before, said)


def count_present(cells: Any) -> int:
    """Number of cells that have a value."""
    says = pa.array([plain(text) is not None for text in cells.dictionary.to_pylist()], pa.bool_())
    return int(pc.sum(says.take(cells.indices)).as_py() or 0)


def times(cells: Any, numbers: Sequence[int], instants: Instants, tally: ImportTally) -> Any:
    """Milliseconds since the epoch; NULL, counted as skipped, for texts that are not a timestamp."""
    texts = pc.utf8_trim(cells.dictionary, ' "\r')
    if len(texts) and pc.all(pc.match_substring_regex(texts, _OWN_TIMES)).as_py():
        minutes = pc.utf8_slice_codeunits(texts, 0, 16).dictionary_encode()
        starts = [_read(text, instants) for text in minutes.dictionary.to_pylist()]
        seconds = pc.utf8_slice_codeunits(texts, 17).cast(pa.float64())
        parts = pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())
        found = pc.add(pa.array([s[0] for s in starts], pa.int64()).take(minutes.indices), parts)
        whys = {s[1] for s in starts}
        if whys == {""}:
            return found.take(cells.indices)
    read = [_read(text, instants) for text in texts.to_pylist()]
    for index, number in zip(cells.indices.to_pylist(), numbers, strict=True):
        if why := read[index][1]:
            tally.skip(f"timestamp {why}", number)
    return pa.array([ts_ms for ts_ms, _ in read], pa.int64()).take(cells.indices)


def _read(text: str, instants: Instants) -> tuple[int | None, str]:
    """The timestamp, or the reason why there is none."""
    try:
        ts_ms = instants.parse(text)
    except ValueError as error:
        return None, str(error)
    return ts_ms, "" if ts_ms is not None else "is absent"
