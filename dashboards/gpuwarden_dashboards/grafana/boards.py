"""Defines the dashboards for Grafana, in PromQL: of the collector, or of a Prometheus that scrapes our exporters.

Waste, health and collector ask for metrics of the collector, which exporters have not.
"""

from collections.abc import Sequence

from gpuwarden_dashboards.grafana.dashboard import GrafanaDashboard, Variable, choice, uid
from gpuwarden_dashboards.grafana.panels import (
    BYTES,
    BYTES_A_SECOND,
    CELSIUS,
    COUNT,
    DOLLARS,
    FILLED,
    GOOD_AT_ZERO,
    HEAT,
    HERTZ,
    HOURS,
    PAGE,
    RATIO,
    SECONDS,
    WATTS,
    Panel,
    PanelLink,
    TableField,
    bars,
    chart,
    number,
    rows,
)

IDLE = 0.05
"""As `idle_seconds` of the rollups."""
GPU = "gpuwarden_gpu_"
HOST = "gpuwarden_host_"
HELD = "gpuwarden_process_gpu_memory_bytes"
FLEET = '{node=~"$node"}'
NODE = '{node="$node"}'
ONE = '{node="$node", gpu="$gpu"}'
JOB = '{username=~"$user", slurm_job_id=~"$job", pod=~"$pod"}'
BY_JOB = "username, slurm_job_id, pod"
GPU_NAME = "GPU {{gpu}} {{mig_instance}}"
GPU_OF_NODE = "{{node}}/{{gpu}} {{mig_instance}}"
USER_PAGE = PanelLink("Page of this user", f"{PAGE}/users/${{__value.text}}")
JOB_PAGE = PanelLink("Page of this job", f"{PAGE}/jobs/${{__value.text}}")
USER_FIELD = TableField("username", "User", links=(USER_PAGE,))
SLURM_FIELD = TableField("slurm_job_id", "Slurm job", links=(JOB_PAGE,))
POD_FIELD = TableField("pod", "Pod", links=(JOB_PAGE,))
GPU_PAGE = PanelLink("Page of this GPU", f"{PAGE}/gpus/${{__field.labels.gpu_uuid}}")


def of(name: str, **variables: str) -> str:
    """Address of another dashboard, for the same time and data source."""
    given = "".join(f"&var-{key}={value}" for key, value in variables.items())
    return f"/d/{uid(name)}?${{__url_time_range}}&${{datasource:queryparam}}{given}"


NODE_LINKS = (
    PanelLink("Node", of("node", node="${__value.text}")),
    PanelLink("Page of this node", f"{PAGE}/nodes/${{__value.text}}"),
)
GPU_LINKS = (
    PanelLink("GPU", of("gpu", node="${__data.fields.Node}", gpu="${__value.text}")),
    PanelLink("Page of this GPU", f"{PAGE}/nodes/${{__data.fields.Node}}?gpu=${{__value.text}}"),
)


def nodes(*, is_multi: bool) -> Variable:
    """The variable `node`."""
    query = "label_values(gpuwarden_host_load_1m, node)"
    return choice("node", "Node", query, is_multi=is_multi)


def boards() -> Sequence[GrafanaDashboard]:
    """All dashboards."""
    return [fleet(), node(), gpu(), job(), waste(), health(), collector()]


def fleet() -> GrafanaDashboard:
    """Is the fleet up, busy, cool, and powered as expected; which node is not?"""
    about = "Is the fleet up, busy and cool? Which node is not?"
    return GrafanaDashboard(
        "fleet", "Fleet", about,
        [("Now", _fleet_now()), ("Over time", _fleet_charts()), ("Nodes", [_fleet_nodes()])],
        [nodes(is_multi=True)], since="now-1h",
    )  # fmt: skip


def _fleet_now() -> list[Panel]:
    util = f"{GPU}util_ratio{FLEET}"
    held = f"({util} < {IDLE}) and on (gpu_uuid) {HELD}{FLEET}"
    return [
        number("Nodes", COUNT, {"": f"count({HOST}load_1m{FLEET})"}, about="Nodes that report."),
        number("GPUs", COUNT, {"": f"count({util})"}, about="GPUs and MIG devices that report."),
        number("Utilization", RATIO, {"": f"avg({util})"}, about="Mean of all GPUs; a kernel ran in that share of the time."),
        number("Idle GPUs", COUNT, {"": f"count({util} < {IDLE}) or vector(0)"}, about="Utilization below 5 %."),
        number("Idle and held", COUNT, {"": f"count({held}) or vector(0)"}, about="Idle GPUs on which a process holds memory.",
            steps=((None, "green"), (1, "orange"))),
        number("Power", WATTS, {"": f"sum({GPU}power_watts{FLEET})"}),
    ]  # fmt: skip


