"""Builds the query of all features: a row for each GPU that was seen in the window.

`$now` ends the window, `$window` is its length in seconds. `{scope}` is a condition on `node`.
"""

WINDOW_S = 120
"""Length of the window."""
TREE_STEP_S = 10
"""How often a process tree is read; the window of trees begins one step earlier."""
PAST_S = 3600
"""How far back minutes are read."""
WRITE_FROM = 10_000_000
"""Lowest write rate of a reading that counts, in bytes a second."""
COMMAND_CHARACTERS = 80
"""Longest command in the name of a job."""
SERVERS = "vllm|sglang|tritonserver|ollama|text-generation|llama-server|torchserve|tensorflow_model_server|trtllm-serve|lmdeploy"
"""Names of inference servers, as a regular expression."""

_IN_WINDOW = "ts > $now::TIMESTAMP - to_seconds($window) AND ts <= $now::TIMESTAMP AND {scope}"


def _rate(column: str) -> str:
    """Growth of a counter a second from the first to the last reading; NULL if it was reset."""
    gained = f"arg_max({column}, ts) - arg_min({column}, ts)"
    known = f"FILTER ({column} IS NOT NULL)"
    span = f"epoch(max(ts) {known} - min(ts) {known})"
    return f"CASE WHEN {gained} >= 0 THEN ({gained}) / nullif({span}, 0) END"


_DEVICES = f"""
    SELECT
        gpu_uuid, arg_max(node, ts) AS node, arg_max(gpu, ts) AS gpu,
        bool_or(mig_instance IS NOT NULL) AS is_mig, bool_or(simulated) AS simulated,
        -- Two characters a reading, age and percent: a list of numbers would take ten times as long.
        string_agg(chr((32 + date_diff('second', ts, $now::TIMESTAMP))::INT)
                   || chr((32 + least(round(util_percent), 100))::INT), '')
            FILTER (util_percent IS NOT NULL) AS series,  -- least() of NULL and 100 is 100
        avg(power_watts) AS power, max(power_limit_watts) AS power_limit,
        avg(sm_clock_mhz) AS sm_clock, avg(decoder_util_percent) AS video_decoder,
        avg((clocks_event_reasons & 200 <> 0)::INT) AS throttled_hw,
        avg((clocks_event_reasons & 32 <> 0)::INT) AS throttled_thermal,
        avg(memory_used_bytes) AS memory_held,
        avg(memory_used_bytes / nullif(memory_total_bytes, 0)) AS memory_share,
        {_rate("pcie_rx_bytes_total")} AS pcie_rate,
        greatest({_rate("nvlink_rx_bytes_total")}, {_rate("nvlink_tx_bytes_total")}) AS nvlink_rate
    FROM gpu_samples
    WHERE {_IN_WINDOW}
    GROUP BY gpu_uuid
"""

_DETAILS = f"""
    SELECT
        gpu_uuid, avg(sm_active_percent) AS sm_active, avg(tensor_active_percent) AS tensor_active,
        avg(dram_active_percent) AS dram_active, avg(jpeg_util_percent) AS jpeg_decoder,
        max(pcie_generation) AS pcie_generation, max(pcie_width) AS pcie_width,
        avg(pcie_rx_bytes_per_second) AS pcie_rate,
        avg(greatest(nvlink_rx_bytes_per_second, nvlink_tx_bytes_per_second)) AS nvlink_rate
    FROM gpu_detail_samples
    WHERE {_IN_WINDOW}
    GROUP BY gpu_uuid
"""

_STEPS = """
    SELECT
        *, date_diff('millisecond', ts, $now::TIMESTAMP) / 1000 AS age_s,
        epoch(ts - lag(ts) OVER w) AS span_s,
        write_bytes_total - lag(write_bytes_total) OVER w AS wrote,
        loader_started_total - lag(loader_started_total) OVER w AS started
    FROM process_samples
    WHERE ts > $now::TIMESTAMP - to_seconds($window + $step) AND ts <= $now::TIMESTAMP AND {scope}
    WINDOW w AS (PARTITION BY gpu_uuid, pid ORDER BY ts)
"""

_TREES = f"""
    SELECT
        gpu_uuid, pid, arg_max(node, ts) AS node, max(ts) AS last_at,
        arg_max(started_at, ts) AS started_at, arg_max(gpu_memory_bytes, ts) AS bytes,
        any_value(process_name) AS process_name, any_value(username) AS username, any_value(job) AS job,
        any_value(command) AS command,
        coalesce('job ' || CASE WHEN any_value(job) IS DISTINCT FROM any_value(pod) THEN any_value(job) END,
                 'job at ' || any_value(rendezvous), 'job ' || any_value(job),
                 'container ' || left(any_value(container_id), 12)) AS scheduled,
        avg(cpu_percent) AS cpu, avg(main_cpu_percent) AS main_cpu, avg(pin_cpu_percent) AS pin_cpu,
        avg((state = 'D')::INT) AS blocked_main,
        quantile_disc(loader_workers, 0.5) AS workers, avg(loader_cpu_percent) AS loader_cpu,
        avg(loader_saturated_percent) AS loader_saturated, avg(loader_idle_percent) AS loader_idle,
        avg(loader_blocked_percent) AS loader_blocked,
        arg_max(cpus_allowed, ts) AS cpus_allowed, min(loader_cpus_allowed) AS loader_cpus_allowed,
        arg_max(cgroup_cpu_limit_cores, ts) AS cpu_limit,
        {_rate("cgroup_cpu_throttled_seconds_total")} AS cgroup_throttled,
        {_rate("read_bytes_total")} AS read_rate, {_rate("read_chars_total")} AS chars_rate,
        {_rate("write_bytes_total")} AS write_rate,
        max(write_bytes_total) IS NOT NULL AS has_writes,
        max(loader_started_total) IS NOT NULL AS has_turnover,
        list(age_s) FILTER (started > 0) AS turnover_ages,
        list([age_s, wrote / span_s]) FILTER (wrote / nullif(span_s, 0) >= $write_from) AS writes,
        string_agg(chr((32 + least(round(age_s), 200))::INT)
                   || chr((32 + least(round(main_cpu_percent), 200))::INT), '')
            FILTER (main_cpu_percent IS NOT NULL) AS mains
    FROM steps
    GROUP BY gpu_uuid, pid
"""

