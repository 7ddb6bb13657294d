"""Splits a text into statements, and parses the statements about the session. Pure.

Splitting does not decide what may run: each part is parsed and checked by itself when it runs, so a wrong
split only causes an error.
"""

import asyncio
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpuwarden_collector.query.port import SQL_CHARACTERS_MAX

STATEMENTS_MAX = 100
_FEW_CHARACTERS = 10_000

_TOKEN = re.compile(
    r"""
    (?P<blank>\s++)
  | (?P<comment>--[^\r\n]*+)
  | (?P<block>/\*)
  | (?P<text>[eE]'(?:[^'\\]|\\.|'')*+' | '(?:[^']|'')*+')
  | (?P<name>"(?:[^"]|"")*+")
  | (?P<dollar>\$(?:[^\W\d]\w*+)?\$)
  | (?P<number>\$?\d[\w.]*+)
  | (?P<word>[^\W\d][\w$]*+)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_BLOCK = re.compile(r"/\*|\*/")


class StatementError(ValueError):
    """An invalid or unsupported statement about the session: SQLSTATE, sentence, hint."""

    def __init__(self, sqlstate: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.hint = hint


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A word, name, text, number or sign."""

    kind: str
    text: str
    start: int
    end: int

    @property
    def word(self) -> str:
        """The word in capitals; "" if it is not a word."""
        return self.text.upper() if self.kind == "word" else ""

    @property
    def value(self) -> str:
        """Its value: a name without quotes, a word in lower case."""
        match self.kind:
            case "text":
                return self.text[self.text.index("'") + 1 : -1].replace("''", "'")
            case "name":
                return self.text[1:-1].replace('""', '"')
            case "word":
                return self.text.lower()
            case _:
                return self.text


def tokens_of(sql: str) -> list[SqlToken]:
    """Tokens of a text, without blanks and comments."""
    found = []
    at = 0
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        assert match is not None  # any character is a sign
        kind, end = str(match.lastgroup), match.end()
        if kind == "block":
            end = _block_end(sql, end)
        elif kind == "dollar":
            closed = sql.find(match[0], end)
            end = len(sql) if closed < 0 else closed + len(match[0])
        if kind not in ("blank", "comment", "block"):
            found.append(SqlToken(kind, sql[at:end], at, end))
        at = end
    return found


def _block_end(sql: str, at: int) -> int:
    depth = 1
    while depth:
        found = _BLOCK.search(sql, at)
        if found is None:
            return len(sql)
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return at


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """One statement of a text."""

    sql: str
    start: int
    """Where it begins in the text, in characters."""
    tokens: Sequence[SqlToken]


def split(sql: str) -> list[SqlStatement]:
    """The statements of a text, without empty ones. Raises StatementError."""
    if len(sql) > SQL_CHARACTERS_MAX:
        what = f"the text has {len(sql)} characters; most is {SQL_CHARACTERS_MAX}"
        raise StatementError("54000", what)
    found: list[SqlStatement] = []
    open_: list[SqlToken] = []
    for token in [*tokens_of(sql), SqlToken("sign", ";", len(sql), len(sql))]:
        if token.text != ";" or token.kind != "sign":
            open_.append(token)
        elif open_:
            start, end = open_[0].start, open_[-1].end
            found.append(SqlStatement(sql[start:end], start, open_))
            open_ = []
    if len(found) > STATEMENTS_MAX:
        raise StatementError("54001", f"{len(found)} statements; most is {STATEMENTS_MAX}")
    return found


def without_type_schema(sql: str) -> str:
    """Replace the schema in `::pg_catalog.text` by blanks, because DuckDB's parser rejects it (1.5.5)."""
    if "pg_catalog" not in sql.lower():
        return sql
    tokens = tokens_of(sql)
    for before, schema, dot, name in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        is_cast = before.word == "AS" or sql[: before.end].endswith("::")
        if is_cast and schema.value == "pg_catalog" and dot.text == "." and name.word:
            sql = sql[: schema.start] + " " * (dot.end - schema.start) + sql[dot.end :]
    return sql


async def split_soon(sql: str) -> list[SqlStatement]:
    """As `split`, but in a thread for a long text."""
    return split(sql) if len(sql) < _FEW_CHARACTERS else await asyncio.to_thread(split, sql)


class CommandKind(Enum):
    """Kind of a statement."""

    QUERY = "query"
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    ROLLBACK_TO = "rollback to"
    SET = "set"
    RESET = "reset"
    SHOW = "show"
    DISCARD = "discard"
    DEALLOCATE = "deallocate"
    DECLARE = "declare"
    FETCH = "fetch"
    CLOSE = "close"
    COPY = "copy"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed statement."""

    kind: CommandKind
    tag: str = ""
    """The tag of CommandComplete."""
    name: str = ""
    """Name of a setting, statement or cursor; "": all."""
    value: str | None = None
    """Value of a setting; None: its default."""
    sql: str = ""
    """The query of DECLARE or COPY."""
    start: int = 0
    """Position of that query in the statement."""
    rows_max: int = 0
    """Row limit of FETCH; 0: all."""


_TAGS = {"START": "START TRANSACTION", "END": "COMMIT", "ABORT": "ROLLBACK"}
_REFUSED = {
    "PREPARE": "prepare by the protocol, as drivers do, or use POST /v1/sql with parameters",
    "EXECUTE": "prepare by the protocol, as drivers do, or use POST /v1/sql with parameters",
    "MOVE": "FETCH the rows, or declare the cursor again",
    "LISTEN": "gpuwarden notifies over webhooks (docs/notifications.md)",
    "NOTIFY": "gpuwarden notifies over webhooks (docs/notifications.md)",
    "LOCK": "the server is read-only, so nothing needs a lock",
    "CALL": "there are no procedures",
    "DO": "there are no procedures",
}


def command_of(statement: SqlStatement) -> Command:
    """Parse a statement. Raises StatementError."""
    tokens = statement.tokens
    words = [token.word for token in tokens]
    first = words[0]
    match first:
        case "BEGIN" | "START":
            _read_only(words)
            return Command(CommandKind.BEGIN, _TAGS.get(first, first))
        case "COMMIT" | "END":
            return Command(CommandKind.COMMIT, "COMMIT")
        case "ROLLBACK" | "ABORT":
            is_to = "TO" in words
            return Command(CommandKind.ROLLBACK_TO if is_to else CommandKind.ROLLBACK, "ROLLBACK")
        case "SAVEPOINT" | "RELEASE":
            return Command(CommandKind.SAVEPOINT, first)
        case "SET":
            return _set(tokens, words)
        case "RESET":
            return Command(
                CommandKind.RESET, "RESET", "" if words[1:] == ["ALL"] else _setting(tokens[1:])
            )
        case "SHOW":
            return _show(tokens, words)
        case "DISCARD":
            return Command(CommandKind.DISCARD, f"DISCARD {words[-1]}")
        case "DEALLOCATE":
            name = "" if words[-1] == "ALL" else tokens[-1].value
            return Command(CommandKind.DEALLOCATE, "DEALLOCATE" if name else "DEALLOCATE ALL", name)
        case "UNLISTEN":
            return Command(CommandKind.NOTHING, first)
        case "DECLARE":
            return _declare(statement)
        case "FETCH":
            return _fetch(tokens, words)
        case "CLOSE":
            name = "" if words[1:] == ["ALL"] else _one(tokens[1:])
            return Command(CommandKind.CLOSE, "CLOSE CURSOR" if name else "CLOSE CURSOR ALL", name)
        case "COPY":
            return _copy(statement)
        case _ if first in _REFUSED:
            raise StatementError("0A000", f"{first} is not supported", _REFUSED[first])
        case _:
            return Command(CommandKind.QUERY)


def _read_only(words: Sequence[str]) -> None:
    for before, word in itertools.pairwise(words):
        if (before, word) == ("READ", "WRITE"):
            raise StatementError("25006", "this server is read only", "BEGIN READ ONLY, or BEGIN")


def _one(tokens: Sequence[SqlToken]) -> str:
    if len(tokens) != 1 or tokens[0].kind not in ("word", "name"):
        raise StatementError("42601", "a name was expected, and nothing after it")
    return tokens[0].value


def _setting(tokens: Sequence[SqlToken]) -> str:
    """The name of a setting, which may have two parts."""
    if [token.word for token in tokens] == ["TIME", "ZONE"]:
        return "timezone"
    if [token.word for token in tokens] == ["TRANSACTION", "ISOLATION", "LEVEL"]:
        return "transaction_isolation"
    return "".join(token.value for token in tokens).lower()


def _set(tokens: Sequence[SqlToken], words: Sequence[str]) -> Command:
    at = 2 if words[1:2] in (["SESSION"], ["LOCAL"]) else 1
    rest, named = tokens[at:], words[at:]
    if named[:1] in (["TRANSACTION"], ["CHARACTERISTICS"]):
        _read_only(words)
        return Command(CommandKind.NOTHING, "SET")
    if named[:1] == ["AUTHORIZATION"] or named[:1] == ["ROLE"]:
        if [token.value for token in rest[1:]] in (["default"], ["none"], ["gpuwarden"]):
            return Command(CommandKind.NOTHING, "SET")
        raise StatementError("42501", "there are no roles to become", "connect with another token")
    if named[:2] == ["TIME", "ZONE"]:
        name, values = "timezone", rest[2:]
    elif named[:1] == ["NAMES"]:
        name, values = "client_encoding", rest[1:]
    else:
        ends = [i for i, token in enumerate(rest) if token.text == "=" or token.word == "TO"]
        if not ends or not rest[: ends[0]]:
            raise StatementError("42601", "SET name = value was expected")
        name, values = _setting(rest[: ends[0]]), rest[ends[0] + 1 :]
    if not values:
        raise StatementError("42601", f"SET {name} lacks its value")
    if [token.word for token in values] in (["DEFAULT"], ["LOCAL"]):
        return Command(CommandKind.SET, "SET", name)
    return Command(CommandKind.SET, "SET", name, _joined(values))


def _joined(values: Sequence[SqlToken]) -> str:
    """A list of values in the form of SHOW."""
    return "".join(", " if token.text == "," else token.value for token in values)


def _show(tokens: Sequence[SqlToken], words: Sequence[str]) -> Command:
    if words[1:] == ["ALL"]:
        return Command(CommandKind.SHOW, "SHOW")
    # SHOW TABLES and similar ones are queries to DuckDB.
    if len(tokens) < 2 or words[1] in ("TABLES", "DATABASES", "SCHEMAS", "VARIABLES", "ALL"):
        return Command(CommandKind.QUERY)
    return Command(CommandKind.SHOW, "SHOW", _setting(tokens[1:]))


def _declare(statement: SqlStatement) -> Command:
    tokens = statement.tokens
    words = [token.word for token in tokens]
    if "FOR" not in words or "CURSOR" not in words[2 : words.index("FOR")]:
        raise StatementError("42601", "DECLARE name CURSOR FOR query was expected")
    at = words.index("FOR")
    options = words[2:at]
    if "BINARY" in options:
        raise StatementError("0A000", "binary cursors are not supported", "leave BINARY out")
    if "WITH" in options:
        raise StatementError("0A000", "cursors end with their transaction", "leave WITH HOLD out")
    if any(
        word == "SCROLL" and before != "NO" for before, word in itertools.pairwise(["", *options])
    ):
        raise StatementError("0A000", "a cursor goes forward only", "leave SCROLL out")
    if at + 1 >= len(tokens):
        raise StatementError("42601", "DECLARE lacks its query")
    start = tokens[at + 1].start - statement.start
    sql = statement.sql[start:]
    return Command(CommandKind.DECLARE, "DECLARE CURSOR", tokens[1].value, sql=sql, start=start)


_FORWARD = frozenset({"NEXT", "FORWARD", "ALL", "FROM", "IN"})


def _fetch(tokens: Sequence[SqlToken], words: Sequence[str]) -> Command:
    if len(tokens) < 2:
        raise StatementError("42601", "FETCH lacks the name of a cursor")
    rows_max = 1
    for token in tokens[1:-1]:
        if token.word == "ALL":
            rows_max = 0
        elif token.kind == "number" and token.text.isdecimal() and 0 < int(token.text) < 1 << 31:
            rows_max = int(token.text)
        elif token.word not in _FORWARD:
            raise StatementError(
                "0A000", "a cursor goes forward only", "FETCH FORWARD count FROM name"
            )
    return Command(CommandKind.FETCH, "FETCH", _one(tokens[-1:]), rows_max=rows_max)


def _copy(statement: SqlStatement) -> Command:
    """Parse COPY of a query or a table TO STDOUT, as text."""
    tokens = statement.tokens
    words = [token.word for token in tokens]
    if "STDOUT" not in words or "TO" not in words:
        raise StatementError(
            "0A000", "only COPY ... TO STDOUT is supported", "files: `gpuwarden sql --format`"
        )
    at = max(i for i, word in enumerate(words) if word == "TO")
    if tuple(words[at + 1 :]) not in (("STDOUT",), ("STDOUT", "WITH", "TEXT")):
        raise StatementError(
            "0A000", "options of COPY are not supported", "`gpuwarden sql --format csv`, or parquet"
        )
    source = tokens[1:at]
    if not source:
        raise StatementError("42601", "COPY (query) TO STDOUT was expected")
    sql = statement.sql[source[0].start - statement.start : source[-1].end - statement.start]
    is_query = source[0].text == "(" and source[-1].text == ")"
    start = source[0].start - statement.start + is_query
    return Command(
        CommandKind.COPY, "COPY", sql=sql[1:-1] if is_query else f"FROM {sql}", start=start
    )
