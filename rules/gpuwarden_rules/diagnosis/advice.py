"""Makes the advice for a class: what to change, to which number, the expected gain, and the loss an hour."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor

from gpuwarden.diagnosis import INPUT_BOUND, Bottleneck
from gpuwarden_rules.diagnosis.features import Features, GpuInfo

HEALTHY_STALL = 0.05
"""Share that a healthy loop also loses to its input; it does not count as a loss."""
DUTY_MIN = 0.05
"""Lower limit of `duty` for advice: no number grows beyond twenty times the present one."""
PREFETCH_FACTOR = 4
WORKERS_FIRST = 2

_WASTED_WHOLE = frozenset(
    {
        Bottleneck.IDLE_FREE,
        Bottleneck.IDLE_HELD,
        Bottleneck.HUNG_BLOCKED,
        Bottleneck.HUNG_SPIN,
    }
)
_LOST_TO_STALL = INPUT_BOUND | {
    Bottleneck.CHECKPOINT,
    Bottleneck.EVALUATION,
    Bottleneck.HOST_BOUND,
    Bottleneck.MAIN_THREAD,
    Bottleneck.SMALL_BATCH,
    Bottleneck.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a class."""

    text: str
    knob: str | None = None
    """Name of the setting for which the text has a number."""
    after: float | None = None


def lost_share(bottleneck: Bottleneck, features: Features) -> float | None:
    """Share of the GPU's time that is lost; None where it is unknown."""
    if bottleneck in _WASTED_WHOLE:
        return 1.0
    if bottleneck is Bottleneck.THROTTLED:
        return None if features.clock_share is None else max(0.0, 1 - features.clock_share)
    if bottleneck in _LOST_TO_STALL and features.stall is not None:
        return max(0.0, features.stall - HEALTHY_STALL)
    return None


def usd_per_hour(place: GpuInfo, bottleneck: Bottleneck, features: Features) -> float | None:
    """Loss an hour at the GPU's price."""
    lost = lost_share(bottleneck, features)
    return None if lost is None or place.usd_per_hour is None else place.usd_per_hour * lost


def advise(place: GpuInfo, bottleneck: Bottleneck, features: Features) -> Advice | None:
    """The advice for a class; None: change nothing."""
    if made := _COMPUTED.get(bottleneck):
        return made(features)
    if text := _TEXTS.get(bottleneck):
        return Advice(text.format(job=place.work or "the job", node=place.node))
    return None


def wanted_workers(features: Features) -> int | None:
    """Number of workers that would keep the GPU busy, if each is as fast as the present ones."""
    if features.workers is None or features.duty is None:
        return None
    return ceil(max(features.workers, 1) / max(features.duty, DUTY_MIN))


def _workers(features: Features) -> Advice:
    workers, wanted = int(features.workers or 0), wanted_workers(features) or 1
    idle = floor(features.idle_cores or 0)
    after = max(min(wanted, workers + idle), workers + 1)
    duty = min(0.95, (features.duty or 0) * after / max(workers, 1))
    cores = "1 core is idle" if idle == 1 else f"{idle} cores are idle"
    text = (
        f"num_workers {workers} -> {after}; {cores}. The GPU should then be busy about "
        f"{100 * duty:.0f} % of the time, not {100 * (features.duty or 0):.0f} %."
    )
    if after < wanted:
        text += f" About {wanted} would be needed: make each sample cheaper as well."
    return Advice(text, "num_workers", after)


def _cores(features: Features) -> Advice:
    workers, wanted = int(features.workers or 0), wanted_workers(features) or 1
    more = max(wanted - workers, 1)
    limit = (
        "its CPU limit throttles it; raise the limit by about"
        if (features.cgroup_throttled or 0) >= 0.05
        else "give the job more cores for each GPU: about"
    )
    text = (
        f"More workers on the same cores will not help: {limit} {more}. Or make a sample cheaper: "
        "decode on the GPU (DALI, nvJPEG), precompute transforms, cache decoded samples."
    )
    return Advice(text, "cores", more)


def _affinity(features: Features) -> Advice:
    cores = (features.loader_cores_each or 0) * (features.workers or 0)
    text = (
        f"{features.workers:.0f} workers may run on only {cores:.0f} cores, because a library set their affinity: unset "
        "KMP_AFFINITY and OMP_PROC_BIND, or call os.sched_setaffinity(0, range(os.cpu_count())) in "
        "worker_init_fn."
    )
    return Advice(text, "cores of the workers")


