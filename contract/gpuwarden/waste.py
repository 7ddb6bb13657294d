"""Waste: each second of each GPU gets exactly one label, so that waste adds up to the total.

The unit is a GPU's minute, in milliseconds. `CLAIMS` has the labels in the order of their priority
and what each asks for; it gets that, or what those before it have left. `waste_sql` makes the query
of it, which the collector's rollup, the report of the running hour and tests share. docs/money.md
says it for people.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.metric import Type
from gpuwarden.query import timestamp_sql
from gpuwarden.rollups import IDLE_BELOW_PERCENT, Rollup
from gpuwarden.table import GPU, GPU_UUID, NODE, SIMULATED, Column, Table

LABELS: dict[str, str] = {
    "productive": "A kernel ran, and nothing known held it up.",
    "starved": "The GPU waited for data: what an alert of gpu_data_loader_bound says was lost.",
    "throttled": "Lost to lower clocks while heat or the power supply held them down.",
    "idle_held": "Nothing ran, and a process held the GPU.",
    "allocated_idle": "Nothing ran and no process held it, but a scheduler had given it out.",
    "free": "Nothing ran, nobody held it and nobody had it.",
    "hung": "A job stood still while it held the GPU: an alert of gpu_hung.",
    "lost": "The GPU, its driver or its node was gone.",
    "unknown": "Nobody knows: no samples, or samples without utilization.",
}
"""Meaning of each label."""

WHOLE_FROM_S = 45
"""A minute of which so many seconds were seen counts whole; of one with less, the rest is unknown."""
FORGOTTEN_AFTER_DAYS = 3
"""A GPU is expected for so long after it was last heard of; gpu_lost forgets it then, too."""
HEALTHY_STALL = 0.05
"""What a good training loop loses to its input as well."""
HELD_BYTES_MIN = 500_000_000
"""Memory in use that tells of a process where none can be seen."""
CONTEXT_BYTES_MIN = 50 * 1024**2
"""Less than any CUDA context: utilization above 0 is then the driver's, not work."""

LOST_RULES = ("gpu_lost", "driver_down", "node_down")
HUNG_RULES = ("gpu_hung",)
STARVED_RULES = ("gpu_data_loader_bound",)
CAUSES = {
    rule: cause
    for cause, rules in (("lost", LOST_RULES), ("hung", HUNG_RULES), ("starved", STARVED_RULES))
    for rule in rules
}
"""Rules whose alerts decide a label."""

_STALL = f"greatest(0, 1 - coalesce(util, 1) - {HEALTHY_STALL})"

CLAIMS: tuple[tuple[str, str], ...] = (
    (
        "lost",
        "CASE WHEN seen_ms = 0 AND node_is_up THEN 60000 ELSE least(60000 - seen_ms, lost_cause_ms) END",
    ),
    ("hung", "seen_ms * hung_share"),
    ("unknown", "60000 - seen_ms + unknown_share * seen_ms * (1 - hung_share)"),
    ("idle", "idle_share * seen_ms * (1 - hung_share) * (1 - starved_share)"),
    ("throttled", "throttled_share * seen_ms * (1 - hung_share)"),
    (
        "starved",
        f"(idle_share + busy_share) * seen_ms * (1 - hung_share) * starved_share * ({_STALL})",
    ),
    ("productive", "60000"),
)
"""What each asks for of a minute, most important first. `idle` is told apart by who had the GPU."""

_TEXT = Type.STRING
_BY = (
    NODE,
    GPU_UUID,
    Column("label", _TEXT, "What the time was: one of docs/money.md.", required=True),
    Column("username", _TEXT, "Who held the GPU, else whose job it was given to."),
    Column("slurm_job_id", _TEXT, "Slurm job that held it, else that it was given to."),
    Column("pod", _TEXT, "Kubernetes namespace/pod that held it, else that it was given to."),
)
_TABLE = Table(
    "waste_1h",
    "GPU, hour, label and owner",
    (*(column.name for column in _BY), "ts"),
    (
        Column("ts", Type.TIMESTAMP, "Start of the hour, UTC.", required=True),
        *_BY,
        GPU,
        Column("model", _TEXT, "Name as the driver gives it."),
        Column("team", _TEXT, "Label `team` of the node."),
        SIMULATED,
        Column("seconds", Type.FLOAT64, "Time with that label and owner.", required=True),
        Column("usd", Type.FLOAT64, "What it cost at the price of then; NULL: no price."),
        Column("energy_kwh", Type.FLOAT64, "Energy that the GPU took in it."),
        Column(
            "energy_usd",
            Type.FLOAT64,
            "That energy, with PUE, at the price of a kWh; the price of the GPU has it in it already.",
        ),
    ),
)
WASTE_1H = Rollup(_TABLE, tuple(c.name for c in _BY), 3600, (), made_of="gpu_1m")


