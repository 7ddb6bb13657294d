"""Defines waste: gives each second of each GPU one category, so that categories add up to the total.

The unit is a GPU's minute, in milliseconds. `CLAIMS` has the categories by priority, and the time that each claims;
a category gets that, or the rest that those before it left. `waste_sql` makes the query: for the collector's
rollup, for hours that are not rolled up (`view_sql`: the view `waste` has both), and for the spans of alerts
(`spent_sql`). All reports, pages and messages take their dollars from these. docs/money.md explains it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.diagnosis import INPUT_BOUND, Bottleneck
from gpuwarden.idleness import CONTEXT_BYTES, HELD_BYTES
from gpuwarden.metrics import Type
from gpuwarden.query import timestamp_sql
from gpuwarden.rollups import IDLE_BELOW_PERCENT, Rollup
from gpuwarden.table import GPU, GPU_UUID, NODE, SIMULATED, Column, Table

CATEGORIES: dict[str, str] = {
    "productive": "A kernel ran, and the diagnosis found that it did work.",
    "busy": "A kernel ran, and no diagnosis says whether it did work.",
    "gaps": "In use, between kernels: the rest of a minute in which a kernel ran.",
    "starved": "The GPU waits for data, by the diagnosis: the share in which no kernel ran.",
    "throttled": "Time lost to clocks that heat or the power supply held down.",
    "idle_held": "Nothing ran in the minute, and a process held the GPU.",
    "allocated_idle": "Nothing ran in the minute and no process held the GPU, but a scheduler had allocated it.",
    "free": "Nothing ran in the minute, no process held the GPU, and it was not allocated.",
    "hung": "A job hung while it held the GPU, by an alert of gpu_hung.",
    "lost": "The GPU, its driver or its node was lost.",
    "unknown": "No samples, or samples without utilization.",
}
"""Meaning of each label."""
TITLES = {"busy": "busy, not judged", "gaps": "in use, between kernels"}
"""Titles that differ from the category."""
NO_WASTE = ("productive", "busy", "gaps", "unknown")
"""Categories that do not count as waste."""

WHOLE_FROM_S = 45
"""A minute with this many seconds of samples counts as a whole; with fewer, the rest is unknown."""
FORGOTTEN_AFTER_DAYS = 3
"""A GPU is expected for this long after its last sample, unless it left or the prices file has another time."""
HEALTHY_STALL = 0.05
"""Share of the time that a good training loop also waits for input."""
SPARSE_MAX_MINUTES = 15
"""In a log with less than one reading per minute, a reading holds until the next, at most this long."""
DIAGNOSED_OVER_S = 120
"""A diagnosis also covers the window before it that was measured."""
DIAGNOSIS_KEPT_S = 600
"""An open diagnosis that is not refreshed for this long has expired."""
COUNTED_MINUTES = 5
"""Counts time that is not rolled up yet in steps of this length, so that queries within a step give the same answer."""
FIRST_MINUTES = 15
"""The first minutes of a store are counted one by one: a new user need not wait for a step."""
RUN_DAYS_MAX = 30
"""How far back the begin of an alert's condition is searched."""
FRESH_HOURS = 3
"""The view `waste` computes at most this many past hours that are not rolled up."""

LOST_RULES = ("gpu_lost", "driver_down", "node_down")
HUNG_RULES = ("gpu_hung",)
CAUSES = {
    rule: cause for cause, rules in (("lost", LOST_RULES), ("hung", HUNG_RULES)) for rule in rules
}
"""Category by rule, for rules whose alerts decide the category."""
COSTS: dict[str, tuple[str, ...]] = {
    # Time becomes `lost` when the alert fires; before that it is unknown.
    **dict.fromkeys(LOST_RULES, ("lost", "unknown")),
    **dict.fromkeys(HUNG_RULES, tuple(CATEGORIES)),
    "gpu_data_loader_bound": ("starved",),
    "gpu_idle_held": ("idle_held",),
    "gpu_allocated_idle": ("allocated_idle",),
    "gpu_idle_free": ("free",),
}
"""Categories by rule: the rule's alerts cost the time of their GPU with these categories, from their begin."""
WORKS = frozenset(Bottleneck) - {
    Bottleneck.UNKNOWN,
    Bottleneck.HUNG_BLOCKED,
    Bottleneck.HUNG_SPIN,
    Bottleneck.IDLE_FREE,
    Bottleneck.IDLE_HELD,
    Bottleneck.NOT_WORKING,
    Bottleneck.WAITS_FOR_PEER,
}
"""Classes of GPUs whose kernels do work, even if only a few run."""

CLAIMS: tuple[tuple[str, str], ...] = (
    ("lost", "gone_ms"),
    ("hung", "seen_ms * hung_share"),
    ("unknown", "60000 - seen_ms - gone_ms + unknown_share * moving_ms"),
    ("idle", "idle_share * moving_ms * (1 - starved_share)"),
    ("throttled", "throttled_share * moving_ms"),
    ("starved", "(idle_share + busy_share) * stall * moving_ms * starved_share"),
    ("waiting", "waiting_share * moving_ms * (1 - starved_share)"),
)
"""The milliseconds of a minute that each claims, by priority. A kernel ran in the rest, which is `productive` if
the diagnosis judged it, else `busy`. `idle` is `gaps` in a minute in which a kernel ran, as is `waiting`, the part of
the busy time without a kernel; in others the holder of the GPU decides its category."""

