-- Public views for frequent questions. The view `waste` is in waste.py, and comes first.
-- "--   COLUMN: meaning" before a view is for what it computes; others mean what they do in what it reads (schema.py).

-- The newest sample of every GPU that reported in the last minute, with its inventory and who holds it: of the last 30
-- seconds the newest process, with most device memory if there are several, else the allocation of a scheduler.
--   username: Who holds the GPU; NULL: nobody, or unknown.
--   job: Job that holds the GPU: Slurm job's id, else Kubernetes namespace/pod.
--   process_name: Name of the holding process' executable; NULL: none holds it.
--   idle_since: Begin of the idle time that the GPU is in, minutes late; NULL: it works, or nobody knows.
CREATE OR REPLACE VIEW gpus_now AS
SELECT s.*, g.model, g.catalogue_model, g.usd_per_hour, h.username, h.job, h.process_name, i.idle_since
FROM (
    SELECT * FROM gpu_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC) = 1
) s
LEFT JOIN gpus g USING (gpu_uuid)
LEFT JOIN (
    SELECT ts, gpu_uuid, username, job, process_name, gpu_memory_bytes
    FROM (FROM process_samples UNION ALL BY NAME FROM allocation_samples)
    WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND AND process_type IS DISTINCT FROM 'graphics'
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC, gpu_memory_bytes DESC) = 1
) h USING (gpu_uuid)
LEFT JOIN (
    SELECT ts, gpu_uuid, idle_since FROM idle_1m
    WHERE ts > now()::TIMESTAMP - INTERVAL 10 MINUTE
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC) = 1
) i USING (gpu_uuid);

-- Racks with the readings of the last minute.
--   rack: Label `rack` of its nodes; if nobody sets it, the chassis or NVLink domain of an NVL72.
--   model: Model of its GPUs.
--   trays: Compute trays that GPUs were seen in; NULL: unknown.
--   nodes: Nodes of its GPUs.
--   gpus: GPUs of the inventory, without boards that were replaced.
--   gpus_reporting: GPUs with a sample in the last minute.
--   power_watts: Power of all its GPUs that report.
--   temperature_max_celsius: Core temperature of the hottest GPU.
--   last_seen_at: When the collector last received data of a GPU of it.
--   simulated: True where a GPU of it is simulated.
CREATE OR REPLACE VIEW racks AS
SELECT coalesce(n.labels['rack'], g.chassis_serial, g.fabric_cluster_uuid) AS rack,
    any_value(g.chassis_serial) AS chassis_serial, any_value(g.fabric_cluster_uuid) AS fabric_cluster_uuid,
    any_value(coalesce(g.catalogue_model, g.model)) AS model, nullif(count(DISTINCT g.tray), 0) AS trays,
    count(DISTINCT g.node) AS nodes, count(*) AS gpus, count(s.gpu_uuid) AS gpus_reporting,
    sum(s.power_watts) AS power_watts, max(s.temperature_celsius) AS temperature_max_celsius,
    max(g.last_seen_at) AS last_seen_at, bool_or(g.simulated) AS simulated
FROM gpus g
LEFT JOIN nodes n ON n.node = g.node
LEFT JOIN gpus_now s ON s.gpu_uuid = g.gpu_uuid
WHERE coalesce(n.labels['rack'], g.chassis_serial, g.fabric_cluster_uuid) IS NOT NULL
    AND g.parent_gpu_uuid IS NULL AND g.replaced_by IS NULL
GROUP BY ALL;

-- The newest health sample of every GPU that reported in the last five minutes.
CREATE OR REPLACE VIEW gpu_health_now AS
SELECT h.*, g.model, g.serial, g.pci_bus_id
FROM (
    SELECT * FROM gpu_health_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 5 MINUTE
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY ts DESC) = 1
) h
LEFT JOIN gpus g USING (gpu_uuid);

-- The newest sample of every NVLink, C2C or xGMI link that reported in the last minute.
CREATE OR REPLACE VIEW links_now AS
SELECT * FROM link_samples
WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
QUALIFY row_number() OVER (PARTITION BY gpu_uuid, link_type, link ORDER BY ts DESC) = 1;

-- The newest host sample of every node that reported in the last minute.
CREATE OR REPLACE VIEW nodes_now AS
SELECT * FROM host_samples
WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
QUALIFY row_number() OVER (PARTITION BY node ORDER BY ts DESC) = 1;

