"""Copied views are those that are created."""

from pathlib import Path

import pytest
from tests.collector.made_up_store import LIMITS, asked

from gpuwarden_collector.storage import views
from gpuwarden_collector.storage.database import Database

_SHOWN = (
    "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY ALL",
    "SELECT view_name, comment, sql IS NULL FROM duckdb_views() ORDER BY ALL",
    "SELECT table_name, comment FROM duckdb_tables() ORDER BY ALL",
)


def test_without_room_for_a_copy_the_same_views_are_created(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    found = []
    for is_full in (False, True):
        if is_full:
            monkeypatch.setattr(views, "copy", full)
        database = Database.open(data_dir, LIMITS)
        found.append([asked(database, sql) for sql in _SHOWN])
        database.close()
    copied, created = found
    assert copied == created
    assert len(copied[0]) > 500
