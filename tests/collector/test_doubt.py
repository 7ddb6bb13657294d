"""Batches that two collectors stored are in the lake once, whatever the order: real databases, one lake.

The lake is a local one here: two databases take turns at it, as collectors do by its catalogue.
"""

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.wire import BatchId
from gpuwarden_collector.doubtful import doubtful_rows
from gpuwarden_collector.store.commit import Changes, commit
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.doubt import (
    has_doubtful,
    news_of_doubles,
    remove_doubles,
)
from gpuwarden_collector.store.errors import StoreUnavailableError
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.store.lake import SEALED_TABLES, seal


class Peers:
    """Collectors of one lake. Their hot tables are generations of one database, whose numbers are
    apart; what each has noted is told apart by them."""

    def __init__(self, database: Database, wire: Any) -> None:
        self.database = database
        self._wire = wire
        self.stored: set[int] = set()

    def store(self, sequence: int, *, again: bool) -> int:
        """A collector stores a batch; the generation that it is in."""
        rows = [
            self._wire.gpu_row(gpu, 5 * sequence + second) for second in range(5) for gpu in (0, 1)
        ]
        event = {
            "ts": rows[0]["ts"], "node": "n1", "simulated": True, "kind": "agent_start",
            "severity": "info", "message": f"batch {sequence}",
        }  # fmt: skip
        tables = {
            "gpu_samples": self._wire.table("gpu_samples", rows),
            "events": self._wire.table("events", [event, event | {"message": "another"}]),
        }
        batch = BatchId("agent", "boot", sequence, 0, again)
        commit(self.database, Changes(appended=tables, doubtful=doubtful_rows([(batch, tables)])))
        self.stored.add(sequence)
        return self.database.roll()

    def seal(self, generation: int) -> None:
        """As its collector does, whose name is that of the generation."""
        with self.database.maintaining() as cursor:
            remove_doubles(cursor, f"collector {generation}", generation)
            sources = {name: hot_table(name, generation) for name in SEALED_TABLES}
            seal(cursor, f"collector {generation}", generation, sources)

    def in_lake(self) -> tuple[int, ...]:
        with self.database.reading() as cursor:
            row = cursor.execute(
                "SELECT (SELECT count(*) FROM lake.main.gpu_samples), "
                "(SELECT count(DISTINCT (gpu_uuid, ts)) FROM lake.main.gpu_samples), "
                "(SELECT count(*) FROM lake.main.events)"
            ).fetchone()
        assert row is not None
        return row

    def expected(self) -> tuple[int, int, int]:
        return (10 * len(self.stored), 10 * len(self.stored), 2 * len(self.stored))


@pytest.fixture
def peers(database: Database, wire: Any) -> Iterator[Peers]:
    yield Peers(database, wire)


@pytest.mark.parametrize("first", ["the one that got it first", "the one that got it again"])
def test_of_two_copies_one_is_sealed(peers: Peers, first: str) -> None:
    plain, again = peers.store(1, again=False), peers.store(1, again=True)
    for generation in (plain, again) if "got it first" in first else (again, plain):
        peers.seal(generation)
    assert peers.in_lake() == peers.expected()


def test_what_only_the_second_has_is_kept(peers: Peers) -> None:
    peers.seal(peers.store(1, again=False))
    peers.seal(peers.store(2, again=True))
    peers.seal(peers.store(3, again=True))
    assert peers.in_lake() == peers.expected()


def test_the_hot_copy_goes_as_soon_as_the_other_is_sealed(peers: Peers) -> None:
    again = peers.store(1, again=True)
    with peers.database.maintaining() as cursor:
        me = f"collector {again}"
        before = news_of_doubles(cursor, me)
        assert has_doubtful(cursor, again)
        assert remove_doubles(cursor, me, again) == 0
        peers.seal(peers.store(1, again=False))
        assert news_of_doubles(cursor, me) != before
        assert remove_doubles(cursor, me, again) == 12
        assert remove_doubles(cursor, me, again) == 0


def test_two_events_of_one_instant_are_not_each_others_doubles(peers: Peers, wire: Any) -> None:
    """One stands in a batch that was sealed, the other in one that was sent before."""
    peers.seal(peers.store(1, again=False))
    event = {
        "ts": wire.gpu_row(0, 5)["ts"], "node": "n1", "simulated": True, "kind": "agent_start",
        "severity": "info", "message": "of another batch",
    }  # fmt: skip
    tables = {"events": wire.table("events", [event])}
    batch = BatchId("agent", "boot", 2, 0, is_sent_before=True)
    commit(peers.database, Changes(appended=tables, doubtful=doubtful_rows([(batch, tables)])))
    peers.seal(peers.database.roll())
    assert peers.in_lake()[2] == 3


def test_the_same_gpu_and_instant_from_another_node_is_no_double(peers: Peers, wire: Any) -> None:
    """Or who names another's GPU at one collector could have its rows removed at another."""
    forged = [wire.gpu_row(gpu, 5 + second, node="n2") for second in range(5) for gpu in (0, 1)]
    tables = {"gpu_samples": wire.table("gpu_samples", forged)}
    commit(peers.database, Changes(appended=tables))
    peers.seal(peers.database.roll())
    peers.seal(peers.store(1, again=True))
    with peers.database.reading() as cursor:
        rows = cursor.execute(
            "SELECT count(*) FROM lake.main.gpu_samples WHERE node = 'n1'"
        ).fetchone()
    assert rows == (10,)


def test_what_is_doubtful_is_forgotten_with_its_generation(peers: Peers) -> None:
    generation = peers.store(1, again=True)
    peers.seal(generation)
    peers.database.drop(generation)
    with peers.database.maintaining() as cursor:
        assert not has_doubtful(cursor, generation)
        row = cursor.execute("SELECT collector, sequence FROM lake.main.doubtful").fetchone()
    assert row == (f"collector {generation}", 1)


Copies = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(copies=Copies, data=st.data())
def test_each_batch_is_there_once_whoever_seals_first(
    peers: Peers, copies: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """The first copy of a batch was not sent before, each later one was; they are stored and sealed in
    any order, a removal may come at any time, and a killed seal is done again."""
    start, waiting, seen = max(peers.stored, default=0), [], set()

    def seal_one() -> None:
        generation = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        if data.draw(st.booleans()):
            with peers.database.maintaining() as cursor:
                remove_doubles(cursor, f"collector {generation}", generation)
        peers.seal(generation)
        if data.draw(st.booleans()):
            peers.seal(generation)
        peers.database.drop(generation)

    for number, is_sealed_now in copies:
        waiting.append(peers.store(start + number, again=number in seen))
        seen.add(number)
        if is_sealed_now:
            seal_one()
    while waiting:
        seal_one()
    assert peers.in_lake() == peers.expected()


def test_a_failure_changes_nothing(peers: Peers) -> None:
    with peers.database.maintaining() as cursor, pytest.raises(StoreUnavailableError):
        remove_doubles(cursor, "c", 99)
    with pytest.raises(duckdb.Error):
        peers.database.writing.execute("FROM hot.gpu_samples_99")
