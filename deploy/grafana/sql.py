"""Defines the dashboards of the data source PostgreSQL: SQL over the tables and views, with what rules and prices add."""

from collections.abc import Sequence

from deploy.grafana.model import GrafanaDashboard, Variable, choice
from deploy.grafana.panels import (
    BYTES,
    BYTES_A_SECOND,
    CELSIUS,
    COUNT,
    DOLLARS,
    GOOD_AT_ZERO,
    HEAT,
    HOURS,
    INSTANT,
    KWH,
    MEGAHERTZ,
    PAGE,
    PERCENT,
    POSTGRESQL,
    SECONDS,
    WATTS,
    Panel,
    PanelLink,
    Steps,
    TableField,
    bars,
    chart,
    number,
    rows,
)

TIME = "time_bucket(to_milliseconds($__interval_ms), ts) AS time"
IN_RANGE = "$__timeFilter(ts)"
FLEET = "node IN (${node:sqlstring})"
NODE = "node = ${node:sqlstring}"
GPU = "gpu_uuid = ${gpu:sqlstring}"
JOB = "${job:sqlstring}"
PLACE = "node || '/' || gpu"
HOUR = "1h"
FULL: Steps = ((None, "green"), (90, "orange"), (97, "red"))
"""As FILLED, in percent."""


def of(name: str, **variables: str) -> str:
    """Address of another dashboard of the set, for the same time and data source."""
    given = "".join(f"&var-{key}={value}" for key, value in variables.items())
    return f"/d/{POSTGRESQL.uid(name)}?${{__url_time_range}}&${{datasource:queryparam}}{given}"


NODE_FIELD = TableField(
    "node", "Node", links=(
        PanelLink("Node", of("node", node="${__value.text}")), PanelLink("Page of this node", f"{PAGE}/nodes/${{__value.text}}"),
    ),
)  # fmt: skip
GPU_FIELD = TableField(
    "gpu",
    "GPU",
    links=(
        PanelLink(
            "Page of this GPU", f"{PAGE}/nodes/${{__data.fields.Node}}?gpu=${{__value.text}}"
        ),
    ),
)
JOB_FIELD = TableField(
    "job", "Job", links=(
        PanelLink("Job", of("job", job="${__value.text}")), PanelLink("Page of this job", f"{PAGE}/jobs/${{__value.text}}"),
    ),
)  # fmt: skip
USER_FIELD = TableField(
    "user", "User", links=(PanelLink("Page of this user", f"{PAGE}/users/${{__value.text}}"),)
)
USD_AN_HOUR = TableField("usd_per_hour", "$/h", DOLLARS)


def nodes(*, is_multi: bool) -> Variable:
    """The variable `node`."""
    every = "SELECT node FROM nodes" if is_multi else ""
    return choice(
        POSTGRESQL,
        "node",
        "Node",
        "SELECT node FROM nodes ORDER BY node",
        is_multi=is_multi,
        every=every,
    )


def boards() -> Sequence[GrafanaDashboard]:
    """All dashboards of the set."""
    return [fleet(), node(), gpu(), job(), waste(), health(), collector()]


def over_time(what: str, table: str, where: str, series: str = "") -> str:
    """SQL of lines: `what` by time and, where given, by the text `series`."""
    metric, group = (f"{series} AS metric, ", ", metric") if series else ("", "")
    return (
        f"SELECT {TIME}, {metric}{what} FROM {table} WHERE {IN_RANGE} AND {where} "
        f"GROUP BY time{group} ORDER BY time{group}"
    )


def a_second(counter: str) -> str:
    """SQL of the growth of a counter a second, from the minutes in a step."""
    return f"sum({counter}_delta) / count(DISTINCT ts) / 60"


def fleet() -> GrafanaDashboard:
    """Is the fleet up and busy, and what is wrong?"""
    about = "Is the fleet up and busy, what is wrong, and what does it cost?"
    return GrafanaDashboard(
        POSTGRESQL, "fleet", "Fleet", about,
        [("Now", _fleet_now()), ("Over time", _fleet_charts()), ("What is wrong", [open_incidents()]), ("Nodes", [_fleet_nodes()])],
        [nodes(is_multi=True)],
    )  # fmt: skip