# Long commands that differ near the end are different jobs, so they end with a hash of the whole.
_SHORT_COMMAND = (
    f"CASE WHEN length(command) <= {COMMAND_CHARACTERS} THEN command "
    f"ELSE left(command, {COMMAND_CHARACTERS - 8}) || '… ' || left(md5(command), 6) END"
)
_OWNERS = f"""
    SELECT
        *, coalesce(scheduled, coalesce(username || '''s ', '')
                    || coalesce({_SHORT_COMMAND}, process_name, 'pid ' || pid) || ' on ' || node) AS work,
        count(*) OVER g AS holders,
        count(DISTINCT coalesce(scheduled, username || command, pid::VARCHAR)) OVER g AS owners,
        coalesce(regexp_matches(lower(concat_ws(' ', process_name, command)), '{SERVERS}'), false)
            AS is_server
    FROM (
        SELECT * FROM trees
        WHERE last_at > $now::TIMESTAMP - INTERVAL 1 MINUTE
        -- A context of less than a tenth of the largest is a neighbour's rank.
        QUALIFY coalesce(bytes >= 0.1 * max(bytes) OVER (PARTITION BY gpu_uuid), true)
    )
    WINDOW g AS (PARTITION BY gpu_uuid)
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid ORDER BY bytes DESC NULLS LAST, pid) = 1
"""

_HOSTS = f"""
    SELECT
        node, avg(cpu_util_percent) AS host_cpu,
        avg(psi_cpu_some_percent) AS psi_cpu, avg(psi_io_some_percent) AS psi_io,
        avg(disk_busy_percent) AS disk_busy, {_rate("network_rx_bytes_total")} AS network_rate,
        (max(nfs_read_seconds_total) - min(nfs_read_seconds_total))
            / nullif(max(nfs_reads_total) - min(nfs_reads_total), 0) AS nfs_latency,
        {_rate("nfs_read_bytes_total")} AS nfs_rate
    FROM host_samples
    WHERE {_IN_WINDOW}
    GROUP BY node
"""

_PAST = """
    SELECT
        gpu_uuid, min(power_watts_min) AS power_least, max(util_percent_p95) AS productive,
        epoch($now::TIMESTAMP - coalesce(max(ts) FILTER (util_percent_max >= 10)
                                         + INTERVAL 1 MINUTE, min(ts))) AS quiet,
        epoch($now::TIMESTAMP - coalesce(max(ts) FILTER (util_percent_min < 95)
                                         + INTERVAL 1 MINUTE, min(ts))) AS spinning
    FROM gpu_1m
    WHERE ts > $now::TIMESTAMP - to_seconds($past) AND ts <= $now::TIMESTAMP AND {scope}
    GROUP BY gpu_uuid
"""

_TALKING = (
    "SELECT DISTINCT node FROM process_samples "
    "WHERE ts > $now::TIMESTAMP - to_seconds($past) AND ts <= $now::TIMESTAMP AND {scope}"
)

_SELECT = """
SELECT
    d.* EXCLUDE (pcie_rate, nvlink_rate), t.* EXCLUDE (gpu_uuid, pcie_rate, nvlink_rate),
    coalesce(d.pcie_rate, t.pcie_rate) AS pcie_rate,
    coalesce(d.nvlink_rate, t.nvlink_rate) AS nvlink_rate,
    o.* EXCLUDE (gpu_uuid, node, cpu, started_at), o.cpu AS tree_cpu,
    epoch($now::TIMESTAMP - o.started_at) AS age,
    coalesce(o.holders, 0) AS holder_count,
    h.* EXCLUDE (node), p.* EXCLUDE (gpu_uuid),
    k.node IS NOT NULL AS has_process_data, n.cpus,
    g.model, g.catalogue_model, g.usd_per_hour, g.sm_clock_max_mhz, g.nvlinks, g.architecture,
    g.pcie_generation_max, g.pcie_width_max
FROM devices d
LEFT JOIN details t USING (gpu_uuid)
LEFT JOIN owners o USING (gpu_uuid)
LEFT JOIN hosts h ON h.node = d.node
LEFT JOIN past p USING (gpu_uuid)
LEFT JOIN talking k ON k.node = d.node
LEFT JOIN nodes n ON n.node = d.node
LEFT JOIN gpus g USING (gpu_uuid)
ORDER BY d.node, d.gpu, gpu_uuid
"""


def features_sql(scope: str = "true") -> str:
    """The query; `scope` is a condition on `node`."""
    ctes = {
        "devices": _DEVICES,
        "details": _DETAILS,
        "steps": _STEPS,
        "trees": _TREES,
        "owners": _OWNERS,
        "hosts": _HOSTS,
        "past": _PAST,
        "talking": _TALKING,
    }
    parts = [f"{name} AS ({sql.format(scope=scope)})" for name, sql in ctes.items()]
    return f"WITH {', '.join(parts)} {_SELECT}"


def features_params() -> dict[str, int]:
    """Its parameters except `$now`."""
    return {
        "window": WINDOW_S,
        "step": TREE_STEP_S,
        "past": PAST_S,
        "write_from": WRITE_FROM,
    }
