"""Makes the pages of tables and of metrics from the catalogue and the schema.

`docs/tables.md` begins with what answers most questions. It has the meaning of every column once: a column that an
earlier table has with the same type and meaning is only named, and columns of rollups are listed by how they are made.
`docs/metrics.md` has names in Prometheus and sources of host metrics, `docs/gpus.md` the calls of NVML.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

from gpuwarden.collector_metrics import LABEL_NAMES
from gpuwarden.collector_metrics import SOURCES as COLLECTOR_SOURCES
from gpuwarden.metrics import METRICS, NOT_NEGATIVE, PERCENT, Metric, Type
from gpuwarden.prometheus_names import (
    DCGM_TABLES,
    DCGM_XID,
    JOBSTATS,
    JOBSTATS_JOB,
    JOBSTATS_UID,
    names_of,
)
from gpuwarden.rollups import REASONS, ROLLUPS, Rollup
from gpuwarden.schema import TABLES, WIRE_TABLES, column_type, public_views, stored_columns
from gpuwarden.table import GPU, GPU_UUID, LIST, MAP, MIG, NODE, SIMULATED, TS, Column
from gpuwarden_agent.collect.nvidia import metrics as nvml_table
from gpuwarden_agent.counters import Counters
from gpuwarden_prometheus.received.names import named_columns
from gpuwarden_rules.testing.database import MemoryDatabase

NOTICE = (
    "<!-- Made by docs/generate.py: edit the code that it is made from, then run `make docs`. -->"
)
COMMON = (TS, NODE, GPU, GPU_UUID, MIG, SIMULATED)
ARROW = {t: t.value for t in Type} | {
    Type.TIMESTAMP: "timestamp[ms]",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
}


def names(columns: Iterator[str] | tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


FIRST: dict[str, tuple[str, str]] = {
    "gpus_now": (
        "every GPU now, its readings, model, price and who holds it. Which GPUs are held, and idle?",
        """\
SELECT node, gpu, username, job, usd_per_hour FROM gpus_now
WHERE util_percent < 5 AND username IS NOT NULL ORDER BY usd_per_hour DESC""",
    ),
    "gpu_holders_now": (
        "everybody who holds a GPU now, by process or allocation. Who has how many?",
        """\
SELECT username, count(DISTINCT gpu_uuid) AS gpus, sum(gpu_memory_bytes) / 1e9 AS memory_gb
FROM gpu_holders_now GROUP BY username ORDER BY gpus DESC""",
    ),
    "nodes": (
        "every node, its software, labels, and when it was last seen. Which are silent?",
        """\
SELECT node, last_seen_at, agent_version FROM nodes
WHERE forgotten_at IS NULL AND last_seen_at < now() - INTERVAL 5 MINUTE ORDER BY last_seen_at""",
    ),
    "alerts_now": (
        "alerts that fire, and those that are pending. What is wrong, and what do I do?",
        """\
SELECT severity, node, gpu, summary, remedy, usd_so_far FROM alerts_now
WHERE state = 'firing' ORDER BY began_at""",
    ),
    "events": (
        "what happened, such as Xids and lost GPUs. Which hardware failed today?",
        """\
SELECT ts, node, gpu, kind, message FROM events
WHERE severity = 'critical' AND ts > now() - INTERVAL 1 DAY ORDER BY ts DESC""",
    ),
    "gpu_health_now": (
        "ECC errors, remapped rows and NVLink fabric of every GPU. Which boards need a reset or a return?",
        """\
SELECT node, gpu, serial, remap_pending, remap_failed FROM gpu_health_now
WHERE remap_pending OR remap_failed ORDER BY node, gpu""",
    ),
    "idle_1m": (
        "every GPU and minute: since when it is idle, who holds it, to whom it is given. What has been idle the longest?",
        """\
