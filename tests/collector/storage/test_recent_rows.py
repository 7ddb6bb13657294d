"""Rows that are kept in memory for rules, and files of the lake that are known, are those of the store, after any
change of the store."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector import segment_writer
from tests.collector.made_up_store import LIMITS, Reader, move_all, put, reader

from gpuwarden.clock import ManualClock
from gpuwarden.metrics import Type
from gpuwarden.query import ExpectedQuery
from gpuwarden.schema import TABLES, UPSERTED, stored_columns
from gpuwarden.table import Column
from gpuwarden_collector.query.needs import PlannedRead, QueryNeeds
from gpuwarden_collector.query.sources import RecentQueries
from gpuwarden_collector.storage import hot, joined_rows
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.lake_catalogue import LakeChange
from gpuwarden_collector.storage.lake_maintenance import flush
from gpuwarden_collector.storage.recent_rows import Wanted, changed_tables
from gpuwarden_rules.definition.language import builtin_rules

COUNTED = (
    "SELECT count(*), sum(util_percent), min(ts), max(ts) FROM gpu_samples "
    "WHERE ts > $now::TIMESTAMP - INTERVAL 10 MINUTE AND ts <= $now::TIMESTAMP"
)
PER_MINUTE = (
    "SELECT m.gpu_uuid, count(*), sum(m.busy_seconds), g.model FROM gpu_1m m LEFT JOIN gpus g USING (gpu_uuid) "
    "WHERE m.ts > $now::TIMESTAMP - INTERVAL 2 HOUR GROUP BY ALL ORDER BY ALL"
)


@pytest.fixture
def made(data_dir: Path, tmp_path: Path) -> Iterator[tuple[Database, Reader]]:
    database = Database.open(data_dir, LIMITS)
    yield database, reader(data_dir, tmp_path / "spill")
    database.close()


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


def in_store(database: Database, sql: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    with database.reading() as cursor:
        rows: list[dict[str, Any]] = cursor.execute(sql, dict(params)).to_arrow_table().to_pylist()
        return rows


def store(database: Database, at: datetime, gpu: int, minutes_ago: int) -> None:
    put(
        database,
        "gpu_samples",
        f"SELECT $at::TIMESTAMP - INTERVAL {minutes_ago} MINUTE - to_seconds(s) AS ts, 'n' AS node, {gpu} AS gpu, "
        f"'g{gpu}' AS gpu_uuid, true AS simulated, s AS util_percent FROM range(20) r(s)",
        {"at": at},
    )
    put(
        database,
        "gpu_1m",
        f"SELECT date_trunc('minute', $at::TIMESTAMP - INTERVAL {minutes_ago} MINUTE) AS ts, 'n' AS node, {gpu} AS gpu, "
        f"'g{gpu}' AS gpu_uuid, true AS simulated, 60 AS samples, "
        f"0 AS detail_samples, 0 AS health_samples, {gpu} AS busy_seconds",
        {"at": at},
    )


def test_rows_are_kept_from_the_first_query_on(made: tuple[Database, Reader]) -> None:
    database, asking = made
    store(database, now(), 0, 1)
    move_all(database)
    store(database, now(), 1, 1)
    at = now()
    for _ in range(2):
        assert asking.ask(COUNTED, {"now": at}) == in_store(database, COUNTED, {"now": at})
        assert "gpu_samples" in asking.recent.tables
    # What comes is seen at once, and what is sealed is neither lost nor there twice.
    store(database, now(), 2, 0)
    assert asking.ask(COUNTED, {"now": now()})[0]["count_star()"] == 60
    move_all(database)
    store(database, now(), 3, 0)
    assert asking.ask(COUNTED, {"now": now()})[0]["count_star()"] == 80


def test_segments_that_came_and_went_unseen_are_read_from_the_lake(
    made: tuple[Database, Reader],
) -> None:
    database, asking = made
    store(database, now(), 0, 1)
    assert asking.ask(COUNTED, {"now": now()})[0]["count_star()"] == 20
    for gpu in (1, 2):
        store(database, now(), gpu, 1)
        move_all(database)
    assert asking.ask(COUNTED, {"now": now()})[0]["count_star()"] == 60


def test_what_would_be_too_much_is_asked_of_the_store(data_dir: Path, tmp_path: Path) -> None:
    database = Database.open(data_dir, LIMITS)
    store(database, now(), 0, 1)
    asking = reader(data_dir, tmp_path / "spill", bytes_max=100)
    assert asking.ask(COUNTED, {"now": now()})[0]["count_star()"] == 20
    assert asking.recent.bytes == 0
    database.close()


def test_a_query_without_a_bound_is_asked_of_the_store(made: tuple[Database, Reader]) -> None:
    database, asking = made
    store(database, now(), 0, 1)
    assert asking.ask("SELECT count(*) AS n FROM gpu_samples") == [{"n": 20}]
    assert asking.ask("SELECT count(*) AS n FROM gpu_samples WHERE gpu_uuid = 'g0'") == [{"n": 20}]
    assert "gpu_samples" not in asking.recent.tables


class Planner:
    """Plans with given bounds, and how often they were asked for."""

    def __init__(self) -> None:
        self.since = timedelta(minutes=5)
        self.fixed: datetime | None = None
        self.asked = 0

    def reads(self, sql: str, params: Mapping[str, Any]) -> list[PlannedRead]:
        self.asked += 1
        since = self.fixed or params["now"] - self.since
        return [PlannedRead("gpu_samples", frozenset({"ts"}), since)]


class Wants:
    """Rows that note what is wanted of them."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []

    def take(self, wanted: Mapping[str, Wanted]) -> bool:
        self.wanted += wanted.values()
        return True