_TEXT = Type.STRING
_BY = (
    NODE,
    GPU_UUID,
    Column("category", _TEXT, "Category of the time, see docs/money.md.", required=True),
    Column("username", _TEXT, "Who held the GPU, else whose job it was given to."),
    Column(
        "job",
        _TEXT,
        "Job that held it, else that it was given to: Slurm job's id, or Kubernetes namespace/pod.",
    ),
    Column("pod", _TEXT, "Kubernetes namespace/pod of that job."),
    Column(
        "split_by",
        _TEXT,
        "How the time of a GPU that several had was divided: sm, by SM utilization of their processes; memory, by "
        "GPU memory; even; mig, by the slices of its MIG devices. NULL: one had it.",
    ),
)
_TABLE = Table(
    "waste_1h",
    "GPU, hour, category and owner",
    (*(column.name for column in _BY), "ts"),
    (
        Column("ts", Type.TIMESTAMP, "Start of the hour, UTC.", required=True),
        *_BY,
        GPU,
        Column("model", _TEXT, "Name as the driver gives it."),
        Column("team", _TEXT, "Team that the pod's labels name, else label `team` of the node."),
        SIMULATED,
        Column("seconds", Type.FLOAT64, "Time with that category and owner.", required=True),
        Column("usd", Type.FLOAT64, "Cost at the price that held at the time; NULL: no price."),
        Column("energy_kwh", Type.FLOAT64, "Energy that the GPU took in it."),
        Column(
            "energy_usd",
            Type.FLOAT64,
            "That energy, with PUE, at the price of a kWh; the price of the GPU has it in it already.",
        ),
        Column("co2_kg", Type.FLOAT64, "Carbon dioxide of that energy, with PUE."),
    ),
)
WASTE_1H = Rollup(_TABLE, tuple(c.name for c in _BY), 3600, (), made_of="gpu_1m")


@dataclass(frozen=True, slots=True)
class WasteScope:
    """The rows of a query: minutes that start from `begin` to before `end`, naive UTC or SQL."""

    begin: datetime | str
    end: datetime | str
    nodes: str = "true"
    """A condition on `node`."""
    chosen: str = "true"
    """A condition on `node` and the hour `ts` of the result."""
    by_minute: bool = False
    """Whether `ts` is the minute; else the hour."""
    not_before: str | None = None
    """SQL of a lower bound of `begin`, for queries that need a constant one."""

    @property
    def begin_sql(self) -> str:
        """SQL of `begin`."""
        return self.begin if isinstance(self.begin, str) else timestamp_sql(self.begin)

    @property
    def end_sql(self) -> str:
        """SQL of `end`."""
        return self.end if isinstance(self.end, str) else timestamp_sql(self.end)

    @property
    def when(self) -> str:
        """A condition on `ts`."""
        return self.since("0 SECOND")

    def since(self, earlier: str) -> str:
        """As `when`, with this much time before it."""
        begins = [at for at in (self.not_before, self.begin_sql) if at]
        lower = " AND ".join(f"ts >= {at} - INTERVAL {earlier}" for at in begins)
        return f"{lower} AND ts < {self.end_sql}"


def waste_sql(scope: WasteScope) -> str:
    """SELECT of rows as in `waste_1h`."""
    ctes = {
        "slots": f"SELECT unnest(range({scope.begin_sql}, {scope.end_sql}, INTERVAL 1 MINUTE)) AS ts",
        "devices": _DEVICES,
        "parts": _PARTS,
        "read": _read_sql(scope, "IS NULL"),
        "seen": _seen_sql(scope, "read"),
        "read_mig": _read_sql(scope, "IS NOT NULL"),
        "seen_mig": _seen_sql(scope, "read_mig"),
        "cut": _CUT,
        "units": _units_sql(),
        "known": "SELECT gpu_uuid, node, s.ts FROM devices d JOIN slots s "
        "ON s.ts >= d.known_from AND s.ts < d.known_until "
        f"WHERE {scope.nodes} "
        "AND (unbilled_until IS NULL OR s.ts < unbilled_from OR s.ts >= unbilled_until)",
        "up": "SELECT DISTINCT node, ts FROM seen UNION "
        f"SELECT node, ts FROM host_1m WHERE {scope.when} AND samples > 0",
        "processes": _processes_sql(scope),
        "holders": "SELECT unit, ts, count(*) AS processes, "
        f"any_value({_struct(_OWNER)}) AS holder FROM processes GROUP BY unit, ts",
        "held": _held_sql(),
        "given": _given_sql(scope),
        "shares": _shares_sql(),
        "causes": _causes_sql(scope),
        "judged": _judged_sql(scope),
        "grid": _grid_sql(),
        "claimed": _claimed_sql(),
        "hours": _hours_sql(scope),
    }
    named = ", ".join(f"{name} AS ({sql})" for name, sql in ctes.items())
    return f"WITH {named} {_rows_sql(scope)}"


_HAS_LEFT = "n.unbilled_from IS NOT NULL AND n.unbilled_until IS NULL"
_DEVICES = (
    "SELECT gpu_uuid, g.node AS node, gpu, model, g.simulated AS simulated, usd_per_hour, usd_per_kwh, "
    "co2_g_per_kwh, sm_clock_max_mhz, date_trunc('minute', g.first_seen_at) AS known_from, "
    "CASE WHEN replaced_by IS NOT NULL THEN g.last_seen_at "
    f"WHEN {_HAS_LEFT} THEN n.unbilled_from "
    f"ELSE g.last_seen_at + to_seconds(coalesce(billed_silent_s, {FORGOTTEN_AFTER_DAYS * 86_400})) "
    "END AS known_until, "
    "n.unbilled_from AS unbilled_from, n.unbilled_until AS unbilled_until "
    "FROM gpus g LEFT JOIN nodes n ON n.node = g.node "
    "WHERE mig_instance IS NULL AND parent_gpu_uuid IS NULL"
)
"""GPUs, and the time in which they are expected; GPUs of a node that left are not expected after that."""


