"""Compiles questions for series, names of labels and their values."""

from collections.abc import Iterator, Sequence

import promql_parser as ast

from gpuwarden.query import QueryError, text_sql
from gpuwarden_prometheus.compile import parsed, selection_of
from gpuwarden_prometheus.metrics import SOURCES, named_metrics
from gpuwarden_prometheus.operators import NUMBER
from gpuwarden_prometheus.relations import NAME, Grid, SqlBuilder, label_sql, without_sql
from gpuwarden_prometheus.selectors import (
    Selection,
    between,
    instant_sql,
    instant_vector,
    series_in,
)


def series_found(selectors: Sequence[str], start_ms: int, end_ms: int) -> str:
    """SQL of the labels of all series that have readings in a time span, as JSON."""
    statement = SqlBuilder()
    relations = _relations(statement, selectors, start_ms, end_ms)
    rows = " UNION ".join(
        f"SELECT CAST(to_json(l) AS VARCHAR) AS series FROM {name}" for name in relations
    )
    return statement.text(
        f"SELECT DISTINCT series FROM ({rows or _nothing('series')}) ORDER BY series"
    )


def label_names(selectors: Sequence[str], start_ms: int, end_ms: int) -> str:
    """SQL of the names of labels, as JSON texts."""
    if not selectors:
        names = {
            name for metrics in named_metrics().values() for m in metrics for name, _ in m.labels
        }
        return _texts(sorted({NAME, *names}))
    statement = SqlBuilder()
    relations = _relations(statement, selectors, start_ms, end_ms)
    rows = " UNION ".join(f"SELECT unnest(map_keys(l)) AS name FROM {name}" for name in relations)
    return statement.text(
        f"SELECT DISTINCT CAST(to_json(name) AS VARCHAR) AS label FROM ({rows or _nothing('name')}) ORDER BY label"
    )


def label_values(selectors: Sequence[str], start_ms: int, end_ms: int, label: str) -> str:
    """SQL of the values of a label, as JSON texts."""
    statement = SqlBuilder()
    if selectors:
        relations = _relations(statement, selectors, start_ms, end_ms)
    elif label == NAME:
        return _names_in(start_ms, end_ms)
    else:
        # One metric stands for all with the same labels.
        first = {
            (m.source.name, m.labels): m for metrics in named_metrics().values() for m in metrics
        }
        found = [m for m in first.values() if any(name == label for name, _ in m.labels)]
        relations = [
            series_in(statement, m, [[]], start_ms, end_ms, is_of_table=True) for m in found
        ]
    value = f"l[{text_sql(label)}]"
    rows = " UNION ".join(f"SELECT {value} AS value FROM {name}" for name in relations)
    return statement.text(
        f"SELECT DISTINCT CAST(to_json(value) AS VARCHAR) AS label FROM ({rows or _nothing('value')}) "
        "WHERE value <> '' ORDER BY label"
    )


def federated(selectors: Sequence[str], at_ms: int, lookback_ms: int) -> str:
    """SQL of the newest values of series as lines of Prometheus' text format, each with its time."""
    statement = SqlBuilder()
    found = []
    for selected in _selections(selectors):
        for metric in selected.metrics:
            one = Selection([metric], selected.matchers)
            vector = instant_vector(statement, one, Grid(at_ms, 1, 1), lookback_ms)
            # A value that is kept for an hour would be too old for a Prometheus.
            time = str(at_ms) if metric.is_kept_longer else "t"
            found.append(
                f"SELECT {_LINE} || {NUMBER} || ' ' || {time} AS exposition FROM {vector.points} "
                f"JOIN {vector.series} USING (sid)"
            )
    rows = " UNION ".join(found) or _nothing("exposition")
    return statement.text(f"SELECT DISTINCT exposition FROM ({rows}) ORDER BY exposition")


_ESCAPED = "replace(replace(replace(e.value, chr(92), chr(92) || chr(92)), chr(34), chr(92) || chr(34)), chr(10), chr(92) || 'n')"
_LINE = (
    f"{label_sql(NAME)} || '{{' || array_to_string(list_transform(map_entries({without_sql([NAME])}), "
    f"lambda e: e.key || '=\"' || {_ESCAPED} || '\"'), ',') || '}} '"
)
"""SQL of name and labels in the text format."""


def _names_in(start_ms: int, end_ms: int) -> str:
    """Names of metrics with a reading in the last part of the span."""
    counts = []
    for table, source in SOURCES.items():
        of_source = [
            m for metrics in named_metrics().values() for m in metrics if m.source is source
        ]
        columns = sorted({c for m in of_source for c in m.columns})
        since = max(start_ms, end_ms - max(300_000, *(m.keep_ms for m in of_source)))
        entries = ", ".join(
            f"{{'c': '{table}.{column}', 'n': count({column})}}" for column in columns
        )
        counts.append(
            f"SELECT unnest([{entries}]) AS e FROM {source.rows(instant_sql(since), instant_sql(end_ms))} "
            f"WHERE {between(since, end_ms)}"
        )
    names = ", ".join(
        f"{{'c': '{m.source.name}.{m.columns[0]}', 'name': {text_sql(name)}}}"
        for name, metrics in named_metrics().items()
        for m in metrics
    )
    return (
        f"SELECT DISTINCT CAST(to_json(m.name) AS VARCHAR) AS label FROM (SELECT unnest([{names}], recursive := true)) m "
        f"JOIN (SELECT e.c AS c, e.n AS n FROM ({' UNION ALL '.join(counts)})) USING (c) WHERE n > 0 ORDER BY label"
    )


def _texts(texts: Sequence[str]) -> str:
    values = ", ".join(text_sql(text) for text in texts)
    return (
        f"SELECT CAST(to_json(name) AS VARCHAR) AS label FROM (SELECT unnest([{values}]) AS name)"
    )


def _nothing(column: str) -> str:
    return f"SELECT '' AS {column} WHERE false"


def _relations(
    statement: SqlBuilder, selectors: Sequence[str], start_ms: int, end_ms: int
) -> list[str]:
    return [
        series_in(statement, metric, selected.matchers, start_ms, end_ms)
        for selected in _selections(selectors)
        for metric in selected.metrics
    ]


def _selections(selectors: Sequence[str]) -> Iterator[Selection]:
    for selector in selectors:
        expr = parsed(selector)
        if not isinstance(expr, ast.VectorSelector):
            raise QueryError(f"match[] needs a selector, not {selector!r}")
        yield selection_of(expr)
