"""Defines a diagnosis: why a GPU, or a job on several, is slow, and what to do about it.

Its evidence is a list of measurements, each with the threshold that it was compared with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Bottleneck(StrEnum):
    """Why a GPU or a job is slow."""

    THROTTLED = "throttled"
    HUNG_BLOCKED = "hung_blocked"
    HUNG_SPIN = "hung_spin"
    IDLE_FREE = "idle_free"
    IDLE_HELD = "idle_held"
    SERVING = "serving"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    EPOCH_RESTART = "epoch_restart"
    STORAGE_NETWORK = "storage_network"
    STORAGE_DISK = "storage_disk"
    LOADER_AFFINITY = "loader_affinity"
    LOADER_CORES = "loader_cores"
    LOADER_WORKERS = "loader_workers"
    LOADER_MAIN = "loader_main"
    LOADER_THREADS = "loader_threads"
    PIN_COPY = "pin_copy"
    PREFETCH = "prefetch"
    HOST_BOUND = "host_bound"
    MAIN_THREAD = "main_thread"
    COMM_BOUND = "comm_bound"
    MEMORY_BOUND = "memory_bound"
    SMALL_BATCH = "small_batch"
    NOT_WORKING = "not_working"
    STRAGGLER = "straggler"
    WAITS_FOR_PEER = "waits_for_peer"
    COMPUTE_BOUND = "compute_bound"
    BUSY = "busy"
    UNKNOWN = "unknown"


MEANINGS: dict[Bottleneck, str] = {
    Bottleneck.THROTTLED: "Heat or the power supply holds the clocks down.",
    Bottleneck.HUNG_BLOCKED: "A job that had worked stands still: its GPUs and processes do nothing.",
    Bottleneck.HUNG_SPIN: "All GPUs of a job spin in a kernel that does no work.",
    Bottleneck.IDLE_FREE: "Nothing runs, and nobody holds the GPU.",
    Bottleneck.IDLE_HELD: "Nothing runs, but a process holds the GPU.",
    Bottleneck.SERVING: "A server: it does what is asked of it, no more.",
    Bottleneck.CHECKPOINT: "Pauses while checkpoints are written.",
    Bottleneck.EVALUATION: "Pauses of some seconds in which the main thread computes, not the GPU.",
    Bottleneck.EPOCH_RESTART: "Pauses while the data-loader workers are started again.",
    Bottleneck.STORAGE_NETWORK: "Data-loader workers wait for storage on the network.",
    Bottleneck.STORAGE_DISK: "Data-loader workers wait for a disk of the node.",
    Bottleneck.LOADER_AFFINITY: "Data-loader workers are pinned to a few of the cores.",
    Bottleneck.LOADER_CORES: "Data-loader workers have not enough cores.",
    Bottleneck.LOADER_WORKERS: "Too few data-loader workers: each is busy, and cores are idle.",
    Bottleneck.LOADER_MAIN: "The main thread loads the data: there are no workers.",
    Bottleneck.LOADER_THREADS: "Loader threads within the process (DALI, tf.data, JAX) cannot keep up.",
    Bottleneck.PIN_COPY: "Pinning or copying batches to the GPU cannot keep up.",
    Bottleneck.PREFETCH: "Workers could keep up on average, but batches come unevenly.",
    Bottleneck.HOST_BOUND: "The main thread cannot launch work as fast as the GPU does it.",
    Bottleneck.MAIN_THREAD: "The main thread is full: it loads data, or launches too little at a time.",
    Bottleneck.COMM_BOUND: "GPUs of the job mostly exchange data.",
    Bottleneck.MEMORY_BOUND: "Kernels wait for device memory.",
    Bottleneck.SMALL_BATCH: "Each step is too small to fill the GPU.",
    Bottleneck.NOT_WORKING: "Kernels run all the time and do hardly any work.",
    Bottleneck.STRAGGLER: "This GPU is slower than the others of its job, which wait for it.",
    Bottleneck.WAITS_FOR_PEER: "This GPU waits for another of its job, which is the cause.",
    Bottleneck.COMPUTE_BOUND: "Healthy: the GPU is the bottleneck, as it should be.",
    Bottleneck.BUSY: "Busy, and nothing known holds it up.",
    Bottleneck.UNKNOWN: "The data do not carry a verdict; the reason says what is missing.",
}

INPUT_BOUND = frozenset(
    {
        Bottleneck.EPOCH_RESTART,
        Bottleneck.STORAGE_NETWORK,
        Bottleneck.STORAGE_DISK,
        Bottleneck.LOADER_AFFINITY,
        Bottleneck.LOADER_CORES,
        Bottleneck.LOADER_WORKERS,
        Bottleneck.LOADER_MAIN,
        Bottleneck.LOADER_THREADS,
        Bottleneck.PIN_COPY,
        Bottleneck.PREFETCH,
    }
)
"""Classes of a GPU that waits for its data."""

HEALTHY = frozenset({Bottleneck.COMPUTE_BOUND, Bottleneck.BUSY, Bottleneck.SERVING})
"""Classes that need no action."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A measurement over a window before `seen_at`, compared with a threshold."""

    feature: str
    """Name of the feature; docs/diagnosis.md has its unit, formula and source."""
    value: float
    comparison: str
    """`>=` or `<`: how `value` compares with the threshold."""
    threshold: float
    text: str
    """The same for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One episode: a GPU or job in one class, from `began_at` on. Instants are aware, UTC."""

    subject: str
    """UUID of the GPU, or name of the job: `job 7`, `job at 10.0.0.7:29500`."""
    kind: str
    """gpu or job."""
    bottleneck: Bottleneck
    confidence: float
    """0 to 1: the share of the applicable kinds of evidence that agree."""
    summary: str
    advice: str | None
    evidence: Sequence[Evidence] = ()
    misses: Sequence[str] = ()
    """Other classes that nearly matched, and why each did not."""
    stall: float | None = None
    """Share of the time in which the GPU (of a job: its GPUs on average) did nothing."""
    usd_per_hour: float | None = None
    """Loss per hour; None: unknown, or no loss."""
    cause: str | None = None
    """Subject of the GPU that it waits for."""
    node: str | None = None
    gpu: int | None = None
    job: str | None = None
    username: str | None = None
    gpus: int = 1
    began_at: datetime
    seen_at: datetime
    """Last evaluation that found it; saved at intervals, not at each evaluation."""
    ended_at: datetime | None = None
    simulated: bool = False


class DiagnosisStore(Protocol):
    """Stores diagnoses: the `diagnoses` table."""

    async def open_diagnoses(self) -> Sequence[Diagnosis]:
        """Episodes that have not ended, as last saved."""
        ...

    async def save_diagnoses(self, diagnoses: Sequence[Diagnosis]) -> None:
        """Insert or update by (subject, began_at), durably."""
        ...