def _fleet_charts() -> list[Panel]:
    util = f"{GPU}util_ratio{FLEET}"
    slowed = "avg by (node) (rate({}{}_seconds_total{}[$__rate_interval]))"
    return [
        chart("Utilization", RATIO, {"{{node}}": f"avg by (node) ({util})"}, most=1),
        chart("GPUs", COUNT, {"busy": f"count({util} >= {IDLE}) or vector(0)", "idle": f"count({util} < {IDLE}) or vector(0)"},
            is_stacked=True, about="Idle: utilization below 5 %."),
        chart("SMs active", RATIO, {"{{node}}": f"avg by (node) ({GPU}sm_active_ratio{FLEET})"}, most=1,
            about="Share of the SMs that had work: how much of the GPUs is used. Hopper and newer."),
        chart("Memory used", RATIO,
            {"{{node}}": f"sum by (node) ({GPU}memory_used_bytes{FLEET}) / sum by (node) ({GPU}memory_total_bytes{FLEET})"}, most=1),
        chart("Power", WATTS, {"{{node}}": f"sum by (node) ({GPU}power_watts{FLEET})"}, is_stacked=True),
        chart("Hottest GPU", CELSIUS, {"{{node}}": f"max by (node) ({GPU}temperature_celsius{FLEET})"}),
        chart("Clocks held down by heat", RATIO, {"{{node}}": slowed.format(GPU, "thermal_violation", FLEET)},
            about="Share of the time, mean of the node's GPUs."),
        chart("Clocks held down by the power cap", RATIO, {"{{node}}": slowed.format(GPU, "power_violation", FLEET)},
            about="Share of the time, mean of the node's GPUs. Normal under full load."),
    ]  # fmt: skip


def _fleet_nodes() -> Panel:
    fields = [
        TableField("node", "Node", links=NODE_LINKS),
        TableField("GPUs", "GPUs", COUNT),
        TableField("Idle", "Idle", COUNT),
        TableField("Utilization", "Utilization", RATIO),
        TableField("Memory", "Memory", RATIO, FILLED),
        TableField("Power", "Power", WATTS),
        TableField("Hottest", "Hottest", CELSIUS, HEAT),
        TableField("CPU", "CPU", RATIO),
        TableField(
            "CPU waits for I/O",
            "CPU waits for I/O",
            RATIO,
            ((None, "green"), (0.1, "orange"), (0.3, "red")),
        ),
    ]
    util = f"{GPU}util_ratio{FLEET}"
    queries = {
        "GPUs": f"count by (node) ({util})",
        "Idle": f"count by (node) ({util} < {IDLE})",
        "Utilization": f"avg by (node) ({util})",
        "Memory": f"sum by (node) ({GPU}memory_used_bytes{FLEET}) / sum by (node) ({GPU}memory_total_bytes{FLEET})",
        "Power": f"sum by (node) ({GPU}power_watts{FLEET})",
        "Hottest": f"max by (node) ({GPU}temperature_celsius{FLEET})",
        "CPU": f"max by (node) ({HOST}cpu_util_ratio{FLEET})",
        "CPU waits for I/O": f"max by (node) ({HOST}cpu_iowait_ratio{FLEET})",
    }
    return rows("Nodes", fields, queries, height=10, sort=("Hottest", True))


def node() -> GrafanaDashboard:
    """What do the GPUs of a node do, and does its host keep up?"""
    about = "What do the GPUs of this node do, and does its host keep up?"
    return GrafanaDashboard(
        "node", "Node", about,
        [("Now", _node_now()), ("GPUs", _node_gpus()), ("Host", _node_host())],
        [nodes(is_multi=False)], since="now-3h", page="/nodes/${node}",
    )  # fmt: skip


