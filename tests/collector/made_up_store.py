"""Puts rows into a store and moves them to its lake, as a collector does, without one that runs."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.clock import SystemClock
from gpuwarden.schema import UPSERTED
from gpuwarden.teams import Team
from gpuwarden_collector.query import team_rows
from gpuwarden_collector.query.execute import CollectedRows, Runner
from gpuwarden_collector.query.team_rows import TeamRows, pair
from gpuwarden_collector.query.team_store import TeamStore
from gpuwarden_collector.storage import lake_reader
from gpuwarden_collector.storage.address import local_address
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import Engine, EngineLimits
from gpuwarden_collector.storage.extensions import load_extension
from gpuwarden_collector.storage.hot import RowsSince
from gpuwarden_collector.storage.lake import seal
from gpuwarden_collector.storage.lake_catalogue import PostgresCatalogue
from gpuwarden_collector.storage.recent_rows import RecentRows
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES
from gpuwarden_collector.storage.state import FILE_NAME, StateFile
from gpuwarden_collector.storage.views import hot_table

LIMITS = EngineLimits(memory="512MiB", threads=1)


def put(
    database: Database, name: str, select: str, parameters: Sequence[Any] | dict[str, Any] = ()
) -> None:
    """Store the rows of a SELECT, maps and lists as JSON; columns that it leaves out are NULL."""
    with database.reading([name]) as cursor:
        cursor.register("empty", SCHEMAS[name].empty_table())
        rows = cursor.execute(
            f"FROM empty UNION ALL BY NAME ({select})", parameters
        ).to_arrow_table()
        cursor.unregister("empty")
    rows = rows.select(SCHEMAS[name].names).cast(SCHEMAS[name])
    if name in UPSERTED:
        commit(database, Changes(upserted={name: rows}))
    else:
        commit(database, Changes(appended={name: rows}))


def move(database: Database, segment: int, collector: str | None = None) -> dict[str, int]:
    """Copy a segment's rows to the lake; rows by table."""
    with database.maintaining(TABLE_NAMES, after=segment - 1, until=segment) as cursor:
        sources = {name: f"SELECT * FROM {hot_table(name)}" for name in TABLE_NAMES}
        root = database.lake_root
        return seal(cursor, root, collector or database.collector, segment, sources)


def move_all(database: Database) -> None:
    """Have the lake hold all rows, and no segment."""
    database.freeze()
    for segment in database.frozen:
        move(database, segment)
        with database.state.writing() as writing:
            writing.set_meta({"ledger_until": segment})
        database.drop(segment)


def asked(database: Database, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Rows of a query."""
    with database.reading() as cursor:
        rows: list[tuple[Any, ...]] = cursor.execute(sql, parameters).fetchall()
        return rows


def asked_in(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query to the store in a folder that nobody has open."""
    database = Database.open(folder, LIMITS)
    try:
        return asked(database, sql)
    finally:
        database.close()


def counted(database: Database) -> tuple[int, int]:
    """Rows of gpu_samples, and those that are different."""
    (found,) = asked(database, "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples")
    return int(found[0]), int(found[1])


class OwnCatalogue(PostgresCatalogue):
    """A catalogue that this process has open to write: SQLite's locks are none between its two libraries in a process,
    DuckDB's and Python's. Query processes have Python's alone."""

    def __init__(self, path: Path) -> None:
        self._duckdb = duckdb.connect(config={"threads": 1})
        load_extension(self._duckdb, "sqlite_scanner")
        self._duckdb.execute(f"ATTACH '{path}' AS server (TYPE sqlite, READ_ONLY)")
        self._duckdb.execute("USE server")
        # It takes scans of two SQLite tables with the same columns for one (1.5.5).
        self._duckdb.execute("SET disabled_optimizers = 'common_subplan'")

    def ask_named(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        found = self._run(sql)
        return [column[0] for column in found.description or ()], found.fetchall()

    def names(self, beginning: str) -> list[str]:
        where = f"starts_with(table_name, '{beginning}')"
        return [row[0] for row in self.ask(f"SELECT table_name FROM duckdb_tables() WHERE {where}")]


@contextmanager
def in_this_process() -> Iterator[None]:
    """Within, engines read the catalogue of a store that this process has open."""
    before = lake_reader.open_catalogue
    lake_reader.open_catalogue = lambda address: OwnCatalogue(Path(address.catalog))
    try:
        yield
    finally:
        lake_reader.open_catalogue = before


@dataclass
class Reader:
    """A process's reader, with rows that it may keep."""

    runner: Runner
    recent: RecentRows
    """Asked for nothing where it keeps none."""
    rows: TeamRows | None = None
    """What reads the store for a reader of a team, in a thread here."""

    def ask(self, sql: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        sink = CollectedRows()
        with self._connected():
            truncated = self.runner.run(1, sink, sql, params or {}, 100_000)
        rows: list[dict[str, Any]] = sink.rows(truncated=truncated).data.to_pylist()
        return rows

    @contextmanager
    def _connected(self) -> Iterator[None]:
        store = self.runner.team_store
        if self.rows is None or store is None:
            yield
            return
        ours, theirs = pair()
        serving = threading.Thread(
            target=self.rows.serve, args=(theirs, team_rows.Reader(store.team))
        )
        serving.start()
        with store.connected(ours):
            yield
        serving.join(20)


def reader(
    folder: Path, spill: Path, bytes_max: int = 64 * 1024 * 1024, team: Team | None = None
) -> Reader:
    """Of a store that this process has open; `bytes_max`: of the rows that it keeps, 0 for none."""
    since = RowsSince()
    state = StateFile(folder / FILE_NAME, is_read_only=True)
    address = local_address(folder)
    with in_this_process():
        engine = Engine(
            folder,
            address,
            state,
            LIMITS,
            reads_alone=True,
            spill_dir=spill,
            rows_since=since,
        )
    recent = RecentRows(engine, since, SystemClock(), bytes_max)
    if team is None:
        return Reader(Runner(engine, recent if bytes_max else None), recent)
    return Reader(Runner(TeamStore(team, LIMITS, spill / "team")), recent, TeamRows(lambda: engine))
