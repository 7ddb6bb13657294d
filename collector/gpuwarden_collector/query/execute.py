"""Parses SQL, chooses the source of a query and runs it; rows are passed on as they come."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from gpuwarden.clock import SystemClock
from gpuwarden.query import ExpectedQuery, LakeAwayError, QueryError
from gpuwarden.schema import ADMINS_ONLY, TABLES, UPSERTED, stored_columns
from gpuwarden.teams import OTHERS_1H
from gpuwarden.waste import WASTE_1H
from gpuwarden_collector.query import guard
from gpuwarden_collector.query.complaints import complaint, did_you_mean, missing_column
from gpuwarden_collector.query.encode import ResultRows
from gpuwarden_collector.query.guard import NOBODY, Parsed, closed_tables, keep_to_own, own_rows_sql
from gpuwarden_collector.query.lake_away import refuse_before, refuse_rollups
from gpuwarden_collector.query.needs import QueryNeeds, QueryPlanner, earliest_of
from gpuwarden_collector.query.port import (
    Description,
    Dialect,
    QuerySource,
    Translation,
    TypedValue,
)
from gpuwarden_collector.query.sources import (
    NewestRows,
    PlannedStore,
    PrunedLake,
    QueryTimeSpan,
    RecentQueries,
    WholeStore,
    show_running_waste,
    span_of,
)
from gpuwarden_collector.query.statement import Statement, split
from gpuwarden_collector.query.team_store import TeamStore
from gpuwarden_collector.query.time_bounds import with_cast_bounds
from gpuwarden_collector.storage.engine import Engine, sources
from gpuwarden_collector.storage.errors import is_fault, one_line, store_error, too_much_memory
from gpuwarden_collector.storage.newest_rows import KEPT
from gpuwarden_collector.storage.recent_rows import RecentRows
from gpuwarden_collector.storage.running_waste import READERS, RUNNING
from gpuwarden_collector.storage.segment import TABLE_NAMES
from gpuwarden_collector.storage.views import TEAM_SCHEMAS

NOTHING: Mapping[str, str] = {}
_NO_ROWS = frozenset({"EXPLAIN", "SHOW", "DESCRIBE", "DESC"})
_NOT_A_SELECT = "Only SELECT statements"
_CHUNK_ROWS = 2_048  # DuckDB's vector size: the row limit reads at most one vector too many
RESULT_BYTES_MAX = 64 * 1024 * 1024
_NOT_DESCRIBED = frozenset({"EXPLAIN", "SHOW", "DESCRIBE", "DESC", "SUMMARIZE"})
_COLUMNS_MAX = 10_000
_COLUMN_TYPES = """
SELECT column_name, any_value(data_type) FROM duckdb_columns()
WHERE database_name = current_database() AND schema_name = 'main'
GROUP BY column_name HAVING count(DISTINCT data_type) = 1
"""
_JUDGED_MAX = 256
"""Most judged queries in the cache: rules and pages repeat the same texts."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A query that may run."""

    parsed: Parsed
    names: frozenset[str]
    """Tables of samples and rollups that it reads."""
    names_running: frozenset[str] | None
    """`names` without those that only the waste of the current hours reads, which a file has; None: it reads no waste."""
    views: frozenset[str]
    """Views of newest rows that it reads, if it reads nothing else of lake or segments."""
    state_names: frozenset[str] | None
    """Tables of the state file that it reads, if `views` is not empty; None: perhaps any."""
    read: frozenset[str]
    """Names in its FROM clauses: tables, views and WITH queries."""
    span: QueryTimeSpan | None
    """Its bounds of `ts`; None: unknown, or it reads more than one table."""
    cast_sql: str | None
    """The query with its bounds cast to the type of `ts`; None: no cast is needed."""
    may_be_recent: bool
    """Whether it is a plain SELECT from tables of samples or rollups."""
    dialect: str
    translation: Translation