def _same(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True)
class WasteScope:
    """What is asked about: minutes that start from `begin` to before `end`, naive UTC."""

    begin: datetime
    end: datetime
    nodes: str = "true"
    """A condition on `node`."""
    chosen: str = "true"
    """A condition on `node` and the hour `ts` of the result."""
    table: Callable[[str], str] = _same
    """Where the rows of a table are."""

    @property
    def when(self) -> str:
        """A condition on `ts`."""
        return f"ts >= {timestamp_sql(self.begin)} AND ts < {timestamp_sql(self.end)}"

    @property
    def minutes(self) -> int:
        """How many minutes there are."""
        return int((self.end - self.begin).total_seconds()) // 60


def waste_sql(scope: WasteScope) -> str:
    """SELECT of the rows of `waste_1h`; the hour is the one that a minute is in."""
    ctes = {
        "slots": f"SELECT {timestamp_sql(scope.begin)} + to_minutes(m) AS ts FROM range({scope.minutes}) r(m)",
        "devices": _DEVICES,
        "parts": "SELECT gpu_uuid AS part, parent_gpu_uuid AS whole FROM gpus "
        "WHERE parent_gpu_uuid IS NOT NULL",
        "seen": _seen_sql(scope),
        "known": "SELECT gpu_uuid, node, s.ts FROM devices d JOIN slots s "
        f"ON s.ts >= d.known_from AND s.ts < d.known_until WHERE {scope.nodes}",
        "up": "SELECT DISTINCT node, ts FROM seen UNION "
        f"SELECT node, ts FROM {scope.table('host_1m')} WHERE {scope.when} AND samples > 0",
        "held": _held_sql(scope),
        "given": _given_sql(scope),
        "causes": _causes_sql(scope),
        "grid": _grid_sql(),
        "facts": _facts_sql(),
        "claimed": _claimed_sql(),
        "hours": _hours_sql(scope),
    }
    named = ", ".join(f"{name} AS ({sql})" for name, sql in ctes.items())
    return f"WITH {named} {_rows_sql(scope)}"


_DEVICES = (
    "SELECT gpu_uuid, node, gpu, model, simulated, usd_per_hour, usd_per_kwh, sm_clock_max_mhz, "
    "date_trunc('minute', first_seen_at) AS known_from, "
    "CASE WHEN replaced_by IS NULL "
    f"THEN last_seen_at + to_days({FORGOTTEN_AFTER_DAYS}) ELSE last_seen_at END AS known_until "
    "FROM gpus WHERE mig_instance IS NULL AND parent_gpu_uuid IS NULL"
)


_SEEN = (
    *("ts", "node", "gpu_uuid", "gpu", "simulated", "samples"),
    *("idle_seconds", "busy_seconds", "unknown_seconds", "util_percent_avg"),
    *("memory_used_bytes_max", "power_watts_avg", "energy_joules_delta", "sm_clock_mhz_avg"),
    *("sw_thermal_seconds_delta", "hw_thermal_seconds_delta", "hw_power_brake_seconds_delta"),
    *("reason_hardware_slowdown_seconds", "reason_software_thermal_slowdown_seconds"),
    *("reason_hardware_thermal_slowdown_seconds", "reason_hardware_power_brake_seconds"),
    "graphics_active_percent_avg",
)
"""What is read of gpu_1m."""


def _seen_sql(scope: WasteScope) -> str:
    """Minutes with samples, each of a GPU once, though it went from one node to another in it."""
    theirs = scope.nodes
    if theirs != "true":
        theirs = f"({theirs} OR gpu_uuid IN (SELECT gpu_uuid FROM devices WHERE {scope.nodes}))"
    return (
        f"SELECT {', '.join(_SEEN)} FROM {scope.table('gpu_1m')} "
        f"WHERE {scope.when} AND mig_instance IS NULL AND samples > 0 AND {theirs} "
        "QUALIFY row_number() OVER (PARTITION BY gpu_uuid, ts ORDER BY samples DESC, node) = 1"
    )


def _held_sql(scope: WasteScope) -> str:
    """Who held each GPU, by minute: of several processes, the one with most memory."""
    owner = "{'username': username, 'slurm_job_id': slurm_job_id, 'pod': pod}"
    return (
        "SELECT coalesce(whole, gpu_uuid) AS gpu_uuid, ts, "
        f"arg_max({owner}, (coalesce(gpu_memory_bytes_max, 0), pid)) AS holder "
        f"FROM {scope.table('process_1m')} LEFT JOIN parts ON part = gpu_uuid "
        f"WHERE {scope.when} AND {scope.nodes} AND process_type IS DISTINCT FROM 'graphics' "
        "GROUP BY ALL"
    )


