-- Public views: questions that people ask first, answered once. The view `waste` is in waste.py, and comes before.

-- The newest sample of every GPU heard of in the last minute, with its inventory.
CREATE OR REPLACE VIEW gpus_now AS
SELECT s.*, g.model, g.catalogue_model, g.usd_per_hour
FROM (
    SELECT * FROM gpu_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC) = 1
) s
LEFT JOIN gpus g USING (gpu_uuid);

-- The newest look at the health of every GPU heard of in the last five minutes.
CREATE OR REPLACE VIEW gpu_health_now AS
SELECT h.*, g.model, g.serial, g.pci_bus_id
FROM (
    SELECT * FROM gpu_health_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 5 MINUTE
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC) = 1
) h
LEFT JOIN gpus g USING (gpu_uuid);

-- The newest sample of every NVLink, C2C or xGMI link heard of in the last minute.
CREATE OR REPLACE VIEW links_now AS
SELECT * FROM link_samples
WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
QUALIFY row_number() OVER (PARTITION BY gpu_uuid, link_type, link ORDER BY ts DESC) = 1;

-- The newest host sample of every node heard of in the last minute.
CREATE OR REPLACE VIEW nodes_now AS
SELECT * FROM host_samples
WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
QUALIFY row_number() OVER (PARTITION BY node ORDER BY ts DESC) = 1;

-- Alerts that hold now, with what each has cost so far.
CREATE OR REPLACE VIEW alerts_now AS
SELECT
    *,
    coalesce(accounted_usd, usd_per_hour * date_diff('millisecond', began_at, now()::TIMESTAMP) / 3.6e6)
        AS usd_so_far
FROM alerts
WHERE state IN ('pending', 'firing');

-- What each incident has cost: its roots, or what follows where their cost is unknown; of an open one what fires.
CREATE OR REPLACE VIEW incident_costs AS
SELECT incident, coalesce(sum(usd) FILTER (is_root), sum(usd) FILTER (NOT is_root)) AS usd_so_far
FROM (
    SELECT m.incident, m.cause IS NULL AS is_root, coalesce(a.gpu_uuid, a.fingerprint) AS subject,
        arg_max(coalesce(a.accounted_usd, a.usd_per_hour * date_diff('millisecond', a.began_at,
            coalesce(a.resolved_at, now()::TIMESTAMP)) / 3.6e6), a.usd_per_hour) AS usd
    FROM incident_alerts m
    JOIN alerts a ON a.fingerprint = m.fingerprint AND a.active_at = m.active_at
    JOIN incidents i ON i.id = m.incident
    WHERE a.usd_per_hour IS NOT NULL AND (a.state = 'firing' OR i.state <> 'open')
    GROUP BY ALL
)
GROUP BY incident;

-- Open incidents, with what each has cost so far.
CREATE OR REPLACE VIEW incidents_now AS
SELECT i.*, c.usd_so_far
FROM incidents i
LEFT JOIN incident_costs c ON c.incident = i.id
WHERE i.state = 'open';

-- Who holds each GPU now: by processes of the last 30 seconds, or because a scheduler has given it out.
CREATE OR REPLACE VIEW gpu_holders_now AS
SELECT h.node, h.gpu, h.gpu_uuid, g.model, max(h.username) AS "user", h.job, max(h.workload) AS workload,
    max(h.scheduler) AS scheduler,
    count(h.pid) AS processes, sum(h.gpu_memory_bytes)::BIGINT AS gpu_memory_bytes, min(h.started_at) AS started_at,
    any_value(g.usd_per_hour) AS usd_per_hour, bool_or(h.simulated) AS simulated
FROM (
    SELECT node, gpu, gpu_uuid, username, coalesce(slurm_job_id, pod) AS job, workload, NULL AS scheduler, pid,
        gpu_memory_bytes, started_at, simulated
    FROM process_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND AND process_type IS DISTINCT FROM 'graphics'
    QUALIFY ts = max(ts) OVER (PARTITION BY gpu_uuid)
    UNION ALL
    SELECT node, gpu, gpu_uuid, username, coalesce(slurm_job_id, pod), workload, scheduler, NULL, NULL, NULL, simulated
    FROM allocation_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND
    QUALIFY ts = max(ts) OVER (PARTITION BY gpu_uuid)
) h
LEFT JOIN gpus g USING (gpu_uuid)
GROUP BY h.node, h.gpu, h.gpu_uuid, g.model, h.job, if(h.job IS NULL, h.username, NULL);

