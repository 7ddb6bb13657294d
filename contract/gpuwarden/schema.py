"""Defines the tables that rules, dashboards and users query: names, columns, types and keys are a public promise.

Sample tables are made from the catalogue (`metrics.py`). What an agent may send is `WIRE_TABLES`;
the rest is written by the collector. Views are in `views.sql` beside this file, but for `waste` and
`budgets_now`, which `waste.py` and `budgets.py` make. Time is UTC.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from gpuwarden.audit import AUDIT
from gpuwarden.budgets import BUDGETS, budgets_view_sql
from gpuwarden.collector_samples import COLLECTOR_SAMPLES
from gpuwarden.gpu_test import GPU_TESTS
from gpuwarden.idleness import IDLE_1M
from gpuwarden.metrics import METRICS, Metric, Type
from gpuwarden.offers import GPU_OFFERS
from gpuwarden.query_log import QUERY_LOG
from gpuwarden.rollups import ROLLUPS
from gpuwarden.table import GPU, GPU_UUID, LIST, MAP, MIG, NODE, SIMULATED, TS, Column, Table
from gpuwarden.waste import WASTE_1H, view_sql


def _columns(metrics: tuple[Metric, ...]) -> tuple[Column, ...]:
    return tuple(Column(m.name, m.type, m.meaning, limits=m.limits) for m in metrics)


# fmt: off
GPU_SAMPLES = Table("gpu_samples", "GPU and second", ("gpu_uuid", "ts"), (
    TS, NODE, GPU, GPU_UUID, MIG, SIMULATED, *_columns(METRICS["gpu_samples"]),
))

GPU_DETAIL_SAMPLES = Table("gpu_detail_samples", "GPU and ten seconds", ("gpu_uuid", "ts"), (
    TS, NODE, GPU, GPU_UUID, MIG, SIMULATED, *_columns(METRICS["gpu_detail_samples"]),
))

GPU_HEALTH_SAMPLES = Table("gpu_health_samples", "GPU and minute", ("gpu_uuid", "ts"), (
    TS, NODE, GPU, GPU_UUID, SIMULATED,
    Column(
        "recovery_action",
        Type.STRING,
        "What the driver asks for: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset, "
        "recover_imex_domain, bus_reset or system_reboot; unknown_N: newer than the agent.",
    ),
    Column("fabric_state", Type.STRING, "Registration with the NVLink fabric: not_started, in_progress or completed."),
    Column("fabric_status", Type.STRING, "How it ended: success, or NVML's name of the error."),
    Column(
        "fabric_health",
        Type.STRING,
        "healthy, or what the fabric suffers from, separated by commas: bandwidth_degraded, "
        "route_recovery, route_unhealthy, access_timeout_recovery, incorrect_configuration.",
    ),
    *_columns(METRICS["gpu_health_samples"]),
))

LINK_SAMPLES = Table("link_samples", "link of a GPU and ten seconds", ("gpu_uuid", "link_type", "link", "ts"), (
    TS, NODE, GPU, GPU_UUID, SIMULATED,
    Column("link_type", Type.STRING, "nvlink, c2c (GPU to CPU) or xgmi.", required=True),
    Column("link", Type.INT16, "Number of the link on its GPU.", required=True),
    Column("version", Type.INT16, "Generation of the link."),
    Column("remote_type", Type.STRING, "Device at the other end: gpu, switch or cpu."),
    Column("remote_pci_bus_id", Type.STRING, "PCI bus id of the device at the other end."),
    *_columns(METRICS["link_samples"]),
))

HOST_SAMPLES = Table("host_samples", "node and second", ("node", "ts"), (
    TS, NODE, SIMULATED, *_columns(METRICS["host_samples"]),
))

JOB = "Slurm job's id, else Kubernetes namespace/pod."
WORKLOAD = "Kind/name of the pod's owner: Deployment/llm, PyTorchJob/bert, RayCluster/tune."
PROCESS_SAMPLES = Table("process_samples", "GPU process (with its process tree) and ten seconds", ("gpu_uuid", "pid", "ts"), (
    TS, NODE, GPU, GPU_UUID, SIMULATED,
    Column("pid", Type.INT64, "Process id on the node.", required=True),
    Column("process_name", Type.STRING, "Name of the executable, without arguments."),
    Column("username", Type.STRING, "Owner of the process, or the user in its pod's labels."),
    Column("job", Type.STRING, JOB),
    Column("container_id", Type.STRING, "Container that the process runs in."),
    Column("pod", Type.STRING, "Kubernetes namespace/pod that the process runs in."),
    Column("workload", Type.STRING, WORKLOAD),
    Column("rendezvous", Type.STRING, "Rendezvous of its distributed job, as its launcher set it: address:port, or mpi and MPI's job."),
    Column("rank", Type.INT32, "Rank in its distributed job, from 0."),
    Column("world_size", Type.INT32, "Ranks of its distributed job."),
    Column("started_at", Type.TIMESTAMP, "Start of the process."),
    MIG,
    Column("process_type", Type.STRING, "compute, graphics or mps (a client of MPS)."),
    Column("command", Type.STRING, "Program, and the script or module that an interpreter runs, without arguments; NULL: the agent may not read it."),
    Column("state", Type.STRING, "State of the main thread: R, S, D, T or Z, as in ps."),
    Column("cgroup", Type.STRING, "Path of its cgroup."),
    Column("parent_pid", Type.INT64, "Process id of its parent; 1: the host's init, also where its parent has ended."),
    Column(
        "ancestors",
        Type.STRING,
        "Processes above it, up to that of its job, container or session, its parent last: slurmstepd (811) > slurm_script (815) > torchrun (820).",
    ),
    Column("loader_pids", Type.STRING, "Process ids of its loader workers, at most 64, separated by commas; NULL: it has none."),
    Column("signals_pending", Type.STRING, "Signals sent to it and not delivered yet, separated by commas; none; NULL: unknown."),
    Column("signals_blocked", Type.STRING, "Signals that its main thread blocks, as signals_pending."),
    Column("signals_ignored", Type.STRING, "Signals that it ignores, as signals_pending."),
    Column("signals_caught", Type.STRING, "Signals that it has a handler for, as signals_pending."),
    Column("cpu_numa_node", Type.INT16, "NUMA node of the CPU on which its main thread ran last."),
    Column("cpu_numa_nodes", Type.STRING, "NUMA nodes of the CPUs that its main thread may run on, separated by commas: 0,1."),
    Column("memory_numa_nodes", Type.STRING, "NUMA nodes that its main thread may take memory from, as cpu_numa_nodes."),
    *_columns(METRICS["process_samples"]),
))

ALLOCATION_SAMPLES = Table("allocation_samples", "GPU that a scheduler has allocated, and ten seconds", ("gpu_uuid", "job", "container", "ts"), (
    TS, NODE, GPU, GPU_UUID, SIMULATED,
    Column("scheduler", Type.STRING, "slurm or kubernetes.", required=True),
    Column("job", Type.STRING, JOB, required=True),
    Column("username", Type.STRING, "Owner of the Slurm job, or the user in the pod's labels."),
    Column("pod", Type.STRING, "Kubernetes namespace/pod that has the GPU."),
    Column("container", Type.STRING, "Name of the container in the pod."),
    Column("namespace", Type.STRING, "Kubernetes namespace of the pod."),
    Column("workload", Type.STRING, WORKLOAD),
    Column("team", Type.STRING, "Team in the pod's labels."),
    Column("pod_labels", Type.STRING, "JSON object of the pod's labels."),
    Column("processes", Type.INT32, "Processes on the GPU, of any user; 0: none holds it."),
))

PROGRESS_COUNTED = ("tokens", "steps", "samples")
"""Names of `progress_samples` that are totals."""
PROGRESS_SAMPLES = Table("progress_samples", "value that a job reports, when it changed, ten seconds", ("node", "source", "sender", "name", "ts"), (
    TS, NODE, SIMULATED,
    Column("source", Type.STRING, "How it came: file, or unix (a socket that knows its sender).", required=True),
    Column("sender", Type.STRING, "Name of the file, pid of the process, or job and rank of the datagram.", required=True),
    Column("username", Type.STRING, "Owner of the file or process; NULL: udp."),
    Column("job", Type.STRING, "As in process_samples, by the file's name, the process' cgroup or the datagram's tag."),
    Column("pod", Type.STRING, "The job, if it is a pod."),
    Column("rank", Type.INT32, "Rank, as the file's name or the tag says it."),
    Column("name", Type.STRING, "tokens, steps and samples are totals that grow; others are as the job says: loss.", required=True),
    Column("value", Type.FLOAT64, "The value.", required=True),
))

SLURM_JOB_SAMPLES = Table("slurm_job_samples", "Slurm job on a node, ten seconds, start and end; and change that the controller reports", ("job", "node", "ts"), (
    TS, NODE, SIMULATED,
    Column("source", Type.STRING, "Origin of the row: node (prolog, epilog, cgroups) or controller (squeue).", required=True),
    Column("job", Type.STRING, "Id of the Slurm job.", required=True),
    Column("array_job_id", Type.STRING, "Id of its job array; NULL: none."),
    Column("array_task_id", Type.STRING, "Its index in the array."),
    Column("job_name", Type.STRING, "Name of the job."),
    Column("username", Type.STRING, "Owner of the job."),
    Column("account", Type.STRING, "Account that it is charged to."),
    Column("partition", Type.STRING, "Partition that it runs in."),
    Column("qos", Type.STRING, "Quality of service."),
    Column("reservation", Type.STRING, "Reservation that it runs in."),
    Column("state", Type.STRING, "running or ended; of the controller Slurm's own: running, completed, failed, timeout..."),
    Column("node_list", Type.STRING, "Nodes of the job, as Slurm writes them: gpu[1-4]."),
    Column("nodes", Type.INT32, "Nodes of the job."),
    Column("cpus", Type.INT32, "CPUs of the job: on this node, or of the controller in all."),
    Column("gpus", Type.INT32, "GPUs of the job: on this node, or of the controller in all."),
    Column("gpu_uuids", Type.STRING, "GPUs of the job on this node, separated by commas."),
    Column("time_limit_seconds", Type.INT64, "Time limit; NULL: none, or unknown."),
    Column("submitted_at", Type.TIMESTAMP, "When it was submitted."),
    Column("started_at", Type.TIMESTAMP, "When it was started."),
    Column("ended_at", Type.TIMESTAMP, "When it ended; NULL: it runs."),
    Column("exit_code", Type.INT32, "Exit code of the job; 128 and more: a signal."),
    Column("cpu_seconds_total", Type.FLOAT64, "CPU time of the job on this node."),
    Column("memory_used_bytes", Type.INT64, "Memory of the job on this node."),
    Column("memory_peak_bytes", Type.INT64, "Peak memory of the job on this node."),
    Column("memory_limit_bytes", Type.INT64, "Memory that Slurm allocated to the job on this node."),
))

SLURM_NODE_SAMPLES = Table("slurm_node_samples", "node of Slurm and change of its state, and hour", ("slurm_node", "ts"), (
    TS, NODE, SIMULATED,
    Column("slurm_node", Type.STRING, "Name of the node in Slurm.", required=True),
    Column("state", Type.STRING, "State from sinfo: idle, mixed, draining, drained, down...", required=True),
    Column("partitions", Type.STRING, "Its partitions, separated by commas."),
    Column("reason", Type.STRING, "Why it is drained or down."),
    Column("reason_username", Type.STRING, "Who set the reason."),
    Column("reason_at", Type.TIMESTAMP, "When the reason was set."),
))

INFINIBAND_SAMPLES = Table("infiniband_samples", "InfiniBand or RoCE port and ten seconds", ("node", "device", "port", "ts"), (
    TS, NODE, SIMULATED,
    Column("device", Type.STRING, "Name of the adapter: mlx5_0.", required=True),
    Column("port", Type.INT16, "Number of the port on it.", required=True),
    Column("link_layer", Type.STRING, "InfiniBand or Ethernet."),
    Column("state", Type.STRING, "down, init, armed, active or active_defer."),
    Column("physical_state", Type.STRING, "State from the kernel: LinkUp, Polling, Disabled..."),
    Column("numa_node", Type.INT16, "NUMA node of the adapter; traffic of GPUs of another one crosses the sockets."),
    *_columns(METRICS["infiniband_samples"]),
))

COVERAGE = Table("coverage", "probe, table and minute", ("node", "probe", "table_name", "ts"), (
    Column("ts", Type.TIMESTAMP, "End of the minute that is counted, UTC.", required=True),
    NODE, GPU,
    Column("gpu_uuid", Type.STRING, "GPU of the probe; NULL: the probe reads no single GPU."),
    SIMULATED,
    Column("probe", Type.STRING, "Name of the probe: gpu0, host.", required=True),
    Column("table_name", Type.STRING, "Table that its readings fill.", required=True),
    Column("expected", Type.INT32, "Readings due in the minute.", required=True),
    Column("taken", Type.INT32, "Readings that became samples.", required=True),
    Column("missed", Type.INT32, "Ticks that the agent missed.", required=True),
    Column("skipped", Type.INT32, "Readings not started: a call still ran.", required=True),
    Column("late", Type.INT32, "Readings dropped: after the deadline.", required=True),
    Column("failed", Type.INT32, "Readings that failed.", required=True),
))

EVENTS = Table("events", "event", ("node", "ts", "kind", "gpu_uuid"), (
    TS, NODE,
    Column("gpu", Type.INT32, "Index of the GPU concerned; NULL: the node."),
    Column("gpu_uuid", Type.STRING, "GPU concerned; NULL: the node."),
    SIMULATED,
    Column("kind", Type.STRING, "What happened, one of docs/events.md.", required=True),
    Column("severity", Type.STRING, "info, warning or critical.", required=True),
    Column("message", Type.STRING, "A sentence that describes it.", required=True),
    Column("duration_seconds", Type.FLOAT64, "How long it lasted; NULL: unknown."),
    Column("details", Type.STRING, "JSON object with further values."),
))

NODES = Table("nodes", "node", ("node",), (
    NODE,
    Column("agent_id", Type.STRING, "Identity of the agent's installation.", required=True),
    Column("boot_id", Type.STRING, "The kernel's boot id.", required=True),
    Column("agent_version", Type.STRING, "Version of the agent."),
    Column("backend", Type.STRING, "Source of GPU readings: nvml, amdgpu, amdgpu+nvml, one of docs/gpus.md, simulator, replay or none."),
    Column("labels", Type.STRING, "Its labels: those of the cluster, and those of the operator, which take precedence.", nested=MAP),
    Column("kernel", Type.STRING, "Kernel release."),
    Column("os", Type.STRING, "Operating system, from os-release."),
    Column("cpu_model", Type.STRING, "CPU model."),
    Column("cpus", Type.INT32, "Logical CPUs."),
    Column("cpu_cores", Type.INT32, "Physical cores."),
    Column("memory_total_bytes", Type.INT64, "Memory of the node."),
    Column("cloud", Type.STRING, "Cloud that it is rented from: aws, azure, gcp or oci; NULL: none of them, or unknown."),
    Column("instance_type", Type.STRING, "Type of its instance: from the firmware (AWS), the cloud's metadata or Kubernetes."),
    Column("region", Type.STRING, "Region of the cloud."),
    Column("spot", Type.BOOL, "Whether it is a spot or preemptible instance, which the cloud may end; NULL: not told."),
    Column("driver_version", Type.STRING, "GPU driver."),
    Column("cuda_version", Type.STRING, "Newest CUDA that the driver supports."),
    Column("gpus", Type.INT32, "GPUs that the agent sees."),
    Column("fabric_manager", Type.STRING, "State of NVIDIA's fabric manager: active, failed, inactive; NULL: not installed."),
    Column("fabric_manager_version", Type.STRING, "Version of the fabric manager."),
    Column("kernel_module", Type.STRING, "Kind of NVIDIA's kernel module: open or proprietary."),
    SIMULATED,
))

GPUS = Table("gpus", "GPU", ("gpu_uuid",), (
    GPU_UUID, NODE, GPU, MIG,
    Column("model", Type.STRING, "Name as the driver gives it."),
    Column("vendor", Type.STRING, "nvidia, amd, or of docs/gpus.md: aws, google, huawei, intel, apple, tenstorrent, mthreads, cambricon, furiosa, rebellions."),
    Column("kind", Type.STRING, "gpu, tpu, or npu (Trainium, Inferentia, Ascend, Gaudi, Tenstorrent)."),
    Column("serial", Type.STRING, "Board serial number; absent on GeForce."),
    Column("pci_bus_id", Type.STRING, "PCI bus id, the key that kernel messages use."),
    Column("vbios_version", Type.STRING, "VBIOS version."),
    Column("memory_total_bytes", Type.INT64, "Device memory."),
    Column("power_limit_default_watts", Type.FLOAT32, "Power limit from the factory."),
    Column("power_limit_min_watts", Type.FLOAT32, "Lowest power limit that can be set."),
    Column("power_limit_max_watts", Type.FLOAT32, "Highest power limit that can be set."),
    Column("temperature_slowdown_celsius", Type.FLOAT32, "Core temperature of slowdown."),
    Column("temperature_shutdown_celsius", Type.FLOAT32, "Core temperature of shutdown."),
    Column("sm_clock_max_mhz", Type.INT32, "Highest SM clock."),
    Column("memory_clock_max_mhz", Type.INT32, "Highest memory clock."),
    Column("pcie_generation_max", Type.INT16, "PCIe generation of GPU and slot."),
    Column("pcie_width_max", Type.INT16, "PCIe lanes of GPU and slot."),
    Column("nvlinks", Type.INT16, "NVLinks that the GPU has."),
    Column("numa_node", Type.INT16, "NUMA node of the GPU."),
    Column("memory_numa_node", Type.INT16, "NUMA node of the GPU's own memory (Grace), which the host's memory includes."),
    Column("addressing_mode", Type.STRING, "How the GPU reaches memory of the CPU: none, hmm (by software), ats (by hardware, Grace)."),
    Column("mig_mode", Type.BOOL, "MIG switched on; of AMD: a compute partition mode other than SPX."),
    Column("parent_gpu_uuid", Type.STRING, "GPU that a MIG device or partition is part of."),
    Column("part_number", Type.STRING, "Part number of the board."),
    Column("inforom_version", Type.STRING, "Version of the InfoROM image."),
    Column("architecture", Type.STRING, "Architecture: ampere, hopper, blackwell..."),
    Column("compute_capability", Type.STRING, "CUDA compute capability: 9.0."),
    Column("temperature_gpu_max_celsius", Type.FLOAT32, "Highest core temperature of normal work."),
    Column("temperature_memory_max_celsius", Type.FLOAT32, "Highest memory temperature."),
    Column("margin_shutdown_celsius", Type.FLOAT32, "T.Limit margin of shutdown (FI 193)."),
    Column("margin_slowdown_celsius", Type.FLOAT32, "T.Limit margin of slowdown (FI 194)."),
    Column("margin_memory_max_celsius", Type.FLOAT32, "T.Limit margin of the memory (FI 195)."),
    Column("margin_gpu_max_celsius", Type.FLOAT32, "T.Limit margin of normal work (FI 196)."),
    Column("cpu_affinity", Type.STRING, "CPUs near the GPU: 0-31,64-95."),
    Column("peers", Type.STRING, "The path to each other GPU of the node by its PCI bus id, as nvidia-smi topo says it: NV18, PIX, PXB, PHB, NODE, SYS.", nested=MAP),
    Column("ecc_mode", Type.BOOL, "ECC switched on."),
    Column("ecc_mode_pending", Type.BOOL, "ECC after the next reboot."),
    Column("persistence_mode", Type.BOOL, "Persistence mode switched on."),
    Column("compute_mode", Type.STRING, "default, prohibited or exclusive_process."),
    Column("gsp_firmware_version", Type.STRING, "GSP firmware; NULL: not in use."),
    Column("virtualization", Type.STRING, "none (bare metal), passthrough (a whole GPU in a virtual machine), vgpu (a share of one), host_vgpu or host_vsga (the GPU of a hypervisor)."),
    Column("fabric_cluster_uuid", Type.STRING, "NVLink domain of several nodes, such as an NVL72; NULL: none."),
    Column("fabric_clique", Type.INT64, "Clique in the domain: GPUs of one clique reach each other's memory."),
    Column("chassis_serial", Type.STRING, "Serial number of the chassis, that is of the rack; NULL: unknown."),
    Column("slot", Type.INT16, "Slot of the tray in the chassis, with those of switch trays."),
    Column("tray", Type.INT16, "Number of the compute tray in the chassis."),
    Column("module_id", Type.INT16, "Number of the GPU's module in its tray or on its board, from 1."),
    SIMULATED,
))

WIRE_TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        GPU_SAMPLES, GPU_DETAIL_SAMPLES, GPU_HEALTH_SAMPLES, LINK_SAMPLES, HOST_SAMPLES, INFINIBAND_SAMPLES, PROCESS_SAMPLES,
        ALLOCATION_SAMPLES, PROGRESS_SAMPLES, SLURM_JOB_SAMPLES, SLURM_NODE_SAMPLES, COVERAGE, EVENTS, NODES, GPUS,
    )
}
"""Tables that agents may send."""

INVENTORY_EXTRA: dict[str, tuple[Column, ...]] = {
    "nodes": (
        Column("first_seen_at", Type.TIMESTAMP, "When the collector first received data of it."),
        Column("last_seen_at", Type.TIMESTAMP, "When the collector last received data of it."),
        Column("unbilled_from", Type.TIMESTAMP, "Since when its GPUs cost nothing, the last time: its agent was stopped, or it was forgotten. NULL: never."),
        Column("unbilled_until", Type.TIMESTAMP, "When it sent again after that; NULL: it has not."),
        Column("forgotten_at", Type.TIMESTAMP, "When `gpuwarden nodes forget` removed it; NULL: it is expected."),
    ),
    "gpus": (
        Column("catalogue_model", Type.STRING, "Its row in the model catalogue; NULL: unknown."),
        Column("usd_per_hour", Type.FLOAT64, "Price per hour; NULL: unknown."),
        Column("price_basis", Type.STRING, "Source of that price, as a sentence."),
        Column("usd_per_kwh", Type.FLOAT64, "Price of a kWh, times the PUE; NULL: unknown."),
        Column("co2_g_per_kwh", Type.FLOAT64, "Grams of carbon dioxide per kWh, times the PUE; NULL: unknown."),
        Column("billed_silent_s", Type.FLOAT64, "Seconds that it is billed after its last sample, unless it was removed."),
        Column("replaced_by", Type.STRING, "gpu_uuid of the board that replaced it; NULL: none."),
        Column("first_seen_at", Type.TIMESTAMP, "When the collector first received data of it."),
        Column("last_seen_at", Type.TIMESTAMP, "When the collector last received data of it."),
    ),
}
"""Columns that the collector adds."""

ALERTS = Table("alerts", "time that a rule held for one label set", ("fingerprint", "active_at"), (
    Column("fingerprint", Type.STRING, "Identity of rule and labels.", required=True),
    Column("rule", Type.STRING, "Name of the rule.", required=True),
    Column("severity", Type.STRING, "info, warning or critical.", required=True),
    Column("consequence", Type.STRING, "Consequence: lost_work, failing_hardware, unwatched, slow_work or waste.", required=True),
    Column("state", Type.STRING, "pending, firing or resolved.", required=True),
    Column("node", Type.STRING, "Label node; NULL: the alert has none."),
    Column("gpu", Type.INT32, "Label gpu; NULL: the alert has none."),
    Column("gpu_uuid", Type.STRING, "Label gpu_uuid; NULL: the alert has none."),
    Column("labels", Type.STRING, "All its labels.", required=True, nested=MAP),
    Column("summary", Type.STRING, "What is wrong, in a sentence.", required=True),
    Column("remedy", Type.STRING, "What to do about it.", required=True),
    Column("value", Type.FLOAT64, "Value that the rule returned."),
    Column("usd_per_hour", Type.FLOAT64, "Cost per hour; NULL: unknown."),
    Column("began_at", Type.TIMESTAMP, "When the condition began, by the rule.", required=True),
    Column("active_at", Type.TIMESTAMP, "First evaluation that found it.", required=True),
    Column("fired_at", Type.TIMESTAMP, "When it fired; NULL: it has not fired."),
    Column("resolved_at", Type.TIMESTAMP, "When it was resolved."),
    Column("seen_at", Type.TIMESTAMP, "Last evaluation that found it.", required=True),
    Column("simulated", Type.BOOL, "True for simulated rows.", required=True),
    Column("unknown_since", Type.TIMESTAMP, "Since when it is unknown whether the condition holds; NULL: it is known."),
    Column("owner", Type.STRING, "Username of the owner: whom it concerns, or who holds the GPU; NULL: unknown."),
    Column("job", Type.STRING, "Job that it concerns, or that has the GPU; NULL: unknown."),
    Column("accounted_usd", Type.FLOAT64, "Cost until accounted_until, from waste; NULL: usd_per_hour since it began."),
    Column("accounted_until", Type.TIMESTAMP, "End of the time that accounted_usd covers."),
    Column("muted", Type.STRING, "Why it notifies nobody: silenced or acknowledged; NULL: it notifies."),
    Column("stale_since", Type.TIMESTAMP, "Since when its node sends no samples; NULL: the node reports."),
    Column("resolved_reason", Type.STRING, "Why it was resolved although the condition may still hold; NULL: the condition ended."),
))

INCIDENTS = Table("incidents", "incident: alerts with one cause", ("id",), (
    Column("id", Type.STRING, "Identity of the incident.", required=True),
    Column("state", Type.STRING, "open, resolved, or merged into another.", required=True),
    Column("root", Type.STRING, "Fingerprint of its root alert.", required=True),
    Column("rule", Type.STRING, "Rule of the root.", required=True),
    Column("severity", Type.STRING, "Worst severity of the firing alerts, or of the last ones.", required=True),
    Column("consequence", Type.STRING, "Worst consequence of its alerts.", required=True),
    Column("summary", Type.STRING, "What is wrong, for all its roots.", required=True),
    Column("remedy", Type.STRING, "What to do about the root.", required=True),
    Column("place", Type.STRING, "The place as text; empty: the fleet.", required=True),
    Column("labels", Type.STRING, "Labels that its roots share, also those of their nodes.", required=True, nested=MAP),
    Column("nodes", Type.INT32, "Nodes of its roots.", required=True),
    Column("roots", Type.INT32, "Alerts of the root's rule without a cause.", required=True),
    Column("alerts", Type.INT32, "Number of its alerts, also resolved ones.", required=True),
    Column("firing", Type.INT32, "Number of its firing alerts.", required=True),
    Column("usd_per_hour", Type.FLOAT64, "Cost per hour of its roots, or, if unknown, of the other alerts; NULL: unknown."),
    Column("owner", Type.STRING, "Username of the owner of all roots; NULL: several or unknown."),
    Column("muted", Type.STRING, "Why it notifies nobody: its roots are silenced or acknowledged; NULL: it notifies."),
    Column("unknown_since", Type.TIMESTAMP, "Since when the state of all its alerts is unknown; NULL: some state is known."),
    Column("simulated", Type.BOOL, "True if an alert is for simulated rows.", required=True),
    Column("began_at", Type.TIMESTAMP, "When the condition of its roots began.", required=True),
    Column("opened_at", Type.TIMESTAMP, "When it was opened.", required=True),
    Column("resolved_at", Type.TIMESTAMP, "When its last alert ended, or it was merged."),
    Column("merged_into", Type.STRING, "The incident that it continues in."),
))

INCIDENT_ALERTS = Table("incident_alerts", "alert of an incident", ("incident", "fingerprint"), (
    Column("incident", Type.STRING, "Its incident.", required=True),
    Column("fingerprint", Type.STRING, "The alert.", required=True),
    Column("active_at", Type.TIMESTAMP, "Identifies the episode, the newest of several.", required=True),
    Column("rule", Type.STRING, "Its rule.", required=True),
    Column("labels", Type.STRING, "Its labels.", required=True, nested=MAP),
    Column("cause", Type.STRING, "Fingerprint of the alert that caused it; NULL: it is a root."),
    Column("joined_at", Type.TIMESTAMP, "When it became part of the incident.", required=True),
    Column("ended_at", Type.TIMESTAMP, "When it stopped firing; NULL: it still fires."),
))

SILENCES = Table("silences", "silence or acknowledgement", ("id",), (
    Column("id", Type.STRING, "Identity of the silence.", required=True),
    Column("matchers", Type.STRING, "Its matchers: node=n1.", required=True, nested=LIST),
    Column("fingerprint", Type.STRING, "Fingerprint of the acknowledged alert; NULL: a silence with matchers."),
    Column("author", Type.STRING, "Who made it.", required=True),
    Column("comment", Type.STRING, "Why.", required=True),
    Column("starts_at", Type.TIMESTAMP, "When it starts.", required=True),
    Column("ends_at", Type.TIMESTAMP, "When it ends.", required=True),
    Column("changes", Type.INT32, "How often it was changed.", required=True),
))

ANNOTATIONS = Table("annotations", "text that people and programs wrote onto charts", ("id",), (
    Column("id", Type.STRING, "Identity of the annotation.", required=True),
    Column("text", Type.STRING, "What happened.", required=True),
    Column("began_at", Type.TIMESTAMP, "When, or from when.", required=True),
    Column("ended_at", Type.TIMESTAMP, "Until when; NULL: a moment."),
    Column("node", Type.STRING, "The node it is about; NULL: any."),
    Column("gpu", Type.INT32, "Index of the GPU of the node; NULL: any."),
    Column("job", Type.STRING, "The job it is about; NULL: any."),
    Column("tags", Type.STRING, "Its tags.", required=True, nested=LIST),
    Column("author", Type.STRING, "Who wrote it: the token's comment or id; NULL: no tokens are required."),
    Column("made_at", Type.TIMESTAMP, "When it was written.", required=True),
))

DIAGNOSES = Table("diagnoses", "time that a GPU or job was in one class", ("subject", "began_at"), (
    Column("subject", Type.STRING, "UUID of the GPU, or name of the job: job 7.", required=True),
    Column("kind", Type.STRING, "gpu or job.", required=True),
    Column("bottleneck", Type.STRING, "Why it is slow: a class of docs/diagnosis.md; unknown: the data do not tell.", required=True),
    Column("confidence", Type.FLOAT64, "0 to 1; below 0.5 it is only likely.", required=True),
    Column("summary", Type.STRING, "The finding, in a sentence.", required=True),
    Column("advice", Type.STRING, "What to change, and the gain; NULL: nothing."),
    Column("evidence", Type.STRING, "JSON list of measurements: feature, value, comparison, threshold, text.", required=True),
    Column("misses", Type.STRING, "JSON list of the classes that nearly matched.", required=True),
    Column("stall", Type.FLOAT64, "Share of the time in which the GPU did nothing."),
    Column("usd_per_hour", Type.FLOAT64, "Loss per hour; NULL: unknown, or no loss."),
    Column("cause", Type.STRING, "Subject that it waits for."),
    Column("node", Type.STRING, "Node; NULL: a job on several."),
    Column("gpu", Type.INT32, "Index of the GPU; NULL: a job."),
    Column("job", Type.STRING, JOB),
    Column("username", Type.STRING, "Owner of the job."),
    Column("gpus", Type.INT32, "Number of GPUs.", required=True),
    Column("began_at", Type.TIMESTAMP, "First evaluation that found it.", required=True),
    Column("seen_at", Type.TIMESTAMP, "Last evaluation that found it; refreshed every few minutes.", required=True),
    Column("ended_at", Type.TIMESTAMP, "When it ended; NULL: it is ongoing."),
    Column("simulated", Type.BOOL, "True for simulated rows.", required=True),
))

POLICY_CASES = Table("policy_cases", "case of a policy: an alert, and what was done about it", ("id",), (
    Column("id", Type.STRING, "Identity: of the policy and the episode of the alert.", required=True),
    Column("policy", Type.STRING, "Its policy; empty: a person returned a node.", required=True),
    Column("rule", Type.STRING, "Rule of the alert.", required=True),
    Column("act", Type.STRING, "What the policy does: cancel_job, drain_node and so on.", required=True),
    Column("state", Type.STRING, "waits, kept, acting, done, failed, spared, with_others or left (docs/policies.md).", required=True),
    Column("fingerprint", Type.STRING, "The alert.", required=True),
    Column("node", Type.STRING, "Node; NULL: unknown."),
    Column("gpu_uuid", Type.STRING, "GPU; NULL: the alert has none."),
    Column("username", Type.STRING, "Whose job it is; NULL: unknown."),
    Column("job", Type.STRING, "Its job; NULL: unknown."),
    Column("team", Type.STRING, "Label team of the node; NULL: it has none."),
    Column("summary", Type.STRING, "What is wrong, in a sentence.", required=True),
    Column("note", Type.STRING, "Why it ended, or what its owner answered; NULL: nothing yet."),
    Column("began_at", Type.TIMESTAMP, "When the alert's condition began.", required=True),
    Column("active_at", Type.TIMESTAMP, "Identifies the alert's episode.", required=True),
    Column("act_at", Type.TIMESTAMP, "When the act was asked for; NULL: it was not."),
    Column("ended_at", Type.TIMESTAMP, "When the case ended; NULL: it is open."),
    Column("usd_per_hour", Type.FLOAT64, "Cost of the alert per hour; NULL: unknown."),
    Column("reused_hours", Type.FLOAT64, "Hours in which the GPU was busy with other work within 24 hours after the act, so far; NULL: no act on a job is known to be done."),
    Column("saved_usd", Type.FLOAT64, "Price of reused_hours; NULL: unknown, or the act was wrong."),
    Column("busy_again_at", Type.TIMESTAMP, "When the same user was busy on the GPU within an hour after the act, which was wrong then; NULL: never."),
    Column("judged_until", Type.TIMESTAMP, "Time up to which the hours after the act are known; NULL: not yet."),
))

TABLES: dict[str, Table] = {
    **WIRE_TABLES,
    **{name: rollup.table for name, rollup in ROLLUPS.items()},
    IDLE_1M.name: IDLE_1M,
    WASTE_1H.table.name: WASTE_1H.table,
    **{
        table.name: table
        for table in (COLLECTOR_SAMPLES, QUERY_LOG, AUDIT, GPU_TESTS, ALERTS, INCIDENTS, INCIDENT_ALERTS, SILENCES, ANNOTATIONS, DIAGNOSES, POLICY_CASES, BUDGETS, GPU_OFFERS)
    },
}
# fmt: on


def stored_columns(table: Table) -> tuple[Column, ...]:
    """Columns as stored: those that agents send, and those that the collector adds."""
    return (*table.columns, *INVENTORY_EXTRA.get(table.name, ()))


_SQL_TYPES = {
    Type.TIMESTAMP: "TIMESTAMP",
    Type.STRING: "VARCHAR",
    Type.BOOL: "BOOLEAN",
    Type.INT16: "SMALLINT",
    Type.INT32: "INTEGER",
    Type.INT64: "BIGINT",
    Type.FLOAT32: "FLOAT",
    Type.FLOAT64: "DOUBLE",
}

COLLECTOR_EVENTS = frozenset(
    {"gpu_claimed_twice", "gpus_too_many", "node_claimed_twice", "node_clock_apart"}
)
"""Kinds of events that only the collector stores: agents may not send them."""

ADMINS_ONLY = frozenset({QUERY_LOG.name, AUDIT.name})
"""Tables whose rows only scope admin reads; other callers read those with their own `token`."""

UPSERTED = frozenset(
    {
        "nodes",
        "gpus",
        "alerts",
        "incidents",
        "incident_alerts",
        "silences",
        "annotations",
        "diagnoses",
        "policy_cases",
        "budgets",
        "gpu_offers",
    }
)
"""Tables whose rows change, with their key as primary key. Sample tables have no index: it would cost more than
the inserts, and keys are unique because the collector stores each batch once."""


def column_sql(column: Column) -> str:
    """Name and DuckDB type of a column."""
    return f"{column.name} {column_type(column)}"


def column_type(column: Column) -> str:
    """DuckDB type of a column."""
    return column.nested or _SQL_TYPES[column.type]


def parsed_sql(table: Table, names: Iterable[str] | None = None) -> str:
    """SELECT list of these columns of a table, or all, as SQL has them, from rows as they are stored."""
    columns = {column.name: column for column in stored_columns(table)}
    return ", ".join(
        # One text that is no such JSON must not fail every query.
        f"TRY_CAST(TRY_CAST({c.name} AS JSON) AS {c.nested}) AS {c.name}" if c.nested else c.name
        for c in (columns.values() if names is None else map(columns.__getitem__, names))
    )


def stored_sql(table: Table) -> str:
    """The reverse of `parsed_sql`."""
    return ", ".join(
        f"CAST(to_json({c.name}) AS VARCHAR) AS {c.name}" if c.nested else c.name
        for c in stored_columns(table)
    )


def create_sql(table: Table) -> str:
    """`CREATE TABLE IF NOT EXISTS` in DuckDB's dialect, columns as stored."""
    lines = [
        f"    {column_sql(column)}{' NOT NULL' if column.required else ''}"
        for column in stored_columns(table)
    ]
    if table.name in UPSERTED:
        lines.append(f"    PRIMARY KEY ({', '.join(table.key)})")
    return f"CREATE TABLE IF NOT EXISTS {table.name} (\n" + ",\n".join(lines) + "\n)"


