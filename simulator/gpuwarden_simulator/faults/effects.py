"""Computes the effects of faults on a node: functions of the faults and of time.

Times are milliseconds since the node's first tick. The only state is a cache of restarted jobs, so time
may skip.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuwarden_simulator.devices.gpu import GpuLoad
from gpuwarden_simulator.devices.gpu_detail import PCIE_LANE_BYTES_PER_SECOND, PcieTrouble
from gpuwarden_simulator.devices.gpu_detail import WELL as PCIE_WELL
from gpuwarden_simulator.devices.gpu_health import WELL as HEALTH_WELL
from gpuwarden_simulator.devices.gpu_health import Errors, HealthTrouble
from gpuwarden_simulator.devices.links import LinkTrouble, PortTrouble
from gpuwarden_simulator.faults.kinds import Fault, FaultKind
from gpuwarden_simulator.jobs.placement import make_job
from gpuwarden_simulator.jobs.workload import (
    JOB_MEMORY_BYTES_PER_GPU,
    NOTHING,
    Demand,
    Job,
    TreeLoad,
    Workload,
    hung,
    starved_by_network,
)

REQUEUE_MS = 60_000
"""Pause of a job that ran out of memory."""

DRAIN_MS = 30_000
"""Time between the end of a GPU's job and its reset."""

PCIE_EFFICIENCY = 0.8

ORPHAN_SHARE = 0.4
"""Share of the GPU's memory that an ended job still holds."""

WORKS_POWER_SHARE = 0.1
"""Power above which a GPU works; during a checkpoint or a hang it is below."""

_OVER_AFTER_REBOOT = frozenset(
    {
        FaultKind.GPU_LOST,
        FaultKind.ROW_REMAP,
        FaultKind.HANG,
        FaultKind.MEMORY_LEAK,
        FaultKind.SHM_FULL,
        FaultKind.ORPHAN_MEMORY,
        FaultKind.RECOVERY,
        FaultKind.FABRIC_DOWN,
    }
)


_KEPT_BY_NEW_BOARD = frozenset(
    {FaultKind.JOB, FaultKind.HANG, FaultKind.MEMORY_LEAK, FaultKind.BOARD_REPLACED}
)
"""Faults that continue with another board: those of the job, and the replacement itself."""


class Outage(NamedTuple):
    """A job at an instant: whether it is away, and when it last restarted."""

    is_away: bool = False
    restarted_ms: int | None = None


class Nfs(NamedTuple):
    """Slow NFS since the node was up."""

    slow_s: float
    """How long it has been slow in all."""
    latency_s: float
    """Mean over that time."""