def _fleet_now() -> list[Panel]:
    silent = (
        f"SELECT count(*) FROM nodes WHERE {FLEET} AND last_seen_at < now()::TIMESTAMP - INTERVAL 1 MINUTE "
        "AND forgotten_at IS NULL AND (billed_until IS NULL OR billed_from IS NOT NULL)"
    )
    held = (
        f"SELECT count(*) FROM gpus_now WHERE {FLEET} AND util_percent < 5 "
        "AND gpu_uuid IN (SELECT gpu_uuid FROM gpu_holders_now WHERE processes > 0)"
    )
    return [
        number("GPUs", COUNT, f"SELECT count(*) FROM gpus_now WHERE {FLEET}", about="GPUs and MIG devices that report."),
        number("Silent nodes", COUNT, silent, steps=GOOD_AT_ZERO, about="Nodes that are expected and do not report."),
        number("Utilization", PERCENT, f"SELECT avg(util_percent) FROM gpus_now WHERE {FLEET}", decimals=1,
            about="Mean of all GPUs; a kernel ran in that share of the time."),
        number("Idle and held", COUNT, held, steps=((None, "green"), (1, "orange")),
            about="GPUs with utilization below 5 % on which a process is."),
        number("Open incidents", COUNT, "SELECT count(*) FROM incidents_now", steps=((None, "green"), (1, "orange")),
            links=(PanelLink("Incidents", f"{PAGE}/incidents"),)),
        number("Price of the GPUs", DOLLARS,
            f"SELECT sum(usd_per_hour) FROM gpus_now WHERE {FLEET}", about="Dollars an hour, of those that report."),
    ]  # fmt: skip


def _fleet_charts() -> list[Panel]:
    m = ("gpu_1m", FLEET, "node")
    states = (
        f"SELECT {TIME}, sum(busy_seconds) / 60 / count(DISTINCT ts) AS busy, sum(idle_seconds) / 60 / count(DISTINCT ts) AS idle "
        f"FROM gpu_1m WHERE {IN_RANGE} AND {FLEET} GROUP BY time ORDER BY time"
    )
    power = "sum(power_watts_avg) / count(DISTINCT ts)"
    heat = (
        "100 * sum(reason_software_thermal_slowdown_seconds + reason_hardware_thermal_slowdown_seconds) "
        "/ (60 * count(*))"
    )
    return [
        chart("Utilization", PERCENT, over_time("avg(util_percent_avg)", *m), most=100, least_step="1m"),
        chart("GPUs", COUNT, states, is_stacked=True, about="Idle: utilization below 5 %.", least_step="1m"),
        chart("SMs active", PERCENT, over_time("avg(sm_active_percent_avg)", *m), most=100, least_step="1m",
            about="Share of the SMs that had work: how much of the GPUs is used. Hopper and newer."),
        chart("Power", WATTS, over_time(power, *m), is_stacked=True, least_step="1m"),
        chart("Hottest GPU", CELSIUS, over_time("max(temperature_celsius_max)", *m), least_step="1m"),
        chart("Clocks held down by heat", PERCENT, over_time(heat, *m), least_step="1m",
            about="Share of the time, mean of the node's GPUs."),
    ]  # fmt: skip


def open_incidents() -> Panel:
    """The table of open incidents."""
    fields = [
        TableField("severity", "Severity"),
        TableField("summary", "Summary"),
        TableField("began_at", "Began", INSTANT),
        TableField("usd_so_far", "Cost so far", DOLLARS),
        USD_AN_HOUR,
        TableField("remedy", "What to do"),
        TableField(
            "id", "Incident", links=(PanelLink("Incident", f"{PAGE}/incidents/${{__value.text}}"),)
        ),
    ]
    asked = """
        SELECT severity, summary, began_at, usd_so_far, usd_per_hour, remedy, id FROM incidents_now
        ORDER BY severity = 'critical' DESC, usd_so_far DESC NULLS LAST, began_at LIMIT 200
    """
    return rows("Open incidents", fields, asked, height=10)


def _fleet_nodes() -> Panel:
    fields = [
        NODE_FIELD,
        TableField("gpus", "GPUs", COUNT),
        TableField("idle", "Idle", COUNT),
        TableField("util_percent", "Utilization", PERCENT, decimals=1),
        TableField("memory_percent", "Memory", PERCENT, FULL, decimals=1),
        TableField("power_watts", "Power", WATTS),
        TableField("hottest_celsius", "Hottest", CELSIUS, HEAT),
        TableField("users", "Users"),
        TableField(
            "iowait_percent",
            "CPU waits for I/O",
            PERCENT,
            ((None, "green"), (10, "orange"), (30, "red")),
            decimals=1,
        ),
        TableField("last_seen_at", "Last seen", INSTANT),
    ]
    asked = f"""
        SELECT n.node, count(g.gpu_uuid) AS gpus, count(*) FILTER (g.util_percent < 5) AS idle,
            avg(g.util_percent) AS util_percent, 100.0 * sum(g.memory_used_bytes) / sum(g.memory_total_bytes) AS memory_percent,
            sum(g.power_watts) AS power_watts, max(g.temperature_celsius) AS hottest_celsius,
            any_value(u.users) AS users, any_value(h.cpu_iowait_percent) AS iowait_percent, any_value(n.last_seen_at) AS last_seen_at
        FROM (SELECT node, last_seen_at FROM nodes WHERE {FLEET} AND forgotten_at IS NULL) n
        LEFT JOIN gpus_now g USING (node) LEFT JOIN nodes_now h USING (node)
        LEFT JOIN (SELECT node, string_agg(DISTINCT "user", ', ' ORDER BY "user") AS users FROM gpu_holders_now GROUP BY node) u
            USING (node)
        GROUP BY n.node ORDER BY n.node
    """
    return rows("Nodes", fields, asked, height=10)


