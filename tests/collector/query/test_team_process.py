"""A query process of a team has the team's rows and nothing else: no row, file or variable of anybody else."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import LIMITS
from tests.collector.two_teams import OWN, SECRET, VISION, fill_both
from tests.unchecked import KEPT

from gpuwarden.clock import SystemClock
from gpuwarden.query import QueryError
from gpuwarden.teams import Team
from gpuwarden_collector.processes.forkserver import ForkServer
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.team_store import conditions_of
from gpuwarden_collector.query.worker import WorkerSettings, needs
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/self/mem").exists(),
    reason="reading another process's memory needs root on Linux",
)
PLANTED = "planted-in-the-environment"
FAILS = "SELECT reservoir_quantile(range, 0.5, 2000000000) FROM range(10)"
"""DuckDB 1.5.5 fails on it with an internal error, and refuses all later queries."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Database]:
    """One for all: it has rows of the team and of others, in segments and in the lake."""
    folder = tmp_path_factory.mktemp("teams")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    opened = Database.open(folder, LIMITS)
    fill_both(opened, datetime.now(UTC).replace(microsecond=0))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Started by a process that has a variable of its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OF_THE_COLLECTOR", PLANTED)
        made = ForkServer("tests.unchecked", KEPT)
        yield made
        made.stop()


@pytest.fixture
async def querier(
    worker_settings: WorkerSettings, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqlQuerier]:
    monkeypatch.setattr("gpuwarden_collector.query.querier.spawn", server.spawn)
    monkeypatch.setattr("gpuwarden_collector.query.querier.IDLE_S", 600.0)
    async with SqlQuerier(worker_settings, Stats(), SystemClock(), timeout_s=20) as opened:
        yield opened


def named(querier: SqlQuerier, name: str) -> list[psutil.Process]:
    found = []
    for pid in querier.pids:
        with suppress(psutil.NoSuchProcess):  # one that ends
            process = psutil.Process(pid)
            if process.name() == name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def memory_holds(pid: int, secret: str) -> bool:
    """Whether a text is anywhere in a process's memory."""
    sought = secret.encode()
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, _, _, inode, *_ = line.split()
            is_of_a_file = (
                inode != "0" and "w" not in rights
            )  # libraries, the same in all processes
            if not rights.startswith("r") or is_of_a_file or line.endswith("[vvar]"):
                continue
            begin, end = (int(number, 16) for number in span.split("-"))
            try:
                memory.seek(begin)
                if sought in memory.read(end - begin):
                    return True
            except (OSError, ValueError, OverflowError):
                continue
    return False


TABLES = ("gpu_samples", "events", "alerts", "incidents", "nodes", "gpus", "waste_1h")


@needs_root
async def test_no_row_of_others_is_in_the_memory_of_a_teams_process(querier: SqlQuerier) -> None:
    for table in (*TABLES, "gpus_now"):
        sql = f"SELECT count(*) AS n, max(columns(*)::VARCHAR) FROM {table}"
        answer = await querier.query(sql, team=VISION)
        assert SECRET not in repr(answer.rows)
    (of_team,), (of_rows,) = (named(querier, n) for n in ("gpuwarden-team", "gpuwarden-rows"))
    assert not memory_holds(of_team.pid, SECRET)
    assert memory_holds(of_rows.pid, SECRET)  # so that the search would see it
    assert memory_holds(of_team.pid, OWN["gpu_uuid"])


@needs_root
async def test_query_processes_have_no_variable_of_the_collector(querier: SqlQuerier) -> None:
    await querier.query("SELECT 1")
    await querier.query("SELECT count(*) FROM nodes", team=VISION)
    assert os.environ["OF_THE_COLLECTOR"] == PLANTED
    assert len(querier.pids) == 3
    for pid in querier.pids:
        assert PLANTED not in psutil.Process(pid).environ().values()
        assert not memory_holds(pid, PLANTED)


async def test_a_teams_process_has_no_way_to_the_store(
    querier: SqlQuerier, worker_settings: WorkerSettings
) -> None:
    settings = worker_settings.of_team(VISION)
    allowed = needs(replace(settings, spill=worker_settings.data_dir / "spill" / "own"))
    assert not allowed.network
    for path in (*allowed.readable, *allowed.writable):
        assert not worker_settings.data_dir.is_relative_to(path), path
        assert path.name == "own" or not path.is_relative_to(worker_settings.data_dir), path
    await querier.query("SELECT count(*) FROM gpu_samples", team=VISION)
    (process,) = named(querier, "gpuwarden-team")
    assert [file.path for file in process.open_files() if "statm" not in file.path] == []