def _node_now() -> list[Panel]:
    fields = [
        TableField("gpu", "GPU", links=GPU_LINKS),
        TableField("model", "Model"),
        TableField("Utilization", "Utilization", RATIO),
        TableField("SMs active", "SMs active", RATIO),
        TableField("Memory", "Memory", RATIO, FILLED),
        TableField("Power", "Power", WATTS),
        TableField("Temperature", "Temperature", CELSIUS, HEAT),
        TableField("SM clock", "SM clock", HERTZ),
    ]
    by = "max by (node, gpu, model)"
    queries = {
        "Utilization": f"{by} ({GPU}util_ratio{NODE})",
        "SMs active": f"{by} ({GPU}sm_active_ratio{NODE})",
        "Memory": f"{by} ({GPU}memory_used_bytes{NODE} / {GPU}memory_total_bytes{NODE})",
        "Power": f"{by} ({GPU}power_watts{NODE})",
        "Temperature": f"{by} ({GPU}temperature_celsius{NODE})",
        "SM clock": f"{by} ({GPU}sm_clock_hertz{NODE})",
    }
    return [rows("GPUs now", [TableField("node", "Node"), *fields], queries, sort=("GPU", False))]


def _node_gpus() -> list[Panel]:
    rate = "rate({}[$__rate_interval])"
    links = (GPU_PAGE,)
    return [
        chart("Utilization", RATIO, {GPU_NAME: f"{GPU}util_ratio{NODE}"}, most=1, links=links),
        chart("SMs active", RATIO, {GPU_NAME: f"{GPU}sm_active_ratio{NODE}"}, most=1, links=links,
            about="Share of the SMs that had work. Hopper and newer."),
        chart("Memory used", BYTES, {GPU_NAME: f"{GPU}memory_used_bytes{NODE}"}, links=links),
        chart("Power", WATTS, {GPU_NAME: f"{GPU}power_watts{NODE}"}, links=links),
        chart("Temperature", CELSIUS, {GPU_NAME: f"{GPU}temperature_celsius{NODE}"}, links=links),
        chart("SM clock", HERTZ, {GPU_NAME: f"{GPU}sm_clock_hertz{NODE}"}, links=links),
        chart("PCIe", BYTES_A_SECOND,
            {f"{GPU_NAME} {way}": rate.format(f"{GPU}pcie_{name}_bytes_total{NODE}") for name, way in (("rx", "in"), ("tx", "out"))}),
        chart("NVLink", BYTES_A_SECOND,
            {f"{GPU_NAME} {way}": rate.format(f"{GPU}nvlink_{name}_bytes_total{NODE}") for name, way in (("rx", "in"), ("tx", "out"))}),
    ]  # fmt: skip


def _node_host() -> list[Panel]:
    def rate(name: str) -> str:
        return f"rate({HOST}{name}_total{NODE}[$__rate_interval])"

    return [
        chart("CPU", RATIO, {
            "user": f"{HOST}cpu_user_ratio{NODE}", "system": f"{HOST}cpu_system_ratio{NODE}",
            "waits for I/O": f"{HOST}cpu_iowait_ratio{NODE}",
        }, most=1, is_stacked=True),
        chart("Tasks that wait (PSI)", RATIO, {
            what: f"{HOST}psi_{what}_some_ratio{NODE}" for what in ("cpu", "io", "memory")
        }, most=1, about="Share of the last 10 s in which a task was stalled: data loaders that wait for CPUs, storage or memory."),
        chart("Memory", BYTES, {
            "used": f"{HOST}memory_used_bytes{NODE}", "cached": f"{HOST}memory_cached_bytes{NODE}",
            "total": f"{HOST}memory_total_bytes{NODE}", "/dev/shm": f"{HOST}shm_used_bytes{NODE}",
        }),
        chart("Disks", BYTES_A_SECOND, {"read": rate("disk_read_bytes"), "written": rate("disk_write_bytes")}),
        chart("Network", BYTES_A_SECOND, {"in": rate("network_rx_bytes"), "out": rate("network_tx_bytes")}),
        chart("InfiniBand and RoCE", BYTES_A_SECOND, {
            f"{{{{device}}}}/{{{{port}}}} {way}": f"rate(gpuwarden_infiniband_{name}_bytes_total{NODE}[$__rate_interval])"
            for name, way in (("rx", "in"), ("tx", "out"))
        }),
    ]  # fmt: skip


