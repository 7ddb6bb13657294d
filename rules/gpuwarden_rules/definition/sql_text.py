"""Finds what a rule's SQL mentions, from its text: parameters, tables, and what a replay could not repeat.

A rule must give the same answer for the same `$now` today and next year, so it may ask neither the
clock nor chance. Strings, quoted names and comments are skipped; the SQL itself is checked by
binding it to the schema (`testing.check`).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

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
_CHANCE = frozenset(
    {"random", "setseed", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "tablesample"}
)
_LIVE_VIEWS = frozenset(
    {
        "gpus_now",
        "gpu_health_now",
        "links_now",
        "nodes_now",
        "alerts_now",
        "incidents_now",
        "incident_costs",
    }
)
_CALLED = frozenset({"now", "today", "random", "setseed", "uuid", "uuidv4", "uuidv7"})
"""Words that also serve as column names: they count only when called."""

_SAID = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
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


@dataclass(frozen=True, slots=True)
class SqlProblem:
    """What a rule's SQL must not have, at which character."""

    offset: int
    message: str


def parameters(sql: str) -> Iterator[Parameter]:
    """Every `$name`, in order, repeats included."""
    for match in _TOKENS.finditer(sql):
        if match["parameter"]:
            yield Parameter(match["parameter"], match.start())


def timestamp_text(at: datetime) -> str:
    """The instant as a text that DuckDB reads as a TIMESTAMP in UTC."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def without_texts(sql: str) -> str:
    """The SQL with blanks for its texts and comments: every offset stays."""
    return _SAID.sub(lambda said: " " * len(said[0]), sql)


def with_names(sql: str) -> frozenset[str]:
    """Names that WITH gives, in lower case."""
    return frozenset(name.lower() for name in _NAMED.findall(sql))


def table_reads(sql: str, begin: int = 0, end: int | None = None) -> Iterator[TableRead]:
    """What FROM and JOIN read between two offsets; the second and later of `FROM a, b` are not seen."""
    for match in _READ.finditer(sql, begin, len(sql) if end is None else end):
        has_alias = _NO_ALIAS.match(sql, match.end()) is None
        yield TableRead(match[1].lower(), match.start(1), match.end(1), has_alias)


def with_tables_from(sql: str, reads: Iterable[TableRead], other: Callable[[str], str]) -> str:
    """The SQL with these reads made from `other(name)`, under the name they had."""
    pieces, end = [], 0
    for read in sorted(reads, key=lambda read: read.begin):
        name = sql[read.begin : read.end]
        pieces += [sql[end : read.begin], other(name), "" if read.has_alias else f" AS {name}"]
        end = read.end
    return "".join([*pieces, sql[end:]])


def problems(sql: str) -> Iterator[SqlProblem]:
    """What keeps the SQL from being one statement that can be replayed over history."""
    for match in _TOKENS.finditer(sql):
        message = None
        if match["positional"]:
            message = f"{match[0]} is not a named parameter; write $name"
        elif match["semicolon"]:
            message = "one statement without ';'"
        elif match["sampling"]:
            message = "a sample is left to chance; a rule must give the same answer each time"
        elif match["word"]:
            message = _word_problem(match["word"].lower(), sql[match.end() :].lstrip()[:1] == "(")
        if message:
            yield SqlProblem(match.start(), message)


def _word_problem(word: str, is_called: bool) -> str | None:
    if word in _CALLED and not is_called:
        return None
    if word in _CLOCKS:
        return f"{word} reads the clock; use $now, so that the rule can be replayed over history"
    if word in _CHANCE:
        return f"{word} is left to chance; a rule must give the same answer each time"
    if word in _LIVE_VIEWS:
        return f"{word} shows the present only; query the samples with $now"
    return None