def test_only_bounds_that_move_with_time_are_planned_once() -> None:
    for fixed in (None, datetime(2026, 3, 1, tzinfo=UTC).replace(tzinfo=None)):
        planner, wants, clock = Planner(), Wants(), ManualClock(datetime(2026, 3, 1, 1, tzinfo=UTC))
        planner.fixed = fixed
        needs: Any = QueryNeeds(clock, lambda planner=planner: planner)  # type: ignore[misc]
        asking: Any = RecentQueries(wants, needs)  # type: ignore[arg-type]
        needed = []
        for _ in range(40):
            at = clock.now().replace(tzinfo=None)
            needed.append(fixed or at - planner.since)
            found = needs.of("SELECT 1", {"now": at})
            assert found is not None and asking.take(*found)
            clock.advance(5)
        assert all(of.since <= at for of, at in zip(wants.wanted, needed, strict=True))
        assert all(
            at - of.since < timedelta(minutes=2)
            for of, at in zip(wants.wanted, needed, strict=True)
        )
        assert planner.asked == (40 if fixed else 3)


def test_what_is_expected_is_kept_at_once(made: tuple[Database, Reader]) -> None:
    database, asking = made
    store(database, now(), 0, 90)
    at = now()
    asking.runner.expect([ExpectedQuery(PER_MINUTE, {"now": at})])
    narrow = "SELECT count(*) FROM gpu_1m WHERE ts > $now::TIMESTAMP - INTERVAL 1 MINUTE"
    asking.ask(narrow, {"now": at})
    assert asking.recent.tables["gpu_1m"] >= {"ts", "gpu_uuid", "busy_seconds"}
    assert asking.ask(PER_MINUTE, {"now": at}) == in_store(database, PER_MINUTE, {"now": at})


def test_kinds_of_commits_tell_whether_rows_have_changed() -> None:
    tables = {22: "collectors", 26: "gpu_1m", 27: "events"}

    def changed(*commits: tuple[str, bool]) -> set[str] | None:
        found = [LakeChange(n, own, what, tables) for n, (what, own) in enumerate(commits)]
        return changed_tables(found)

    assert changed(("inserted_into_table:26,inlined_insert:22", True)) == set()
    assert changed(("inserted_into_table:26", False), ("inline_flush:27", False)) == {"gpu_1m"}
    assert changed(("deleted_from_table:26,inserted_into_table:27", False)) == {"gpu_1m", "events"}
    assert changed(("rewrite_delete:26", False), ("compacted_table:27", False)) == set()
    assert changed(("", False)) == set()
    for unknown in (
        "deleted_from_table:99",
        'created_table:"main"."x"',
        "inserted_into_table:26,odd",
    ):
        assert changed((unknown, False)) is None, unknown


def value_of(column: Column) -> str:
    """SQL of values that differ, in a type."""
    return {
        Type.TIMESTAMP: "$at::TIMESTAMP - to_minutes(s)",
        Type.STRING: f"'{column.name}' || (g % 2)",
        Type.BOOL: "s % 2 = 0",
    }.get(column.type, "(s * 7 + g) % 100")


