"""Lines of CSV to columns, each text converted once: what makes a million lines take seconds.

pyarrow parses blocks of lines with as many cells each. Which lines these are is decided before, for 0.3 of the
10 s of CPU of a million lines: pyarrow by itself stops at a header in mid-file and at other text, and takes
the comma of a time for the end of a cell.
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
"""Times as nvidia-smi writes them: read by the minute, seconds as numbers."""


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
    """Lines of as many cells each, until they are taken."""

    width: int
    delimiter: str
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, line: str, number: int) -> bool:
        """Keep a line; False: it has not as many cells."""
        if line.count(self.delimiter) != self.width - 1 or '"' in line:
            cells = split(line, self.delimiter)
            if len(cells) == self.width + 1:
                # ISO 8601 allows a comma before the part of a second, as Python's logging writes it.
                cells = split(_COMMA_TIME.sub(r"\1.\2", line, count=1), self.delimiter)
            if len(cells) != self.width:
                return False
            # Without the delimiters that stood between quotes.
            bare = [re.sub(rf"[{self.delimiter}\r\n]", " ", c).replace('"', "") for c in cells]
            line = self.delimiter.join(bare) + "\n"
        self.lines.append(line)
        self.numbers.append(number)
        return True

    def take(self) -> tuple[list[Any], list[int]]:
        """Columns of texts, dictionary-encoded, and the numbers of the lines."""
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
        pass  # a carriage return within a line, and whatever else makes it count lines differently
    rows = [line.rstrip("\r\n").split(delimiter) for line in text.split("\n")[:count]]
    return [
        pa.array([row[at] if at < len(row) else "" for row in rows]).dictionary_encode()
        for at in range(width)
    ]


@dataclass(slots=True)
class CellColumn:
    """One column of a CSV, and what its texts were found to mean."""

    name: str
    convert: Converter
    memo: dict[str, Value] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """Texts that were not understood, and why."""

    def values(self, cells: Any, numbers: Sequence[int], tally: ImportTally) -> Any:
        """The cells' values; null also for what is not understood, which is counted."""
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
    """An array of the values' own type."""
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeError, OverflowError):
        return pa.array(
            [v.encode(errors="replace").decode() if isinstance(v, str) else v for v in values]
        )


def filled(before: Any, said: Any) -> Any:
    """`before`, and what is absent there from `said`."""
    if pa.types.is_null(before.type):
        return said
    if pa.types.is_null(said.type):
        return before
    if before.type != said.type:
        before, said = before.cast(pa.float64()), said.cast(pa.float64())
    return pc.coalesce(before, said)


def told(cells: Any) -> int:
    """How many of the cells say something."""
    says = pa.array([plain(text) is not None for text in cells.dictionary.to_pylist()], pa.bool_())
    return int(pc.sum(says.take(cells.indices)).as_py() or 0)


def times(cells: Any, numbers: Sequence[int], instants: Instants, tally: ImportTally) -> Any:
    """Milliseconds since the epoch; null where a timestamp is none, which is counted."""
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
    """The time, or why there is none."""
    try:
        ts_ms = instants.parse(text)
    except ValueError as error:
        return None, str(error)
    return ts_ms, "" if ts_ms is not None else "is absent"
