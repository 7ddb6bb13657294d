"""Parses SQL and runs one query on a reading cursor; rows go on as they come, none is held."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from gpuwarden.query import QueryError
from gpuwarden.schema import ADMINS_ONLY, TABLES, UPSERTED, stored_columns
from gpuwarden_collector.query import guard
from gpuwarden_collector.query.complaints import complaint, did_you_mean, missing_column
from gpuwarden_collector.query.encode import ResultRows
from gpuwarden_collector.query.guard import Parsed
from gpuwarden_collector.query.newest import NewestRows
from gpuwarden_collector.query.pruned import PrunedLake, QueryTimeSpan, span_of
from gpuwarden_collector.query.statement import split
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.errors import lost_file, one_line
from gpuwarden_collector.storage.newest_rows import KEPT

NO_FILES: Mapping[str, str] = {}
_NOT_A_SELECT = "Only SELECT statements"
_CHUNK_ROWS = 2_048  # DuckDB's own vector size, so the row limit costs at most one vector more
RESULT_BYTES_MAX = 64 * 1024 * 1024
_JUDGED_MAX = 256
"""Texts whose verdict is remembered: rules and pages ask the same again and again."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A query that may run."""

    parsed: Parsed
    names: frozenset[str]
    """Tables behind the lake that it reads."""
    may_join: bool
    views: frozenset[str]
    """Views of newest rows that it reads, if nothing else of what it reads is in lake or segments."""
    state_names: frozenset[str] | None
    """Tables of the state file that it reads beside, should it have such views; None: maybe any."""
    read: frozenset[str]
    """Names of tables, views and WITH queries that it reads."""
    span: QueryTimeSpan | None
    """Of the time of the rows that it reads; None: that is not known, or it reads more than a table."""


class Interrupted(Exception):  # noqa: N818  an outcome that the caller expects
    """The query was ended from outside."""


class RowSink(Protocol):
    """What takes the rows of a query as they come. An Exception of its own ends the query."""

    has_sent: bool
    """Whether something is out that cannot be taken back."""

    def begin(self, schema: Any, types: tuple[str, ...]) -> None:
        """Columns, and that rows follow: from the first one, whatever was taken before."""
        ...

    def take(self, batch: Any) -> None:
        """Some rows. Raises QueryError where it takes no more."""
        ...


class CollectedRows:
    """Rows that are held until all are there."""

    def __init__(self, bytes_max: int = RESULT_BYTES_MAX) -> None:
        self.has_sent = False
        self._bytes_max = bytes_max

    def begin(self, schema: Any, types: tuple[str, ...]) -> None:
        self._schema, self._types = schema, types
        self._batches: list[Any] = []
        self._bytes = 0

    def take(self, batch: Any) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        check_bytes(self._bytes, self._bytes_max)

    def rows(self, *, truncated: bool) -> ResultRows:
        """What was taken."""
        data = pa.Table.from_batches(self._batches, schema=self._schema)
        return ResultRows(data, self._types, truncated)


def check_bytes(used: int, bytes_max: int) -> None:
    """Raise QueryError for rows that are too large to be held."""
    if used > bytes_max:
        raise QueryError(
            f"the result is larger than {bytes_max // 2**20} MiB: "
            "select fewer columns or rows, or aggregate"
        )


