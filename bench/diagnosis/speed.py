"""Measures one diagnosis of a fleet: the query, the features, the verdicts.

    python -m bench.diagnosis.speed [--gpus 10000] [--runs 3]

A DuckDB file with two threads holds ten minutes of made-up samples of `bench/rules.py`: a quarter of the
GPUs idle, a quarter starved, the rest busy, eight to a node. CPU s is of all threads: what it takes on a
machine that does other things as well.
"""

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
from bench.rules import GPU_ROWS, HOST_ROWS, NAMES, PROCESS_ROWS

from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_rules.diagnosis.observe import seen_of
from gpuwarden_rules.diagnosis.service import diagnoses_of
from gpuwarden_rules.diagnosis.window_sql import features_params, features_sql

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = 600
MINUTES = """
INSERT INTO gpu_1m BY NAME
SELECT $now - to_seconds(s) AS ts, node, gpu, gpu_uuid,
    true AS simulated, 60 AS samples, 6 AS detail_samples, 1 AS health_samples, 100 AS util_percent_max, 90 AS util_percent_min, 99 AS util_percent_p95,
    120 AS power_watts_min
FROM named, range(60, 3600, 60) u(s)
"""


def fill(db: duckdb.DuckDBPyConnection, gpus: int) -> None:
    """Samples of the fleet."""
    for table in TABLES.values():
        db.execute(create_sql(table))
    db.execute(views_sql())
    naive = NOW.replace(tzinfo=None)
    db.execute(NAMES, {"gpus": gpus})
    for rows in (GPU_ROWS, PROCESS_ROWS, HOST_ROWS):
        db.execute(rows, {"now": naive, "seconds": SECONDS})
    db.execute(MINUTES, {"now": naive})


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpus", type=int, default=10_000)
    options.add_argument("--runs", type=int, default=3)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = duckdb.connect(str(Path(folder) / "fleet.db"), config={"threads": 2})
        db.execute("SET TimeZone = 'UTC'")
        fill(db, args.gpus)
        db.execute("CHECKPOINT")
        taken: dict[str, list[tuple[float, float]]] = {"query": [], "features": [], "verdicts": []}
        params = {"now": NOW.replace(tzinfo=None), **features_params()}
        for _ in range(args.runs):
            t0 = _now()
            table = db.execute(features_sql(), params).to_arrow_table()
            names = table.schema.names
            columns = [column.to_pylist() for column in table.columns]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            t1 = _now()
            seen = seen_of(rows, NOW)
            t2 = _now()
            found = diagnoses_of(seen, NOW)
            t3 = _now()
            gpus = {one.subject for one in found if one.kind == "gpu"}
            if len(gpus) != args.gpus:
                raise SystemExit(f"diagnoses of {len(gpus)} of {args.gpus} GPUs")
            for name, (begin, end) in zip(taken, ((t0, t1), (t1, t2), (t2, t3)), strict=True):
                taken[name].append((end[0] - begin[0], end[1] - begin[1]))
        parts = {
            name: [statistics.median(column) for column in zip(*spans, strict=True)]
            for name, spans in taken.items()
        }
        wall, cpu = (sum(column) for column in zip(*parts.values(), strict=True))
        print(f"{args.gpus:,} GPUs, {len(found):,} diagnoses: {wall:.2f} s, CPU {cpu:.2f} s")
        for name, (wall, cpu) in parts.items():
            print(f"  {name:<9} {wall:.2f} s, CPU {cpu:.2f} s")


if __name__ == "__main__":
    main()