def gpu() -> GrafanaDashboard:
    """What does a GPU do, what holds it back, who has it?"""
    about = "What does this GPU do, what holds it back, and who has it?"
    index = choice("gpu", "GPU", f"label_values({GPU}power_watts{NODE}, gpu)")
    return GrafanaDashboard(
        "gpu", "GPU", about,
        [("Now", _gpu_now()), ("Work", _gpu_work()), ("Limits and links", _gpu_limits())],
        [nodes(is_multi=False), index], since="now-3h", page="/nodes/${node}?gpu=${gpu}",
    )  # fmt: skip


def _gpu_now() -> list[Panel]:
    fields = [
        TableField("pid", "PID"),
        TableField("process_name", "Process"),
        TableField("username", "User"),
        TableField(
            "slurm_job_id", "Slurm job", links=(PanelLink("Job", of("job", job="${__value.text}")),)
        ),
        TableField("pod", "Pod", links=(PanelLink("Job", of("job", pod="${__value.text}")),)),
        TableField("Memory", "Memory", BYTES),
    ]
    memory = f"{GPU}memory_used_bytes{ONE} / {GPU}memory_total_bytes{ONE}"
    held = f"sum by (pid, process_name, {BY_JOB}) ({HELD}{ONE})"
    return [
        number("Utilization", RATIO, {"": f"max({GPU}util_ratio{ONE})"}, width=3),
        number("Memory", RATIO, {"": f"max({memory})"}, steps=FILLED, width=3),
        number("Power", WATTS, {"": f"max({GPU}power_watts{ONE})"}, width=3),
        number(
            "Temperature", CELSIUS, {"": f"max({GPU}temperature_celsius{ONE})"}, steps=HEAT, width=3
        ),
        rows("Processes", fields, {"Memory": held}, width=12, height=4),
    ]


def _gpu_work() -> list[Panel]:
    active = {
        "utilization": "util", "SMs active": "sm_active", "SM occupancy": "sm_occupancy",
        "tensor cores": "tensor_active", "memory bandwidth": "dram_active",
    }  # fmt: skip
    shares = {legend: f"max({GPU}{name}_ratio{ONE})" for legend, name in active.items()}
    memory = {name: f"max({GPU}memory_{name}_bytes{ONE})" for name in ("used", "reserved", "total")}
    return [
        chart("How busy", RATIO, shares, most=1,
            about="Utilization says only whether a kernel ran; the others say how much of the GPU worked (Hopper and newer)."),
        chart("Memory", BYTES, memory),
        chart("Power", WATTS, {"power": f"max({GPU}power_watts{ONE})", "limit": f"max({GPU}power_limit_watts{ONE})"}),
        chart("Clocks", HERTZ, {"SM": f"max({GPU}sm_clock_hertz{ONE})", "memory": f"max({GPU}memory_clock_hertz{ONE})"}),
    ]  # fmt: skip


def _gpu_limits() -> list[Panel]:
    held = {
        "power cap": "power_violation", "heat, software": "sw_thermal", "heat, hardware": "hw_thermal",
        "power brake": "hw_power_brake",
    }  # fmt: skip

    def rate(name: str) -> str:
        return f"max(rate({GPU}{name}_total{ONE}[$__rate_interval]))"

    return [
        chart("Temperature", CELSIUS, {
            "core": f"max({GPU}temperature_celsius{ONE})", "memory": f"max({GPU}memory_temperature_celsius{ONE})",
        }),
        chart("What holds the clocks down", RATIO, {legend: rate(f"{name}_seconds") for legend, name in held.items()},
            about="Share of the time."),
        chart("PCIe and NVLink", BYTES_A_SECOND, {
            "PCIe in": rate("pcie_rx_bytes"), "PCIe out": rate("pcie_tx_bytes"),
            "NVLink in": rate("nvlink_rx_bytes"), "NVLink out": rate("nvlink_tx_bytes"),
        }),
        chart("Errors", COUNT, {
            "ECC corrected, since the driver was loaded": f"max({GPU}ecc_corrected_volatile_total{ONE})",
            "ECC uncorrected, since the driver was loaded": f"max({GPU}ecc_uncorrected_volatile_total{ONE})",
            "rows remapped": f"max({GPU}remapped_rows_uncorrected_total{ONE} + {GPU}remapped_rows_corrected_total{ONE})",
            "PCIe replays": f"max({GPU}pcie_replays_total{ONE})",
        }, about="Counters as the device has them: a step is an error."),
    ]  # fmt: skip


