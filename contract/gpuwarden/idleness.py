"""Says since when each GPU is idle, who holds it and to whom it is allocated: one state for each GPU, advanced minute by minute.

Nothing runs in a minute without utilization, or with less memory in use than any CUDA context, which is an artefact of the
driver. An idle time begins with the end of work that `SETTLED_MINUTES` without work follow. In its first `WINDOW_MINUTES` it
goes on while at most 5 % of the time and three minutes had work, later while at most 15 % and nine minutes of the last
`WINDOW_MINUTES` had. So neither a monitoring tool's poke ends an idle time, nor is a server that works three seconds of every
minute idle.

A time without samples goes on as idle if nothing ran in the minutes before and after it, and the GPU's energy counter grew by
what idling takes: more is work, less is a counter that began anew, as after a reboot. Where the counter is missing or says
otherwise, the idle time begins anew. Up to `GAP_MINUTES` need no counter.

The state is the row of `idle_1m`, wholly: the next minute needs nothing else. Instants are microseconds since 1970.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuwarden.metrics import Type
from gpuwarden.table import GPU, GPU_UUID, MIG, NODE, SIMULATED, Column, Table

MINUTE_US = 60_000_000
WINDOW_MINUTES = 30
SETTLED_MINUTES = 5
GAP_MINUTES = 5
"""Minutes without samples that need no counter, and that an allocation may miss."""
FORGOTTEN_AFTER_MINUTES = 24 * 60
"""A GPU that has been without samples for so long begins anew."""
HELD_BYTES = 500_000_000
"""More memory in use is held, by a process that may not be visible: a CUDA context takes 300 to 500 MB."""
CONTEXT_BYTES = 52_428_800
"""Less than any CUDA context uses: utilization above 0 then comes from the driver."""
_FORGIVEN_AT_FIRST = 90, 3
_FORGIVEN = 270, 9
"""Seconds of work, and minutes with work, within the window."""
_IDLE_POWER = 0.8, 1.1
"""Shares of the power beside a gap, between which that of an idle gap lies."""
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECONDS = {digit: seconds for seconds, digit in enumerate(_DIGITS)} | {".": 0}
_UNKNOWN = "." * WINDOW_MINUTES


class Minute(NamedTuple):
    """What is known of a GPU's minute. Each is NULL where nobody read it."""

    ts: int
    node: str
    gpu_uuid: str
    gpu: int | None
    mig_instance: str | None
    simulated: bool
    work_seconds: int | None
    energy_joules: float | None
    power_watts: float | None
    held_bytes: int | None
    started_at: int | None
    """Start of its oldest process."""
    processes: int | None
    holder_pid: int | None
    holder_process_name: str | None
    holder_username: str | None
    holder_job: str | None
    is_interactive: bool | None
    is_feeding: bool | None
    allocated_job: str | None
    allocated_username: str | None
    allocated_processes: int | None


class Idleness(NamedTuple):
    """The state of a GPU at the end of a minute: a row of `idle_1m`."""

    ts: int
    node: str
    gpu_uuid: str
    gpu: int | None
    mig_instance: str | None
    simulated: bool
    known_until: int
    idle_since: int | None
    quiet_since: int
    gap_seconds: int
    work_seconds: int
    work_minutes: int
    recent_work: str
    energy_joules: float | None
    power_watts: float | None
    held_bytes: int | None
    held_since: int | None
    processes: int | None
    holder_pid: int | None
    holder_process_name: str | None
    holder_username: str | None
    holder_job: str | None
    is_interactive: bool | None
    is_feeding: bool | None
    allocated_since: int | None
    allocated_until: int | None
    allocated_job: str | None
    allocated_username: str | None
    allocated_processes: int | None
    free_since: int | None