class Interrupted(Exception):  # noqa: N818  an outcome that the caller expects
    """The query was interrupted."""


class DatabaseFault(Exception):  # noqa: N818  not of the caller, but of DuckDB
    """DuckDB failed in a way after which this process must not answer another query."""


class RowSink(Protocol):
    """Receives the rows of a query as they come. If it raises, the query ends."""

    @property
    def has_sent(self) -> bool:
        """Whether rows were sent, so that the query cannot run again."""
        ...

    def begin(self, schema: Any, types: tuple[str, ...]) -> None:
        """Start with these columns; rows of an earlier start are dropped."""
        ...

    def take(self, batch: Any) -> None:
        """Add rows. Raises QueryError when there are too many."""
        ...


class CollectedRows:
    """A sink that holds all rows."""

    def __init__(self) -> None:
        self.has_sent = False

    def begin(self, schema: Any, types: tuple[str, ...]) -> None:
        self._schema, self._types = schema, types
        self._batches: list[Any] = []
        self._bytes = 0

    def take(self, batch: Any) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        check_bytes(self._bytes, RESULT_BYTES_MAX)

    def rows(self, *, truncated: bool) -> ResultRows:
        """All rows as one table."""
        data = pa.Table.from_batches(self._batches, schema=self._schema)
        return ResultRows(data, self._types, truncated)


def check_bytes(used: int, bytes_max: int) -> None:
    """Raise QueryError for a result that is too large to hold."""
    if used > bytes_max:
        raise QueryError(
            f"the result is larger than {bytes_max // 2**20} MiB: "
            "select fewer columns or rows, or aggregate"
        )