_SEEN = (
    *("ts", "node", "gpu_uuid", "gpu", "simulated", "samples"),
    *("idle_seconds", "busy_seconds", "unknown_seconds", "util_percent_avg"),
    *("memory_used_bytes_max", "power_watts_avg", "energy_joules_delta", "sm_clock_mhz_avg"),
    *("sw_thermal_seconds_delta", "hw_thermal_seconds_delta", "hw_power_brake_seconds_delta"),
    *("reason_hardware_slowdown_seconds", "reason_software_thermal_slowdown_seconds"),
    *("reason_hardware_thermal_slowdown_seconds", "reason_hardware_power_brake_seconds"),
    *("graphics_active_percent_avg", "mig_instance"),
)
"""Columns of gpu_1m that are read."""
_OF_PART = (
    *("samples", "idle_seconds", "busy_seconds", "unknown_seconds", "util_percent_avg"),
    *("memory_used_bytes_max", "graphics_active_percent_avg", "mig_instance", "read_at"),
)
"""Columns that a MIG device has of its own; the others are its board's."""
_REST_S = "coalesce(b.idle_seconds + b.busy_seconds + b.unknown_seconds, c.seconds)"
_OF_REST: dict[str, str] = {
    "samples": "coalesce(b.samples, c.samples)",
    "idle_seconds": f"if(is_whole, {_REST_S}, 0)",
    "unknown_seconds": f"if(is_whole, 0, {_REST_S})",
    "busy_seconds": "0",
    **dict.fromkeys(
        ("util_percent_avg", "memory_used_bytes_max", "graphics_active_percent_avg"),
        "if(is_whole, 0, NULL)",
    ),
    "mig_instance": "NULL",
    "read_at": "c.read_at",
}
"""Readings of the slices of a board that belong to no MIG device: zero where every MIG device of the board had samples."""
_PARTS = (
    "SELECT *, if(count(slices) OVER (PARTITION BY whole) = count(*) OVER (PARTITION BY whole), slices, NULL) AS size "
    "FROM (SELECT p.gpu_uuid AS part, p.parent_gpu_uuid AS whole, p.first_seen_at AS came_at, p.last_seen_at AS left_at, "
    # "MIG 2g.20gb" has two slices; "MIG 1c.2g.20gb" is a compute instance with one of them.
    # Partitions of an AMD GPU are equal, and have all of it.
    r"if(p.vendor = 'amd', 1, try_cast(coalesce(nullif(regexp_extract(p.model, 'MIG (\d+)c\.', 1), ''), "
    r"regexp_extract(p.model, 'MIG (\d+)g\.', 1)) AS INTEGER)) AS slices, "
    "if(p.vendor = 'amd', 1, if(regexp_matches(coalesce(b.model, ''), 'A30|RTX PRO'), 4, 7)) AS all_slices "
    "FROM gpus p LEFT JOIN gpus b ON b.gpu_uuid = p.parent_gpu_uuid WHERE p.parent_gpu_uuid IS NOT NULL)"
)
"""MIG devices, their boards, and their compute slices; NULL: that of one of the board's devices is unknown. Source of
the boards' slices: NVIDIA's MIG user guide, supported profiles."""
_CUT = (
    "SELECT whole, part, ts, until - size AS since, until, greatest(all_slices, sum(size) OVER (PARTITION BY whole, ts)) "
    "AS all_slices, samples, read_at, coalesce(idle_seconds, 0) + coalesce(busy_seconds, 0) + "
    "coalesce(unknown_seconds, 0) AS seconds, node FROM (SELECT *, "
    "sum(size) OVER (PARTITION BY whole, ts ORDER BY part ROWS UNBOUNDED PRECEDING) AS until "
    "FROM seen_mig LEFT JOIN parts ON part = gpu_uuid "
    "QUALIFY count(*) FILTER (size IS NULL) OVER (PARTITION BY node, gpu, ts) = 0)"
)
"""MIG devices with samples by minute; each has the slices from `since` to `until` of its board. A board of which
one device is not in the inventory, or has no known size, is counted whole."""
_SEEN_SECONDS = ("idle_seconds", "busy_seconds", "unknown_seconds")


def _read_sql(scope: WasteScope, mig_instance: str) -> str:
    """Minutes with samples, one per GPU (or MIG device) and minute, even if the GPU moved to another node."""
    theirs = scope.nodes
    if theirs != "true":
        theirs = f"({theirs} OR gpu_uuid IN (SELECT gpu_uuid FROM devices WHERE {scope.nodes}))"
    return (
        f"SELECT {', '.join(_SEEN)} FROM gpu_1m "
        f"WHERE {scope.since(f'{SPARSE_MAX_MINUTES} MINUTE')} "
        f"AND mig_instance {mig_instance} AND samples > 0 AND (samples = 1 OR {scope.when}) AND {theirs} "
        "QUALIFY row_number() OVER (PARTITION BY gpu_uuid, ts ORDER BY samples DESC, node) = 1"
    )


def _seen_sql(scope: WasteScope, read: str) -> str:
    """Minutes with readings. In a log with less than one reading per minute (minutes around it have one
    sample each) a reading holds for as many minutes as lie between it and the one before."""
    plain = ", ".join(_SEEN)
    to_next = "date_diff('minute', ts, next_at)"
    stands = (
        f"CASE WHEN next_at IS NULL OR is_next_alone THEN least(coalesce(pace, {to_next}, 1), "
        f"coalesce({to_next}, {SPARSE_MAX_MINUTES}), {SPARSE_MAX_MINUTES}) ELSE 1 END"
    )
    alone = (
        "SELECT * FROM (SELECT *, lead(ts) OVER w AS next_at, lead(samples) OVER w = 1 AS is_next_alone, "
        "if(lag(samples) OVER w = 1, date_diff('minute', lag(ts) OVER w, ts), NULL) AS pace "
        f"FROM {read} WHERE gpu_uuid IN (SELECT gpu_uuid FROM {read} WHERE samples = 1) "
        "WINDOW w AS (PARTITION BY gpu_uuid ORDER BY ts)) WHERE samples = 1"
    )
    known = " + ".join(f"coalesce({name}, 0)" for name in _SEEN_SECONDS)
    made = {
        "ts": "ts + to_minutes(m)",
        "energy_joules_delta": "energy_joules_delta / stands",
        # A single reading counts by its share of a minute, independent of the rollup's seconds.
        **{
            name: f"if(stands > 1, 60 * {name} / nullif({known}, 0), {name})"
            for name in _SEEN_SECONDS
        },
    }
    filled = ", ".join(f"{made.get(name, name)} AS {name}" for name in _SEEN)
    return (
        f"SELECT {plain}, ts AS read_at FROM {read} WHERE samples > 1 UNION ALL "
        f"SELECT * FROM (SELECT {filled}, r.ts AS read_at FROM (SELECT *, unnest(range(stands)) AS m "
        f"FROM (SELECT *, {stands} AS stands FROM ({alone}))) r) WHERE {scope.when}"
    )


