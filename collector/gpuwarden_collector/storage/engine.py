"""Shows lake, segments and state file as one set of tables and views, in a DuckDB in memory.

Views such as `main.gpu_samples` show the lake, and the rows of the segments that the lake does not hold.
The lake itself stores the number of the last sealed segment, so `begin` reads that number in the query's
own snapshot and shows the query exactly the later segments. Tables whose rows change are copies in memory,
which `refresh` updates from the state file.
"""

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc

from gpuwarden.collector_samples import COLLECTOR_SAMPLES
from gpuwarden.schema import TABLES, UPSERTED, parsed_sql, view_words
from gpuwarden_collector.processes.footprint import free_memory
from gpuwarden_collector.storage import lake, views
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.hot import Damage, HotRows, MissingSegmentError, RowsSince
from gpuwarden_collector.storage.lake_reader import LakeReader
from gpuwarden_collector.storage.segment import (
    FOLDER,
    TABLE_NAMES,
    SegmentError,
    segment_numbers,
)
from gpuwarden_collector.storage.state import SEEN_KEYS, StateFile
from gpuwarden_collector.storage.views import hot_table

log = logging.getLogger(__name__)

_NOT_WITH_ARROW = "join_filter_pushdown"
"""An optimizer that pushes a bloom filter of a join's smaller side into the scan of the other side. The scan of
an Arrow table fails on it (1.5.5): "Pushdown Filter Type BLOOM_FILTER is not currently supported"."""
_SNAPSHOT_TRIES = 5
AHEAD_MAX = timedelta(seconds=10)
"""How far a node's clock may be ahead of the collector's for `local_since` to hold."""