# fmt: off
IDLE_1M = Table("idle_1m", "GPU whose utilization is known, and minute", ("node", "gpu_uuid", "ts"), (
    Column("ts", Type.TIMESTAMP, "Start of the minute, UTC.", required=True),
    NODE, GPU_UUID, GPU, MIG, SIMULATED,
    Column("known_until", Type.TIMESTAMP, "End of the last minute whose utilization is known."),
    Column("idle_since", Type.TIMESTAMP, "Begin of the idle time that the GPU is in; NULL: it works, or nobody knows."),
    Column("quiet_since", Type.TIMESTAMP, "End of the last work that no idle time forgives; an idle time begins with it when five minutes without work follow.", required=True),
    Column("gap_seconds", Type.INT64, "Time since quiet_since that has no samples.", required=True),
    Column("work_seconds", Type.INT32, "Time with work in the last 30 minutes.", required=True),
    Column("work_minutes", Type.INT32, "Minutes with work among the last 30.", required=True),
    Column("recent_work", Type.STRING, "Seconds of work in each of the last 30 minutes, the newest last, as one digit of base 62 each (0-9, A-Z, a-z); a dot: unknown.", required=True),
    Column("energy_joules", Type.FLOAT64, "The energy counter at known_until."),
    Column("power_watts", Type.FLOAT32, "Average power of the last minute whose utilization is known."),
    Column("held_bytes", Type.INT64, "Memory in use: the most of what the GPU and what its processes say; NULL: unknown."),
    Column("held_since", Type.TIMESTAMP, "Since when more than 500 MB are held by those who hold them now; NULL: they are not."),
    Column("processes", Type.INT32, "Processes on the GPU; NULL: none is seen."),
    Column("holder_pid", Type.INT64, "Process id of the process with the most memory."),
    Column("holder_process_name", Type.STRING, "Its name."),
    Column("holder_username", Type.STRING, "Its owner."),
    Column("holder_job", Type.STRING, "Its job."),
    Column("is_interactive", Type.BOOL, "Whether a notebook or shell of a person is among the processes."),
    Column("is_feeding", Type.BOOL, "Whether its one process of weight worked at reading and preparing data."),
    Column("allocated_since", Type.TIMESTAMP, "Since when a scheduler has given the GPU to allocated_job; NULL: it has not."),
    Column("allocated_until", Type.TIMESTAMP, "End of the last minute in which a scheduler said so; after five minutes it counts no more."),
    Column("allocated_job", Type.STRING, "Job that the GPU is allocated to."),
    Column("allocated_username", Type.STRING, "Owner of that job."),
    Column("allocated_processes", Type.INT32, "Processes on the GPU as the agent counted them for the scheduler's job; NULL: nobody counted."),
    Column("free_since", Type.TIMESTAMP, "Since when nobody holds the GPU and it is allocated to nobody; NULL: somebody does."),
))
# fmt: on
INSTANTS = tuple(column.name for column in IDLE_1M.columns if column.type is Type.TIMESTAMP)
assert Idleness._fields == IDLE_1M.names


def advance(before: Idleness | None, minute: Minute) -> Idleness | None:
    """Compute the state after a minute from the state before it. None: its utilization was never known."""
    if before is not None and minute.ts - before.ts > FORGOTTEN_AFTER_MINUTES * MINUTE_US:
        before = None
    if before is not None and minute.ts <= before.ts:
        return before
    if before is None and minute.work_seconds is None:
        return None
    end = minute.ts + MINUTE_US
    recent = _recent(before, minute)
    known_until, quiet_since, idle_since, gap_us = _activity(before, minute, recent)
    is_known = minute.work_seconds is not None
    held_since = _held_since(before, minute)
    since, until, job, username, processes = _allocation(before, minute)
    return Idleness(
        minute.ts,
        minute.node,
        minute.gpu_uuid,
        minute.gpu,
        minute.mig_instance,
        minute.simulated,
        known_until,
        idle_since,
        quiet_since,
        gap_us // 1_000_000,
        sum(map(_SECONDS.__getitem__, recent)),
        WINDOW_MINUTES - recent.count("0") - recent.count("."),
        recent,
        minute.energy_joules if is_known or before is None else before.energy_joules,
        minute.power_watts if is_known or before is None else before.power_watts,
        minute.held_bytes,
        held_since,
        minute.processes,
        minute.holder_pid,
        minute.holder_process_name,
        minute.holder_username,
        minute.holder_job,
        minute.is_interactive,
        minute.is_feeding,
        since,
        until,
        job,
        username,
        processes,
        _free_since(before, minute, held_since, since, end),
    )


def _recent(before: Idleness | None, minute: Minute) -> str:
    """The work of the window, a digit a minute."""
    work = minute.work_seconds
    digit = "." if work is None else _DIGITS[min(work, 60)]
    if before is None:
        return _UNKNOWN[1:] + digit
    missed = (minute.ts - before.ts) // MINUTE_US - 1
    if missed:
        return (before.recent_work + "." * min(missed, WINDOW_MINUTES) + digit)[-WINDOW_MINUTES:]
    return before.recent_work[1:] + digit