_OWNER = ("username", "job", "pod")
MPS_SERVER = "nvidia-cuda-mps-server"
"""Holds a context for its clients, and gets no share beside them."""


def _struct(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"'{name}': {name}" for name in names) + "}"


def _units_sql() -> str:
    """Minutes of what can be held: a whole GPU, a MIG device, and the slices of a board that no MIG device has.

    Each has the part of its GPU from `unit_lo` to `unit_hi`, of 1.
    """
    columns = (*_SEEN, "read_at")
    device = ", ".join(
        {"gpu_uuid": "c.whole", "ts": "c.ts", "node": "c.node"}.get(name)
        or (f"p.{name}" if name in _OF_PART else f"coalesce(b.{name}, p.{name})")
        for name in columns
    )
    rest = ", ".join(
        {"gpu_uuid": "c.whole", "ts": "c.ts", "node": "c.node"}.get(name)
        or _OF_REST.get(name, f"b.{name}")
        for name in columns
    )
    board = "LEFT JOIN seen b ON b.gpu_uuid = c.whole AND b.ts = c.ts"
    left = (
        "SELECT whole, ts, max(until) AS until, any_value(all_slices) AS all_slices, max(samples) AS samples, "
        "max(seconds) AS seconds, any_value(node) AS node, any_value(read_at) AS read_at, count(*) >= "
        "(SELECT count(*) FROM parts p WHERE p.whole = cut.whole AND came_at <= cut.ts AND left_at > cut.ts) AS is_whole "
        "FROM cut GROUP BY whole, ts"
    )
    return (
        f"SELECT {', '.join(columns)}, gpu_uuid AS unit, 0 AS unit_lo, 1 AS unit_hi FROM seen "
        "ANTI JOIN (SELECT whole AS gpu_uuid, ts FROM cut) USING (gpu_uuid, ts) UNION ALL "
        f"SELECT {device}, c.part, c.since / c.all_slices, c.until / c.all_slices FROM cut c "
        f"JOIN seen_mig p ON p.gpu_uuid = c.part AND p.ts = c.ts {board} UNION ALL "
        f"SELECT {rest}, c.whole, c.until / c.all_slices, 1 FROM ({left}) c {board} WHERE c.until < c.all_slices"
    )


_UNIT = (
    "LEFT JOIN parts ON part = gpu_uuid LEFT JOIN "
    "(SELECT DISTINCT part AS shown, read_at AS shown_at FROM cut) ON shown = gpu_uuid AND shown_at = {at}"
)
"""Joins for `_UNIT_NAME`."""
_UNIT_NAME = "CASE WHEN shown IS NULL THEN coalesce(whole, gpu_uuid) ELSE gpu_uuid END AS unit"
"""A MIG device that is counted by itself, else its board."""


_WEIGHT_MAX = 10**16
"""Of a process in a minute: above memory in bytes times its samples."""


def _processes_sql(scope: WasteScope) -> str:
    """Processes of each GPU by minute. Weights are integers, whose sums do not depend on the order of rows. What a node
    sends may be absurd: a weight has a limit, so that it is one number among others."""

    def whole(weighed: str) -> str:
        return f"round(greatest(0, least({weighed}, {_WEIGHT_MAX})))::BIGINT"

    weight = f"if(process_name = '{MPS_SERVER}', 0, samples)"
    return (
        f"SELECT {', '.join(_OWNER)}, ts, {_UNIT_NAME}, "
        f"{whole(f'1000 * coalesce(sm_util_percent_avg, 0) * {weight}')} AS sm, "
        f"{whole(f'coalesce(gpu_memory_bytes_avg, gpu_memory_bytes_max, 0) * {weight}')} AS memory, "
        f"if({weight} > 0, 1, 0) AS clients FROM process_1m {_UNIT.format(at='ts')} "
        f"WHERE {scope.since(f'{SPARSE_MAX_MINUTES} MINUTE')} AND (samples = 1 OR {scope.when}) "
        f"AND {scope.nodes} AND process_type IS DISTINCT FROM 'graphics'"
    )


def _held_sql() -> str:
    """Holders of each GPU by minute; each has the part of the minute from `lo` to `hi`, of 1."""
    owner = ", ".join(_OWNER)
    owners = (
        f"SELECT unit, ts, {owner}, sum(sm) AS sm, sum(memory) AS memory, max(clients) AS clients FROM processes "
        "SEMI JOIN (SELECT unit, ts FROM holders WHERE processes > 1) USING (unit, ts) GROUP BY ALL"
    )
    totals = (
        "SELECT *, count(*) OVER minute AS all_owners, sum(sm) OVER minute AS all_sm, "
        f"sum(memory) OVER minute AS all_memory, sum(clients) OVER minute AS all_clients FROM ({owners}) WINDOW minute AS (PARTITION BY unit, ts)"
    )
    weights = (
        "SELECT *, CASE WHEN all_owners = 1 THEN NULL WHEN all_sm > 0 THEN 'sm' "
        "WHEN all_memory > 0 THEN 'memory' ELSE 'even' END AS split_by, "
        "CASE WHEN split_by = 'sm' THEN sm WHEN split_by = 'memory' THEN memory WHEN all_clients > 0 THEN clients "
        "ELSE 1 END AS weight, CASE WHEN split_by = 'sm' THEN all_sm WHEN split_by = 'memory' THEN all_memory "
        "WHEN all_clients > 0 THEN all_clients ELSE all_owners END AS all_weight "
        f"FROM ({totals})"
    )
    limits = (
        f"SELECT *, sum(weight) OVER (PARTITION BY unit, ts ORDER BY {owner} ROWS UNBOUNDED PRECEDING) "
        f"AS until FROM ({weights})"
    )
    return (
        "SELECT unit, ts, holder, NULL AS split_by, 0 AS lo, 1 AS hi FROM holders WHERE processes = 1 UNION ALL "
        f"SELECT unit, ts, {_struct(_OWNER)}, split_by, (until - weight) / all_weight, until / all_weight "
        f"FROM ({limits}) WHERE weight > 0"
    )


