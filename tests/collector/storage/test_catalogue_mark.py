"""A catalogue's mark is another one after each commit, and the same as long as there is none."""

from tests.collector.made_up_store import move

from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.lake_reader import CatalogMark


def test_a_mark_changes_with_each_commit_and_only_then(database: Database) -> None:
    mark = CatalogMark(database.address)
    seen = [mark.look()]
    for _ in range(3):
        move(database, database.freeze())
        with database.reading() as cursor:
            cursor.execute("SELECT count(*) FROM gpu_samples").fetchall()
        seen.append(mark.look())
        assert mark.look() == seen[-1]
    assert None not in seen
    assert len(set(seen)) == 4


def test_what_cannot_be_told_is_none(database: Database) -> None:
    address = database.address
    shared = LakeAddress("dbname=x", address.data, is_shared=True)
    assert CatalogMark(shared).look() is None
    mark = CatalogMark(address)
    assert mark.look() is not None
    database.close()  # nobody has the catalogue open now
    assert mark.look() is None
