"""Shows the rows of one team to its queries: a `QuerySource` without any way to the store.

The rows come from another process (`team_rows.py`) over the socket of the query. DuckDB takes each table for an Arrow
dataset, and asks it for the columns and conditions of each scan.
"""

import json
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.query import LakeAwayError, QueryError
from gpuwarden.teams import Team
from gpuwarden_collector.query.team_rows import MESSAGE_BYTES_MAX, WHOLE
from gpuwarden_collector.storage import views
from gpuwarden_collector.storage.engine import EngineLimits, QueryDatabase
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.segment import TABLE_NAMES
from gpuwarden_collector.storage.views import TEAM_SCHEMAS, hot_table

_BUFFER_BYTES = 1024 * 1024
_CHARACTERS_MAX = 8_000
"""Most characters of all values that one scan compares in the store."""
_ENDED = "the process that reads the store for teams has ended"


class TeamStore(QueryDatabase):
    """The rows that the readers of one team may see."""

    def __init__(self, team: Team, limits: EngineLimits, spill_dir: Path) -> None:
        """`spill_dir`: a folder of its own. Raises duckdb.Error, OSError."""
        super().__init__(limits, spill_dir)
        self.team = team
        self._rows: _Rows | None = None
        self._tables = _tables(self)
        self._cursor: duckdb.DuckDBPyConnection | None = None
        try:
            views.create_of_team(self.connection, spill_dir)
            self.lock()
        except BaseException:
            self.connection.close()
            raise

    @contextmanager
    def connected(self, sock: socket.socket) -> Iterator[None]:
        """Read the rows of queries within the block over this socket; closes it."""
        with sock:
            self._rows = _Rows(sock)
            try:
                yield
            finally:
                self._rows = None

    @property
    def failure(self) -> Exception | None:
        """Why a scan of the query ended early; None: none did, or the reason is DuckDB's."""
        return None if self._rows is None else self._rows.failure

    @property
    def rows(self) -> "_Rows":
        """The connection of the query. Raises StoreUnavailableError."""
        if self._rows is None:
            raise StoreUnavailableError(_ENDED)
        return self._rows

    def new_cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = super().new_cursor()
        for name, table in self._tables.items():
            cursor.register(hot_table(name), table)
        return cursor

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The cursor that stays open. Raises StoreUnavailableError."""
        try:
            self._cursor = self._cursor or self.new_cursor()
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error
        yield self._cursor

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction that sees one moment of the store. `names`: tables that it reads; None: any. Raises
        StoreUnavailableError; a scan raises LakeAwayError, too."""
        tables = TEAM_SCHEMAS.keys() if names is None else TEAM_SCHEMAS.keys() & set(names)
        if tables:
            self.rows.begin(tables)
        cursor.execute("BEGIN TRANSACTION READ ONLY")

    def release_memory(self) -> None:
        """Close the cursor."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None


Condition = tuple[str, str, str]
"""A column, `=`, `<`, `<=`, `>` or `>=`, and a text or an instant as text."""


class _Rows:
    """The socket of a query, on which its rows are asked for."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.failure: Exception | None = None
        """Why a scan ended early: DuckDB raises only its text."""

    def begin(self, names: Iterable[str]) -> None:
        """Let all scans see one moment of these tables. Raises StoreUnavailableError."""
        self._send({"tables": sorted(names)})

    def scan(self, name: str, columns: list[str], conditions: Sequence[Condition]) -> Iterator[Any]:
        """Record batches of a table, of which rows may be left out that do not fulfil the conditions. Raises
        LakeAwayError, StoreUnavailableError."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                request = {"table": name, "columns": columns, "conditions": conditions}
                self._send(request, theirs)
            try:
                with ours.makefile("rb", _BUFFER_BYTES) as file:
                    reader = pa.ipc.open_stream(file)
                    schema = TEAM_SCHEMAS[name]
                    if reader.schema != pa.schema([schema.field(column) for column in columns]):
                        raise self._failed(
                            StoreUnavailableError(f"rows of {name} have other columns")
                        )
                    yield from reader
                    is_whole = file.read(len(WHOLE)) == WHOLE
            except (OSError, pa.ArrowException):
                is_whole = False
            if not is_whole:
                self._check(self._received())
                raise self._failed(StoreUnavailableError(f"not all rows of {name} came"))

    def _send(self, message: Mapping[str, Any], *ends: socket.socket) -> None:
        packed = json.dumps(message).encode()
        try:
            socket.send_fds(self._sock, [packed], [end.fileno() for end in ends])
        except OSError as error:
            raise self._failed(StoreUnavailableError(_ENDED)) from error

    def _received(self) -> Mapping[str, str]:
        message = b""
        with suppress(OSError):
            message = self._sock.recv(MESSAGE_BYTES_MAX)
        if not message:
            return {"reason": _ENDED}
        answer: Mapping[str, str] = json.loads(message)
        return answer

    def _check(self, answer: Mapping[str, str]) -> None:
        if answer:
            reason = answer["reason"]
            raise self._failed(_ERRORS.get(answer.get("kind", ""), StoreUnavailableError)(reason))

    def _failed(self, error: Exception) -> Exception:
        self.failure = error
        return error


_ERRORS = {"away": LakeAwayError, "wrong": QueryError}


def _tables(store: TeamStore) -> Mapping[str, Any]:
    """Make a dataset for each table, which DuckDB asks for each scan of it."""
    import pyarrow.dataset as ds  # only processes of teams need it

    class Table(ds.InMemoryDataset):  # type: ignore[misc]  # pyarrow has no types
        def __init__(self, name: str) -> None:
            super().__init__(TEAM_SCHEMAS[name].empty_table())
            self._name = name

        def scanner(
            self, columns: list[str] | None = None, filter: Any = None, **_: Any
        ) -> "_Scan":
            """Return a scan of these columns. `filter`: a condition, as pyarrow.compute.Expression."""
            return _Scan(store.rows, self._name, columns or [], filter)

    return {name: Table(name) for name in TEAM_SCHEMAS}


class _Scan:
    def __init__(self, rows: _Rows, name: str, columns: list[str], condition: Any) -> None:
        self._rows, self._name, self._columns, self._condition = rows, name, columns, condition

    def to_reader(self) -> Any:
        """A reader of the rows' record batches."""
        schema = TEAM_SCHEMAS[self._name]
        columns = self._columns or schema.names[:1]
        return pa.RecordBatchReader.from_batches(
            pa.schema([schema.field(column) for column in columns]), self._batches(columns)
        )

    def _batches(self, columns: list[str]) -> Iterator[Any]:
        if self._condition is None:
            yield from self._rows.scan(self._name, columns, ())
            return
        names = TEAM_SCHEMAS[self._name].names
        text = str(self._condition)
        conditions, is_all = conditions_of(text, names)
        if is_all and self._name in TABLE_NAMES:  # others are sent whole
            yield from self._rows.scan(self._name, columns, conditions)
            return
        # The condition may read columns that the scan does not give. Some more do no harm.
        read = [*dict.fromkeys([*columns, *(w for w in re.findall(r"\w+", text) if w in names)])]
        for batch in self._rows.scan(self._name, read, conditions):
            rows = batch.filter(self._condition)
            if rows.num_rows:
                yield rows.select(columns)


