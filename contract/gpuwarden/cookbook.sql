-- Cookbook: frequent questions as queries with parameters. cookbook.py reads this file.
-- "## TOPIC", then for each question "-- NAME: what it answers", "-- $PARAMETER DEFAULT: meaning", and its SELECT.
-- $since is given as a duration before now, and bound as a timestamp.

-- ## now

-- gpus-now: every GPU with its load, power, temperature and memory, and who holds it
-- $node *: nodes of this name; * and ? are wildcards
SELECT node, gpu, model, username, job, util_percent, power_watts, temperature_celsius, memory_used_bytes / 1024^3 AS memory_gib
FROM gpus_now WHERE node GLOB $node ORDER BY node, gpu;

-- idle-now: GPUs that are idle now, most expensive first, since when, and who holds them
-- $minutes 5: how long they are idle at least
SELECT node, gpu, model, username, job, idle_since, usd_per_hour, memory_used_bytes / 1024^3 AS memory_gib
FROM gpus_now WHERE idle_since <= now()::TIMESTAMP - to_minutes($minutes::INTEGER) ORDER BY usd_per_hour DESC NULLS LAST, node, gpu;

-- holders-now: who holds each GPU now, by process or allocation
-- $node *: nodes of this name; * and ? are wildcards
SELECT node, gpu, model, username, job, scheduler, processes, gpu_memory_bytes / 1024^3 AS memory_gib, started_at
FROM gpu_holders_now WHERE node GLOB $node ORDER BY node, gpu, username, job;

-- memory-by-user: who holds GPU memory now
SELECT username, count(DISTINCT gpu_uuid) AS gpus, sum(gpu_memory_bytes) / 1024^3 AS gib
FROM gpu_holders_now GROUP BY username ORDER BY gib DESC NULLS LAST, username;

-- gpus-by-user: GPUs that each user holds now, and their nodes
SELECT username, count(DISTINCT gpu_uuid) AS gpus, list(DISTINCT node ORDER BY node) AS nodes
FROM gpu_holders_now GROUP BY username ORDER BY gpus DESC, username;

-- oldest-processes: processes that have been on a GPU for longest
-- $top 20: number of rows
SELECT username, node, gpu, pid, process_name, min(started_at) AS started_at
FROM process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND
GROUP BY ALL ORDER BY started_at LIMIT $top;

-- slow-clocks: GPUs at work whose clocks are below those of their model
-- $percent 10: smallest difference, in percent
SELECT node, gpu, model, sm_clock_mhz, usual_mhz FROM (
    SELECT *, median(sm_clock_mhz) OVER (PARTITION BY model) AS usual_mhz
    FROM gpus_now WHERE util_percent > 80
) WHERE sm_clock_mhz < (1 - $percent / 100) * usual_mhz ORDER BY sm_clock_mhz / usual_mhz;

-- busy-hosts: nodes whose processors wait for disks or network
SELECT node, cpu_iowait_percent, psi_io_some_percent, tasks_blocked FROM nodes_now
WHERE cpu_iowait_percent > 10 OR psi_io_some_percent > 20 ORDER BY cpu_iowait_percent DESC;

-- ## usage

-- usage-by-user: GPU hours, how busy they were, and what they cost, by user
-- $since 7d: how far back
SELECT username, round(sum(gpu_hours), 1) AS gpu_hours, round(100 * sum(busy_hours) / sum(gpu_hours), 1) AS busy_percent,
    round(sum(usd), 2) AS usd, round(sum(energy_kwh), 1) AS kwh
FROM gpu_usage WHERE ts > $since::TIMESTAMP GROUP BY username ORDER BY gpu_hours DESC, username;

-- usage-by-team: GPU hours and what they cost, by team (a label of pods or nodes)
-- $since 7d: how far back
SELECT team, round(sum(gpu_hours), 1) AS gpu_hours, round(100 * sum(busy_hours) / sum(gpu_hours), 1) AS busy_percent,
    round(sum(usd), 2) AS usd, round(sum(energy_kwh), 1) AS kwh
FROM gpu_usage WHERE ts > $since::TIMESTAMP GROUP BY team ORDER BY gpu_hours DESC, team;

-- usage-by-job: jobs by GPU hours, with how busy they were
-- $since 1d: how far back
-- $top 20: number of rows
SELECT job, max(username) AS username, count(DISTINCT gpu_uuid) AS gpus, round(sum(gpu_hours), 1) AS gpu_hours,
    round(100 * sum(busy_hours) / sum(gpu_hours), 1) AS busy_percent, round(sum(usd), 2) AS usd
