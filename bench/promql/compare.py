"""Runs the queries on both sides and compares series, labels and values."""

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.query import QueryError
from gpuwarden_prometheus.compile import QueryTimes, compiled
from gpuwarden_prometheus.relations import Grid

LOOKBACK_S = 60
"""As the exporter shows a reading for a minute; blocks have no staleness markers."""
TOLERANCE = 1e-9
Answer = tuple[str, Any]
"""Type of the result, and values by series, or `("error", reason)`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A query at an instant (`step_s` 0), or over a span."""

    query: str
    start_s: float
    end_s: float
    step_s: float

    @property
    def grid(self) -> Grid:
        """Its instants."""
        start_ms, step_ms = round(self.start_s * 1000), round(self.step_s * 1000) or 1
        return Grid(start_ms, step_ms, (round(self.end_s * 1000) - start_ms) // step_ms + 1)


@contextmanager
def prometheus_of(text: str, folder: Path, port: int) -> Iterator[Callable[[Asked], Answer]]:
    """Answers of a Prometheus with these samples (OpenMetrics), while the block runs."""
    metrics, config, data = folder / "samples.txt", folder / "prometheus.yml", folder / "data"
    metrics.write_text(text)
    config.write_text("scrape_configs: []\n")
    subprocess.run(
        [
            "promtool",
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            "--quiet",
            str(metrics),
            str(data),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=50y",
            f"--web.listen-address=127.0.0.1:{port}", f"--query.lookback-delta={LOOKBACK_S}s", "--log.level=error",
            "--enable-feature=promql-at-modifier,promql-negative-offset",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_until_ready(f"http://127.0.0.1:{port}/-/ready")
        yield lambda asked: _asked_over_http(f"http://127.0.0.1:{port}/api/v1", asked)
    finally:
        process.terminate()
        process.wait(30)


def is_installed() -> bool:
    """Whether Prometheus and promtool are on the PATH."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


def _wait_until_ready(url: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("Prometheus did not become ready")


def _asked_over_http(base: str, asked: Asked) -> Answer:
    form = {"query": asked.query}
    if asked.step_s:
        path = "query_range"
        form |= {"start": str(asked.start_s), "end": str(asked.end_s), "step": str(asked.step_s)}
    else:
        path = "query"
        form["time"] = str(asked.start_s)
    try:
        with urllib.request.urlopen(
            f"{base}/{path}", urllib.parse.urlencode(form).encode()
        ) as answer:
            return answer_of(json.load(answer))
    except urllib.error.HTTPError as error:
        return "error", json.load(error).get("error", "")


def ours(connection: duckdb.DuckDBPyConnection) -> Callable[[Asked], Answer]:
    """Answers of the compiled SQL."""

    def answer(asked: Asked) -> Answer:
        try:
            sql = compiled(
                asked.query,
                QueryTimes(
                    asked.grid, bool(asked.step_s), LOOKBACK_S * 1000, round(asked.end_s * 1000)
                ),
            )
            cursor = connection.execute(sql)
            kind = cursor.description[1][0]
            rows = cursor.fetchall()
        except (QueryError, duckdb.Error) as error:
            return "error", str(error)
        if kind in ("scalar", "string"):
            return kind, json.loads(rows[0][1])
        key = "values" if kind == "matrix" else "value"
        result = [{"metric": json.loads(m), key: json.loads(v)} for m, v in rows if v is not None]
        return answer_of({"data": {"resultType": kind, "result": result}})

    return answer


def answer_of(document: Mapping[str, Any]) -> Answer:
    """An answer of the API, values by series."""
    data = document["data"]
    kind, result = data["resultType"], data["result"]
    if kind in ("scalar", "string"):
        return kind, result
    found = {}
    for series in result:
        name = json.dumps(series["metric"], sort_keys=True)
        assert name not in found, f"two series with the labels {name}"
        found[name] = series["values"] if kind == "matrix" else [series["value"]]
    return kind, found


def difference(theirs: Answer, ours: Answer) -> str:
    """What differs; "": nothing."""
    if theirs[0] == "error" or ours[0] == "error":
        return "" if theirs[0] == ours[0] else f"theirs {str(theirs)[:200]}, ours {str(ours)[:300]}"
    if theirs[0] != ours[0]:
        return f"type {theirs[0]}, ours {ours[0]}"
    if theirs[0] in ("scalar", "string"):
        return _different_points([theirs[1]], [ours[1]])
    missing, more = theirs[1].keys() - ours[1].keys(), ours[1].keys() - theirs[1].keys()
    if missing or more:
        return f"{len(missing)} series are missing, {len(more)} are too many: {sorted(missing)[:1]} {sorted(more)[:1]}"
    for name, points in theirs[1].items():
        if found := _different_points(points, ours[1][name]):
            return f"{name}: {found}"
    return ""


def _different_points(theirs: list[Any], ours: list[Any]) -> str:
    if [p[0] for p in theirs] != [p[0] for p in ours]:
        apart = {p[0] for p in theirs} ^ {p[0] for p in ours}
        return f"{len(apart)} instants are not in both: {sorted(apart)[:5]}"
    for (at, a), (_, b) in zip(theirs, ours, strict=True):
        x, y = float(a), float(b)
        is_equal = (
            x == y
            or (math.isnan(x) and math.isnan(y))
            or math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=1e-12)
        )
        if not is_equal:
            return f"at {at} {a}, ours {b}"
    return ""
