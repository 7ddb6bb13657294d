"""Batches that two collectors stored are in the lake once, whatever the order: real databases, one lake.

The lake is a local one here: its collectors take turns at it, as they do by its catalogue.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import asked

from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.deduplicate import doubtful_rows
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.lake import seal
from gpuwarden_collector.storage.lake_maintenance import forget_seals
from gpuwarden_collector.storage.resent import (
    find_spans,
    note_doubtful,
    once_sql,
    seals_elsewhere,
)
from gpuwarden_collector.storage.views import hot_table


class Peers:
    """Collectors of one lake. Each has a segment of one database, and its number in its name."""

    def __init__(self, database: Database, wire: Any) -> None:
        self.database = database
        self._wire = wire
        self.stored: set[int] = set()

    def store(self, sequence: int, *, again: bool) -> int:
        """A collector stores a batch; the segment that it is in."""
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
        return self.database.freeze()

    def seal(self, segment: int) -> int:
        """As its collector does, whose name is that of the segment; rows that were left out."""
        collector, names = f"collector {segment}", ("gpu_samples", "events")
        doubtful = self.database.state.doubtful(segment)
        with self.database.maintaining(names, after=segment - 1, until=segment) as cursor:
            every = " UNION ALL ".join(f"SELECT ts FROM {hot_table(name)}" for name in names)
            bounds = cursor.execute(f"SELECT min(ts), max(ts) FROM ({every})").fetchone() or ()
            hot = cursor.execute(f"SELECT count(*) FROM ({every})").fetchone() or (0,)
            sources = {name: f"SELECT * FROM {hot_table(name)}" for name in names}
            if find_spans(cursor, collector, doubtful, *bounds):
                sources = {name: once_sql(name, hot_table(name)) for name in names}
            note = partial(note_doubtful, cursor, collector, segment, doubtful)
            root = self.database.lake_root
            sealed = seal(cursor, root, collector, segment, sources, note)
        return int(hot[0]) - sum(sealed.values()) if sealed else 0

    def in_lake(self) -> tuple[int, ...]:
        (found,) = asked(
            self.database,
            "SELECT (SELECT count(*) FROM lake.main.gpu_samples), "
            "(SELECT count(DISTINCT (gpu_uuid, ts)) FROM lake.main.gpu_samples), "
            "(SELECT count(*) FROM lake.main.events)",
        )
        return found

    def expected(self) -> tuple[int, int, int]:
        return (10 * len(self.stored), 10 * len(self.stored), 2 * len(self.stored))


@pytest.fixture
def peers(database: Database, wire: Any) -> Iterator[Peers]:
    yield Peers(database, wire)


def test_a_seal_by_another_is_news_and_its_rows_are_left_out(peers: Peers) -> None:
    again = peers.store(1, again=True)
    with peers.database.maintaining() as cursor:
        me = f"collector {again}"
        before = seals_elsewhere(cursor, me)
        assert peers.seal(peers.store(1, again=False)) == 0
        after = seals_elsewhere(cursor, me)
        assert after > before
        assert peers.seal(again) == 12
        assert seals_elsewhere(cursor, me) == after, "its own is none"


def test_a_seal_by_another_is_news_though_an_older_one_was_forgotten(database: Database) -> None:
    def sealed(segment: int) -> int:
        with database.maintaining() as cursor:
            seal(cursor, database.lake_root, "other", segment, {})
            return seals_elsewhere(cursor, "me")

    sealed(1)
    before = sealed(2)
    with database.maintaining() as cursor:
        assert forget_seals(cursor, datetime.now(UTC) + timedelta(seconds=1)) == 1
        assert seals_elsewhere(cursor, "me") == before, "nothing was sealed"
    assert sealed(3) > before


def test_two_events_of_one_instant_are_not_each_others_doubles(peers: Peers, wire: Any) -> None:
    """One is in a batch that was sealed, the other in one that was sent before."""
    peers.seal(peers.store(1, again=False))
    event = {
        "ts": wire.gpu_row(0, 5)["ts"], "node": "n1", "simulated": True, "kind": "agent_start",
        "severity": "info", "message": "of another batch",
    }  # fmt: skip
    tables = {"events": wire.table("events", [event])}
    batch = BatchId("agent", "boot", 2, 0, is_sent_before=True)
    commit(peers.database, Changes(appended=tables, doubtful=doubtful_rows([(batch, tables)])))
    peers.seal(peers.database.freeze())
    assert peers.in_lake()[2] == 3


def test_the_same_gpu_and_instant_from_another_node_is_no_double(peers: Peers, wire: Any) -> None:
    """Or who names another's GPU at one collector could have its rows removed at another."""
    forged = [wire.gpu_row(gpu, 5 + second, node="n2") for second in range(5) for gpu in (0, 1)]
    tables = {"gpu_samples": wire.table("gpu_samples", forged)}
    commit(peers.database, Changes(appended=tables))
    peers.seal(peers.database.freeze())
    peers.seal(peers.store(1, again=True))
    left = asked(peers.database, "SELECT count(*) FROM lake.main.gpu_samples WHERE node = 'n1'")
    assert left == [(10,)]


def test_what_is_doubtful_is_forgotten_with_its_segment(peers: Peers) -> None:
    segment = peers.store(1, again=True)
    later = peers.store(2, again=True)
    peers.seal(segment)
    peers.database.drop(segment)
    assert peers.database.state.doubtful(segment).num_rows == 0
    assert peers.database.state.doubtful(later).num_rows == 1
    noted = asked(peers.database, "SELECT collector, sequence FROM lake.main.doubtful")
    assert noted == [(f"collector {segment}", 1)]


Copies = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(copies=Copies, data=st.data())
def test_each_batch_is_there_once_whoever_seals_first(
    peers: Peers, copies: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """The first copy of a batch was not sent before, each later one was; they are stored and sealed in
    any order, and a killed seal is done again."""
    start, waiting, seen = max(peers.stored, default=0), [], set()

    def seal_one() -> None:
        segment = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        peers.seal(segment)
        if data.draw(st.booleans()):
            assert peers.seal(segment) == 0

    for number, is_sealed_now in copies:
        waiting.append(peers.store(start + number, again=number in seen))
        seen.add(number)
        if is_sealed_now:
            seal_one()
    while waiting:
        seal_one()
    assert peers.in_lake() == peers.expected()