-- Pending and firing alerts, with the cost of each so far.
--   usd_so_far: What it has cost so far; NULL: unknown.
CREATE OR REPLACE VIEW alerts_now AS
SELECT
    *,
    coalesce(accounted_usd, usd_per_hour * date_diff('millisecond', began_at, now()::TIMESTAMP) / 3.6e6)
        AS usd_so_far
FROM alerts
WHERE state IN ('pending', 'firing');

-- Cost of each incident: of its roots, or of the other alerts if that is unknown; for an open one of firing alerts.
--   incident: Id of the incident.
--   usd_so_far: What it has cost so far; NULL: unknown.
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

-- Open incidents, with the cost of each so far.
CREATE OR REPLACE VIEW incidents_now AS
SELECT i.*, c.usd_so_far
FROM incidents i
LEFT JOIN incident_costs c ON c.incident = i.id
WHERE i.state = 'open';

-- Holder of each GPU now: by processes of the last 30 seconds, or by the allocation of a scheduler.
--   username: Owner of the processes, else of the job that the GPU is allocated to.
--   scheduler: The scheduler that allocated the GPU; NULL: not allocated.
--   processes: Processes of the holder on the GPU; 0: allocated, and nothing runs.
--   gpu_memory_bytes: Device memory of the processes.
--   started_at: Start of the oldest process.
CREATE OR REPLACE VIEW gpu_holders_now AS
SELECT h.node, h.gpu, h.gpu_uuid, g.model, max(h.username) AS username, h.job, max(h.workload) AS workload,
    max(h.scheduler) AS scheduler,
    count(h.pid) AS processes, try_cast(sum(h.gpu_memory_bytes) AS BIGINT) AS gpu_memory_bytes, min(h.started_at) AS started_at,
    any_value(g.usd_per_hour) AS usd_per_hour, bool_or(h.simulated) AS simulated
FROM (
    SELECT node, gpu, gpu_uuid, username, job, workload, NULL AS scheduler, pid,
        gpu_memory_bytes, started_at, simulated
    FROM process_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND AND process_type IS DISTINCT FROM 'graphics'
    QUALIFY ts = max(ts) OVER (PARTITION BY gpu_uuid)
    UNION ALL
    SELECT node, gpu, gpu_uuid, username, job, workload, scheduler, NULL, NULL, NULL, simulated
    FROM allocation_samples
    WHERE ts > now()::TIMESTAMP - INTERVAL 30 SECOND
    QUALIFY ts = max(ts) OVER (PARTITION BY gpu_uuid)
) h
LEFT JOIN gpus g USING (gpu_uuid)
GROUP BY h.node, h.gpu, h.gpu_uuid, g.model, h.job, if(h.job IS NULL, h.username, NULL);

-- Slurm jobs, one row each: the last state of its last run, from its nodes and the controller.
--   username: Owner of the job.
--   cpus: CPUs of the job on all its nodes.
--   gpus: GPUs of the job on all its nodes.
--   gpu_uuids: GPUs of the job, separated by commas, as far as its nodes tell.
--   state: Slurm's own where the controller tells, else running or ended.
--   cpu_seconds: CPU time of the job on all its nodes, as far as they tell.
--   memory_peak_bytes: The most memory that it has used on one node.
--   nodes: Number of its nodes.
CREATE OR REPLACE VIEW slurm_jobs AS
SELECT
    job, any_value(array_job_id) AS array_job_id, any_value(array_task_id) AS array_task_id,
    arg_max(job_name, told_at) AS job_name, arg_max(username, told_at) AS username, arg_max(account, told_at) AS account,
    arg_max("partition", told_at) AS "partition", arg_max(qos, told_at) AS qos, arg_max(reservation, told_at) AS reservation,
    coalesce(any_value(state) FILTER (is_controller), if(bool_and(ended_at IS NOT NULL), 'ended', 'running')) AS state,
    coalesce(arg_max(node_list, told_at), string_agg(node, ',' ORDER BY node) FILTER (NOT is_controller)) AS node_list,
    coalesce(any_value(nodes) FILTER (is_controller), try_cast(count(*) FILTER (NOT is_controller) AS INTEGER)) AS nodes,
    coalesce(any_value(cpus) FILTER (is_controller), try_cast(sum(cpus) FILTER (NOT is_controller) AS INTEGER)) AS cpus,
    coalesce(any_value(gpus) FILTER (is_controller), try_cast(sum(gpus) FILTER (NOT is_controller) AS INTEGER)) AS gpus,
    string_agg(gpu_uuids, ',' ORDER BY node) AS gpu_uuids, any_value(time_limit_seconds) AS time_limit_seconds,
    any_value(submitted_at) AS submitted_at,
    coalesce(min(started_at) FILTER (NOT is_controller), max(started_at)) AS started_at,
    if(bool_and(ended_at IS NOT NULL) OR bool_or(is_controller AND ended_at IS NOT NULL),
        coalesce(max(ended_at) FILTER (NOT is_controller), max(ended_at)), NULL) AS ended_at,
    any_value(exit_code) AS exit_code, sum(cpu_seconds) AS cpu_seconds, max(memory_peak_bytes) AS memory_peak_bytes,
    bool_or(simulated) AS simulated
