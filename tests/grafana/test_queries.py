"""Every query of every dashboard, asked of a real collector as Grafana asks it: none fails, none is empty."""

import json
import math
import re
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
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # the fleet takes minutes on a busy host
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
    for query in queries():
        values = {"node": NODE, "gpu": str(GPU)}
        values |= every(query.board)
        found = result(fleet.prometheus, query, values, now)
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


def answer(
    fleet: WatchedFleet, name: str, at: datetime, *, span: str = "3h"
) -> dict[tuple[str, ...], float]:
    """Values of a query in PromQL at an instant, by the values of its labels."""
    query = next(one for one in queries() if one.name == name)
    text = promql(query.text, every(query.board), span=span)
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
    "fleet: Nodes A (stat)": newest("host_samples", "load_1m", "count(*)"),
    "fleet: GPUs A (stat)": newest("gpu_samples", "util_percent", "count(*)"),
    "fleet: Utilization A (stat)": newest("gpu_samples", "util_percent", "avg(x) / 100"),
    "fleet: Idle GPUs A (stat)": newest("gpu_samples", "util_percent", "count(*) FILTER (x < 5)"),
    "fleet: Idle and held A (stat)": newest("gpu_samples", "util_percent", "count(*) FILTER (x < 5 AND gpu_uuid IN "
        f"(SELECT gpu_uuid {_PROCESSES} AND gpu_memory_bytes IS NOT NULL))"),
    "fleet: Power A (stat)": newest("gpu_samples", "power_watts", "sum(x)"),
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
    (cost,) = answer(fleet, "waste: Cost an hour now A (stat)", at).values()
    assert cost == pytest.approx(one_of(fleet, "SELECT sum(usd_per_hour) FROM gpus"), rel=0.01)
    (wasted,) = answer(fleet, "waste: Wasted an hour now A (stat)", at).values()
    assert 0 < wasted < cost
    shares = answer(fleet, "waste: GPUs by what they do A (timeseries)", at)
    assert sum(shares.values()) == pytest.approx(
        one_of(fleet, "SELECT count(*) FROM gpus"), rel=0.01
    )
    jobs = answer(fleet, "job: Jobs now A (table)", at)
    text = (
        "SELECT username, CASE WHEN job IS DISTINCT FROM pod THEN job END, pod, count(DISTINCT gpu_uuid) "
        f"{_PROCESSES} AND gpu_memory_bytes IS NOT NULL GROUP BY ALL"
    )
    with fleet.connect() as connection:
        rows = connection.execute(text.replace("$at", instant).encode()).fetchall()
    assert jobs == {tuple(sorted(t for t in row[:3] if t)): row[3] for row in rows}


def test_parts_of_the_money_add_up(fleet: WatchedFleet) -> None:
    now = datetime.now(UTC)

    def total(name: str) -> float:
        return sum(answer(fleet, f"waste: {name}", now, span="1d").values())

    cost, wasted, hours = total("Cost A (stat)"), total("Wasted A (stat)"), total("Users A (table)")
    assert 0 < wasted < cost
    near = {"rel": 0.01}  # the hour that runs grows between two queries
    for by in ("user", "team", "model"):
        assert total(f"Dollars wasted, by {by} A (bargauge)") == pytest.approx(wasted, **near)
    assert total("Users B (table)") == pytest.approx(cost, **near)
    assert total("Users C (table)") == pytest.approx(wasted, **near)
    price = one_of(fleet, "SELECT max(usd_per_hour) FROM gpus")
    assert cost == pytest.approx(hours * price, **near)
