"""Lists what goes wrong in the simulated fleet, where and when, and which alert each fault must raise by when.

Eight nodes make a group: four with H100s, one each with A100s, MI300X, T4s and RTX A6000s. Faults run
one after the other on four parts of a node (four GPUs of one job, two of another, one alone, one that
serves), and once all have run, again with the roles of the H100 nodes and the GPUs of a job moved on.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuwarden_simulator import Fault, FaultKind, Placement, Workload

MINUTE_MS = 60_000
GROUP = (
    *4 * ["H100-SXM-80GB"],
    "A100-SXM-80GB",
    "MI300X-192GB",
    "T4-16GB",
    "RTX-A6000-48GB",
)
"""Models of the nodes of a group, in order."""
GPUS = {"T4-16GB": 4, "RTX-A6000-48GB": 4}
"""GPUs of a node where they are not eight."""
SETTLE_MIN = 35.0
"""Before the first fault, and between two on one part of a node: the window of most rules."""
NODE_SETTLE_MIN = 16.0
"""Between two faults of a whole node."""
LINGER_MIN = 15.0
"""How long after its end a fault may still raise an alert: windows and late rollups."""
K, W = FaultKind, Workload


@dataclass(frozen=True, slots=True)
class Order:
    """A fault of the simulator within a scenario, in minutes after its begin."""

    kind: FaultKind
    options: Mapping[str, object] = field(default_factory=dict)
    at_min: float = 0.0
    for_min: float | None = None
    """None: as long as the scenario, or a moment."""
    gpus: str = "first"
    """Which GPUs: `first` or `all` of the part, `every` of the node, or `none`: the node itself."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults that belong together, and the alerts that they must raise."""

    name: str
    minutes: float
    orders: tuple[Order, ...]
    expects: Mapping[str, float]
    """Minutes from the begin within which each rule must fire."""
    may: tuple[str, ...] = ()
    """Rules that may also fire, for the same cause."""
    lasts: bool = False
    """The damage stays: alerts may come at any later time."""
    is_of_node: bool = False
    stands_in: Mapping[str, str] = field(default_factory=dict)
    """By expected rule another that owns the fault where it is worse; either is right."""
    is_mended: bool = False
    """The boards that it broke are replaced once the round is over."""
    agent: str = ""
    """A fault of the agent instead of the hardware; see `fleet.AGENT_FAULTS`."""


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """A scenario at its place and time; times in milliseconds since the beginning."""

    scenario: Scenario
    node: str
    gpus: frozenset[int] | None
    """GPUs that alerts may name; None: all, and the node."""
    part: tuple[int, ...]
    """GPUs of the part of the node that it is on; the first has what only one has."""
    begin_ms: int
    end_ms: int

    def may_be_meant(self, rule: str, node: str, gpu: int | None, fired_ms: int) -> bool:
        """Whether an alert that fired at this time is about this fault."""
        if node != self.node or fired_ms < self.begin_ms:
            return False
        if fired_ms > self.end_ms + LINGER_MIN * MINUTE_MS and not self.scenario.lasts:
            return False
        if gpu is not None and self.gpus is not None and gpu not in self.gpus:
            return False
        scenario = self.scenario
        return rule in (*scenario.expects, *scenario.may, *scenario.stands_in.values())


def job(workload: Workload, minutes: float, **within: float) -> Scenario:
    """Another job takes the GPUs of the part."""
    return Scenario(workload.value, minutes, (Order(K.JOB, {"workload": workload}),), within)


def fault(
    kind: FaultKind, minutes: float, *may: str, name: str = "", gpus: str = "first", **within: float
) -> Scenario:
    """One fault without options, with what it must raise."""
    return Scenario(name or kind.value, minutes, (Order(kind, gpus=gpus),), within, may)


def mended(scenario: Scenario) -> Scenario:
    """The same, after which the boards are replaced."""
    return replace(scenario, is_mended=True)


def with_options(scenario: Scenario, name: str, **options: object) -> Scenario:
    """The same with the fault told more."""
    first = scenario.orders[0]
    orders = (Order(first.kind, options, first.at_min, first.for_min, first.gpus),)
    return Scenario(
        name, scenario.minutes, orders, scenario.expects, scenario.may, scenario.lasts,
        scenario.is_of_node,
    )  # fmt: skip


def xid(code: int, minutes: float = 5, lasts: bool = True, **within: float) -> Scenario:
    """An Xid of the first GPU."""
    return Scenario(f"xid {code}", minutes, (Order(K.XID, {"code": code}),), within, lasts=lasts)