Show = Callable[[duckdb.DuckDBPyConnection, Collection[str]], None]
"""Shows a cursor, outside of a transaction, the lake's rows of some tables. May raise duckdb.Error."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """DuckDB's limits. `threads` 0: one for every two CPUs.

    A thread that waits for another thread of a statement does not sleep (DuckDB 1.5.5), so an insert into one
    table costs twice the CPU with two threads, and takes as long.
    """

    memory: str = "2GiB"
    temp: str = "10GiB"
    """Most disk space for spilling; `limit_spill` may lower it."""
    threads: int = 0


@contextmanager
def _reading_segments(*, is_strict: bool = False) -> Iterator[None]:
    """Raise errors of segments as StoreUnavailableError; `is_strict`: but not MissingSegmentError."""
    try:
        yield
    except (MissingSegmentError, SegmentError, OSError) as error:
        if is_strict and isinstance(error, MissingSegmentError):
            raise
        raise StoreUnavailableError(str(error)) from error


class QueryDatabase:
    """A DuckDB in memory that shows the public tables. Only the creator uses `connection`; any thread may use a
    cursor of its own."""

    def __init__(self, limits: EngineLimits, spill_dir: Path) -> None:
        """`spill_dir`: a folder of its own. Raises duckdb.Error, OSError."""
        spill_dir.mkdir(exist_ok=True, parents=True)
        self.spill_dir = spill_dir
        self._limits = limits
        self.threads = limits.threads or max(1, (os.cpu_count() or 1) // 2)
        """Threads of DuckDB."""
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": limits.memory,
            "threads": self.threads,
            "temp_directory": str(spill_dir),
            # Queries must not read Python variables as tables.
            "python_enable_replacements": False,
        }
        self.connection = duckdb.connect(config=config)
        try:
            # As part of the configuration DuckDB shows this limit but ignores it (1.5.5).
            self.connection.execute(f"SET GLOBAL max_temp_directory_size = '{limits.temp}'")
            self.connection.execute(f"ATTACH ':memory:' AS {views.NAME}")
            self.connection.execute(f"USE {views.NAME}")
            self.connection.execute("SET GLOBAL TimeZone = 'UTC'")
        except BaseException:
            self.connection.close()
            raise

    def lock(self, folders: Iterable[str] = ()) -> None:
        """Refuse other files than those in these folders, and any change of the configuration. Raises duckdb.Error."""
        self.connection.execute("SET allowed_directories = $1", [list(folders)])
        self.connection.execute("SET enable_external_access = false")
        # `limit_spill` changes it; queries cannot, as only SELECT is allowed.
        self.connection.execute("SET allowed_configs = ['max_temp_directory_size']")
        self.connection.execute(f"SET GLOBAL disabled_optimizers = '{_NOT_WITH_ARROW}'")
        self.connection.execute("SET lock_configuration = true")

    def limit_spill(self, bytes_max: int) -> None:
        """Limit the bytes that all queries may spill; the limit of this database holds too.

        DuckDB refuses a limit below the bytes that are spilled now, so these are the least. Some hundred KiB of its
        own tables may stay there.
        """
        spilled = "(SELECT coalesce(sum(size), 0) FROM duckdb_temporary_files())"
        sql = f"SELECT greatest(least($1, parse_formatted_bytes($2)), {spilled})"
        with suppress(duckdb.Error, StoreUnavailableError), self.cursor() as cursor:
            row = cursor.execute(sql, [bytes_max, self._limits.temp]).fetchone()
            if row:
                cursor.execute(f"SET GLOBAL max_temp_directory_size = '{int(row[0])}B'")

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor, for a thread. Raises StoreUnavailableError."""
        try:
            cursor = self.new_cursor()
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error
        try:
            yield cursor
        finally:
            cursor.close()

    def new_cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor that the caller closes, or keeps as long as the database. Raises duckdb.Error."""
        cursor = self.connection.cursor()
        cursor.execute(f"USE {views.NAME}")
        return cursor


class Engine(QueryDatabase):
    """Shows the store."""

    def __init__(
        self,
        data_dir: Path,
        address: LakeAddress,
        state: StateFile,
        limits: EngineLimits,
        *,
        reads_alone: bool = False,
        is_lake_away: bool = False,
        spill_dir: Path,
        rows_since: RowsSince | None = None,
    ) -> None:
        """`reads_alone`: without DuckLake, for queries of users. `is_lake_away`: show segments and state alone, and do
        not open the lake. `spill_dir`: a folder of its own. `rows_since`: receives all rows that come to the segments.
        Raises duckdb.Error, FileNotFoundError, OSError, StartError, StoreUnavailableError."""
        self._state = state
        self._known: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._segments = data_dir / FOLDER
        self._hot = HotRows(self._segments, rows_since)
        self.collector = state.collector
        self._is_gap_said = False
        self.is_lake_away = is_lake_away
        self.lake: LakeReader | None = None
        """None: DuckLake reads the lake, or the lake is away."""
        os.environ.update(address.environment)
        super().__init__(limits, spill_dir)
        try:
            if reads_alone and not is_lake_away:
                self.lake = LakeReader(address, self.collector)
                self.lake.attach(self.connection)
            elif not is_lake_away:
                lake.attach(self.connection, address)
            self._create()
            self.refresh()
            self.lock(lake.allowed_folders(data_dir, address))
        except BaseException:
            self.connection.close()
            raise

    @property
    def damaged(self) -> list[Damage]:
        """Damaged parts of the segments that were read."""
        return self._hot.damaged

    def forget(self, until: int) -> None:
        """Drop the rows of segments up to a number from memory, and return free memory to the system."""
        self._hot.forget(until)
        free_memory()

    def refresh(self, names: Iterable[str] | None = None) -> None:
        """Copy changed rows of these tables from the state file; None: all tables. Raises StoreUnavailableError."""
        with self._lock:
            for name in sorted(UPSERTED if names is None else UPSERTED & set(names)):
                revision, deleted = self._known.get(name, (-1, 0))
                changed = self._state.changes(name, revision, deleted)
                if changed is None:
                    continue
                seen_rows = 0 if changed.last_seen is None else changed.last_seen.num_rows
                is_cleared = changed.is_whole and name in self._known  # it is created empty
                if changed.rows.num_rows or seen_rows or is_cleared:
                    self._update(name, changed.rows, changed.last_seen, changed.is_whole)
                self._known[name] = changed.revision, self._state.deletions(name)

    def begin(
        self,
        cursor: duckdb.DuckDBPyConnection,
        names: Iterable[str] | None = None,
        *,
        show: Show | None = None,
        shown: MutableMapping[str, Any] | None = None,
    ) -> None:
        """Begin a transaction in which the cursor sees one moment of the store.

        `names`: tables whose segment rows it needs; None: any. For an engine that reads alone: `show` replaces the
        function that shows the cursor the lake's rows; `shown` holds the segment rows that the cursor sees already,
        by table, and is updated. Raises StoreUnavailableError.
        """
        segments = self.look_at(cursor, names, show)
        try:
            # Tables that are registered within a transaction end with it.
            _register(cursor, segments, {} if shown is None else shown)
            if self.lake is not None or self.is_lake_away:
                cursor.execute("BEGIN TRANSACTION READ ONLY")
        except duckdb.Error as error:
            _roll_back(cursor)
            raise StoreUnavailableError(one_line(error)) from error

    def look_at(
        self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None, show: Show | None
    ) -> Mapping[str, Any]:
        """The segments' rows of these tables, by table, that the lake does not hold at this moment. `names`, `show`: as
        `begin`. Without a LakeReader it begins a transaction. Raises StoreUnavailableError."""
        self.refresh()
        wanted = _wanted(names)
        if self.is_lake_away:  # without the lake no row appears twice
            with _reading_segments():
                needed = {*wanted, COLLECTOR_SAMPLES.name} if wanted else ()
                return self._hot.tables(needed, self._before_segments(), is_strict=False)
        before: int | None = None
        gap = ""
        for _ in range(_SNAPSHOT_TRIES):
            try:
                if self.lake is None:
                    cursor.execute("BEGIN TRANSACTION READ ONLY")
                if not wanted:
                    return {}
                sealed = self._sealed(cursor, wanted, show)
                if sealed == before:
                    self._log_gap(gap)
                is_strict = sealed != before
                with _reading_segments(is_strict=is_strict):
                    return self._hot.tables(wanted, sealed, None, is_strict=is_strict)
            except MissingSegmentError as error:
                _roll_back(cursor)
                before = sealed
                gap = str(error)
            except duckdb.Error as error:
                _roll_back(cursor)
                raise StoreUnavailableError(one_line(error)) from error
            except BaseException:
                _roll_back(cursor)
                raise
        raise StoreUnavailableError("samples move to the lake faster than the query can read them")

    def _sealed(
        self, cursor: duckdb.DuckDBPyConnection, names: Collection[str], show: Show | None
    ) -> int:
        """The newest segment that the lake holds in the cursor's snapshot; shows the cursor the lake's rows."""
        if self.lake is None:
            return lake.sealed_segment(cursor, self.collector)
        self.lake.look(names)
        (show or self.lake.show)(cursor, names)
        return self.lake.sealed

    def begin_outside_lake(
        self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None
    ) -> None:
        """Begin a transaction for a query that reads neither lake nor segments. `names`: tables of the state file;
        None: all. Raises StoreUnavailableError."""
        self.refresh(names)
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error

    def _before_segments(self) -> int:
        with _reading_segments():
            return min(segment_numbers(self._segments), default=1) - 1

    def local_since(self) -> datetime | None:
        """The instant (naive UTC) from which the segments hold all stored rows; None: it is unknown.

        The collector stores a row about itself each minute, with the current time. All rows that came after
        the oldest of these are in the same segment or a later one. Raises StoreUnavailableError.
        """
        name = COLLECTOR_SAMPLES.name
        with _reading_segments():
            rows = self._hot.tables([name], self._before_segments(), is_strict=False)[name]
        own = rows.filter(pc.equal(rows["collector"], self.collector))
        oldest = pc.min(own["ts"]).as_py()
        return None if oldest is None else oldest + AHEAD_MAX

    def look(self, after: int) -> None:
        """Read the rows that came to the segments behind `after`. Raises StoreUnavailableError."""
        with _reading_segments():
            self._hot.look(after)

    def register(
        self,
        cursor: duckdb.DuckDBPyConnection,
        names: Iterable[str],
        after: int,
        until: int | None = None,
    ) -> Mapping[str, Any]:
        """Show a cursor the rows of the segments behind `after`, up to `until`, as `hot_table(name)`; their Arrow
        tables. A missing segment is skipped. Raises StoreUnavailableError, duckdb.Error."""
        with _reading_segments():
            tables = self._hot.tables(names, after, until, is_strict=False)
        _register(cursor, tables, {})
        return tables

    def join_hot(self, after: int) -> int:
        """Write files of joined rows, as `HotRows.join`. Raises StoreUnavailableError."""
        with _reading_segments():
            return self._hot.join(after)

    def release_pages(self) -> None:
        """Release the pages of mapped rows; the next query reads them from the page cache."""
        self._hot.release_pages()

    def _log_gap(self, gap: str) -> None:
        if not self._is_gap_said:
            self._is_gap_said = True
            log.error(
                "rows are lost: a segment is neither here nor in the lake", extra={"reason": gap}
            )

    def _create(self) -> None:
        if self.is_lake_away:
            views.create(self.connection, with_lake=False)
            return
        try:
            views.copy(self.connection, self.spill_dir)
            if self.lake is not None:
                views.copy_public(self.connection, self.spill_dir)
        except (OSError, duckdb.Error) as error:  # such as a full disk
            log.info("views are created, not copied", extra={"reason": one_line(error)})
            views.create(self.connection)

    def _update(self, name: str, rows: Any, seen: Any | None, is_whole: bool) -> None:
        try:
            with self.cursor() as cursor:
                if not is_whole and not rows.num_rows:
                    self._update_seen(cursor, name, seen)
                else:
                    self._update_rows(cursor, name, rows, seen, is_whole)
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error

    def _update_seen(self, cursor: duckdb.DuckDBPyConnection, name: str, seen: Any) -> None:
        """Update `last_seen_at`, which changes every few seconds, without a new version of the table."""
        cursor.register("seen", seen)
        cursor.execute(
            f"UPDATE main.{name} SET last_seen_at = s.last_seen_at FROM seen s "
            f"WHERE s.key = {name}.{SEEN_KEYS[name]} AND s.last_seen_at IS NOT NULL"
        )

    def _update_rows(
        self,
        cursor: duckdb.DuckDBPyConnection,
        name: str,
        rows: Any,
        seen: Any | None,
        is_whole: bool,
    ) -> None:
        key = ", ".join(TABLES[name].key)
        merged = f"SELECT {parsed_sql(TABLES[name])} FROM incoming"
        if not is_whole:
            merged += (
                f" UNION ALL BY NAME FROM main.{name} "
                f"WHERE ({key}) NOT IN (SELECT ({key}) FROM incoming)"
            )
        if seen is not None:
            merged = (
                "SELECT t.* REPLACE (coalesce(s.last_seen_at, t.last_seen_at) AS last_seen_at) "
                f"FROM ({merged}) t LEFT JOIN seen s ON s.key = t.{SEEN_KEYS[name]}"
            )
        cursor.register("incoming", rows)
        if seen is not None:
            cursor.register("seen", seen)
        cursor.execute(f"CREATE OR REPLACE TABLE main.{name} AS {merged}")


def _register(
    cursor: duckdb.DuckDBPyConnection, tables: Mapping[str, Any], shown: MutableMapping[str, Any]
) -> None:
    for name, table in tables.items():
        if shown.get(name) is not table:
            cursor.register(hot_table(name), table)
            shown[name] = table


def _wanted(names: Iterable[str] | None) -> tuple[str, ...]:
    return TABLE_NAMES if names is None else tuple(set(names) & set(TABLE_NAMES))


def sources(tables: Iterable[str]) -> Mapping[str, frozenset[str]]:
    """Which of these tables each public table or view may read."""
    wanted = frozenset(tables)
    found = {name: frozenset({name}) & wanted for name in TABLES}
    for name, words in view_words():
        # Extra names do no harm, such as a column with the name of a table.
        read = (found[word] for word in words if word in found)
        found[name] = frozenset[str]().union(*read)
    return found


def _roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):
        cursor.execute("ROLLBACK")