@cache
def views_sql() -> str:
    """`CREATE OR REPLACE VIEW` statements of the public views."""
    from importlib.resources import files  # imported here: it loads zipfile and tempfile

    views = (files("gpuwarden") / "views.sql").read_text()
    return f"{view_sql()}\n{views}\n{budgets_view_sql()}"


def view_words() -> Iterator[tuple[str, frozenset[str]]]:
    """Name of each public view in order, and the words of its SQL, which include the tables that it reads."""
    for statement in re.sub(r"--.*", "", views_sql()).split(";"):
        words = re.findall(r"\w+", statement)
        if "VIEW" in words:
            yield words[words.index("VIEW") + 1], frozenset(words)


class View(NamedTuple):
    """A public view."""

    name: str
    meaning: str
    """The comment before its statement."""
    columns: Mapping[str, str]
    """Meanings of columns that are not those of a table or view that it reads, from the comment."""
    sql: str
    """Its SELECT."""

    @property
    def reads(self) -> Sequence[str]:
        """What it reads, in order. A column that has no meaning of its own is that of the first one that has it."""
        return [*dict.fromkeys(_READ.findall(self.sql))]


_VIEW = re.compile(
    r"((?:^-- [^\n]*\n)+)CREATE OR REPLACE VIEW (\w+) AS(.*?);\n", re.DOTALL | re.MULTILINE
)
_OF_COLUMN = re.compile(r"^--   (\w+): ((?:.*\n)(?:--     .*\n)*)", re.MULTILINE)
_READ = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)")


def public_views() -> Sequence[View]:
    """The public views, from their SQL."""
    return [
        View(
            name,
            _text(_OF_COLUMN.sub("", comment)),
            {column: _text(meaning) for column, meaning in _OF_COLUMN.findall(comment)},
            sql,
        )
        for comment, name, sql in _VIEW.findall(views_sql())
    ]


def _text(comment: str) -> str:
    """The comment in one line."""
    return " ".join(line.removeprefix("--").strip() for line in comment.splitlines())
