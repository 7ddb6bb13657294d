"""Reads the last hours of the fleet and of groups of nodes, and the waste of the week by owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.query import Querier, Record
from gpuwarden.waste import NO_WASTE
from gpuwarden_dashboards.read.money import range_of

LARGE_GPUS = 2_500
"""With more GPUs, minutes would take too long to read: hours are read."""
TOP_MAX = 5
GROUPS_MAX = 60
_SPANS = {
    False: ("gpu_1m", timedelta(hours=6), timedelta(minutes=5), 60),
    True: ("gpu_1h", timedelta(hours=48), timedelta(hours=1), 3600),
}
"""Table, span, step, and seconds of a row, by whether the fleet is large."""


@dataclass(frozen=True, slots=True)
class FleetPast:
    """Lines with the same steps; None: no samples."""

    begin: datetime
    step_s: int
    columns: int
    groups: Mapping[str, Mapping[str, Sequence[float | None]]]
    """Lines by name of the group: `util_percent` (mean), `power_watts` and `idle` (sums)."""


async def read_past(querier: Querier, by: str, now: datetime, *, is_large: bool) -> FleetPast:
    """Read them; `by`: a label of nodes, `model`, or empty for one group of all, "". Raises QueryError."""
    table, span, step, row_s = _SPANS[is_large]
    begin = _floor(now - span, step)
    name = {"": "''", "model": "any_value(model)"}.get(by, "any_value(labels)[$label]")
    params: dict[str, Any] = {"begin": begin, "end": now, "step_s": step.total_seconds()}
    if by not in ("", "model"):
        params["label"] = by
    found = await querier.query(
        f"""
        WITH names AS (
            SELECT gpu_uuid, coalesce({name}, '') AS name
            FROM gpus LEFT JOIN nodes USING (node) WHERE mig_instance IS NULL GROUP BY gpu_uuid
        ), largest AS (
            SELECT name FROM names GROUP BY name ORDER BY count(*) DESC, name LIMIT {GROUPS_MAX}
        )
        SELECT name, floor(epoch(ts - $begin::TIMESTAMP) / $step_s)::INTEGER AS at,
            avg(util_percent_avg) AS util_percent,
            sum(power_watts_avg) / count(DISTINCT ts) AS power_watts,
            sum(idle_seconds) / {row_s} / count(DISTINCT ts) AS idle
        FROM {table} JOIN names USING (gpu_uuid)
        WHERE ts >= $begin AND ts < $end AND mig_instance IS NULL AND name IN (FROM largest)
        GROUP BY ALL
        """,
        params,
    )
    columns = int(span / step) + 1
    groups: dict[str, dict[str, list[float | None]]] = {}
    for record in found.records():
        lines = groups.setdefault(
            record["name"],
            {line: [None] * columns for line in ("util_percent", "power_watts", "idle")},
        )
        for line, values in lines.items():
            if 0 <= record["at"] < columns and record[line] is not None:
                values[record["at"]] = round(record[line], 1)
    return FleetPast(begin, int(step.total_seconds()), columns, groups)


def _floor(instant: datetime, step: timedelta) -> datetime:
    return instant - timedelta(seconds=instant.timestamp() % step.total_seconds())


async def read_week(querier: Querier, now: datetime) -> Record:
    """Dollars and GPU hours wasted in the last seven days of the page of money, and who wasted most. Raises QueryError."""
    begin, end = range_of("7d", now)
    by_all = await querier.query(
        """
        WITH week AS (
            SELECT * FROM waste WHERE ts >= $begin AND ts < $end QUALIFY simulated = bool_and(simulated) OVER ()
        )
        SELECT CASE WHEN grouping(username) = 0 THEN 'username' WHEN grouping(team) = 0 THEN 'team'
                WHEN grouping(job) = 0 THEN 'job' ELSE '' END AS by,
            coalesce(username, team, job) AS name, category, sum(gpu_hours) AS gpu_hours, sum(usd) AS usd
        FROM week GROUP BY GROUPING SETS ((username, category), (team, category), (job, category), (category))
        """,
        {"begin": begin, "end": end},
    )
    return _week(by_all.records())


def _week(records: Sequence[Record]) -> Record:
    sums: dict[tuple[str, str | None], Record] = {}
    for record in records:
        one = sums.setdefault(
            (record["by"], record["name"]),
            {
                "name": record["name"],
                "hours": 0.0,
                "usd": None,
                "wasted_hours": 0.0,
                "wasted_usd": None,
                "most": None,
            },
        )
        _add(one, "hours", "usd", record)
        if record["category"] not in NO_WASTE:
            if one["most"] is None or record["gpu_hours"] > one["most"][1]:
                one["most"] = (record["category"], record["gpu_hours"])
            _add(one, "wasted_hours", "wasted_usd", record)
    for one in sums.values():
        one["most"] = one["most"] and one["most"][0]
    whole = sums.get(
        ("", None), {"hours": 0.0, "usd": None, "wasted_hours": 0.0, "wasted_usd": None}
    )
    top = {}
    for by in ("username", "team", "job"):
        found = [one for (kind, name), one in sums.items() if kind == by and name is not None]
        found.sort(key=lambda one: (-(one["wasted_usd"] or 0.0), -one["wasted_hours"]))
        top[by] = [one for one in found[:TOP_MAX] if one["wasted_hours"] > 0]
    return {"all": whole, "top": top}


def _add(one: Record, hours: str, usd: str, record: Record) -> None:
    one[hours] += record["gpu_hours"]
    if record["usd"] is not None:
        one[usd] = (one[usd] or 0.0) + record["usd"]
