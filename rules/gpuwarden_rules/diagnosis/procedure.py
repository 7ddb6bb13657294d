"""Defines the classes as data, in the order of the decision.

A class applies if `needs` holds. `signs` are other evidence (shape of utilization, workers, storage, main thread,
links); the share of them that agrees is the confidence.
"""

from dataclasses import dataclass

from gpuwarden.diagnosis import Bottleneck
from gpuwarden_rules.diagnosis.conditions import Condition, Unless, below, every, least, some


@dataclass(frozen=True, slots=True)
class Candidate:
    """A class and its conditions."""

    bottleneck: Bottleneck
    needs: Condition
    signs: tuple[Condition, ...] = ()


_STALLS = least("stall", "stall")
_HAS_WORKERS = least("workers", "one")
_NO_WORKERS = below("workers", "one")
_QUIET = below("util_p95", "idle_percent")
_NOT_BLOCKED = below("loader_blocked", "blocked_little")
_WORKERS_BUSY = some(least("loader_saturated", "saturated"), least("loader_cpu", "loader_full"))
_WORKERS_WAIT = every(
    below("loader_cpu", "loader_waits"), Unless(least("loader_saturated", "saturated"))
)
_WORKERS_AHEAD = some(
    _NO_WORKERS, least("loader_idle", "loader_idle"), below("loader_cpu", "loader_quiet")
)
_NO_READS = Unless(some(least("chars_rate", "reads_nothing"), least("write_rate", "reads_nothing")))
_CORES_GONE = some(
    below("idle_cores", "spare_core"),
    least("cgroup_throttled", "cgroup_throttled"),
    least("psi_cpu", "pressure_cpu"),
)
_WORKERS_PINNED = every(
    least("workers", "two"),
    below("loader_cores_each", "cores_each"),
    below("loader_cores_share", "cores_share"),
    least("loader_fill", "fill"),
)
_MAIN_FULL = some(least("main_cpu", "main_full"), least("main_in_stall", "main_in_stall"))
_NOT_A_SERVER = below("server", "one")
# Each restart of the workers is a pause, which rare readings of utilization may miss.
_NO_UNSEEN_PAUSE = Unless(least("unseen_turnovers", "two"))
# Of nodes without our agent only the memory in use says that nothing holds the GPU. If something holds it, the verdict
# is unknown: a job that hangs looks the same.
_UNREPORTED = least("unreported", "one")
_LINKS_QUIET = every(
    Unless(least("nvlink_share", "link_nothing")), Unless(least("pcie_share", "pcie_nothing"))
)

FIRST: tuple[Candidate, ...] = (
    Candidate(
        Bottleneck.THROTTLED,
        some(
            least("throttled_hw", "throttled_hw"), least("throttled_thermal", "throttled_thermal")
        ),
        (below("clock_share", "clock_high"),),
    ),
)
"""Classes that are decided first; they need no process."""

STILL: tuple[Candidate, ...] = (
    Candidate(
        Bottleneck.HUNG_BLOCKED,
        every(
            _QUIET,
            least("quiet", "hung_s"),
            least("productive", "worked"),
            below("main_cpu", "main_nothing"),
            _NO_READS,
            some(
                least("blocked_main", "blocked_main"),
                every(least("peers", "two"), least("peers_quiet", "nearly_all")),
            ),
        ),
        (below("tree_cpu", "idle_tree"), least("peers", "two")),
    ),
    Candidate(
        Bottleneck.IDLE_FREE,
        every(
            _QUIET,
            some(
                every(below("processes", "one"), Unless(least("memory_held", "held_bytes"))),
                every(_UNREPORTED, below("memory_held", "held_bytes")),
            ),
        ),
        (below("memory_held", "held_bytes"),),
    ),
    Candidate(
        Bottleneck.IDLE_HELD,
        every(
            _QUIET,
            some(
                below("tree_cpu", "idle_tree"),
                every(below("processes", "one"), least("memory_held", "held_bytes")),
            ),
        ),
        (least("memory_held", "held_bytes"), below("power_share", "weak_power")),
    ),
    Candidate(
        Bottleneck.HUNG_SPIN,
        every(
            least("util_p5", "always"),
            least("spinning", "spin_s"),
            below("power_share", "spin_power"),
            Unless(least("tensor_active", "tensor_nothing")),
            Unless(least("dram_active", "dram_nothing")),
            _LINKS_QUIET,
            Unless(least("loader_cpu", "loader_nothing")),
            _NO_READS,
            least("peers", "two"),
            least("peers_spinning", "nearly_all"),
        ),
        (below("tensor_active", "tensor_nothing"), below("chars_rate", "reads_nothing")),
    ),
    Candidate(
        Bottleneck.SERVING,
        every(least("server", "one"), _NO_WORKERS),
        (below("autocorrelation", "irregular"),),
    ),
)
"""Classes of GPUs without progress, and servers; they apply to young processes too."""

