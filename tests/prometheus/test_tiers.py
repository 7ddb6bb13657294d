"""Rollups instead of samples: the same answers, and which of both is read."""

import json
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector.minutes_sql import minutes_sql

from gpuwarden.rollups import GPU_1M
from gpuwarden.schema import TABLES, create_sql
from gpuwarden_prometheus.compile import QueryTimes, compiled
from gpuwarden_prometheus.dialect import sql_of
from gpuwarden_prometheus.kept_answers import read_series
from gpuwarden_prometheus.relations import BLOCK_STEPS, Grid
from gpuwarden_prometheus.request import RangeTimes, blocks_text, range_text
from gpuwarden_prometheus.tiers import HOUR_MS, MINUTE_MS, RolledUntil

BEGAN = datetime(2026, 3, 1, 6, tzinfo=UTC)
BEGAN_MS = round(BEGAN.timestamp() * 1000)
MINUTES = 150
END_MS = BEGAN_MS + MINUTES * MINUTE_MS
POWER, UTIL, MEMORY, ENERGY = (
    "gpuwarden_gpu_power_watts", "gpuwarden_gpu_util_ratio", "gpuwarden_gpu_memory_used_bytes", "gpuwarden_gpu_energy_joules_total",
)  # fmt: skip


@pytest.fixture(scope="module")
def fleet() -> duckdb.DuckDBPyConnection:
    """Samples every five seconds, none at a whole second: one GPU has gaps, one counter is reset."""
    connection = duckdb.connect()
    for table in TABLES.values():
        connection.execute(create_sql(table))
    connection.execute(
        "INSERT INTO gpu_samples BY NAME SELECT make_timestamp_ms($1 + s * 5000 + 137) AS ts, 'n' || g % 2 AS node, "
        "g AS gpu, 'G' || g AS gpu_uuid, false AS simulated, 50 + 40 * sin(s / 50.0 + g) AS util_percent, "
        "300.0 + (s * 7 + g * 13) % 97 AS power_watts, 1e9 + (s * 11 + g * 17) % 89 * 1e8 AS memory_used_bytes, s * 1500.0 - if(g = 2 AND s > 900, 1350000, 0) AS energy_joules_total "
        "FROM range($2 * 12) t(s), range(4) u(g) WHERE NOT (g = 1 AND s BETWEEN 300 AND 500)",
        [BEGAN_MS, MINUTES],
    )
    begin = BEGAN.replace(tzinfo=None)
    rows = minutes_sql(GPU_1M, begin, begin + timedelta(minutes=MINUTES))
    for table in ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "coverage"):
        connection.execute(f"CREATE VIEW hot_{table} AS FROM {table}")
    connection.execute(f"INSERT INTO gpu_1m BY NAME {rows}")
    return connection


def answer(
    connection: duckdb.DuckDBPyConnection, query: str, grid: Grid, known: RolledUntil
) -> dict[str, dict[float, float]]:
    sql = compiled(query, QueryTimes(grid, grid.steps > 1, 60_000, grid.end_ms, known))
    found = {}
    for metric, text in connection.execute(sql).fetchall():
        points = json.loads(text)
        points = points if grid.steps > 1 else [points]
        found[metric] = {t: float(v) for t, v in points}
    return found


def is_read(query: str, grid: Grid, known: RolledUntil) -> set[str]:
    sql = compiled(query, QueryTimes(grid, grid.steps > 1, 60_000, grid.end_ms, known))
    return {name for name in ("gpu_samples", "gpu_1m", "gpu_1h") if f"FROM {name} " in sql}