class Reading:
    """The cursor and read-only transaction of one query, for one thread. Any thread may call `interrupt`."""

    def __init__(
        self,
        source: QuerySource,
        known: Engine | None = None,
        planner: Callable[[], QueryPlanner] | None = None,
    ) -> None:
        """`known`: an engine, which says whether the lake is away, and `planner`, which gives the planner for then."""
        self._source = source
        self._engine = known
        self._planner = planner
        self._taken = source
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._is_interrupted = False
        self._reads_segments_alone = False

    @contextmanager
    def opened(self, source: QuerySource | None = None) -> Iterator[None]:
        """Open a cursor of a source for `parse` and `run`; None: its own source. Raises StoreUnavailableError."""
        self._taken = source or self._source
        with self._taken.cursor() as cursor:
            self._cursor = cursor
            try:
                yield
            finally:
                self._cursor = None

    def interrupt(self) -> None:
        """Interrupt the query, or do not let it begin."""
        self._is_interrupted = True
        cursor = self._cursor
        if cursor is not None:
            with suppress(duckdb.Error):
                cursor.interrupt()

    def parse(self, sql: str) -> Parsed:
        """Parse without running anything. Raises QueryError on a syntax error, Interrupted."""
        with _interruptible():
            return parse(self._open(), sql)

    def translate(self, sql: str, dialect: Dialect) -> tuple[Parsed, Translation]:
        """Parse a query of another dialect, and translate it to DuckDB's. Raises QueryError, Interrupted."""
        text = dialect.text(sql)
        parsed = self.parse(text)
        selects = parsed.selects or ()
        if len(selects) != 1:
            return parsed, Translation()
        statement = split(text)
        translation = dialect.translate(selects[0], statement.select)
        return (
            self._written(selects, statement) if translation.is_changed else parsed
        ), translation

    def kept_to_own(self, parsed: Parsed, closed: Iterable[str], token: str) -> Parsed:
        """The query with only the token's own rows of these tables. Raises QueryError."""
        standing = {}
        for table in closed:
            selects = self.parse(own_rows_sql(table, token)).selects or ()
            standing[table] = selects[0]["node"]["from_table"]
        for select in parsed.selects or ():
            keep_to_own(select, standing)
        return self._written(parsed.selects or (), split(parsed.sql))

    def _written(self, selects: Sequence[Mapping[str, Any]], statement: Statement) -> Parsed:
        """Parse a statement with a changed syntax tree again."""
        tree = json.dumps({"statements": selects})
        with _interruptible():
            row = self._open().execute("SELECT json_deserialize_sql($1)", [tree]).fetchone()
        text = statement.explain + str(row[0] if row else "")
        return replace(self.parse(text), word=statement.word)

    def show_running_waste(self, files: Mapping[str, str]) -> bool:
        """Let the view `waste` read its file; False: there is none. Raises Interrupted."""
        with _interruptible():
            return RUNNING in files and show_running_waste(self._open(), files[RUNNING])

    def column_types(self) -> Mapping[str, str]:
        """DuckDB types of public columns by name, if all columns of that name have one type. Raises Interrupted."""
        with _interruptible():
            return dict(self._open().execute(_COLUMN_TYPES).fetchall())

    def span(self, parsed: Parsed) -> QueryTimeSpan | None:
        """The bounds of `ts` of a query that may run; None: unknown. Raises Interrupted."""
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
    ) -> ResultRows:
        """The first `row_limit` rows as one table. As `give`."""
        sink = CollectedRows()
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
        """Give the sink the first `row_limit` rows; whether there are more. `names`: tables that the query reads;
        None: any. Raises QueryError, Interrupted, StoreUnavailableError."""
        if self._engine is not None and self._engine.is_lake_away:
            read = set(TABLE_NAMES if names is None else names) & set(TABLE_NAMES)
            refuse_rollups(read)
            is_read = sql.split(maxsplit=1)[0].upper() not in _NO_ROWS
            self._reads_segments_alone = is_read and bool(read)
        with _interruptible():
            self._taken.begin(self._open(), names)
        cursor = self._cursor
        try:
            with _interruptible():
                return self._run(sink, sql, params, row_limit)
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
    ) -> bool:
        cursor = self._open()
        with self._naming_errors(sql):
            if self._reads_segments_alone:
                self._check_span(sql, params)
            cursor.execute(sql, dict(params)) if params else cursor.execute(sql)
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

    def _check_span(self, sql: str, params: Mapping[str, Any]) -> None:
        """Raise LakeAwayError for a query that may need rows outside of the segments."""
        assert self._engine is not None and self._planner is not None
        reads = self._planner().reads(sql, params)
        earliest = earliest_of([read for read in reads if read.table not in UPSERTED])
        refuse_before(self._engine.local_since(), earliest)

    @contextmanager
    def _naming_errors(self, sql: str) -> Iterator[None]:
        """Raise errors of DuckDB and Arrow as QueryError or Interrupted."""
        try:
            yield
        except duckdb.InterruptException:
            raise
        except (duckdb.Error, pa.ArrowException, OSError, MemoryError) as error:
            if (reason := too_much_memory(error)) is not None:
                raise QueryError(reason) from error
            if self._is_interrupted:
                raise Interrupted("the query was interrupted") from error
            if is_fault(error):
                raise DatabaseFault(str(error)) from error
            if (of_store := store_error(error)) is not None:
                raise of_store from error
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


