"""A lake that older collectors made, which newer ones open, two at the same moment."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.collector.made_up_store import LIMITS, asked

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.storage.address import LakeAddress, address_of
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.lake import seal


@pytest.fixture
def address(conninfo: str, tmp_path: Path) -> LakeAddress:
    return address_of(tmp_path, f"postgres:{conninfo}", str(tmp_path / "shared"), {})


@pytest.fixture
def older(tmp_path: Path, address: LakeAddress) -> Iterator[Database]:
    """A collector on a lake without a column that there is now."""
    opened = Database.open(tmp_path / "older", LIMITS, address)
    with opened.maintaining() as cursor:
        cursor.execute("ALTER TABLE lake.main.events DROP COLUMN details")
    yield opened
    opened.close()


def test_newer_collectors_add_what_is_missing_while_the_older_goes_on(
    older: Database, tmp_path: Path, address: LakeAddress
) -> None:
    opened: list[Database] = []

    def open_one(name: str) -> None:
        opened.append(Database.open(tmp_path / name, LIMITS, address))

    threads = [threading.Thread(target=open_one, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 2
    with older.maintaining() as cursor:
        # As its version has the table.
        hello = (
            "SELECT TIMESTAMP '2026-01-01' AS ts, 'n' AS node, false AS simulated, "
            "'agent_start' AS kind, 'info' AS severity, 'hello' AS message"
        )
        assert seal(cursor, older.lake_root, older.collector, 1, {"events": hello}) == {"events": 1}
    for newer in opened:
        assert asked(newer, "SELECT message, details FROM events") == [("hello", None)]
        newer.close()


def test_collectors_that_disagree_about_the_files_do_not_start(
    older: Database, tmp_path: Path, conninfo: str
) -> None:
    other = address_of(tmp_path, f"postgres:{conninfo}", str(tmp_path / "elsewhere"), {})
    with pytest.raises(StartError, match="the lake at .*elsewhere") as refused:
        Database.open(tmp_path / "new", LIMITS, other)
    assert str(tmp_path / "shared") in str(refused.value), "which folder it is"