def node() -> GrafanaDashboard:
    """What do the GPUs of a node do, who has them, and does its host keep up?"""
    about = "What do the GPUs of this node do, who has them, and does its host keep up?"
    return GrafanaDashboard(
        POSTGRESQL, "node", "Node", about,
        [("Now", [_node_now()]), ("GPUs", _node_gpus()), ("Host", _node_host())],
        [nodes(is_multi=False)], page="/nodes/${node}", events=events(NODE),
    )  # fmt: skip


def events(where: str) -> str:
    """SQL of annotations: what happened, but not what is only for information."""
    return (
        f"SELECT ts AS time, message AS text, kind AS tags FROM events WHERE {IN_RANGE} AND {where} "
        "AND severity <> 'info' ORDER BY ts LIMIT 500"
    )


def _node_now() -> Panel:
    fields = [
        TableField("gpu_uuid", "UUID"),
        TableField("gpu", "GPU", links=(
            PanelLink("GPU", of("gpu", gpu="${__data.fields.UUID}")), PanelLink("Page of this GPU", f"{PAGE}/gpus/${{__data.fields.UUID}}"),
        )),
        TableField("model", "Model"),
        USER_FIELD,
        JOB_FIELD,
        TableField("util_percent", "Utilization", PERCENT, decimals=1),
        TableField("memory_percent", "Memory", PERCENT, FULL, decimals=1),
        TableField("power_watts", "Power", WATTS),
        TableField("temperature_celsius", "Temperature", CELSIUS, HEAT),
        TableField("sm_clock_mhz", "SM clock", MEGAHERTZ),
        TableField("verdict", "Verdict"),
    ]  # fmt: skip
    asked = f"""
        SELECT g.gpu, g.model, h."user", h.job, g.util_percent, 100.0 * g.memory_used_bytes / g.memory_total_bytes AS memory_percent,
            g.power_watts, g.temperature_celsius, g.sm_clock_mhz, d.summary AS verdict, g.gpu_uuid
        FROM gpus_now g LEFT JOIN gpu_holders_now h USING (gpu_uuid)
        LEFT JOIN diagnoses d ON d.subject = g.gpu_uuid AND d.ended_at IS NULL
        WHERE g.{NODE} ORDER BY g.gpu, h.job
    """
    return rows("GPUs now", fields, asked, height=9)


def _node_gpus() -> list[Panel]:
    m = ("gpu_1m", NODE, "'GPU ' || gpu")
    return [
        chart("Utilization", PERCENT, over_time("avg(util_percent_avg)", *m), most=100, least_step="1m"),
        chart("SMs active", PERCENT, over_time("avg(sm_active_percent_avg)", *m), most=100, least_step="1m",
            about="Share of the SMs that had work. Hopper and newer."),
        chart("Memory used", BYTES, over_time("max(memory_used_bytes_max)", *m), least_step="1m"),
        chart("Power", WATTS, over_time("avg(power_watts_avg)", *m), least_step="1m"),
        chart("Temperature", CELSIUS, over_time("max(temperature_celsius_max)", *m), least_step="1m"),
        chart("SM clock", MEGAHERTZ, over_time("avg(sm_clock_mhz_avg)", *m), least_step="1m"),
    ]  # fmt: skip


def _node_host() -> list[Panel]:
    def host(what: str) -> str:
        return over_time(what, "host_1m", NODE)

    stalled = ", ".join(
        f"avg(psi_{what}_some_percent_avg) AS {what}" for what in ("cpu", "io", "memory")
    )
    return [
        chart("CPU", PERCENT, host(
            'avg(cpu_user_percent_avg) AS "user", avg(cpu_system_percent_avg) AS system, avg(cpu_iowait_percent_avg) AS "waits for I/O"'
        ), most=100, is_stacked=True, least_step="1m"),
        chart("Tasks that wait (PSI)", PERCENT, host(stalled), most=100, least_step="1m",
            about="Share of the time in which a task was stalled: data loaders that wait for CPUs, storage or memory."),
        chart("Memory", BYTES, host(
            "max(memory_used_bytes_max) AS used, max(memory_cached_bytes_max) AS cached, max(memory_total_bytes_last) AS total,"
            ' max(shm_used_bytes_max) AS "/dev/shm"'
        ), least_step="1m"),
        chart("Disks", BYTES_A_SECOND,
            host(f"{a_second('disk_read_bytes')} AS read, {a_second('disk_write_bytes')} AS written"), least_step="1m"),
        chart("Network", BYTES_A_SECOND,
            host(f'{a_second("network_rx_bytes")} AS "in", {a_second("network_tx_bytes")} AS "out"'), least_step="1m"),
        chart("NFS", BYTES_A_SECOND,
            host(f"{a_second('nfs_read_bytes')} AS read, {a_second('nfs_write_bytes')} AS written"), least_step="1m"),
    ]  # fmt: skip