FROM gpu_usage WHERE job IS NOT NULL AND ts > $since::TIMESTAMP
GROUP BY job ORDER BY gpu_hours DESC, job LIMIT $top;

-- usage-by-label: GPU hours and what they cost, by any label of nodes
-- $label rack: name of the label
-- $since 7d: how far back
SELECT labels[$label] AS label, count(DISTINCT node) AS nodes, round(sum(gpu_hours), 1) AS gpu_hours,
    round(100 * sum(busy_hours) / sum(gpu_hours), 1) AS busy_percent, round(sum(usd), 2) AS usd
FROM gpu_usage WHERE ts > $since::TIMESTAMP GROUP BY ALL ORDER BY gpu_hours DESC, label;

-- utilization: utilization of the fleet, by hour
-- $since 7d: how far back
SELECT ts, avg(util_percent_avg) AS util_percent FROM gpu_1h
WHERE ts > $since::TIMESTAMP GROUP BY ts ORDER BY ts;

-- utilization-by-node: utilization of each node, by minute
-- $since 1h: how far back
-- $node *: nodes of this name; * and ? are wildcards
SELECT ts, node, avg(util_percent_avg) AS util_percent FROM gpu_1m
WHERE ts > $since::TIMESTAMP AND node GLOB $node GROUP BY ts, node ORDER BY ts, node;

-- small-jobs: jobs that never used much of a GPU's memory
-- $percent 50: of the memory
-- $since 1d: how far back
SELECT p.job, p.username,
    round(100 * max(p.gpu_memory_bytes_max / g.memory_total_bytes)) AS most_percent
FROM process_1m p JOIN gpus g USING (gpu_uuid) WHERE p.ts > $since::TIMESTAMP
GROUP BY ALL HAVING job IS NOT NULL AND most_percent < $percent ORDER BY most_percent, job;

-- ## waste

-- waste-by-user: dollars lost, by user
-- $since 7d: how far back
SELECT username, round(sum(usd), 2) AS usd, round(sum(gpu_hours), 1) AS gpu_hours
FROM waste WHERE is_waste AND ts > $since::TIMESTAMP
GROUP BY username ORDER BY usd DESC NULLS LAST, gpu_hours DESC, username;

-- waste-by-reason: dollars lost, by reason
-- $since 7d: how far back
SELECT category, round(sum(usd), 2) AS usd, round(sum(gpu_hours), 1) AS gpu_hours
FROM waste WHERE is_waste AND ts > $since::TIMESTAMP
GROUP BY category ORDER BY usd DESC NULLS LAST, gpu_hours DESC, category;

-- waste-by-team: dollars lost, by team and reason
-- $since 7d: how far back
SELECT team, category, round(sum(usd), 2) AS usd FROM waste
WHERE is_waste AND ts > $since::TIMESTAMP
GROUP BY ALL ORDER BY usd DESC NULLS LAST, team, category;

-- idle-holders: jobs that held idle GPUs, and their owners
-- $since 1d: how far back
-- $top 20: number of rows
SELECT username, job, round(sum(gpu_hours), 1) AS gpu_hours, round(sum(usd), 2) AS usd
FROM waste WHERE category = 'idle_held' AND ts > $since::TIMESTAMP
GROUP BY ALL ORDER BY gpu_hours DESC, usd DESC NULLS LAST, job LIMIT $top;

-- hours-by-user: GPU hours by use, what they cost and what was wasted, by user
-- $since 7d: how far back
SELECT coalesce(username, '(none)') AS username, category, round(sum(gpu_hours), 1) AS gpu_hours, round(sum(usd), 2) AS usd,
    round(coalesce(sum(usd) FILTER (is_waste), 0), 2) AS wasted_usd
FROM waste WHERE ts > $since::TIMESTAMP GROUP BY ALL ORDER BY wasted_usd DESC, gpu_hours, username, category;

-- productive-share: share of the time that was productive, by day
-- $since 30d: how far back
SELECT date_trunc('day', ts) AS day,
    round(100 * coalesce(sum(gpu_hours) FILTER (category = 'productive'), 0) / sum(gpu_hours), 1) AS percent
FROM waste WHERE ts > $since::TIMESTAMP GROUP BY day ORDER BY day;

-- productive-cost: what a productive GPU hour costs, by model
-- $since 7d: how far back
SELECT model, round(sum(usd) / nullif(sum(gpu_hours) FILTER (category = 'productive'), 0), 2)
        AS usd_per_productive_hour
FROM waste WHERE ts > $since::TIMESTAMP GROUP BY model ORDER BY model;

