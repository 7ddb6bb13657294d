"""Makes the pages of tables and of metrics from the catalogue and the schema.

`docs/tables.md` has the meaning of every column once: a column that an earlier table has with the
same type and meaning is only named, and columns of rollups are listed by how they are made.
`docs/metrics.md` has the source of every metric and its names in Prometheus.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gpuwarden.metric import NOT_NEGATIVE, Type
from gpuwarden.metrics import METRICS, Kind, Metric
from gpuwarden.rollups import REASONS, ROLLUPS, Rollup
from gpuwarden.schema import INVENTORY_EXTRA, TABLES, WIRE_TABLES, views_sql
from gpuwarden.table import GPU, GPU_UUID, MIG, NODE, SIMULATED, TS, Column
from gpuwarden_agent.exporter.health import COUNTS
from gpuwarden_agent.exporter.names import DCGM_TABLES, DCGM_XID, names_of

NOTICE = (
    "<!-- Made by docs/generate.py: edit the code that it is made from, then run `make docs`. -->"
)
COMMON = (TS, NODE, GPU, GPU_UUID, MIG, SIMULATED)
ARROW = {t: t.value for t in Type} | {
    Type.TIMESTAMP: "timestamp[ms]",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
}


def row(*cells: str) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def names(columns: Iterator[str] | tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


TABLES_HEAD = f"""\
# Tables and views
{NOTICE}

What `gpuwarden sql`, rules and dashboards query, and what agents send. Names, types and units are a promise. Time
is UTC. The last part of a name is its unit; `_total` marks a counter: only differences of it mean something.
What a device cannot give is NULL, never 0. [metrics.md](metrics.md) has the source of each metric.

