"""Changes in place are taken over piece by piece as they would be as a whole."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import asked

from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

AT = datetime(2026, 3, 1)  # noqa: DTZ001  naive UTC, as the store has it


def node(name: str, said: int, seen: int | None) -> dict[str, Any]:
    return {
        "node": name, "agent_id": str(said), "boot_id": "b", "simulated": False,
        "last_seen_at": None if seen is None else AT + timedelta(seconds=seen),
    }  # fmt: skip


def silence(name: str, ends: int) -> dict[str, Any]:
    at = AT + timedelta(seconds=ends)
    return {
        "id": name, "matchers": "[]", "author": "a", "comment": "", "starts_at": AT, "ends_at": at, "changes": 0,
    }  # fmt: skip


NAMES = st.sampled_from("abc")
ACTIONS = st.one_of(
    st.tuples(st.just("node"), NAMES, st.integers(0, 9), st.none() | st.integers(0, 9)),
    st.tuples(st.just("see"), st.sets(NAMES, min_size=1), st.integers(0, 9)),
    st.tuples(st.just("silence"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.just(("look",)),
)


def upserted(name: str, row: dict[str, Any]) -> Changes:
    return Changes(upserted={name: pa.Table.from_pylist([row], schema=SCHEMAS[name])})


def whole(state: StateFile, name: str) -> list[tuple[Any, ...]]:
    """All rows, read as if for the first time, with maps and lists as SQL has them."""
    nested = {column.name for column in stored_columns(TABLES[name]) if column.nested}
    rows = (
        tuple(json.loads(v) if k in nested and v is not None else v for k, v in row.items())
        for row in state.rows(name)
    )
    return sorted(rows, key=repr)


def shown(database: Database, name: str) -> list[tuple[Any, ...]]:
    """Rows as queries see them, which were taken over change by change."""
    columns = ", ".join(SCHEMAS[name].names)
    return sorted(asked(database, f"SELECT {columns} FROM {name}"), key=repr)


@pytest.mark.slow
@given(st.lists(ACTIONS, max_size=12))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_queries_see_what_a_whole_read_gives(database: Database, actions: list[Any]) -> None:
    for action in [*actions, ("look",)]:
        match action:
            case ("node", name, said, seen):
                commit(database, upserted("nodes", node(name, said, seen)))
            case ("see", names, at):
                commit(
                    database,
                    Changes(heard={"nodes": names}, heard_at=AT + timedelta(seconds=at)),
                )
            case ("silence", name, ends):
                commit(database, upserted("silences", silence(name, ends)))
            case ("forget", before):
                with database.state.writing() as writing:
                    writing.delete("silences", "ends_at < ?", AT + timedelta(seconds=before))
            case ("look",):
                for name in ("nodes", "silences"):
                    assert shown(database, name) == whole(database.state, name)


def test_a_node_was_heard_of_when_it_was_last_said_whatever_changes_its_row(
    database: Database,
) -> None:
    commit(database, upserted("nodes", node("a", 1, 5)))

    def heard(seconds: int) -> timedelta:
        at = AT + timedelta(seconds=seconds)
        commit(database, Changes(heard={"nodes": {"a"}}, heard_at=at))
        ((seen,),) = asked(database, "SELECT last_seen_at FROM nodes")
        result: timedelta = seen - AT
        return result

    assert [heard(n).seconds for n in (3, 7, 6)] == [3, 7, 6], "a clock may be corrected"
    commit(database, upserted("nodes", node("a", 2, None)))
    assert asked(database, "SELECT agent_id, last_seen_at FROM nodes") == [
        ("2", AT + timedelta(seconds=6))
    ]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateFile]:
    opened = StateFile(tmp_path / FILE_NAME)
    yield opened
    opened.close()


def test_what_is_known_is_not_said_again(state: StateFile) -> None:
    def write(name: str) -> None:
        row = pa.Table.from_pylist([silence(name, 5)], schema=SCHEMAS["silences"])
        with state.writing() as writing:
            writing.upsert("silences", row)

    write("a")
    first = state.changes("silences", -1, 0)
    assert first is not None and first.is_whole and first.rows.num_rows == 1
    assert state.changes("silences", first.revision, 0) is None
    write("b")
    second = state.changes("silences", first.revision, 0)
    assert second is not None and not second.is_whole
    assert second.rows["id"].to_pylist() == ["b"]
    with state.writing() as writing:
        assert writing.delete("silences", "id = 'a' AND ends_at > ?", AT) == 1
    third = state.changes("silences", second.revision, 0)
    assert third is not None and third.is_whole, "which of them went, changes alone cannot say"
    assert third.rows["id"].to_pylist() == ["b"]


def test_late_windows_are_given_hour_by_hour_and_forgotten_as_of_a_number(state: StateFile) -> None:
    def note(*minutes: int) -> None:
        ts = [AT + timedelta(minutes=minute) for minute in minutes]
        with state.writing() as writing:
            writing.add_late(pa.table({"node": ["n"] * len(ts), "ts": ts}))

    note(5, 65, 6)
    newest, oldest = state.late_numbers()
    assert (newest - oldest, oldest > 0) == (2, True)
    late = state.late(newest, None, 10)
    assert late["ts"].to_pylist() == [AT + timedelta(minutes=5), AT + timedelta(minutes=6)]
    assert state.late(newest, AT + timedelta(minutes=6), 10).num_rows == 1
    note(5)
    with state.writing() as writing:
        writing.forget_late(newest, late)
    assert state.late(newest, None, 10)["ts"].to_pylist() == [AT + timedelta(minutes=65)]
    assert state.late(newest + 1, None, 10)["ts"].to_pylist() == [AT + timedelta(minutes=5)]


def test_late_windows_come_node_by_node_as_many_as_are_asked_for(state: StateFile) -> None:
    hour = AT.replace(minute=0, second=0, microsecond=0)
    noted = [(node, minute) for minute in (58, 59, 60) for node in ("b", "a")] * 2
    with state.writing() as writing:
        ts = [hour + timedelta(minutes=minute) for _, minute in noted]
        writing.add_late(pa.table({"node": [node for node, _ in noted], "ts": ts}))
    newest, _ = state.late_numbers()
    late = state.late(newest, None, 3)
    assert [(row["node"], row["ts"].minute) for row in late.to_pylist()] == [
        ("a", 58),
        ("a", 59),
        ("b", 58),
    ]
    assert state.late(newest - 6, None, 10).num_rows == 4, "noted once as of then"
    assert state.late(newest, hour, 10).num_rows == 0