FROM (
    SELECT job, source = 'controller' AS is_controller, node, max(ts) AS told_at, max(started_at) AS started_at,
        if(max(ended_at) >= max(started_at), max(ended_at), NULL) AS ended_at, arg_max(array_job_id, ts) AS array_job_id,
        arg_max(array_task_id, ts) AS array_task_id, arg_max(job_name, ts) AS job_name, arg_max(username, ts) AS username,
        arg_max(account, ts) AS account, arg_max("partition", ts) AS "partition", arg_max(qos, ts) AS qos,
        arg_max(reservation, ts) AS reservation, arg_max(state, ts) AS state, arg_max(node_list, ts) AS node_list,
        arg_max(nodes, ts) AS nodes, arg_max(cpus, ts) AS cpus, arg_max(gpus, ts) AS gpus,
        arg_max(gpu_uuids, ts) AS gpu_uuids, arg_max(time_limit_seconds, ts) AS time_limit_seconds,
        arg_max(submitted_at, ts) AS submitted_at, arg_max(exit_code, ts) AS exit_code,
        max(cpu_seconds_total) AS cpu_seconds, max(memory_peak_bytes) AS memory_peak_bytes, bool_or(simulated) AS simulated
    FROM slurm_job_samples
    GROUP BY job, source = 'controller', node
    -- One that was requeued may run elsewhere: what was said of the run before is over.
    QUALIFY coalesce(max(started_at) >= max(max(started_at)) OVER (PARTITION BY job) - INTERVAL 1 MINUTE, true)
)
GROUP BY job;

-- The newest state of every Slurm node that the controller reported in the last three hours.
--   told_by: Node whose agent read the controller.
--   ts: When the controller said so, UTC.
CREATE OR REPLACE VIEW slurm_nodes AS
SELECT * EXCLUDE (node), node AS told_by
FROM slurm_node_samples
WHERE ts > now()::TIMESTAMP - INTERVAL 3 HOUR
QUALIFY row_number() OVER (PARTITION BY slurm_node ORDER BY ts DESC) = 1;

-- Increases of the error counters of each link by hour of the last day.
--   ts: Start of the hour, UTC.
--   error: Counter of link_samples, without _total.
--   errors: Increase of the counter, without resets.
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
    try_cast(sum(if(total < before, total, total - before)) AS BIGINT) AS errors, bool_or(simulated) AS simulated
FROM steps
WHERE total <> before
GROUP BY ALL
HAVING sum(if(total < before, total, total - before)) > 0;

-- Labels of nodes, one row each.
--   name: Name of the label.
--   value: Value of the label.
CREATE OR REPLACE VIEW node_labels AS
SELECT node, unnest(map_keys(labels)) AS name, unnest(map_values(labels)) AS value
FROM nodes;