@pytest.mark.parametrize("team", [None, VISION])
async def test_a_failure_within_duckdb_ends_its_process_and_nothing_else(
    querier: SqlQuerier, team: Team | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await querier.query("SELECT 1", team=team)).rows == [(1,)]
    before = querier.pids
    with pytest.raises(QueryError) as error:
        await querier.query(FAILS, team=team)
    assert re.fullmatch(r"the query failed within DuckDB, [\w ,;:']+", error.value.reason)
    records = [r for r in caplog.records if "DuckDB failed" in r.getMessage()]
    assert "INTERNAL Error" in str(vars(records[0])["error"])
    for _ in range(3):
        assert (await querier.query("SELECT count(*) FROM gpu_samples", team=team)).rows
    assert set(querier.pids).isdisjoint(named_pids(before, querier))


def named_pids(before: list[int], querier: SqlQuerier) -> set[int]:
    """Processes of before that answer SQL, which the one that reads rows for teams does not."""
    return set(before) - {process.pid for process in named(querier, "gpuwarden-rows")}


async def test_a_team_is_answered_after_the_process_that_reads_its_rows_was_killed(
    querier: SqlQuerier,
) -> None:
    sql = "SELECT count(*) FROM gpu_samples"
    expected = (await querier.query(sql, team=VISION)).rows
    (reader,) = named(querier, "gpuwarden-rows")
    os.kill(reader.pid, signal.SIGKILL)
    assert (await querier.query(sql, team=VISION)).rows == expected


async def test_a_team_gets_rows_for_any_number_of_uses_of_its_tables(querier: SqlQuerier) -> None:
    joined = "".join(f" JOIN gpu_samples t{n} USING (gpu_uuid, ts)" for n in range(20))
    sql = f"SELECT count(*) FROM gpu_samples t{joined} SEMI JOIN gpus USING (gpu_uuid)"
    assert (await querier.query(sql, team=VISION)).rows == [(2,)]
    recursive = (
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, nodes WHERE n < 9) "
        "SELECT count(*) FROM r"
    )
    assert (await querier.query(recursive, team=VISION)).rows == [(9,)]


async def test_a_team_has_its_own_rows_of_the_logs_and_no_others(querier: SqlQuerier) -> None:
    sql = "SELECT count(*) FROM query_log"
    assert (await querier.query(sql, team=VISION, log_of="nobodysown12")).rows == [(0,)]
    with pytest.raises(QueryError, match="needs a token"):
        await querier.query(sql, team=VISION)


BEGIN = datetime(2026, 1, 1)  # noqa: DTZ001  naive, as the store has instants
SCHEMA = pa.schema({"ts": pa.timestamp("us"), "a": pa.string(), "b": pa.string(), "n": pa.int32()})
WORDS = ["x", "it's", 'a "quoted" b', "(a == 'x')", '") or (a == "', "é\n", "x) and (b", "\\", ""]


class _Recording(ds.InMemoryDataset):  # type: ignore[misc]
    """A table whose scans note their conditions."""

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.data = data
        self.conditions: list[str] = []
        self.counts: dict[str, int] = {}
        """Rows that a condition leaves, by its text."""

    def scanner(self, columns: list[str], filter: Any = None, **_: Any) -> Any:
        found = self.data if filter is None else self.data.filter(filter)
        if filter is not None:
            self.conditions.append(str(filter))
            self.counts[str(filter)] = found.num_rows
        return ds.InMemoryDataset(found.select(columns)).scanner()


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[duckdb.DuckDBPyConnection, _Recording]]:
    values = [
        (BEGIN + timedelta(days=day), a, b, day) for day in range(5) for a in WORDS for b in WORDS
    ]
    columns = zip(*values, strict=True)
    data = pa.table(dict(zip(SCHEMA.names, map(list, columns), strict=True)), schema=SCHEMA)
    table = _Recording(data)
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("t", table)
        connection.register("plain", data)
        yield connection, table