def gpu() -> GrafanaDashboard:
    """What does a GPU do, what holds it back, who had it?"""
    about = "What does this GPU do, what holds it back, who had it, and what did it cost?"
    variable = choice(
        POSTGRESQL, "gpu", "GPU",
        f"SELECT {PLACE} AS __text, gpu_uuid AS __value FROM gpus WHERE replaced_by IS NULL ORDER BY node, gpu",
    )  # fmt: skip
    return GrafanaDashboard(
        POSTGRESQL, "gpu", "GPU", about,
        [("Now", _gpu_now()), ("Work", _gpu_work()), ("Limits and links", _gpu_limits()), ("Who had it", _gpu_past())],
        [variable], page="/gpus/${gpu}", events=events(GPU),
    )  # fmt: skip


def _gpu_now() -> list[Panel]:
    def now(column: str) -> str:
        return f"SELECT {column} FROM gpus_now WHERE {GPU}"

    verdict = """
        SELECT summary, advice, usd_per_hour, began_at FROM diagnoses
        WHERE subject = ${gpu:sqlstring} AND ended_at IS NULL ORDER BY began_at DESC LIMIT 5
    """
    fields = [
        TableField("summary", "Verdict"), TableField("advice", "What to change"), TableField("usd_per_hour", "Loss, $/h", DOLLARS),
        TableField("began_at", "Since", INSTANT),
    ]  # fmt: skip
    return [
        number("Utilization", PERCENT, now("util_percent"), width=3),
        number(
            "Memory",
            PERCENT,
            now("100.0 * memory_used_bytes / memory_total_bytes"),
            steps=FULL,
            width=3,
            decimals=1,
        ),
        number("Power", WATTS, now("power_watts"), width=3),
        number("Temperature", CELSIUS, now("temperature_celsius"), steps=HEAT, width=3),
        rows("Verdict", fields, verdict, width=12, height=4),
    ]


def _gpu_work() -> list[Panel]:
    def mine(what: str) -> str:
        return over_time(what, "gpu_1m", GPU)

    busy = (
        'avg(util_percent_avg) AS utilization, avg(sm_active_percent_avg) AS "SMs active", '
        'avg(sm_occupancy_percent_avg) AS "SM occupancy", avg(tensor_active_percent_avg) AS "tensor cores", '
        'avg(dram_active_percent_avg) AS "memory bandwidth"'
    )
    memory = "max(memory_used_bytes_max) AS used, max(memory_reserved_bytes_last) AS reserved, max(memory_total_bytes_last) AS total"
    return [
        chart("How busy", PERCENT, mine(busy), most=100, least_step="1m",
            about="Utilization says only whether a kernel ran; the others say how much of the GPU worked (Hopper and newer)."),
        chart("Memory", BYTES, mine(memory), least_step="1m"),
        chart("Power", WATTS, mine("avg(power_watts_avg) AS power, min(power_limit_watts_min) AS limit"), least_step="1m"),
        chart("Clocks", MEGAHERTZ, mine('avg(sm_clock_mhz_avg) AS "SM", avg(memory_clock_mhz_avg) AS memory'), least_step="1m"),
    ]  # fmt: skip


def _gpu_limits() -> list[Panel]:
    def mine(what: str) -> str:
        return over_time(what, "gpu_1m", GPU)

    held = ", ".join(
        f'100 * sum(reason_{name}_seconds) / (60 * count(*)) AS "{title}"'
        for name, title in (
            ("software_power_cap", "power cap"), ("software_thermal_slowdown", "heat, software"),
            ("hardware_thermal_slowdown", "heat, hardware"), ("hardware_power_brake", "power brake"),
        )
    )  # fmt: skip
    moved = ", ".join(
        f'{a_second(f"{link}_{way}_bytes")} AS "{title} {word}"'
        for link, title in (("pcie", "PCIe"), ("nvlink", "NVLink"))
        for way, word in (("rx", "in"), ("tx", "out"))
    )
    errors = (
        'sum(ecc_corrected_volatile_delta) AS "ECC corrected", sum(ecc_uncorrected_volatile_delta) AS "ECC uncorrected", '
        'sum(remapped_rows_corrected_delta + remapped_rows_uncorrected_delta) AS "rows remapped", '
        'sum(pcie_replays_delta) AS "PCIe replays"'
    )
    return [
        chart("Temperature", CELSIUS,
            mine("max(temperature_celsius_max) AS core, max(memory_temperature_celsius_max) AS memory"), least_step="1m"),
        chart("What holds the clocks down", PERCENT, mine(held), about="Share of the time.", least_step="1m"),
        chart("PCIe and NVLink", BYTES_A_SECOND, mine(moved), least_step="1m"),
        chart("New errors", COUNT, mine(errors), least_step="1m"),
    ]  # fmt: skip


