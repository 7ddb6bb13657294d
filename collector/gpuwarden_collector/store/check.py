"""Looks over a store that no collector has open, and repairs what can be repaired.

Nothing is deleted: what must go is set aside in `lost/` beside the database.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from gpuwarden.life import StartError
from gpuwarden_collector.ledger import from_text
from gpuwarden_collector.store.address import CATALOGUE, FILES, FOLDER
from gpuwarden_collector.store.database import FILE_NAME, SCHEMA_VERSION, start_error
from gpuwarden_collector.store.errors import one_line
from gpuwarden_collector.store.extensions import load_extension
from gpuwarden_collector.store.files import LakeFile, live_files, sync
from gpuwarden_collector.store.generations import generations, hot_table
from gpuwarden_collector.store.lake import SEALED_TABLES, sealed_generation

ASIDE = "lost"
_CORRUPT_LOG = re.compile(r"Corrupt WAL file: entry at byte position (\d+)")
_HOT_SQL = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hot'"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong: what it is, what is lost by it, and what to do."""

    what: str
    todo: str
    repair: Callable[[], None] | None = None
    """Does it; None: nothing that a program may decide."""


@dataclass(slots=True)
class Report:
    """What was found."""

    problems: list[Problem] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def check(data_dir: Path, *, reads_all: bool = False) -> Report:
    """Look over the store in a folder. `reads_all`: every value of every file, not their ends alone.

    Raises StartError when there is none, or a collector has it open.
    """
    hot_path, catalogue_path = data_dir / FILE_NAME, data_dir / FOLDER / CATALOGUE
    if not hot_path.exists() and not catalogue_path.exists():
        raise StartError(f"{data_dir} has no store: choose another with --data-dir")
    report = Report()
    identity, hot = _check_hot(hot_path, report)
    sealed = _check_lake(data_dir, identity, report, reads_all=reads_all)
    if hot and sealed is not None:
        _check_generations(hot, sealed, report)
    return report


def _check_hot(path: Path, report: Report) -> tuple[str | None, list[int]]:
    """The collector's identity and its generations."""
    if not path.exists():
        todo = (
            "restore a backup, or start the collector: it begins a new one, without its last hours"
        )
        report.problems.append(Problem(f"{path} is missing", todo))
        return None, []
    try:
        with _opened(path) as connection:
            (version,) = _row(connection, "SELECT max(version) FROM internal.schema_version")
            if version != SCHEMA_VERSION:
                report.facts.append(f"{path.name} has schema version {version}")
                return None, []
            (identity,) = _row(connection, "SELECT collector FROM internal.identity")
            _check_ledger(connection, report)
            found = generations(connection)
            there = {f"hot.{name}" for (name,) in connection.execute(_HOT_SQL).fetchall()}
            rows = sum(
                _row(connection, f"SELECT count(*) FROM {table}")[0]
                for generation in found
                for table in (hot_table(name, generation) for name in SEALED_TABLES)
                if table in there  # a table that is newer than the store comes with its next start
            )
    except duckdb.Error as error:
        report.problems.append(
            _damaged(path, error, "all that had not moved to the lake yet", "begins a new one")
        )
        return None, []
    report.facts.append(f"{path.name}: {rows} rows that have not moved to the lake")
    return str(identity), found


def _check_ledger(connection: duckdb.DuckDBPyConnection, report: Report) -> None:
    rows = connection.execute(
        "SELECT agent_id, boot_id, floor, ranges FROM internal.ledger"
    ).fetchall()
    for agent, boot, floor, ranges in rows:
        try:
            spans = from_text(ranges)
            edges = [edge for span in spans for edge in span]
            is_right = edges == sorted(edges) and (not edges or edges[0] >= floor)
        except ValueError:
            is_right = False
        if not is_right:
            report.problems.append(
                Problem(
                    f"the ledger of agent {agent}, boot {boot}, makes no sense: {ranges[:60]!r}",
                    "restore a backup; its batches could be stored twice",
                )
            )
    report.facts.append(f"ledger: {len(rows)} agents' boots")


