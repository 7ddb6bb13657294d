"""Parses DuckDB's error messages of a query: one sentence, the place in the text, and a hint. Pure."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from gpuwarden.query import QueryError

_PLACE = re.compile(r"^LINE (\d+): (.*)\n( *)\^", re.MULTILINE)
_CANDIDATES = re.compile(r"\n+Candidate bindings:[: ]*(.*)")
_MEANT = re.compile(r"\nDid you mean \"([^\"]+)\"")
_FUNCTIONS = re.compile(r"\s*Candidate functions:\s*(.*)", re.DOTALL)
_NAMED = re.compile(r"(?:column|named|name) \"?([\w.]+)\"?")
_MISSING_COLUMN = re.compile(r"(?:Referenced column|does not have a column named) \"([^\"]+)\"")
_SETTING = re.compile(r"\s*Use \"SET [^\"]+\" to[^.\n]*\.?")
"""Advice that nobody may follow."""
_REASON_CHARACTERS_MAX = 2_000
_FUNCTIONS_SHOWN = 5


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The likely meant name: the same with an ending (`_avg` first), else the most similar."""
    lower = name.lower()
    names = sorted(set(known))
    longer = [one for one in names if one.lower().startswith(lower + "_")]
    if longer:
        return min(longer, key=lambda one: (one != f"{lower}_avg", len(one)))
    close = get_close_matches(lower, names, 1, 0.6)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint for a wrong name; None: no name is similar."""
    close = nearest(name, known)
    return None if close is None else f"did you mean {close}?"


def complaint(text: str, sql: str) -> QueryError:
    """The QueryError of DuckDB's message about `sql`."""
    text = text.strip()
    message = text.partition("\n\nLINE ")[0]
    hint = None
    if match := _CANDIDATES.search(message):
        names = [one.rpartition(".")[2] for one in re.findall(r'"([^"]+)"', match[1])]
        missing = missing_column(message)
        likely = nearest(missing, names) if missing else None
        hint = f"did you mean {likely or names[0]}?" if names else None
    elif match := _MEANT.search(message):
        hint = f"did you mean {match[1]}?"
    elif match := _FUNCTIONS.search(message):
        takes = [" ".join(line.split()) for line in match[1].splitlines() if line.strip()]
        hint = f"there are {', '.join(takes[:_FUNCTIONS_SHOWN])}" if takes else None
    for pattern in (_CANDIDATES, _MEANT, _FUNCTIONS):
        message = pattern.split(message)[0]
    message = _SETTING.sub("", message)
    sentence = " ".join(message.split())[:_REASON_CHARACTERS_MAX]
    return QueryError(sentence, offset=_offset(text, sql), hint=hint)


def missing_column(message: str) -> str | None:
    """The missing column that a message names; None: it names none."""
    match = _MISSING_COLUMN.search(message)
    return match[1] if match else None


def characters(sql: str, at_byte: object) -> int | None:
    """A position in characters, from DuckDB's position in bytes; None: unknown."""
    encoded = sql.encode()
    if not isinstance(at_byte, int) or not 0 <= at_byte <= len(encoded):
        return None
    return len(encoded[:at_byte].decode(errors="ignore"))


def _offset(text: str, sql: str) -> int | None:
    """The position of the character above DuckDB's ^; None: unknown."""
    match = _PLACE.search(text)
    if match is None:
        return None
    number, shown, column = int(match[1]), match[2], len(match[3]) - len(f"LINE {match[1]}: ")
    lines = sql.split("\n")
    if number > len(lines) or column < 0:
        return None
    line = lines[number - 1]
    if shown.startswith("..."):
        shown, column = shown[3:], column - 3
    part = shown.removesuffix("...")
    begins_at = line.find(part)
    if begins_at < 0:
        return None
    at = begins_at + column
    # With letters of several bytes DuckDB's ^ may be off.
    if (named := _NAMED.search(text)) and not line.startswith(named[1], at):
        at = _closest(line, named[1], at)
    return sum(len(one) + 1 for one in lines[: number - 1]) + at


def _closest(line: str, name: str, at: int) -> int:
    places = [one.start() for one in re.finditer(re.escape(name), line)]
    return min(places, key=lambda one: abs(one - at), default=at)