def _gpu_past() -> list[Panel]:
    asked = f"""
        SELECT "user", job, sum(gpu_hours) AS gpu_hours, 100 * sum(busy_hours) / sum(gpu_hours) AS busy_percent,
            sum(usd) AS usd, sum(wasted_usd) AS wasted_usd, sum(energy_kwh) AS energy_kwh
        FROM gpu_usage WHERE {IN_RANGE} AND {GPU} GROUP BY "user", job ORDER BY gpu_hours DESC LIMIT 100
    """
    return [rows("Who had it", usage_fields([USER_FIELD, JOB_FIELD]), asked, about="By the hour.")]


def usage_fields(first: Sequence[TableField]) -> list[TableField]:
    """Columns of tables of usage."""
    return [
        *first,
        TableField("gpu_hours", "GPU hours", HOURS, decimals=1),
        TableField(
            "busy_percent",
            "Busy",
            PERCENT,
            ((None, "red"), (20, "orange"), (50, "green")),
            decimals=0,
        ),
        TableField("usd", "Cost", DOLLARS),
        TableField("wasted_usd", "Wasted", DOLLARS),
        TableField("energy_kwh", "Energy", KWH, decimals=1),
    ]


def job() -> GrafanaDashboard:
    """Does a job use its GPUs, what does it wait for, what does it cost?"""
    about = (
        "Does this job use its GPUs, what does it wait for, what would help, and what does it cost?"
    )
    variable = choice(POSTGRESQL, "job", "Job", """
        SELECT DISTINCT coalesce(slurm_job_id, pod) FROM process_1m
        WHERE $__timeFilter(ts) AND coalesce(slurm_job_id, pod) IS NOT NULL ORDER BY 1
    """.replace("\n", " "))  # fmt: skip
    return GrafanaDashboard(
        POSTGRESQL, "job", "Job", about,
        [("Summary", _job_summary()), ("GPUs", _job_gpus()), ("Input", _job_input())],
        [variable], page="/jobs/${job}",
    )  # fmt: skip


MINE = f"coalesce(slurm_job_id, pod) = {JOB}"
OF_JOB = f"gpu_uuid IN (SELECT gpu_uuid FROM process_1m WHERE {IN_RANGE} AND {MINE})"


def _job_summary() -> list[Panel]:
    def used(what: str) -> str:
        return f"SELECT {what} FROM gpu_usage WHERE {IN_RANGE} AND job = {JOB}"

    fields = [
        TableField("bottleneck", "Verdict"), TableField("summary", "Finding"), TableField("advice", "What to change"),
        TableField("usd_per_hour", "Loss, $/h", DOLLARS), TableField("gpus", "GPUs", COUNT), TableField("began_at", "From", INSTANT),
        TableField("ended_at", "Until", INSTANT),
    ]  # fmt: skip
    verdicts = f"""
        SELECT bottleneck, summary, advice, usd_per_hour, gpus, began_at, ended_at FROM diagnoses
        WHERE job IN ('Slurm job ' || {JOB}, 'pod ' || {JOB}) AND began_at < $__timeTo()
            AND coalesce(ended_at, seen_at) >= $__timeFrom()
        ORDER BY ended_at IS NOT NULL, began_at DESC LIMIT 50
    """
    return [
        number("GPUs", COUNT, used("count(DISTINCT gpu_uuid)")),
        number("GPU hours", HOURS, used("sum(gpu_hours)"), decimals=1),
        number("Busy", PERCENT, used("100 * sum(busy_hours) / sum(gpu_hours)"), decimals=0,
            steps=((None, "red"), (20, "orange"), (50, "green")), about="Share of its GPU hours in which a kernel ran."),
        number("Cost", DOLLARS, used("sum(usd)")),
        number("Wasted", DOLLARS, used("coalesce(sum(wasted_usd), 0)")),
        number("Energy", KWH, used("sum(energy_kwh)"), decimals=1),
        rows("Verdicts", fields, verdicts),
    ]  # fmt: skip


def _job_gpus() -> list[Panel]:
    def mine(what: str) -> str:
        return over_time(what, "gpu_1m", OF_JOB, PLACE)

    return [
        chart("Utilization", PERCENT, mine("avg(util_percent_avg)"), most=100, least_step="1m"),
        chart("SMs active", PERCENT, mine("avg(sm_active_percent_avg)"), most=100, least_step="1m",
            about="Share of the SMs that had work. Hopper and newer."),
        chart("Memory used", BYTES, mine("max(memory_used_bytes_max)"), least_step="1m"),
        chart("Power", WATTS, mine("avg(power_watts_avg)"), least_step="1m"),
    ]  # fmt: skip


def _job_input() -> list[Panel]:
    def mine(what: str) -> str:
        return over_time(what, "process_1m", MINE, f"{PLACE} || ' ' || pid")

    return [
        chart("Main thread", PERCENT, mine("avg(main_cpu_percent_avg)"), least_step="1m",
            about="CPU of the busiest thread of each process. Near 100 %: Python itself is the limit."),
        chart("CPU of a data-loader worker", PERCENT, mine("avg(loader_cpu_percent_avg)"), least_step="1m",
            about="Near 100 %: more workers would help, if there are cores."),
        chart("Data-loader workers blocked on storage", PERCENT, mine("avg(loader_blocked_percent_avg)"), most=100, least_step="1m"),
        chart("Read, page cache included", BYTES_A_SECOND, mine(a_second("read_chars")), least_step="1m"),
    ]  # fmt: skip


