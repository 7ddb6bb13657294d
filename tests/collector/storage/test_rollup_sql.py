"""Rollups give what their documentation says, for any samples."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pytest
from tests.collector.rollup_reference import Row
from tests.collector.rollup_samples import tables_of

from gpuwarden.rollups import GPU_1M, Rollup
from gpuwarden.schema import TABLES, create_sql
from gpuwarden_collector.storage.rollup import minutes

START = datetime(2026, 3, 1, 11, 57)  # noqa: DTZ001  naive UTC, as DuckDB has it
END = START + timedelta(minutes=10)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    opened = duckdb.connect(config={"threads": 1})
    opened.execute("SET TimeZone = 'UTC'")
    for table in TABLES.values():
        opened.execute(create_sql(table))
    yield opened
    opened.close()


def fill(connection: duckdb.DuckDBPyConnection, rows: list[tuple[str, Row]]) -> dict[str, Any]:
    for name in TABLES:
        connection.execute(f"DELETE FROM {name}")
    tables = tables_of(rows, START)
    for name, table in tables.items():
        connection.register("incoming", table)
        connection.execute(f"INSERT INTO {name} BY NAME FROM incoming")
        connection.unregister("incoming")
    return {name: table.to_pylist() for name, table in tables.items()}


def result(connection: duckdb.DuckDBPyConnection, rollup: Rollup, nodes: str = "true") -> list[Row]:
    rows: list[Row] = minutes(connection, rollup, START, END, nodes).to_pylist()
    return rows


def gpu_1m(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> list[Row]:
    made = [
        ("gpu_samples", {"node": "a", "gpu": 0, "gpu_uuid": "a0", "simulated": True, **row})
        for row in rows
    ]
    fill(connection, made)
    found = result(connection, GPU_1M)
    return sorted(found, key=lambda row: row["ts"])


def test_a_step_across_minutes_counts_in_the_later_one(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    joules = [(58, 100.0), (59, 110.0), (60, 125.0), (61, 135.0)]
    rows = gpu_1m(connection, [{"ts": s, "energy_joules_total": v} for s, v in joules])
    assert [row["energy_joules_delta"] for row in rows] == [10.0, 25.0]


def test_a_step_over_a_long_gap_counts_nowhere(connection: duckdb.DuckDBPyConnection) -> None:
    joules = [(0, 100.0), (180, 130.0), (480, 190.0), (481, 195.0)]
    rows = gpu_1m(connection, [{"ts": s, "energy_joules_total": v} for s, v in joules])
    assert [row["energy_joules_delta"] for row in rows] == [None, 30.0, 5.0]


def test_a_reset_counts_what_the_counter_shows_after_it(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    values = [(0, 1000), (1, 1010), (2, 5), (3, 15)]
    rows = gpu_1m(connection, [{"ts": s, "pcie_tx_bytes_total": v} for s, v in values])
    assert rows[0]["pcie_tx_bytes_delta"] == 10 + 5 + 10


def test_a_sum_that_loses_a_part_counts_nothing_for_it(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    values = [(0, 1000), (1, 900), (2, 910)]
    rows = gpu_1m(connection, [{"ts": s, "pcie_tx_bytes_total": v} for s, v in values])
    assert rows[0]["pcie_tx_bytes_delta"] == 10


@pytest.mark.parametrize(("every_s", "each_s"), [(1, 1.0), (5, 5.0), (60, 60.0)])
def test_a_sample_stands_for_the_time_between_two(
    connection: duckdb.DuckDBPyConnection, every_s: int, each_s: float
) -> None:
    seconds = range(0, 120, every_s)
    rows = gpu_1m(connection, [{"ts": s, "util_percent": 0.0} for s in seconds])
    assert rows[1]["idle_seconds"] == 60 // every_s * each_s == 60
    assert rows[1]["busy_seconds"] == 0


def test_what_is_not_known_is_neither_idle_nor_busy(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    (row,) = gpu_1m(connection, [{"ts": s} for s in range(10)])
    assert (row["idle_seconds"], row["busy_seconds"], row["unknown_seconds"]) == (None, None, 10)
    assert row["reason_software_power_cap_seconds"] is None


def test_values_that_do_not_fit_are_absent_and_hold_nothing_up(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    huge = [{"ts": s, "pcie_tx_bytes_total": (1 << 63) - 1 if s % 2 else 0} for s in range(20)]
    (row,) = gpu_1m(connection, huge)
    assert row["pcie_tx_bytes_delta"] is None
    detail = {"node": "a", "gpu": 0, "gpu_uuid": "a0", "simulated": True, "pcie_width": 16}
    rows = [
        ("gpu_detail_samples", detail | {"ts": s, "pcie_tx_bytes_per_second": 1e308})
        for s in (0, 10)
    ]
    fill(connection, rows)
    (row,) = result(connection, GPU_1M)
    assert row["pcie_tx_bytes_per_second_avg"] is None
    assert row["pcie_width_max"] == 16
    assert (row["samples"], row["detail_samples"]) == (0, 2)