def _given_sql(scope: WasteScope) -> str:
    """Whom a scheduler had given each GPU to, by minute."""
    owner = "{'username': username, 'slurm_job_id': slurm_job_id, 'pod': pod}"
    return (
        "SELECT coalesce(whole, gpu_uuid) AS gpu_uuid, date_trunc('minute', ts) AS ts, "
        f"arg_max({owner}, (a.ts, owner)) AS receiver, bool_or(processes > 0) AS has_process "
        f"FROM {scope.table('allocation_samples')} a LEFT JOIN parts ON part = gpu_uuid "
        f"WHERE {scope.when} AND {scope.nodes} GROUP BY ALL"
    )


def _causes_sql(scope: WasteScope) -> str:
    """Milliseconds of each minute in which alerts held that decide a label, by GPU or by node."""
    rules = ", ".join(f"'{rule}'" for rule in CAUSES)
    cause = "".join(f" WHEN '{rule}' THEN '{cause}'" for rule, cause in CAUSES.items())
    held = (
        "date_diff('ms', greatest(began_at, s.ts), "
        "least(coalesce(resolved_at, s.ts + INTERVAL 1 MINUTE), s.ts + INTERVAL 1 MINUTE))"
    )
    return (
        f"SELECT CASE rule{cause} END AS cause, gpu_uuid, node, s.ts, "
        f"least(60000, sum({held}))::BIGINT AS ms "
        "FROM alerts JOIN slots s ON began_at < s.ts + INTERVAL 1 MINUTE "
        "AND (resolved_at IS NULL OR resolved_at > s.ts) "
        f"WHERE rule IN ({rules}) AND fired_at IS NOT NULL "
        f"AND began_at < {timestamp_sql(scope.end)} GROUP BY ALL"
    )


_THROTTLED = (
    "coalesce(greatest(sw_thermal_seconds_delta, hw_thermal_seconds_delta, hw_power_brake_seconds_delta), "
    "greatest(reason_hardware_slowdown_seconds, reason_software_thermal_slowdown_seconds, "
    "reason_hardware_thermal_slowdown_seconds, reason_hardware_power_brake_seconds), 0)"
)


def _grid_sql() -> str:
    """Every minute of every GPU that is known or was seen, with who had it and what was going on."""
    causes = " ".join(
        f"LEFT JOIN (SELECT {key}, ts, max(ms) AS {name} FROM causes WHERE cause = '{cause}' "
        f"AND gpu_uuid IS {'NULL' if key == 'node' else 'NOT NULL'} GROUP BY ALL) USING ({key}, ts)"
        for name, cause, key in (
            ("lost_ms", "lost", "gpu_uuid"),
            ("node_lost_ms", "lost", "node"),
            ("hung_ms", "hung", "gpu_uuid"),
            ("starved_ms", "starved", "gpu_uuid"),
        )
    )
    return (
        "SELECT * REPLACE (coalesce(simulated, d_simulated) AS simulated, coalesce(d_gpu, gpu) AS gpu) "
        "FROM (SELECT s.* REPLACE (coalesce(s.node, k.node) AS node, coalesce(s.ts, k.ts) AS ts, "
        "coalesce(s.gpu_uuid, k.gpu_uuid) AS gpu_uuid) "
        "FROM known k FULL JOIN seen s ON s.gpu_uuid = k.gpu_uuid AND s.ts = k.ts) "
        "LEFT JOIN (SELECT * EXCLUDE (node) RENAME (simulated AS d_simulated, gpu AS d_gpu) "
        "FROM devices) USING (gpu_uuid) "
        "LEFT JOIN (SELECT *, true AS node_is_up FROM up) USING (node, ts) "
        f"LEFT JOIN held USING (gpu_uuid, ts) LEFT JOIN given USING (gpu_uuid, ts) {causes}"
    )