HEAT = ("gpu_thermal_throttle_sw", "temperature_margin_low", "temperature_limit_reached",
        "temperature_peer_outlier", "straggler")  # fmt: skip

FATAL_ECC = Scenario(
    "uncorrectable error",
    30,
    (
        Order(K.ECC_UNCORRECTED, at_min=1),
        Order(K.XID, {"code": 48}, at_min=1),
        Order(K.ROW_REMAP, at_min=1, for_min=29),
    ),
    {"ecc_uncorrectable": 4, "xid_critical": 2, "row_remap_pending": 4, "recovery_action": 4},
    lasts=True,
)
SRAM = Scenario(
    "SRAM errors",
    20,
    (Order(K.ECC_UNCORRECTED, {"place": "sram", "errors": 4}),),
    {"ecc_uncorrectable": 3, "ecc_sram_threshold": 3},
    lasts=True,
    is_mended=True,
)
REBOOTS = Scenario(
    "an Xid after each of two reboots",
    75,
    (
        *(Order(K.XID, {"code": 119}, at_min=at) for at in (0, 30, 60)),
        *(Order(K.REBOOT, at_min=at, for_min=3, gpus="none") for at in (10, 40)),
    ),
    {"xid_critical": 1, "agent_stale": 13, "xid_after_reboots": 62},
    lasts=True,
    is_of_node=True,
    is_mended=True,
)
MANY_JOBS = Scenario(
    "Xids of three jobs",
    150,
    (
        *(Order(K.XID, {"code": 31}, at_min=at) for at in (5, 70, 135)),
        *(Order(K.JOB, {"workload": W.TRAINING}, at_min=a, for_min=60) for a in (0, 65)),
    ),
    {"xid_application": 6, "xid_many_jobs": 142},
    lasts=True,
    is_mended=True,
)
WARM = Scenario(
    "warm",
    40,
    (
        Order(K.THERMAL_THROTTLE, {"resistance": 1.8, "swing": 0.0}),
        Order(K.POWER_THROTTLE, {"demand": 1.05}),
    ),
    {"gpu_thermal_throttle_sw": 20},
    HEAT,
    stands_in={"gpu_thermal_throttle_sw": "gpu_thermal_throttle_hw"},
)
CAPPED = Scenario(
    "power limit lowered",
    45,
    (Order(K.POWER_CAPPED), Order(K.POWER_THROTTLE, {"demand": 1.05})),
    {"power_limit_lowered": 14, "gpu_power_cap_loss": 24},
)
WORN_PASTE = Scenario(
    "worn thermal paste",
    60,
    (Order(K.THERMAL_THROTTLE, {"resistance": 1.75, "swing": 0.0}),),
    {"temperature_peer_outlier": 45},
    # So much that a job of little power is 12 K hotter; one of much power comes to its limit.
    (*HEAT, "gpu_thermal_throttle_hw"),
)
LEAK = Scenario(
    "memory leak", 85, (Order(K.MEMORY_LEAK, {"full_after": 90 * MINUTE_MS}),), {"vram_growth": 70}
)

SHORT_IDLE = Scenario("idle for a little", 22, (Order(K.JOB, {"workload": W.IDLE_HELD}),), {})
FEW_ERRORS = Scenario(
    "a few corrected errors", 20, (Order(K.ECC_CORRECTED, {"per_minute": 10}),), {}
)
FEW_REPLAYS = Scenario(
    "a few pcie replays", 20, (Order(K.PCIE_DEGRADED, {"replays_per_minute": 4}),), {}
)
MAINTENANCE = Scenario(
    "boards replaced",
    15,
    (Order(K.REBOOT, gpus="none"), Order(K.BOARD_REPLACED, at_min=5, gpus="all")),
    {"node_down": 7, "agent_stale": 4},
    ("gpu_idle_free",),
    is_of_node=True,
)
"""Nobody told of it before; the boards that are gone are not lost."""
MAINTENANCE_MIN = 600.0
"""After the begin of a round of faults, when all of it is over."""
QUICK_REBOOT = Scenario("quick reboot", 0.5, (Order(K.REBOOT, gpus="none"),), {}, is_of_node=True)
"""Harmless: no alert may name them."""