_TEXT = r'"(?:[^"\\]|\\.)*"'
_PARTS = re.compile(
    rf"\((\w+) (==|[<>]=?) (?:({_TEXT})|(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{6}}))\)|{_TEXT}",
    re.DOTALL,
)
_ONLY_AND = re.compile(r"(?:[() ]|and)*")
_JOINING = frozenset(
    {"and", "is_in", "value_set", "null_matching_behavior", "MATCH", "string", "timestamp", "us"}
    | {"bool", "double", "float", "int16", "int32", "int64", "nan", "inf", "true", "false", "e"}
)
"""Words of a condition whose comparisons must all be true."""


def conditions_of(text: str, columns: Collection[str]) -> tuple[list[Condition], bool]:
    """Comparisons with a text or an instant, which must all be true for a condition of Arrow to be true, and whether
    they are all of it. Pure.

    `text`: of the condition, as pyarrow writes it. With any word that is not known here, such as `or`, there are none.
    """
    rest = _PARTS.sub("", text)
    if not _JOINING.issuperset(set(re.findall(r"[a-zA-Z_]\w*", rest)) - set(columns)):
        return [], False
    is_all = _ONLY_AND.fullmatch(rest) is not None
    conditions, characters = [], 0
    for part in _PARTS.finditer(text):
        column, operator, quoted, instant = part.groups()
        value = instant or (quoted or "")[1:-1]
        characters += len(value)
        is_short = characters <= _CHARACTERS_MAX
        if column in columns and is_short and (_is_instant(value) if instant else _is_plain(value)):
            conditions.append((column, operator.replace("==", "="), value))
        else:
            is_all = False
    return conditions, is_all


def _is_plain(text: str) -> bool:
    """Whether pyarrow writes a text as it is, and a message can have it."""
    return "\\" not in text and "\0" not in text


def _is_instant(text: str) -> bool:
    """Whether Python has that instant: it has no year 0."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