-- GPU hours, labels, cost and energy of each owner by GPU and hour, with the current hour.
--   rack: Label `rack` of the node.
--   labels: Labels of the node: labels['zone'] is one of them.
--   gpu_hours: Time of the GPU that belongs to the owner.
--   busy_hours: Hours in which a kernel ran.
--   idle_hours: Hours in which nothing ran.
--   wasted_hours: Hours with a category of waste.
--   wasted_usd: Cost of the wasted hours; NULL: no price, or none was wasted.
CREATE OR REPLACE VIEW gpu_usage AS
SELECT w.ts, w.node, w.gpu, w.gpu_uuid, w.model, w.username, w.job, w.team, n.labels['rack'] AS rack, n.labels,
    sum(w.gpu_hours) AS gpu_hours, coalesce(sum(w.gpu_hours) FILTER (w.category IN ('productive', 'busy')), 0) AS busy_hours,
    coalesce(sum(w.gpu_hours) FILTER (w.category IN ('idle_held', 'allocated_idle', 'free')), 0) AS idle_hours,
    coalesce(sum(w.gpu_hours) FILTER (w.is_waste), 0) AS wasted_hours,
    sum(w.usd) AS usd, sum(w.usd) FILTER (w.is_waste) AS wasted_usd,
    sum(w.energy_kwh) AS energy_kwh, sum(w.energy_usd) AS energy_usd, sum(w.co2_kg) AS co2_kg, w.simulated
FROM waste w
LEFT JOIN nodes n USING (node)
GROUP BY w.ts, w.node, w.gpu, w.gpu_uuid, w.model, w.username, w.job, w.team, n.labels, w.simulated;

-- For readers of one team: GPU hours and cost of all others by hour, model and category. Empty for readers of all rows.
--   gpu_hours: Time of all GPUs with that category.
--   usd: Cost of that time.
CREATE OR REPLACE VIEW others_1h AS
SELECT ts, model, category, sum(seconds) / 3600 AS gpu_hours, sum(usd) AS usd, bool_or(simulated) AS simulated
FROM waste_1h
WHERE false
GROUP BY ts, model, category;

-- What each policy did, and what the alerts of its rule cost a week in the four weeks before its first act and since.
--   policy: The policy.
--   rule: Rule whose alerts it is about.
--   first_act_at: When its first act was asked for; NULL: never.
--   acts: Acts that were done.
--   failed: Acts that failed, or were not reported.
--   wrong: GPUs on which the same user was busy within an hour after the act.
--   reused_hours: Hours in which others worked on the GPUs within a day after the act, without wrong ones.
--   saved_usd: Price of these hours; NULL: unknown.
--   usd_a_week_before: What alerts of the rule cost a week in the four weeks before the first act; NULL: no price, or
--     less than a day is known.
--   usd_a_week_since: What they cost a week since then.
CREATE OR REPLACE VIEW policy_results AS
WITH acts AS (
    SELECT policy, any_value(rule) AS rule, min(act_at) AS first_act_at, count(*) FILTER (state = 'done') AS acts,
        count(*) FILTER (state = 'failed') AS failed, count(*) FILTER (busy_again_at IS NOT NULL) AS wrong,
        sum(reused_hours) FILTER (busy_again_at IS NULL) AS reused_hours, sum(saved_usd) AS saved_usd
    FROM policy_cases
    WHERE policy <> ''
    GROUP BY policy
),
spans AS (
    SELECT *, greatest(first_act_at - INTERVAL 28 DAY, (SELECT min(first_seen_at) FROM gpus)) AS since,
        now()::TIMESTAMP AS until
    FROM acts
),
costs AS (
    SELECT s.policy,
        sum(a.usd_per_hour * greatest(0, date_diff('second', greatest(a.began_at, s.since),
            least(coalesce(a.resolved_at, s.until), s.first_act_at)))) / 3600 AS usd_before,
        sum(a.usd_per_hour * greatest(0, date_diff('second', greatest(a.began_at, s.first_act_at),
            coalesce(a.resolved_at, s.until)))) / 3600 AS usd_since
    FROM spans s JOIN alerts a ON a.rule = s.rule AND a.fired_at IS NOT NULL
        AND coalesce(a.resolved_at, s.until) > s.since
    GROUP BY s.policy
)
SELECT policy, rule, first_act_at, acts, failed, wrong, reused_hours, saved_usd,
    -- Less than a day says nothing about a week.
    usd_before * 604800 / nullif(greatest(date_diff('second', since, first_act_at), 86400), 86400) AS usd_a_week_before,
    usd_since * 604800 / nullif(greatest(date_diff('second', first_act_at, until), 86400), 86400) AS usd_a_week_since
FROM spans LEFT JOIN costs USING (policy);
