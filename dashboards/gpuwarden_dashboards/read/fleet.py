"""Reads the current state of the fleet: every GPU, what is wrong, listed nodes, and names for the search.

`read_map` has the values that change with every sample, `read_names` the rest. Both have the GPUs in the
same order, by node, index and UUID; their `version` changes when the set of GPUs does. DuckDB makes the JSON
of long columns.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.alert import WORST_FIRST
from gpuwarden.metrics import THROTTLED_BY
from gpuwarden.query import Querier, Record, query_all
from gpuwarden.rollups import IDLE_BELOW_PERCENT

STATES = ("idle", "busy", "throttled", "unknown", "not reporting")
"""State of a GPU, in the lowest 4 bits; unknown: it reports no utilization."""
LEVELS = ("none", "info", "warning", "critical")
"""Severity of its worst firing alert, in the higher bits."""
NOT_REPORTING = STATES.index("not reporting")
SILENT_AFTER = timedelta(minutes=1)
"""A node without a sample for this long is not reporting."""
NODES_MAX = 100
"""Most nodes in one request."""
LISTED_MAX = 5
"""Most incidents, and most alerts outside incidents, on the page."""
FOUND_MAX = 8
"""Most matches of each kind."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong now; records have the columns of _INCIDENTS and _ALERTS."""

    now: datetime
    incidents: Sequence[Record]
    """Open incidents, worst first."""
    alerts: Sequence[Record]
    """Firing alerts that are in no open incident."""


@dataclass(frozen=True, slots=True)
class Colour:
    """A value that colours cells: SQL over `i` (gpus), `n` (gpus_now), `t` (alerts), `m` (`detail`)."""

    sql: str
    unit: str
    title: str
    scale: float = 1
    """Values are sent as integer multiples of this."""
    detail: str = ""
    """A column of `gpu_detail_samples`, which `sql` reads as `m.value`."""


_USD = f"""CASE WHEN n.util_percent < {IDLE_BELOW_PERCENT:g} THEN coalesce(greatest(i.usd_per_hour, t.usd), t.usd)
    WHEN n.gpu_uuid IS NULL THEN t.usd ELSE coalesce(t.usd, 0 * i.usd_per_hour) END"""
"""Dollars per hour that a GPU wastes: its price while idle, the cost of its alerts, or 0; NULL: no price."""
COLOURS = {
    "util_percent": Colour("n.util_percent", "percent", "utilization"),
    "sm_active_percent": Colour("m.value", "percent", "SM activity", detail="sm_active_percent"),
    "power_watts": Colour("n.power_watts", "watts", "power"),
    "temperature_margin_celsius": Colour(
        "coalesce(m.value, i.temperature_slowdown_celsius - n.temperature_celsius)",
        "celsius",
        "margin to thermal slowdown",
        detail="temperature_margin_celsius",
    ),
    "memory_percent": Colour(
        "100.0 * n.memory_used_bytes / nullif(n.memory_total_bytes, 0)", "percent", "memory used"
    ),
    "usd_wasted_per_hour": Colour(_USD, "usd", "wasted dollars an hour", scale=0.01),
    "state": Colour("NULL", "state", "state"),
}

_TROUBLE = """
    SELECT gpu_uuid, max(usd_per_hour) AS usd,
        max(list_position(['info', 'warning', 'critical'], severity)) FILTER (muted IS NULL) AS level
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL GROUP BY gpu_uuid
"""
_DETAIL = """LEFT JOIN (
    SELECT gpu_uuid, arg_max({column}, ts) AS value FROM gpu_detail_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 40 SECOND AND mig_instance IS NULL GROUP BY gpu_uuid
) m ON m.gpu_uuid = n.gpu_uuid"""


