"""Renders rows as a table for people, as JSON or CSV for programs, or as Markdown.

Every command loads this module, also the agent's, so a format imports what it needs when it is used.
"""

import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from gpuwarden.untrusted_text import escaped_json, printable, without_formula

FORMATS = ("table", "json", "csv")
ROW_FORMATS = (*FORMATS, "ndjson", "markdown")
"""The formats of `render`."""
ABSENT = "–"
_PLAN = "explain_value"
"""The column of EXPLAIN, whose line breaks are kept; in other columns a line could pass for a row."""
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?Z\Z")


def terminal_width() -> int | None:
    """Width of the terminal on standard output; None when it is not a terminal."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def counted(number: int, noun: str) -> str:
    """`1 node`, `20 nodes`, `2 batches`."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


def render(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], form: str, *, width: int | None = None
) -> str:
    """Text of rows in `form`, one of ROW_FORMATS. None becomes –, null or an empty cell.

    A table folds texts to fit `width`; if they cannot fit, each cell gets a line.
    """
    match form:
        case "json":
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            return (
                escaped_json(json.dumps(records, ensure_ascii=False, indent=2, default=str)) + "\n"
            )
        case "csv":
            import csv

            out = io.StringIO()
            # Python before 3.13 does not quote a single carriage return, which readers take as a line end.
            is_odd = any("\r" in value for row in rows for value in row if isinstance(value, str))
            writer = csv.writer(
                out, lineterminator="\n", quoting=csv.QUOTE_ALL if is_odd else csv.QUOTE_MINIMAL
            )
            writer.writerow(columns)
            writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
            return out.getvalue()
        case "ndjson":
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            lines = (json.dumps(record, ensure_ascii=False, default=str) for record in records)
            return "".join(f"{escaped_json(line)}\n" for line in lines)
        case "markdown":
            lines = (_markdown(cells) for cells in (columns, ["---"] * len(columns), *rows))
            return "".join(f"{line}\n" for line in lines)
        case _:
            return _table(columns, rows, width)


def _csv_cell(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    return printable(without_formula(cell), keeps="\n\r\t")


def _markdown(cells: Sequence[Any]) -> str:
    """A line of a Markdown table."""
    texts = (_cell(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


FOLDED_MIN = 12
"""Least width of a folded column; below it a list of cells is easier to read."""
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_COLOURS = {
    **dict.fromkeys(("critical", "firing", "failed", "lost"), "31"),
    **dict.fromkeys(("warning", "pending", "silent"), "33"),
    ABSENT: "2",
}
"""Cells that are coloured on a terminal: red, yellow and dim."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def is_coloured() -> bool:
    """Whether standard output is a terminal that shows colours (https://no-color.org)."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


def without_colour(text: str) -> str:
    """The text without escape sequences."""
    return _ESCAPE.sub("", text)


def _coloured(text: str, code: str | None, is_wanted: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if is_wanted and code else text


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None) -> str:
    drawn = [name == _PLAN for name in columns]
    cells = _split(
        [[_cell(v, keeps_lines=d) for v, d in zip(row, drawn, strict=True)] for row in rows]
    )
    widths = [
        max([text_width(name), *(text_width(row[i]) for row in cells)])
        for i, name in enumerate(columns)
    ]
    numeric = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows) and bool(rows)
        for i in range(len(columns))
    ]
    is_colour = width is not None and is_coloured()
    lines = cells
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        whole = [
            is_number or drawn[i] or all(_STAMP.match(row[i]) or row[i] == ABSENT for row in cells)
            for i, is_number in enumerate(numeric)
        ]
        fitting = _fitting(columns, widths, whole, width)
        if fitting is None and rows and not any(drawn):
            return _records(columns, cells, width, is_colour)
        widths = fitting or widths
        lines = [line for row in cells for line in _folded(row, widths)]

    def line(texts: Sequence[str], code: str | None = None) -> str:
        padded = [
            _coloured(_padded(text, width, right), code or _COLOURS.get(text), is_colour)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    ruler = ["─" * width for width in widths]
    heads = zip_longest(
        *(_wrapped(name, width) for name, width in zip(columns, widths, strict=True))
    )
    head = [line([part or "" for part in parts], "1") for parts in heads]
    return "\n".join([*head, line(ruler, "2"), *(line(row) for row in lines)]) + "\n"


def _split(cells: list[list[str]]) -> list[list[str]]:
    """The rows; a row with texts of several lines becomes several rows."""
    rows = []
    for row in cells:
        lines = [text.split("\n") for text in row]
        rows += [list(parts) for parts in zip_longest(*lines, fillvalue="")]
    return rows


def _fitting(
    columns: Sequence[str], widths: Sequence[int], whole: Sequence[bool], width: int
) -> list[int] | None:
    """Widths with which a line fits; None: it cannot fit. Columns that are `whole` keep their width."""
    found = list(widths)
    least = [
        size if is_whole else min(size, max(FOLDED_MIN, text_width(name)))
        for name, size, is_whole in zip(columns, widths, whole, strict=True)
    ]
    over = sum(found) + 2 * (len(found) - 1) - width
    while over > 0:
        at = max(range(len(found)), key=lambda i: (found[i] > least[i], found[i]))
        if found[at] <= least[at]:
            return None
        found[at] -= 1
        over -= 1
    return found


def _folded(row: Sequence[str], widths: Sequence[int]) -> Iterator[list[str]]:
    """The lines of a row, with its texts folded."""
    parts = [_wrapped(text, width) for text, width in zip(row, widths, strict=True)]
    for texts in zip_longest(*parts):
        yield [text or "" for text in texts]


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of a text, each at most `width` wide."""
    lines, rest = [], text
    while len(rest) > width or text_width(rest) > width:
        end, used = 0, 0
        while used + (size := text_width(rest[end])) <= width or end == 0:
            used += size
            end += 1
        # Break at a blank, or after a separator of a path, a list or a name, but not near the start.
        at = max(rest.rfind(" ", 0, end + 1), *(rest.rfind(c, 0, end) + 1 for c in "/,-_"))
        cut = at if at > width // 3 else end
        lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*lines, rest] if rest or not lines else lines


def _records(
    columns: Sequence[str], cells: Sequence[Sequence[str]], width: int, is_colour: bool
) -> str:
    """Each row as a list of its cells, for rows that do not fit in a line."""
    names = max(map(text_width, columns))
    room = max(width - names - 2, FOLDED_MIN)
    lines = []
    for number, row in enumerate(cells, 1):
        lines.append(_coloured(f"─ {number:,} ".ljust(min(width, names + 20), "─"), "2", is_colour))
        for name, text in zip(columns, row, strict=True):
            first, *more = _wrapped(text, room)
            head = _coloured(_padded(name, names, False), "1", is_colour)
            lines.append(f"{head}  {_coloured(first, _COLOURS.get(text), is_colour)}".rstrip())
            lines += [f"{'':{names + 2}}{part}" for part in more]
    return "\n".join(lines) + "\n"


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
    # Control characters could move the cursor or change colours.
    if keeps_lines:
        return "\n".join(_cell(line) for line in text.rstrip("\n").split("\n"))
    return printable(text)


def text_width(text: str) -> int:
    """Width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    gap = " " * (width - text_width(text))
    return gap + text if right else text + gap
