"""Checks a store that no collector has open, and repairs it where possible.

Nothing is deleted: files that must go are set aside in `lost/` in the data folder.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.data_folder import OWN_FILES, OwnFile, strangers
from gpuwarden.lifecycle import StartError
from gpuwarden.query import text_sql
from gpuwarden_collector.storage.address import CATALOGUE, FILES, FOLDER, METADATA
from gpuwarden_collector.storage.errors import one_line
from gpuwarden_collector.storage.extensions import load_extension
from gpuwarden_collector.storage.hot import Segment, end_of
from gpuwarden_collector.storage.lake import sealed_segment
from gpuwarden_collector.storage.lake_files import LakeFile, live_files, set_aside
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import SegmentError, segment_numbers, segment_path
from gpuwarden_collector.storage.segment_log import held
from gpuwarden_collector.storage.state import FILE_NAME, SCHEMA_VERSION, ranges_from_text


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: what is wrong, and what to do with which loss."""

    what: str
    todo: str
    repair: Callable[[], None] | None = None
    """Repairs it; None: a person must decide."""


@dataclass(slots=True)
class CheckReport:
    """The result of a check."""

    problems: list[Problem] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def check(data_dir: Path, *, reads_all: bool = False) -> CheckReport:
    """Check the store in a folder. `reads_all`: read every value of every file, not only its footer.

    Raises StartError when there is no store, or a collector has it open.
    """
    state_path, catalogue_path = data_dir / FILE_NAME, data_dir / FOLDER / CATALOGUE
    if not state_path.exists() and not catalogue_path.exists():
        raise StartError(f"{data_dir} has no store: choose another with --data-dir")
    report = CheckReport()
    with held(data_dir):
        identity = _check_state(state_path, report)
        numbers = _check_segments(data_dir, report)
        sealed = _check_lake(data_dir, identity, report, reads_all=reads_all)
        for name, own in OWN_FILES.items():
            _check_own(data_dir / name, own, report)
        if numbers and sealed is not None:
            _check_numbers(numbers, sealed, report)
        if names := strangers(data_dir):
            report.facts.append(
                f"files that no collector writes, which no backup has: {len(names)}: {', '.join(names[:3])}"
            )
    return report


def _check_state(path: Path, report: CheckReport) -> str | None:
    """Check the state file; the collector's identity."""
    if not path.exists():
        todo = "restore a backup, or start the collector: it creates a new one, without inventory and alerts"
        report.problems.append(Problem(f"{path} is missing", todo))
        return None
    try:
        with _opened(path) as connection:
            (version,) = _row(connection, "SELECT value FROM meta WHERE name = 'schema_version'")
            if version != SCHEMA_VERSION:
                report.facts.append(f"{path.name} has schema version {version}")
                return None
            (result,) = _row(connection, "PRAGMA quick_check(1)")
            if result != "ok":
                raise sqlite3.DatabaseError(result)
            (identity,) = _row(connection, "SELECT value FROM meta WHERE name = 'collector'")
            _check_ledger(connection, report)
    except sqlite3.Error as error:
        report.problems.append(_damaged_state(path, error))
        return None
    return str(identity)


def _check_own(path: Path, own: OwnFile, report: CheckReport) -> None:
    """Check a SQLite file; a collector that did not need it has none."""
    if not path.exists():
        return
    try:
        with _opened(path) as connection:
            (result,) = _row(connection, "PRAGMA quick_check(1)")
            if result != "ok":
                raise sqlite3.DatabaseError(result)
            numbers = {what: _row(connection, sql)[0] for what, sql in own.facts.items()}
    except sqlite3.Error as error:
        report.problems.append(
            Problem(
                f"{path} is damaged: {one_line(error)}",
                f"restore a backup; --repair sets it aside, and the collector creates a new one: {own.loss}",
                lambda: _set_file_aside(path),
            )
        )
        return
    said = ", ".join(f"{what}: {number}" for what, number in numbers.items())
    report.facts.append(f"{path.name}: {said}")