def cells_sql(value: str, more: str = "") -> str:
    """SELECT of all known GPUs with their state and `value`, SQL as in `Colour`."""
    return f"""
SELECT i.node, i.gpu, i.gpu_uuid, {value} AS value,
    CASE WHEN n.gpu_uuid IS NULL THEN {NOT_REPORTING}
        WHEN n.util_percent IS NULL THEN 3
        WHEN n.clocks_event_reasons & {THROTTLED_BY} <> 0 THEN 2
        WHEN n.util_percent < {IDLE_BELOW_PERCENT:g} THEN 0 ELSE 1 END + 16 * coalesce(t.level, 0) AS state,
    CASE WHEN n.gpu_uuid IS NULL THEN i.last_seen_at END AS silent_since,
    n.util_percent, n.power_watts, i.usd_per_hour, {_USD} AS usd_wasted
FROM gpus i
LEFT JOIN gpus_now n ON n.gpu_uuid = i.gpu_uuid
LEFT JOIN nodes d ON d.node = i.node
LEFT JOIN ({_TROUBLE}) t ON t.gpu_uuid = i.gpu_uuid
{more}
WHERE i.mig_instance IS NULL AND i.replaced_by IS NULL AND d.forgotten_at IS NULL
"""


_ORDER = "node, gpu, gpu_uuid"
_VERSION = "to_hex(coalesce(bit_xor(hash(node, gpu, gpu_uuid)), 0)) || '-' || count(*)"

SUMS = f"""count(*) AS gpus, count(*) FILTER (state % 16 <> {NOT_REPORTING}) AS reporting,
    {", ".join(f'count(*) FILTER (state % 16 = {at}) AS "{name}"' for at, name in enumerate(STATES[:-1]))},
    count(*) FILTER (state >= 32) AS alerting,
    avg(util_percent)::DOUBLE AS util_percent, sum(power_watts)::DOUBLE AS power_watts,
    sum(usd_per_hour) AS usd_per_hour, sum(usd_wasted) AS usd_wasted_per_hour,
    count(*) FILTER (usd_per_hour IS NULL) AS without_price,
    count(DISTINCT node) FILTER (state % 16 <> {NOT_REPORTING}) AS nodes_reporting,
    (SELECT count(*) FROM nodes WHERE forgotten_at IS NULL) AS nodes"""
"""Columns of a SELECT that sums up rows of `cells_sql`."""
_TOTALS = f"""SELECT {SUMS}, count(DISTINCT node) AS nodes_with_gpus,
    (SELECT max(last_seen_at) FROM nodes WHERE forgotten_at IS NULL) AS newest_at FROM ({cells_sql("NULL")})"""

_KINDS = f"""
WITH expected AS (
    SELECT i.node, gpu, gpu_uuid, coalesce(model, '') AS model, coalesce(to_json(d.labels)::VARCHAR, '{{}}') AS labels
    FROM gpus i LEFT JOIN nodes d ON d.node = i.node
    WHERE mig_instance IS NULL AND replaced_by IS NULL AND d.forgotten_at IS NULL
), by_node AS (
    SELECT node, any_value(labels) AS labels,
        to_json({{'gpus': list(gpu ORDER BY gpu, gpu_uuid), 'models': list(model ORDER BY gpu, gpu_uuid)}})::VARCHAR AS kind
    FROM expected GROUP BY node
)
SELECT *, (SELECT {_VERSION} FROM expected) AS version FROM by_node ORDER BY node
"""

_HOSTS = """
SELECT node FROM nodes WHERE forgotten_at IS NULL AND NOT EXISTS (FROM gpus WHERE gpus.node = nodes.node
    AND mig_instance IS NULL AND replaced_by IS NULL) ORDER BY node
"""

