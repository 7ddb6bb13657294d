"""Rewrites the expressions of a rule's form to DuckDB's SQL: names, helper functions, literals with units.

An expression is SQL. What is added: a literal may have a unit (`30m`, `500MB`, `80 C`, `5 %`), a name is one of the
rule's scope, and a scope has helper functions (`share(x > 5)`). The text is not parsed but read token by token, so
what is not known here is left for DuckDB to judge.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

Note = Callable[[int, str], None]
"""Takes a problem: offset in the text and message."""
Helper = Callable[[Sequence[str], str], str]
"""Takes the SQL of the arguments and of a FILTER clause (or ""), and gives SQL. Raises ValueError for wrong arguments."""

_UNITS = {
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "c": 1,
    "w": 1,
    "mhz": 1,
    "%": 1,
}
"""Size of a unit, in lower case."""
_TOKENS = re.compile(
    r"""
      (?P<skip>'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | ::\s*\w+ | \bas\s+\w+ | \$\w+)
    | (?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)
      (?:\s?(?P<unit>[KMGT]i?B|kB|MHz|[smhdCW]|%(?=\s*(?:[),]|\Z|(?:and|or|then|else|end|when)\b)))(?!\w))?
    | (?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_KEYWORDS = re.compile(
    r"""(?:all|and|any|array|as|asc|between|by|case|current|days?|desc|distinct|else|end|escape|exists|false|filter|following
    |from|hours?|ilike|in|interval|is|last|like|minutes?|months?|not|nulls?|or|order|over|partition|preceding|range|rows?
    |seconds?|then|true|unbounded|when|where)\Z""",
    re.VERBOSE | re.IGNORECASE,
)
KNOWN_MAX = 12
UNCLOSED = (
    "this parenthesis is not closed; within { } of YAML an expression with a comma stands in quotes"
)
_FILTER = re.compile(r"\s*filter\s*\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may name."""

    names: Mapping[str, str]
    """SQL by name; a name may be qualified, as in `gpus.model`."""
    helpers: Mapping[str, Helper]
    details: str = ""
    """SQL of a JSON object whose keys are named `details.key`; empty: there is none."""
    subject: str = "name"
    """What the names are, for messages: "column of a GPU"."""

    def sql(self, name: str) -> str | None:
        """The SQL of a name; None: it is not known."""
        key = name.removeprefix("details.")
        if self.details and key != name:
            return f"({self.details}->>'{key}')"
        return self.names.get(name)


def rewritten(text: str, scope: Scope, note: Note, used: set[str] | None = None) -> str:
    """The expression's SQL. `used` gets the names and helpers that it mentions."""
    return _Reader(text, scope, note, set() if used is None else used).rewrite(0, len(text))


def words(text: str) -> list[str]:
    """Names and qualified names of an expression, without keywords and functions."""
    return [
        match["word"]
        for match in _TOKENS.finditer(text)
        if match["word"] and not is_keyword(match["word"]) and not _is_called(text, match.end())
    ]


def is_keyword(name: str) -> bool:
    """Whether an expression takes the word for one of SQL's."""
    return _KEYWORDS.match(name) is not None


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a name that is not known: the nearest one, or some that are known."""
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    few = ", ".join(list(known)[:KNOWN_MAX])
    return f"known: {few}{', ...' if len(known) > KNOWN_MAX else ''}"


def _is_called(text: str, at: int) -> bool:
    return text[at:].lstrip()[:1] == "("


class _Reader:
    def __init__(self, text: str, scope: Scope, note: Note, used: set[str]) -> None:
        self._text, self._scope, self._note, self._used = text, scope, note, used

    def rewrite(self, begin: int, end: int) -> str:
        """The SQL of a part of the text."""
        pieces = []
        opened: list[int] = []
        at = begin
        while at < end:
            match = _TOKENS.match(self._text, at, end)
            assert match is not None, "each character is a token"
            at = match.end()
            word, unit = match["word"], match["unit"]
            if word and _is_called(self._text, at) and word.lower() in self._scope.helpers:
                sql, at = self._helped(word.lower(), match.start(), at, end)
                pieces.append(sql)
            elif word and not is_keyword(word) and not _is_called(self._text, at):
                pieces.append(self._named(word, match.start()))
            elif unit:
                pieces.append(_number(match["number"], unit))
            else:
                if match[0] == "(":
                    opened.append(match.start())
                elif match[0] == ")" and opened:
                    opened.pop()
                pieces.append(match[0])
        for offset in opened:
            self._note(offset, UNCLOSED)
        return "".join(pieces)

    def _named(self, word: str, at: int) -> str:
        sql = self._scope.sql(word)
        if sql is None:
            message = f"{word!r} is no {self._scope.subject}; {nearest(word, [*self._scope.names])}"
            self._note(at, message)
            return "NULL"
        self._used.add(word)
        return sql

    def _helped(self, name: str, begin: int, at: int, end: int) -> tuple[str, int]:
        """The SQL of a call of a helper, and where it ends."""
        self._used.add(name)
        opened = self._text.index("(", at)
        arguments, at = self._arguments(opened, end)
        filtered = ""
        if match := _FILTER.match(self._text, at, end):
            (inner, *_), at = self._arguments(match.end() - 1, end)
            filtered = f" FILTER ({inner})"
        try:
            return self._scope.helpers[name](arguments, filtered), at
        except ValueError as error:
            self._note(begin, f"{name}: {error}")
            return "NULL", at

    def _arguments(self, opened: int, end: int) -> tuple[list[str], int]:
        """The SQL of each argument within parentheses, and where they end."""
        depth, begin, arguments, at = 0, opened + 1, [], opened
        while at < end:
            match = _TOKENS.match(self._text, at, end)
            assert match is not None, "each character is a token"
            if match[0] == "(":
                depth += 1
            elif match[0] == ")":
                depth -= 1
            if depth == 0 or (depth == 1 and match[0] == ","):
                arguments.append(self.rewrite(begin, at).strip())
                begin = match.end()
            if depth == 0:
                return [one for one in arguments if one], match.end()
            at = match.end()
        self._note(opened, UNCLOSED)
        return [self.rewrite(opened + 1, end).strip()], end


def _number(text: str, unit: str) -> str:
    value = float(text.replace("_", "")) * _UNITS[unit.lower()]
    return str(int(value)) if value == int(value) else repr(value)