def _given_sql(scope: WasteScope) -> str:
    """Jobs to which a scheduler had allocated each GPU, by minute, the newest first."""
    owner = _struct((*_OWNER, "team"))
    minute = "date_trunc('minute', ts)"
    jobs = (
        f"SELECT {_UNIT_NAME}, date_trunc('minute', ts) AS minute, "
        f"{owner} AS receiver, max(a.ts) AS newest, bool_or(processes > 0) AS has_process "
        f"FROM allocation_samples a {_UNIT.format(at=minute)} "
        f"WHERE {scope.when} AND {scope.nodes} GROUP BY ALL"
    )
    own = (
        "SELECT unit, minute AS ts, list(receiver ORDER BY newest DESC, receiver DESC) AS receivers, "
        f"bool_or(has_process) AS has_process FROM ({jobs}) GROUP BY ALL"
    )
    # A board that is given out whole is given out with its MIG devices.
    return (
        f"WITH own AS ({own}) SELECT * FROM own UNION ALL "
        "SELECT DISTINCT ON (part, own.ts) part, own.ts, receivers, false "
        "FROM cut JOIN own ON unit = whole AND own.ts = read_at "
        "ANTI JOIN own AS theirs ON theirs.unit = part AND theirs.ts = read_at"
    )


def _shares_sql() -> str:
    """Who had each GPU by minute: its holders, else the jobs that it was given to, where they are several."""
    return (
        "SELECT *, NULL AS receiver_at FROM held UNION ALL "
        "SELECT unit, ts, NULL, 'even', (n - 1) / jobs, n / jobs, n FROM (SELECT unit, ts, "
        "len(receivers) AS jobs, unnest(range(1, len(receivers) + 1)) AS n "
        "FROM given ANTI JOIN held USING (unit, ts) WHERE len(receivers) > 1)"
    )


def _causes_sql(scope: WasteScope) -> str:
    """Milliseconds of each minute with an alert that decides the category, by GPU or node."""
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
        f"AND began_at < {scope.end_sql} GROUP BY ALL"
    )


def _judged_sql(scope: WasteScope) -> str:
    """Milliseconds of each GPU's minute with a diagnosis, and those in which the GPU waited for data."""
    fed, works = (
        ", ".join(f"'{one}'" for one in sorted(classes)) for classes in (INPUT_BOUND, WORKS)
    )
    episodes = (
        "SELECT subject AS gpu_uuid, bottleneck, "
        f"greatest(began_at - INTERVAL {DIAGNOSED_OVER_S} SECOND, lag(until) OVER "
        "(PARTITION BY subject ORDER BY began_at)) AS since, until FROM (SELECT *, "
        f"coalesce(ended_at, seen_at + INTERVAL {DIAGNOSIS_KEPT_S} SECOND) AS until "
        f"FROM diagnoses WHERE kind = 'gpu') WHERE began_at < {scope.end_sql} + INTERVAL 2 MINUTE "
        f"AND until > {scope.begin_sql} - INTERVAL 1 HOUR"
    )
    slots = (
        "SELECT *, unnest(range("
        f"greatest(date_trunc('minute', since), {scope.begin_sql}), least(until, {scope.end_sql}), "
        f"INTERVAL 1 MINUTE)) AS ts FROM ({episodes})"
    )
    held = (
        "date_diff('ms', greatest(since, ts), "
        "greatest(greatest(since, ts), least(until, ts + INTERVAL 1 MINUTE)))"
    )
    return (
        f"SELECT gpu_uuid, ts, least(60000, coalesce(sum({held}) FILTER (bottleneck IN ({fed})), 0))::BIGINT AS fed_ms, "
        f"least(60000, coalesce(sum({held}) FILTER (bottleneck IN ({works})), 0))::BIGINT AS works_ms "
        f"FROM ({slots}) GROUP BY ALL"
    )


_THROTTLED = (
    "coalesce(greatest(sw_thermal_seconds_delta, hw_thermal_seconds_delta, hw_power_brake_seconds_delta), "
    "greatest(reason_hardware_slowdown_seconds, reason_software_thermal_slowdown_seconds, "
    "reason_hardware_thermal_slowdown_seconds, reason_hardware_power_brake_seconds), 0)"
)


