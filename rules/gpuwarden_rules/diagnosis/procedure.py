"""The classes as data: what each needs, and what else speaks for it. Order is that of the decision.

A class is given where `needs` holds; `signs` are other kinds of evidence (the GPU's shape, the
workers, storage, the main thread, links), and how many of them agree is its confidence.
"""

from dataclasses import dataclass

from gpuwarden.diagnosis import Bottleneck
from gpuwarden_rules.diagnosis.conditions import Condition, below, every, least, some, unless


@dataclass(frozen=True, slots=True)
class Candidate:
    """A class and what decides it."""

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
    below("loader_cpu", "loader_waits"), unless(least("loader_saturated", "saturated"))
)
_WORKERS_AHEAD = some(
    _NO_WORKERS, least("loader_idle", "loader_idle"), below("loader_cpu", "loader_quiet")
)
_NO_READS = unless(some(least("chars_rate", "reads_nothing"), least("write_rate", "reads_nothing")))
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
# Each restart of the workers is a pause, and a few readings between pauses look like no pause at all.
_NO_UNSEEN_PAUSE = unless(least("unseen_turnovers", "two"))
_LINKS_QUIET = every(
    unless(least("nvlink_share", "link_nothing")), unless(least("pcie_share", "pcie_nothing"))
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
"""Decided before anything else: these need no process."""

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
        every(_QUIET, below("processes", "one"), unless(least("memory_held", "held_bytes"))),
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
            unless(least("tensor_active", "tensor_nothing")),
            unless(least("dram_active", "dram_nothing")),
            _LINKS_QUIET,
            unless(least("loader_cpu", "loader_nothing")),
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
"""Where nothing gets done, and servers: also of processes that have just begun."""

PAUSES: tuple[Candidate, ...] = (
    Candidate(
        Bottleneck.CHECKPOINT,
        every(
            least("stall", "pause_stall"),
            least("gap_longest", "pause"),
            least("gap_write", "pause_write"),
        ),
        (below("gaps", "four"), unless(_WORKERS_BUSY)),
    ),
    Candidate(
        Bottleneck.EPOCH_RESTART,
        every(_HAS_WORKERS, _STALLS, least("gap_turnovers", "two")),
        (least("gaps", "two"), unless(_WORKERS_BUSY), below("main_cpu", "main_full")),
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
"""Long pauses between spells of work; they need a reading a second."""

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
                    # The traffic is of the whole node, and workers that are far ahead sleep as well: it
                    # must be known that nothing else is short.
                    below("main_cpu", "main_busy"),
                    unless(least("main_in_stall", "main_in_stall")),
                    unless(_CORES_GONE),
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
                # A node's pressure can be of others: the workers themselves must not be known to be free.
                every(
                    some(least("psi_io", "pressure_io"), least("disk_busy", "disk_busy")),
                    least("read_rate", "reads"),
                    unless(below("loader_blocked", "blocked_little")),
                ),
            ),
            unless(below("read_rate", "reads_nothing")),
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
            # Those that fill the few cores that they are pinned to need others first.
            unless(every(_WORKERS_PINNED, unless(least("cgroup_throttled", "cgroup_throttled")))),
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
            unless(_CORES_GONE),
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
                # Nobody can say when it computes; but it reads the data, and no other thread does anything.
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
            # The busiest thread, which the main one is taken to be, may be one of the loader's.
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
            unless(_WORKERS_BUSY),
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
            # Unevenly in time, or among the workers: some are full, though all together are not.
            some(below("autocorrelation", "irregular"), least("loader_saturated", "uneven")),
            unless(least("network_per_worker", "network_per_worker")),
            below("main_cpu", "main_busy"),
        ),
        (least("idle_cores", "one"), below("psi_io", "pressure_io")),
    ),
)
"""The GPU waits for its data; the one with the most evidence is taken."""

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
            unless(least("read_rate", "reads")),
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
            # A thread that sleeps through the pauses waits for something that is not seen.
            least("main_cpu", "main_some"),
            below("main_cpu", "main_busy"),
            unless(_CORES_GONE),
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
"""What else can hold a GPU up, and what a GPU that nothing holds up looks like."""

ALL: tuple[Candidate, ...] = FIRST + STILL + PAUSES + STARVED + OTHER
