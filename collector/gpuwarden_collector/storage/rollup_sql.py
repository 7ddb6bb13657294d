"""Writes the SQL that computes rollups of hours from those of minutes, which `minutes.py` computes."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.metrics import Type
from gpuwarden.query import timestamp_sql
from gpuwarden.rollups import Rollup
from gpuwarden.waste import WASTE_1H, WasteScope, waste_sql


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """The windows to roll up: they start from `begin` to before `end`."""

    begin: datetime
    end: datetime
    share: tuple[int, int] = (0, 1)
    """Index and number of shares of the nodes."""
    units: str | None = None
    """A table of `node` and `ts`: roll up only these windows of these nodes."""
    is_hot: bool = False
    """Whether all its rows are behind the lake, so that the lake is not read."""

    @property
    def nodes(self) -> str:
        """A condition for the nodes of the span."""
        if self.units is not None:
            return f"node IN (SELECT node FROM {self.units})"
        index, count = self.share
        return f"hash(node) % {count} = {index}" if count > 1 else "true"

    @property
    def minutes(self) -> str:
        """A condition for the minutes of the span's hours."""
        condition = f"{between(self.begin, self.end)} AND {self.nodes}"
        if self.units is not None:
            hour = "date_trunc('hour', ts)"
            condition += f" AND (node, {hour}) IN (SELECT (node, ts) FROM {self.units})"
        return condition


def between(begin: datetime, end: datetime) -> str:
    """A condition on `ts` by which DuckDB can skip files and row groups."""
    return f"ts >= {timestamp_sql(begin)} AND ts < {timestamp_sql(end)}"


def rollup_sql(rollup: Rollup, span: WindowSpan) -> str:
    """A SELECT of a rollup's rows, with the table's column names."""
    if rollup is WASTE_1H:
        chosen = f"(node, ts) IN (SELECT (node, ts) FROM {span.units})" if span.units else "true"
        return waste_sql(WasteScope(span.begin, span.end, span.nodes, chosen))
    return _of_minutes_sql(rollup, span)


def _of_minutes_sql(rollup: Rollup, span: WindowSpan) -> str:
    assert rollup.made_of is not None
    by = ", ".join(rollup.by)
    columns = ", ".join(_of_minutes_columns(rollup))
    return (
        f"SELECT {by}, date_trunc('hour', ts) AS ts, {columns} FROM {rollup.made_of} "
        f"WHERE {span.minutes} GROUP BY ALL"
    )


def _of_minutes_columns(rollup: Rollup) -> Iterator[str]:
    hows = {s.column.name: (s.how, p.count.name) for p in rollup.parts for s in p.summaries}
    for column in rollup.table.columns:
        name = column.name
        if name in (*rollup.by, "ts"):
            continue
        how, count = hows.get(name, ("", ""))
        if how == "avg":
            known = f"sum({count}) FILTER (WHERE {name} IS NOT NULL)"
            made = fitting(f"sum({name}::DOUBLE * {count}) / {known}", column.type)
        elif how in ("min", "max"):
            made = f"{how}({name})"
        elif how == "p95":
            made = f"quantile_disc({name}, 0.95)"
        elif name == "simulated":
            made = f"bool_or({name})"
        elif how == "last" or column.type in (Type.STRING, Type.TIMESTAMP) or name == "gpu":
            made = f"arg_max({name}, ts)"
        else:
            made = fitting(f"sum({name})", column.type)
        yield f"{made} AS {name}"


def fitting(expression: str, kind: Type) -> str:
    """The value in a column's type; NULL if it does not fit, so that one absurd reading does not fail the rollup."""
    if kind in (Type.FLOAT32, Type.FLOAT64):
        name = "FLOAT" if kind is Type.FLOAT32 else "DOUBLE"
        return f"nullif(try_cast({expression} AS {name}), 'inf')"
    return f"try_cast({expression} AS {'INTEGER' if kind is Type.INT32 else 'BIGINT'})"