def waste() -> GrafanaDashboard:
    """What do the GPUs cost, how much of it is wasted, why, and by whom?"""
    about = "What do the GPUs cost, how much of it is wasted, why, and whose is it? By the hour."
    return GrafanaDashboard(
        POSTGRESQL, "waste", "Waste and money", about,
        [("Summary", _waste_summary()), ("Over time", _waste_charts()), ("Where to look", _waste_tables())],
        since="now-7d", refresh="15m", page="/money",
    )  # fmt: skip


def _waste_summary() -> list[Panel]:
    def spent(what: str) -> str:
        return f"SELECT {what} FROM waste WHERE {IN_RANGE}"

    return [
        number("Cost", DOLLARS, spent("sum(usd)")),
        number("Wasted", DOLLARS, spent("coalesce(sum(usd) FILTER (is_waste), 0)"), steps=((None, "orange"),)),
        number("Wasted share", PERCENT, spent("100 * coalesce(sum(gpu_hours) FILTER (is_waste), 0) / sum(gpu_hours)"), decimals=1,
            about="Of the GPU hours."),
        number("A busy GPU hour", DOLLARS, spent("sum(usd) / sum(gpu_hours) FILTER (label IN ('productive', 'busy'))"),
            about="What it costs with all waste spread over the hours in which a kernel ran."),
        number("GPU hours", HOURS, spent("sum(gpu_hours)"), decimals=1),
        number("Energy", KWH, spent("sum(energy_kwh)"), decimals=1),
    ]  # fmt: skip


def _waste_charts() -> list[Panel]:
    hours = f"""
        SELECT {TIME}, label AS metric, sum(gpu_hours) AS gpu_hours FROM waste WHERE {IN_RANGE}
        GROUP BY time, metric ORDER BY time, metric
    """
    dollars = f"""
        SELECT {TIME}, label AS metric, sum(usd) AS usd FROM waste WHERE {IN_RANGE} AND is_waste
        GROUP BY time, metric ORDER BY time, metric
    """
    return [
        chart(
            "GPU hours by what they went to",
            HOURS,
            hours,
            is_stacked=True,
            is_bars=True,
            least_step=HOUR,
        ),
        chart(
            "Dollars wasted, by reason",
            DOLLARS,
            dollars,
            is_stacked=True,
            is_bars=True,
            least_step=HOUR,
        ),
    ]


def _waste_tables() -> list[Panel]:
    def by(column: str) -> str:
        return f"""
            SELECT coalesce({column}, 'nobody') AS name, sum(usd) AS usd FROM waste WHERE {IN_RANGE} AND is_waste
            GROUP BY name ORDER BY usd DESC NULLS LAST, name LIMIT 20
        """

    def usage(column: str) -> str:
        return f"""
            SELECT {column}, sum(gpu_hours) AS gpu_hours, 100 * sum(busy_hours) / sum(gpu_hours) AS busy_percent, sum(usd) AS usd,
                sum(wasted_usd) AS wasted_usd, sum(energy_kwh) AS energy_kwh
            FROM gpu_usage WHERE {IN_RANGE} GROUP BY {column} ORDER BY wasted_usd DESC NULLS LAST, gpu_hours DESC LIMIT 100
        """

    holders = """
        SELECT h.node, h.gpu, h."user", h.job, g.usd_per_hour, h.gpu_memory_bytes, h.started_at
        FROM gpus_now g JOIN gpu_holders_now h USING (gpu_uuid)
        WHERE g.util_percent < 5 ORDER BY g.usd_per_hour DESC NULLS LAST, h.node, h.gpu LIMIT 200
    """
    held = [
        NODE_FIELD, GPU_FIELD, USER_FIELD, JOB_FIELD, USD_AN_HOUR, TableField("gpu_memory_bytes", "GPU memory", BYTES),
        TableField("started_at", "Started", INSTANT),
    ]  # fmt: skip
    return [
        bars("Dollars wasted, by user", DOLLARS, by('"user"'), width=8),
        bars("Dollars wasted, by team", DOLLARS, by("team"), width=8),
        bars("Dollars wasted, by model", DOLLARS, by("model"), width=8),
        rows("Idle GPUs that someone holds now", held, holders),
        rows("Users", usage_fields([USER_FIELD]), usage('"user"'), width=12),
        rows("Jobs", usage_fields([JOB_FIELD]), usage("job"), width=12),
    ]


def health() -> GrafanaDashboard:
    """Which hardware fails, what needs a person, what is not watched?"""
    about = "Which hardware fails or needs a person, and what is not watched?"
    return GrafanaDashboard(
        POSTGRESQL, "health", "Health", about,
        [("Now", _health_now()), ("Incidents and events", _health_events()), ("Hardware", _health_tables())],
        [nodes(is_multi=True)], since="now-24h", page="/incidents",
    )  # fmt: skip