SELECT node, gpu, arg_max(idle_since, ts) AS since, arg_max(holder_username, ts) AS holder FROM idle_1m
WHERE ts > now() - INTERVAL 10 MINUTE GROUP BY ALL HAVING since IS NOT NULL ORDER BY since""",
    ),
    "gpu_samples": (
        "every GPU by the second. What did one do in the last ten minutes?",
        """\
SELECT ts, util_percent, power_watts, temperature_celsius, sm_clock_mhz FROM gpu_samples
WHERE node = 'n1' AND gpu = 0 AND ts > now() - INTERVAL 10 MINUTE ORDER BY ts""",
    ),
    "gpu_1m": (
        "every GPU by the minute, for longer times; [gpu_1h](#gpu_1h) by the hour. How busy was each node today?",
        """\
SELECT node, avg(util_percent_avg) AS util_percent, max(power_watts_max) AS power_watts
FROM gpu_1m WHERE ts > now() - INTERVAL 1 DAY GROUP BY node ORDER BY util_percent""",
    ),
    "gpu_usage": (
        "GPU hours, cost and energy by hour, GPU, user, job and team. What did each team use this week?",
        """\
SELECT team, sum(gpu_hours) AS gpu_hours, sum(busy_hours) AS busy_hours, sum(usd) AS usd
FROM gpu_usage WHERE ts > now() - INTERVAL 7 DAY GROUP BY team ORDER BY usd DESC""",
    ),
    "waste": (
        "the same hours by [category](money.md). What was lost this week, and by what?",
        """\
SELECT category, username, sum(gpu_hours) AS gpu_hours, sum(usd) AS usd FROM waste
WHERE is_waste AND ts > now() - INTERVAL 7 DAY GROUP BY ALL ORDER BY usd DESC""",
    ),
}
"""What each table or view is, the question of its example, and the example."""

TABLES_HEAD = f"""\
# Tables and views
{NOTICE}

What `gpuwarden sql`, the SQL page, rules and dashboards query. Ten answer most questions:

{{first}}

## How to read this page