class QuerySource(Protocol):
    """What can be read: an engine, or a store with one."""

    def cursor(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A cursor, outside of a transaction. Raises StoreUnavailableError."""
        ...

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction that sees the store at one moment. Raises StoreUnavailableError."""
        ...


class Reading:
    """One query's cursor and read-only transaction, for use in one thread.

    `interrupt` may be called from any thread at any time.
    """

    def __init__(self, source: QuerySource, known: Engine | None = None) -> None:
        """`known`: an engine, where what it knows of the lake may be used."""
        self._source = source
        self._engine = known
        self._taken = source
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._is_interrupted = False

    @contextmanager
    def opened(self, source: QuerySource | None = None) -> Iterator[None]:
        """Hold a cursor for `parse` and `run`, of that source or its own. Raises StoreUnavailableError."""
        self._taken = source or self._source
        with self._taken.cursor() as cursor:
            self._cursor = cursor
            try:
                yield
            finally:
                self._cursor = None

    def interrupt(self) -> None:
        """End what runs, and do not start what has not begun."""
        self._is_interrupted = True
        cursor = self._cursor
        if cursor is not None:
            with suppress(duckdb.Error):
                cursor.interrupt()

    def parse(self, sql: str) -> Parsed:
        """Parse without running anything. Raises QueryError on a syntax error, Interrupted."""
        with _interruptible():
            return parse(self._open(), sql)

    def span(self, parsed: Parsed) -> QueryTimeSpan | None:
        """What a query that may run says of the time of the rows that it reads. Raises Interrupted."""
        with _interruptible():
            try:
                return span_of(parsed.selects[0], self._open()) if parsed.selects else None
            except duckdb.InterruptException:
                raise
            except duckdb.Error:
                return None

    def run(
        self,
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
        *,
        names: Iterable[str] | None = None,
        bytes_max: int = RESULT_BYTES_MAX,
    ) -> ResultRows:
        """The first `row_limit` rows, held. As `give`."""
        sink = CollectedRows(bytes_max)
        truncated = self.give(sink, sql, params, row_limit, names=names)
        return sink.rows(truncated=truncated)

    def give(
        self,
        sink: RowSink,
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
        *,
        names: Iterable[str] | None = None,
    ) -> bool:
        """Give the sink the first `row_limit` rows; whether there are more. `names`: tables that it reads,
        None: any.

        Raises QueryError, Interrupted, StoreUnavailableError.
        """
        if self._engine is self._taken:
            truncated = self.give_as_known(sink, sql, params, row_limit, names=names)
            if truncated is not None:
                return truncated
        with _interruptible():
            self._taken.begin(self._open(), names)
        truncated = self._given(sink, sql, params, row_limit, lambda: True)
        assert truncated is not None
        return truncated

    def give_as_known(
        self,
        sink: RowSink,
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
        *,
        names: Iterable[str] | None,
        mark: bytes | None = None,
    ) -> bool | None:
        """As `give`, by what is known of the lake; None: that is not known, or another than `mark`."""
        engine = self._engine
        assert engine is not None
        with _interruptible():
            begun = engine.begin_as_known(self._open(), names)
        if begun is None:
            return None
        wanted = begun if mark is None else mark
        is_moment = partial(engine.is_unchanged, wanted)
        return self._given(sink, sql, params, row_limit, is_moment)

    def _given(
        self,
        sink: RowSink,
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
        is_moment: Callable[[], bool],
    ) -> bool | None:
        """Rows in the transaction that has begun, which then ends; None: not of one moment."""
        cursor = self._cursor
        try:
            with _interruptible():
                return self._run(sink, sql, params, row_limit, is_moment)
        except QueryError:
            if sink.has_sent or is_moment():
                raise
            return None
        finally:
            if cursor is not None:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")

    def _run(
        self,
        sink: RowSink,
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
        is_moment: Callable[[], bool],
    ) -> bool | None:
        cursor = self._open()
        with self._naming_errors(sql):
            cursor.execute(sql, dict(params)) if params else cursor.execute(sql)
            if not is_moment():  # by now it has its view of the lake
                return None
            types = tuple(str(column[1]) for column in cursor.description or ())
            reader = cursor.to_arrow_reader(_CHUNK_ROWS)
            schema = reader.schema
        sink.begin(schema, types)
        rows = 0
        while True:
            self._open()
            with self._naming_errors(sql):
                batch = next(reader, None)
            if batch is None:
                return False
            left = row_limit - rows
            rows += batch.num_rows
            if batch.num_rows and left:
                sink.take(batch.slice(0, left))
            if rows > row_limit:
                return True

    @contextmanager
    def _naming_errors(self, sql: str) -> Iterator[None]:
        """What DuckDB and Arrow say, as QueryError or Interrupted."""
        try:
            yield
        except duckdb.InterruptException:
            raise
        except duckdb.OutOfMemoryException as error:
            raise QueryError(_too_much_memory(error)) from error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._is_interrupted:
                raise Interrupted("the query was interrupted") from error
            if file := lost_file(error):
                raise QueryError(
                    f"{file} is missing or damaged: `gpuwarden collector check` on the collector's"
                    " host says what is lost; queries that do not need it work"
                ) from error
            # OSError is how Arrow says what DuckDB says while rows come, and that it lacks a type.
            if str(error).startswith("Out of Memory Error"):
                raise QueryError(_too_much_memory(error)) from error
            raise complaint(str(error), sql) from error

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._is_interrupted or self._cursor is None:
            raise Interrupted("the query was interrupted before it began")
        return self._cursor


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as error:
        raise Interrupted("the query was interrupted") from error


class Runner:
    """Runs one query after the other on an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._spill_bytes_max = -1
        self._joins = True
        self._newest = NewestRows(engine)
        self._pruned = PrunedLake(engine)
        self._judged: dict[str, _Judged] = {}
        self._lock = threading.Lock()
        self._running: tuple[int, Reading] | None = None
        self._ended = 0

    def run(
        self,
        number: int,
        sink: RowSink,
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
        newest: Mapping[str, str] = NO_FILES,
        *,
        is_admin: bool = False,
    ) -> bool:
        """Judge and run, and give the rows to the sink; whether there are more than `row_limit`.

        `number`: for `interrupt`; `newest`: files with the newest rows, by table; `is_admin`: whether it may
        read what only admins read.
        Raises QueryError, Interrupted, StoreUnavailableError.
        """
        guard.check_text(sql)
        reading = Reading(self._engine, self._engine)
        with self._lock:
            if self._ended == number:
                raise Interrupted("the query was interrupted before it began")
            self._running = number, reading
        judged: _Judged | None = None
        try:
            judged = self._judge(reading, sql)
            if not is_admin and (closed := sorted(judged.read & ADMINS_ONLY)):
                raise QueryError(f"table {closed[0]} is open to tokens of scope admin alone")
            missing = sorted(judged.parsed.parameters - params.keys())
            if missing:
                raise QueryError(f"the query needs values for ${', $'.join(missing)}")
            bound = {name: params[name] for name in judged.parsed.parameters}
            asked = judged.parsed.sql, bound, row_limit
            if judged.span is not None:
                mark = self._pruned.take(judged.span, bound)
                if mark is not None:
                    with reading.opened(self._pruned):
                        truncated = reading.give_as_known(
                            sink, *asked, names=judged.names, mark=mark
                        )
                    if truncated is not None:
                        return truncated
            is_newest = bool(judged.views) and self._newest.take(judged.views, newest)
            names = judged.state_names if is_newest else judged.names
            source: QuerySource = self._newest if is_newest else self._engine
            with reading.opened(source):
                self._order_joins(judged.may_join)
                return reading.give(sink, *asked, names=names)
        except QueryError as error:
            if judged is None:
                raise
            raise _as_asked(error, judged) from error
        finally:
            with self._lock:
                self._running = None

    def limit_spill(self, bytes_max: int) -> None:
        """Let the queries that follow spill no more than that."""
        if bytes_max != self._spill_bytes_max:
            self._engine.limit_spill(bytes_max)
            self._spill_bytes_max = bytes_max

    def let_go(self) -> None:
        """Hold no memory that the next query can have again without cost."""
        self._engine.let_go()

    def _order_joins(self, is_wanted: bool) -> None:
        if is_wanted != self._joins:
            self._engine.order_joins(is_wanted=is_wanted)
            self._joins = is_wanted

    def interrupt(self, number: int) -> None:
        """End that query, or do not begin it. From any thread."""
        with self._lock:
            running, self._ended = self._running, number
        if running is not None and running[0] == number:
            running[1].interrupt()

    def _judge(self, reading: Reading, sql: str) -> _Judged:
        """Parse and judge it, once."""
        known = self._judged.get(sql)
        if known is not None:
            return known
        with reading.opened():
            parsed = reading.parse(sql)
            guard.check(parsed)
            span = reading.span(parsed) if guard.is_plainly_named(parsed) else None
        read = guard.tables(parsed)
        views = read & KEPT.keys()
        if not guard.is_plainly_named(parsed) or self._sources(read - views):
            views = set()
        beside = frozenset[str]().union(*(KEPT[view].beside for view in views))
        judged = _Judged(
            replace(parsed, selects=()),  # the trees are large, and no longer needed
            self._sources(read),
            guard.may_join(parsed),
            frozenset(views),
            frozenset(read - views) | beside if read - views <= UPSERTED else None,
            frozenset(read),
            span,
        )
        if len(self._judged) >= _JUDGED_MAX:
            self._judged.clear()
        self._judged[sql] = judged
        return judged

    def _sources(self, names: Iterable[str]) -> frozenset[str]:
        found = (self._engine.sources.get(name, frozenset()) for name in names)
        return frozenset[str]().union(*found)


def _as_asked(error: QueryError, judged: _Judged) -> QueryError:
    """With the place in the query as it was asked, and a hint where DuckDB has none."""
    place = None if error.offset is None else error.offset + judged.parsed.shift
    hint = error.hint
    if hint is None and (column := missing_column(error.reason)) is not None:
        tables = (TABLES[name] for name in judged.read if name in TABLES)
        hint = did_you_mean(column, (c.name for t in tables for c in stored_columns(t)))
    return QueryError(error.reason, offset=None if place is None or place < 0 else place, hint=hint)


def parse(cursor: duckdb.DuckDBPyConnection, sql: str) -> Parsed:
    """Parse without running anything. Raises QueryError on a syntax error.

    The text is given to nothing but json_serialize_sql: it reads a text as running it would, odd
    blanks included, and knows SELECT alone. `extract_statements` would run arguments of a PRAGMA.
    """
    statement = split(sql)
    begins_at, explain = len(sql) - len(statement.select), len(statement.explain)
    try:
        tree = _serialized(cursor, statement.select)
    except QueryError as error:
        offset = None if error.offset is None else error.offset + begins_at
        raise QueryError(error.reason, offset=offset, hint=error.hint) from error
    if tree is None:
        return Parsed(statement.word, None, frozenset(), statement.sql, begins_at, explain)
    selects = tuple(tree["statements"])
    names = frozenset(named["key"] for s in selects for named in s["named_param_map"])
    return Parsed(statement.word, selects, names, statement.sql, begins_at, explain)


def _serialized(cursor: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any] | None:
    """DuckDB's syntax tree; None where a statement is not a SELECT."""
    try:
        row = cursor.execute("SELECT json_serialize_sql($1)", [sql]).fetchone()
    except duckdb.InterruptException:
        raise
    except duckdb.Error as error:
        raise QueryError(one_line(error)) from error
    try:
        tree: dict[str, Any] = json.loads(row[0] if row else "")
    except RecursionError as error:
        raise QueryError("the query is nested too deeply") from error
    except ValueError as error:
        raise QueryError("the query cannot be judged: write it in another way") from error
    if not tree["error"]:
        return tree
    message = str(tree["error_message"])
    if message.startswith(_NOT_A_SELECT):
        return None
    position = str(tree.get("position", ""))
    offset = (
        int(position) if position.isdecimal() else None
    )  # in characters, unlike those of the tree
    raise QueryError(message.partition("\n")[0][:500], offset=offset)


def _too_much_memory(error: Exception) -> str:
    return (
        f"the query needs more memory than the collector gives it ({one_line(error)}): "
        "select a shorter time or fewer columns, or aggregate"
    )