PAUSES: tuple[Candidate, ...] = (
    Candidate(
        Bottleneck.CHECKPOINT,
        every(
            least("stall", "pause_stall"),
            least("gap_longest", "pause"),
            least("gap_write", "pause_write"),
        ),
        (below("gaps", "four"), Unless(_WORKERS_BUSY)),
    ),
    Candidate(
        Bottleneck.EPOCH_RESTART,
        every(_HAS_WORKERS, _STALLS, least("gap_turnovers", "two")),
        (least("gaps", "two"), Unless(_WORKERS_BUSY), below("main_cpu", "main_full")),
    ),
    Candidate(
        Bottleneck.EVALUATION,
        every(
            least("stall", "pause_stall"),
            least("gap_longest", "pause"),
            below("gap_write", "little_write"),
            below("gap_turnovers", "one"),
            below("gaps", "four"),
            least("gap_main", "pause_main"),
            least("busy_share", "half_power"),
            _WORKERS_AHEAD,
        ),
        (below("loader_blocked", "blocked_little"),),
    ),
)
"""Classes with long pauses between work; they need a reading each second."""

_OF_STORAGE = every(_STALLS, _HAS_WORKERS, _WORKERS_WAIT)
STARVED: tuple[Candidate, ...] = (
    Candidate(
        Bottleneck.STORAGE_NETWORK,
        every(
            _OF_STORAGE,
            some(
                every(
                    least("loader_blocked", "blocked"),
                    below("read_rate", "reads"),
                    some(least("nfs_rate", "reads"), least("network_per_worker", "reads_nothing")),
                ),
                every(least("nfs_latency", "nfs_slow"), least("nfs_rate", "reads")),
                every(
                    below("loader_cpu", "loader_light"),
                    below("loader_blocked", "blocked"),
                    below("read_rate", "reads"),
                    least("network_per_worker", "network_per_worker"),
                    # The traffic is that of the whole node, and workers that are far ahead sleep too:
                    # other shortages must be excluded.
                    below("main_cpu", "main_busy"),
                    Unless(least("main_in_stall", "main_in_stall")),
                    Unless(_CORES_GONE),
                ),
            ),
        ),
        (
            least("loader_blocked", "blocked"),
            least("nfs_latency", "nfs_slow"),
            least("network_per_worker", "reads_nothing"),
            below("disk_busy", "disk_busy"),
            below("main_cpu", "main_busy"),
        ),
    ),
    Candidate(
        Bottleneck.STORAGE_DISK,
        every(
            _OF_STORAGE,
            some(
                least("loader_blocked", "blocked"),
                # The pressure may come from other jobs: the workers must not be known to be unblocked.
                every(
                    some(least("psi_io", "pressure_io"), least("disk_busy", "disk_busy")),
                    least("read_rate", "reads"),
                    Unless(below("loader_blocked", "blocked_little")),
                ),
            ),
            Unless(below("read_rate", "reads_nothing")),
        ),
        (
            least("loader_blocked", "blocked"),
            least("psi_io", "pressure_io"),
            least("disk_busy", "disk_busy"),
            below("main_cpu", "main_busy"),
        ),
    ),
    Candidate(
        Bottleneck.LOADER_AFFINITY,
        every(_STALLS, _NOT_BLOCKED, _WORKERS_PINNED),
        (below("main_cpu", "main_busy"), below("host_cpu", "main_busy")),
    ),
    Candidate(
        Bottleneck.LOADER_CORES,
        every(
            _STALLS,
            _HAS_WORKERS,
            _NOT_BLOCKED,
            _CORES_GONE,
            # Workers that fill the few cores that they are pinned to are loader_affinity.
            Unless(every(_WORKERS_PINNED, Unless(least("cgroup_throttled", "cgroup_throttled")))),
            some(
                _WORKERS_BUSY,
                least("loader_fill", "fill"),
                every(least("host_cpu", "host_full"), least("loader_cpu", "loader_quiet")),
            ),
        ),
        (
            _WORKERS_BUSY,
            least("loader_fill", "fill"),
            least("psi_cpu", "pressure_cpu"),
            below("main_cpu", "main_busy"),
        ),
    ),
    Candidate(
        Bottleneck.LOADER_WORKERS,
        every(
            _STALLS,
            _HAS_WORKERS,
            _NOT_BLOCKED,
            _WORKERS_BUSY,
            least("idle_cores", "spare_core"),
            Unless(_CORES_GONE),
        ),
        (
            least("loader_saturated", "saturated"),
            below("psi_io", "pressure_io"),
            below("main_cpu", "main_busy"),
            below("psi_cpu", "pressure_cpu"),
        ),
    ),
    Candidate(
        Bottleneck.LOADER_MAIN,
        every(
            _STALLS,
            _NO_WORKERS,
            _NOT_A_SERVER,
            # A loop that sleeps while it waits for the GPU computes only while the GPU waits for it.
            some(
                least("main_cpu", "main_busy"),
                least("main_in_stall", "main_in_stall"),
                # When it computes is unknown, but it reads the data, and no other thread works.
                every(least("main_cpu", "main_some"), least("chars_rate", "reads")),
            ),
            some(least("chars_rate", "reads"), least("tree_cpu", "tree_busy")),
            below("busy_threads", "several"),
        ),
        (least("chars_rate", "reads"), _MAIN_FULL),
    ),
    Candidate(
        Bottleneck.LOADER_THREADS,
        every(
            _STALLS,
            _NO_WORKERS,
            _NOT_A_SERVER,
            least("tree_cpu", "tree_busy"),
            # The main thread is assumed to be the busiest one, which may be a loader thread.
            some(
                below("main_cpu", "main_busy"),
                every(least("busy_threads", "several"), least("chars_rate", "reads")),
            ),
        ),
        (least("chars_rate", "reads"), least("decoders", "decodes")),
    ),
    Candidate(
        Bottleneck.PIN_COPY,
        every(_STALLS, some(least("pcie_share", "pcie_full"), least("pin_cpu", "pin_full"))),
        (
            least("pcie_share", "pcie_full"),
            least("pin_cpu", "pin_full"),
            Unless(_WORKERS_BUSY),
        ),
    ),
    Candidate(
        Bottleneck.PREFETCH,
        every(
            _STALLS,
            below("stall", "uneven_stall"),
            _HAS_WORKERS,
            _NOT_BLOCKED,
            least("loader_cpu", "loader_light"),
            below("loader_cpu", "loader_full"),
            below("loader_saturated", "saturated"),
            # Uneven in time, or among the workers: some are full, although their mean is not.
            some(below("autocorrelation", "irregular"), least("loader_saturated", "uneven")),
            Unless(least("network_per_worker", "network_per_worker")),
            below("main_cpu", "main_busy"),
        ),
        (least("idle_cores", "one"), below("psi_io", "pressure_io")),
    ),
)
"""Classes of a GPU that waits for data; the one with the most evidence applies."""