def _activity(
    before: Idleness | None, minute: Minute, recent: str
) -> tuple[int, int, int | None, int]:
    """`known_until`, `quiet_since`, `idle_since` and the time of the gaps since then."""
    end, work = minute.ts + MINUTE_US, minute.work_seconds
    if before is None:
        return end, end if work else minute.ts, None, 0
    if work is None:
        gap_us = before.gap_seconds * 1_000_000
        return before.known_until, before.quiet_since, before.idle_since, gap_us
    quiet_since, idle_since = before.quiet_since, before.idle_since
    gap_us = before.gap_seconds * 1_000_000
    if minute.ts > before.known_until:
        gap_us += minute.ts - before.known_until
        if not _is_bridged(before, minute):
            quiet_since, idle_since, gap_us = minute.ts, None, 0
    if work and not (idle_since is not None and _is_forgiven(recent, end - idle_since)):
        return end, end, None, 0
    if idle_since is None and end - quiet_since >= SETTLED_MINUTES * MINUTE_US:
        idle_since = quiet_since
    return end, quiet_since, idle_since, gap_us


def _is_forgiven(recent: str, age_us: int) -> bool:
    """Whether an idle time of that age goes on with the work of its window."""
    minutes = age_us // MINUTE_US
    seconds_max, minutes_max = _FORGIVEN
    if minutes < WINDOW_MINUTES:
        recent = recent[-minutes:]
        seconds_max, minutes_max = _FORGIVEN_AT_FIRST
    worked = len(recent) - recent.count("0") - recent.count(".")
    return worked <= minutes_max and sum(map(_SECONDS.__getitem__, recent)) <= seconds_max


def _is_bridged(before: Idleness, minute: Minute) -> bool:
    """Whether nothing ran in the time without samples before a minute."""
    gap_us = minute.ts - before.known_until
    if gap_us <= GAP_MINUTES * MINUTE_US:
        return True
    if minute.work_seconds or before.quiet_since >= before.known_until:
        return False
    counts = before.energy_joules, minute.energy_joules
    powers = before.power_watts, minute.power_watts
    if None in counts or None in powers:
        return False
    # The counter is the last of its minute: between both lies the minute after the gap, too.
    watts = (counts[1] - counts[0]) / ((gap_us + MINUTE_US) / 1e6)  # type: ignore[operator]
    low, high = _IDLE_POWER
    return low * min(powers) <= watts <= high * max(powers)  # type: ignore[type-var,operator]


def _held_since(before: Idleness | None, minute: Minute) -> int | None:
    """Since when those who hold the memory now hold it. Unknown memory changes nothing."""
    if minute.held_bytes is None:
        return before.held_since if before else None
    if minute.held_bytes <= HELD_BYTES:
        return None
    if before is None:
        return minute.ts if minute.started_at is None else minute.started_at
    since = before.held_since
    if since is None:
        return minute.ts if minute.started_at is None else max(minute.started_at, before.ts)
    return since if minute.started_at is None else max(since, minute.started_at)


def _allocation(
    before: Idleness | None, minute: Minute
) -> tuple[int | None, int | None, str | None, str | None, int | None]:
    """Since and until when the GPU is allocated, to which job and user, and the processes that were counted."""
    job = minute.allocated_job
    if job is not None:
        is_same = before is not None and before.allocated_job == job
        since = before.allocated_since if before and is_same else minute.ts
        until = minute.ts + MINUTE_US
        return since, until, job, minute.allocated_username, minute.allocated_processes
    if before is None or before.allocated_until is None:
        return None, None, None, None, None
    if minute.ts - before.allocated_until >= GAP_MINUTES * MINUTE_US:
        return None, None, None, None, None
    return (
        before.allocated_since,
        before.allocated_until,
        before.allocated_job,
        before.allocated_username,
        before.allocated_processes,
    )


def _free_since(
    before: Idleness | None,
    minute: Minute,
    held_since: int | None,
    allocated_since: int | None,
    end: int,
) -> int | None:
    """Since when it is neither held nor allocated. Unknown memory changes nothing, and begins no free time."""
    if held_since is not None or allocated_since is not None:
        return None
    if before is not None and before.free_since is not None:
        return before.free_since
    if minute.held_bytes is None:
        return None
    if before is not None and before.allocated_until is not None and before.held_since is None:
        return min(before.allocated_until, end)
    return minute.ts


