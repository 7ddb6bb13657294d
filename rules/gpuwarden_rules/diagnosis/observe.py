"""Reads the features of a fleet, or of some of its nodes, at an instant."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpuwarden.models import SIMULATED
from gpuwarden.query import ExpectedQuery, Querier, QueryError
from gpuwarden_rules.diagnosis.features import NAMES, Features, GpuInfo, ObservedGpu
from gpuwarden_rules.diagnosis.shape import (
    Shape,
    gap_mean,
    gap_turnovers,
    gap_write,
    pairs,
    shapes,
    unpacked,
)
from gpuwarden_rules.diagnosis.window_sql import (
    TREE_STEP_S,
    WINDOW_S,
    features_params,
    features_sql,
)

ROWS_MAX = 100_000
"""With more GPUs the evaluation fails, instead of judging a part of them."""
QUERY_TIMEOUT_S = 30.0

_IDLE_WATTS = {model.name: model.idle_watts for model in SIMULATED}
_IDLE_SHARE = 0.12
"""Idle power as a share of the limit, for models of which the catalogue has none."""
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_PCIE_REACHABLE = 0.8
_NVLINK_BYTES_PER_SECOND, _NVLINK5_BYTES_PER_SECOND = 25e9, 50e9
_QUIET_BELOW, _SPINNING_FROM, _SPINNING_POWER_MAX = 5.0, 95.0, 0.30
_STARVED_FROM = 0.2
_COMPUTES_FROM = 20.0
"""Percent of a core."""
_ALIKE = 0.1
"""Difference of two shares of the time that counts as equal."""

Row = Mapping[str, Any]
Values = dict[str, float | None]


async def observe(
    querier: Querier, now: datetime, *, nodes: Sequence[str] | None = None
) -> list[ObservedGpu]:
    """Every GPU seen in the window before `now`; `nodes`: only of these nodes. Raises as `read_rows`."""
    return seen_of(await read_rows(querier, now, nodes=nodes), now)


def expected(now: datetime) -> ExpectedQuery:
    """The query of `read_rows`."""
    return ExpectedQuery(features_sql(), {"now": now, **features_params()})


async def read_rows(
    querier: Querier, now: datetime, *, nodes: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Rows for `seen_of`. Raises QueryError, also if there are more than ROWS_MAX GPUs."""
    names = {f"node{i}": node for i, node in enumerate(nodes or ())}
    scope = "true" if nodes is None else f"node IN ({', '.join(f'${n}' for n in names) or 'NULL'})"
    result = await querier.query(
        features_sql(scope),
        {"now": now, **features_params(), **names},
        timeout_s=QUERY_TIMEOUT_S,
        row_limit=ROWS_MAX,
    )
    if result.truncated:
        raise QueryError(f"more than {ROWS_MAX:,} GPUs: diagnose them from several collectors")
    return result.records()


def seen_of(rows: Sequence[Row], now: datetime) -> list[ObservedGpu]:
    """Features of the rows of `features_sql`."""
    found = shapes(unpacked([row["series"] for row in rows], WINDOW_S))
    starved = Counter(
        row["node"]
        for row, shape in zip(rows, found, strict=True)
        if _may_take_cores(row, shape.values)
    )
    workers: Counter[str] = Counter()
    for row in rows:
        workers[row["node"]] += row["workers"] or 0
    measured = [
        _measured(row, shape, starved[row["node"]], workers[row["node"]])
        for row, shape in zip(rows, found, strict=True)
    ]
    _add_peers(rows, measured)
    return [
        ObservedGpu(_place(row), Features(**values), now)
        for row, values in zip(rows, measured, strict=True)
    ]


def _may_take_cores(row: Row, values: Mapping[str, float | None]) -> bool:
    """Whether the GPU waits while its processes compute; an idle one needs no core."""
    waits = (values.get("stall") or 0) >= _STARVED_FROM and not _is_quiet(values)
    computes = row["tree_cpu"] is None or row["tree_cpu"] >= _COMPUTES_FROM
    return waits and computes and bool(row["holders"])


def _place(row: Row) -> GpuInfo:
    return GpuInfo(
        gpu_uuid=row["gpu_uuid"],
        node=row["node"],
        gpu=row["gpu"],
        model=row["model"],
        is_mig=row["is_mig"],
        simulated=row["simulated"],
        usd_per_hour=row["usd_per_hour"],
        job=row["job"],
        work=row["work"],
        username=row["username"],
        pid=row["pid"],
        process_name=row["process_name"],
        has_process_data=row["has_process_data"],
    )


