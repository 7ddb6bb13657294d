"""Texts that anybody may have written, on their way to a terminal, a log or a spreadsheet.

Names of processes, jobs, pods and labels are chosen by whoever starts them. What comes from agents is cleaned
where it is admitted; this is for all else, and for what is stored already.
"""

import re

REPLACED = "\ufffd"
_RUNS = re.compile(r"[=+\-@\t\r]")
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+@-]|--?[A-Za-z][\w-]*")
"""Numbers, marks alone, and names of flags."""


def printable(text: str, keeps: str = "") -> str:
    """In one line, without what moves the cursor, recolours a terminal or turns the direction of a line: all that
    Unicode calls a control, a format or a separator. Line ends and tabs become blanks; `keeps`: not these."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keeps else " " if c in "\n\r\t" else REPLACED for c in text
    )


def escaped_json(text: str) -> str:
    """JSON with such characters of its texts as `\\uXXXX`."""
    if text.isascii():
        return text if text.isprintable() else text.replace("\x7f", "\\u007f")
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def without_formula(cell: str) -> str:
    """A cell of CSV that no spreadsheet takes for a formula: `'` goes before `=`, `+`, `-`, `@`, a tab or a carriage
    return at its begin, but not before a number or the name of a flag (https://owasp.org/www-community/attacks/CSV_Injection)."""
    is_formula = _RUNS.match(cell) is not None and _PLAIN.fullmatch(cell) is None
    return f"'{cell}" if is_formula else cell
