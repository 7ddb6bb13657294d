"""Reads the table of metric names: which column a metric of another program fills, scaled how.

`names.csv` has the names of exporters and of OpenTelemetry, with `_` for its dots. dcgm-exporter's names, those of
Jobstats and our own come from the catalogue. Columns of the file:

    times   factor: 100, 1/1000000
    where   conditions on labels, separated by spaces: NAME (is there), NAME=a|b (one of), NAME=~CLASS
    each    how several series become one value: sum:LABEL or max:LABEL; sum:=NAME, a term that must be there, of several;
            LABEL+ in front: a value for each value of the label
    rank    of several names with a value the one with the lowest counts
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import (
    DCGM_LIMITS,
    PREFIXES,
    dcgm_columns,
    names_of,
)

CLASSES: Mapping[str, re.Pattern[str]] = {
    "disk": re.compile(r"(?:sd[a-z]+|hd[a-z]|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+)\Z"),
    "network": re.compile(
        r"(?!lo$|veth|docker|br-|cni|flannel|cali|virbr|bond|dummy|tun|tap|vxlan|kube)[^.]+\Z"
    ),
}
"""Names of devices: disks and interfaces with hardware."""
SUM, MAX, ONE = "sum", "max", ""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a label must be."""

    label: str
    values: frozenset[str] | None = None
    """None: any value but ""."""
    pattern: re.Pattern[str] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether it is so."""
        value = labels.get(self.label, "")
        if self.pattern is not None:
            return self.pattern.match(value) is not None
        return value != "" if self.values is None else value in self.values


@dataclass(frozen=True, slots=True)
class NamedColumn:
    """The column that a metric fills."""

    table: str
    column: str
    """"": the metric has texts only, in its labels."""
    times: float = 1.0
    over: float = 1.0
    conditions: tuple[Condition, ...] = ()
    each: str = ONE
    part: str = ""
    """The label that differs between series of one value; `=NAME`: a term."""
    split: str = ""
    """The label whose values have values of their own."""
    rank: int = 0
    is_dcgm: bool = False

    def cell(self, labels: Mapping[str, str]) -> str:
        """The name of the reading in its row."""
        name = self.column
        if self.split:
            name += "." + labels.get(self.split, "")
        if self.each:
            name += "#" + (self.part if self.part.startswith("=") else labels.get(self.part, ""))
        return f"{name}~{self.rank}" if self.rank else name


@cache
def named_columns() -> Mapping[str, Sequence[NamedColumn]]:
    """The columns of each metric, by name."""
    found: dict[str, list[NamedColumn]] = {}
    for name, column in (*_dcgm(), *_own(), *_listed()):
        found.setdefault(name, []).append(column)
    return found


@cache
def combinations() -> Mapping[tuple[str, str], str]:
    """How several series become one value, by table and column."""
    every = (one for columns in named_columns().values() for one in columns)
    return {(one.table, one.column): one.each for one in every if one.each}


@cache
def terms() -> Mapping[tuple[str, str], Sequence[frozenset[str]]]:
    """By table and column: the sets of terms of which one must be complete."""
    found: dict[tuple[str, str], dict[str, set[str]]] = {}
    for name, columns in named_columns().items():
        for one in columns:
            if one.part.startswith("="):
                program = name.partition("_")[0]
                sets = found.setdefault((one.table, one.column), {})
                sets.setdefault(program, set()).add(one.part)
    return {key: [frozenset(one) for one in sets.values()] for key, sets in found.items()}


def _dcgm() -> Sequence[tuple[str, NamedColumn]]:
    return [
        (
            name,
            NamedColumn(
                to.table,
                to.column,
                to.scale.over,
                to.scale.times,
                rank=DCGM_LIMITS.index(name) + 1 if name in DCGM_LIMITS else 0,
                is_dcgm=True,
            ),
        )
        for name, to in dcgm_columns().items()
    ]


def _own() -> Sequence[tuple[str, NamedColumn]]:
    found = []
    for table in PREFIXES:
        known = {metric.name for metric in METRICS[table]}
        for each in (*names_of("own", table), *names_of("jobstats", table)):
            assert each.columns[0] in known, each.name
            column = NamedColumn(table, each.columns[0], each.scale.over, each.scale.times)
            found.append((each.name, column))
    return found


def _listed() -> Sequence[tuple[str, NamedColumn]]:
    text = (files("gpuwarden_prometheus.received") / "names.csv").read_text()
    return [(row["name"], _column(row)) for row in csv.DictReader(text.splitlines())]


def _column(row: Mapping[str, str]) -> NamedColumn:
    times, _, over = (row["times"] or "1").partition("/")
    split, _, each = row["each"].rpartition("+")
    how, _, part = each.partition(":")
    return NamedColumn(
        row["table"],
        row["column"],
        float(times),
        float(over or 1),
        tuple(_condition(text) for text in row["where"].split()),
        how,
        part,
        split,
        int(row["rank"] or 0),
        row["name"].startswith("DCGM_"),
    )


def _condition(text: str) -> Condition:
    label, is_value, value = text.partition("=")
    if value.startswith("~"):
        return Condition(label, pattern=CLASSES[value[1:]])
    return Condition(label, frozenset(value.split("|")) if is_value else None)
