"""Simulates a whole node as one probe, and fleets of nodes."""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from gpuwarden.models import GpuModel
from gpuwarden_agent.burst import POLLED, BurstSample
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator.devices import gpu as gpu_physics
from gpuwarden_simulator.devices import host as host_physics
from gpuwarden_simulator.devices.gpu import GpuLoad, GpuState
from gpuwarden_simulator.devices.hardware import (
    cpu_model_of,
    driver_facts,
    make_device,
    peers_of,
    rack_facts,
)
from gpuwarden_simulator.devices.host import HostState, SlowColumns
from gpuwarden_simulator.devices.vendors import (
    SimulatedSource,
    described,
    node_facts,
    source_of,
    told,
    told_tables,
)
from gpuwarden_simulator.faults import events as scripted_events
from gpuwarden_simulator.faults.effects import Effects
from gpuwarden_simulator.faults.events import Culprit
from gpuwarden_simulator.faults.kinds import Fault, misfit
from gpuwarden_simulator.jobs import processes as process_tree
from gpuwarden_simulator.jobs.placement import (
    Placement,
    Timeline,
    check_placements,
    default_workloads,
)
from gpuwarden_simulator.jobs.processes import TreeState
from gpuwarden_simulator.jobs.workload import (
    Demand,
    Job,
    Workload,
    demand,
    gpu_loads,
    host_load,
)
from gpuwarden_simulator.slow_tables import SlowTables

FIRST_STEP_MS = 1_000
"""Simulated time before the first tick, so that its readings are those of a running node."""

STEPS_MAX = 120
"""Most steps between two ticks; a longer gap has longer steps."""

SLOW_COLUMNS_MS = 10_000
"""How often host_samples has its slow columns."""


