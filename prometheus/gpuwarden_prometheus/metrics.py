"""Maps Prometheus names to columns of the sample tables, with SQL of values, labels and keys.

A name has the value, unit and labels with which an agent's exporter shows it, so that a query finds here what a
Prometheus finds that scrapes the agents. Only the labels that a scrape adds (`job`, `instance`) are absent.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpuwarden.collector_metrics import LABEL_NAMES, MetricSource
from gpuwarden.collector_metrics import SOURCES as COMPUTED
from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import (
    DCGM_SETS,
    DCGM_TABLES,
    KEEP_PERIODS,
    KEEP_S,
    OWNER_LABELS,
    SLURM_JOB,
    SLURM_JOB_SQL,
    names_of,
    own_label_columns,
)
from gpuwarden.schema import TABLES
from gpuwarden_prometheus.tiers import RolledMetric, rolled_metrics

_NVML_BUS_ID = "upper(lpad(split_part(g.pci_bus_id, ':', 1), 8, '0') || substr(g.pci_bus_id, strpos(g.pci_bus_id, ':')))"


@dataclass(frozen=True, slots=True)
class SeriesSource:
    """A table of samples, or a SELECT like one: the key of its series, and the SQL of its labels."""

    name: str
    key: tuple[str, ...]
    """Columns that tell series apart."""
    described: tuple[str, ...]
    """More columns that labels are made of, constant for a key."""
    own_labels: tuple[tuple[str, str], ...]
    computed: MetricSource | None = None
    """The SELECT; None: the table with this name."""

    def rows(self, after: str, until: str) -> str:
        """SQL of the relation, at least for this time span; the ends are SQL literals."""
        return self.name if self.computed is None else f"({self.computed.between(after, until)})"

    @property
    def has_gpu(self) -> bool:
        """Whether its rows are of a GPU."""
        return self.computed is None and "gpu_uuid" in self.key


def _source(table: str) -> SeriesSource:
    key = ("node", *(name for name in TABLES[table].key if name not in ("node", "ts")))
    labels = [name for name in own_label_columns(table) if name in TABLES[table].names]
    described = (*(name for name in labels if name not in key), "simulated")
    own = [
        ("node", "k.node"),
        *(
            (SLURM_JOB, SLURM_JOB_SQL.format("k.")) if name == "job" else (name, f"k.{name}")
            for name in labels
        ),
    ]
    own.append(("simulated", "CASE WHEN k.simulated THEN 'true' END"))
    if "gpu_uuid" in key:
        own.append(("model", "g.model"))
    return SeriesSource(table, key, described, tuple(own))


def _computed(name: str, source: MetricSource) -> SeriesSource:
    labels = tuple((LABEL_NAMES.get(column, column), f"k.{column}") for column in source.labels)
    return SeriesSource(name, source.labels, (), labels, source)


SOURCES: Mapping[str, SeriesSource] = {
    **{table: _source(table) for table in METRICS},
    **{name: _computed(name, source) for name, source in COMPUTED.items()},
}


@dataclass(frozen=True, slots=True)
class NamedMetric:
    """A metric by one of its Prometheus names."""

    name: str
    kind: str
    """gauge or counter."""
    help: str
    source: SeriesSource
    columns: tuple[str, ...]
    """The column; for a rate the counters to add up."""
    value: str
    """SQL of the value in the name's unit, of the column `x`."""
    labels: tuple[tuple[str, str], ...]
    """Names and SQL of the labels; `k` is the series' key, `g` its GPU, `n` its node, `o` the GPU's owner."""
    keep_ms: int
    """How long a reading stays the newest."""
    is_rate: bool = False
    """Whether the value is the growth of counters a second."""
    only_nvidia: bool = False
    is_kept_longer: bool = False
    """Whether `keep_ms` may exceed the lookback of a query."""

    @property
    def rolled(self) -> tuple[RolledMetric, ...]:
        """Its rollups, by length."""
        source = self.source
        if source.computed is not None:
            return ()
        return rolled_metrics(
            source.name, self.columns, frozenset((*source.key, *source.described))
        )

    def scaled(self, x: str) -> str:
        """SQL of the value in the name's unit, of this SQL of a value."""
        return self.value.replace("x", x, 1)


@cache
def named_metrics() -> Mapping[str, Sequence[NamedMetric]]:
    """Metrics by Prometheus name, of all name sets; of several, the first one with a value for a series is used."""
    found: dict[str, list[NamedMetric]] = {}
    for name_set in ("own", *DCGM_SETS):
        for table in METRICS if name_set == "own" else DCGM_TABLES:
            for metric in _of_table(name_set, table):
                known = found.setdefault(metric.name, [])
                if all(other.columns != metric.columns for other in known):
                    known.append(metric)
    for source in SOURCES.values():
        for metric in _of_computed(source):
            found[metric.name] = [metric]
    return found


def _of_computed(source: SeriesSource) -> Iterator[NamedMetric]:
    if source.computed is None:
        return
    for metric in source.computed.metrics:
        yield NamedMetric(
            metric.name,
            "gauge",
            metric.help,
            source,
            (metric.column,),
            "x",
            source.own_labels,
            source.computed.keep_ms,
            is_kept_longer=True,
        )


def _of_table(name_set: str, table: str) -> Iterator[NamedMetric]:
    source = SOURCES[table]
    cadence_s = {metric.name: metric.cadence_s for metric in METRICS[table]}
    labels = source.own_labels if name_set == "own" else _dcgm_labels(name_set, source)
    for exported in names_of(name_set, table):
        over = exported.scale.over
        value = "x" if exported.scale.times == 1 else f"x * {exported.scale.times}"
        yield NamedMetric(
            exported.name,
            exported.kind,
            exported.help,
            source,
            exported.columns,
            value if over == 1 else f"{value} / {over}",
            labels,
            round(1000 * max(KEEP_S, KEEP_PERIODS * cadence_s[exported.columns[0]])),
            exported.is_rate,
            name_set != "own",
        )


def _dcgm_labels(name_set: str, source: SeriesSource) -> tuple[tuple[str, str], ...]:
    is_old = name_set == "dcgm"
    has_mig = "mig_instance" in source.described
    return (
        ("gpu", "k.gpu"),
        ("UUID", "k.gpu_uuid"),
        ("pci_bus_id", _NVML_BUS_ID),
        ("device", "'nvidia' || k.gpu"),
        ("modelName", "g.model"),
        *([("GPU_I_ID", "split_part(k.mig_instance, '/', 1)")] if has_mig else []),
        ("Hostname" if is_old else "hostname", "k.node"),
        (
            "DCGM_FI_DRIVER_VERSION" if is_old else "DCGM_FI_SYSTEM_DRIVER_VERSION",
            "n.driver_version",
        ),
        *((label, f"o.{label}") for label in OWNER_LABELS),
    )


_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def is_label(name: str) -> bool:
    """Whether a text may be the name of a label."""
    return _LABEL.fullmatch(name) is not None