def _check_lake(
    data_dir: Path, identity: str | None, report: Report, *, reads_all: bool
) -> int | None:
    path = data_dir / FOLDER / CATALOGUE
    on_disk = set((data_dir / FOLDER / FILES).rglob("*.parquet"))
    if not path.exists():
        if on_disk:
            report.problems.append(_lost_catalogue(data_dir, f"{path} is missing", len(on_disk)))
        return None
    try:
        with _opened(path) as connection:
            files = live_files(connection, str(data_dir / FOLDER / FILES), catalogue="main")
            known = _known_names(connection)
        sealed = None if identity is None else _sealed(data_dir, identity)
    except duckdb.Error as error:
        if at := _CORRUPT_LOG.search(str(error)):
            report.problems.append(_damaged_log(path, int(at[1]), "what was sealed last"))
        else:
            what = f"{path} is damaged: {one_line(error)}"
            report.problems.append(_lost_catalogue(data_dir, what, len(on_disk)))
        return None
    lost = [(file, wrong) for file in files if (wrong := _wrong(file, reads_all=reads_all))]
    report.problems += [_lost_file(data_dir, file, wrong) for file, wrong in lost]
    rows = sum(file.rows for file in files if not file.is_deletes)
    size_bytes = sum(file.bytes for file in files)
    report.facts.append(f"lake: {len(files)} files, {rows} rows, {size_bytes} bytes")
    if strangers := {file for file in on_disk if file.name not in known}:
        report.facts.append(
            f"lake: {len(strangers)} files that the catalogue does not know, left by a kill;"
            " the collector deletes them after a day"
        )
    return sealed


def _check_generations(hot: list[int], sealed: int, report: Report) -> None:
    if sealed == 0 and hot[0] > 1:
        report.facts.append(
            "the lake is newer than the database: what an older one had is not in it"
        )
    elif hot[0] > sealed + 1:
        report.problems.append(
            Problem(
                f"the lake ends with generation {sealed} and the database begins with"
                f" {hot[0]}: what was between them is in neither",
                "restore a backup; files that the catalogue does not know may hold it, and stay"
                " until the next seal",
            )
        )
    if hot[-1] <= sealed:
        report.facts.append("the database is older than the lake; the collector goes on behind it")
    elif hot[0] <= sealed:
        report.facts.append(
            "a generation is in the lake and not yet dropped; the collector drops it"
        )