def job() -> GrafanaDashboard:
    """Does a job use its GPUs, and what does it wait for?"""
    about = (
        "Do these jobs use their GPUs, and what do they wait for? Choose by user, Slurm job or pod."
    )
    variables = [
        choice(name, label, f"label_values({HELD}, {of_label})", is_multi=True)
        for name, label, of_label in (("user", "User", "username"), ("job", "Slurm job", "slurm_job_id"), ("pod", "Pod", "pod"))
    ]  # fmt: skip
    return GrafanaDashboard(
        "job", "Jobs", about,
        [("Now", [_jobs_now(), _verdicts()]), ("GPUs", _job_gpus()), ("Input", _job_input())],
        variables, since="now-3h", page="/money?by=job",
    )  # fmt: skip


def _per_job(metric: str) -> str:
    """A reading of the GPUs of each job, once for each GPU."""
    return f"max by (gpu_uuid, {BY_JOB}) ({HELD}{JOB}) * 0 + on (gpu_uuid) group_left () {metric}"


def _jobs_now() -> Panel:
    fields = [
        USER_FIELD,
        SLURM_FIELD,
        POD_FIELD,
        TableField("GPUs", "GPUs", COUNT),
        TableField(
            "Utilization", "Utilization", RATIO, ((None, "red"), (IDLE, "orange"), (0.5, "green"))
        ),
        TableField("GPU memory", "GPU memory", BYTES),
        TableField("Power", "Power", WATTS),
        TableField("CPU", "CPU", RATIO),
        TableField("Host memory", "Host memory", BYTES),
    ]
    process = "max by (node, pid, {}) ({}{})"
    queries = {
        "GPUs": f"count by ({BY_JOB}) (max by (gpu_uuid, {BY_JOB}) ({HELD}{JOB}))",
        "Utilization": f"avg by ({BY_JOB}) ({_per_job(f'{GPU}util_ratio')})",
        "GPU memory": f"sum by ({BY_JOB}) ({HELD}{JOB})",
        "Power": f"sum by ({BY_JOB}) ({_per_job(f'{GPU}power_watts')})",
        "CPU": f"sum by ({BY_JOB}) ({process.format(BY_JOB, 'gpuwarden_process_cpu_ratio', JOB)})",
        "Host memory": f"sum by ({BY_JOB}) ({process.format(BY_JOB, 'gpuwarden_process_rss_bytes', JOB)})",
    }
    about = "Jobs with processes on GPUs. CPU: 100 % is one core. Power is that of the GPU, also where jobs share it."
    return rows("Jobs now", fields, queries, about=about, height=9, sort=("Utilization", False))


def _verdicts() -> Panel:
    fields = [
        TableField("job", "Job"),
        USER_FIELD,
        TableField("bottleneck", "Verdict"),
        TableField("GPUs", "GPUs", COUNT),
        TableField(
            "Does nothing", "Does nothing", RATIO, ((None, "green"), (0.1, "orange"), (0.3, "red"))
        ),
        TableField("Loss, $/h", "Loss, $/h", DOLLARS),
    ]
    by, mine = "by (job, username, bottleneck)", '{kind="gpu", username=~"$user"}'
    queries = {
        "GPUs": f"sum {by} (gpuwarden_diagnosis{mine})",
        "Does nothing": f"avg {by} (gpuwarden_diagnosis_stall_ratio{mine})",
        "Loss, $/h": f"sum {by} (gpuwarden_diagnosis_usd_per_hour{mine})",
    }
    return rows(
        "Verdicts",
        fields,
        queries,
        about="What holds each job's GPUs up now, by the collector's diagnosis. By user alone.",
    )


def _job_gpus() -> list[Panel]:
    def mine(name: str) -> dict[str, str]:
        return {GPU_OF_NODE: f"{GPU}{name} and on (gpu_uuid) {HELD}{JOB}"}

    links = (GPU_PAGE,)
    return [
        chart("Utilization", RATIO, mine("util_ratio"), most=1, links=links),
        chart("SMs active", RATIO, mine("sm_active_ratio"), most=1, links=links,
            about="Share of the SMs that had work. Hopper and newer."),
        chart("Memory used", BYTES, mine("memory_used_bytes"), links=links),
        chart("Power", WATTS, mine("power_watts"), links=links),
    ]  # fmt: skip