@pytest.mark.slow
def test_all_rules_see_the_same_rows(data_dir: Path, tmp_path: Path) -> None:
    """Those of today's minutes, of rollups, and of a week: in memory, or in files of the lake and in segments."""
    database = Database.open(data_dir, LIMITS)
    keeping, reading = (reader(data_dir, tmp_path / f"spill{n}", n) for n in (64 * 1024 * 1024, 0))
    at = now()
    for name, table in TABLES.items():
        if name in ("alerts", "incidents", "incident_alerts", "silences", "diagnoses", "query_log"):
            continue
        columns = {column.name: value_of(column) for column in stored_columns(table)}
        known = {
            "node": "'n' || (g % 2)",
            "gpu_uuid": "'g' || g",
            "gpu": "g",
            "mig_instance": "NULL",
        }
        columns |= {key: sql for key, sql in known.items() if key in columns}
        if "ts" in columns:
            columns["ts"] = "$at::TIMESTAMP - to_seconds(s * 61 + g)"
        made_up = ", ".join(f'{sql} AS "{key}"' for key, sql in columns.items())
        rows = "range(4) a(g), range(1)" if name in UPSERTED else "range(4) a(g), range(150)"
        sql = f"SELECT DISTINCT ON ({', '.join(table.key)}) {made_up} FROM {rows} b(s)"
        put(database, name, sql, {"at": at} if "$at" in sql else {})
        if name == "gpu_1m":
            move_all(database)
    judged = 0
    for rule in builtin_rules():
        params = {
            key: value.replace(tzinfo=None) if isinstance(value, datetime) else value
            for key, value in rule.bindings(at.replace(tzinfo=UTC)).items()
        }
        expected = in_store(database, rule.sql, params)
        for asking in (keeping, reading, reading):
            found = asking.ask(rule.sql, params)
            assert sorted(map(str, found)) == sorted(map(str, expected)), rule.name
        judged += bool(expected)
    database.close()
    assert judged > 10, "rules have rows to distinguish"
    view = reading.runner._sources._known._shown["gpu_1m"]
    assert view.count(".parquet") == 1, "its files were read, not DuckLake's tables"
    assert {
        "gpu_samples", "gpu_1m", "gpu_1h", "events", "process_1m", "collector_samples",
    } <= keeping.recent.tables.keys()  # fmt: skip


NUMBERS = (
    "SELECT count(*) AS rows, max(memory_used_bytes) AS most, sum(memory_used_bytes)::BIGINT AS total "
    "FROM gpu_samples JOIN (VALUES ('g')) v(gpu_uuid) USING (gpu_uuid) WHERE ts > TIMESTAMP '1970-01-01'"
)


@pytest.mark.slow
def test_each_row_is_there_once_while_another_process_writes_seals_and_deletes(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are numbered in the order that they are stored in."""
    monkeypatch.setattr(joined_rows, "BLOCK_BYTES", segment_writer.BLOCK_BYTES)
    monkeypatch.setattr(hot, "_ONE_CHUNK_ROWS", 0)
    with subprocess.Popen(
        [sys.executable, segment_writer.__file__, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None and writer.stdout.readline()
        asking = reader(data_dir, tmp_path / "spill")
        seen, kept = [], 0
        until_s = time.monotonic() + 6
        while time.monotonic() < until_s:
            (found,) = asking.ask(NUMBERS)
            rows = found["rows"]
            assert rows == (found["most"] or 0), found
            assert (found["total"] or 0) == rows * (rows + 1) // 2, found
            seen.append(rows)
            kept += "gpu_samples" in asking.recent.tables
        stored = int(writer.communicate()[0])
    assert seen == sorted(seen) and len(set(seen)) > 3 and max(seen) <= stored
    assert kept > len(seen) / 2


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 3), st.integers(0, 100)),
        st.tuples(st.just("seal"), st.just(0), st.just(0)),
        st.tuples(st.just("mend"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("tidy"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("name"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("ask"), st.just(0), st.just(0)),
    ),
    min_size=3,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(STEPS)
def test_what_is_kept_is_what_the_store_has(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        data_dir.mkdir()
        database = Database.open(data_dir, LIMITS)
        readers = [
            reader(data_dir, Path(folder) / f"spill{size}", bytes_max=size)
            for size in (0, 64 * 1024 * 1024)
        ]
        at = now()
        for step, gpu, minutes in (*steps, ("ask", 0, 0)):
            match step:
                case "store":
                    store(database, at, gpu, minutes)
                case "seal":
                    move_all(database)
                case "mend":
                    with database.maintaining() as cursor:
                        cursor.execute(f"DELETE FROM lake.main.gpu_1m WHERE gpu = {gpu}")
                case "tidy":
                    with database.maintaining() as cursor:
                        cursor.execute("CALL ducklake_merge_adjacent_files('lake')")
                        flush(cursor, database.lake_root)
                case "name":
                    put(
                        database,
                        "gpus",
                        f"SELECT 'g{gpu}' AS gpu_uuid, 'n' AS node, {gpu} AS gpu, true AS simulated, "
                        f"$at::TIMESTAMP AS last_seen_at, 'model {minutes}' AS model",
                        {"at": at},
                    )
                case _:
                    for sql in (COUNTED, PER_MINUTE):
                        expected = in_store(database, sql, {"now": at})
                        for asking in (*readers, *readers, *readers):
                            assert asking.ask(sql, {"now": at}) == expected, (sql, steps)
        database.close()