-- What the error counters of each link gained in each hour of the last day, where they gained anything.
CREATE OR REPLACE VIEW link_errors AS
WITH moved AS (
    -- Nearly all stand still, and need no more than this.
    SELECT gpu_uuid, link_type, link
    FROM link_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY
    GROUP BY gpu_uuid, link_type, link
    HAVING min(replay_errors_total) <> max(replay_errors_total)
        OR min(recovery_errors_total) <> max(recovery_errors_total)
        OR min(recoveries_failed_total) <> max(recoveries_failed_total)
        OR min(crc_flit_errors_total) <> max(crc_flit_errors_total)
        OR min(crc_data_errors_total) <> max(crc_data_errors_total)
        OR min(ecc_data_errors_total) <> max(ecc_data_errors_total)
        OR min(malformed_packets_total) <> max(malformed_packets_total)
        OR min(buffer_overruns_total) <> max(buffer_overruns_total)
        OR min(rx_errors_total) <> max(rx_errors_total)
        OR min(rx_remote_errors_total) <> max(rx_remote_errors_total)
        OR min(rx_general_errors_total) <> max(rx_general_errors_total)
        OR min(local_integrity_errors_total) <> max(local_integrity_errors_total)
        OR min(tx_discards_total) <> max(tx_discards_total)
        OR min(effective_errors_total) <> max(effective_errors_total)
        OR min(symbol_errors_total) <> max(symbol_errors_total)
),
read AS (
    SELECT ts, node, gpu, gpu_uuid, simulated, link_type, link, replay_errors_total, recovery_errors_total,
        recoveries_failed_total, crc_flit_errors_total, crc_data_errors_total, ecc_data_errors_total,
        malformed_packets_total, buffer_overruns_total, rx_errors_total, rx_remote_errors_total,
        rx_general_errors_total, local_integrity_errors_total, tx_discards_total, effective_errors_total,
        symbol_errors_total
    FROM link_samples
    SEMI JOIN moved USING (gpu_uuid, link_type, link)
    WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY
),
totals AS (
    FROM read UNPIVOT (total FOR counter IN (COLUMNS(c -> c LIKE '%_total')))
),
steps AS (
    SELECT *, lag(total) OVER (PARTITION BY gpu_uuid, link_type, link, counter ORDER BY ts) AS before FROM totals
)
SELECT date_trunc('hour', ts) AS ts, node, gpu, gpu_uuid, link_type, link,
    regexp_replace(counter, '_total$', '') AS error,
    -- A counter that fell was reset, and counts from 0.
    sum(if(total < before, total, total - before))::BIGINT AS errors, bool_or(simulated) AS simulated
FROM steps
WHERE total <> before
GROUP BY ALL
HAVING sum(if(total < before, total, total - before)) > 0;

-- Labels of nodes, one row each.
CREATE OR REPLACE VIEW node_labels AS
SELECT n.node, l.key AS label, l.value ->> '$' AS value
FROM nodes n, json_each(n.labels) l;

-- GPU hours of each owner by GPU and hour, the hour that runs too: what they were, cost and took.
CREATE OR REPLACE VIEW gpu_usage AS
SELECT w.ts, w.node, w.gpu, w.gpu_uuid, w.model, w."user", w.job, w.team, n.labels ->> 'rack' AS rack,
    from_json(n.labels, '"MAP(VARCHAR, VARCHAR)"') AS labels,
    sum(w.gpu_hours) AS gpu_hours, coalesce(sum(w.gpu_hours) FILTER (w.label IN ('productive', 'busy')), 0) AS busy_hours,
    coalesce(sum(w.gpu_hours) FILTER (w.label IN ('idle_held', 'allocated_idle', 'free')), 0) AS idle_hours,
    coalesce(sum(w.gpu_hours) FILTER (w.is_waste), 0) AS wasted_hours,
    sum(w.usd) AS usd, sum(w.usd) FILTER (w.is_waste) AS wasted_usd,
    sum(w.energy_kwh) AS energy_kwh, sum(w.energy_usd) AS energy_usd, sum(w.co2_kg) AS co2_kg, w.simulated
FROM waste w
LEFT JOIN nodes n USING (node)
GROUP BY w.ts, w.node, w.gpu, w.gpu_uuid, w.model, w."user", w.job, w.team, n.labels, w.simulated;