class _StoreSources:
    """Chooses the cheapest source of the whole store that has a query's rows."""

    def __init__(self, engine: Engine, recent: RecentRows | None) -> None:
        self._engine = engine
        self._needs = QueryNeeds(SystemClock(), lambda: QueryPlanner(engine.spill_dir))
        self._recent = None if recent is None else RecentQueries(recent, self._needs)
        self._known = PlannedStore(engine)
        self._newest = NewestRows(engine)
        self._pruned = PrunedLake(engine)
        self.whole = WholeStore(engine)

    def reading(self) -> Reading:
        """The reading of one query."""
        return Reading(self.whole, self._engine, self._needs.planner)

    def run(
        self,
        reading: Reading,
        sink: RowSink,
        judged: _Judged,
        sql: str,
        bound: Mapping[str, Any],
        row_limit: int,
        newest: Mapping[str, str],
    ) -> bool:
        """Run a query, as `Runner.run`."""
        query = sql, bound, row_limit
        recent = self._recent if judged.may_be_recent else None
        needs = None if recent is None else self._needs.of(sql, bound)
        if recent is not None and needs is not None and recent.take(*needs):
            with reading.opened(recent.rows):
                return reading.give(sink, *query, names=())
        if judged.span is not None and self._pruned.take(judged.span, bound):
            with reading.opened(self._pruned):
                return reading.give(sink, *query, names=judged.names)
        is_newest = bool(judged.views) and self._newest.take(judged.views, newest)
        names = judged.state_names if is_newest else judged.names
        if judged.may_be_recent and not is_newest and judged.names_running is None:
            needs = needs or self._needs.of(sql, bound)
            if needs is not None and self._known.take(*needs):
                with reading.opened(self._known):
                    return reading.give(sink, *query, names=judged.names)
        # The waste of the current hours needs a cursor with views of its own.
        whole = self.whole if judged.names_running is None else self._engine
        source: QuerySource = self._newest if is_newest else whole
        with reading.opened(source):
            if judged.names_running is not None and reading.show_running_waste(newest):
                names = judged.names_running
            return reading.give(sink, *query, names=names)

    def expect(self, queries: Sequence[ExpectedQuery]) -> None:
        """Keep the rows that these queries need, if this process keeps rows."""
        if self._recent is not None:
            self._recent.expect(queries)

    def release_memory(self) -> None:
        """Release memory that the next query gets back at no cost."""
        self.whole.release_memory()
        self._pruned.release_memory()
        self._known.release_memory()
        self._engine.release_pages()

    def is_lake_readable(self) -> bool:
        """Whether the lake's catalogue answers now."""
        lake = self._engine.lake
        return lake is None or lake.is_readable()