def _health_now() -> list[Panel]:
    def gpus(what: str) -> str:
        return f"SELECT count(*) FROM gpu_health_now WHERE {FLEET} AND ({what})"

    alerts = "SELECT count(*) FROM alerts_now WHERE state = 'firing' AND severity = 'critical'"
    xids = f"SELECT count(*) FROM events WHERE {IN_RANGE} AND {FLEET} AND kind = 'xid'"
    return [
        number("Critical alerts", COUNT, alerts, steps=GOOD_AT_ZERO, links=(PanelLink("Alerts", f"{PAGE}/alerts"),)),
        number("GPUs to reset", COUNT, gpus("remap_pending OR recovery_action <> 'none'"), steps=((None, "green"), (1, "orange")),
            about="A row waits to be remapped, or the driver asks for a reset or reboot."),
        number("Boards to replace", COUNT, gpus("remap_failed OR sram_threshold_exceeded OR memory_unrepairable"), steps=GOOD_AT_ZERO,
            about="A row could not be remapped, SRAM errors are above NVIDIA's threshold, or memory cannot be repaired."),
        number("GPUs with uncorrected errors", COUNT, gpus("ecc_uncorrected_volatile_total > 0"), steps=GOOD_AT_ZERO,
            about="Since the driver was loaded."),
        number("Links down", COUNT, f"SELECT count(*) FROM links_now WHERE {FLEET} AND NOT active", steps=GOOD_AT_ZERO,
            about="NVLinks, C2C and xGMI links."),
        number("Xids", COUNT, xids, steps=((None, "green"), (1, "orange")), about="In the chosen time."),
    ]  # fmt: skip


def _health_events() -> list[Panel]:
    fields = [
        TableField("ts", "Time", INSTANT), TableField("severity", "Severity"), NODE_FIELD, GPU_FIELD, TableField("kind", "Kind"),
        TableField("message", "What happened"),
    ]  # fmt: skip
    asked = f"""
        SELECT ts, severity, node, gpu, kind, message FROM events
        WHERE {IN_RANGE} AND {FLEET} AND severity <> 'info' ORDER BY ts DESC LIMIT 500
    """
    return [open_incidents(), rows("Events", fields, asked, height=9)]


def _health_tables() -> list[Panel]:
    memory = f"""
        SELECT node, gpu, serial, ecc_corrected_volatile_total, ecc_uncorrected_aggregate_total, remapped_rows_uncorrected_total,
            remap_pending, remap_failed, recovery_action
        FROM gpu_health_now
        WHERE {FLEET} AND (ecc_corrected_volatile_total > 0 OR ecc_uncorrected_aggregate_total > 0
            OR remapped_rows_uncorrected_total > 0 OR remap_pending OR remap_failed OR recovery_action <> 'none')
        ORDER BY remap_failed DESC NULLS LAST, ecc_uncorrected_aggregate_total DESC NULLS LAST, node, gpu LIMIT 200
    """
    links = f"""
        SELECT node, gpu, link_type, link, error, sum(errors)::BIGINT AS errors, max(ts) AS last_hour FROM link_errors
        WHERE {FLEET} GROUP BY ALL ORDER BY errors DESC, node, gpu, link, error LIMIT 200
    """
    missed = f"""
        SELECT node, table_name, 100.0 * sum(taken) / sum(expected) AS taken_percent, sum(missed + skipped + late + failed)::BIGINT AS lost
        FROM coverage WHERE {IN_RANGE} AND {FLEET} GROUP BY node, table_name ORDER BY taken_percent, node, table_name LIMIT 200
    """
    slowed = f"""
        SELECT node, gpu, sum(reason_software_thermal_slowdown_seconds + reason_hardware_thermal_slowdown_seconds) AS heat_seconds,
            sum(reason_hardware_power_brake_seconds) AS brake_seconds, max(temperature_celsius_max) AS celsius
        FROM gpu_1m WHERE {IN_RANGE} AND {FLEET} GROUP BY node, gpu ORDER BY heat_seconds DESC NULLS LAST, node, gpu LIMIT 50
    """
    some: Steps = ((None, "text"), (1, "red"))
    return [
        rows("Memory of GPUs", [
            NODE_FIELD, GPU_FIELD, TableField("serial", "Serial"), TableField("ecc_corrected_volatile_total", "Corrected", COUNT),
            TableField("ecc_uncorrected_aggregate_total", "Uncorrected, ever", COUNT, some),
            TableField("remapped_rows_uncorrected_total", "Rows remapped", COUNT), TableField("remap_pending", "Waits for a reset"),
            TableField("remap_failed", "Replace the board"), TableField("recovery_action", "The driver asks for"),
        ], memory, about="GPUs with errors, remapped rows, or a wish of the driver."),
        rows("Errors of links in the last day", [
            NODE_FIELD, GPU_FIELD, TableField("link_type", "Kind"), TableField("link", "Link"), TableField("error", "Error"),
            TableField("errors", "Errors", COUNT), TableField("last_hour", "Last", INSTANT),
        ], links, width=12),
        rows("Slowed by heat or power", [
            NODE_FIELD, GPU_FIELD, TableField("heat_seconds", "By heat", SECONDS), TableField("brake_seconds", "By the power brake", SECONDS),
            TableField("celsius", "Hottest", CELSIUS, HEAT),
        ], slowed, width=12),
        rows("What the agents read", [
            NODE_FIELD, TableField("table_name", "Table"),
            TableField("taken_percent", "Readings", PERCENT, ((None, "red"), (95, "orange"), (99, "text")), decimals=2),
            TableField("lost", "Missed", COUNT),
        ], missed, about="Readings that became samples, of those that were due."),
    ]  # fmt: skip


