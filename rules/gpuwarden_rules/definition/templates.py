"""Renders texts of alerts: `{column}` with a format. NULL reads "unknown", never 0.

{node}              the value: text, number, instant, duration
{util:.0f}          a number with Python's format: digits, thousands comma, f, d, g
{idle:duration}     seconds or an interval: 2 h 05 min
{held:bytes}        34.2 GiB
{saved:usd}         $2.95, $1,204
{usd_per_hour:usd/h}  $2.95/h
{gpus:GPU|GPUs}     1 GPU, 3 GPUs
{{ and }}           braces
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden.durations import readable
from gpuwarden.sizes import size_text

UNKNOWN = "unknown"
COST_UNKNOWN = "cost unknown"
TEXT_CHARS_MAX = 500
"""Longest text from a row: names come from processes and can be anything."""

_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_FIELD = re.compile(r"([a-z_][a-z0-9_]*)(?::(.*))?\Z")
_NUMBER = re.compile(r",?(\.\d)?[fg]\Z|,?d\Z")
_COUNTED = re.compile(r"\s*([^|]*\S)\s*\|\s*([^|]*\S)\s*\Z")


@dataclass(frozen=True, slots=True)
class TemplateField:
    """A field of a text, filled from the row; `offset` is its position in the source."""

    name: str
    form: str
    offset: int


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text: literal parts and fields in order."""

    pieces: tuple[str | TemplateField, ...]
    source: str = ""

    def __str__(self) -> str:
        return self.source

    @property
    def fields(self) -> Iterator[TemplateField]:
        """The fields, in order."""
        return (piece for piece in self.pieces if isinstance(piece, TemplateField))

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for one row. Raises LookupError or ValueError naming the field that failed."""
        return "".join(
            [piece if isinstance(piece, str) else _rendered(piece, values) for piece in self.pieces]
        ).strip()


def parse(source: str) -> tuple[Template, list[tuple[int, str]]]:
    """The template with white space folded, and its problems, each with its offset."""
    pieces: list[str | TemplateField] = []
    problems: list[tuple[int, str]] = []
    end = 0
    for match in _PIECES.finditer(source):
        pieces.append(_folded(source[end : match.start()]))
        end = match.end()
        if match[0] in ("{{", "}}"):
            pieces.append(match[0][0])
        elif match[1] is None:
            problems.append((match.start(), f"a lone {match[0]!r}; write it twice"))
        else:
            field = _field(match[1], match.start())
            if isinstance(field, TemplateField):
                pieces.append(field)
            else:
                problems.append((match.start(), field))
    pieces.append(_folded(source[end:]))
    text = Template(tuple(piece for piece in pieces if piece != ""), _folded(source).strip())
    return text, problems


def _folded(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _field(inner: str, offset: int) -> TemplateField | str:
    """The field, or what is wrong with it."""
    match = _FIELD.match(inner)
    if match is None:
        return f"{{{inner}}} is not a field; write {{column}} or {{column:.0f}}"
    form = match[2] or ""
    if form and form not in _FORMS and not _NUMBER.match(form) and not _COUNTED.match(form):
        known = ", ".join(_FORMS)
        return f"unknown format {form!r}; known: {known}, one|many, and .0f .1f ,.0f d g"
    return TemplateField(match[1], form, offset)


def _rendered(field: TemplateField, values: Mapping[str, Any]) -> str:
    try:
        value = values[field.name]
    except KeyError as error:
        message = f"the text uses {{{field.name}}}, which the SQL does not return"
        raise LookupError(message) from error
    counted = _COUNTED.match(field.form)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return f"an {UNKNOWN} number of {_folded(counted[2])}" if counted else UNKNOWN
    if not field.form:
        return _plain(value)
    number = _number(value)
    if number is None:
        raise ValueError(
            f"{{{field.name}:{field.form}}} needs a number, the SQL gave {value!r:.60}"
        )
    if counted:
        return f"{round(number):,} {_folded(counted[1 if round(number) == 1 else 2])}"
    if field.form in _FORMS:
        return _FORMS[field.form](number)
    return format(round(number) if field.form.endswith("d") else number, field.form)


def _number(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool | str | datetime):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _plain(value: Any) -> str:
    match value:
        case str():
            return _printable(value)
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return readable(value.total_seconds())
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        case float():
            return f"{value:.2f}".rstrip("0").rstrip(".")
        case _:
            return _printable(str(value))


def _printable(text: str) -> str:
    text = text[:TEXT_CHARS_MAX]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def usd(amount: float) -> str:
    """`$2.95`, `$1,204`; below a cent with two significant digits."""
    if amount != 0 and abs(amount) < 0.01:
        return f"${amount:.2g}"
    return f"${amount:,.2f}" if abs(amount) < 1000 else f"${amount:,.0f}"


_FORMS: dict[str, Callable[[float], str]] = {
    "duration": readable,
    "bytes": size_text,
    "usd": usd,
    "usd/h": lambda amount: f"{usd(amount)}/h",
}