class Runner:
    """Runs queries on an engine or on a team's rows, one after the other."""

    def __init__(
        self,
        database: Engine | TeamStore,
        recent: RecentRows | None = None,
        dialects: Mapping[str, str] = NOTHING,
    ) -> None:
        """`recent`: rows that are kept for repeated queries. `dialects`: classes of Dialect by name, as
        `module:class`."""
        self._database = database
        self.team_store = database if isinstance(database, TeamStore) else None
        """None: it reads the whole store."""
        self.team = None if self.team_store is None else self.team_store.team
        self.threads = database.threads
        self._sources: _StoreSources | None = None
        """None: a team's rows have one source."""
        if isinstance(database, TeamStore):
            self._read_by = {**sources(TEAM_SCHEMAS), OTHERS_1H: frozenset({OTHERS_1H})}
        else:
            self._sources = _StoreSources(database, recent)
            self._read_by = dict(sources(TABLE_NAMES))
        self._spill_bytes_max = -1
        self._judged: dict[tuple[str, str, str], _Judged] = {}
        self._dialect_classes = dialects
        self._dialects: dict[str, Dialect] = {}
        self._catalogs: dict[str, QuerySource] = {}
        self._column_types: Mapping[str, str] | None = None
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
        newest: Mapping[str, str] = NOTHING,
        *,
        log_of: str = NOBODY,
        dialect: str = "",
    ) -> bool:
        """Check a query, run it, and give its rows to the sink; whether there are more than `row_limit`.

        `number`: for `interrupt`; `newest`: files of newest rows, by table; `log_of`: the token whose own rows of
        admins' tables it may read, or `ALL`, or `NOBODY`; `dialect`: of the SQL; "": DuckDB's.
        Raises QueryError, Interrupted, StoreUnavailableError.
        """
        guard.check_text(sql)
        reading = self._reading()
        with self._as_running(number, reading) as judging:
            judged = judging.judged = self._judge(reading, sql, dialect, log_of)
            missing = sorted(judged.parsed.parameters - params.keys())
            if missing:
                raise QueryError(f"the query needs values for ${', $'.join(missing)}")
            bound = {
                name: self._bound(judged, name, params[name]) for name in judged.parsed.parameters
            }
            text = judged.cast_sql or judged.parsed.sql
            try:
                return self._run(reading, sink, judged, text, bound, row_limit, newest)
            except QueryError as error:
                # Run the original text, so that the error's place is right.
                if judged.cast_sql is None or error.offset is None or sink.has_sent:
                    raise
            return self._run(reading, sink, judged, judged.parsed.sql, bound, row_limit, newest)

    def _run(
        self,
        reading: Reading,
        sink: RowSink,
        judged: _Judged,
        sql: str,
        bound: Mapping[str, Any],
        row_limit: int,
        newest: Mapping[str, str],
    ) -> bool:
        """Run a query that may run, as `run`."""
        if judged.translation.is_catalog:
            with self._reading_catalog(reading, judged.dialect):
                of_catalog = _OfCatalog(sink, self.dialect(judged.dialect))
                return reading.give(of_catalog, sql, bound, row_limit, names=judged.names)
        if self._sources is not None:
            return self._sources.run(reading, sink, judged, sql, bound, row_limit, newest)
        with reading.opened():
            return reading.give(sink, sql, bound, row_limit, names=judged.names)

    def _reading(self) -> Reading:
        """The reading of one query."""
        if self._sources is not None:
            return self._sources.reading()
        assert self.team_store is not None
        return Reading(self.team_store)

    def describe(
        self,
        number: int,
        sql: str,
        params: Mapping[str, Any],
        *,
        log_of: str = NOBODY,
        dialect: str,
    ) -> Description:
        """Describe the result of a query of another dialect, without running it. As `run`."""
        guard.check_text(sql)
        reading = self._reading()
        with self._as_running(number, reading) as judging:
            judged = judging.judged = self._judge(reading, sql, dialect, log_of)
            spoken = self.dialect(dialect)
            with reading.opened():
                parameters = self._parameter_types(reading, sql, spoken)
            names = judged.parsed.parameters
            samples = {n: _duckdb_value(params.get(n, spoken.sample(parameters[n]))) for n in names}
            if judged.translation.is_catalog:
                parameters = {
                    n: spoken.catalog_type(sql_type, is_parameter=True)
                    for n, sql_type in parameters.items()
                }
            try:
                return self._described(reading, judged, samples, parameters)
            except QueryError:
                unknown = [n for n in names - params.keys() if not parameters[n]]
                if not unknown:
                    raise
            # Where a text is invalid, as in a sum, NULL may be valid.
            return self._described(reading, judged, samples | dict.fromkeys(unknown), parameters)

    def _described(
        self,
        reading: Reading,
        judged: _Judged,
        bound: Mapping[str, Any],
        parameters: Mapping[str, str],
    ) -> Description:
        sql = judged.parsed.sql
        with self._reading_catalog(reading, judged.dialect):
            if judged.parsed.word in _NOT_DESCRIBED:
                rows = reading.run(sql, bound, 0, names=judged.names)
                return Description(rows.data.schema.names, rows.types, parameters)
            # DESCRIBE, like EXPLAIN, comes before the very text that was checked.
            rows = reading.run(f"DESCRIBE {sql}", bound, _COLUMNS_MAX, names=judged.names)
        names, types = (rows.data.column(at).to_pylist() for at in (0, 1))
        if judged.translation.is_catalog:
            spoken = self.dialect(judged.dialect)
            types = [spoken.catalog_type(sql_type, is_parameter=False) for sql_type in types]
        return Description(names, types, parameters)

    def _parameter_types(self, reading: Reading, sql: str, dialect: Dialect) -> Mapping[str, str]:
        parsed, _ = reading.translate(sql, dialect)
        if not parsed.parameters:
            return {}
        if self._column_types is None:
            self._column_types = reading.column_types()
        types = dialect.parameter_types([*(parsed.selects or ())], self._column_types)
        return {name: types.get(name, "") for name in parsed.parameters}

    def _bound(self, judged: _Judged, name: str, value: Any) -> Any:
        """A parameter's value in a form that DuckDB binds."""
        is_text = isinstance(value, str) and value.startswith("{")
        if is_text and name in judged.translation.listed:
            try:
                return self.dialect(judged.dialect).list_of(value)
            except ValueError as error:
                raise QueryError(f"a parameter is not a list: {error}") from error
        return _duckdb_value(value)

    def dialect(self, name: str) -> Dialect:
        """The dialect of that name, imported at the first use: few processes need one."""
        dialect = self._dialects.get(name)
        if dialect is None:
            module, _, cls = self._dialect_classes[name].partition(":")
            dialect = self._dialects[name] = getattr(import_module(module), cls)()
        return dialect

    @contextmanager
    def _reading_catalog(self, reading: Reading, dialect: str) -> Iterator[None]:
        if dialect not in self._catalogs:
            self._catalogs[dialect] = self.dialect(dialect).catalog(self._database)
        with reading.opened(self._catalogs[dialect]):
            yield

    @contextmanager
    def _as_running(self, number: int, reading: Reading) -> Iterator["_Judging"]:
        """Let `interrupt` end the query within the block; errors get their place in the original text."""
        with self._lock:
            if self._ended == number:
                raise Interrupted("the query was interrupted before it began")
            self._running = number, reading
        judging = _Judging()
        try:
            yield judging
        except LakeAwayError:
            raise
        except QueryError as error:
            if self.team_store is not None and self.team_store.failure is not None:
                raise self.team_store.failure from error
            if judging.judged is None:
                raise
            raise _as_asked(error, judging.judged) from error
        finally:
            with self._lock:
                self._running = None

    def expect(self, queries: Sequence[ExpectedQuery]) -> None:
        """Keep the rows that these queries need, if this process keeps rows."""
        if self._sources is not None:
            self._sources.expect(queries)

    def limit_spill(self, bytes_max: int) -> None:
        """Limit the bytes that the next queries may spill."""
        if bytes_max != self._spill_bytes_max:
            self._database.limit_spill(bytes_max)
            self._spill_bytes_max = bytes_max

    def release_memory(self) -> None:
        """Release memory that the next query gets back at no cost."""
        if self._sources is not None:
            self._sources.release_memory()
        elif self.team_store is not None:
            self.team_store.release_memory()

    def is_lake_readable(self) -> bool:
        """Whether the lake's catalogue answers now."""
        return self._sources is None or self._sources.is_lake_readable()

    def interrupt(self, number: int) -> None:
        """Interrupt the query of that number, or do not let it begin. Any thread may call it."""
        with self._lock:
            running, self._ended = self._running, number
        if running is not None and running[0] == number:
            running[1].interrupt()

    def _judge(self, reading: Reading, sql: str, dialect: str, log_of: str) -> _Judged:
        """Parse and check a query, or take it from the cache."""
        known = self._judged.get((dialect, sql, NOBODY)) or self._judged.get((dialect, sql, log_of))
        if known is not None:
            return known
        translation, more = Translation(), guard.NO_MORE
        with reading.opened():
            if dialect:
                spoken = self.dialect(dialect)
                parsed, translation = reading.translate(sql, spoken)
                if translation.is_catalog:
                    more = guard.Names(spoken.tables, spoken.functions)
            else:
                parsed = reading.parse(sql)
            guard.check(parsed, more)
            closed = closed_tables(guard.tables(parsed), log_of)
            if closed and log_of == NOBODY:
                raise QueryError(
                    f"table {min(closed)} needs a token: scope admin reads all rows, other tokens their own"
                )
            if closed and self.team_store is None:  # a team gets no more than its own
                parsed = reading.kept_to_own(parsed, closed, log_of)
                guard.check(parsed, more)
                translation = replace(translation, is_changed=True)
            is_plain = not translation.is_catalog and guard.is_plainly_named(parsed)
            cast = (
                with_cast_bounds([*(parsed.selects or ())], parsed.sql)
                if guard.is_select(parsed)
                else None
            )
            span = reading.span(parsed) if is_plain else None
        read = guard.tables(parsed)
        names = self._read_from(read)
        views = read & KEPT.keys()
        if not guard.is_plainly_named(parsed) or self._read_from(read - views):
            views = set()
        state_tables = frozenset[str]().union(*(KEPT[view].state_tables for view in views))
        names_running = None
        readers = read & READERS.keys()
        if readers and guard.is_plainly_named(parsed):
            beside = (read - readers).union(*(READERS[name] for name in readers))
            names_running = self._read_from(beside) | {WASTE_1H.table.name}
        judged = _Judged(
            replace(parsed, selects=()),  # the trees are large, and no longer needed
            names,
            names_running,
            frozenset(views),
            frozenset(read - views) | state_tables if read - views <= UPSERTED else None,
            frozenset(read),
            span,
            cast,
            is_plain and bool(names) and guard.is_select(parsed),
            dialect,
            translation,
        )
        if len(self._judged) >= _JUDGED_MAX:
            self._judged.clear()
        self._judged[dialect, sql, log_of if judged.read & ADMINS_ONLY else NOBODY] = judged
        return judged

    def _read_from(self, names: Iterable[str]) -> frozenset[str]:
        """Tables that a query of these tables and views reads."""
        tables = (self._read_by.get(name, frozenset()) for name in names)
        return frozenset[str]().union(*tables)