_HOLDERS = f"""
WITH expected AS (
    SELECT i.node, gpu, gpu_uuid FROM gpus i LEFT JOIN nodes d ON d.node = i.node
    WHERE mig_instance IS NULL AND replaced_by IS NULL AND d.forgotten_at IS NULL
), held AS (
    SELECT coalesce(i.parent_gpu_uuid, gpu_uuid) AS gpu_uuid,
        arg_max({{'username': username, 'job': job}}, coalesce(memory_used_bytes, 0)) AS holder
    FROM gpus_now LEFT JOIN (SELECT gpu_uuid, parent_gpu_uuid FROM gpus) i USING (gpu_uuid)
    WHERE coalesce(username, job) IS NOT NULL GROUP BY ALL
), known AS (
    SELECT holder, row_number() OVER (ORDER BY holder.username, holder.job) - 1 AS code
    FROM (SELECT DISTINCT holder FROM held)
)
SELECT (SELECT to_json(coalesce(list(holder ORDER BY code), []))::VARCHAR FROM known) AS holders,
    to_json(coalesce(list(coalesce(code, -1) ORDER BY {_ORDER}), []))::VARCHAR AS holder_of, {_VERSION} AS version
FROM expected LEFT JOIN held USING (gpu_uuid) LEFT JOIN known USING (holder)
"""

_NODES = """
WITH drawn AS (
    SELECT node, sum(power_watts)::DOUBLE AS power_watts FROM gpus_now WHERE mig_instance IS NULL GROUP BY node
)
SELECT i.node, i.simulated, epoch_ms(last_seen_at) AS last_seen_ms, power_watts, cpu_util_percent,
    cpu_iowait_percent, h.memory_used_bytes, h.memory_total_bytes
FROM nodes i LEFT JOIN drawn USING (node) LEFT JOIN nodes_now h ON h.node = i.node
WHERE i.node IN (SELECT unnest($nodes))
"""
_INCIDENTS = f"""
SELECT id, rule, severity, place, summary, remedy, owner, began_at, usd_per_hour, usd_so_far,
    greatest(0, firing - roots) AS follows, simulated, muted, unknown_since, count(*) OVER () AS total,
    count(*) FILTER (muted IS NULL) OVER () AS loud,
    count(*) FILTER (severity = 'critical' AND muted IS NULL) OVER () AS critical
FROM incidents_now
ORDER BY muted IS NOT NULL, {WORST_FIRST}, usd_so_far DESC NULLS LAST, opened_at
LIMIT {LISTED_MAX}
"""

_ALERTS = f"""
SELECT fingerprint, rule, severity, node, gpu, summary, remedy, owner, began_at, usd_per_hour, usd_so_far, simulated,
    muted, unknown_since, stale_since, count(*) OVER () AS total, count(*) FILTER (muted IS NULL) OVER () AS loud
FROM alerts_now
WHERE state = 'firing' AND (fingerprint, active_at) NOT IN (
    SELECT (fingerprint, active_at) FROM incident_alerts
    WHERE ended_at IS NULL AND incident IN (SELECT id FROM incidents WHERE state = 'open')
)
ORDER BY muted IS NOT NULL, {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at
LIMIT {LISTED_MAX}
"""
_FOUND = f"""
    SELECT kind, name, detail FROM ({{sql}}) ORDER BY NOT starts_with(lower(name), $q), length(name), name
    LIMIT {FOUND_MAX}
"""


async def read_fleet(querier: Querier, now: datetime) -> tuple[Trouble, Record]:
    """What is wrong, and the totals of the whole fleet. Raises QueryError."""
    asked = [(sql, None) for sql in (_INCIDENTS, _ALERTS, _TOTALS)]
    incidents, alerts, totals = (result.records() for result in await query_all(querier, asked))
    return Trouble(now, incidents, alerts), totals[0]


