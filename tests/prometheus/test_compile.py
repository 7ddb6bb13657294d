"""PromQL over samples in a real DuckDB: windows against a reference in Python, and what is refused."""

import itertools
import json
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.query import QueryError
from gpuwarden.schema import TABLES, create_sql
from gpuwarden_prometheus.compile import DEPTH_MAX, QueryTimes, compiled
from gpuwarden_prometheus.relations import Grid

T0_MS = 1_790_000_000_000
E = "gpuwarden_gpu_energy_joules_total"


@pytest.fixture(scope="module")
def empty() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for table in TABLES.values():
        connection.execute(create_sql(table))
    return connection


@pytest.fixture(scope="module")
def fleet() -> duckdb.DuckDBPyConnection:
    """Two nodes with two GPUs each at T0."""
    connection = duckdb.connect()
    for table in TABLES.values():
        connection.execute(create_sql(table))
    connection.execute(
        "INSERT INTO gpu_samples BY NAME SELECT make_timestamp_ms($1) AS ts, 'n' || g // 2 AS node, g % 2 AS gpu, "
        "'G' || g AS gpu_uuid, false AS simulated, 300.0 + g AS power_watts, 50.0 AS util_percent FROM range(4) r(g)",
        [T0_MS],
    )
    connection.execute(
        "INSERT INTO host_samples BY NAME SELECT make_timestamp_ms($1) AS ts, 'n' || n AS node, false AS simulated, "
        "1.5 AS load_1m FROM range(2) r(n)",
        [T0_MS],
    )
    return connection


def at_t0(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[object, ...]]:
    times = QueryTimes(Grid(T0_MS, 1, 1), False, 60_000, T0_MS)
    return connection.execute(compiled(query, times)).fetchall()


def stored(connection: duckdb.DuckDBPyConnection, samples: dict[int, int]) -> None:
    connection.execute("DELETE FROM gpu_samples")
    for ms, value in samples.items():
        connection.execute(
            "INSERT INTO gpu_samples BY NAME SELECT make_timestamp_ms($1) AS ts, 'n' AS node, 'G' AS gpu_uuid, "
            "false AS simulated, $2 AS energy_joules_total",
            [T0_MS + ms, value],
        )


def points(connection: duckdb.DuckDBPyConnection, query: str, grid: Grid) -> dict[int, float]:
    rows = connection.execute(
        compiled(query, QueryTimes(grid, True, 60_000, grid.end_ms))
    ).fetchall()
    return {round(t * 1000): float(v) for _, text in rows for t, v in json.loads(text)}


SAMPLES = st.dictionaries(st.integers(-400_000, 400_000), st.integers(0, 1000), max_size=60)
GRIDS = st.builds(
    Grid,
    st.integers(T0_MS - 200_000, T0_MS + 200_000),
    st.sampled_from([1, 777, 5_000, 15_000, 60_000, 130_000]),
    st.integers(1, 40),
)
WINDOWS = st.sampled_from([1, 900, 10_000, 30_000, 60_000, 91_000, 300_000])


@settings(max_examples=25)
@given(samples=SAMPLES, grid=GRIDS)
def test_a_step_has_the_newest_reading_of_the_last_minute(
    samples: dict[int, int], grid: Grid, empty: duckdb.DuckDBPyConnection
) -> None:
    stored(empty, samples)
    expected = {}
    for step in range(grid.steps):
        at = grid.start_ms + step * grid.step_ms
        seen = [ms for ms in samples if at - 60_000 < T0_MS + ms <= at]
        if seen:
            expected[at] = float(samples[max(seen)])
    assert points(empty, E, grid) == expected


def windows(samples: dict[int, int], grid: Grid, window_ms: int) -> Iterator[tuple[int, list[int]]]:
    for step in range(grid.steps):
        at = grid.start_ms + step * grid.step_ms
        seen = sorted(ms for ms in samples if at - window_ms < T0_MS + ms <= at)
        yield at, [samples[ms] for ms in seen]