@dataclass(slots=True)
class _Judging:
    """Holds the running query, once it is checked."""

    judged: _Judged | None = None


class _OfCatalog:
    """A sink that translates column types for queries of a dialect's catalogue."""

    def __init__(self, sink: RowSink, dialect: Dialect) -> None:
        self._sink = sink
        self._dialect = dialect

    @property
    def has_sent(self) -> bool:
        """Whether rows were sent."""
        return self._sink.has_sent

    def begin(self, schema: Any, types: tuple[str, ...]) -> None:
        """Start with the dialect's types of the columns."""
        named = (self._dialect.catalog_type(sql_type, is_parameter=False) for sql_type in types)
        self._sink.begin(schema, tuple(named))

    def take(self, batch: Any) -> None:
        """Pass rows on."""
        self._sink.take(batch)


def _duckdb_value(value: Any) -> Any:
    """A value in a form that DuckDB binds."""
    if isinstance(value, TypedValue):
        try:
            return duckdb.Value(value.value, duckdb.sqltype(value.sql_type))
        except duckdb.Error as error:
            raise QueryError(one_line(error)) from error
    return value


def _as_asked(error: QueryError, judged: _Judged) -> QueryError:
    """The error with its place in the original text, and a hint if DuckDB gives none."""
    # Places in a rewritten query do not match the original text.
    is_placed = error.offset is not None and not judged.translation.is_changed
    place = (error.offset or 0) + judged.parsed.shift if is_placed else None
    hint = error.hint
    if hint is None and (column := missing_column(error.reason)) is not None:
        tables = (TABLES[name] for name in judged.read if name in TABLES)
        hint = did_you_mean(column, (c.name for t in tables for c in stored_columns(t)))
    return QueryError(error.reason, offset=None if place is None or place < 0 else place, hint=hint)


def parse(cursor: duckdb.DuckDBPyConnection, sql: str) -> Parsed:
    """Parse a query without running it. Raises QueryError on a syntax error.

    Only json_serialize_sql gets the text: it parses as running the text would, odd blanks included, and accepts
    only SELECT. `extract_statements` would run arguments of a PRAGMA.
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
        raise QueryError("the query cannot be checked: write it in another way") from error
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