class SimulatedNode:
    """A simulated GPU node, as a probe.

    The same arguments and the same sequence of ticks give the same rows. Ticks may be in the past and
    may skip; they must grow. At the first tick the node has run for days; times of `script` count from
    there.
    """

    name = "simulator"
    simulated = True
    blocking = False
    gpu_uuid: str | None = None

    def __init__(
        self,
        name: str,
        gpus: int,
        model: GpuModel,
        seed: int,
        workloads: Sequence[Placement] | None = None,
        *,
        host: bool = True,
        script: Sequence[Fault] = (),
        stride_ms: int = 1_000,
        number: int = 0,
    ) -> None:
        """`name`: that of the node. `host`: simulate the node, too, not only its GPUs. `stride_ms`:
        length of a step of its physics between two distant ticks. `number`: its place in a fleet, from 0,
        which decides its rack.

        Raises ValueError if the workloads do not name each GPU once, or the node cannot have a fault
        of the script.
        """
        self.node = name
        identity = f"{seed}/{name}"
        placements = default_workloads(gpus, seed) if workloads is None else workloads
        check_placements(placements, gpus)
        for fault in script:
            if problem := misfit(fault, model, gpus):
                raise ValueError(f"{fault.kind}: {problem}")
        self._host = host
        self._stride_ms = stride_ms
        self._model = model
        self._source = source_of(model)
        self._rack = rack_facts(model, seed, number)
        self._devices = [make_device(model, identity, i, gpus) for i in range(gpus)]
        self._size = host_physics.make_node_size(gpus)
        self._timelines = tuple(Timeline(p, identity) for p in placements)
        self._effects = Effects(script, gpus)
        self._slow = SlowTables(model, self._devices, identity, self._effects, host=host)
        self._events = scripted_events.schedule(self._effects.faults, self._devices)
        self._events_sent = 0
        self._identity = identity
        self._rng = random.Random(f"readings/{identity}")
        self._up_before_s = random.Random(f"uptime/{identity}").uniform(5, 40) * 86_400
        self._start_ms = 0
        self._last_ms: int | None = None
        self._ahead_ms = 0
        self._asked: list[tuple[Job, Demand]] = []
        self._gpu_states: dict[int, GpuState] = {}
        self._tree_states: dict[int, TreeState] = {}
        self._tree_jobs: dict[int, Job] = {}
        self._host_state: HostState | None = None
        self._host_joules = host_physics.Joules()
        tables = (
            {"gpu_samples": 1, "process_samples": 10, "allocation_samples": 10}
            | ({"host_samples": 1} if host else {})
            | ({"events": 1} if script else {})
            | dict(self._slow.tables)
        )
        self.tables: Mapping[str, int] = (
            tables if self._source is None else told_tables(self._source, tables)
        )

    def describe(self) -> Reading:
        """Rows of `gpus` and `nodes`; without `host`, other probes describe the node itself."""
        model, source = self._model, self._source
        node: Row = {"gpus": len(self._devices)}
        if source is None:
            node |= driver_facts(model)
        else:
            node |= node_facts(source, model, len(self._devices))
        if self._host:
            node |= {
                "kernel": "6.8.0-60-generic",
                "os": "Ubuntu 24.04.3 LTS",
                "cpu_model": cpu_model_of(self._model),
                "cpus": self._size.cpus,
                "cpu_cores": self._size.cpu_cores,
                "memory_total_bytes": self._size.memory_total_bytes,
            }
            node |= (source.host if source else None) or {}
        if source is not None:
            rows = [described(source, model, device.describe()) for device in self._devices]
            return {"nodes": [node], "gpus": rows}
        gpus = [
            {
                **device.describe(),
                **self._rack,
                "peers": peers_of(device, self._devices),
                "cpu_affinity": self._size.affinity(device.numa_node, len(self._devices)),
            }
            for device in self._devices
        ]
        return {"nodes": [node], "gpus": gpus}

    def bus_ids(self) -> dict[str, tuple[int, str]]:
        """Index and UUID of its GPUs by PCI bus id, for names in schedulers."""
        rows = [device.describe() for device in self._devices]
        return {
            str(row["pci_bus_id"]): (int(str(row["gpu"])), str(row["gpu_uuid"])) for row in rows
        }

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """The samples of a tick; none while the node reboots. After the clock was set back, simulated time
        continues, ahead of the clock.
        """
        last_ms = self._last_ms
        ts_ms += self._ahead_ms
        if last_ms is not None and ts_ms <= last_ms:
            self._ahead_ms += last_ms + FIRST_STEP_MS - ts_ms
            ts_ms = last_ms + FIRST_STEP_MS
        if last_ms is None:
            self._start_ms = ts_ms
            self._begin(ts_ms)
        self._walk(ts_ms - FIRST_STEP_MS if last_ms is None else last_ms, ts_ms)
        self._last_ms = ts_ms
        due = self.tables if due is None else due
        if self._effects.faults and self._effects.is_down(ts_ms - self._start_ms):
            return {}
        is_slow = last_ms is None or ts_ms // SLOW_COLUMNS_MS > last_ms // SLOW_COLUMNS_MS
        reading: dict[str, list[Row]] = {}
        if "gpu_samples" in due:
            devices, states = self._devices, self._gpu_states
            reading["gpu_samples"] = [
                gpu_physics.gpu_row(devices[gpu], states[gpu]) for gpu in self._living(ts_ms)
            ]
        if "host_samples" in due and self._host_state is not None:
            row = host_physics.host_row(self._size, self._host_state)
            row |= self._energy(row, (ts_ms - (last_ms or ts_ms - FIRST_STEP_MS)) / 1000)
            if is_slow:
                row |= self._slow_columns(ts_ms) | self._power(row)
            reading["host_samples"] = [row]
        if "process_samples" in due:
            reading["process_samples"] = self._process_rows()
        if "allocation_samples" in due:
            reading["allocation_samples"] = self._allocation_rows()
        self._read_slow_tables(reading, due, ts_ms)
        if "events" in due and self._effects.faults:
            reading["events"] = self._due_events(ts_ms)
        return reading if self._source is None else told(self._source, reading)

    @property
    def states(self) -> Mapping[int, GpuState]:
        """State of each GPU after the last tick; empty before the first."""
        return self._gpu_states

    @property
    def source(self) -> SimulatedSource | None:
        """The source that its columns are of; None: NVML or amdgpu."""
        return self._source

    def burst(self) -> "SimulatedBurst":
        """Quick readings around the state of the last second."""
        return SimulatedBurst(self, f"burst/{self._identity}")

    def close(self) -> None:
        """Nothing to close."""

    def _living(self, ts_ms: int) -> Sequence[int]:
        """GPUs that are not lost."""
        everything = range(len(self._devices))
        if not self._effects.faults:
            return everything
        at_ms = ts_ms - self._start_ms
        return [gpu for gpu in everything if not self._effects.is_lost(gpu, at_ms)]

    def _read_slow_tables(
        self, reading: dict[str, list[Row]], due: Collection[str], ts_ms: int
    ) -> None:
        slow, states, at_ms = self._slow, self._gpu_states, ts_ms - self._start_ms
        wanted = [table for table in slow.tables if table in due]
        if not wanted:
            return
        living = self._living(ts_ms)
        for table in wanted:
            match table:
                case "gpu_detail_samples":
                    loads = dict(self._loads(ts_ms))
                    rows = slow.detail_rows(living, states, loads, ts_ms, at_ms)
                case "gpu_health_samples":
                    rows = slow.health_rows(living, at_ms)
                case "link_samples":
                    rows = slow.link_rows(living, states, at_ms)
                case _:
                    rows = slow.port_rows(states, ts_ms, at_ms)
            reading[table] = rows

    def _ask(self, at_ms: int) -> None:
        """Compute the load of each job in the second that ends at `at_ms`."""
        rng = self._rng
        jobs = [timeline.job_at(at_ms) for timeline in self._timelines]
        effects, start_ms = self._effects, self._start_ms
        if effects.faults:
            jobs = [effects.occupant(job, at_ms - start_ms, start_ms) for job in jobs]
        self._asked = [(job, demand(job, at_ms, rng)) for job in jobs]
        if effects.faults:
            self._asked = [
                effects.job(job, asked, at_ms - start_ms, start_ms) for job, asked in self._asked
            ]

    def _loads(self, at_ms: int) -> Iterator[tuple[int, GpuLoad]]:
        """The load of each GPU at the last computed instant."""
        effects = self._effects if self._effects.faults else None
        for job, asked in self._asked:
            for gpu, load in gpu_loads(job, asked):
                if effects is not None:
                    load = effects.gpu_load(gpu, job, load, at_ms - self._start_ms)
                yield gpu, load

    def _host_load(self) -> host_physics.HostLoad:
        return host_load((asked.tree, len(job.pids)) for job, asked in self._asked)

    def _begin(self, ts_ms: int) -> None:
        self._ask(ts_ms)
        for gpu, load in self._loads(ts_ms):
            rng = random.Random(f"counters/{self._identity}/{gpu}")
            self._gpu_states[gpu] = gpu_physics.start(self._devices[gpu], load, ts_ms / 1000, rng)
        if self._host:
            rng = random.Random(f"counters/{self._identity}")
            self._host_state = host_physics.start(self._size, self._host_load(), rng)
        self._slow.begin(self._gpu_states, ts_ms - FIRST_STEP_MS)
        self._slow.boot(self._gpu_states, ts_ms - FIRST_STEP_MS, is_first=True)

    def _walk(self, from_ms: int, to_ms: int) -> None:
        """Simulate the time between two ticks."""
        span_ms = to_ms - from_ms
        steps = min(max(round(span_ms / self._stride_ms), 1), STEPS_MAX)
        dt = span_ms / 1000 / steps
        before_ms = from_ms
        for number in range(1, steps + 1):
            at_ms = from_ms + span_ms * number // steps
            self._ask(at_ms)
            if self._effects.faults:
                self._reset(before_ms, at_ms)
            self._step(at_ms, dt)
            before_ms = at_ms

    def _reset(self, after_ms: int, until_ms: int) -> None:
        """Restart GPUs and node that were reset or rebooted between two instants."""
        start_ms, effects = self._start_ms, self._effects
        after, until = after_ms - start_ms, until_ms - start_ms
        for gpu, load in self._loads(until_ms):
            boards = effects.boards(gpu, until)
            if boards and boards[-1] > after:
                self._replace_board(gpu, len(boards))
            if effects.was_reset(gpu, after, until):
                state = gpu_physics.restart(self._devices[gpu], load, until_ms / 1000, self._rng)
                self._gpu_states[gpu] = state
                self._slow.loaded(gpu, state, until_ms)
        if effects.rebooted(after, until):
            self._slow.boot(self._gpu_states, until_ms, is_first=False)
            if self._host:
                load_of_all = self._host_load()
                self._host_state = host_physics.restart(self._size, load_of_all, self._rng)

    def _replace_board(self, gpu: int, board: int) -> None:
        """Replace a board; `board`: number of earlier boards."""
        device = make_device(self._model, self._identity, gpu, len(self._devices), board)
        self._devices[gpu] = device
        self._slow.replaced(gpu, device)

    def _step(self, at_ms: int, dt: float) -> None:
        at_s, rng, states, devices = at_ms / 1000, self._rng, self._gpu_states, self._devices
        effects = self._effects if self._effects.faults else None
        step, since_start_ms = gpu_physics.step, at_ms - self._start_ms
        for job, asked in self._asked:
            for gpu, load in gpu_loads(job, asked):
                if effects is not None:
                    load = effects.gpu_load(gpu, job, load, since_start_ms)
                states[gpu] = step(devices[gpu], states[gpu], load, at_s, dt, rng)
            if job.workload is not Workload.FREE:
                self._step_tree(job, asked, at_s, dt)
        if self._host_state is not None:
            self._host_state = host_physics.step(
                self._size, self._host_state, self._host_load(), dt, rng
            )

    def _step_tree(self, job: Job, asked: Demand, at_s: float, dt: float) -> None:
        """Step the process tree of a job; all its ranks share the counters of one tree."""
        first = job.gpus[0]
        if self._tree_jobs.get(first) is not job:
            self._tree_jobs[first] = job
            self._tree_states[first] = process_tree.start(job, asked.tree, at_s)
        else:
            self._tree_states[first] = process_tree.step(self._tree_states[first], asked.tree, dt)

    def _process_rows(self) -> list[Row]:
        allowed = self._size.cpus // len(self._devices)
        return [
            process_tree.process_row(
                self._devices[gpu],
                self._gpu_states[gpu],
                job,
                asked.tree,
                self._tree_states[job.gpus[0]],
                allowed,
                self._rng,
            )
            for job, asked in self._asked
            if job.pids
            for gpu in job.gpus
        ]

    def _allocation_rows(self) -> list[Row]:
        rows = (
            process_tree.allocation_row(self._devices[gpu], job, min(len(job.pids), 1))
            for job, _ in self._asked
            for gpu in job.gpus
        )
        return [row for row in rows if row is not None]

    def _energy(self, row: Row, dt: float) -> Row:
        """Counters of RAPL; a Mac and a Jetson have none."""
        if self._source is not None and self._source.host is not None:
            return {}
        self._host_joules = self._host_joules.after(host_physics.watts(self._size, row), dt)
        return self._host_joules.row()

    def _power(self, row: Row) -> Row:
        """What the BMC of a server tells."""
        if self._source is not None and self._source.host is not None:
            return {}
        gpus = sum(state.power_watts for state in self._gpu_states.values())
        return host_physics.bmc_columns(host_physics.watts(self._size, row), gpus)

    def _slow_columns(self, ts_ms: int) -> Row:
        at_ms = ts_ms - self._start_ms
        up_since_ms = self._effects.up_since_ms(at_ms)
        before_s = self._up_before_s if up_since_ms is None else -up_since_ms / 1000
        nfs = self._effects.nfs(at_ms)
        workers = sum(asked.tree.loader_workers * len(job.pids) for job, asked in self._asked)
        look = SlowColumns(
            before_s + at_ms / 1000,
            workers,
            self._effects.is_shm_full(at_ms),
            nfs.slow_s,
            nfs.latency_s,
        )
        return host_physics.slow_columns(self._size, look)

    def _due_events(self, ts_ms: int) -> list[Row]:
        rows = []
        while self._events_sent < len(self._events):
            due = self._events[self._events_sent]
            if self._start_ms + due.at_ms > ts_ms:
                break
            record = scripted_events.FIRST_RECORD + self._events_sent
            self._events_sent += 1
            assert due.fault.gpu is not None, "events are of GPUs"
            if due.fault.begin_ms < self._effects.new_ms(due.fault.gpu, ts_ms - self._start_ms):
                continue  # the board was replaced while the node was down
            device, culprit = self._devices[due.fault.gpu], self._culprit(due.fault.gpu)
            at_ms = self._start_ms + due.at_ms
            rows.append(scripted_events.event_row(due, device, culprit, record, at_ms))
        return rows

    def _culprit(self, gpu: int) -> Culprit | None:
        """The process on a GPU, for the driver's line."""
        for job, _ in self._asked:
            if gpu in job.gpus and job.pids:
                return Culprit(job.pids[job.gpus.index(gpu)], job.process_name)
        return None


