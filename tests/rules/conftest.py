import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuwarden.alert import Alert, AlertState, Silence
from gpuwarden.clock import ManualClock
from gpuwarden_rules.testing import MemoryDatabase


class MemoryStore:
    """An AlertStore that remembers; it can be told to fail, and counts what it was given."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, datetime], Alert] = {}
        self.saves: list[list[Alert]] = []
        self.is_full = False
        self.kept_silences: dict[str, Silence] = {}

    async def active(self) -> Sequence[Alert]:
        return [a for a in self.kept.values() if a.state is not AlertState.RESOLVED]

    async def resolved_since(self, since: datetime) -> Sequence[Alert]:
        over = [a for a in self.kept.values() if a.state is AlertState.RESOLVED and a.fired_at]
        return [a for a in over if a.resolved_at and a.resolved_at > since]

    async def silences(self) -> Sequence[Silence]:
        return list(self.kept_silences.values())

    async def silences_since(self, since: datetime) -> Sequence[Silence]:
        return [one for one in self.kept_silences.values() if one.ends_at > since]

    async def save_silences(self, silences: Sequence[Silence]) -> None:
        self.kept_silences |= {silence.id: silence for silence in silences}

    async def save(self, alerts: Sequence[Alert]) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.saves.append(list(alerts))
        self.kept |= {(a.fingerprint, a.active_at): a for a in alerts}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="session")
def store_type() -> type[MemoryStore]:
    """For tests that need more than one."""
    return MemoryStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, 12, tzinfo=UTC))


class SharedDatabase(MemoryDatabase):
    """A database that many tests use, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self._filled = {"idle_1m"}

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]], into: str = "") -> None:
        self._filled.add(into or table)
        super().insert(table, rows, into)

    def execute(self, sql: str) -> None:
        self._filled |= {*re.findall(r"INSERT INTO (\w+)", sql)}
        super().execute(sql)

    def clear(self) -> None:
        """Delete all rows: a copy of the schema takes longer."""
        for table in self._filled:
            super().execute(f"DELETE FROM {table}")


@pytest.fixture(scope="session")
def shared_database() -> Iterator[SharedDatabase]:
    database = SharedDatabase()
    yield database
    database.close()


@pytest.fixture
def database(shared_database: SharedDatabase) -> SharedDatabase:
    """Without rows; a test leaves its tables as they are."""
    shared_database.clear()
    return shared_database