Names, types and units are a promise. Time is UTC. The last part of a name is its unit; `_total` marks a counter: only its differences are meaningful.
What a device cannot give is NULL, never 0. [gpus.md](gpus.md#readings-of-nvml) and [metrics.md](metrics.md) say where each metric is read. `gpuwarden ask columns`, the SQL
page and the comments of `duckdb_columns()`, `duckdb_tables()`, `duckdb_views()` and information_schema say the same.

- A line with several columns names in its meaning what each of them is about, in their order.
- "Required": never NULL. Agents may leave out every other column.
- Range: metrics are 0 or more, `_percent` 0 to 100, or as stated. Others are refused at [ingest](wire.md#what-is-admitted).
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
    lines = [TABLES_HEAD.format(first="\n\n".join(_first())), *_columns_list(list(COMMON))]
    for table in TABLES.values():
        lines += ["", f"## {table.name}", "", f"One row per {table.row}. Key: {names(table.key)}."]
        rollup = ROLLUPS.get(table.name)
        if rollup is not None and rollup.made_of is not None:
            lines += ["", f"The columns of [{rollup.made_of}](#{rollup.made_of}), by hour."]
            continue
        made = {s.column.name for part in rollup.parts for s in part.summaries} if rollup else set()
        columns = stored_columns(table)
        known, new = seen.split([c for c in columns if c.name not in made], table.name)
        new = [c for c in new if c not in REASONS.values()]
        lines += _known(known)
        if new:
            lines += ["", *_columns_list(new)]
        if rollup and any(part.has_activity for part in rollup.parts):
            lines += [f"- {_reasons()} float32: Time with that bit of `clocks_event_reasons`."]
        if rollup:
            lines += _summaries(rollup)
        if table.name == "gpus":
            lines += ["", ROLLUPS_HEAD]
    lines += ["", "## Views", "", VIEWS_HEAD, *_views(seen)]
    return "\n".join(lines) + "\n"


def _reasons() -> str:
    """Columns of time by bit of `clocks_event_reasons`."""
    return ", ".join(f"`{column.name}` ({bit:#x})" for bit, column in REASONS.items())


def _first() -> Iterator[str]:
    """What answers most questions, each with an example."""
    for name, (meaning, sql) in FIRST.items():
        yield f"[`{name}`](#{name}): {meaning}\n\n```sql\n{sql}\n```"


def _views(seen: Seen) -> Iterator[str]:
    """Each view with its columns; those that it does not compute are what they are in what it reads."""
    described = {name: {c.name: c for c in stored_columns(table)} for name, table in TABLES.items()}
    alike = {column_type(column): column for of in described.values() for column in of.values()}
    database = MemoryDatabase()
    for view in public_views():
        result = database.run(f"FROM {view.name}")
        columns, others = {}, []
        for name, sql_type in zip(result.columns, result.types, strict=True):
            if name not in view.columns:
                columns[name] = next(
                    of[name] for of in map(described.get, view.reads) if of and name in of
                )
            elif like := alike.get(sql_type):
                columns[name] = Column(name, like.type, view.columns[name], nested=like.nested)
            else:
                others.append(f"- `{name}` {sql_type}: {view.columns[name]}")
        described[view.name] = columns
        yield from ("", f"### {view.name}", "", view.meaning)
        for whole in view.reads:
            if whole in described and described[whole].items() <= columns.items():
                yield f"All columns of [{whole}](#{whole})."
                columns = {n: c for n, c in columns.items() if n not in described[whole]}
        known, new = seen.split([*columns.values()], view.name)
        yield from _known(known)
        if new or others:
            yield from ("", *_columns_list(new), *others)


def _known(known: Mapping[str, list[str]]) -> Iterator[str]:
    """Columns that another table has described, by table."""
    for place, listed in known.items():
        of = f"As in [{place}](#{place})" if place else "Common columns"
        yield f"{of}: {names(listed)}."


def _columns_list(columns: list[Column]) -> list[str]:
    """Columns with their meanings; those that differ in one word share a line."""
    groups: list[Group] = []
    for column in columns:
        if not any(group.takes(column) for group in groups):
            groups.append(Group([column]))
    return [f"- {names(g.names)} {_type(g.columns[0])}: {g.meaning}" for g in groups]


@dataclass
class Group:
    """Columns of one type whose names differ in one part, and whose meanings in one word."""

    columns: list[Column]
    place: tuple[int, int] | None = None
    """Where name and meaning differ; None: a single column."""

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def meaning(self) -> str:
        first = self.columns[0].meaning
        if self.place is None:
            return first
        at = self.place[1]
        words = first.split(" ")
        end = words[at][-1] if words[at][-1] in ".,:;" else ""
        others = [c.meaning.split(" ")[at].rstrip(".,:;") for c in self.columns]
        words[at] = "/".join(others) + end
        return " ".join(words)

    def takes(self, column: Column) -> bool:
        """Add the column if it is like the others."""
        first = self.columns[0]
        if _type(first) != _type(column):
            return False
        places = _differ(first.name.split("_"), column.name.split("_"))
        words = _differ(first.meaning.split(" "), column.meaning.split(" "))
        if len(places) != 1 or len(words) != 1 or self.place not in (None, (places[0], words[0])):
            return False
        self.place = (places[0], words[0])
        self.columns.append(column)
        return True


def _differ(one: list[str], other: list[str]) -> list[int]:
    """Places at which two lists differ; more than one where their lengths do."""
    if len(one) != len(other):
        return [0, 1]
    return [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]


_NESTED = {LIST: "list of texts", MAP: "map of texts"}
"""Words for the types that are not of one value."""


def _type(c: Column) -> str:
    required = ", required" if c.required else ""
    return f"{_NESTED[c.nested] if c.nested else c.type.value}{required}{_limits(c)}"


def _limits(c: Column) -> str:
    """The range, where it differs from that of all columns."""
    usual = PERCENT if c.name.endswith("_percent") else NOT_NEGATIVE
    if c.limits is None or c.limits == usual:
        return ""
    low, high = c.limits
    return f", {low:g} or more" if high == float("inf") else f", {low:g} to {high:g}"


def _summaries(rollup: Rollup) -> list[str]:
    """The metrics of a rollup, by which summaries they have."""
    groups: dict[str, list[str]] = {}
    for part in rollup.parts:
        suffixes: dict[str, str] = {}
        for s in part.summaries:
            suffixes[s.source] = f"{suffixes.get(s.source, '')} `_{s.how}`".strip()
        of: dict[str, list[str]] = {}
        for source, listed in suffixes.items():
            of.setdefault(listed, []).append(source)
        for listed, sources in of.items():
            groups.setdefault(listed, []).extend(f"`{source}`" for source in sources)
    return [f"- {listed}: {', '.join(which)}" for listed, which in groups.items()]


VIEWS_HEAD = "Their SQL: [views.sql](../contract/gpuwarden/views.sql)."

ROLLUPS_HEAD = """\
## Columns of rollups

`gpu_1m`, `gpu_1h`, `host_1m` and `process_1m` summarise samples by minute and hour ([when and how](store.md#rollups)). A column
is named after the metric and a suffix; `_total` is left out before `_delta`. What no sample had is NULL. Metrics that are not
listed are in the samples alone.

- `_avg`: average of the samples that have a value (float32); of an hour: its minutes, weighted by their samples
- `_min`, `_max`, `_last`: least, greatest, last value
- `_p95`: value that 95 % of the samples did not exceed; of an hour: that 95 % of the minutes' p95 did not exceed
- `_delta`: growth of a counter. It counts in the minute of the later reading, when the earlier one is at most 3 minutes before that minute. After a reset: the new value
- `_seconds`: time with that property. A sample stands for the agent's interval, 60 s at most"""

METRICS_HEAD = f"""\
# Metrics: names in Prometheus, sources of hosts
{NOTICE}

Meanings are in [tables.md](tables.md), sources of GPU metrics in [gpus.md](gpus.md#readings-of-nvml).

Our own name on the agent's [`/metrics`](exporter.md) is `gpuwarden_`, then `gpu_`, `link_`, `host_`, `infiniband_` or
`process_`, then the column: `gpuwarden_gpu_temperature_celsius`. In base units `_percent` becomes `_ratio`, `_mhz`
`_hertz`, `_bits` `_bytes`. `_total` names are counters, the others gauges.

## Names of dcgm-exporter

Up to 4.8, then since 4.9 where it differs.
"""


def metrics_page() -> str:
    lines = [METRICS_HEAD]
    for table in (name for name in METRICS if name in DCGM_TABLES):
        lines += [
            f"- `{metric.name}`: {names(found)}"
            for metric in METRICS[table]
            if (found := _exported(table, metric.name))
        ]
        lines += _rates(table)
    lines += ["", "## Names of Jobstats", ""]
    lines += [f"- `{column}`: `{name}`" for column, (name, _) in JOBSTATS.items()]
    lines += [
        f"- `{JOBSTATS_JOB}`, `{JOBSTATS_UID}`: Slurm job that the GPU was given to, and its user."
    ]
    for table, metrics in METRICS.items():
        if table not in NVML_TABLES:
            lines += ["", f"## Sources of {table}, every {metrics[0].cadence_s} s", ""]
            lines += _sources(metrics)
    lines += _of_collector()
    xid = names(list(DCGM_XID.values()))
    lines += ["", "## Other names", ""]
    lines += ["- `gpuwarden_gpu_xids_total{xid}`: Xids since the agent's start."]
    lines += [f"- {xid}: Last Xid of the GPU; 0: none."]
    for c in (f.metadata for f in fields(Counters) if f.metadata):
        label = f"{{{c['label']}}}" if c["label"] else ""
        lines.append(f"- `gpuwarden_agent_{c['name']}{label}`: {c['meaning']}")
    return "\n".join(lines) + "\n"


OF_COLLECTOR_HEAD = """
## Metrics of the collector

[PromQL](promql.md) has them; the agents' exporter does not. A state has a sample at its begin and at each whole minute; rows of
`waste` have one at the start of their hour."""


def _of_collector() -> Iterator[str]:
    yield OF_COLLECTOR_HEAD
    for source in COLLECTOR_SOURCES.values():
        labels = names([LABEL_NAMES.get(label, label) for label in source.labels])
        yield f"\nLabels {labels}; most series: {source.series_max}.\n"
        yield from (f"- `{metric.name}`: {metric.help}" for metric in source.metrics)


def _sources(metrics: tuple[Metric, ...]) -> Iterator[str]:
    """Columns by where they are read and how often."""
    columns: dict[str, list[str]] = {}
    for m in metrics:
        slower = f" (every {m.cadence_s} s)" if m.cadence_s != metrics[0].cadence_s else ""
        columns.setdefault(f"{m.source}{slower}", []).append(m.name)
    yield from (f"- {source}: {names(found)}" for source, found in columns.items())


NVML_TABLES = (*DCGM_TABLES, "link_samples")


def nvml_lists() -> Iterator[str]:
    """Every column that is read through NVML, with its fields and calls, by table."""
    for table in dict.fromkeys((*nvml_table.FIELDS, *nvml_table.CALLS)):
        yield f"\n**{NVML_PLACES.get(table, table)}**\n"
        if fields := nvml_table.FIELDS.get(table):
            yield "- Fields: " + ", ".join(f"{f.id} `{f.column}`" for f in fields)
        if table == "gpu_detail_samples":
            yield "- GPM: " + ", ".join(f"{m.id} `{m.column}`" for m in nvml_table.GPM_METRICS)
        functions: dict[str, dict[str, None]] = {}
        for call in nvml_table.CALLS.get(table, ()):
            functions.setdefault(call.function, {}).update(dict.fromkeys(call.columns))
        yield from (f"- `{f}`: {names(list(of))}" for f, of in functions.items() if of)
        if needed := [f for f, of in functions.items() if not of]:
            yield f"- Called for others: {names(needed)}"


NVML_PLACES = {
    "gpu_samples": "gpu_samples, every second",
    "gpu_detail_samples": "gpu_detail_samples, every 10 s",
    "link_samples": "link_samples, every 10 s",
    "nvlink5_bytes": "link_samples of NVLink 5",
    "c2c": "link_samples of NVLink-C2C",
    "gpu_health_samples": "gpu_health_samples, every minute",
    "link_counts": "gpus: links",
    "modes": "gpus: modes",
    "": "gpus and others",
}


def smi_names() -> Iterator[str]:
    """Names of nvidia_gpu_exporter, each with our own name of the same column."""
    own = {(t, e.columns[0]): e.name for t in METRICS for e in names_of("own", t)}
    by_name: dict[str, list[str]] = {}
    for name, columns in named_columns().items():
        found = [own[c.table, c.column] for c in columns if (c.table, c.column) in own]
        if name.startswith("nvidia_smi_") and found:
            by_name.setdefault(found[0], []).append(name)
    for ours, theirs in by_name.items():
        yield f"- {names(theirs)}: `{ours}`"


def _exported(table: str, metric: str) -> list[str]:
    """Names of a metric in the two sets of dcgm-exporter, each once."""
    found = (
        e.name
        for s in ("dcgm", "dcgm49")
        for e in names_of(s, table)
        if e.columns == (metric,) and not e.is_rate
    )
    return list(dict.fromkeys(found))


def _rates(table: str) -> list[str]:
    """Names of rates, which are made of counters."""
    rates: dict[tuple[str, ...], list[str]] = {}
    for name_set in ("dcgm", "dcgm49"):
        for e in names_of(name_set, table):
            if e.is_rate:
                rates.setdefault(e.columns, []).append(e.name)
    return [
        f"- {names(columns)}: growth a second; {names(list(dict.fromkeys(found)))}"
        for columns, found in rates.items()
    ]