def _check_ledger(connection: sqlite3.Connection, report: CheckReport) -> None:
    rows = connection.execute("SELECT agent_id, boot_id, floor, ranges FROM ledger").fetchall()
    for agent, boot, floor, ranges in rows:
        try:
            spans = ranges_from_text(ranges)
            edges = [edge for span in spans for edge in span]
            is_right = edges == sorted(edges) and (not edges or edges[0] >= floor)
        except ValueError:
            is_right = False
        if not is_right:
            report.problems.append(
                Problem(
                    f"the ledger of agent {agent}, boot {boot}, is invalid: {ranges[:60]!r}",
                    "restore a backup; without one, batches of the agent could be stored twice",
                )
            )
    report.facts.append(f"ledger: {len(rows)} agents' boots")


def _check_segments(data_dir: Path, report: CheckReport) -> list[int]:
    """Check the segments; numbers of the readable ones."""
    folder = data_dir / SEGMENTS
    found: dict[int, Segment] = {}
    for number in segment_numbers(folder):
        try:
            found[number] = Segment(folder, number)
        except (SegmentError, OSError) as error:
            report.problems.append(_lost_segment(data_dir, segment_path(folder, number), error))
    rows = torn_bytes = 0
    for number, segment in found.items():
        limit = end_of(segment, found.get(number + 1))
        rows += sum(frame.rows for frame in segment.new_frames(limit, is_abandoned=True))
        if limit is None:
            torn_bytes += segment.path.stat().st_size - segment.end
        for damage in segment.damaged:
            report.problems.append(
                Problem(
                    f"{SEGMENTS}/{segment.path.name} is damaged from byte {damage.start} to {damage.end}",
                    "restore a backup; without one, the collector skips that part, and its rows are lost",
                )
            )
    report.facts.append(f"{SEGMENTS}: {len(found)} files, {rows} rows")
    if torn_bytes:
        report.facts.append(
            f"{SEGMENTS}: {torn_bytes} bytes of a frame that was being written when the collector ended;"
            " its batches were never acknowledged"
        )
    return sorted(found)


def _lost_segment(data_dir: Path, path: Path, error: Exception) -> Problem:
    def repair() -> None:
        set_aside(data_dir, path)

    return Problem(
        str(error), "restore a backup; --repair sets the file aside, and its rows are lost", repair
    )


def _damaged_state(path: Path, error: sqlite3.Error) -> Problem:
    return Problem(
        f"{path} is damaged: {one_line(error)}",
        "restore a backup; --repair sets it aside, and the collector creates a new one: inventory, alerts and"
        " diagnoses are missing until agents and rules report them again, and batches that agents"
        " send again are stored twice",
        lambda: _set_file_aside(path),
    )


def _set_file_aside(path: Path) -> None:
    """Set an SQLite file aside, with its WAL and index. Raises OSError."""
    for file in sorted(path.parent.glob(f"{path.name}*")):
        set_aside(path.parent, file)


def _check_lake(
    data_dir: Path, identity: str | None, report: CheckReport, *, reads_all: bool
) -> int | None:
    """Check the lake; the newest segment that it holds, None: unknown."""
    path = data_dir / FOLDER / CATALOGUE
    on_disk = set((data_dir / FOLDER / FILES).rglob("*.parquet"))
    if not path.exists():
        if on_disk:
            report.problems.append(_lost_catalogue(data_dir, f"{path} is missing", len(on_disk)))
        return None
    try:
        with closing(duckdb.connect()) as connection:
            _attach(connection, data_dir)
            files = live_files(connection, str(data_dir / FOLDER / FILES))
            known = _known_names(connection)
            sealed = None if identity is None else sealed_segment(connection, identity)
    except duckdb.Error as error:
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
            f"lake: {len(strangers)} files that the catalogue does not name, left by a kill;"
            " the collector sets them aside after a day"
        )
    return sealed