def _grid_sql() -> str:
    """Every minute of every known GPU, with its holder and its state."""
    causes = " ".join(
        f"LEFT JOIN (SELECT {key}, ts, max(ms) AS {name} FROM causes WHERE cause = '{cause}' "
        f"AND gpu_uuid IS {'NULL' if key == 'node' else 'NOT NULL'} GROUP BY ALL) USING ({key}, ts)"
        for name, cause, key in (
            ("gpu_lost_ms", "lost", "gpu_uuid"),
            ("node_lost_ms", "lost", "node"),
            ("gpu_hung_ms", "hung", "gpu_uuid"),
        )
    )
    return (
        "SELECT * REPLACE (coalesce(simulated, d_simulated) AS simulated, coalesce(d_gpu, gpu) AS gpu) "
        "FROM (SELECT s.* REPLACE (coalesce(s.node, k.node) AS node, coalesce(s.ts, k.ts) AS ts, "
        "coalesce(s.gpu_uuid, k.gpu_uuid) AS gpu_uuid), coalesce(s.read_at, k.ts) AS held_at "
        "FROM known k FULL JOIN units s ON s.gpu_uuid = k.gpu_uuid AND s.ts = k.ts) "
        "LEFT JOIN (SELECT * EXCLUDE (node) RENAME (simulated AS d_simulated, gpu AS d_gpu) "
        "FROM devices) USING (gpu_uuid) "
        "LEFT JOIN (SELECT *, true AS node_is_up FROM up) USING (node, ts) "
        "LEFT JOIN (SELECT * RENAME (ts AS held_at) FROM shares) USING (unit, held_at) "
        "LEFT JOIN (SELECT * RENAME (ts AS held_at) FROM given) USING (unit, held_at) "
        f"LEFT JOIN judged USING (gpu_uuid, ts) {causes}"
    )


_IS_IDLE = f"graphics_active_percent_avg < {IDLE_BELOW_PERCENT:g}"
_NO_WORK = f"holder IS NULL AND memory_used_bytes_max < {CONTEXT_BYTES}"
_BUSY = "coalesce(busy_seconds, 0)"
_BLIND = "coalesce(unknown_seconds, 0)"
_IS_CUT = "mig_instance IS NOT NULL"
_FACTS: tuple[dict[str, str], ...] = (
    {
        # A MIG device without profiling metrics, process and memory in use does nothing.
        "is_blind_idle": f"coalesce({_IS_IDLE}, {_IS_CUT} AND {_NO_WORK}, false)",
        "is_divided": "coalesce(split_by IS NOT NULL OR unit_lo > 0 OR unit_hi < 1, false)",
        "mine_lo": "if(coalesce(lo, 0) = 0, unit_lo, unit_lo + lo * (unit_hi - unit_lo))",
        "mine_hi": "if(coalesce(hi, 1) = 1, unit_hi, unit_lo + hi * (unit_hi - unit_lo))",
        "receiver": "coalesce(receivers[receiver_at], "
        "list_filter(receivers, lambda one: one.pod = holder.pod OR one.job = holder.job)[1], "
        "if(holder.job IS NULL, receivers[1], NULL))",
    },
    {
        "is_held": "coalesce(holder IS NOT NULL OR has_process "
        f"OR memory_used_bytes_max > {HELD_BYTES}, false)",
        "idle_s": f"coalesce(idle_seconds, 0) + if({_NO_WORK}, {_BUSY}, 0) + if(is_blind_idle, {_BLIND}, 0)",
        "busy_s": f"if({_NO_WORK}, 0, {_BUSY}) + if(NOT {_IS_IDLE}, {_BLIND}, 0)",
        "unknown_s": f"if(graphics_active_percent_avg IS NULL AND NOT is_blind_idle, {_BLIND}, 0)",
        "throttled_s": _THROTTLED,
        "slower": "greatest(0, 1 - sm_clock_mhz_avg / nullif(sm_clock_max_mhz, 0))",
        "util": "least(1, coalesce(util_percent_avg, graphics_active_percent_avg) / 100)",
        "lost_cause_ms": "greatest(coalesce(gpu_lost_ms, 0), coalesce(node_lost_ms, 0))",
        "hung_share": "coalesce(gpu_hung_ms, 0) / 60000",
        "judged_share": "coalesce(works_ms, 0) / 60000",
        "username": "coalesce(holder.username, receiver.username)",
        "job": "coalesce(holder.job, receiver.job)",
        "pod": "coalesce(holder.pod, receiver.pod)",
        "pod_team": "if(coalesce(holder.pod, receiver.pod) = receiver.pod, receiver.team, NULL)",
    },
    {
        "total_s": "(idle_s + busy_s + unknown_s)::DOUBLE",
        "starved_share": "if(is_held, coalesce(fed_ms, 0) / 60000, 0)",
        "idle_category": "CASE WHEN busy_s > 0 THEN 'gaps' WHEN is_held THEN 'idle_held' "
        "WHEN receiver IS NOT NULL THEN 'allocated_idle' ELSE 'free' END",
        "stall": f"greatest(0, 1 - coalesce(util, 1) - {HEALTHY_STALL})",
    },
    {
        "seen_ms": f"if(total_s >= {WHOLE_FROM_S}, 60000, round(1000 * total_s))::BIGINT",
        "idle_share": "coalesce(idle_s / nullif(total_s, 0), 0)",
        "busy_share": "coalesce(busy_s / nullif(total_s, 0), 0)",
        "unknown_share": "coalesce(unknown_s / nullif(total_s, 0), 0)",
    },
    {
        "gone_ms": "CASE WHEN seen_ms = 0 AND node_is_up THEN 60000 ELSE least(60000 - seen_ms, lost_cause_ms) END",
        "moving_ms": "seen_ms * (1 - hung_share)",
        # Share with a kernel, from utilization; without it all busy time.
        "kernel_share": "least(busy_share, coalesce(util * (idle_share + busy_share), busy_share))",
        "kwh": "coalesce(energy_joules_delta, power_watts_avg * seen_ms / 1000) / 3.6e6",
    },
    {
        "throttled_share": "coalesce(least(throttled_s / nullif(total_s, 0), kernel_share * slower), 0)",
        "waiting_share": f"greatest(0, busy_share * (1 - {HEALTHY_STALL}) - kernel_share)",
    },
)
"""Values of a minute, each step from the ones before. Seconds and shares refer to the time with samples. (Within
a step DuckDB copies the expression of a name to each use.)"""


