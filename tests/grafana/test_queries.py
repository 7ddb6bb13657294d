"""Every query of every dashboard, asked of a real collector as Grafana asks it: none fails, none is empty."""

import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.grafana.conftest import WatchedFleet
from tests.grafana.dashboard_queries import (
    AskedQuery,
    every,
    promql,
    queries,
    sql,
    variables,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # the fleet takes minutes on a busy host
    pytest.mark.xdist_group("grafana"),  # one fleet for all
]
NODE, GPU = "sim-0001", 2
"""It has a job that waits for its data loader, a broken link, and an Xid."""
SPAN = timedelta(hours=1)


def asked(base: str, path: str, **parameters: Any) -> Any:
    """Data of an answer, or the error."""
    form = urllib.parse.urlencode(parameters, doseq=True).encode()
    url = f"{base}/api/v1/{path}"
    request = (
        f"{url}?{form.decode()}" if path.startswith("label/") else urllib.request.Request(url, form)
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        return error.read().decode()


def result(base: str, query: AskedQuery, values: Mapping[str, str], now: datetime) -> Any:
    """Series or values of a query in PromQL, or the error."""
    text = promql(query.text, values)
    end = now.timestamp()
    if query.is_variable:
        form = re.fullmatch(r"label_values\((.*), (\w+)\)", text)
        assert form is not None, text
        span = {"start": end - SPAN.total_seconds(), "end": end}
        return asked(base, f"label/{form[2]}/values", **{"match[]": form[1]}, **span)
    if query.is_instant:
        found = asked(base, "query", query=text, time=end)
    else:
        found = asked(base, "query_range", query=text, start=end - 1800, end=end, step=60)
    return found["result"] if isinstance(found, dict) else found


def test_every_query_in_promql_is_answered_with_series(fleet: WatchedFleet) -> None:
    now = datetime.now(UTC) - timedelta(seconds=30)
    wrong = {}
    for query in queries("prometheus"):
        values = {"node": NODE, "gpu": str(GPU)}
        values |= {name: value for name, value in every(query.board).items() if value}
        found = result(fleet.prometheus, query, values, now)
        if isinstance(found, str) or not found:
            wrong[query.name] = found or "empty"
    assert wrong == {}


ONLY_COLLECTOR = ("gpuwarden_diagnosis", "ALERTS", "gpuwarden_incident", "gpuwarden_coverage")
"""Beginnings of names that an exporter has not."""
NOT_ON_EVERY_HOST = ("gpuwarden_infiniband", "_psi_")


def test_a_prometheus_that_scrapes_an_agent_answers_all_that_needs_no_collector(
    prometheus: tuple[str, str],
) -> None:
    base, node = prometheus
    now = datetime.now(UTC)
    wrong = {}
    for query in queries("prometheus"):
        needs = (*ONLY_COLLECTOR, *NOT_ON_EVERY_HOST)
        if query.board.split("/")[1] in ("waste", "collector") or any(
            n in query.text for n in needs
        ):
            continue
        values = {"node": node, "gpu": str(GPU)}
        values |= {name: value for name, value in every(query.board).items() if value}
        found = result(base, query, values, now)
        if isinstance(found, str) or not found:
            wrong[query.name] = found or "empty"
    assert wrong == {}


DCGM_DASHBOARD = (
    "DCGM_FI_DEV_GPU_TEMP{%s}", "avg(DCGM_FI_DEV_GPU_TEMP{%s})", "DCGM_FI_DEV_POWER_USAGE{%s}",
    "sum(DCGM_FI_DEV_POWER_USAGE{%s})", "DCGM_FI_DEV_SM_CLOCK{%s} * 1000000", "DCGM_FI_DEV_GPU_UTIL{%s}",
    "DCGM_FI_DEV_FB_USED{%s}", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{%s}",
)  # fmt: skip
"""What NVIDIA's dashboard for dcgm-exporter (12239 at grafana.com) asks of GPUs of an instance."""
DCGM_OF_PODS = (
    "avg by (namespace, pod) (DCGM_FI_DEV_GPU_UTIL{%s})", "sum by (pod) (DCGM_FI_DEV_FB_USED{%s}) / 1024",
    "sum by (pod) (DCGM_FI_DEV_FB_USED{%s}) / (sum by (pod) (DCGM_FI_DEV_FB_USED{%s}) + sum by (pod) (DCGM_FI_DEV_FB_FREE{%s}))",
    "sum(avg_over_time(DCGM_FI_DEV_POWER_USAGE{%s}[5m]))", "count by (pod) (DCGM_FI_DEV_GPU_UTIL{%s})",
    "avg(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{%s}) * 100", "max_over_time(DCGM_FI_DEV_GPU_UTIL{%s}[10m])",
)  # fmt: skip
"""What dashboards by pod ask of it."""


def test_dashboards_of_dcgm_exporter_have_series(fleet: WatchedFleet) -> None:
    """We have no label `instance`: its variable has no value, so that the pattern is empty, or empty in brackets."""
    now = (datetime.now(UTC) - timedelta(seconds=30)).timestamp()
    selectors = [(f'instance=~"{one}", gpu=~"(0|1|2)"', DCGM_DASHBOARD) for one in ("", "()", ".*")]
    selectors.append(('pod=~".+", namespace!=""', DCGM_OF_PODS))
    empty = []
    for selector, texts in selectors:
        for query in (text.replace("%s", selector) for text in texts):
            found = asked(
                fleet.prometheus, "query_range", query=query, start=now - 600, end=now, step=15
            )
            if isinstance(found, str) or not found["result"]:
                empty.append((query, found))
    assert empty == []


def one_of(fleet: WatchedFleet, text: str) -> Any:
    with fleet.connect() as connection:
        row = connection.execute(text.encode()).fetchone()
    return None if row is None else row[0]


def values_of(fleet: WatchedFleet, board: str) -> dict[str, str]:
    """Values of the variables of a dashboard in SQL."""
    of_gpu = f"WHERE node = '{NODE}' AND gpu = {GPU}"
    chosen = {
        "node": NODE,
        "gpu": one_of(fleet, f"SELECT gpu_uuid FROM gpus {of_gpu}"),
        "job": one_of(fleet, f"SELECT job FROM gpu_holders_now {of_gpu}"),
    }
    found = {name: every(board).get(name) or chosen[name] for name in variables(board)}
    return {name: str(value) for name, value in found.items()}


EMPTY_COLUMNS: dict[str, set[str]] = {
    "postgresql/job: Verdicts A (table)": {"ended_at"},
}
"""Columns without a value in this fleet, by query."""
BY_HOUR = re.compile(r"\bFROM (gpu_usage|waste|waste_1h)\b")


def test_every_query_in_sql_is_answered_with_rows_that_have_values(fleet: WatchedFleet) -> None:
    now = datetime.now(UTC)
    wrong: dict[str, Any] = {}
    values = {query.board: {} for query in queries("postgresql")}
    values = {board: values_of(fleet, board) for board in values}
    with fleet.connect() as connection:
        for query in queries("postgresql"):
            # In the first minutes of an hour only the hour before is in tables by the hour.
            span = 2 * SPAN if BY_HOUR.search(query.text) else SPAN
            text = sql(query.text, values[query.board], now - span, now)
            try:
                cursor = connection.execute(text.encode())
                rows = cursor.fetchall()
            except Exception as error:  # noqa: BLE001  all that fail are named
                wrong[query.name] = f"{error}: {text}"
                continue
            names = [column.name for column in cursor.description or ()]
            empty = {name for n, name in enumerate(names) if all(row[n] is None for row in rows)}
            if not rows or empty - EMPTY_COLUMNS.get(query.name, set()):
                wrong[query.name] = f"{len(rows)} rows, without a value: {sorted(empty)}"
    assert wrong == {}


def answer(fleet: WatchedFleet, name: str, at: datetime) -> dict[tuple[str, ...], float]:
    """Values of a query in PromQL at an instant, by the values of its labels."""
    query = next(one for one in queries("prometheus") if one.name == name)
    values = {key: value for key, value in every(query.board).items() if value}
    text = promql(query.text, values)
    found = asked(fleet.prometheus, "query", query=text, time=at.timestamp())["result"]
    return {tuple(sorted(one["metric"].values())): float(one["value"][1]) for one in found}


def newest(table: str, column: str, outer: str) -> str:
    """SQL of the newest readings of each GPU or node, until $at."""
    key = "node, gpu_uuid" if table == "gpu_samples" else "node"
    return (
        f"SELECT {outer} FROM (SELECT {key}, arg_max({column}, ts) AS x FROM {table} "
        f"WHERE ts > $at - INTERVAL 1 MINUTE AND ts <= $at AND {column} IS NOT NULL GROUP BY {key})"
    )


_PROCESSES = "FROM process_samples WHERE ts > $at - INTERVAL 1 MINUTE AND ts <= $at"
BY_SQL = {
    "prometheus/fleet: Nodes A (stat)": newest("host_samples", "load_1m", "count(*)"),
    "prometheus/fleet: GPUs A (stat)": newest("gpu_samples", "util_percent", "count(*)"),
    "prometheus/fleet: Utilization A (stat)": newest("gpu_samples", "util_percent", "avg(x) / 100"),
    "prometheus/fleet: Idle GPUs A (stat)": newest("gpu_samples", "util_percent", "count(*) FILTER (x < 5)"),
    "prometheus/fleet: Idle and held A (stat)": newest("gpu_samples", "util_percent", "count(*) FILTER (x < 5 AND gpu_uuid IN "
        f"(SELECT gpu_uuid {_PROCESSES} AND gpu_memory_bytes IS NOT NULL))"),
    "prometheus/fleet: Power A (stat)": newest("gpu_samples", "power_watts", "sum(x)"),
}  # fmt: skip
"""SQL over the samples that gives what a panel in PromQL shows."""


def test_numbers_in_promql_are_those_of_the_samples(fleet: WatchedFleet) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=60)).replace(microsecond=500_000)
    instant = f"'{at:%Y-%m-%dT%H:%M:%S.%f}'::TIMESTAMP"
    wrong = {}
    for name, text in BY_SQL.items():
        found = list(answer(fleet, name, at).values())
        wanted = one_of(fleet, text.replace("$at", instant))
        if len(found) != 1 or not math.isclose(found[0], float(wanted), rel_tol=1e-5):
            wrong[name] = found, wanted
    assert wrong == {}
    (cost,) = answer(fleet, "prometheus/waste: Cost an hour now A (stat)", at).values()
    assert cost == pytest.approx(one_of(fleet, "SELECT sum(usd_per_hour) FROM gpus"), rel=0.01)
    (wasted,) = answer(fleet, "prometheus/waste: Wasted an hour now A (stat)", at).values()
    assert 0 < wasted < cost
    shares = answer(fleet, "prometheus/waste: GPUs by what they do A (timeseries)", at)
    assert sum(shares.values()) == pytest.approx(
        one_of(fleet, "SELECT count(*) FROM gpus"), rel=0.01
    )
    jobs = answer(fleet, "prometheus/job: Jobs now A (table)", at)
    text = (
        "SELECT username, slurm_job_id, pod, count(DISTINCT gpu_uuid) "
        f"{_PROCESSES} AND gpu_memory_bytes IS NOT NULL GROUP BY ALL"
    )
    with fleet.connect() as connection:
        rows = connection.execute(text.replace("$at", instant).encode()).fetchall()
    assert jobs == {tuple(sorted(t for t in row[:3] if t)): row[3] for row in rows}