-- input-bound: jobs that wait for data, and what would help
SELECT node, gpu, job, username, summary, advice FROM diagnoses
WHERE ended_at IS NULL AND bottleneck LIKE '%loader%' ORDER BY node, gpu;

-- ## energy

-- energy-by-node: energy of each node in kWh
-- $since 1d: how far back
SELECT node, sum(energy_joules_delta) / 3.6e6 AS kwh FROM gpu_1m
WHERE ts >= $since::TIMESTAMP GROUP BY node ORDER BY kwh DESC NULLS LAST, node;

-- energy-of-hosts: what whole nodes drew by their meters, their GPUs in it, and their CPUs, in kWh
-- $since 1d: how far back
SELECT node, round(sum(h.host_power_watts_avg) / 60e3, 2) AS kwh, round(sum(g.watts) / 60e3, 2) AS gpus_kwh,
    round(sum(h.cpu_energy_joules_delta) / 3.6e6, 2) AS cpus_kwh, round(sum(h.dram_energy_joules_delta) / 3.6e6, 2) AS memory_kwh
FROM host_1m h LEFT JOIN (
    SELECT node, ts, sum(power_watts_avg) AS watts FROM gpu_1m
    WHERE ts > $since::TIMESTAMP AND mig_instance IS NULL GROUP BY node, ts
) g USING (node, ts)
WHERE h.ts > $since::TIMESTAMP GROUP BY node HAVING kwh IS NOT NULL OR cpus_kwh IS NOT NULL ORDER BY kwh DESC NULLS LAST, node;

-- energy-by-job: energy and carbon dioxide of each job
-- $since 7d: how far back
-- $top 50: number of rows
SELECT job, username, round(sum(energy_kwh), 1) AS kwh, round(sum(co2_kg), 1) AS co2_kg
FROM waste WHERE job IS NOT NULL AND ts > $since::TIMESTAMP
GROUP BY ALL ORDER BY kwh DESC NULLS LAST, job LIMIT $top;

-- ## heat and clocks

-- hottest: hottest GPUs, and how long heat slowed them
-- $since 1h: how far back
-- $top 20: number of rows
SELECT node, gpu, max(temperature_celsius_max) AS celsius,
    sum(reason_software_thermal_slowdown_seconds + reason_hardware_thermal_slowdown_seconds)
        AS slowed_seconds
FROM gpu_1m WHERE ts > $since::TIMESTAMP
GROUP BY node, gpu ORDER BY celsius DESC NULLS LAST, node, gpu LIMIT $top;

-- slowdowns: what held clocks down, in GPU hours by model
-- $since 1d: how far back
SELECT model, round(sum(reason_software_power_cap_seconds) / 3600, 2) AS power_cap,
    round(sum(reason_software_thermal_slowdown_seconds + reason_hardware_thermal_slowdown_seconds) / 3600, 2)
        AS heat,
    round(sum(reason_hardware_power_brake_seconds) / 3600, 2) AS power_brake
FROM gpu_1m JOIN gpus USING (gpu_uuid) WHERE ts > $since::TIMESTAMP
GROUP BY model ORDER BY model;

-- ## health

-- hardware-events: Xids and other hardware events
-- $since 7d: how far back
-- $node *: nodes of this name; * and ? are wildcards
SELECT ts, node, gpu, kind, severity, message FROM events
WHERE severity <> 'info' AND ts > $since::TIMESTAMP AND node GLOB $node ORDER BY ts DESC;

-- memory-errors: GPUs with memory errors or rows to remap
SELECT node, gpu, serial, ecc_uncorrected_aggregate_total, remapped_rows_uncorrected_total,
    remap_pending, remap_failed
FROM gpu_health_now WHERE ecc_uncorrected_aggregate_total > 0 OR remapped_rows_uncorrected_total > 0
    OR remap_pending OR remap_failed
ORDER BY remap_failed DESC NULLS LAST, node, gpu;

-- links-down: NVLinks and other links that are down now
SELECT node, gpu, link_type, link, remote_type, remote_pci_bus_id
FROM links_now WHERE NOT active ORDER BY node, gpu, link_type, link;

-- link-errors: errors of links in the last day, by link and kind
SELECT node, gpu, link_type, link, error, sum(errors)::BIGINT AS errors, min(ts) AS first_hour, max(ts) AS last_hour
FROM link_errors GROUP BY ALL ORDER BY errors DESC, node, gpu, link, error;

-- ## incidents

-- alerts-now: alerts that fire now, most expensive first
SELECT severity, rule, node, gpu, summary, round(usd_so_far, 2) AS usd_so_far
FROM alerts_now WHERE state = 'firing' ORDER BY usd_so_far DESC NULLS LAST, active_at;