def collector() -> GrafanaDashboard:
    """Does the collector keep up, and who asks what of it?"""
    about = "Does the collector store, keep room and answer, and who asks what of it?"
    return GrafanaDashboard(
        POSTGRESQL, "collector", "Collector", about,
        [("Now", _collector_now()), ("Over time", _collector_charts()), ("Queries", [_collector_queries()])],
        page="/collector",
    )  # fmt: skip


def _collector_now() -> list[Panel]:
    def newest(what: str) -> str:
        return (
            f"SELECT {what} FROM collector_samples WHERE ts > now()::TIMESTAMP - INTERVAL 5 MINUTE"
        )

    return [
        number("Age of stored rows", SECONDS, newest("arg_max(ingest_lag_seconds, ts)"), decimals=1,
            steps=((None, "green"), (15, "orange"), (60, "red")), about="When they are stored; agents send every five seconds."),
        number("Lag of rollups", SECONDS, newest("arg_max(rollup_lag_seconds, ts)"), decimals=0,
            steps=((None, "green"), (300, "orange"), (900, "red"))),
        number("Free disk", BYTES, newest("arg_max(disk_free_bytes, ts)")),
        number("Until batches are refused", BYTES, newest("arg_max(disk_free_bytes - disk_free_bytes_min, ts)"),
            steps=((None, "red"), (1e9, "orange"), (1e10, "green")), about="Room on the disk."),
        number("Refused batches", COUNT, f"SELECT sum(refused_batches) FROM collector_samples WHERE {IN_RANGE}", steps=GOOD_AT_ZERO,
            about="In the chosen time."),
        number("Failures", COUNT, f"SELECT sum(commit_failures + task_failures) FROM collector_samples WHERE {IN_RANGE}",
            steps=GOOD_AT_ZERO, about="Commits and tasks of the store, in the chosen time; they are repeated."),
    ]  # fmt: skip


def _collector_charts() -> list[Panel]:
    def sampled(what: str) -> str:
        return over_time(what, "collector_samples", "true", "host")

    asked = f"""
        SELECT {TIME}, outcome AS metric, count(*) AS queries FROM query_log WHERE {IN_RANGE}
        GROUP BY time, metric ORDER BY time, metric
    """
    took = f"""
        SELECT {TIME}, quantile_cont(duration_seconds, 0.5) AS median, quantile_cont(duration_seconds, 0.95) AS "95 %"
        FROM query_log WHERE {IN_RANGE} GROUP BY time ORDER BY time
    """
    return [
        chart("Batches", COUNT, sampled("sum(batches)"), least_step="1m", is_bars=True),
        chart("Age of stored rows", SECONDS, sampled("max(ingest_lag_seconds)"), least_step="1m"),
        chart("Lag of rollups", SECONDS, sampled("max(rollup_lag_seconds)"), least_step="1m"),
        chart("Disk used by the store", BYTES, sampled("max(disk_used_bytes)"), least_step="1m"),
        chart("Queries", COUNT, asked, is_stacked=True, is_bars=True, least_step="1m"),
        chart("Time of queries", SECONDS, took, least_step="1m"),
    ]


def _collector_queries() -> Panel:
    fields = [
        TableField("user_name", "User"), TableField("queries", "Queries", COUNT), TableField("failed", "Failed", COUNT),
        TableField("seconds", "Time", SECONDS), TableField("slowest_seconds", "Slowest", SECONDS), TableField("waited_seconds", "Waited", SECONDS),
        TableField("slowest", "Slowest query"),
    ]  # fmt: skip
    asked = f"""
        SELECT coalesce(user_name, address, 'unknown') AS user_name, count(*) AS queries,
            count(*) FILTER (outcome NOT IN ('ok', 'truncated')) AS failed, sum(duration_seconds) AS seconds,
            max(duration_seconds) AS slowest_seconds, sum(wait_seconds) AS waited_seconds,
            arg_max(left(sql, 300), duration_seconds) AS slowest
        FROM query_log WHERE {IN_RANGE} GROUP BY 1 ORDER BY seconds DESC LIMIT 50
    """
    return rows("By user", fields, asked, about="A token of scope read sees its own queries only.")