class SimulatedBurst:
    """A `BurstSource`: kernels start and end within a second, whose mean is that of the state."""

    def __init__(self, node: SimulatedNode, seed: str) -> None:
        self._node = node
        self._rng = random.Random(seed)

    def poll(self, now_us: int) -> Iterator[BurstSample]:
        rng, states = self._rng, self._node.states
        if not states:  # nobody has read the node yet
            self._node.read(now_us // 1000)
        for index, state in list(states.items()):
            source = self._node.source
            works = rng.random() < state.util_percent / 100
            values = {
                "util_percent": 100.0 if works else 0.0,
                "power_watts": state.power_watts
                * (rng.uniform(0.95, 1.2) if works else rng.uniform(0.5, 0.8)),
                "sm_clock_mhz": float(state.sm_clock_mhz),
            }
            for metric, value in values.items():
                if source is None or source.tells(metric):
                    yield BurstSample(now_us, index, metric, round(value, 3), POLLED)

    def drain(self) -> Sequence[BurstSample]:
        return ()


def fleet_nodes(
    gpus_by_node: Sequence[int],
    model: GpuModel | Sequence[GpuModel],
    seed: int,
    scripts: Mapping[str, Sequence[Fault]] | None = None,
    names: Sequence[str] = (),
) -> list[tuple[str, SimulatedNode]]:
    """A fleet, by node name: sim-0001 and on, with so many GPUs each, and faults by node.

    The first eight GPUs have one of each permanent workload. `model`: several have their turn, node by node. `names`:
    other names of the nodes; `scripts` still uses sim-0001 and on.
    """
    models = [model] if isinstance(model, GpuModel) else model
    fleet = []
    taken = 0
    for number, gpus in enumerate(gpus_by_node):
        name = names[number] if names else fleet_name(number)
        workloads = default_workloads(gpus, seed * 100_003 + number, required=taken)
        script = (scripts or {}).get(fleet_name(number), ())
        kind = models[number % len(models)]
        node = SimulatedNode(name, gpus, kind, seed, workloads, script=script, number=number)
        fleet.append((name, node))
        taken += gpus
    return fleet


def fleet_name(number: int) -> str:
    """The name of a fleet's node, counted from 0."""
    return f"sim-{number + 1:04d}"
