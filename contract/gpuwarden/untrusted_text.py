"""Makes untrusted text safe for terminals, logs and spreadsheets.

Users choose the names of processes, jobs, pods and labels. The collector cleans what agents send; this module is
for all other text, and for text that was stored before.
"""

import re

REPLACED = "\ufffd"
_RUNS = re.compile(r"[=+\-@\t\r]")
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+@-]|--?[A-Za-z][\w-]*")
"""Numbers, single marks, and command-line flags, which are no formulas."""


def printable(text: str, keeps: str = "") -> str:
    """The text in one line, with control, format and separator characters of Unicode replaced: they move the
    cursor, change colours or reverse a line. Line ends and tabs become spaces. `keeps`: characters to keep."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keeps else " " if c in "\n\r\t" else REPLACED for c in text
    )


def escaped_json(text: str) -> str:
    """JSON with these characters escaped as `\\uXXXX`."""
    if text.isascii():
        return text if text.isprintable() else text.replace("\x7f", "\\u007f")
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def without_formula(cell: str) -> str:
    """A CSV cell that spreadsheets do not run as a formula: `'` is put before a leading `=`, `+`, `-`, `@`, tab or
    carriage return, except for numbers and command-line flags (https://owasp.org/www-community/attacks/CSV_Injection)."""
    is_formula = _RUNS.match(cell) is not None and _PLAIN.fullmatch(cell) is None
    return f"'{cell}" if is_formula else cell