@settings(max_examples=15)
@given(samples=SAMPLES, grid=GRIDS, window_ms=WINDOWS)
def test_a_window_has_the_samples_after_its_start_up_to_its_end(
    samples: dict[int, int], grid: Grid, window_ms: int, empty: duckdb.DuckDBPyConnection
) -> None:
    stored(empty, samples)
    found = {at: seen for at, seen in windows(samples, grid, window_ms) if seen}
    window = f"{E}[{window_ms}ms]"
    assert points(empty, f"count_over_time({window})", grid) == {
        a: len(s) for a, s in found.items()
    }
    assert points(empty, f"max_over_time({window})", grid) == {a: max(s) for a, s in found.items()}
    assert points(empty, f"last_over_time({window})", grid) == {a: s[-1] for a, s in found.items()}
    assert points(empty, f"resets({window})", grid) == {
        a: sum(y < x for x, y in itertools.pairwise(s)) for a, s in found.items()
    }
    assert points(empty, f"changes({window})", grid) == {
        a: sum(y != x for x, y in itertools.pairwise(s)) for a, s in found.items()
    }
    assert points(empty, f"idelta({window})", grid) == {
        a: s[-1] - s[-2] for a, s in found.items() if len(s) > 1
    }


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("sum(", "invalid PromQL"),
        ("rate(foo)", "invalid PromQL"),
        ("holt_winters(x[5m], 0.5, 0.5)", "invalid PromQL"),
        ("histogram_quantile(0.9, x)", r"the function histogram_quantile\(\) is not supported"),
        ("limitk(1, x)", "the aggregation limitk is not supported"),
        ("quantile(scalar(x), x)", "a quantile must be a number"),
        ("(" * (DEPTH_MAX + 1) + "1" + ")" * (DEPTH_MAX + 1), "nested 101 deep"),
        ("-" * 1_001 + "x", "has 1001 operators"),
        ("x" * 20_001, "has 20001 characters"),
        ('{__name__=~".+"}', "matches .* metrics; at most 100"),
        ('{__name__=~"(("}', "invalid PromQL: illegal regex"),
        ('x{a="\0"}', "NUL"),
        ("avg_over_time(vector(1)[10y:1ms])", "a subquery has"),
        ('label_replace(x, "1a", "", "b", "")', "is not a name of a label"),
        ("round(x, 0)", "other than 0"),
        ("gpuwarden_gpu_power_watts offset 9999y", "beyond the times"),
        *(
            (
                f"gpuwarden_gpu_power_watts{after}",
                "the time after @ must be of the years 1970 to 9999",
            )
            for after in (" @ -1", "@\t# why\n-1", "[5m] @ -1e30", " @ 1e12", " @ 1e18", " @ 1e308")
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_sentence(query: str, reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        compiled(query, QueryTimes(Grid(T0_MS, 1, 1), False, 60_000, T0_MS))


def test_a_range_query_refuses_what_has_no_value_at_a_step() -> None:
    for query in ("x[5m]", '"text"'):
        with pytest.raises(QueryError, match="a range query cannot give"):
            compiled(query, QueryTimes(Grid(T0_MS, 1000, 5), True, 60_000, T0_MS))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("gpuwarden_gpu_power_watts + on(node) gpuwarden_gpu_util_ratio", "several series of the"),
        ("gpuwarden_gpu_power_watts / on(node) group_right gpuwarden_gpu_util_ratio", "of the left side"),
        (('label_replace(gpuwarden_gpu_power_watts, "gpu_uuid", "", "gpu_uuid", ".*") '
         '* on() group_left label_replace(gpuwarden_host_load_1m, "x", "", "x", "")'), "of the right side"),
        ('label_replace(label_replace(gpuwarden_gpu_power_watts, "gpu", "", "gpu", ".*"), "gpu_uuid", "", "gpu_uuid", ".*")',
         "several series have the same labels"),
        ("topk(scalar(nothing), gpuwarden_gpu_power_watts)", "not NaN"),
    ],
)  # fmt: skip
def test_series_that_collide_are_an_error(
    query: str, reason: str, fleet: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises(duckdb.Error, match=reason):
        at_t0(fleet, query)


def test_texts_of_others_stay_texts(empty: duckdb.DuckDBPyConnection) -> None:
    """Labels and matchers with quotes, backslashes and line ends come back as they are."""
    node = "n'\"\\\n{}é"
    empty.execute("DELETE FROM host_samples")
    empty.execute(
        "INSERT INTO host_samples BY NAME SELECT make_timestamp_ms($1) AS ts, $2 AS node, false AS simulated, 1.5 AS load_1m",
        [T0_MS, node],
    )
    told = json.dumps(node)
    for query in (
        f"gpuwarden_host_load_1m{{node={told}}}",
        f'label_replace(gpuwarden_host_load_1m, "x", {told}, "node", "(?s).*")',
    ):
        rows = at_t0(empty, query)
        assert json.loads(rows[0][0])["node"] == node
    assert json.loads(rows[0][0])["x"] == node


def test_a_rate_of_counters_is_their_growth_a_second(empty: duckdb.DuckDBPyConnection) -> None:
    empty.execute("DELETE FROM gpu_samples")
    for second, sent in ((0, 0), (1, 100), (2, 50), (3, 250)):
        empty.execute(
            "INSERT INTO gpu_samples BY NAME SELECT make_timestamp_ms($1) AS ts, 'n' AS node, 'G' AS gpu_uuid, "
            "false AS simulated, $2 AS pcie_tx_bytes_total",
            [T0_MS + second * 1000, sent],
        )
    grid = Grid(T0_MS, 1000, 4)
    found = points(empty, "DCGM_FI_PROF_PCIE_TX_BYTES", grid)
    # Absent at the first reading; at the reset the reading before stays the newest.
    assert found == {T0_MS + 1000: 100.0, T0_MS + 2000: 100.0, T0_MS + 3000: 200.0}


def test_a_name_of_two_tables_has_each_series_once(empty: duckdb.DuckDBPyConnection) -> None:
    """The rate that the GPU measures comes before that computed from counters."""
    for table in ("gpu_samples", "gpu_detail_samples"):
        empty.execute(f"DELETE FROM {table}")
    for gpu, second in ((1, 0), (1, 1), (2, 0), (2, 1)):
        empty.execute(
            "INSERT INTO gpu_samples BY NAME SELECT make_timestamp_ms($1) AS ts, 'n' AS node, $2 AS gpu_uuid, "
            "false AS simulated, $3 AS pcie_tx_bytes_total",
            [T0_MS + second * 1000, f"G{gpu}", 100 * second],
        )
    empty.execute(
        "INSERT INTO gpu_detail_samples BY NAME SELECT make_timestamp_ms($1) AS ts, 'n' AS node, 'G1' AS gpu_uuid, "
        "false AS simulated, 7 AS pcie_tx_bytes_per_second",
        [T0_MS + 1000],
    )
    times = QueryTimes(Grid(T0_MS + 1000, 1, 1), False, 60_000, T0_MS + 1000)
    rows = empty.execute(compiled("DCGM_FI_PROF_PCIE_TX_BYTES", times)).fetchall()
    found = {json.loads(metric)["UUID"]: json.loads(value)[1] for metric, value in rows}
    assert found == {"G1": "7", "G2": "100"}
    empty.execute("DELETE FROM gpu_detail_samples")


def test_a_comparison_with_nan_is_false(fleet: duckdb.DuckDBPyConnection) -> None:
    nan = "(gpuwarden_host_load_1m * 0 / 0)"
    for op in ("==", ">", "<", ">=", "<="):
        assert at_t0(fleet, f"{nan} {op} {nan}") == []
    assert [json.loads(str(value))[1] for _, value in at_t0(fleet, f"{nan} != {nan}")] == [
        "NaN"
    ] * 2
