"""Metrics that the collector computes: their values against rows of a real DuckDB with the public views."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from gpuwarden.collector_metrics import LABEL_NAMES, SOURCES
from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_prometheus.compile import QueryTimes, compiled
from gpuwarden_prometheus.metrics import SOURCES as SERIES_SOURCES
from gpuwarden_prometheus.metrics import named_metrics
from gpuwarden_prometheus.relations import Grid
from gpuwarden_prometheus.series import label_values

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = NOW.replace(minute=0, second=0) - timedelta(hours=2)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def fleet() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for table in TABLES.values():
        connection.execute(create_sql(table))
    connection.execute(views_sql())
    for category, owner, job, usd in (("free", None, None, 3.0), ("busy", "anna", "7", 1.0)):
        put(
            connection, "waste_1h", ts=HOUR, node="n", gpu_uuid="G", gpu=3, category=category, username=owner,
            job=job, seconds=1800.0, usd=usd, model="H100",
        )  # fmt: skip
    put(
        connection, "alerts", fingerprint="f", rule="gpu_hot", severity="warning", consequence="slow_work",
        state="resolved", node="n", gpu=3, labels="{}", summary="s", remedy="r", began_at=NOW - 12 * MINUTE,
        active_at=NOW - 10.5 * MINUTE, fired_at=NOW - 5 * MINUTE, resolved_at=NOW - 2 * MINUTE, seen_at=NOW,
    )  # fmt: skip
    put(
        connection, "diagnoses", subject="G", kind="gpu", bottleneck="data_loader", confidence=0.9, summary="s",
        evidence="[]", misses="[]", stall=0.4, usd_per_hour=2.5, node="n", gpu=3, username="anna", gpus=1,
        began_at=NOW - 3 * MINUTE, seen_at=NOW,
    )  # fmt: skip
    yield connection
    connection.close()


def put(connection: duckdb.DuckDBPyConnection, table: str, **values: object) -> None:
    row = {"simulated": False, **values} if "simulated" in TABLES[table].names else values
    row = {k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()}
    columns = ", ".join(f"? AS {name}" for name in row)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT {columns}", list(row.values()))


def answer(
    connection: duckdb.DuckDBPyConnection, query: str, at: datetime
) -> list[tuple[dict[str, str], float]]:
    ms = round(at.timestamp() * 1000)
    rows = connection.execute(
        compiled(query, QueryTimes(Grid(ms, 1, 1), False, 300_000, ms))
    ).fetchall()
    return [(json.loads(metric), float(json.loads(value)[1])) for metric, value in rows]


def test_waste_has_dollars_an_hour_by_label_and_owner(fleet: duckdb.DuckDBPyConnection) -> None:
    at = HOUR + 59 * MINUTE
    free = {"node": "n", "gpu": "3", "gpu_uuid": "G", "model": "H100", "category": "free", "is_waste": "true"}  # fmt: skip
    name = "gpuwarden_waste_usd_per_hour"
    assert answer(fleet, f'{name}{{is_waste="true"}}', at) == [({"__name__": name, **free}, 3.0)]
    assert answer(fleet, f"sum by (username) ({name})", at) == [({"username": "anna"}, 1.0), ({}, 3.0)]  # fmt: skip
    assert answer(fleet, "sum(gpuwarden_waste_time_ratio)", at) == [({}, 1.0)]
    assert answer(fleet, name, HOUR - MINUTE) == []
    assert answer(fleet, name, HOUR + 66 * MINUTE) == []


def test_efficiency_is_of_jobs_alone(fleet: duckdb.DuckDBPyConnection) -> None:
    found = answer(fleet, "gpuwarden_job_efficiency_ratio", HOUR + 30 * MINUTE)
    assert found == [
        ({"__name__": "gpuwarden_job_efficiency_ratio", "job": "7", "username": "anna"}, 1.0)
    ]


@pytest.mark.parametrize(
    ("minutes_ago", "states"),
    [(11, []), (10, ["pending"]), (5.5, ["pending"]), (4, ["firing"]), (2.5, ["firing"]), (0.5, [])],
)  # fmt: skip
def test_alerts_are_pending_then_firing_then_gone(
    fleet: duckdb.DuckDBPyConnection, minutes_ago: float, states: list[str]
) -> None:
    found = answer(fleet, 'ALERTS{alertname="gpu_hot"}', NOW - minutes_ago * MINUTE)
    assert [labels["alertstate"] for labels, _ in found] == states
    assert all(labels["gpu"] == "3" and value == 1 for labels, value in found)


def test_a_verdict_that_has_not_ended_holds_until_now(fleet: duckdb.DuckDBPyConnection) -> None:
    found = answer(fleet, "gpuwarden_diagnosis_stall_ratio", NOW)
    assert [(labels["bottleneck"], value) for labels, value in found] == [("data_loader", 0.4)]
    assert answer(fleet, "count_over_time(gpuwarden_diagnosis[10m])", NOW)[0][1] in (3, 4)
    # It holds until the query runs, which may be minutes after this module was loaded.
    assert answer(fleet, "gpuwarden_diagnosis", datetime.now(UTC) + 2 * MINUTE) == []


def test_each_metric_can_be_read_and_has_the_labels_of_its_source(
    fleet: duckdb.DuckDBPyConnection,
) -> None:
    for name, source in SOURCES.items():
        assert name not in TABLES
        for metric in source.metrics:
            answer(fleet, metric.name, NOW)
            labels = [label for label, _ in named_metrics()[metric.name][0].labels]
            assert labels == [LABEL_NAMES.get(column, column) for column in source.labels]
    assert set(SOURCES) < set(SERIES_SOURCES)


def test_values_of_labels_include_those_of_computed_metrics(
    fleet: duckdb.DuckDBPyConnection,
) -> None:
    end_ms = round(NOW.timestamp() * 1000)

    def values(label: str) -> list[str]:
        rows = fleet.execute(label_values([], end_ms - 3 * 3_600_000, end_ms, label)).fetchall()
        return [json.loads(row[0]) for row in rows]

    assert {"ALERTS", "gpuwarden_diagnosis"} <= set(values("__name__"))
    assert values("alertname") == ["gpu_hot"]
    assert values("username") == ["anna"]


def test_dcgms_names_have_the_owner_of_each_minute(fleet: duckdb.DuckDBPyConnection) -> None:
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    for second in range(0, 600, 10):
        at = begin + timedelta(seconds=second)
        for gpu in range(2):
            put(
                fleet,
                "gpu_samples",
                ts=at,
                node="n",
                gpu=gpu,
                gpu_uuid=f"P{gpu}",
                util_percent=50.0,
            )
        pods = (
            ["ml/a"]
            if second < 180
            else []
            if second < 300
            else ["ml/b"]
            if second < 480
            else ["ml/b", "ml/c"]
        )
        for pod in pods:
            put(
                fleet, "allocation_samples", ts=at, node="n", gpu=0, gpu_uuid="P0", scheduler="kubernetes",
                job=pod, pod=pod, namespace="ml", container="main",
            )  # fmt: skip
    util = 'DCGM_FI_DEV_GPU_UTIL{Hostname="n"}'

    def pods_at(minute: float, query: str = util) -> list[str | None]:
        found = answer(fleet, query, begin + minute * MINUTE)
        return sorted(labels.get("pod", "") for labels, _ in found)

    assert [pods_at(m) for m in (2.5, 4.5, 6.5, 9.5)] == [["", "a"], ["", ""], ["", "b"], ["", ""]]
    assert pods_at(6.5, 'DCGM_FI_DEV_GPU_UTIL{pod="b"}') == ["b"]
    ((labels, value),) = answer(fleet, f"avg by (pod, namespace, container) ({util[:-1]}, pod!=''}})", begin + 6.5 * MINUTE)  # fmt: skip
    assert labels == {"pod": "b", "namespace": "ml", "container": "main"} and value == 50
    counts = answer(fleet, f"sum by (pod) (count_over_time({util}[10m]))", begin + 9.9 * MINUTE)
    assert {labels.get("pod", ""): n for labels, n in counts} == {"": 84, "a": 18, "b": 18}
    assert answer(fleet, f"count({util})", begin + 6.5 * MINUTE) == [({}, 2)]
    end_ms = round((begin + 10 * MINUTE).timestamp() * 1000)
    rows = fleet.execute(label_values([util], end_ms - 600_000, end_ms, "pod")).fetchall()
    assert [json.loads(row[0]) for row in rows] == ["a", "b"]
