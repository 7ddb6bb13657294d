"""Finds parameters, tables and forbidden functions in the text of a rule's SQL.

A rule must return the same rows for the same `$now` today and next year, so it must not read the clock or
use random functions. Strings, quoted names and comments are skipped. `testing.check` checks the SQL itself
by binding it to the schema.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from gpuwarden.schema import view_words

_TOKENS = re.compile(
    r"""
      (?P<skip>  '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(?P<tag>[a-z_]*)\$.*?\$(?P=tag)\$ )
    | \$(?P<parameter>[A-Za-z_]\w*)
    | (?P<positional>\$\d+ | \?)
    | (?P<semicolon>;)
    | (?P<sampling>\busing\s+sample\b)
    | (?P<word>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

_CLOCKS = frozenset(
    {
        "now",
        "today",
        "get_current_time",
        "get_current_timestamp",
        "transaction_timestamp",
        "current_timestamp",
        "current_date",
        "current_time",
        "current_localtime",
        "current_localtimestamp",
        "localtime",
        "localtimestamp",
    }
)
_RANDOM = frozenset(
    {"random", "setseed", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "tablesample"}
)
_CALLED = frozenset({"now", "today", "random", "setseed", "uuid", "uuidv4", "uuidv7"})
"""Words that are also column names: they count only where they are called."""

_TEXT = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Texts and comments."""
_NAMED = re.compile(r"(?:\bwith|,)\s*(\w+)\s+as\s*(?:(?:not\s+)?materialized\s*)?\(", re.IGNORECASE)
_READ = re.compile(r"\b(?:from|join)\s+(\w+)\b", re.IGNORECASE)
_NO_ALIAS = re.compile(
    r"\s*(?:[,)]|(?:where|group|having|qualify|window|order|limit|offset|union|except|intersect|on|using|select"
    r"|join|inner|left|right|full|cross|semi|anti|asof|natural|positional)\b|\Z)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A `$name` in the SQL."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class TableRead:
    """A name behind FROM or JOIN, in lower case, and where it stands."""

    name: str
    begin: int
    end: int
    has_alias: bool


def parameters(sql: str) -> Iterator[Parameter]:
    """Every `$name`, in order, repeats included."""
    for match in _TOKENS.finditer(sql):
        if match["parameter"]:
            yield Parameter(match["parameter"], match.start())


def timestamp_text(at: datetime) -> str:
    """The instant as a text that DuckDB reads as a TIMESTAMP in UTC."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def without_texts(sql: str) -> str:
    """The SQL with blanks instead of strings and comments: offsets stay the same."""
    return _TEXT.sub(lambda text: " " * len(text[0]), sql)


def with_names(sql: str) -> frozenset[str]:
    """Names of common table expressions, in lower case."""
    return frozenset(name.lower() for name in _NAMED.findall(sql))


def table_reads(sql: str, begin: int = 0, end: int | None = None) -> Iterator[TableRead]:
    """Tables after FROM and JOIN between two offsets; of `FROM a, b` only the first is found."""
    for match in _READ.finditer(sql, begin, len(sql) if end is None else end):
        has_alias = _NO_ALIAS.match(sql, match.end()) is None
        yield TableRead(match[1].lower(), match.start(1), match.end(1), has_alias)


def with_tables_from(sql: str, reads: Iterable[TableRead], other: Callable[[str], str]) -> str:
    """The SQL with these tables replaced by `other(name)`, under the same name."""
    pieces, end = [], 0
    for read in sorted(reads, key=lambda read: read.begin):
        name = sql[read.begin : read.end]
        pieces += [sql[end : read.begin], other(name), "" if read.has_alias else f" AS {name}"]
        end = read.end
    return "".join([*pieces, sql[end:]])


def problems(sql: str) -> Iterator[tuple[int, str]]:
    """Offset and message of everything that prevents a replay of the SQL over history, or that is not one statement."""
    for match in _TOKENS.finditer(sql):
        message = None
        if match["positional"]:
            message = f"{match[0]} is not a named parameter; write $name"
        elif match["semicolon"]:
            message = "one statement without ';'"
        elif match["sampling"]:
            message = "a sample is not repeatable; a rule must return the same rows each time"
        elif match["word"]:
            message = _word_problem(match["word"].lower(), sql[match.end() :].lstrip()[:1] == "(")
        if message:
            yield match.start(), message


def _word_problem(word: str, is_called: bool) -> str | None:
    if word in _CALLED and not is_called:
        return None
    if word in _CLOCKS:
        return f"{word} reads the clock; use $now, so that the rule can be replayed over history"
    if word in _RANDOM:
        return f"{word} is not repeatable; a rule must return the same rows each time"
    if word in _live_views():
        return f"{word} shows the present only; query the samples with $now"
    return None


@cache
def _live_views() -> frozenset[str]:
    """Views whose SQL reads the clock, and those that read one of these."""
    live: set[str] = set()
    for name, words in view_words():
        if words & (_CLOCKS | live):
            live.add(name)
    return frozenset(live)