def _claimed_sql() -> str:
    """Each category's milliseconds of each minute: its claim, or the rest."""
    names = [name for name, _ in CLAIMS]
    asked = ", ".join(
        f"greatest(0, round({claim}))::BIGINT AS {name}_asked" for name, claim in CLAIMS
    )
    until = ", ".join(
        f"least(60000, {' + '.join(f'{n}_asked' for n in names[: number + 1])}) AS until_{name}"
        for number, name in enumerate(names)
    )
    last = names[-1]
    # What is rounded are the limits within the minute, so that parts add up to it.
    limits = [*names, "productive", "busy"]
    mine = ", ".join(
        f"if(is_divided, round(mine_ms * until_{name} / 60000)::BIGINT, until_{name}) AS mine_{name}"
        for name in limits
    )
    taken = ", ".join(
        f"mine_{name} - {f'mine_{before}' if before else 0} AS {name}_ms"
        for before, name in zip(["", *limits], limits, strict=False)
    )
    work = (
        f"until_{last} + round(judged_share * (60000 - until_{last}))::BIGINT AS until_productive, "
        "60000 AS until_busy, round(mine_hi * 60000)::BIGINT - round(mine_lo * 60000)::BIGINT AS mine_ms"
    )
    steps = [
        *(", ".join(f"{sql} AS {name}" for name, sql in step.items()) for step in _FACTS),
        asked,
        until,
        work,
        mine,
        taken,
    ]
    sql = "SELECT * FROM grid"
    for step in steps:
        sql = f"SELECT *, {step} FROM ({sql})"
    return f"SELECT * REPLACE (coalesce(split_by, if(is_divided, 'mig', NULL)) AS split_by) FROM ({sql})"


_IDLE = ("gaps", "idle_held", "allocated_idle", "free")


def _hours_sql(scope: WasteScope) -> str:
    sums = []
    for category in CATEGORIES:
        column, condition = f"{category}_ms", ""
        if category in _IDLE:
            column, condition = "idle_ms", f" FILTER (idle_category = '{category}')"
        parts = [(column, condition)]
        if category == "gaps":
            parts.append(("waiting_ms", ""))
        ms = [f"coalesce(sum({column}){condition}, 0)" for column, condition in parts]
        sums.append(f"({' + '.join(ms)})::BIGINT AS {category}")
        # A counter's increase over a gap includes the time without samples. A minute without power has
        # no energy: NULL, not 0.
        energy = " + ".join(
            f"if({column} > 0 AND {'true' if not condition else condition[9:-1]}, {column}, 0)"
            for column, condition in parts
        )
        sums.append(
            f"sum(kwh * nullif({energy}, 0) / nullif(60000 - until_lost, 0)) AS {category}_kwh"
            if category != "lost"
            else "NULL AS lost_kwh"
        )
    window = "minute" if scope.by_minute else "hour"
    return (
        f"SELECT date_trunc('{window}', ts) AS ts, node, gpu_uuid, username, job, pod, split_by, "
        "any_value(pod_team) AS pod_team, any_value(gpu) AS gpu, any_value(model) AS model, bool_or(simulated) AS simulated, "
        "any_value(usd_per_hour) AS price, any_value(usd_per_kwh) AS tariff, "
        f"any_value(co2_g_per_kwh) AS carbon, {', '.join(sums)} "
        f"FROM claimed WHERE {scope.nodes} GROUP BY 1, 2, 3, 4, 5, 6, 7"
    )


def _rows_sql(scope: WasteScope) -> str:
    values = ", ".join(
        f"{{'category': '{category}', 'ms': {category}, 'kwh': {category}_kwh::DOUBLE}}"
        for category in CATEGORIES
    )
    return (
        "SELECT ts, node, gpu_uuid, v.category AS category, username, job, pod, split_by, gpu, model, "
        "coalesce(pod_team, n.labels['team']) AS team, h.simulated AS simulated, "
        "v.ms / 1000 AS seconds, v.ms / 3.6e6 * price AS usd, v.kwh AS energy_kwh, "
        "v.kwh * tariff AS energy_usd, v.kwh * carbon / 1000 AS co2_kg "
        f"FROM (SELECT *, unnest([{values}]) AS v FROM hours WHERE {scope.chosen}) h "
        "LEFT JOIN nodes n USING (node) "
        "WHERE v.ms > 0"
    )


_OLDEST = f"(date_trunc('hour', now()::TIMESTAMP) - INTERVAL {FRESH_HOURS} HOUR)"

_ROLLED = f"SELECT max(ts) + INTERVAL 1 HOUR FROM waste_1h WHERE ts >= {_OLDEST}"


def bounds_sql() -> str:
    """SELECT of `begin_at`, the end of the rolled-up hours, `end_at`, the end of the minutes counted after
    them, in steps, and `closed_at`, the same to the minute. Without new samples the time still advances, some minutes late. `end_at`
    only goes back where older minutes are imported."""
    minutes = " UNION ALL ".join(
        f"SELECT ts FROM {table} WHERE ts >= {_OLDEST}" for table in ("gpu_1m", "host_1m")
    )
    reached = f"greatest(newest + INTERVAL 1 MINUTE, now()::TIMESTAMP - INTERVAL {COUNTED_MINUTES} MINUTE)"
    first = f"date_trunc('minute', least({reached}, oldest + INTERVAL {FIRST_MINUTES} MINUTE))"
    return (
        f"SELECT begin_at, greatest(begin_at, {first}, time_bucket(INTERVAL {COUNTED_MINUTES} MINUTE, {reached})) AS end_at, "
        f"greatest(end_at, date_trunc('minute', {reached})) AS closed_at "
        f"FROM (SELECT coalesce(({_ROLLED}), {_OLDEST}) AS begin_at), "
        f"(SELECT min(ts) AS oldest, max(ts) AS newest FROM ({minutes}))"
    )


_NAMES = ", ".join(column.name for column in _TABLE.columns)


def running_sql(begin: datetime | str, end: datetime | str, nodes: str = "true") -> str:
    """SELECT of rows as in `waste_1h` for the time between `bounds_sql`'s, which is not rolled up. `nodes`: a
    condition on `node`."""
    scope = WasteScope(begin, end, nodes, not_before=_OLDEST)
    return f"SELECT {_NAMES} FROM ({waste_sql(scope)})"