def shown(fleet: WatchedFleet, name: str, minute: datetime) -> dict[Any, Any]:
    """What a chart in SQL shows of a minute: values by series, or by column."""
    query = next(one for one in queries("postgresql") if one.name == name)
    span = minute, minute + timedelta(minutes=1) - timedelta(milliseconds=1)
    with fleet.connect() as connection:
        text = sql(query.text, values_of(fleet, query.board), *span)
        cursor = connection.execute(text.encode())
        names = [column.name for column in cursor.description or ()]
        rows = cursor.fetchall()
    if "metric" in names:
        return {row[1]: row[2] for row in rows}
    return dict(zip(names, rows[0], strict=True)) if rows else {}


def wrong_charts(fleet: WatchedFleet, minute: datetime) -> dict[str, Any]:
    """What charts show of a minute, and what they should, where that differs."""
    begin = f"'{minute:%Y-%m-%dT%H:%M:%S}'::TIMESTAMP"
    during = f"ts >= {begin} AND ts < {begin} + INTERVAL 1 MINUTE"
    with fleet.connect() as connection:

        def by_sql(text: str) -> list[Any]:
            return connection.execute(text.encode()).fetchall()

        means = by_sql(
            "SELECT node, avg(util), sum(watts) FROM (SELECT node, avg(util_percent) AS util, avg(power_watts) AS watts "
            f"FROM gpu_samples WHERE {during} GROUP BY node, gpu_uuid) GROUP BY node"
        )
        ((grown,),) = by_sql(
            f"SELECT (max(pcie_rx_bytes_total) - min(pcie_rx_bytes_total)) / 60 FROM gpu_samples WHERE node = '{NODE}' "
            f"AND gpu = {GPU} AND ts >= {begin} - INTERVAL 1 SECOND AND ts < {begin} + INTERVAL 1 MINUTE"
        )
    assert len(means) == 2
    wrong: dict[str, Any] = {}
    for name, place in (("Utilization A", 1), ("Power A", 2)):
        found = shown(fleet, f"postgresql/fleet: {name} (timeseries)", minute)
        wanted = {row[0]: row[place] for row in means}
        if found != pytest.approx(wanted, rel=1e-4):
            wrong[name] = found, wanted
    found = shown(fleet, "postgresql/gpu: PCIe and NVLink A (timeseries)", minute)
    if found.get("PCIe in") != pytest.approx(float(grown), rel=0.02):
        wrong["PCIe"] = found, grown
    return wrong