def _job_input() -> list[Panel]:
    name = "{{node}}/{{gpu}} {{pid}}"

    def of_process(metric: str) -> str:
        return f"gpuwarden_process_{metric}{JOB}"

    return [
        chart("Main thread", RATIO, {name: of_process("main_cpu_ratio")},
            about="CPU of the busiest thread of each process. Near 100 %: Python itself is the limit."),
        chart("Data-loader workers that are saturated", RATIO, {name: of_process("loader_saturated_ratio")}, most=1,
            about="Share of the workers at 85 % of a core or more: more workers would help, if there are cores."),
        chart("Data-loader workers blocked on storage", RATIO, {name: of_process("loader_blocked_ratio")}, most=1),
        chart("Read, page cache included", BYTES_A_SECOND, {name: f"rate({of_process('read_chars_total')}[$__rate_interval])"}),
    ]  # fmt: skip


def waste() -> GrafanaDashboard:
    """What do the GPUs cost, how much of it is wasted, why, and by whom?"""
    about = "What do the GPUs cost, how much of it is wasted, why, and whose is it? By the hour; the hour that runs counts whole."
    return GrafanaDashboard(
        "waste", "Waste and money", about,
        [("Summary", _waste_summary()), ("Over time", _waste_charts()), ("Where to look", _waste_tables())],
        since="now-7d", refresh="15m", page="/money",
    )  # fmt: skip


USD = "gpuwarden_waste_usd_per_hour"
TIME = "gpuwarden_waste_time_ratio"
WASTED = '{is_waste="true"}'


def _waste_summary() -> list[Panel]:
    def spent(metric: str) -> str:
        return f"sum(sum_over_time({metric}[$__range]))"

    busy = spent(TIME + '{category=~"productive|busy"}')
    return [
        number("Cost", DOLLARS, {"": spent(USD)}),
        number("Wasted", DOLLARS, {"": spent(USD + WASTED)}, steps=((None, "orange"),)),
        number("Wasted share", RATIO, {"": f"{spent(TIME + WASTED)} / {spent(TIME)}"}, about="Of the GPU hours."),
        number("A busy GPU hour", DOLLARS, {"": f"{spent(USD)} / {busy}"},
            about="What it costs with all waste spread over the hours in which a kernel ran."),
        number("Cost an hour now", DOLLARS, {"": f"sum({USD})"}),
        number("Wasted an hour now", DOLLARS, {"": f"sum({USD}{WASTED}) or vector(0)"}, steps=((None, "orange"),)),
    ]  # fmt: skip


def _waste_charts() -> list[Panel]:
    return [
        chart("GPUs by what they do", COUNT, {"{{category}}": f"sum by (category) ({TIME})"}, is_stacked=True, least_step="1h"),
        chart("Dollars wasted an hour, by reason", DOLLARS, {"{{category}}": f"sum by (category) ({USD}{WASTED})"},
            is_stacked=True, least_step="1h"),
        chart("Verdicts on GPUs", COUNT, {"{{bottleneck}}": 'sum by (bottleneck) (gpuwarden_diagnosis{kind="gpu"})'},
            is_stacked=True, about="What holds GPUs up, by the collector's diagnosis (docs/diagnosis.md)."),
        chart("GPUs that a scheduler gave out", COUNT, {
            "busy": f"count(max by (gpu_uuid) (gpuwarden_gpu_allocated) and on (gpu_uuid) {GPU}util_ratio >= {IDLE}) or vector(0)",
            "idle": f"count(max by (gpu_uuid) (gpuwarden_gpu_allocated) and on (gpu_uuid) {GPU}util_ratio < {IDLE}) or vector(0)",
        }, is_stacked=True),
    ]  # fmt: skip


