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
)
