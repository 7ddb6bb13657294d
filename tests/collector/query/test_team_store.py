"""Readers of a team get the same answers as from a store that has no rows of others, whatever they ask."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import LIMITS, Reader, reader
from tests.collector.two_teams import PUBLIC, SECRET, VISION, fill_both, plant
from tests.each import each

from gpuwarden.query import QueryError
from gpuwarden.schema import TABLES, UPSERTED, public_views, stored_columns
from gpuwarden.teams import Team, visible_sql
from gpuwarden_collector.storage.database import Database

CLOSED = frozenset({"silences", "collector_samples", "query_log", "audit"})
VIEWS = sorted({view.name for view in public_views()} - {"others_1h"})
OF_NOW = frozenset(
    {"alerts_now", "incidents_now", "incident_costs", "budgets_now", "policy_results"}
)
"""Views with sums that grow with each moment."""


@pytest.fixture(scope="module")
def readers(
    empty_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Reader, Reader]]:
    """Of the team, in a store that others have rows in, and in one without: in the lake and in segments."""
    made, opened = [], []
    now = datetime.now(UTC).replace(microsecond=0)
    for has_others in (True, False):
        folder = tmp_path_factory.mktemp("others" if has_others else "alone") / "data"
        shutil.copytree(empty_store, folder)
        database = Database.open(folder, LIMITS)
        opened.append(database)
        fill_both(database, now, has_others=has_others)
        made.append(reader(folder, folder / "spill", 0, VISION))
    yield made[0], made[1]
    for database in opened:
        database.close()


def said(one: Reader, sql: str) -> str:
    """The answer or the error, without an order of rows."""
    try:
        return repr(sorted(map(repr, one.ask(sql))))
    except QueryError as error:
        return f"error: {error}"


def _same(readers: tuple[Reader, Reader], sql: str, *, grows: bool = False) -> str:
    """The answer to a query, which must be that of a store without others; `grows`: but for numbers."""
    found, alone = said(readers[0], sql), said(readers[1], sql)
    if found != alone:
        # A row left a view of now between the two.
        found, alone = said(readers[0], sql), said(readers[1], sql)
    assert SECRET not in found.replace(sql, ""), sql
    if grows:
        found, alone = (re.sub(r"[0-9.e-]+", "", one) for one in (found, alone))
    # An error names any one of the rows.
    assert found == alone or (found.startswith("error") and alone.startswith("error")), sql
    return found


FORMS = (
    "SELECT * FROM {t}",
    "SELECT count(*), max(columns(*)::VARCHAR) FROM {t}",
    "FROM main.{t}",
    "FROM gpuwarden.main.{t}",
    "SUMMARIZE {t}",
    "DESCRIBE {t}",
    "EXPLAIN SELECT * FROM {t}",
    "SELECT t.* FROM {t} t JOIN {t} u ON true",
    "SELECT (SELECT count(*) FROM {t}) AS n",
    "WITH w AS (FROM {t}) FROM w",
    "FROM {t} TABLESAMPLE 100%",
    "SELECT error(t::VARCHAR) FROM {t} t",
    "SELECT CAST(t::VARCHAR AS INTEGER) FROM {t} t",
    "SELECT count(*) FROM {t} t WHERE CASE WHEN t::VARCHAR LIKE '%hush%' THEN error('found') ELSE true END",
)
HIDDEN = (
    "FROM bound.{t}", "FROM gpuwarden.bound.{t}", "FROM hot_{t}", "FROM temp.hot_{t}", "FROM lake.main.{t}", "FROM lake.inlined.{t}",
    "FROM newest_{t}", "FROM memory.{t}",
    "WITH hot_{t} AS (SELECT 1) SELECT * FROM (FROM hot_{t})",
    "SELECT * FROM hot_{t} h, (WITH hot_{t} AS (SELECT 1 AS one) FROM hot_{t}) x",
    "FROM query_table('{t}')", "FROM query('FROM {t}')",
)  # fmt: skip


@each("table", sorted(set(TABLES) - CLOSED - PUBLIC) + VIEWS)
def test_no_form_of_a_query_shows_rows_of_others(
    readers: tuple[Reader, Reader], table: str
) -> None:
    # What a form shows does not depend on the table: four have all forms.
    for form in (
        FORMS if table in ("gpu_samples", "nodes", "alerts", "waste_1h") else (FORMS[0], FORMS[-1])
    ):
        found = _same(readers, form.format(t=table), grows=table in OF_NOW)
        assert form not in FORMS[:3] or not found.startswith("error"), found


@each("table", ("gpu_samples", "waste_1h", "nodes", "alerts"))
def test_what_a_view_is_made_of_is_closed(readers: tuple[Reader, Reader], table: str) -> None:
    for form in HIDDEN:
        assert _same(readers, form.format(t=table)).startswith("error"), form


@each("table", sorted(set(TABLES) - CLOSED))
def test_a_team_sees_its_own_rows_of_each_table(readers: tuple[Reader, Reader], table: str) -> None:
    has_one = table in UPSERTED - {"alerts", "diagnoses"}  # of those, one of each time
    expected = 0 if table in PUBLIC else 1 if has_one else 2
    assert readers[0].ask(f"SELECT count(*) AS n FROM {table}") == [{"n": expected}]


@each("table", sorted(CLOSED))
def test_closed_tables_are_empty(readers: tuple[Reader, Reader], table: str) -> None:
    found = said(readers[0], f"FROM {table}")
    assert found == "[]" or "needs a token" in found


def test_catalogues_name_no_hidden_thing(readers: tuple[Reader, Reader]) -> None:
    for sql in (
        "FROM duckdb_views()", "FROM duckdb_tables()", "FROM duckdb_columns()", "FROM information_schema.tables",
        "FROM information_schema.columns", "FROM information_schema.schemata", "SHOW ALL TABLES", "SHOW TABLES", "SHOW DATABASES",
    ):  # fmt: skip
        found = _same(readers, sql)
        assert "bound." not in found and "GLOB" not in found


def test_readings_of_a_gpu_of_others_show_in_the_minutes_in_which_the_team_held_it(
    data_dir: Path, database: Database
) -> None:
    now = datetime.now(UTC).replace(second=30, microsecond=0)
    for minute in range(4):
        at = now - timedelta(minutes=minute)
        for gpu in ("GPU-a", "GPU-b"):
            plant(database, "gpu_samples", at, node="shared", gpu_uuid=gpu)
        holder = "vera" if minute == 2 else "sven"
        plant(database, "process_samples", at, node="shared", gpu_uuid="GPU-a", username=holder)
    of_team = reader(data_dir, data_dir / "spill", 0, VISION)
    expected = [{"gpu_uuid": "GPU-a", "ts": (now - timedelta(minutes=2)).replace(tzinfo=None)}]
    assert of_team.ask("SELECT gpu_uuid, ts FROM gpu_samples") == expected
    recent = "SELECT gpu_uuid, ts FROM gpu_samples WHERE ts > now()::TIMESTAMP - INTERVAL {} MINUTE"
    assert of_team.ask(recent.format(10)) == expected
    assert of_team.ask(recent.format(1)) == []
    # A bound of the query before does not hold for the next.
    assert of_team.ask("SELECT gpu_uuid, ts FROM gpu_samples") == expected


def test_an_incident_shows_only_if_each_alert_that_it_ever_held_is_the_teams(
    data_dir: Path, database: Database
) -> None:
    """Each case has an incident that vera owns, with these episodes: fingerprint, node, owner, minutes ago from and until."""
    now = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
    cases = {
        "own": [("a", "s1", "vera", 9, None)],
        "own, once before another's": [("b", "s1", "sven", 59, 50), ("b", "s1", "vera", 9, None)],
        "of a node of the team": [("c", "v1", "sven", 9, None)],
        "with another's": [("d", "s1", "vera", 9, None), ("e", "s1", "sven", 9, None)],
        "another's before": [("f", "s1", "sven", 25, 15), ("f", "s1", "vera", 9, None)],
        "another's now": [("g", "s1", "vera", 25, 15), ("g", "s1", "sven", 9, None)],
        "without alerts": [],
    }
    plant(database, "nodes", now, node="v1")
    for name, episodes in cases.items():
        plant(database, "incidents", now, id=name, state="open", owner="vera", summary=name)
        for fingerprint, node, owner, since, until in episodes:
            at = now - timedelta(minutes=since)
            row = {"fingerprint": fingerprint, "active_at": str(at)}
            over = {} if until is None else {"resolved_at": str(now - timedelta(minutes=until))}
            plant(database, "alerts", at, **row, node=node, owner=owner, **over)
            joined = str(now - timedelta(minutes=20))
            plant(database, "incident_alerts", at, incident=name, **row, joined_at=joined)
    of_team = reader(data_dir, data_dir / "spill", 0, VISION)
    shown = ["of a node of the team", "own", "own, once before another's"]
    for table, column in (
        ("incidents", "id"),
        ("incidents_now", "id"),
        ("incident_alerts", "incident"),
    ):
        found = of_team.ask(f"SELECT DISTINCT {column} AS name FROM {table} ORDER BY 1")
        assert [row["name"] for row in found] == shown, table


def test_sums_of_others_have_no_names(readers: tuple[Reader, Reader]) -> None:
    found = readers[0].ask("FROM others_1h")
    assert [set(row) for row in found] == [
        {"ts", "model", "category", "gpu_hours", "usd", "simulated"}
    ] * len(found)
    assert sum(row["gpu_hours"] for row in found) == pytest.approx(2 * 2.5 / 3600)
    assert readers[1].ask("FROM others_1h") == []


COLUMNS = {name: [c.name for c in stored_columns(TABLES[name])] for name in TABLES}


@st.composite
def _queries(draw: st.DrawFn) -> str:
    """Queries that join, filter, group, cast and fail on any column."""
    table = draw(st.sampled_from(sorted(set(TABLES) - CLOSED - PUBLIC)))
    column, other = (draw(st.sampled_from(COLUMNS[table])) for _ in range(2))
    quoted, quoted_other = f't."{column}"', f't."{other}"'
    value = draw(st.sampled_from([
        quoted, f"CAST({quoted} AS VARCHAR)", f"CAST(CAST({quoted} AS VARCHAR) AS INTEGER)", f"error({quoted}::VARCHAR)",
        f"max({quoted}) OVER (ORDER BY {quoted_other})", f"row_number() OVER (ORDER BY {quoted})", f"hash({quoted})",
        f"(SELECT max({column}) FROM {table})", f"lag({quoted}) OVER (ORDER BY {quoted_other})",
    ]))  # fmt: skip
    where = draw(st.sampled_from([
        "true", f"{quoted} IS NOT NULL", f"{quoted}::VARCHAR LIKE '%{SECRET}%'", f"{quoted}::VARCHAR > 'm'",
        f"CASE WHEN {quoted}::VARCHAR LIKE '%hush%' THEN error({quoted}::VARCHAR) ELSE true END",
        f"{quoted} IN (SELECT {column} FROM {table})", f"EXISTS (SELECT 1 FROM {table} u WHERE u.{other} = {quoted_other})",
        f"{quoted} NOT IN (SELECT {column} FROM {table} WHERE {column} IS NOT NULL)",
    ]))  # fmt: skip
    source = draw(st.sampled_from([
        f"{table} t", f"main.{table} t", f"(FROM {table}) t", f"{table} t FULL JOIN {table} u USING ({column})",
        f"{table} t CROSS JOIN nodes n", f"{table} t LEFT JOIN LATERAL (SELECT count(*) AS c FROM events e) x ON true",
    ]))  # fmt: skip
    end = draw(st.sampled_from(["", " LIMIT 1", " ORDER BY ALL LIMIT 5", " ORDER BY 1"]))
    return f"SELECT {value} AS v FROM {source} WHERE {where}{end}"


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(_queries())
def test_random_queries_are_answered_as_if_there_were_no_others(
    readers: tuple[Reader, Reader], sql: str
) -> None:
    _same(
        readers,
        sql.replace(" LIMIT 1", " ORDER BY ALL LIMIT 1") if sql.endswith("LIMIT 1") else sql,
    )


def test_an_unknown_table_shows_nothing() -> None:
    assert visible_sql(VISION, "table_of_tomorrow") == "false"


@each(
    "pattern, fits",
    [("a'b", False), ("*", True), ("[v]era", True), ("VERA", False), ("ver?", True), ("", False)],
)
def test_patterns_of_users_are_globs_and_never_sql(
    data_dir: Path, database: Database, pattern: str, fits: bool
) -> None:
    plant(database, "progress_samples", datetime.now(UTC), username="vera")
    of_team = reader(data_dir, data_dir / "spill", 0, Team("t'; --", users=(pattern,)))
    assert bool(of_team.ask("FROM progress_samples")) is fits
