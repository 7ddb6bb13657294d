"""The views of Slurm's jobs and nodes: one row each, of what was last said."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from gpuwarden.schema import TABLES, create_sql, views_sql

BEGIN = datetime(2026, 11, 23, 8, 0, tzinfo=UTC).replace(tzinfo=None)


@pytest.fixture(scope="module")
def made() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for table in TABLES.values():
            connection.execute(create_sql(table))
        connection.execute(views_sql())
        yield connection


@pytest.fixture
def db(made: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    made.execute("DELETE FROM slurm_job_samples")
    return made


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def said(db: duckdb.DuckDBPyConnection, second: float, node: str, **more: Any) -> None:
    """A row of job 7, by default of its node."""
    row = {"ts": at(second), "node": node, "simulated": False, "source": "node", "job": "7", **more}
    names, holes = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    db.execute(f"INSERT INTO slurm_job_samples ({names}) VALUES ({holes})", list(row.values()))


def job(db: duckdb.DuckDBPyConnection, *names: str) -> tuple[Any, ...]:
    """These columns of job 7."""
    (row,) = db.execute(f"SELECT {', '.join(names)} FROM slurm_jobs WHERE job = '7'").fetchall()
    return row


def began(db: duckdb.DuckDBPyConnection, node: str, second: float = 0) -> None:
    held = {"gpus": 2, "cpus": 8, "gpu_uuids": f"{node}-0,{node}-1"}
    said(db, second + 1, node, state="running", started_at=at(second), **held)


def ended(db: duckdb.DuckDBPyConnection, node: str, second: float, **more: Any) -> None:
    held = {"started_at": at(0), "ended_at": at(second), "gpus": 2, "cpus": 8}
    said(db, second + 1, node, state="ended", **held, **more)


def test_a_job_of_two_nodes_ends_when_both_have(db: duckdb.DuckDBPyConnection) -> None:
    began(db, "a")
    began(db, "b")
    ended(db, "b", 60, cpu_seconds_total=10.0)
    assert job(db, "state", "ended_at", "nodes", "gpus", "cpus") == ("running", None, 2, 4, 16)
    assert job(db, "gpu_uuids", "node_list") == ("a-0,a-1,b-0,b-1", "a,b")
    ended(db, "a", 61, cpu_seconds_total=5.0)
    assert job(db, "state", "ended_at", "cpu_seconds") == ("ended", at(61), 15.0)


def test_the_controller_has_the_last_word(db: duckdb.DuckDBPyConnection) -> None:
    began(db, "a")
    of = {"source": "controller", "started_at": at(0), "qos": "high", "time_limit_seconds": 600}
    of |= {"nodes": 1, "cpus": 9}
    said(db, 5, "head", **of, state="running")
    assert job(db, "state") == ("running",)
    said(db, 70, "head", **of, state="node_fail", ended_at=at(65))
    assert job(db, "state", "ended_at") == ("node_fail", at(65)), "a dead node has no epilog"
    assert job(db, "qos", "time_limit_seconds", "cpus", "gpus") == ("high", 600, 9, 2)


def test_a_requeued_job_is_its_last_run(db: duckdb.DuckDBPyConnection) -> None:
    began(db, "a")
    ended(db, "a", 60, exit_code=1)
    began(db, "b", 300)
    assert job(db, "state", "ended_at", "started_at") == ("running", None, at(300))
    assert job(db, "node_list", "gpus", "exit_code") == ("b", 2, None)
    began(db, "b", 600)
    assert job(db, "started_at") == (at(600),)


def test_nodes_are_as_they_were_last_told(db: duckdb.DuckDBPyConnection) -> None:
    for minutes, state in ((500, "down"), (20, "drained"), (10, "idle")):
        db.execute(
            "INSERT INTO slurm_node_samples (ts, node, simulated, slurm_node, state)"
            " VALUES (now()::TIMESTAMP - to_minutes(?), 'head', false, 'gpu1', ?)", [minutes, state],
        )  # fmt: skip
    assert db.execute("SELECT slurm_node, state, told_by FROM slurm_nodes").fetchall() == [
        ("gpu1", "idle", "head")
    ]
