-- Public views: questions that people ask first, answered once.

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
