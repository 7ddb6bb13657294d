"""Opens a store's files for reading while no collector runs, to say whether one could."""

import sqlite3
from contextlib import closing
from pathlib import Path

from gpuwarden_collector.storage.address import CATALOGUE, FOLDER
from gpuwarden_collector.storage.database import start_error
from gpuwarden_collector.storage.hot import read_tail
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import SegmentError
from gpuwarden_collector.storage.segment_log import held
from gpuwarden_collector.storage.state import FILE_NAME, SCHEMA_VERSION, newer_error


def look(data_dir: Path) -> int | None:
    """The schema version of the store in a folder; None: there is no store yet. Changes nothing.

    Raises StartError as a start of the collector would: held by a process, damaged, or newer than this build.
    """
    path, catalogue = data_dir / FILE_NAME, data_dir / FOLDER / CATALOGUE
    if not path.exists():
        return None
    with held(data_dir):
        version = _one(path, "SELECT value FROM meta WHERE name = 'schema_version'")
        if version > SCHEMA_VERSION:
            raise newer_error(path, version)
        if catalogue.exists():
            _one(catalogue, "SELECT count(*) FROM ducklake_snapshot")
        try:
            read_tail(data_dir / SEGMENTS, 0)
        except (SegmentError, OSError) as error:
            raise start_error(data_dir, error) from error
    return version


def _one(path: Path, sql: str) -> int:
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            row = connection.execute(sql).fetchone()
    except sqlite3.Error as error:
        raise start_error(path, error) from error
    return int(row[0] or 0) if row else 0