def _known_names(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Names of all files that the catalogue has any use for: they are unique."""
    rows = connection.execute(
        "SELECT path FROM ducklake_data_file UNION SELECT path FROM ducklake_delete_file "
        "UNION SELECT path FROM ducklake_files_scheduled_for_deletion"
    ).fetchall()
    return {path.rpartition("/")[2] for (path,) in rows}


def _sealed(data_dir: Path, identity: str) -> int:
    """The newest generation that the lake has of the collector."""
    with closing(duckdb.connect()) as connection:
        load_extension(connection, "ducklake")
        folder = str(data_dir / FOLDER).replace("'", "''")
        connection.execute(
            f"ATTACH 'ducklake:{folder}/{CATALOGUE}' AS lake "
            f"(DATA_PATH '{folder}/{FILES}', OVERRIDE_DATA_PATH true, READ_ONLY)"
        )
        return sealed_generation(connection, identity)


def _wrong(file: LakeFile, *, reads_all: bool) -> str | None:
    """What is wrong with a file; None: nothing."""
    path = Path(file.path)
    try:
        if (size := path.stat().st_size) != file.bytes:
            return f"has {size} bytes, not {file.bytes}"
        with pq.ParquetFile(path) as parquet:
            if (rows := parquet.metadata.num_rows) != file.rows:
                return f"has {rows} rows, not {file.rows}"
            if reads_all:
                for _ in parquet.iter_batches():
                    pass
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowException) as error:
        return f"cannot be read: {one_line(error)}"
    return None


def _lost_file(data_dir: Path, file: LakeFile, wrong: str) -> Problem:
    path = Path(file.path)
    if file.is_deletes:
        lost = f"{file.rows} rows of {file.table} that had been replaced are back beside their new"
    else:
        until = f" until {file.newest}" if file.newest else ""
        lost = f"{file.rows} rows of {file.table}{until} are lost"

    def repair() -> None:
        if path.exists():
            set_aside(data_dir, path)
        with closing(duckdb.connect(str(data_dir / FOLDER / CATALOGUE))) as connection:
            _forget(connection, file)

    return Problem(
        f"{path.relative_to(data_dir) if path.is_relative_to(data_dir) else path} {wrong}",
        f"put the file back from a backup; --repair sets it aside, and {lost}",
        repair,
    )


def _forget(connection: duckdb.DuckDBPyConnection, file: LakeFile) -> None:
    connection.execute("BEGIN")
    if file.is_deletes:
        connection.execute("DELETE FROM ducklake_delete_file WHERE delete_file_id = $1", [file.id])
    else:
        for table in (
            "ducklake_data_file",
            "ducklake_delete_file",
            "ducklake_file_column_stats",
            "ducklake_file_partition_value",
        ):
            connection.execute(f"DELETE FROM {table} WHERE data_file_id = $1", [file.id])
        connection.execute(
            "CREATE TABLE IF NOT EXISTS gpuwarden_dropped (table_name VARCHAR, day DATE, "
            '"rows" BIGINT, bytes BIGINT, reason VARCHAR, dropped_at TIMESTAMP)'
        )
        connection.execute(
            "INSERT INTO gpuwarden_dropped VALUES ($1, $2::TIMESTAMP::DATE, $3, $4, 'lost', "
            "now()::TIMESTAMP)",
            [file.table, file.newest, file.rows, file.bytes],
        )
    connection.execute("COMMIT")


def _lost_catalogue(data_dir: Path, what: str, files: int) -> Problem:
    def repair() -> None:
        set_aside(data_dir, data_dir / FOLDER)

    return Problem(
        what,
        f"restore a backup; --repair sets the lake aside, and the collector begins a new one: the"
        f" {files} Parquet files keep their rows, but no query sees them",
        repair,
    )


def _damaged(path: Path, error: duckdb.Error, lost: str, after: str) -> Problem:
    if at := _CORRUPT_LOG.search(str(error)):
        return _damaged_log(path, int(at[1]), "the commits after it")
    log = path.with_name(f"{path.name}.wal")

    def repair() -> None:
        for file in (path, log):
            if file.exists():
                set_aside(path.parent, file)

    return Problem(
        f"{path} is damaged: {one_line(error)}",
        f"restore a backup; --repair sets it aside, and the collector {after}: lost is {lost}",
        repair,
    )


def _damaged_log(path: Path, position: int, lost: str) -> Problem:
    log = path.with_name(f"{path.name}.wal")

    def repair() -> None:
        content = log.read_bytes()
        data_dir = path.parent if path.name == FILE_NAME else path.parent.parent
        set_aside(data_dir, log)
        log.write_bytes(content[:position])
        sync([log, log.parent])

    return Problem(
        f"{log} is damaged at byte {position}",
        f"restore a backup; --repair cuts it there: lost is {lost}",
        repair,
    )


def set_aside(data_dir: Path, path: Path) -> Path:
    """Move a file or folder to `lost/`, under a name of its own; where it is then."""
    folder = data_dir / ASIDE
    folder.mkdir(exist_ok=True)
    stamp = f"{path.stat().st_mtime_ns:x}"
    target = folder / f"{path.name}.{stamp}"
    path.rename(target)
    sync([folder, path.parent])
    return target


def _row(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: list[object] | None = None
) -> tuple[Any, ...]:
    row = connection.execute(sql, parameters or []).fetchone()
    return tuple(row) if row else ()


@contextmanager
def _opened(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The file, for reading. Raises StartError when a process has it open, duckdb.Error."""
    try:
        connection = duckdb.connect(str(path), read_only=True)
    except duckdb.IOException as error:
        if "Could not set lock" in str(error):
            raise start_error(path, error) from error
        raise
    with closing(connection):
        yield connection
