"""Rows as a table for people, or as JSON or CSV for programs, or as Markdown for a page.

Every command's parser loads this module, an agent's as well, so that what one form needs is imported
by that form.
"""

import io
import json
import re
import sys
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

FORMATS = ("table", "json", "csv")
ROW_FORMATS = (*FORMATS, "ndjson", "markdown")
"""All that `render` makes."""
ABSENT = "–"
_PLAN = "explain_value"
"""Column with what EXPLAIN draws, whose lines are kept; elsewhere they could pass for rows."""
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z\Z")


def terminal_width() -> int | None:
    """Columns of the terminal that reads our output; None where a program or a file does."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def counted(number: int, noun: str) -> str:
    """`1 node`, `20 nodes`, `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


def render(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], form: str, *, width: int | None = None
) -> str:
    """Text of `form`, one of FORMATS, ndjson or markdown. None is absent: –, null or nothing.

    A table folds its last column to fit into `width`.
    """
    match form:
        case "json":
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            return json.dumps(records, ensure_ascii=False, indent=2, default=str) + "\n"
        case "csv":
            import csv

            out = io.StringIO()
            # Python before 3.13 does not quote a lone carriage return, which readers take for a line end.
            is_odd = any("\r" in value for row in rows for value in row if isinstance(value, str))
            writer = csv.writer(
                out, lineterminator="\n", quoting=csv.QUOTE_ALL if is_odd else csv.QUOTE_MINIMAL
            )
            writer.writerow(columns)
            writer.writerows(rows)
            return out.getvalue()
        case "ndjson":
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            lines = (json.dumps(record, ensure_ascii=False, default=str) for record in records)
            return "".join(f"{line}\n" for line in lines)
        case "markdown":
            lines = (_markdown(cells) for cells in (columns, ["---"] * len(columns), *rows))
            return "".join(f"{line}\n" for line in lines)
        case _:
            return _table(columns, rows, width)


def _markdown(cells: Sequence[Any]) -> str:
    """A line of a table, as GitHub reads it."""
    texts = (_cell(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


LAST_COLUMN_MIN = 30
"""A column folded to less would be harder to read than a line that the terminal wraps."""


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None) -> str:
    drawn = [name == _PLAN for name in columns]
    cells = [[_cell(v, keeps_lines=d) for v, d in zip(row, drawn, strict=True)] for row in rows]
    if width is not None:
        cells = _folded(columns, cells, width)
    cells = _split(cells)
    widths = [
        max([_width(name), *(_width(row[i]) for row in cells)]) for i, name in enumerate(columns)
    ]
    numeric = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows) and bool(rows)
        for i in range(len(columns))
    ]

    def line(texts: Sequence[str]) -> str:
        padded = (
            _padded(text, width, right)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    ruler = ["─" * width for width in widths]
    return "\n".join([line(columns), line(ruler), *(line(row) for row in cells)]) + "\n"


def _split(cells: list[list[str]]) -> list[list[str]]:
    """The rows, those with texts of several lines as so many rows."""
    rows = []
    for row in cells:
        lines = [text.split("\n") for text in row]
        rows += [list(parts) for parts in zip_longest(*lines, fillvalue="")]
    return rows


def _folded(columns: Sequence[str], cells: list[list[str]], width: int) -> list[list[str]]:
    """The rows with texts of the last column cut into lines that fit."""
    before = [max([_width(n), *(_width(r[i]) for r in cells)]) for i, n in enumerate(columns[:-1])]
    room = max(width - sum(before) - 2 * len(before), LAST_COLUMN_MIN)
    lines = []
    for *first, last in cells:
        folded = [last] if "\n" in last else wrap(last, room)
        for number, text in enumerate(folded or [""]):
            lines.append([*(first if number == 0 else [""] * len(first)), text])
    return lines


def _cell(value: Any, *, keeps_lines: bool = False) -> str:
    match value:
        case None:
            return ABSENT
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
        case list() | dict():
            return json.dumps(value, ensure_ascii=False, default=str)
    text = str(value)
    if stamp := _MIDNIGHT.match(text):
        fraction = (stamp[3] or "").rstrip("0").rstrip(".")
        return f"{stamp[1]} {stamp[2]}{fraction}"
    # Control characters could move the cursor or recolour the terminal.
    if keeps_lines:
        return "\n".join(_cell(line) for line in text.rstrip("\n").split("\n"))
    return "".join(c if c.isprintable() else " " if c in "\n\r\t" else "�" for c in text)


def _width(text: str) -> int:
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    gap = " " * (width - _width(text))
    return gap + text if right else text + gap