class Effects:
    """The faults of one node."""

    def __init__(self, faults: Sequence[Fault], gpus: int) -> None:
        self.faults = _ended_early(faults)
        self._reboots = [f for f in self.faults if f.kind is FaultKind.REBOOT]
        self._of_node = [f for f in self.faults if f.gpu is None]
        self._of_gpu = tuple(
            tuple(f for f in self.faults if f.gpu == index) for index in range(gpus)
        )
        self._boards_ms = tuple(
            sorted(f.begin_ms for f in self._kinds(index, FaultKind.BOARD_REPLACED))
            for index in range(gpus)
        )
        self._resets_ms = tuple(sorted(self._resets(index)) for index in range(gpus))
        self._restarted: dict[tuple[int, int, int], Job] = {}
        self._away: dict[tuple[int, int], Job] = {}
        self._ordered: dict[tuple[int, int], Job] = {}

    # Whether node and GPUs are up, and since when.

    def is_down(self, at_ms: int) -> bool:
        """Whether the node reboots."""
        return any(fault.is_active(at_ms) for fault in self._reboots)

    def rebooted(self, after_ms: int, until_ms: int) -> bool:
        """Whether the node came back between two instants."""
        return any(f.end_ms and after_ms < f.end_ms <= until_ms for f in self._reboots)

    def up_since_ms(self, at_ms: int) -> int | None:
        """When the node came back; None: it was up before the first tick."""
        ends = [f.end_ms for f in self._reboots if f.end_ms is not None and f.end_ms <= at_ms]
        return max(ends, default=None)

    def is_lost(self, gpu: int, at_ms: int) -> bool:
        """Whether the GPU has fallen off the bus."""
        return any(f.is_active(at_ms) for f in self._kinds(gpu, FaultKind.GPU_LOST))

    def was_reset(self, gpu: int, after_ms: int, until_ms: int) -> bool:
        """Whether the GPU was reset between two instants."""
        return any(after_ms < reset <= until_ms for reset in self._resets_ms[gpu])

    def loaded_ms(self, gpu: int, at_ms: int) -> int | None:
        """When the GPU was last reset; None: before the first tick."""
        return max((reset for reset in self._resets_ms[gpu] if reset <= at_ms), default=None)

    def boards(self, gpu: int, at_ms: int) -> Sequence[int]:
        """When boards were replaced, up to an instant."""
        return [replaced_ms for replaced_ms in self._boards_ms[gpu] if replaced_ms <= at_ms]

    def new_ms(self, gpu: int, at_ms: int) -> int:
        """When the current board was installed; 0: before the first tick."""
        return max(self.boards(gpu, at_ms), default=0)

    def _resets(self, gpu: int) -> Iterator[int]:
        yield from self._boards_ms[gpu]
        for fault in self._of_gpu[gpu]:
            if fault.kind in (FaultKind.GPU_LOST, FaultKind.ROW_REMAP) and fault.end_ms is not None:
                yield fault.end_ms
        yield from (reboot.end_ms for reboot in self._reboots if reboot.end_ms is not None)

    def _kinds(self, gpu: int, *kinds: FaultKind) -> Iterator[Fault]:
        return (fault for fault in self._of_gpu[gpu] if fault.kind in kinds)

    # Jobs and their loads.

    def occupant(self, job: Job, at_ms: int, start_ms: int) -> Job:
        """The job that a script puts on the GPUs instead, if any; `start_ms` as in `job`."""
        for gpu in job.gpus:
            for fault in self._kinds(gpu, FaultKind.JOB):
                if fault.is_active(at_ms):
                    return self._ordered_job(job, fault, start_ms)
        return job

    def _ordered_job(self, job: Job, fault: Fault, start_ms: int) -> Job:
        key = (job.gpus[0], fault.begin_ms)
        if key not in self._ordered:
            workload = Workload(fault.word("workload") or Workload.FREE)
            ends_ms = None if fault.end_ms is None else start_ms + fault.end_ms
            rng = random.Random(f"ordered/{job.gpus}/{job.started_ms}/{fault.begin_ms}")
            began_ms = start_ms + fault.begin_ms
            self._ordered[key] = make_job(workload, job.gpus, began_ms, ends_ms, rng)
        return self._ordered[key]

    def job(self, job: Job, asked: Demand, at_ms: int, start_ms: int) -> tuple[Job, Demand]:
        """The job and its load with the faults applied. `start_ms`: the first tick, on the job's clock."""
        if not job.pids:
            return job, asked
        outage = self._outage(job, at_ms, start_ms)
        if outage.is_away:
            return self._away_job(job), NOTHING
        if outage.restarted_ms is not None:
            job = self._restarted_job(job, start_ms + outage.restarted_ms)
        faults = [f for gpu in job.gpus for f in self._of_gpu[gpu] if f.is_active(at_ms)]
        for fault in (*faults, *(f for f in self._of_node if f.is_active(at_ms))):
            match fault.kind:
                case FaultKind.NFS_SLOW if asked.tree.loader_workers:
                    asked = starved_by_network(asked, at_ms)
                case FaultKind.MEMORY_LEAK if fault.word("where") == "host":
                    asked = asked._replace(tree=_leaked(asked.tree, _leak(fault, at_ms)))
                case _:
                    pass
        for fault in faults:
            # The others of the job wait for the one that hangs.
            if fault.kind is FaultKind.HANG:
                asked = hung(asked, is_blocked=fault.word("main") == "blocked")
        return job, asked

    def gpu_load(self, gpu: int, job: Job, load: GpuLoad, at_ms: int) -> GpuLoad:
        """The load of one GPU of a job with the faults applied."""
        for other in job.gpus:
            for fault in self._kinds(other, FaultKind.STRAGGLER):
                if fault.is_active(at_ms) and load.power_share:
                    load = _straggling(load, fault.number("clock"), is_slow=other == gpu)
        for fault in self._of_gpu[gpu]:
            if fault.is_active(at_ms):
                load = _conditions(load, fault, at_ms)
        return load

    def _outage(self, job: Job, at_ms: int, start_ms: int) -> Outage:
        restarted_ms: int | None = None
        for begin_ms, end_ms in self._absences(job, at_ms):
            if begin_ms <= at_ms and (end_ms is None or at_ms < end_ms):
                return Outage(is_away=True)
            # Not for a job that started later.
            if end_ms is not None and end_ms <= at_ms and job.started_ms < start_ms + end_ms:
                restarted_ms = max(restarted_ms or 0, end_ms)
        return Outage(restarted_ms=restarted_ms)

    def _absences(self, job: Job, at_ms: int) -> Iterator[tuple[int, int | None]]:
        """When the job was away, up to the absence that holds at that instant."""
        for reboot in self._reboots:
            yield reboot.begin_ms, reboot.end_ms
        for gpu in job.gpus:
            for fault in self._of_gpu[gpu]:
                match fault.kind:
                    case FaultKind.GPU_LOST:
                        yield fault.begin_ms, fault.end_ms
                    case FaultKind.ROW_REMAP if fault.end_ms is not None:
                        yield max(fault.end_ms - DRAIN_MS, fault.begin_ms), fault.end_ms
                    case FaultKind.ORPHAN_MEMORY:
                        yield fault.begin_ms, fault.end_ms
                    case FaultKind.JOB if fault.end_ms is not None:
                        # The earlier job is queued again when the other has ended.
                        yield fault.end_ms, fault.end_ms
                    case FaultKind.MEMORY_LEAK:
                        yield from _out_of_memory(fault, at_ms)
                    case _:
                        pass

    def _away_job(self, job: Job) -> Job:
        key = (job.gpus[0], job.started_ms)
        if key not in self._away:
            self._away[key] = Job(Workload.FREE, job.gpus, job.started_ms, job.ends_ms, 0.0, "", ())
        return self._away[key]

    def _restarted_job(self, job: Job, started_ms: int) -> Job:
        key = (job.gpus[0], job.started_ms, started_ms)
        if key not in self._restarted:
            # The scheduler queues the job again under its old number; its processes are new.
            shift = 64 * (1 + (started_ms // 1000) % 997)
            pids = tuple(pid + shift for pid in job.pids)
            self._restarted[key] = replace(job, started_ms=started_ms, pids=pids)
        return self._restarted[key]

    # Counters and states of the slow tables.

    def health(self, gpu: int, at_ms: int) -> HealthTrouble:
        """Effects on the GPU's memory."""
        loaded_ms = self.loaded_ms(gpu, at_ms) or 0
        new_ms = self.new_ms(gpu, at_ms)
        volatile = lifetime = Errors()
        corrected = uncorrected = pages = 0
        is_pending = has_failed = False
        kinds: set[FaultKind] = set()
        action = None
        for fault in self._of_gpu[gpu]:
            if not new_ms <= fault.begin_ms <= at_ms:
                continue
            match fault.kind:
                case FaultKind.ECC_CORRECTED | FaultKind.ECC_UNCORRECTED:
                    lifetime = _with_errors(lifetime, fault, 0, at_ms)
                    volatile = _with_errors(volatile, fault, loaded_ms, at_ms)
                case FaultKind.ROW_REMAP:
                    rows = int(fault.number("rows"))
                    corrected += rows if fault.word("cause") == "corrected" else 0
                    uncorrected += rows if fault.word("cause") == "uncorrected" else 0
                    is_pending |= fault.is_active(at_ms)
                case FaultKind.ROW_REMAP_FAILED:
                    has_failed = True
                case FaultKind.PAGES_RETIRED:
                    pages += int(fault.number("pages"))
                case FaultKind.RECOVERY if fault.is_active(at_ms):
                    action = fault.word("action")
                case FaultKind.MEMORY_UNREPAIRABLE:
                    pass
                case FaultKind.INFOROM_INVALID | FaultKind.FABRIC_DOWN if fault.is_active(at_ms):
                    pass
                case _:
                    continue
            kinds.add(fault.kind)
        if not kinds:
            return HEALTH_WELL
        return HealthTrouble(
            volatile,
            lifetime,
            corrected,
            uncorrected,
            is_pending,
            has_failed,
            pages,
            action,
            FaultKind.INFOROM_INVALID in kinds,
            FaultKind.MEMORY_UNREPAIRABLE in kinds,
            FaultKind.FABRIC_DOWN in kinds,
        )

    def fan_percent(self, gpu: int, at_ms: int) -> int | None:
        """The speed at which the GPU's fan is stuck; None: it works."""
        for fault in self._kinds(gpu, FaultKind.FAN_STUCK):
            if fault.is_active(at_ms):
                return fault.whole("percent")
        return None

    def pcie(self, gpu: int, at_ms: int) -> PcieTrouble:
        """Faults of the GPU's PCIe link."""
        loaded_ms = self.loaded_ms(gpu, at_ms) or 0
        trouble = PCIE_WELL
        for fault in self._kinds(gpu, FaultKind.PCIE_DEGRADED):
            if fault.begin_ms > at_ms:
                continue
            per_minute = fault.number("replays_per_minute")
            replays = int(per_minute * fault.active_ms(loaded_ms, at_ms) / 60_000)
            trouble = PcieTrouble(trouble.generation, trouble.width, trouble.replays + replays)
            if fault.is_active(at_ms):
                trouble = PcieTrouble(
                    fault.whole("generation"), fault.whole("width"), trouble.replays
                )
        return trouble

    def links(self, gpu: int, at_ms: int) -> Mapping[int, LinkTrouble]:
        """NVLinks of the GPU that are or were down, by number."""
        loaded_ms = self.loaded_ms(gpu, at_ms) or 0
        troubles: dict[int, LinkTrouble] = {}
        for fault in self._kinds(gpu, FaultKind.NVLINK_DOWN):
            link = int(fault.number("link"))
            before = troubles.get(link, LinkTrouble())
            is_down, downs = _flapping(fault, loaded_ms, at_ms)
            troubles[link] = LinkTrouble(before.is_down or is_down, before.downs + downs)
        return troubles

    def ports(self, at_ms: int) -> Mapping[int, PortTrouble]:
        """InfiniBand ports that are or were down, by number of the adapter."""
        up_ms = self.up_since_ms(at_ms) or 0
        troubles: dict[int, PortTrouble] = {}
        for fault in self._of_node:
            if fault.kind is FaultKind.INFINIBAND_DOWN:
                number = int(fault.number("adapter"))
                before = troubles.get(number, PortTrouble())
                is_down, downs = _flapping(fault, up_ms, at_ms)
                troubles[number] = PortTrouble(before.is_down or is_down, before.downs + downs)
        return troubles

    def nfs(self, at_ms: int) -> Nfs:
        """How slow NFS has been."""
        up_ms = self.up_since_ms(at_ms) or 0
        slow_ms, latencies = 0, 0.0
        for fault in self._of_node:
            if fault.kind is FaultKind.NFS_SLOW:
                active_ms = fault.active_ms(up_ms, at_ms)
                slow_ms += active_ms
                latencies += active_ms * fault.number("latency_ms") / 1000
        return Nfs(slow_ms / 1000, latencies / slow_ms if slow_ms else 0.0)

    def is_shm_full(self, at_ms: int) -> bool:
        """Whether /dev/shm is full."""
        return any(f.kind is FaultKind.SHM_FULL and f.is_active(at_ms) for f in self._of_node)


def _ended_early(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """End faults at a reboot, or with their board."""
    enders = [f for f in faults if f.kind in (FaultKind.REBOOT, FaultKind.BOARD_REPLACED)]
    enders.sort(key=lambda ender: ender.begin_ms)
    ended = []
    for fault in faults:
        for ender in enders:
            at_ms = ender.begin_ms
            if _ends(ender, fault) and fault.begin_ms < at_ms and fault.is_active(at_ms):
                fault = replace(fault, end_ms=at_ms)
        ended.append(fault)
    return tuple(ended)


def _ends(ender: Fault, fault: Fault) -> bool:
    if ender.kind is FaultKind.REBOOT:
        return fault.kind in _OVER_AFTER_REBOOT
    return ender.gpu == fault.gpu and fault.kind not in _KEPT_BY_NEW_BOARD


def _flapping(fault: Fault, since_ms: int, at_ms: int) -> tuple[bool, int]:
    """Whether the link or port is down, and how often it went down since an instant."""
    if fault.begin_ms > at_ms:
        return False, 0
    period_ms = fault.whole("flap")
    last_ms = at_ms if fault.end_ms is None else min(at_ms, fault.end_ms - 1)
    if period_ms is None:
        return fault.is_active(at_ms), int(fault.begin_ms >= since_ms)
    begun = (last_ms - fault.begin_ms) // period_ms + 1
    begun_before = max(-(-(since_ms - fault.begin_ms) // period_ms), 0)
    is_down = fault.is_active(at_ms) and (at_ms - fault.begin_ms) % period_ms < period_ms / 2
    return is_down, max(begun - begun_before, 0)


def _with_errors(errors: Errors, fault: Fault, from_ms: int, to_ms: int) -> Errors:
    place = fault.word("place")
    if fault.kind is FaultKind.ECC_CORRECTED:
        fate = "corrected"
        count = int(fault.number("per_minute") * fault.active_ms(from_ms, to_ms) / 60_000)
    else:
        fate = "uncorrected"
        count = int(fault.number("errors")) if fault.begin_ms >= from_ms else 0
    values = errors._asdict()
    values[f"{place}_{fate}"] += count
    return Errors(**values)


def _leak(fault: Fault, at_ms: int) -> float:
    """How much of the free memory has leaked away, 0 to 1."""
    full_ms = fault.number("full_after")
    into_ms = (at_ms - fault.begin_ms) % (full_ms + REQUEUE_MS)
    return min(into_ms / full_ms, 1.0)


def _out_of_memory(fault: Fault, at_ms: int) -> Iterator[tuple[int, int]]:
    """The last absences of a job that leaks, runs out of memory and is queued again."""
    full_ms = int(fault.number("full_after"))
    cycle_ms = full_ms + REQUEUE_MS
    last_ms = at_ms if fault.end_ms is None else min(at_ms, fault.end_ms)
    cycle = (last_ms - fault.begin_ms) // cycle_ms
    for number in (cycle - 1, cycle):
        out_ms = fault.begin_ms + number * cycle_ms + full_ms
        if number >= 0 and (fault.end_ms is None or out_ms < fault.end_ms):
            yield out_ms, out_ms + REQUEUE_MS


def _leaked(tree: TreeLoad, share: float) -> TreeLoad:
    """Memory grows up to the limit of the job's cgroup."""
    left = JOB_MEMORY_BYTES_PER_GPU - tree.memory_bytes
    return tree._replace(memory_bytes=tree.memory_bytes + share * left)


def _straggling(load: GpuLoad, clock: float, *, is_slow: bool) -> GpuLoad:
    """The slow GPU has a lower clock; the others wait for it: they look busy and draw little power."""
    if is_slow:
        return load._replace(clock_share_max=min(clock, load.clock_share_max))
    return load._replace(
        util_percent=max(load.util_percent, 99.0),
        memory_util_percent=load.memory_util_percent * clock,
        power_share=load.power_share * (0.25 + 0.75 * clock),
        pcie_tx_bytes_per_second=load.pcie_tx_bytes_per_second * clock,
        pcie_rx_bytes_per_second=load.pcie_rx_bytes_per_second * clock,
        nvlink_bytes_per_second=load.nvlink_bytes_per_second * clock,
    )


def _conditions(load: GpuLoad, fault: Fault, at_ms: int) -> GpuLoad:
    match fault.kind:
        case FaultKind.THERMAL_THROTTLE:
            return load._replace(
                cooling_factor=fault.number("resistance"), cooling_swing=fault.number("swing")
            )
        case FaultKind.POWER_THROTTLE if load.power_share > WORKS_POWER_SHARE:
            return load._replace(power_share=max(load.power_share, fault.number("demand")))
        case FaultKind.POWER_CAPPED:
            return load._replace(power_limit_share=fault.number("share"))
        case FaultKind.POWER_BRAKE:
            return load._replace(is_braked=True)
        case FaultKind.CLOCKS_LOCKED:
            return load._replace(clock_share_max=min(fault.number("clock"), load.clock_share_max))
        case FaultKind.ORPHAN_MEMORY:
            return load._replace(has_context=True, memory_share=ORPHAN_SHARE)
        case FaultKind.MEMORY_LEAK if fault.word("where") == "gpu" and load.has_context:
            held = load.memory_share
            return load._replace(memory_share=held + _leak(fault, at_ms) * (1 - held))
        case FaultKind.PCIE_DEGRADED:
            return _slow_pcie(load, fault.whole("generation"), fault.whole("width"))
        case _:
            return load


def _slow_pcie(load: GpuLoad, generation: int | None, width: int | None) -> GpuLoad:
    """Limit PCIe traffic to the remaining lanes."""
    lane = PCIE_LANE_BYTES_PER_SECOND[5 if generation is None else generation]
    most = lane * (16 if width is None else width) * PCIE_EFFICIENCY
    return load._replace(
        pcie_tx_bytes_per_second=min(load.pcie_tx_bytes_per_second, most),
        pcie_rx_bytes_per_second=min(load.pcie_rx_bytes_per_second, most),
    )
