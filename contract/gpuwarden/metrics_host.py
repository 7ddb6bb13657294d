"""The catalogue's rows about the host, its InfiniBand ports and the processes on its GPUs."""

from functools import partial

from gpuwarden.metric import (
    COUNTER,
    F32,
    F64,
    GAUGE,
    I32,
    I64,
    NOT_NEGATIVE,
    PERCENT,
    Metric,
)

# fmt: off
_slow = partial(Metric, cadence_s=10, limits=NOT_NEGATIVE)

HOST_METRICS: tuple[Metric, ...] = (
    Metric("cpu_util_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time not idle and not waiting for I/O, all CPUs.", limits=PERCENT),
    Metric("cpu_user_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in user code.", limits=PERCENT),
    Metric("cpu_nice_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in niced user code.", limits=PERCENT),
    Metric("cpu_system_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in the kernel.", limits=PERCENT),
    Metric("cpu_iowait_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time idle while I/O was outstanding.", limits=PERCENT),
    Metric("cpu_irq_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in hard and soft interrupts.", limits=PERCENT),
    Metric("cpu_steal_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time that the hypervisor gave to others.", limits=PERCENT),
    Metric("cpu_idle_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time idle, I/O wait not included.", limits=PERCENT),
    Metric("load_1m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 1 minute.", limits=NOT_NEGATIVE),
    Metric("load_5m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 5 minutes.", limits=NOT_NEGATIVE),
    Metric("load_15m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 15 minutes.", limits=NOT_NEGATIVE),
    Metric("tasks_running", I32, "tasks", GAUGE, "/proc/stat procs_running", "Tasks that run or wait for a CPU.", limits=NOT_NEGATIVE),
    Metric("tasks_blocked", I32, "tasks", GAUGE, "/proc/stat procs_blocked", "Tasks blocked on I/O (D state).", limits=NOT_NEGATIVE),
    Metric("memory_total_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory of the node.", limits=NOT_NEGATIVE),
    Metric("memory_used_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory that is neither available nor cache (psutil's used).", limits=NOT_NEGATIVE),
    Metric("memory_available_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory that can be given out without swapping.", limits=NOT_NEGATIVE),
    Metric("memory_cached_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Page cache and reclaimable slab.", limits=NOT_NEGATIVE),
    Metric("swap_used_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Swap in use.", limits=NOT_NEGATIVE),
    *(
        Metric(f"psi_{resource}_{extent}_percent", F32, "percent", GAUGE, f"/proc/pressure/{resource} {extent} avg10",
               f"Share of the last 10 s in which {who} stalled on {resource}.", limits=PERCENT)
        for resource in ("cpu", "io", "memory")
        for extent, who in (("some", "at least one task was"), ("full", "all runnable tasks were"))
    ),
    *(
        Metric(f"psi_{resource}_{extent}_seconds_total", F64, "seconds", COUNTER, f"/proc/pressure/{resource} {extent} total",
               f"Time since boot in which {who} stalled on {resource}.", limits=NOT_NEGATIVE)
        for resource in ("cpu", "io", "memory")
        for extent, who in (("some", "at least one task was"), ("full", "all runnable tasks were"))
    ),
    Metric("disk_read_bytes_total", I64, "bytes", COUNTER, "/proc/diskstats", "Bytes read from physical disks.", limits=NOT_NEGATIVE),
    Metric("disk_write_bytes_total", I64, "bytes", COUNTER, "/proc/diskstats", "Bytes written to physical disks.", limits=NOT_NEGATIVE),
    Metric("disk_busy_percent", F32, "percent", GAUGE, "/proc/diskstats io_ticks", "Busy share of the busiest physical disk.", limits=PERCENT),
    Metric("network_rx_bytes_total", I64, "bytes", COUNTER, "/proc/net/dev", "Bytes received, all interfaces but loopback.", limits=NOT_NEGATIVE),
    Metric("network_tx_bytes_total", I64, "bytes", COUNTER, "/proc/net/dev", "Bytes sent, all interfaces but loopback.", limits=NOT_NEGATIVE),
    Metric("shm_total_bytes", I64, "bytes", GAUGE, "statvfs /dev/shm", "Size of /dev/shm, through which data-loader workers hand over batches.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("shm_used_bytes", I64, "bytes", GAUGE, "statvfs /dev/shm", "Used of /dev/shm.", cadence_s=10, limits=NOT_NEGATIVE),
    _slow("nfs_reads_total", I64, "operations", COUNTER, "/proc/self/mountstats READ", "NFS reads, all mounts."),
    _slow("nfs_read_seconds_total", F64, "seconds", COUNTER, "/proc/self/mountstats READ", "Time that NFS reads took, queueing included; divided by nfs_reads_total it is their latency."),
    _slow("nfs_read_bytes_total", I64, "bytes", COUNTER, "/proc/self/mountstats bytes", "Bytes read from NFS servers."),
    _slow("nfs_writes_total", I64, "operations", COUNTER, "/proc/self/mountstats WRITE", "NFS writes, all mounts."),
    _slow("nfs_write_seconds_total", F64, "seconds", COUNTER, "/proc/self/mountstats WRITE", "Time that NFS writes took, queueing included."),
    _slow("nfs_write_bytes_total", I64, "bytes", COUNTER, "/proc/self/mountstats bytes", "Bytes written to NFS servers."),
    _slow("nfs_metadata_total", I64, "operations", COUNTER, "/proc/self/mountstats LOOKUP, GETATTR, ACCESS, OPEN, READDIR*", "NFS metadata calls, all mounts: many small files."),
    _slow("nfs_metadata_seconds_total", F64, "seconds", COUNTER, "/proc/self/mountstats, as nfs_metadata_total", "Time that NFS metadata calls took."),
    _slow("nfs_retransmissions_total", I64, "operations", COUNTER, "/proc/self/mountstats", "NFS requests sent again: the network or the server loses them."),
)

PROCESS_METRICS: tuple[Metric, ...] = (
    Metric("gpu_memory_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetComputeRunningProcesses_v3",
           "Device memory that the process holds on this GPU.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "CPU of the process and its descendants; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("main_cpu_percent", F32, "percent", GAUGE, "/proc/PID/task/*/stat",
           "CPU of the busiest thread of the process itself, pt_data_pin and NCCL's left out; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("pin_cpu_percent", F32, "percent", GAUGE, "/proc/PID/task/*/stat",
           "CPU of the pinning thread pt_data_pin; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("loader_workers", I32, "processes", GAUGE, "/proc/PID/task/*/comm",
           "Data-loader worker processes: pt_data_worker threads' processes, else forked children without a GPU context.",
           cadence_s=10, limits=NOT_NEGATIVE),
    Metric("loader_cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "Mean CPU of a loader worker; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("loader_saturated_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "Share of the loader workers that use at least 85 % of a core.", cadence_s=10, limits=PERCENT),
    _slow("loader_idle_percent", F32, "percent", GAUGE, "/proc/PID/stat",
          "Share of the loader workers that use less than 20 % of a core: they wait for their consumer.", limits=PERCENT),
    Metric("loader_blocked_percent", F32, "percent", GAUGE, "/proc/PID/stat state",
           "Share of the loader workers in D state (blocked on storage).", cadence_s=10, limits=PERCENT),
    Metric("loader_started_total", I64, "processes", COUNTER, "/proc/PID/stat starttime",
           "Loader workers first seen since the process was; grows at each epoch without persistent workers.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("cpus_allowed", I32, "cpus", GAUGE, "sched_getaffinity",
           "CPUs that the process may run on.", cadence_s=10, limits=NOT_NEGATIVE),
    _slow("loader_cpus_allowed", I32, "cpus", GAUGE, "sched_getaffinity",
          "CPUs that any of the loader workers may run on; far below their number: an affinity that a library set."),
    Metric("read_bytes_total", I64, "bytes", COUNTER, "/proc/PID/io read_bytes",
           "Bytes that the process and its descendants read from storage.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("read_chars_total", I64, "bytes", COUNTER, "/proc/PID/io rchar",
           "Bytes read by system calls, page cache included.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("write_bytes_total", I64, "bytes", COUNTER, "/proc/PID/io write_bytes",
           "Bytes written to storage.", cadence_s=10, limits=NOT_NEGATIVE),
    _slow("sm_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetProcessUtilization.smUtil",
          "Share of the time in which a kernel of this process ran; absent in MIG mode."),
    _slow("children_cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
          "CPU of descendants that are not loader workers; 100 is one core."),
    _slow("threads", I32, "threads", GAUGE, "/proc/PID/stat", "Threads of the process itself."),
    _slow("voluntary_switches_total", I64, "switches", COUNTER, "/proc/PID/task/*/status voluntary_ctxt_switches",
          "Times that a thread of the process gave up the CPU to wait."),
    _slow("involuntary_switches_total", I64, "switches", COUNTER, "/proc/PID/task/*/status nonvoluntary_ctxt_switches",
          "Times that a thread of the process was taken off the CPU for another."),
    _slow("rss_bytes", I64, "bytes", GAUGE, "/proc/PID/stat rss", "Host memory of the process and its descendants, shared pages counted in each."),
    _slow("cgroup_cpu_limit_cores", F32, "cores", GAUGE, "cpu.max, else cpu.cfs_quota_us",
          "CPUs' worth of time that its cgroup may use; absent: no limit."),
    _slow("cgroup_cpu_throttled_seconds_total", F64, "seconds", COUNTER, "cpu.stat throttled_usec, else throttled_time",
          "Time that its cgroup was kept from running by that limit."),
    _slow("cgroup_memory_limit_bytes", I64, "bytes", GAUGE, "memory.max, else memory.limit_in_bytes",
          "Memory that its cgroup may use; absent: no limit."),
    _slow("cgroup_memory_used_bytes", I64, "bytes", GAUGE, "memory.current, else memory.usage_in_bytes",
          "Memory that its cgroup uses, page cache included."),
)

INFINIBAND_METRICS: tuple[Metric, ...] = (
    _slow("rate_bits_per_second", F64, "bits_per_second", GAUGE, "ports/N/rate", "Signalling rate of the port; absent without a link."),
    _slow("tx_bytes_total", I64, "bytes", COUNTER, "ports/N/counters/port_xmit_data x 4, else hw_counters/tx_bytes", "Bytes sent; on Ethernet those of RDMA."),
    _slow("rx_bytes_total", I64, "bytes", COUNTER, "ports/N/counters/port_rcv_data x 4, else hw_counters/rx_bytes", "Bytes received; on Ethernet those of RDMA."),
    _slow("tx_packets_total", I64, "packets", COUNTER, "ports/N/counters/port_xmit_packets", "Packets sent."),
    _slow("rx_packets_total", I64, "packets", COUNTER, "ports/N/counters/port_rcv_packets", "Packets received."),
    _slow("tx_waits_total", I64, "ticks", COUNTER, "ports/N/counters/port_xmit_wait", "Ticks in which the port had data and could not send: congestion."),
    _slow("tx_discards_total", I64, "packets", COUNTER, "ports/N/counters/port_xmit_discards", "Packets given up because the port was down or congested."),
    _slow("rx_errors_total", I64, "packets", COUNTER, "ports/N/counters/port_rcv_errors", "Packets received with an error."),
    _slow("symbol_errors_total", I64, "errors", COUNTER, "ports/N/counters/symbol_error", "Errors on the wire."),
    _slow("link_downed_total", I64, "times", COUNTER, "ports/N/counters/link_downed", "Times that the link failed to recover and went down."),
    _slow("link_recoveries_total", I64, "times", COUNTER, "ports/N/counters/link_error_recovery", "Times that the link recovered."),
    _slow("local_integrity_errors_total", I64, "errors", COUNTER, "ports/N/counters/local_link_integrity_errors", "Times that local errors passed the threshold."),
    _slow("buffer_overruns_total", I64, "errors", COUNTER, "ports/N/counters/excessive_buffer_overrun_errors", "Times that the port's buffers overran."),
    _slow("out_of_sequence_total", I64, "packets", COUNTER, "ports/N/hw_counters/out_of_sequence", "RDMA packets that came out of order."),
    _slow("ack_timeouts_total", I64, "timeouts", COUNTER, "ports/N/hw_counters/local_ack_timeout_err", "RDMA packets that were not acknowledged in time."),
    _slow("roce_slow_restarts_total", I64, "times", COUNTER, "ports/N/hw_counters/roce_slow_restart", "Times that RoCE fell back to its slow start."),
)
# fmt: on
