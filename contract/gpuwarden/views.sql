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

-- Open incidents, with what each has cost so far.
CREATE OR REPLACE VIEW incidents_now AS
SELECT
    *,
    usd_per_hour * date_diff('millisecond', began_at, now()::TIMESTAMP) / 3.6e6 AS usd_so_far
FROM incidents
WHERE state = 'open';