- "Required": never NULL. Agents may leave out every other column.
- Range: a metric below 0, or outside the range beside its type, is refused at [ingest](wire.md#what-is-admitted).
- Arrow types on the wire: timestamp is `timestamp[ms]`, float32 `float`, float64 `double`; the others have their name.
- An agent may send: {names(list(WIRE_TABLES))}. The collector writes the other tables.

## Common columns

Every table that names one of these has it with this type and meaning.
"""


@dataclass
class Seen:
    """Columns that an earlier table has described, by where they stand."""

    where: dict[Column, str] = field(default_factory=lambda: dict.fromkeys(COMMON, ""))
    """Columns without limits, which the catalogue alone has."""

    def split(self, columns: list[Column], table: str) -> tuple[dict[str, list[str]], list[Column]]:
        """Names of columns that stand elsewhere, by table, and the columns that are new here."""
        known: dict[str, list[str]] = {}
        new = []
        for column in columns:
            plain = replace(column, limits=None)
            if plain in self.where:
                known.setdefault(self.where[plain], []).append(column.name)
            else:
                new.append(column)
                self.where[plain] = table
        return known, new


def tables_page() -> str:
    seen = Seen()
    lines = [TABLES_HEAD, *_columns_table(list(COMMON))]
    for table in TABLES.values():
        lines += ["", f"## {table.name}", "", f"One row per {table.row}. Key: {names(table.key)}."]
        rollup = ROLLUPS.get(table.name)
        if rollup is not None and rollup.made_of is not None:
            lines += ["", f"The columns of [{rollup.made_of}](#{rollup.made_of}), by hour."]
            continue
        made = {s.column.name for part in rollup.parts for s in part.summaries} if rollup else set()
        columns = [*table.columns, *INVENTORY_EXTRA.get(table.name, ())]
        known, new = seen.split([c for c in columns if c.name not in made], table.name)
        new = [c for c in new if c not in REASONS.values()]
        for place, listed in known.items():
            of = f"As in [{place}](#{place})" if place else "Common columns"
            lines += [f"{of}: {names(listed)}."]
        if new:
            lines += ["", *_columns_table(new)]
        if rollup and any(part.has_activity for part in rollup.parts):
            lines += [row(_reasons(), "float32", "Time with that bit of `clocks_event_reasons`.")]
        if rollup:
            lines += ["", *_summaries(rollup)]
        if table.name == "gpus":
            lines += ["", ROLLUPS_HEAD]
    lines += ["", "## Views", "", VIEWS_HEAD, row("view", "rows"), row("---", "---"), *_views()]
    return "\n".join(lines) + "\n"


def _reasons() -> str:
    """Columns of time by bit of `clocks_event_reasons`."""
    listed = (
        f"`{c.name}` ({'any other' if bit is None else hex(bit)})" for bit, c in REASONS.items()
    )
    return ", ".join(listed)


def _views() -> Iterator[str]:
    """Each view with the comment that stands before it."""
    found = re.findall(r"^((?:-- .*\n)+)CREATE OR REPLACE VIEW (\w+)", views_sql(), re.MULTILINE)
    for comment, name in found:
        yield row(f"`{name}`", " ".join(re.findall(r"-- (.*)", comment)))


def _columns_table(columns: list[Column]) -> list[str]:
    lines = [row("column", "type", "meaning"), row("---", "---", "---")]
    return lines + [row(f"`{c.name}`", _type(c), c.meaning) for c in columns]


def _type(c: Column) -> str:
    required = ", required" if c.required else ""
    return f"{c.type.value}{required}{_limits(c.limits)}"


def _limits(limits: tuple[float, float] | None) -> str:
    return "" if limits is None or limits == NOT_NEGATIVE else f", {limits[0]:g} to {limits[1]:g}"


def _summaries(rollup: Rollup) -> list[str]:
    """The metrics of a rollup, by which summaries they have."""
    lines = [row("made of", "suffixes", "metrics"), row("---", "---", "---")]
    for part in rollup.parts:
        suffixes: dict[str, str] = {}
        for s in part.summaries:
            suffixes[s.source] = f"{suffixes.get(s.source, '')} `_{s.how}`".strip()
        groups: dict[str, list[str]] = {}
        for source, listed in suffixes.items():
            groups.setdefault(listed, []).append(source)
        counters = [m.name for m in METRICS[part.table] if m.kind is Kind.COUNTER]
        for listed, of in groups.items():
            which = "every `_total`" if of == counters else names(of)
            lines.append(row(part.table, listed, which))
    return lines


VIEWS_HEAD = "Their SQL: [views.sql](../contract/gpuwarden/views.sql).\n"

ROLLUPS_HEAD = """\
## Columns of rollups

`gpu_1m`, `gpu_1h`, `host_1m` and `process_1m` summarise samples by minute and hour ([when and how](store.md#rollups)). A column
is named after the metric and a suffix; `_total` is left out before `_delta`. What no sample had is NULL.

| suffix | meaning |
| --- | --- |
| `_avg` | average of the samples that have a value (float32); of an hour: its minutes, weighted by their samples |
| `_min`, `_max`, `_last` | least, greatest, last value |
| `_p95` | value that 95 % of the samples did not exceed; of an hour: that 95 % of the minutes' p95 did not exceed |
| `_delta` | growth of a counter. It counts in the minute of the later reading, when the earlier one is at most 3 minutes before that minute. After a reset: the new value |
| `_seconds` | time with that property. A sample stands for the agent's interval, 60 s at most |"""

METRICS_HEAD = f"""\
# Metrics: sources and names in Prometheus
{NOTICE}

What each metric means stands in [tables.md](tables.md). This page says where it comes from and how the agent's
[`/metrics`](exporter.md) calls it: our own name, dcgm-exporter's up to 4.8, dcgm-exporter's since 4.9 (once, where both
are the same). Own names are `_total` counters or gauges in base units.

"FI n" is field id n of `nvmlDeviceGetFieldValues`, "GPM n" metric n of `nvmlGpmMetricsGet`, and names that begin with `nvml`
are calls of NVML.
"""


def metrics_page() -> str:
    lines = [METRICS_HEAD]
    for table, metrics in METRICS.items():
        lines += [f"## {table}", "", f"Read every {metrics[0].cadence_s} s.", ""]
        lines += [row("column", "source", "names in Prometheus"), row("---", "---", "---")]
        lines += [_metric_row(table, m, metrics[0].cadence_s) for m in metrics]
        lines += [*_rates(table), ""]
    xid = names(list(DCGM_XID.values()))
    lines += ["## Other names", "", row("name", "kind", "label", "meaning")]
    lines += [row("---", "---", "---", "---")]
    lines += [row("`gpuwarden_gpu_xids_total`", "counter", "xid", "Xids since the agent's start.")]
    lines += [row(xid, "gauge", "", "Last Xid of the GPU; 0: none.")]
    lines += [row(f"`gpuwarden_agent_{c.name}`", c.kind, c.label or "", c.meaning) for c in COUNTS]
    return "\n".join(lines) + "\n"


def _metric_row(table: str, m: Metric, cadence_s: int) -> str:
    slower = f" (every {m.cadence_s} s)" if m.cadence_s != cadence_s else ""
    return row(f"`{m.name}`", m.source + slower, names(_exported(table, m.name)))


def _exported(table: str, metric: str) -> list[str]:
    """Names of a metric in the three sets, each once."""
    sets = ("own", "dcgm", "dcgm49") if table in DCGM_TABLES else ("own",)
    found = (e.name for s in sets for e in names_of(s, table) if e.columns == (metric,))
    return list(dict.fromkeys(found))


def _rates(table: str) -> list[str]:
    """Names of rates, which are made of counters."""
    if table not in DCGM_TABLES:
        return []
    rates: dict[tuple[str, ...], list[str]] = {}
    for name_set in ("dcgm", "dcgm49"):
        for e in names_of(name_set, table):
            if e.is_rate:
                rates.setdefault(e.columns, []).append(e.name)
    return [
        row(names(columns), "growth a second", names(list(dict.fromkeys(found))))
        for columns, found in rates.items()
    ]
