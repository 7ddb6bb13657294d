"""The service looks, saves what changed, and outlives a store and a database that fail."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.rules.diagnosis.scenes import END, Scene, loop

from gpuwarden.clock import ManualClock
from gpuwarden.diagnosis import Bottleneck, Diagnosis
from gpuwarden.query import QueryError, Result
from gpuwarden_rules.diagnosis.service import Diagnoser
from gpuwarden_rules.exposition import rules_exposition
from gpuwarden_rules.testing import MemoryDatabase


class Kept:
    """A store that remembers; it can be told to fail."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, datetime], Diagnosis] = {}
        self.is_full = False
        self.has_saved = asyncio.Event()

    async def open_diagnoses(self) -> Sequence[Diagnosis]:
        return [d for d in self.rows.values() if d.ended_at is None]

    async def save_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.rows |= {(d.subject, d.began_at): d for d in diagnoses}
        self.has_saved.set()


class Broken:
    """A database that cannot be asked."""

    async def query(self, sql: str, params: Any = None, **limits: Any) -> Result:
        raise QueryError("the query took longer than 30 s")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(END)


@pytest.fixture
def starved(database: MemoryDatabase) -> MemoryDatabase:
    busy = {"loader_workers": 2, "loader_cpu_percent": 97.0, "loader_saturated_percent": 100.0}
    Scene(loop(0.3, 0.4), process=busy).insert(database)
    return database


async def test_a_look_saves_what_it_found_and_the_next_one_only_what_changed(
    starved: MemoryDatabase, clock: ManualClock
) -> None:
    store = Kept()
    diagnoser = Diagnoser(starved, store, clock)
    await diagnoser.start()
    (found,) = await diagnoser.update()
    assert found.bottleneck is Bottleneck.LOADER_WORKERS and found.began_at == END
    assert found.usd_per_hour == pytest.approx(3.0 * 0.55, rel=0.1)
    assert list(store.rows.values()) == [found]
    assert await diagnoser.update() == []
    figures = rules_exposition({}, clock.now(), diagnoser)
    assert 'gpuwarden_diagnosis_gpus{bottleneck="loader_workers"} 1.0\n' in figures
    assert "gpuwarden_diagnosis_looks_total 2.0\n" in figures


async def test_what_agents_bring_along_is_looked_at_once_they_are_back(
    database: MemoryDatabase, clock: ManualClock
) -> None:
    """Windows of two minutes, end to end, of the last quarter of an hour."""
    store = Kept()
    diagnoser = Diagnoser(database, store, clock)
    assert await diagnoser.update() == []
    busy = {"loader_workers": 2, "loader_cpu_percent": 97.0, "loader_saturated_percent": 100.0}
    Scene(loop(0.3, 0.4), process=busy).insert(database)
    clock.advance(60)
    await diagnoser.update()
    (episode,) = store.rows.values()
    assert (episode.bottleneck, episode.began_at) == (Bottleneck.LOADER_WORKERS, END)


async def test_a_restart_does_not_begin_anew(starved: MemoryDatabase, clock: ManualClock) -> None:
    store = Kept()
    first = Diagnoser(starved, store, clock)
    await first.update()
    clock.advance(10)
    second = Diagnoser(starved, store, clock)
    await second.start()
    assert await second.update() == []
    assert second.open[0].began_at == END


async def test_what_a_full_disk_refused_is_saved_later(
    starved: MemoryDatabase, clock: ManualClock
) -> None:
    store = Kept()
    store.is_full = True
    diagnoser = Diagnoser(starved, store, clock)
    await diagnoser.update()
    assert (diagnoser.failures, store.rows) == (1, {})
    store.is_full = False
    await diagnoser.update()
    assert len(store.rows) == 1


async def test_a_database_that_does_not_answer_is_counted(clock: ManualClock) -> None:
    diagnoser = Diagnoser(Broken(), Kept(), clock)
    assert await diagnoser.update() == []
    assert diagnoser.failures == 1 and diagnoser.looks == 1


async def test_it_runs_until_it_is_stopped(starved: MemoryDatabase, clock: ManualClock) -> None:
    store, stop = Kept(), asyncio.Event()
    diagnoser = Diagnoser(starved, store, clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(diagnoser.run(stop))
        await store.has_saved.wait()
        stop.set()
    assert diagnoser.looks >= 1


async def test_an_instant_is_kept_to_the_millisecond(starved: MemoryDatabase) -> None:
    clock = ManualClock(datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC))
    (found,) = await Diagnoser(starved, Kept(), clock).update()
    assert found.began_at.microsecond == 123000