def advanced(
    states: Mapping[tuple[str, str], Idleness], minutes: Iterable[Minute]
) -> tuple[list[Idleness], dict[tuple[str, str], Idleness]]:
    """Advance the states of many GPUs, by node and `gpu_uuid`, through minutes in the order of time: the states after each
    minute, and the last of each GPU."""
    last = dict(states)
    rows = []
    for minute in minutes:
        key = minute.node, minute.gpu_uuid
        before = last.get(key)
        after = advance(before, minute)
        if after is not None and after is not before:
            last[key] = after
            rows.append(after)
    return rows, last


def minutes_sql(gpus: str, processes: str, allocations: str) -> str:
    """A SELECT of the columns of `Minute` in the order of time. The names are those of tables or SELECTs in brackets with rows
    of gpu_1m, process_1m and allocation_samples."""
    return _MINUTES.format(gpus=gpus, processes=processes, allocations=allocations)


_MINUTES = f"""
WITH weighed AS (
  SELECT
    node, gpu_uuid, ts, started_at, coalesce(gpu_memory_bytes_max, 0) AS order_bytes, gpu_memory_bytes_max AS bytes,
    {{{{'pid': pid, 'process_name': process_name, 'username': username, 'job': job}}}} AS holder,
    regexp_matches(coalesce(command, process_name), '(?i)ipykernel|jupyter|ipython|rstudio|matlab') AS is_interactive,
    greatest(cpu_percent_avg, main_cpu_percent_avg, pin_cpu_percent_avg, loader_workers_max * loader_cpu_percent_avg) AS cpu,
    cpu >= 10 AND (loader_workers_max >= 1 OR loader_cpu_percent_avg > 0 OR cpu >= 150 OR read_chars_delta >= 60e6) AS feeds,
    -- A context of less than a tenth of the largest is a neighbour's rank.
    coalesce(bytes >= 0.1 * max(bytes) OVER (PARTITION BY node, gpu_uuid, ts), true) AS is_large
  FROM {{processes}}
),
held AS (
  SELECT
    node, gpu_uuid, ts, count(*) AS processes, sum(bytes) AS bytes, min(started_at) AS started_at,
    max_by(holder, order_bytes) AS holder, bool_or(is_interactive) AS is_interactive,
    count_if(is_large) = 1 AND coalesce(bool_or(feeds AND is_large), false) AS is_feeding
  FROM weighed
  GROUP BY node, gpu_uuid, ts
),
allocated AS (
  SELECT
    node, gpu_uuid, date_trunc('minute', ts) AS ts, max({{{{'ts': ts, 'job': job, 'username': username}}}}) AS newest,
    max(processes) AS processes
  FROM {{allocations}}
  GROUP BY ALL
)
SELECT
  epoch_us(g.ts), g.node, g.gpu_uuid, g.gpu, g.mig_instance, g.simulated,
  CASE WHEN g.idle_seconds + g.busy_seconds > 0
    THEN CASE WHEN g.memory_used_bytes_max < {CONTEXT_BYTES} THEN 0 ELSE least(ceil(g.busy_seconds), 60)::INTEGER END END,
  g.energy_joules_total_last, g.power_watts_avg,
  -- Where the GPU does not report the memory in use, a small process says nothing about the rest.
  CASE WHEN g.memory_used_bytes_max IS NOT NULL OR h.bytes > {HELD_BYTES}
    THEN greatest(h.bytes, g.memory_used_bytes_max)::BIGINT END,
  epoch_us(h.started_at), h.processes::INTEGER, h.holder.pid, h.holder.process_name, h.holder.username, h.holder.job,
  h.is_interactive, h.is_feeding, a.newest.job, a.newest.username, a.processes
FROM {{gpus}} g
LEFT JOIN held h ON h.node = g.node AND h.gpu_uuid = g.gpu_uuid AND h.ts = g.ts
LEFT JOIN allocated a ON a.node = g.node AND a.gpu_uuid = g.gpu_uuid AND a.ts = g.ts
ORDER BY 1, 2, 3, 7, 8, 10
"""