_IS_IDLE = f"graphics_active_percent_avg < {IDLE_BELOW_PERCENT:g}"
_NO_WORK = f"holder IS NULL AND memory_used_bytes_max < {CONTEXT_BYTES_MIN}"
_BUSY = "coalesce(busy_seconds, 0)"
_BLIND = "coalesce(unknown_seconds, 0)"
_SLOWER = "greatest(0, 1 - sm_clock_mhz_avg / nullif(sm_clock_max_mhz, 0))"
_FACTS = {
    "is_held": "coalesce(holder IS NOT NULL OR has_process "
    f"OR memory_used_bytes_max > {HELD_BYTES_MIN}, false)",
    "idle_s": f"coalesce(idle_seconds, 0) + if({_NO_WORK}, {_BUSY}, 0) + if({_IS_IDLE}, {_BLIND}, 0)",
    "busy_s": f"if({_NO_WORK}, 0, {_BUSY}) + if(NOT {_IS_IDLE}, {_BLIND}, 0)",
    "unknown_s": f"if(graphics_active_percent_avg IS NULL, {_BLIND}, 0)",
    "total_s": "(idle_s + busy_s + unknown_s)::DOUBLE",
    "seen_ms": f"if(total_s >= {WHOLE_FROM_S}, 60000, round(1000 * total_s))::BIGINT",
    "idle_share": "coalesce(idle_s / nullif(total_s, 0), 0)",
    "busy_share": "coalesce(busy_s / nullif(total_s, 0), 0)",
    "unknown_share": "coalesce(unknown_s / nullif(total_s, 0), 0)",
    "throttled_share": f"coalesce(least({_THROTTLED}, busy_s * {_SLOWER}) / nullif(total_s, 0), 0)",
    "util": "coalesce(util_percent_avg, graphics_active_percent_avg) / 100",
    "kwh": "coalesce(energy_joules_delta, power_watts_avg * seen_ms / 1000) / 3.6e6",
    "lost_cause_ms": "greatest(coalesce(lost_ms, 0), coalesce(node_lost_ms, 0))",
    "hung_share": "coalesce(hung_ms, 0) / 60000",
    "starved_share": "if(is_held, coalesce(starved_ms, 0) / 60000, 0)",
    "idle_label": "CASE WHEN is_held THEN 'idle_held' WHEN receiver IS NOT NULL "
    "THEN 'allocated_idle' ELSE 'free' END",
    "username": "coalesce(holder.username, receiver.username)",
    "slurm_job_id": "coalesce(holder.slurm_job_id, receiver.slurm_job_id)",
    "pod": "coalesce(holder.pod, receiver.pod)",
}
"""What is known of a minute. Seconds are of the time that was seen; shares are of it, too."""


def _facts_sql() -> str:
    said = ", ".join(f"{expression} AS {name}" for name, expression in _FACTS.items())
    return (
        "SELECT ts, node, gpu_uuid, gpu, model, simulated, usd_per_hour, usd_per_kwh, "
        f"coalesce(node_is_up, false) AS node_is_up, {said} FROM grid"
    )


def _claimed_sql() -> str:
    """Each label's milliseconds of each minute: what it claims, or what is left."""
    taken = "60000"
    columns = []
    for name, claim in CLAIMS:
        columns.append(f"least({taken}, greatest(0, round({claim})))::BIGINT AS {name}_ms")
        taken += f" - {name}_ms"
    return f"SELECT *, {', '.join(columns)} FROM facts"


_IDLE = ("idle_held", "allocated_idle", "free")


def _hours_sql(scope: WasteScope) -> str:
    sums = []
    for label in LABELS:
        column, condition = f"{label}_ms", ""
        if label in _IDLE:
            column, condition = "idle_ms", f" FILTER (idle_label = '{label}')"
        sums.append(f"sum({column}){condition} AS {label}")
        # What a counter gained over a gap is of the time that was not seen as well.
        energy = f"kwh * {column} / nullif(60000 - lost_ms, 0)"
        sums.append(
            f"sum({energy}){condition} AS {label}_kwh" if label != "lost" else "NULL AS lost_kwh"
        )
    return (
        "SELECT date_trunc('hour', ts) AS ts, node, gpu_uuid, username, slurm_job_id, pod, "
        "any_value(gpu) AS gpu, any_value(model) AS model, bool_or(simulated) AS simulated, "
        f"any_value(usd_per_hour) AS price, any_value(usd_per_kwh) AS tariff, {', '.join(sums)} "
        f"FROM claimed WHERE {scope.nodes} GROUP BY 1, 2, 3, 4, 5, 6"
    )


def _rows_sql(scope: WasteScope) -> str:
    values = ", ".join(
        f"{{'label': '{label}', 'ms': coalesce({label}, 0)::BIGINT, 'kwh': {label}_kwh::DOUBLE}}"
        for label in LABELS
    )
    return (
        "SELECT ts, node, gpu_uuid, v.label AS label, username, slurm_job_id, pod, gpu, model, "
        "try_cast(n.labels AS JSON) ->> 'team' AS team, h.simulated, "
        "v.ms / 1000 AS seconds, v.ms / 3.6e6 * price AS usd, v.kwh AS energy_kwh, "
        "v.kwh * tariff AS energy_usd "
        f"FROM (SELECT *, unnest([{values}]) AS v FROM hours WHERE {scope.chosen}) h "
        "LEFT JOIN nodes n USING (node) "
        "WHERE v.ms > 0"
    )