-- silences: silences and acknowledgements that hold now or will
SELECT * FROM silences WHERE ends_at > now()::TIMESTAMP ORDER BY starts_at;

-- incidents-now: open incidents, most expensive first
SELECT severity, summary, place, firing, began_at, round(usd_so_far, 2) AS usd_so_far
FROM incidents_now ORDER BY usd_so_far DESC NULLS LAST, began_at;

-- rules-fired: rules that fired most often
-- $since 30d: how far back
SELECT rule, count(*) AS alerts, count(DISTINCT node) AS nodes, max(fired_at) AS last_at
FROM alerts WHERE fired_at > $since::TIMESTAMP
GROUP BY rule ORDER BY alerts DESC, rule;

-- ## inventory

-- nodes: every node, whether it reports, what it costs, and until when it is billed
SELECT n.node, CASE
        WHEN n.forgotten_at IS NOT NULL THEN 'forgotten'
        WHEN n.unbilled_from IS NOT NULL AND n.unbilled_until IS NULL THEN 'left'
        WHEN n.last_seen_at > now()::TIMESTAMP - INTERVAL 1 MINUTE THEN 'reports'
        WHEN n.last_seen_at IS NULL THEN 'imported'
        ELSE 'silent'
    END AS state, b.gpus, round(b.usd_per_hour, 2) AS usd_per_hour, n.last_seen_at,
    CASE state WHEN 'reports' THEN NULL WHEN 'imported' THEN NULL WHEN 'silent' THEN b.billed_until
        ELSE n.unbilled_from END AS billed_until, n.agent_version, n.driver_version, n.labels
FROM nodes n LEFT JOIN (
    SELECT node, count(*) AS gpus, sum(usd_per_hour) AS usd_per_hour,
        max(last_seen_at + to_seconds(coalesce(billed_silent_s, 259200))) AS billed_until
    FROM gpus WHERE mig_instance IS NULL AND parent_gpu_uuid IS NULL AND replaced_by IS NULL GROUP BY node
) b USING (node) ORDER BY n.node;

-- prices: what a GPU hour costs, by model, and whose price that is
SELECT model, usd_per_hour, price_basis, count(*) AS gpus FROM gpus WHERE replaced_by IS NULL
GROUP BY ALL ORDER BY model, usd_per_hour;

-- gpus-without-price: models of GPUs that have no price; the collector's prices_file gives them one
SELECT coalesce(catalogue_model, model, '?') AS model, count(*) AS gpus FROM gpus JOIN nodes USING (node)
WHERE usd_per_hour IS NULL AND parent_gpu_uuid IS NULL AND replaced_by IS NULL AND forgotten_at IS NULL
GROUP BY ALL ORDER BY gpus DESC, model;

-- silent-nodes: nodes that do not report
SELECT node, agent_version, last_seen_at FROM nodes
WHERE last_seen_at < now()::TIMESTAMP - INTERVAL 1 MINUTE AND (unbilled_from IS NULL OR unbilled_until IS NOT NULL)
ORDER BY last_seen_at;

-- versions: GPUs by model, driver and agent version
SELECT g.model, n.driver_version, n.agent_version, count(*) AS gpus, count(DISTINCT g.node) AS nodes
FROM gpus g JOIN nodes n USING (node) WHERE g.parent_gpu_uuid IS NULL
GROUP BY ALL ORDER BY gpus DESC, model;

-- gpus-by-label: GPUs and nodes by a label, such as rack
-- $label rack: name of the label
SELECT l.value AS label, count(DISTINCT g.node) AS nodes, count(*) AS gpus, round(sum(g.usd_per_hour), 2) AS usd_per_hour
FROM gpus g LEFT JOIN node_labels l ON l.node = g.node AND l.name = $label
WHERE g.parent_gpu_uuid IS NULL AND g.replaced_by IS NULL GROUP BY ALL ORDER BY gpus DESC, label;

-- unread-seconds: readings that were missed, by node
-- $since 1d: how far back
SELECT node, sum(expected) AS expected, sum(missed) AS missed FROM coverage
WHERE ts > $since::TIMESTAMP GROUP BY node HAVING sum(missed) > 0
ORDER BY missed DESC, node;

-- ## tables

-- tables: tables and views that can be queried
SELECT table_name AS name, comment AS meaning FROM duckdb_tables()
UNION ALL SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY name;

-- columns: columns of a table or view, with their meanings
-- $table gpu_samples: name of the table or view
SELECT column_name AS name, data_type AS type, comment AS meaning
FROM duckdb_columns() WHERE table_name = $table ORDER BY column_index;
