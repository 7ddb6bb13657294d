"""Makes samples of the metrics that only the collector knows, at whole minutes.

A source is queried by the SQL that PromQL becomes, so that names, labels and values are those of `query` at each minute.
A series that has a value at one minute and none at the next gets a staleness marker.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from gpuwarden.collector_metrics import MINUTE_MS, SOURCES, MetricSource
from gpuwarden_prometheus.metrics import SOURCES as SERIES_SOURCES
from gpuwarden_prometheus.metrics import NamedMetric, named_metrics
from gpuwarden_prometheus.relations import Grid, SqlBuilder, identity_sql
from gpuwarden_prometheus.remote_write.messages import STALE_NAN_BITS
from gpuwarden_prometheus.remote_write.samples import (
    SAMPLE_BYTES,
    LabelSet,
    Series,
    encoded_samples,
)
from gpuwarden_prometheus.selectors import Selection, instant_vector

COMPUTED_SET = "collector"
"""Name set of these metrics."""
_NUMBER, _VALUE = "metric_number", "metric_value"
COMPUTED_KINDS: Mapping[str, str] = {
    metric.name: "gauge" for source in SOURCES.values() for metric in source.metrics
}


def chosen_sources(is_wanted: Callable[[str], bool]) -> tuple[str, ...]:
    """Sources with a metric that is wanted."""
    return tuple(name for name, source in SOURCES.items() if any(_wanted(source, is_wanted)))


def _wanted(source: MetricSource, is_wanted: Callable[[str], bool]) -> list[bool]:
    return [is_wanted(metric.name) for metric in source.metrics]


def minutes_sql(source: str, first_ms: int, steps: int) -> str:
    """SQL of all metrics of a source at whole minutes: labels as JSON without names, and points (m, i, v), with the
    number `m` of the metric, `i` of the minute and the value."""
    statement, grid = SqlBuilder(), Grid(first_ms, MINUTE_MS, steps)
    metric = _all_metrics(source)
    selected = Selection([metric], [[]], frozenset(name for name, _ in metric.labels))
    vector = instant_vector(statement, selected, grid, metric.keep_ms)
    point = f"{{'m': CAST({_NUMBER} AS SMALLINT), 'i': CAST(i AS SMALLINT), 'v': v}}"
    return statement.text(
        f"SELECT {identity_sql()} AS labels, list({point}) AS points FROM {vector.points} JOIN {vector.series} USING (sid) "
        "GROUP BY labels ORDER BY labels"
    )


@cache
def _all_metrics(source: str) -> NamedMetric:
    """All metrics of a source as one, whose series have the metric's number in their key: one statement reads all."""
    computed, series = SOURCES[source], SERIES_SOURCES[source]
    values = ", ".join(f"CAST({metric.column} AS DOUBLE)" for metric in computed.metrics)
    sql = (
        f"SELECT *, unnest(range({len(computed.metrics)})) AS {_NUMBER}, unnest([{values}]) AS {_VALUE} "
        f"FROM ({computed.sql})"
    )
    whole = replace(series, key=(*series.key, _NUMBER), computed=replace(computed, sql=sql))
    (first, *_) = named_metrics()[computed.metrics[0].name]
    return replace(first, name=source, source=whole, columns=(_VALUE,))


@dataclass(slots=True)
class _Known:
    """The series of one set of labels."""

    labels: list[LabelSet | None]
    """By metric; None: not needed yet."""
    is_there: Any
    """Which of them had a value at the last minute."""


class ComputedSeries:
    """The series of a source for one receiver, from minute to minute."""

    def __init__(
        self, source: str, is_wanted: Callable[[str], bool], extra: Mapping[str, str]
    ) -> None:
        """`extra`: labels that replace those of the same name."""
        self.source = source
        self._names = [metric.name for metric in SOURCES[source].metrics]
        self._wanted = np.array(_wanted(SOURCES[source], is_wanted), bool)
        self._extra = extra
        self._known: dict[str, _Known] = {}
        self.is_begun = False
        """Whether it knows the series of the last minute."""

    def begin(self, rows: Any) -> None:
        """Take the series that have a value at the first minute of these rows, which the receiver has."""
        texts = rows["labels"].to_pylist()
        is_there, _ = self._cells(rows, {text: row for row, text in enumerate(texts)}, 1)
        for text, there in zip(texts, is_there[:, :, 0], strict=True):
            self._note(text, there)
        self.is_begun = True

    def take(self, rows: Any, first_ms: int, steps: int) -> list[Series]:
        """Samples of the minutes that follow the last ones: the rows of `minutes_sql` as an Arrow table."""
        found = rows["labels"].to_pylist()
        texts = sorted({*found, *self._known})
        numbers = {text: number for number, text in enumerate(texts)}
        is_there, values = self._cells(rows, numbers, steps)
        before = np.zeros((len(texts), len(self._names), 1), bool)
        for text, known in self._known.items():
            before[numbers[text], :, 0] = known.is_there
        ended = ~is_there & np.concatenate([before, is_there[:, :, :-1]], axis=2)
        bits = np.where(ended, np.uint64(STALE_NAN_BITS), values.view(np.uint64))
        is_sent = is_there | ended
        times_ms = np.broadcast_to(first_ms + np.arange(steps) * MINUTE_MS, is_sent.shape)
        content = encoded_samples(times_ms[is_sent], bits[is_sent].astype("<u8")).tobytes()
        made = [*self._sliced(texts, is_sent, content)]
        for text, there in zip(texts, is_there[:, :, -1], strict=True):
            self._note(text, there)
        return made

    def _cells(self, rows: Any, numbers: Mapping[str, int], steps: int) -> tuple[Any, Any]:
        """By row, metric and minute: whether there is a value, and the value."""
        shape = (len(numbers), len(self._names), steps)
        is_there, values = np.zeros(shape, bool), np.zeros(shape)
        points = rows["points"].combine_chunks()
        flat = points.flatten()
        m, i, v = (flat.field(name).to_numpy() for name in ("m", "i", "v"))
        of_row = [numbers[text] for text in rows["labels"].to_pylist()]
        row = np.repeat(np.array(of_row, np.int64), points.value_lengths().to_numpy())
        keep = self._wanted[m]
        at = (row[keep], m[keep], i[keep])
        is_there[at], values[at] = True, v[keep]
        return is_there, values

    def _sliced(self, texts: Sequence[str], is_sent: Any, content: bytes) -> Iterator[Series]:
        counts = is_sent.sum(axis=2)
        start = 0
        for number, metric in np.argwhere(counts).tolist():
            end = start + int(counts[number, metric]) * SAMPLE_BYTES
            yield Series(self._labels(texts[number], metric), content[start:end])
            start = end

    def _note(self, text: str, is_there: Any) -> None:
        if not is_there.any():
            self._known.pop(text, None)
        elif (known := self._known.get(text)) is not None:
            known.is_there = is_there.copy()
        else:
            self._known[text] = _Known([None] * len(self._names), is_there.copy())

    def _labels(self, text: str, metric: int) -> LabelSet:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = _Known([None] * len(self._names), np.zeros(1, bool))
        made = known.labels[metric]
        if made is None:
            # Values such as those of nodes are in many series.
            own = {sys.intern(name): sys.intern(value) for name, value in json.loads(text).items()}
            made = LabelSet({**own, **self._extra, "__name__": self._names[metric]})
            known.labels[metric] = made
        return made