def _waste_tables() -> list[Panel]:
    def by(label: str) -> Panel:
        queries = f"topk(20, sum by ({label}) (sum_over_time({USD}{WASTED}[$__range])))"
        name = {"username": "user"}.get(label, label)
        return bars(f"Dollars wasted, by {name}", DOLLARS, {f"{{{{{label}}}}}": queries}, width=8)

    held = [
        TableField("node", "Node", links=NODE_LINKS),
        TableField("gpu", "GPU", links=GPU_LINKS),
        USER_FIELD,
        SLURM_FIELD,
        POD_FIELD,
        TableField("GPU memory", "GPU memory", BYTES),
    ]
    holders = f"sum by (node, gpu, {BY_JOB}) ({HELD} and on (gpu_uuid) {GPU}util_ratio < {IDLE})"
    users = [
        USER_FIELD,
        TableField("GPU hours", "GPU hours", HOURS, decimals=1),
        TableField("Cost", "Cost", DOLLARS),
        TableField("Wasted", "Wasted", DOLLARS),
    ]
    of_users = {
        name: f"sum by (username) (sum_over_time({metric}[$__range]))"
        for name, metric in (("GPU hours", TIME), ("Cost", USD), ("Wasted", USD + WASTED))
    }
    jobs = [
        TableField("job", "Job", links=(JOB_PAGE,)),
        USER_FIELD,
        TableField("GPU hours", "GPU hours", HOURS, decimals=1),
        TableField("Busy", "Busy", RATIO, ((None, "red"), (0.2, "orange"), (0.5, "green"))),
        TableField("Wasted", "Wasted", DOLLARS),
    ]
    queries = {
        "GPU hours": "sum by (job, username) (sum_over_time(gpuwarden_job_gpu_hours[$__range]))",
        "Busy": "avg by (job, username) (avg_over_time(gpuwarden_job_efficiency_ratio[$__range]))",
        "Wasted": f'sum by (job, username) (sum_over_time({USD}{{is_waste="true", job!=""}}[$__range]))',
    }
    return [
        by("username"), by("team"), by("model"),
        rows("Users", users, of_users, width=12, sort=("Cost", True)),
        rows("Jobs", jobs, queries, about="Busy: mean of its hours.", width=12, sort=("Wasted", True)),
        rows("Idle GPUs that someone holds now", held, {"GPU memory": holders}),
    ]  # fmt: skip


def health() -> GrafanaDashboard:
    """Which hardware fails, what needs a person, what is not watched?"""
    about = "Which hardware fails or needs a person, and what is not watched?"
    return GrafanaDashboard(
        "health", "Health", about,
        [("Now", _health_now()), ("Incidents", _health_incidents()), ("Hardware", _health_hardware())],
        [nodes(is_multi=True)], since="now-24h", page="/incidents",
    )  # fmt: skip


def _health_now() -> list[Panel]:
    def gpus(condition: str) -> dict[str, str]:
        return {"": f"count({condition}) or vector(0)"}

    failed = " or ".join(
        f"{GPU}{name}{FLEET} == 1"
        for name in ("remap_failed", "sram_threshold_exceeded", "memory_unrepairable")
    )
    return [
        number("Open incidents", COUNT, {"": "sum(gpuwarden_incident_open) or vector(0)"}, steps=((None, "green"), (1, "orange")),
            links=(PanelLink("Incidents", f"{PAGE}/incidents"),)),
        number("Critical alerts", COUNT, {"": 'sum(ALERTS{alertstate="firing", severity="critical"}) or vector(0)'},
            steps=GOOD_AT_ZERO, links=(PanelLink("Alerts", f"{PAGE}/alerts"),)),
        number("GPUs to reset", COUNT, gpus(f"{GPU}remap_pending{FLEET} == 1"), steps=((None, "green"), (1, "orange")),
            about="A row waits to be remapped."),
        number("Boards to replace", COUNT, gpus(f"max by (gpu_uuid) ({failed})"), steps=GOOD_AT_ZERO,
            about="A row could not be remapped, SRAM errors are above NVIDIA's threshold, or memory cannot be repaired."),
        number("GPUs with uncorrected errors", COUNT, gpus(f"{GPU}ecc_uncorrected_volatile_total{FLEET} > 0"), steps=GOOD_AT_ZERO,
            about="Since the driver was loaded."),
        number("Links down", COUNT, gpus(f"gpuwarden_link_active{FLEET} == 0"), steps=GOOD_AT_ZERO,
            about="NVLinks, C2C and xGMI links."),
    ]  # fmt: skip


def _health_incidents() -> list[Panel]:
    by = "max by (severity, rule, place, owner, id)"
    fields = [
        TableField("severity", "Severity"),
        TableField("rule", "Rule"),
        TableField("place", "Place"),
        TableField("owner", "Owner"),
        TableField("$/h", "$/h", DOLLARS),
        TableField(
            "id", "Incident", links=(PanelLink("Incident", f"{PAGE}/incidents/${{__value.text}}"),)
        ),
        TableField("Open", "Open", COUNT),
    ]
    queries = {
        "$/h": f"{by} (gpuwarden_incident_usd_per_hour)",
        "Open": f"{by} (gpuwarden_incident_open)",
    }
    alerts = 'sum by ({}) (ALERTS{{alertstate="firing"}})'
    return [
        rows("Open incidents", fields, queries, width=12, sort=("$/h", True)),
        chart("Firing alerts", COUNT, {"{{severity}}": alerts.format("severity")}, width=12, is_stacked=True),
        chart("Firing alerts, by rule", COUNT, {"{{alertname}}": alerts.format("alertname")}, width=24, is_stacked=True),
    ]  # fmt: skip