@settings(max_examples=12)
@given(
    query=st.sampled_from(
        [
            MEMORY,
            f"sum by (node) ({MEMORY})",
            f"avg_over_time({UTIL}[7m])",
            *(f"{how}_over_time({MEMORY}[7m])" for how in ("avg", "sum", "count", "min", "max", "last", "present")),
        ]
    ),
    first=st.integers(10, 60),
    step=st.integers(1, 7),
    rolled=st.integers(0, MINUTES),
)  # fmt: skip
def test_rollups_give_what_samples_give(
    fleet: duckdb.DuckDBPyConnection, query: str, first: int, step: int, rolled: int
) -> None:
    grid = Grid(BEGAN_MS + first * MINUTE_MS, step * MINUTE_MS, (MINUTES - first) // step + 1)
    got = answer(fleet, query, grid, RolledUntil(BEGAN_MS + rolled * MINUTE_MS))
    wanted = answer(fleet, query, grid, RolledUntil())
    assert got.keys() == wanted.keys()
    for series, points in wanted.items():
        assert got[series] == pytest.approx(points, rel=1e-5)


def test_an_instant_of_a_metric_without_a_last_value_is_the_mean_of_its_minute(
    fleet: duckdb.DuckDBPyConnection,
) -> None:
    grid = Grid(BEGAN_MS + 10 * MINUTE_MS, MINUTE_MS, 60)
    [got] = answer(fleet, f'{POWER}{{gpu="0"}}', grid, RolledUntil(END_MS)).values()
    mean = f'avg_over_time({POWER}{{gpu="0"}}[1m])'
    [wanted] = answer(fleet, mean, grid, RolledUntil()).values()
    assert got == pytest.approx(wanted, rel=1e-5)


@settings(max_examples=15)
@given(
    query=st.sampled_from(
        [
            POWER,
            f"sum by (node) ({POWER})",
            f"rate({ENERGY}[10m])",
            f"avg_over_time({UTIL}[7m])",
            f"stddev_over_time({UTIL}[3m])",
            f"max_over_time(({POWER})[20m:2m])",
            f"{POWER} offset 3m > 320",
            "vector(time())",
            "1 + 1",
            f'absent({POWER}{{gpu="1"}})',
        ]
    ),
    seconds=st.sampled_from([30, 60, 120]),
    steps=st.integers(3, 60),
    rolled=st.integers(0, MINUTES),
    data=st.data(),
)  # fmt: skip
def test_steps_have_the_values_that_they_have_with_the_steps_before(
    fleet: duckdb.DuckDBPyConnection, query: str, seconds: int, steps: int, rolled: int, data: st.DataObject
) -> None:  # fmt: skip
    known = data.draw(st.integers(0, steps - 2), label="known")
    grid = Grid(BEGAN_MS + 25 * MINUTE_MS + 500, seconds * 1000, steps)
    rolled_until = RolledUntil(BEGAN_MS + rolled * MINUTE_MS)
    times = RangeTimes(grid, grid.end_ms, 60_000, rolled_until)
    rows = fleet.execute(sql_of(blocks_text(query, times, known))).fetchall()
    text = "".join(f"{metric}\n{blocks}\n\n" for metric, blocks in rows)
    zero = grid.start_ms // grid.step_ms
    got = {}
    for series in read_series(text):
        for block, points in series.points.items():
            for t, value in json.loads(f"[{points}]"):
                assert (
                    zero + (round(t * 1000) - grid.start_ms) // grid.step_ms
                ) // BLOCK_STEPS == block
                got[series.labels, t] = float(value)
    first_s = (grid.start_ms + known * grid.step_ms) / 1000
    whole = fleet.execute(sql_of(range_text(query, times))).fetchall()
    wanted = {
        (metric, t): float(value)
        for metric, matrix in whole
        for t, value in json.loads(matrix)
        if t >= first_s
    }
    assert got == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("rolled", [45, 97, MINUTES])
def test_rates_of_rollups_are_near_those_of_samples(
    fleet: duckdb.DuckDBPyConnection, rolled: int
) -> None:
    grid = Grid(BEGAN_MS + 20 * MINUTE_MS, MINUTE_MS, MINUTES - 20)
    query = f"rate({ENERGY}[10m])"
    got = answer(fleet, query, grid, RolledUntil(BEGAN_MS + rolled * MINUTE_MS))
    wanted = answer(fleet, query, grid, RolledUntil())
    assert got.keys() == wanted.keys()
    # 300 W throughout, but what extrapolation to the ends of a window adds after a gap or reset.
    for series in ('"gpu":"0"', '"gpu":"3"'):
        values = [v for labels, points in got.items() if series in labels for v in points.values()]
        assert values == pytest.approx([300.0] * len(values), rel=0.001)
    for labels, points in wanted.items():
        # A window that begins within its only minute has too few readings.
        assert len(points.keys() - got[labels].keys()) <= 2
        assert sum(got[labels].values()) == pytest.approx(sum(points.values()), rel=0.05)


ALL = RolledUntil(END_MS, END_MS // HOUR_MS * HOUR_MS)


@pytest.mark.parametrize(
    ("query", "step_ms", "known", "tables"),
    [
        (POWER, 30_000, ALL, {"gpu_samples"}),
        (POWER, MINUTE_MS, RolledUntil(), {"gpu_samples"}),
        (POWER, MINUTE_MS, ALL, {"gpu_1m"}),
        (POWER, MINUTE_MS, RolledUntil(END_MS - 3 * MINUTE_MS), {"gpu_1m", "gpu_samples"}),
        (POWER, HOUR_MS, ALL, {"gpu_1h", "gpu_1m"}),
        (ENERGY, MINUTE_MS, ALL, {"gpu_1m"}),
        (f"rate({ENERGY}[5m])", MINUTE_MS, ALL, {"gpu_1m"}),
        (f"rate({ENERGY}[2m])", MINUTE_MS, ALL, {"gpu_samples"}),
        (f"stddev_over_time({POWER}[5m])", MINUTE_MS, ALL, {"gpu_samples"}),
        (f"avg_over_time({POWER}[5m])", 30_000, ALL, {"gpu_samples"}),
        (f"avg_over_time({POWER}[2h])", 30_000, ALL, {"gpu_1m"}),
        (f"max_over_time(({POWER})[2h:1m])", 30_000, ALL, {"gpu_1m"}),
        ("DCGM_FI_PROF_SM_ACTIVE", MINUTE_MS, ALL, {"gpu_1m"}),
        ("rate(gpuwarden_gpu_ecc_corrected_volatile_total[10m])", MINUTE_MS, ALL, {"gpu_1m"}),
    ],
)  # fmt: skip
def test_the_step_decides_what_is_read(
    query: str, step_ms: int, known: RolledUntil, tables: set[str]
) -> None:
    steps = 60 * MINUTE_MS // step_ms + 1
    grid = Grid(END_MS - (steps - 1) * step_ms, step_ms, steps)
    assert is_read(query, grid, known) == tables


def test_an_instant_is_read_from_samples(fleet: duckdb.DuckDBPyConnection) -> None:
    grid = Grid(END_MS, 1, 1)
    assert is_read(POWER, grid, ALL) == {"gpu_samples"}
    assert is_read(f"avg_over_time({POWER}[1h])", grid, ALL) == {"gpu_samples"}
    assert is_read(f"avg_over_time({POWER}[2h])", grid, ALL) == {"gpu_1m"}
    got = answer(fleet, f"avg_over_time({POWER}[2h])", grid, ALL)
    wanted = answer(fleet, f"avg_over_time({POWER}[2h])", grid, RolledUntil())
    assert {s: list(p.values()) for s, p in got.items()} == {
        s: pytest.approx(list(p.values()), rel=1e-5) for s, p in wanted.items()
    }
