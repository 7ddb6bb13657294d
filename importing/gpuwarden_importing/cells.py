"""Splits lines of CSV into cells."""

import csv
import re

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


def split_to(width: int, line: str, delimiter: str) -> list[str] | None:
    """The cells of a line, if it has so many."""
    cells = split(line, delimiter)
    if len(cells) == width + 1:
        # Python's logging writes a comma before the milliseconds, as ISO 8601 allows.
        cells = split(_COMMA_TIME.sub(r"\1.\2", line, count=1), delimiter)
    return cells if len(cells) == width else None