PARTS: dict[str, tuple[Scenario, ...]] = {
    "a quad": (
        fault(K.HANG, 30, "busy_not_working", gpu_hung=13),
        fault(K.STRAGGLER, 40, "clocks_locked", straggler=22),
        fault(K.CLOCKS_LOCKED, 35, clocks_locked=20, straggler=22),
        WORN_PASTE,
    ),
    "a pair": (
        job(W.PARTLY_IDLE, 50, job_partially_idle=38),
        job(W.UNUSED, 50, gpu_allocated_idle=38),
        job(W.BLOCKED, 40, gpu_process_blocked=27),
    ),
    "a solo": (
        fault(K.THERMAL_THROTTLE, 30, *HEAT, gpu_thermal_throttle_hw=8),
        job(W.IDLE_HELD, 50, gpu_idle_held=38),
        FATAL_ECC,
    ),
    "a serve": (SHORT_IDLE, job(W.SMALL, 110, low_utilization=80), LEAK),
    "b quad": (
        job(W.COMM_BOUND, 60, comm_bound=40),
        mended(fault(K.GPU_LOST, 30, "gpu_idle_free", gpu_lost=5, xid_critical=1)),
        with_options(
            fault(K.NVLINK_DOWN, 25, "nvlink_errors", nvlink_down=8), "nvlink down", link=4
        ),
    ),
    "b pair": (
        with_options(
            fault(K.NVLINK_DOWN, 15, "nvlink_down", nvlink_errors=5),
            "nvlink flapping",
            link=7,
            flap=MINUTE_MS,
        ),
        CAPPED,
        fault(K.POWER_BRAKE, 20, name="brake of one GPU", gpu_power_brake=6),
    ),
    "b solo": (
        job(W.INPUT_BOUND_CPU, 50, gpu_data_loader_bound=26),
        job(W.INPUT_BOUND_STORAGE, 50, gpu_data_loader_bound=26),
        job(W.HOST_BOUND, 65, host_bound=50),
    ),
    "b serve": (
        fault(K.ORPHAN_MEMORY, 45, "gpu_idle_held", orphan_memory=25),
        job(W.FREE, 50, gpu_idle_free=38),
        SRAM,
    ),
    "c quad": (
        xid(13, xid_application=2),
        xid(43),
        xid(92, xid_warning=2),
        xid(94, xid_warning=2),
        xid(95, xid_critical=1),
        MANY_JOBS,
    ),
    "c pair": (
        FEW_ERRORS,
        FEW_REPLAYS,
        with_options(fault(K.PCIE_DEGRADED, 25, pcie_degraded=14), "pcie narrower", width=4),
        with_options(
            fault(K.PCIE_DEGRADED, 25, pcie_replays=14), "pcie replays", replays_per_minute=40
        ),
        with_options(
            fault(K.ECC_CORRECTED, 20, ecc_correctable_rate=4), "corrected errors", per_minute=2000
        ),
    ),
    "c solo": (
        fault(K.HANG, 50, name="spinning alone", busy_not_working=35),
        WARM,
        job(W.INPUT_BOUND_MAIN, 50, gpu_data_loader_bound=26),
    ),
    "c serve": (
        fault(K.INFOROM_INVALID, 15, inforom_invalid=8),
        with_options(
            fault(K.RECOVERY, 15, recovery_action=3), "reboot asked for", action="node_reboot"
        ),
        Scenario(
            "remap failed", 10, (Order(K.ROW_REMAP_FAILED),), {"row_remap_failed": 3},
            ("row_remap_spares_low",), lasts=True, is_mended=True,
        ),
        Scenario(
            "unrepairable memory", 10, (Order(K.MEMORY_UNREPAIRABLE),), {"memory_unrepairable": 3},
            lasts=True, is_mended=True,
        ),
    ),
    "d node": (
        fault(K.INFINIBAND_DOWN, 15, gpus="none", infiniband_down=7),
        with_options(
            fault(K.INFINIBAND_DOWN, 14, "infiniband_down", gpus="none", infiniband_flapping=13),
            "port flapping",
            adapter=3,
            flap=4 * MINUTE_MS,
        ),
        fault(K.FABRIC_DOWN, 15, fabric_unhealthy=8),
        fault(K.POWER_BRAKE, 15, name="brake of a node", gpus="every", gpu_power_brake=6),
        QUICK_REBOOT,
        Scenario("fatal SXid", 5, (), {"sxid_fatal": 2}, lasts=True, agent="sxid"),
        Scenario("slow readings", 20, (), {"collection_slow": 12}, agent="slow"),
        Scenario("missed readings", 20, (), {"coverage_low": 12}, agent="starved"),
        Scenario("spool full", 5, (), {"agent_loses_data": 2}, agent="loses"),
        fault(K.NFS_SLOW, 45, gpus="none", gpu_data_loader_bound=20),
        mended(
            fault(
                K.GPU_LOST, 15, "gpu_lost", "gpu_idle_free", name="all GPUs lost", gpus="every",
                driver_down=5, xid_critical=1,
            )
        ),
        fault(K.REBOOT, 25, "gpu_idle_free", name="node down", gpus="none", node_down=7,
              agent_stale=4),
    ),
    "A100 node": (REBOOTS,),
    "MI300X quad": (job(W.IDLE_HELD, 50, gpu_idle_held=38),),
    "MI300X pair": (job(W.INPUT_BOUND_MAIN, 50, gpu_data_loader_bound=26),),
    "MI300X solo": (job(W.FREE, 50, gpu_idle_free=38),),
    "T4 pair": (fault(K.POWER_CAPPED, 30, "gpu_power_cap_loss", power_limit_lowered=14),),
    "T4 solo": (
        Scenario("20 pages retired", 20, (Order(K.PAGES_RETIRED, {"pages": 20}),),
                 {"retired_pages": 3}, lasts=True, is_mended=True),
        Scenario("61 pages retired", 20, (Order(K.PAGES_RETIRED, {"pages": 41}),),
                 {"retired_pages_exhausted": 3}, ("retired_pages",), lasts=True, is_mended=True),
    ),
    "T4 serve": (fault(K.POWER_BRAKE, 20, name="brake of one GPU", gpu_power_brake=6),),
    "A6000 serve": (job(W.SMALL, 1620, low_utilization=80, oversized_gpu=1560),),
    "A6000 solo": (
        with_options(fault(K.FAN_STUCK, 45, fan_fault=36), "fan at full speed", percent=100),
    ),
    "A6000 pair": (
        Scenario("fan stands still", 25, (Order(K.FAN_STUCK), Order(K.THERMAL_THROTTLE)),
                 {"fan_fault": 16}, ("gpu_thermal_throttle_hw", *HEAT)),
    ),
}  # fmt: skip
"""What happens, one after the other, on each part of a node by its role in the group."""