def _measured(row: Row, shape: Shape, starved: int, node_workers: int) -> Values:
    values: Values = dict(shape.values)
    for name in NAMES:
        if (value := row.get(name)) is not None:
            values[name] = float(value)
    if row["has_process_data"]:
        values["processes"] = float(row["holder_count"])
    else:
        values["unreported"] = 1.0
    if row["holders"]:
        values["server"] = float(row["is_server"])
    if "gaps" in values:
        if row["has_turnover"]:
            ages = row["turnover_ages"] or ()
            values["gap_turnovers"] = float(gap_turnovers(shape.pauses, ages, TREE_STEP_S))
        if row["has_writes"]:
            writes = row["writes"] or ()
            values["gap_write"] = gap_write(shape.pauses, writes, TREE_STEP_S)
        if shape.pauses:
            values["gap_main"] = gap_mean(shape.pauses, pairs(row["mains"]), TREE_STEP_S)
    elif row["has_turnover"]:
        values["unseen_turnovers"] = float(len(row["turnover_ages"] or ()))
    values |= _of_device(row) | _of_loader(row)
    values["busy_threads"] = _quotient(values.get("tree_cpu"), values.get("main_cpu"))
    values["main_in_stall"] = _main_in_stall(values)
    values["idle_cores"] = _idle_cores(row, starved)
    if row["network_rate"] is not None and node_workers:
        values["network_per_worker"] = row["network_rate"] / node_workers
    return values


def _of_device(row: Row) -> Values:
    generation = row["pcie_generation"] or row["pcie_generation_max"]
    width = row["pcie_width"] or row["pcie_width_max"]
    lane = _LANE_BYTES_PER_SECOND.get(generation)
    pcie = lane * width * _PCIE_REACHABLE if lane and width else None
    per_link = (
        _NVLINK5_BYTES_PER_SECOND
        if row["architecture"] == "blackwell"
        else _NVLINK_BYTES_PER_SECOND
    )
    nvlink = row["nvlinks"] * per_link if row["nvlinks"] else None
    decoders = [row[name] for name in ("video_decoder", "jpeg_decoder") if row[name] is not None]
    return {
        "power_share": _power_share(row),
        "clock_share": _quotient(row["sm_clock"], row["sm_clock_max_mhz"]),
        "pcie_share": _quotient(row["pcie_rate"], pcie),
        "nvlink_share": _quotient(row["nvlink_rate"], nvlink),
        "decoders": max(decoders, default=None),
    }


def _of_loader(row: Row) -> Values:
    workers, allowed = row["workers"], row["loader_cpus_allowed"]
    usable = [n for n in (allowed or row["cpus_allowed"], row["cpu_limit"]) if n]
    used = workers * row["loader_cpu"] / 100 if workers and row["loader_cpu"] is not None else None
    return {
        "loader_cores_share": _quotient(allowed, row["cpus_allowed"]),
        "loader_cores_each": _quotient(allowed, workers),
        "loader_fill": _quotient(used, min(usable, default=None)),
    }


def _power_share(row: Row) -> float | None:
    power, limit = row["power"], row["power_limit"]
    if power is None or not limit:
        return None
    idle = float(_IDLE_WATTS.get(row["catalogue_model"] or "", _IDLE_SHARE * limit))
    if row["power_least"] is not None:
        idle = min(idle, row["power_least"])
    return max(0.0, (power - idle) / (limit - idle)) if limit > idle else None


def _main_in_stall(values: Values) -> float | None:
    """None where the main thread may also spin while the GPU is busy."""
    duty, stall, percent = (values.get(name) for name in ("duty", "stall", "main_cpu"))
    if not duty or not stall or percent is None:
        return None
    main = percent / 100
    may_spin = abs(main - duty) < _ALIKE or main > stall + _ALIKE
    return None if may_spin else min(1.0, main / stall)


def _idle_cores(row: Row, starved: int) -> float | None:
    """Idle cores for the job; those of the node are shared among all jobs that could use them."""
    left = []
    if row["tree_cpu"] is not None:
        bounds = [row[name] for name in ("cpus_allowed", "cpu_limit") if row[name] is not None]
        left += [bound - row["tree_cpu"] / 100 for bound in bounds]
    if row["cpus"] is not None and row["host_cpu"] is not None:
        # A core that waits for I/O is free for others.
        idle = row["cpus"] * (1 - row["host_cpu"] / 100)
        left.append(idle / max(starved, 1))
    return max(0.0, float(min(left))) if left else None


def _quotient(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


def _add_peers(rows: Sequence[Row], measured: Sequence[Values]) -> None:
    """Add features of the other GPUs of a job."""
    jobs: dict[str, list[Values]] = defaultdict(list)
    for row, values in zip(rows, measured, strict=True):
        if row["work"] is not None:
            jobs[row["work"]].append(values)
    for ranks in jobs.values():
        shares = {
            "peers": float(len(ranks)),
            "peers_quiet": sum(map(_is_quiet, ranks)) / len(ranks),
            "peers_spinning": sum(map(_is_spinning, ranks)) / len(ranks),
        }
        for values in ranks:
            values |= shares


def _is_quiet(values: Mapping[str, float | None]) -> bool:
    p95 = values.get("util_p95")
    return p95 is not None and p95 < _QUIET_BELOW


def _is_spinning(values: Values) -> bool:
    p5, power = values.get("util_p5"), values["power_share"]
    is_busy = p5 is not None and p5 >= _SPINNING_FROM
    return is_busy and power is not None and power <= _SPINNING_POWER_MAX