OTHER: tuple[Candidate, ...] = (
    Candidate(
        Bottleneck.HOST_BOUND,
        every(
            _STALLS,
            _MAIN_FULL,
            _HAS_WORKERS,
            _WORKERS_AHEAD,
            below("power_share", "half_power"),
        ),
        (
            below("util_cv", "steady"),
            least("clock_share", "clock_high"),
            Unless(least("read_rate", "reads")),
        ),
    ),
    Candidate(
        Bottleneck.MAIN_THREAD,
        every(
            _STALLS,
            _MAIN_FULL,
            _NO_WORKERS,
            _NOT_A_SERVER,
            below("chars_rate", "reads"),
        ),
        (below("tree_cpu", "tree_busy"),),
    ),
    Candidate(
        Bottleneck.COMM_BOUND,
        every(
            least("peers", "two"),
            least("duty", "busy"),
            below("power_share", "half_power"),
            some(
                least("nvlink_share", "link_busy"),
                least("pcie_share", "link_busy"),
                every(below("sm_active", "sm_half"), least("nvlink_share", "link_some")),
            ),
        ),
        (below("sm_active", "sm_half"), below("tensor_active", "tensor_low")),
    ),
    Candidate(
        Bottleneck.MEMORY_BOUND,
        every(
            least("duty", "busy"),
            least("dram_active", "dram_busy"),
            below("tensor_active", "tensor_low"),
        ),
        (least("sm_active", "sm_half"),),
    ),
    Candidate(
        Bottleneck.SMALL_BATCH,
        every(
            _STALLS,
            _NOT_A_SERVER,
            below("util_p95", "never_full"),
            below("util_cv", "steady"),
            # A main thread that sleeps in the pauses waits for something that is not measured.
            least("main_cpu", "main_some"),
            below("main_cpu", "main_busy"),
            Unless(_CORES_GONE),
            some(
                below("sm_active", "sm_little"),
                every(below("power_share", "weak_power"), below("memory_share", "memory_spare")),
            ),
            _WORKERS_AHEAD,
            some(_NO_WORKERS, every(_NOT_BLOCKED, below("loader_fill", "fill"))),
            below("tree_cpu", "tree_busy"),
        ),
        (below("memory_share", "memory_spare"), below("sm_active", "sm_little")),
    ),
    Candidate(
        Bottleneck.NOT_WORKING,
        every(
            least("duty", "full"),
            some(
                every(
                    below("power_share", "weak_power"),
                    some(below("sm_active", "sm_little"), below("tensor_active", "tensor_little")),
                ),
                below("power_share", "little_power"),
            ),
        ),
        (below("sm_active", "sm_little"), below("tensor_active", "tensor_little")),
    ),
    Candidate(
        Bottleneck.COMPUTE_BOUND,
        every(
            least("duty", "busy"),
            some(least("power_share", "high_power"), least("tensor_active", "tensor_busy")),
            _NO_UNSEEN_PAUSE,
        ),
        (least("duty", "full"), least("sm_active", "sm_half")),
    ),
    Candidate(
        Bottleneck.BUSY,
        every(least("duty", "full"), _NO_UNSEEN_PAUSE),
        (least("power_share", "half_power"), least("sm_active", "sm_half")),
    ),
)
"""Other bottlenecks, and GPUs without a bottleneck."""

ALL: tuple[Candidate, ...] = FIRST + STILL + PAUSES + STARVED + OTHER