ROLES = ("a", "b", "c", "d", "A100", "MI300X", "T4", "A6000")
PERSISTENCE_OFF = Scenario("persistence mode off", 0, (), {"persistence_off": 75}, lasts=True)
NEVER_PLUGGED_IN = Scenario(
    "port never up", 0, (Order(K.INFINIBAND_DOWN, {"adapter": 5}, gpus="none"),),
    {"infiniband_ports_missing": 20}, lasts=True,
)  # fmt: skip
"""How a node is from the beginning, on the node of each group that has this place."""
FROM_THE_BEGINNING = {6: PERSISTENCE_OFF, 2: NEVER_PLUGGED_IN}
_JOB_WIDE = (K.JOB, K.HANG, K.GPU_LOST, K.REBOOT)
"""Faults that concern all GPUs of a job."""


def placements(gpus: int) -> tuple[Placement, ...]:
    """Jobs that run on a node permanently: they are healthy."""
    groups = ((0, 1), (2,), (3,)) if gpus == 4 else ((0, 1, 2, 3), (4, 5), (6,), (7,))
    *training, serving = groups
    return (*(Placement(g, W.TRAINING) for g in training), Placement(serving, W.INFERENCE))


def part_gpus(part: str, gpus: int) -> tuple[int, ...]:
    """GPUs of a part of a node; all of them for the node itself."""
    if part == "node":
        return tuple(range(gpus))
    by_size = {"pair": (0, 1), "solo": (2,), "serve": (3,)}
    by_size_8 = {"quad": (0, 1, 2, 3), "pair": (4, 5), "solo": (6,), "serve": (7,)}
    return by_size[part] if gpus == 4 else by_size_8[part]


def node_name(number: int) -> str:
    """Name of the fleet's node of that number, from 0."""
    return f"node-{number:03d}"


def model_of(number: int) -> str:
    """Name of the model on the fleet's node of that number."""
    return GROUP[number % len(GROUP)]


def gpus_of(number: int) -> int:
    """GPUs of the fleet's node of that number."""
    return GPUS.get(model_of(number), 8)