def _check_numbers(numbers: list[int], sealed: int, report: CheckReport) -> None:
    # A lake without a sealed segment is new: it replaced a lost one.
    begin = sealed + 1 if sealed else numbers[0]
    missing = sorted(set(range(begin, numbers[-1] + 1)) - set(numbers))
    if missing:
        report.problems.append(
            Problem(
                f"the lake ends with segment {sealed}, and segments after it are missing:"
                f" {', '.join(map(str, missing[:10]))}",
                "restore a backup; files that the catalogue does not name may hold the rows, and stay"
                " until the next seal",
            )
        )
    if numbers[-1] <= sealed:
        report.facts.append("the lake holds all segments; the collector deletes them")


def _known_names(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Names of all files in the catalogue; they are unique."""
    rows = connection.execute(
        f"SELECT path FROM {METADATA}.ducklake_data_file "
        f"UNION SELECT path FROM {METADATA}.ducklake_delete_file "
        f"UNION SELECT path FROM {METADATA}.ducklake_files_scheduled_for_deletion"
    ).fetchall()
    return {path.rpartition("/")[2] for (path,) in rows}


def _attach(connection: duckdb.DuckDBPyConnection, data_dir: Path) -> None:
    load_extension(connection, "ducklake")
    load_extension(connection, "sqlite_scanner")
    folder = data_dir / FOLDER
    connection.execute(
        f"ATTACH {text_sql(f'ducklake:sqlite:{folder}/{CATALOGUE}')} AS lake "
        f"(DATA_PATH {text_sql(f'{folder}/{FILES}')}, OVERRIDE_DATA_PATH true, READ_ONLY)"
    )


def _wrong(file: LakeFile, *, reads_all: bool) -> str | None:
    """The problem of a file; None: it is fine."""
    import pyarrow.parquet as pq  # only here: most processes that import this module check nothing

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
        lost = f"{file.rows} replaced rows of {file.table} appear again beside the new ones"
    else:
        until = f" until {file.newest}" if file.newest else ""
        lost = f"{file.rows} rows of {file.table}{until} are lost"

    def repair() -> None:
        if path.exists():
            set_aside(data_dir, path)
        with closing(sqlite3.connect(data_dir / FOLDER / CATALOGUE)) as connection, connection:
            _forget(connection, file)

    return Problem(
        f"{path.relative_to(data_dir) if path.is_relative_to(data_dir) else path} {wrong}",
        f"put the file back from a backup; --repair sets it aside, and {lost}",
        repair,
    )


def _forget(connection: sqlite3.Connection, file: LakeFile) -> None:
    if file.is_deletes:
        connection.execute("DELETE FROM ducklake_delete_file WHERE delete_file_id = ?", [file.id])
        return
    for table in (
        "ducklake_data_file",
        "ducklake_delete_file",
        "ducklake_file_column_stats",
        "ducklake_file_partition_value",
    ):
        connection.execute(f"DELETE FROM {table} WHERE data_file_id = ?", [file.id])
    connection.execute(
        "CREATE TABLE IF NOT EXISTS gpuwarden_dropped (table_name VARCHAR, day DATE, "
        '"rows" BIGINT, bytes BIGINT, reason VARCHAR, dropped_at TIMESTAMP)'
    )
    connection.execute(
        "INSERT INTO gpuwarden_dropped VALUES (?, date(?), ?, ?, 'lost', datetime('now'))",
        [file.table, file.newest, file.rows, file.bytes],
    )


def _lost_catalogue(data_dir: Path, what: str, files: int) -> Problem:
    def repair() -> None:
        set_aside(data_dir, data_dir / FOLDER)

    return Problem(
        what,
        f"restore a backup; --repair sets the lake aside, and the collector creates a new one: the"
        f" {files} Parquet files keep their rows, but queries do not see them",
        repair,
    )


def _row(connection: sqlite3.Connection, sql: str) -> tuple[Any, ...]:
    row = connection.execute(sql).fetchone()
    return tuple(row) if row else (None,)


def _opened(path: Path) -> "closing[sqlite3.Connection]":
    """Open the file for reading. Raises sqlite3.Error."""
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True))