def _main(features: Features) -> Advice:
    wanted = max(wanted_workers(features) or 1, WORKERS_FIRST)
    after = max(1, min(wanted, floor(features.idle_cores or wanted)))
    text = f"num_workers 0 -> {after}, with persistent_workers=True, so that loading runs beside training."
    return Advice(text, "num_workers", after)


def _storage(features: Features) -> Advice:
    text = (
        "Stage the data set on a local disk, or pack small files into shards (tar, WebDataset, MDS)"
    )
    rate = features.read_rate or features.nfs_rate or features.chars_rate
    if rate and features.duty:
        need = rate / max(features.duty, DUTY_MIN) / 1e6
        text += f": a busy GPU takes about {need:.0f} MB/s, now it gets {rate / 1e6:.0f}"
    text += "."
    workers, wanted = int(features.workers or 0), wanted_workers(features) or 0
    if wanted > workers:
        text += f" If the storage is far away rather than slow, more workers hide the latency: num_workers {workers} -> {wanted}."
    return Advice(text)


def _prefetch(features: Features) -> Advice:
    workers = int(features.workers or 0)
    text = (
        f"prefetch_factor 2 -> {PREFETCH_FACTOR}, and even out slow samples; then num_workers "
        f"{workers} -> {wanted_workers(features)}."
    )
    return Advice(text, "prefetch_factor", PREFETCH_FACTOR)


_COMPUTED: Mapping[Bottleneck, Callable[[Features], Advice]] = {
    Bottleneck.LOADER_WORKERS: _workers,
    Bottleneck.LOADER_CORES: _cores,
    Bottleneck.LOADER_AFFINITY: _affinity,
    Bottleneck.LOADER_MAIN: _main,
    Bottleneck.STORAGE_DISK: _storage,
    Bottleneck.STORAGE_NETWORK: _storage,
    Bottleneck.PREFETCH: _prefetch,
}

_TEXTS: Mapping[Bottleneck, str] = {
    Bottleneck.THROTTLED: "Look at cooling, power supply and power limit of {node} first; a change of the job does not help.",
    Bottleneck.HUNG_BLOCKED: "Take a stack of each rank (py-spy dump --pid PID), then restart {job} from its last checkpoint.",
    Bottleneck.HUNG_SPIN: "Take a stack of each rank (py-spy dump --pid PID; NCCL flight recorder), then restart {job} from its last checkpoint.",
    Bottleneck.IDLE_HELD: "Stop {job}, or have it free the GPU, if nobody needs it.",
    Bottleneck.CHECKPOINT: "Write checkpoints in the background (torch.distributed.checkpoint.async_save), to faster storage, or less often.",
    Bottleneck.EVALUATION: "Compute metrics on the GPU or in another process, or evaluate less often.",
    Bottleneck.EPOCH_RESTART: "Set persistent_workers=True, so that workers are not started at each epoch; join epochs that are short.",
    Bottleneck.LOADER_THREADS: "Give the pipeline more threads (DALI num_threads, tf.data AUTOTUNE and its thread pool), decode on the GPU, or cache decoded samples.",
    Bottleneck.PIN_COPY: "Send fewer bytes: uint8 and cast on the GPU; pin_memory=True with non_blocking=True; check generation and width of the PCIe link.",
    Bottleneck.HOST_BOUND: "Launch less from Python: CUDA Graphs or torch.compile, a fused optimiser, fewer .item() and .cpu(), a larger batch.",
    Bottleneck.MAIN_THREAD: "Loading in the main thread and launching many small kernels look the same from outside. If it loads: num_workers 0 -> 2. If it launches: CUDA Graphs, torch.compile, a larger batch.",
    Bottleneck.COMM_BOUND: "Overlap communication with the backward pass, use larger buckets or gradient accumulation, and check topology, P2P and InfiniBand.",
    Bottleneck.MEMORY_BOUND: "Fuse kernels (torch.compile, FlashAttention), use lower precision, or a larger batch when decoding.",
    Bottleneck.SMALL_BATCH: "Use a larger batch, or a smaller GPU, MIG or MPS.",
    Bottleneck.NOT_WORKING: "Look for tiny kernels and for float32 without TF32 or autocast; in a job on several GPUs, for a rank that the others wait for.",
    Bottleneck.STRAGGLER: "Look at this GPU's clocks, temperature and links, and at whether it gets more work than the others.",
}