def plan(nodes: int, hours: float, seed: int) -> list[ScriptedFault]:
    """All incidents of a fleet in the order of time; those that the end would cut short are left out."""
    end_ms = round(hours * 60 * MINUTE_MS)
    incidents = []
    for number in range(nodes):
        if (given := FROM_THE_BEGINNING.get(number % len(GROUP))) is not None:
            incidents.append(ScriptedFault(given, node_name(number), None, (), 0, end_ms))
        busy_until_ms: dict[str, int] = {}
        for begin_ms, role, cycle in _cycles(number, end_ms, seed):
            broken: set[int] = set()
            for part_name, scenarios in PARTS.items():
                if part_name.split()[0] == role:
                    part = part_name.split()[1]
                    if begin_ms > busy_until_ms.get(part, 0):
                        found = [*_in_turn(number, part, scenarios, begin_ms, cycle)]
                        incidents += found
                        busy_until_ms[part] = found[-1].end_ms
                        broken.update(*(_broken(i, gpus_of(number)) for i in found))
            if broken:
                incidents.append(_maintenance(number, broken, begin_ms))
    kept = [
        i for i in incidents if i.end_ms + LINGER_MIN * MINUTE_MS <= end_ms or i.end_ms == end_ms
    ]
    return sorted(kept, key=lambda incident: (incident.begin_ms, incident.node))


def is_calm(incidents: Sequence[ScriptedFault], begin_s: int, end_s: int) -> bool:
    """Nothing goes wrong between two seconds but what is wrong all the time, or for a day."""
    return not any(
        i.begin_ms < end_s * 1000 and begin_s * 1000 < i.end_ms and 0 < i.scenario.minutes < 300
        for i in incidents
    )


def _cycles(number: int, end_ms: int, seed: int) -> Iterator[tuple[int, str, int]]:
    """When a node begins a round of faults, in which role, and which round it is."""
    group, place = divmod(number, len(GROUP))
    stagger_min = random.Random(f"stagger/{seed}/{group}").uniform(0, 60) if group else 0.0
    length_min = 26 * 60.0  # a day's alerts of Xids and corrected errors are over
    cycle = 0
    while (begin_min := SETTLE_MIN + stagger_min + cycle * length_min) * MINUTE_MS < end_ms:
        # With one turn for each role, no GPU has the same fault twice within four rounds.
        role = ROLES[(place + cycle) % 4] if place < 4 else ROLES[place]
        yield round(begin_min * MINUTE_MS), role, cycle
        cycle += 1


def _in_turn(
    number: int, part: str, scenarios: tuple[Scenario, ...], begin_ms: int, cycle: int
) -> Iterator[ScriptedFault]:
    all_gpus = gpus_of(number)
    gpus = part_gpus(part, all_gpus)
    for scenario in scenarios:
        end_ms = begin_ms + round(scenario.minutes * MINUTE_MS)
        wide = part == "node" or scenario.is_of_node
        turned = gpus[cycle % len(gpus) :] + gpus[: cycle % len(gpus)]
        is_shared = any(o.kind in _JOB_WIDE or o.gpus == "all" for o in scenario.orders)
        spoken_of = None if wide else frozenset(turned if is_shared else turned[:1])
        yield ScriptedFault(scenario, node_name(number), spoken_of, turned, begin_ms, end_ms)
        settle_min = NODE_SETTLE_MIN if part == "node" else SETTLE_MIN
        begin_ms = end_ms + round(settle_min * MINUTE_MS)


def _broken(incident: ScriptedFault, gpus: int) -> set[int]:
    """GPUs whose boards must be replaced."""
    if not incident.scenario.is_mended:
        return set()
    faults = faults_of(incident, gpus)
    return {f.gpu for f in faults if f.gpu is not None and f.kind is not K.JOB}


def _maintenance(number: int, broken: set[int], begin_ms: int) -> ScriptedFault:
    begin_ms += round(MAINTENANCE_MIN * MINUTE_MS)
    end_ms = begin_ms + round(MAINTENANCE.minutes * MINUTE_MS)
    part = tuple(sorted(broken))
    return ScriptedFault(MAINTENANCE, node_name(number), None, part, begin_ms, end_ms)


def faults_of(incident: ScriptedFault, gpus: int) -> Iterator[Fault]:
    """Faults of the simulator for an incident."""
    for order in incident.scenario.orders:
        begin_ms = incident.begin_ms + round(order.at_min * MINUTE_MS)
        end_ms: int | None = incident.end_ms
        if order.for_min is not None:
            end_ms = begin_ms + round(order.for_min * MINUTE_MS)
        if order.kind in _MOMENTS:
            end_ms = None
        which: tuple[int | None, ...] = {
            "first": incident.part[:1],
            "all": incident.part,
            "every": tuple(range(gpus)),
            "none": (None,),
        }[order.gpus]
        for gpu in which:
            yield Fault(order.kind, begin_ms, end_ms, gpu, dict(order.options))  # type: ignore[arg-type]


_MOMENTS = (
    K.XID, K.ECC_UNCORRECTED, K.ROW_REMAP_FAILED, K.PAGES_RETIRED, K.MEMORY_UNREPAIRABLE, K.BOARD_REPLACED,
)  # fmt: skip
