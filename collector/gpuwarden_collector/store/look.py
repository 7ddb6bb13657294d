"""Opens a store's files for reading while no collector runs, to say whether one could."""

from contextlib import closing
from pathlib import Path

import duckdb

from gpuwarden_collector.store.address import CATALOGUE, FOLDER
from gpuwarden_collector.store.database import FILE_NAME, SCHEMA_VERSION, newer_error, start_error

_VERSION_SQL = "SELECT max(version) FROM internal.schema_version"


def look(data_dir: Path) -> int | None:
    """The schema version of the store in a folder; None: there is no store yet. Changes nothing.

    Raises StartError as a start of the collector would: held by a process, damaged, or newer than this build.
    """
    path, catalogue = data_dir / FILE_NAME, data_dir / FOLDER / CATALOGUE
    if not path.exists():
        return None
    version = _one(path, _VERSION_SQL)
    if version > SCHEMA_VERSION:
        raise newer_error(path, version)
    if catalogue.exists():
        _one(catalogue, "SELECT count(*) FROM ducklake_snapshot")
    return version


def _one(path: Path, sql: str) -> int:
    try:
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            row = connection.execute(sql).fetchone()
    except duckdb.Error as error:
        raise start_error(path, error) from error
    return int(row[0] or 0) if row else 0