def view_sql(running: str | None = None) -> str:
    """CREATE of the view `waste`: rolled-up hours, and the others, which the query computes. `running`: a table
    with earlier rows of `running_sql` to read instead."""
    if running is None:
        asked = running_sql("(SELECT begin_at FROM bounds)", "(SELECT end_at FROM bounds)")
        hours = f"SELECT {_NAMES} FROM (WITH bounds AS ({bounds_sql()}) {asked})"
    else:
        # `waste_1h` has hours that were rolled up since then.
        hours = f"SELECT {_NAMES} FROM {running} WHERE ts >= coalesce(({_ROLLED}), {_OLDEST})"
    return (
        "-- GPU hours, cost and energy by hour, category and owner, with the current hour.\n"
        "--   is_waste: Whether its category is one of waste.\n"
        "--   gpu_hours: Time with that category and owner.\n"
        f"CREATE OR REPLACE {'' if running is None else 'TEMP '}VIEW waste AS\n"
        "SELECT w.ts, w.category, "
        f"w.category NOT IN ({', '.join(repr(category) for category in NO_WASTE)}) AS is_waste, "
        "w.node, w.gpu, w.gpu_uuid, w.model, "
        "w.username, w.job, w.team, w.split_by, w.simulated, "
        "w.seconds / 3600 AS gpu_hours, w.usd, w.energy_kwh, w.energy_usd, w.co2_kg\n"
        f"FROM (SELECT {_NAMES} FROM waste_1h UNION ALL BY NAME {hours}) w;\n"
    )


_ASKED = (
    "asked AS (SELECT s.key, s.gpu_uuid, s.node, s.categories, date_trunc('minute', s.since) AS since, s.until "
    'FROM (SELECT unnest(from_json($spans, \'[{"key": "VARCHAR", "gpu_uuid": "VARCHAR", '
    '"node": "VARCHAR", "categories": ["VARCHAR"], "since": "TIMESTAMP", "until": "TIMESTAMP"}]\')) AS s))'
)
_IS_THEIRS = "w.ts >= a.since AND if(a.gpu_uuid IS NULL, w.node = a.node, w.gpu_uuid = a.gpu_uuid)"


def spent_sql(begin: datetime, end: datetime) -> str:
    """SELECT of what spans have cost in the minutes from `begin` to before `end` (naive UTC): `key`, `usd`.

    `$spans`: JSON list of objects with `key`, `gpu_uuid` (or null: all of a node), `node`, the `categories`
    that count, `since`, and `until` (or null: it goes on). Spans of whose GPUs nothing is known there are left out.
    """
    nodes = "node IN (SELECT node FROM asked)"
    rows = waste_sql(WasteScope(begin, end, nodes, by_minute=True))
    return _spent(f"({rows})", "w.ts < a.until")


def spent_hours_sql(begin: datetime, end: datetime) -> str:
    """As `spent_sql`, for rolled-up hours; the hours in which a span began and ended do not count."""
    scope = WasteScope(begin, end)
    return _spent(
        f"(SELECT * FROM waste_1h WHERE {scope.when})", "w.ts + INTERVAL 1 HOUR <= a.until"
    )


def _spent(rows: str, is_before_end: str) -> str:
    """`is_before_end`: a condition on rows `w` of spans `a` that end; the minute in which a span ends counts."""
    return (
        f"WITH {_ASKED} SELECT a.key, coalesce(sum(w.usd) FILTER (list_contains(a.categories, w.category)), 0) AS usd "
        f"FROM asked a JOIN {rows} w ON w.node = a.node AND {_IS_THEIRS} AND coalesce({is_before_end}, true) "
        "GROUP BY a.key HAVING count(w.usd) > 0"
    )


def run_begin_sql() -> str:
    """SELECT of `key` and `since`: where the time began that had the categories without a break until then,
    of `$spans` as in `spent_sql`, by the hour; in its first hour they count at its end."""
    return (
        f"WITH {_ASKED}, hours AS (SELECT a.key, a.since, w.ts, "
        "3600 * sum(w.gpu_hours) FILTER (list_contains(a.categories, w.category)) AS theirs, "
        "3600 * sum(w.gpu_hours) AS known FROM asked a JOIN waste w "
        "ON w.gpu_uuid = a.gpu_uuid AND w.ts <= a.since "
        f"AND w.ts > a.since - INTERVAL {RUN_DAYS_MAX} DAY GROUP BY ALL), "
        "ends AS (SELECT key, since, max(ts) FILTER (coalesce(theirs, 0) < 0.95 * known) AS broken_at, "
        f"min(ts) AS first_at FROM hours GROUP BY ALL), "
        "whole AS (SELECT key, min(ts) AS whole_from, count(*) AS hours, max(ts) AS last_at "
        "FROM hours JOIN ends USING (key) WHERE broken_at IS NULL OR ts > broken_at GROUP BY key) "
        # A gap within the run: its begin is unknown, so the rule's begin counts.
        "SELECT e.key, least(e.since, date_trunc('minute', CASE "
        "WHEN hours IS NULL OR date_diff('hour', whole_from, last_at) + 1 <> hours "
        "OR last_at <> date_trunc('hour', e.since) THEN e.since "
        "WHEN broken_at = whole_from - INTERVAL 1 HOUR "
        "AND h.theirs > 0 THEN whole_from - to_milliseconds((1000 * h.theirs)::BIGINT) "
        # The current hour and the first hour of a GPU are incomplete.
        "ELSE whole_from + to_milliseconds((1000 * (if(whole_from = first_at, 3600, f.known) - f.theirs))"
        "::BIGINT) END)) AS since "
        "FROM ends e LEFT JOIN whole w USING (key) "
        "LEFT JOIN hours h ON h.key = e.key AND h.ts = e.broken_at "
        "LEFT JOIN hours f ON f.key = e.key AND f.ts = w.whole_from"
    )