def _health_hardware() -> list[Panel]:
    def grown(*names: str) -> dict[str, str]:
        return {
            "{{node}}": " + ".join(f"sum by (node) (increase({name}{FLEET}[1h]))" for name in names)
        }

    taken = f"sum by (node) (gpuwarden_coverage_taken{FLEET}) / sum by (node) (gpuwarden_coverage_expected{FLEET} > 0)"
    return [
        chart("Corrected memory errors in an hour", COUNT, grown(f"{GPU}ecc_corrected_volatile_total")),
        chart("Uncorrected memory errors in an hour", COUNT, grown(f"{GPU}ecc_uncorrected_volatile_total")),
        chart("Errors of links in an hour", COUNT,
            grown("gpuwarden_link_replay_errors_total", "gpuwarden_link_recovery_errors_total", "gpuwarden_link_crc_flit_errors_total"),
            about="Replays, recoveries and wrong checksums."),
        chart("PCIe replays in an hour", COUNT, grown(f"{GPU}pcie_replays_total")),
        chart("Clocks held down by heat", RATIO,
            {"{{node}}": f"avg by (node) (rate({GPU}thermal_violation_seconds_total{FLEET}[$__rate_interval]))"},
            about="Share of the time, mean of the node's GPUs."),
        chart("Readings that became samples", RATIO, {"{{node}}": taken}, most=1,
            about="Of those that were due: below 1 a device or the agent is slow."),
    ]  # fmt: skip


def collector() -> GrafanaDashboard:
    """Does the collector keep up?"""
    about = "Does the collector store, keep room, judge and notify?"
    return GrafanaDashboard(
        "collector", "Collector", about,
        [("Now", _collector_now()), ("Over time", _collector_charts())],
        page="/collector",
    )  # fmt: skip


OWN = "gpuwarden_collector_"


def _collector_now() -> list[Panel]:
    def in_range(name: str) -> str:
        return f"sum(sum_over_time({OWN}minute_{name}[$__range]))"

    return [
        number("Age of stored rows", SECONDS, {"": f"max({OWN}ingest_lag_seconds)"}, decimals=1,
            steps=((None, "green"), (15, "orange"), (60, "red")), about="When they are stored; agents send every five seconds."),
        number("Lag of rollups", SECONDS, {"": f"max({OWN}rollup_lag_seconds)"}, decimals=0,
            steps=((None, "green"), (300, "orange"), (900, "red"))),
        number("Free disk", BYTES, {"": f"min({OWN}disk_free_bytes)"}),
        number("Refused batches", COUNT, {"": in_range("refused_batches")}, steps=GOOD_AT_ZERO, about="In the chosen time."),
        number("Failures", COUNT, {"": f"{in_range('commit_failures')} + {in_range('task_failures')}"}, steps=GOOD_AT_ZERO,
            about="Commits and tasks of the store, in the chosen time; they are repeated."),
        number("Slow rules", COUNT, {"": f"sum({OWN}rules_slow)"}, steps=((None, "green"), (1, "orange")),
            about="Rules whose last evaluation took longer than their interval."),
    ]  # fmt: skip


def _collector_charts() -> list[Panel]:
    def own(name: str) -> dict[str, str]:
        return {"{{host}}": f"{OWN}{name}"}

    return [
        chart("Batches a minute", COUNT, own("minute_batches"), least_step="1m"),
        chart("Age of stored rows", SECONDS, own("ingest_lag_seconds"), least_step="1m"),
        chart("Lag of rollups", SECONDS, own("rollup_lag_seconds"), least_step="1m"),
        chart("Batches that wait for the writer", BYTES, own("queue_bytes"), least_step="1m"),
        chart("Disk used by the store", BYTES, own("disk_used_bytes"), least_step="1m"),
        chart("Host waits for a CPU", RATIO, own("cpu_pressure_ratio"), most=1, least_step="1m"),
    ]