def _sql(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"TIMESTAMP '{value}'" if isinstance(value, datetime) else str(value)


COMPARISONS = st.one_of(
    st.tuples(st.sampled_from("ab"), st.sampled_from(["=", "<", "<=", ">", ">=", "<>"]), st.sampled_from(WORDS)),
    st.tuples(st.just("n"), st.sampled_from(["=", "<", ">"]), st.integers(-1, 6)),
    st.tuples(st.just("ts"), st.sampled_from(["=", "<", "<=", ">", ">="]), st.datetimes(BEGIN, BEGIN + timedelta(days=5))),
).map(lambda c: f"{c[0]} {c[1]} {_sql(c[2])}")  # fmt: skip
LISTS = st.lists(st.sampled_from(WORDS), min_size=2, max_size=3).map(
    lambda words: f"a IN ({', '.join(map(_sql, words))})"
)
CONDITIONS = st.recursive(
    COMPARISONS | LISTS | st.sampled_from(["a IS NULL", "NOT (a = 'x')", "a LIKE 'x%'"]),
    lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=3)).map(
        lambda found: "(" + f" {found[0]} ".join(found[1]) + ")"
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(CONDITIONS)
def test_what_is_asked_of_the_store_leaves_out_no_row_of_the_answer(
    recorded: tuple[duckdb.DuckDBPyConnection, _Recording], where: str
) -> None:
    connection, table = recorded
    table.conditions.clear()
    expected = connection.execute(f"SELECT * FROM plain WHERE {where}").fetchall()
    assert connection.execute(f"SELECT * FROM t WHERE {where}").fetchall() == expected
    for text in table.conditions:
        conditions, is_all = conditions_of(text, SCHEMA.names)
        asked = "true"
        for column, operator, value in conditions:
            literal = f"TIMESTAMP '{value}'" if column == "ts" else _sql(value)
            asked += f" AND {column} {operator} {literal}"
        kept = connection.execute(f"FROM plain WHERE ({where}) AND {asked}").fetchall()
        assert len(kept) == len(expected)
        if is_all:
            (left,) = connection.execute(f"SELECT count(*) FROM plain WHERE {asked}").fetchall()
            assert left == (table.counts[text],)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a = 'x' AND ts > TIMESTAMP '2026-01-02'", {("a", "=", "x"), ("ts", ">", "2026-01-02 00:00:00.000000")}),
        ("a = 'x' AND (b = 'y' OR n = 1)", {("a", "=", "x")}),
        ("a = 'x' AND b IN ('p', 'q')", {("a", "=", "x")}),
    ],
)  # fmt: skip
def test_comparisons_of_texts_and_instants_are_asked_of_the_store(
    recorded: tuple[duckdb.DuckDBPyConnection, _Recording], sql: str, expected: set[Any]
) -> None:
    connection, table = recorded
    table.conditions.clear()
    connection.execute(f"SELECT n FROM t WHERE {sql}").fetchall()
    (text,) = table.conditions
    assert set(conditions_of(text, SCHEMA.names)[0]) == expected


FOLDER = Path(__file__).parent


@pytest.mark.slow
async def test_no_attack_of_the_corpus_shows_a_team_anything_of_others(querier: SqlQuerier) -> None:
    """Each is refused, fails or is harmless, and the next query is answered."""
    sees = "SELECT count(*) FROM gpu_samples"
    for number, sql in enumerate((FOLDER / "attacks.sql").read_text().splitlines()):
        said = ""
        with suppress(QueryError):
            said = repr((await querier.query(sql, team=VISION, log_of="nobodysown12")).rows)
        assert SECRET not in said, sql
        if number % 50 == 49:
            assert (await querier.query(sees, team=VISION)).rows == [(2,)], sql
            if os.geteuid() == 0:
                (process,) = named(querier, "gpuwarden-team")
                assert not memory_holds(process.pid, SECRET), sql


async def test_queries_that_look_like_attacks_and_are_none_are_answered(
    querier: SqlQuerier,
) -> None:
    for sql in (FOLDER / "harmless.sql").read_text().splitlines():
        rows = (await querier.query(sql, team=VISION)).rows
        # Sums of others have the models of their GPUs.
        assert SECRET not in repr(rows) or "others_1h" in sql, sql
        await querier.query(sql)


ODD = (
    "ts >= TIMESTAMP '0000-01-01'",
    "ts > TIMESTAMP '0044-03-15 (BC)' AND ts < TIMESTAMP '9999-12-31'",
    "ts < 'infinity'",
    "gpu_uuid > chr(0) || 'a'",
    "gpu_uuid BETWEEN chr(0) AND chr(1114111)",
    "gpu_uuid < repeat(repeat('y', 10000), 30)",
    "gpu_uuid < repeat(repeat('🙈', 10000), 3)",
    "gpu_uuid <> 'it''s \"quoted\" \\'",
)


async def test_odd_values_are_compared_as_without_a_team(querier: SqlQuerier) -> None:
    for where in ODD:
        of_team = await querier.query(
            f"SELECT count(*) FROM gpu_samples WHERE {where}", team=VISION
        )
        of_node = f"node = '{OWN['node']}' AND {where}"
        expected = await querier.query(f"SELECT count(*) FROM gpu_samples WHERE {of_node}")
        assert of_team.rows == expected.rows, where


async def test_a_teams_query_that_holds_its_rows_stops_no_other_team(querier: SqlQuerier) -> None:
    """Its scans stay open in the process that reads the store for all teams."""
    other = Team("other", nodes=("v*",))
    held = " UNION ALL ".join(
        f"SELECT t.node FROM {table} t, range(1000000000) r WHERE t.node || r.range::VARCHAR = 'x'"
        for table in ("gpu_samples", "host_samples", "events", "gpu_1h", "nodes")
    )
    holding = asyncio.ensure_future(querier.query(held, team=VISION, timeout_s=100))
    await asyncio.sleep(1)
    for table in ("gpu_samples", "gpu_detail_samples", "waste"):
        answer = await querier.query(f"SELECT count(*) > 0 FROM {table}", team=other)
        assert answer.rows == [(True,)]
    assert not holding.done()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert (await querier.query("SELECT count(*) FROM gpu_samples", team=VISION)).rows == [(2,)]