async def read_map(querier: Querier, colour: str) -> str:
    """Every GPU's value and state, as JSON. Raises QueryError."""
    wanted = COLOURS[colour]
    more = _DETAIL.format(column=wanted.detail) if wanted.detail else ""
    value = f"round(({wanted.sql}) / {wanted.scale})::INTEGER"
    # Sort one list instead of three.
    sql = f"""
        WITH one AS (
            SELECT {_VERSION} AS version, coalesce(list({{'v': value, 's': state, 'a': epoch_ms(silent_since)}}
                ORDER BY {_ORDER}), []) AS cells
            FROM ({cells_sql(value, more)})
        )
        SELECT version, to_json(list_transform(cells, lambda c: c.v))::VARCHAR,
            to_json(list_transform(cells, lambda c: c.s))::VARCHAR,
            to_json(list_transform(list_filter(cells, lambda c: c.s % 16 = {NOT_REPORTING}), lambda c: c.a))::VARCHAR
        FROM one
    """
    version, values, states, since = (await querier.query(sql)).rows[0]
    head = {"colour": colour, "unit": wanted.unit, "scale": wanted.scale, "version": version}
    if wanted.unit == "state":
        values = "[]"
    return f'{json.dumps(head)[:-1]}, "values": {values}, "states": {states}, "silent_since_ms": {since}}}'


async def read_names(querier: Querier) -> str:
    """Nodes, labels, models, users and jobs of every GPU, and nodes without one, as JSON. Raises QueryError."""
    kinds, holders, hosts = await query_all(
        querier, [(sql, None) for sql in (_KINDS, _HOLDERS, _HOSTS)]
    )
    nodes, kind_of, label_of = [], [], []
    kind_codes: dict[str, int] = {}
    label_codes: dict[str, int] = {}
    for node, labels, kind, _ in kinds.rows:
        nodes.append(node)
        kind_of.append(kind_codes.setdefault(kind, len(kind_codes)))
        label_of.append(label_codes.setdefault(labels, len(label_codes)))
    *held, version = holders.rows[0]
    if kinds.rows and kinds.rows[0][3] != version:
        # A GPU was added between the two queries: leave the holders to the next request.
        held, version = ["[]", "[]"], kinds.rows[0][3]
    head = {
        "version": version,
        "nodes": nodes,
        "kinds": [json.loads(kind) for kind in kind_codes],
        "kind_of": kind_of,
        "labels": [json.loads(labels) for labels in label_codes],
        "label_of": label_of,
        "hosts": [host for (host,) in hosts.rows],
    }
    said = json.dumps(head, separators=(",", ":"))
    return f'{said[:-1]},"holders":{held[0]},"holder_of":{held[1]}}}'


async def read_nodes(querier: Querier, nodes: Sequence[str]) -> Sequence[Record]:
    """Power, CPU and memory of some nodes, in the given order. Raises QueryError."""
    found = (await querier.query(_NODES, {"nodes": list(nodes)})).records()
    place = {node: at for at, node in enumerate(nodes)}
    return sorted(found, key=lambda record: place[record["node"]])


def _owners_sql(kind: str, column: str) -> str:
    """SELECT of users or jobs that held GPUs in the last day or hold some now."""
    job = f"SELECT DISTINCT {column} AS name FROM"
    return f"""
        SELECT '{kind}' AS kind, name, NULL AS detail FROM (
            {job} process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
            UNION {job} waste_1h WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY
        ) WHERE contains(lower(name), $q)"""


_NAMED = (
    """
        SELECT 'node' AS kind, node AS name, NULL AS detail FROM nodes
        WHERE forgotten_at IS NULL AND contains(lower(node), $q)""",
    """
        SELECT 'gpu' AS kind, gpu_uuid AS name, concat(node, ' GPU ', gpu) AS detail FROM gpus
        WHERE length($q) >= 3 AND replaced_by IS NULL
            AND (contains(lower(gpu_uuid), $q) OR starts_with(lower(serial), $q))""",
    _owners_sql("username", "username"),
    _owners_sql("job", "job"),
)


async def read_matches(querier: Querier, words: str) -> Sequence[Record]:
    """Things whose name contains the text, best first: `kind`, `name`, `detail`. Raises QueryError."""
    params = {"q": words.strip().lower()}
    if not params["q"]:
        return []
    found = await query_all(querier, [(_FOUND.format(sql=sql), params) for sql in _NAMED])
    return [record for result in found for record in result.records()]