def test_charts_in_sql_are_those_of_the_samples(fleet: WatchedFleet) -> None:
    """A minute whose last samples came late is rolled up again, which takes a minute or two."""
    minute = (datetime.now(UTC) - timedelta(minutes=6)).replace(second=0, microsecond=0)
    for _ in range(60):
        wrong = wrong_charts(fleet, minute)
        if not wrong:
            return
        time.sleep(4)
    assert wrong == {}


def test_parts_of_the_money_add_up(fleet: WatchedFleet) -> None:
    now = datetime.now(UTC)

    def rows(name: str) -> list[Any]:
        query = next(
            one for one in queries("postgresql") if one.name == f"postgresql/waste: {name}"
        )
        text = sql(query.text, {}, now - timedelta(days=1), now)
        with fleet.connect() as connection:
            return connection.execute(text.encode()).fetchall()

    ((cost,),), ((wasted,),), ((hours,),) = (
        rows("Cost A (stat)"),
        rows("Wasted A (stat)"),
        rows("GPU hours A (stat)"),
    )
    assert 0 < wasted < cost
    near = {"rel": 0.01}  # the hour that runs grows between two queries
    assert sum(
        row[2] for row in rows("GPU hours by what they went to A (timeseries)")
    ) == pytest.approx(hours, **near)
    assert sum(row[2] for row in rows("Dollars wasted, by reason A (timeseries)")) == pytest.approx(
        wasted, **near
    )
    for by in ("user", "team", "model"):
        assert sum(
            row[1] for row in rows(f"Dollars wasted, by {by} A (bargauge)")
        ) == pytest.approx(wasted, **near)
    assert sum(row[3] for row in rows("Users A (table)")) == pytest.approx(cost, **near)
    assert sum(row[4] or 0 for row in rows("Jobs A (table)")) == pytest.approx(wasted, **near)
    price = one_of(fleet, "SELECT max(usd_per_hour) FROM gpus")
    assert cost == pytest.approx(hours * price, **near)
