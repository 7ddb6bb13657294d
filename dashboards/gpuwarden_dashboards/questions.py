"""Questions that people ask of a fleet, as SQL that runs as it stands."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its query."""

    title: str
    sql: str


QUESTIONS: Sequence[Question] = (
    Question(
        "every GPU now",
        """SELECT node, gpu, model, util_percent, power_watts, temperature_celsius,
    memory_used_bytes / 1024^3 AS memory_gib
FROM gpus_now ORDER BY node, gpu""",
    ),
    Question(
        "GPUs that are idle now, with their price",
        """SELECT node, gpu, model, usd_per_hour, memory_used_bytes / 1024^3 AS memory_gib
FROM gpus_now WHERE util_percent < 5 ORDER BY usd_per_hour DESC NULLS LAST, node, gpu""",
    ),
    Question(
        "who holds GPU memory now",
        """SELECT username, count(DISTINCT gpu_uuid) AS gpus, sum(gpu_memory_bytes) / 1024^3 AS gib
FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND
    AND ts > (SELECT max(ts) FROM process_samples) - INTERVAL 10 SECOND
GROUP BY username ORDER BY gib DESC NULLS LAST""",
    ),
    Question(
        "dollars lost this week, by user",
        """SELECT "user", round(sum(usd), 2) AS usd, round(sum(gpu_hours), 1) AS gpu_hours
FROM waste WHERE is_waste AND ts > now()::TIMESTAMP - INTERVAL 7 DAY
GROUP BY "user" ORDER BY usd DESC NULLS LAST""",
    ),
    Question(
        "dollars lost this week, by reason",
        """SELECT label, round(sum(usd), 2) AS usd, round(sum(gpu_hours), 1) AS gpu_hours
FROM waste WHERE is_waste AND ts > now()::TIMESTAMP - INTERVAL 7 DAY
GROUP BY label ORDER BY usd DESC NULLS LAST""",
    ),
    Question(
        "utilization of the fleet, by hour of the week",
        """SELECT ts, avg(util_percent_avg) AS util_percent FROM gpu_1h
WHERE ts > now()::TIMESTAMP - INTERVAL 7 DAY GROUP BY ts ORDER BY ts""",
    ),
    Question(
        "utilization of each node, the last hour",
        """SELECT ts, node, avg(util_percent_avg) AS util_percent FROM gpu_1m
WHERE ts > now()::TIMESTAMP - INTERVAL 1 HOUR GROUP BY ts, node ORDER BY ts, node""",
    ),
    Question(
        "hottest GPUs of the last hour",
        """SELECT node, gpu, max(temperature_celsius_max) AS celsius,
    sum(reason_software_thermal_slowdown_seconds + reason_hardware_thermal_slowdown_seconds)
        AS slowed_seconds
FROM gpu_1m WHERE ts > now()::TIMESTAMP - INTERVAL 1 HOUR
GROUP BY node, gpu ORDER BY celsius DESC NULLS LAST LIMIT 20""",
    ),
    Question(
        "Xids and other hardware events of the week",
        """SELECT ts, node, gpu, kind, severity, message FROM events
WHERE severity <> 'info' AND ts > now()::TIMESTAMP - INTERVAL 7 DAY ORDER BY ts DESC""",
    ),
    Question(
        "what waits for data, and what would help",
        """SELECT node, gpu, job, owner, summary, advice FROM diagnoses
WHERE ended_at IS NULL AND bottleneck LIKE '%loader%' ORDER BY node, gpu""",
    ),
    Question(
        "energy of each node today, in kWh",
        """SELECT node, sum(energy_joules_delta) / 3.6e6 AS kwh FROM gpu_1m
WHERE ts >= date_trunc('day', now()::TIMESTAMP) GROUP BY node ORDER BY kwh DESC NULLS LAST""",
    ),
    Question(
        "seconds that were not read, by node",
        """SELECT node, sum(expected) AS expected, sum(missed) AS missed FROM coverage
WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY GROUP BY node HAVING sum(missed) > 0
ORDER BY missed DESC""",
    ),
    Question(
        "dollars lost this week, by team and reason",
        """SELECT team, label, round(sum(usd), 2) AS usd FROM waste
WHERE is_waste AND ts > now()::TIMESTAMP - INTERVAL 7 DAY
GROUP BY ALL ORDER BY usd DESC NULLS LAST, team, label""",
    ),
    Question(
        "jobs that held GPUs idle today, and whom to ask",
        """SELECT "user", job, round(sum(gpu_hours), 1) AS gpu_hours, round(sum(usd), 2) AS usd
FROM waste WHERE label = 'idle_held' AND ts > now()::TIMESTAMP - INTERVAL 1 DAY
GROUP BY ALL ORDER BY gpu_hours DESC LIMIT 20""",
    ),
    Question(
        "share of the time that was productive, by day",
        """SELECT date_trunc('day', ts) AS day,
    round(100 * coalesce(sum(gpu_hours) FILTER (label = 'productive'), 0) / sum(gpu_hours), 1) AS percent
FROM waste WHERE ts > now()::TIMESTAMP - INTERVAL 30 DAY GROUP BY day ORDER BY day""",
    ),
    Question(
        "energy and CO2 of each job this week",
        """SELECT job, "user", round(sum(energy_kwh), 1) AS kwh, round(sum(co2_kg), 1) AS co2_kg
FROM waste WHERE job IS NOT NULL AND ts > now()::TIMESTAMP - INTERVAL 7 DAY
GROUP BY ALL ORDER BY kwh DESC NULLS LAST LIMIT 50""",
    ),
    Question(
        "what a productive GPU hour costs, by model",
        """SELECT model, round(sum(usd) / nullif(sum(gpu_hours) FILTER (label = 'productive'), 0), 2)
        AS usd_per_productive_hour
FROM waste WHERE ts > now()::TIMESTAMP - INTERVAL 7 DAY GROUP BY model ORDER BY model""",
    ),
    Question(
        "GPUs that each user holds now",
        """SELECT username, count(DISTINCT gpu_uuid) AS gpus, list(DISTINCT node ORDER BY node) AS nodes
FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND
GROUP BY username ORDER BY gpus DESC, username""",
    ),
    Question(
        "processes that have been on a GPU for longest",
        """SELECT username, node, gpu, pid, process_name, min(started_at) AS started_at
FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND
GROUP BY ALL ORDER BY started_at LIMIT 20""",
    ),
    Question(
        "jobs whose processes never took half of a GPU's memory today",
        """SELECT coalesce(p.slurm_job_id, p.pod) AS job, p.username,
    round(100 * max(p.gpu_memory_bytes_max / g.memory_total_bytes)) AS most_percent
FROM process_1m p JOIN gpus g USING (gpu_uuid) WHERE p.ts > now()::TIMESTAMP - INTERVAL 1 DAY
GROUP BY ALL HAVING job IS NOT NULL AND most_percent < 50 ORDER BY most_percent, job""",
    ),
    Question(
        "what fires now, the dearest first",
        """SELECT severity, rule, node, gpu, summary, round(usd_so_far, 2) AS usd_so_far
FROM alerts_now WHERE state = 'firing' ORDER BY usd_so_far DESC NULLS LAST, active_at""",
    ),
    Question(
        "open incidents",
        """SELECT severity, summary, place, firing, began_at, round(usd_so_far, 2) AS usd_so_far
FROM incidents_now ORDER BY usd_so_far DESC NULLS LAST, began_at""",
    ),
    Question(
        "rules that fired most often this month",
        """SELECT rule, count(*) AS alerts, count(DISTINCT node) AS nodes, max(fired_at) AS last_at
FROM alerts WHERE fired_at > now()::TIMESTAMP - INTERVAL 30 DAY
GROUP BY rule ORDER BY alerts DESC, rule""",
    ),
    Question(
        "nodes that are not reporting",
        """SELECT node, agent_version, last_seen_at FROM nodes
WHERE last_seen_at < now()::TIMESTAMP - INTERVAL 1 MINUTE AND (billed_until IS NULL OR billed_from IS NOT NULL)
ORDER BY last_seen_at""",
    ),
    Question(
        "GPUs by model, driver and agent version",
        """SELECT g.model, n.driver_version, n.agent_version, count(*) AS gpus, count(DISTINCT g.node) AS nodes
FROM gpus g JOIN nodes n USING (node) WHERE g.parent_gpu_uuid IS NULL
GROUP BY ALL ORDER BY gpus DESC, model""",
    ),
    Question(
        "GPUs with memory errors or rows to remap",
        """SELECT node, gpu, serial, ecc_uncorrected_aggregate_total, remapped_rows_uncorrected_total,
    remap_pending, remap_failed
FROM gpu_health_now WHERE ecc_uncorrected_aggregate_total > 0 OR remapped_rows_uncorrected_total > 0
    OR remap_pending OR remap_failed
ORDER BY remap_failed DESC NULLS LAST, node, gpu""",
    ),
    Question(
        "NVLinks that are down or have had errors",
        """SELECT node, gpu, link_type, link, active, crc_flit_errors_total, replay_errors_total,
    recovery_errors_total
FROM links_now WHERE NOT active OR crc_flit_errors_total > 0 OR replay_errors_total > 0
    OR recovery_errors_total > 0
ORDER BY active, node, gpu, link""",
    ),
    Question(
        "GPUs at work whose clocks are 10 % below those of their model",
        """SELECT node, gpu, model, sm_clock_mhz, usual_mhz FROM (
    SELECT *, median(sm_clock_mhz) OVER (PARTITION BY model) AS usual_mhz
    FROM gpus_now WHERE util_percent > 80
) WHERE sm_clock_mhz < 0.9 * usual_mhz ORDER BY sm_clock_mhz / usual_mhz""",
    ),
    Question(
        "nodes whose processors wait for disks or network",
        """SELECT node, cpu_iowait_percent, psi_io_some_percent, tasks_blocked FROM nodes_now
WHERE cpu_iowait_percent > 10 OR psi_io_some_percent > 20 ORDER BY cpu_iowait_percent DESC""",
    ),
    Question(
        "what held clocks down today, in GPU hours",
        """SELECT model, round(sum(reason_software_power_cap_seconds) / 3600, 2) AS power_cap,
    round(sum(reason_software_thermal_slowdown_seconds + reason_hardware_thermal_slowdown_seconds) / 3600, 2)
        AS heat,
    round(sum(reason_hardware_power_brake_seconds) / 3600, 2) AS power_brake
FROM gpu_1m JOIN gpus USING (gpu_uuid) WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY
GROUP BY model ORDER BY model""",
    ),
)
