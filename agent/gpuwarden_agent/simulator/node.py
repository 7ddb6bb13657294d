"""The probe of a whole simulated node, and fleets of them."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuwarden.models import GpuModel
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_agent.simulator import gpu_physics, host_physics, process_tree
from gpuwarden_agent.simulator.gpu_physics import GpuState
from gpuwarden_agent.simulator.hardware import cpu_model_of, driver_facts, make_device
from gpuwarden_agent.simulator.host_physics import HostState
from gpuwarden_agent.simulator.process_tree import TreeState
from gpuwarden_agent.simulator.schedule import (
    Placement,
    Timeline,
    check_placements,
    default_workloads,
)
from gpuwarden_agent.simulator.workload import Demand, Job, Workload, demand, gpu_loads

FIRST_STEP_MS = 1_000
"""What the first tick lives through, so that its readings are those of a running node."""

STEPS_MAX = 120
"""A gap between two ticks is walked second by second, a long one in this many strides."""


@dataclass(frozen=True, slots=True)
class ScriptedEvent:
    """An event that the simulator reports at the first tick at or after `at_ms`."""

    at_ms: int
    kind: str
    severity: str
    message: str
    gpu: int | None = None
    details: str | None = None


class SimulatedNode:
    """A GPU node that does not exist, as a probe.

    The same arguments and the same sequence of ticks give the same rows. Ticks may lie in the past
    and may skip; they must go forward. The first tick finds the node as if it had run for days.
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
        script: Sequence[ScriptedEvent] = (),
    ) -> None:
        """`name`: the node's. `host`: also stand in for the node, not only for its GPUs.

        Raises ValueError where the workloads do not name each GPU once.
        """
        self.node = name
        identity = f"{seed}/{name}"
        placements = default_workloads(gpus, seed) if workloads is None else workloads
        check_placements(placements, gpus)
        self.tables: Mapping[str, int] = (
            {"gpu_samples": 1, "process_samples": 10}
            | ({"host_samples": 1} if host else {})
            | ({"events": 1} if script else {})
        )
        self._host = host
        self._model = model
        self._devices = tuple(make_device(model, identity, i, gpus) for i in range(gpus))
        self._size = host_physics.make_node_size(gpus)
        self._timelines = tuple(Timeline(p, identity) for p in placements)
        self._script = sorted(script, key=lambda event: event.at_ms)
        self._identity = identity
        self._rng = random.Random(f"readings/{identity}")
        self._last_ms: int | None = None
        self._asked: list[tuple[Job, Demand]] = []
        self._gpu_states: dict[int, GpuState] = {}
        self._tree_states: dict[int, TreeState] = {}
        self._tree_jobs: dict[int, Job] = {}
        self._host_state: HostState | None = None

    def describe(self) -> Reading:
        """Rows of `gpus` and `nodes`; without `host`, the node's own facts are left to others."""
        node: Row = driver_facts(self._model) | {"gpus": len(self._devices)}
        if self._host:
            node |= {
                "kernel": "6.8.0-60-generic",
                "os": "Ubuntu 24.04.3 LTS",
                "cpu_model": cpu_model_of(self._model),
                "cpus": self._size.cpus,
                "cpu_cores": self._size.cpu_cores,
                "memory_total_bytes": self._size.memory_total_bytes,
            }
        return {"nodes": [node], "gpus": [device.describe() for device in self._devices]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        """The samples of a tick. Raises ValueError when time does not go forward."""
        last_ms = self._last_ms
        if last_ms is not None and ts_ms <= last_ms:
            raise ValueError(f"a simulated node cannot go back from {last_ms} to {ts_ms} ms")
        if last_ms is None:
            self._begin(ts_ms)
        self._walk(ts_ms - FIRST_STEP_MS if last_ms is None else last_ms, ts_ms)
        self._last_ms = ts_ms
        states = self._gpu_states
        due = self.tables if due is None else due
        reading: dict[str, list[Row]] = {}
        if "gpu_samples" in due:
            reading["gpu_samples"] = [
                gpu_physics.gpu_row(device, states[device.index]) for device in self._devices
            ]
        if "host_samples" in due and self._host_state is not None:
            reading["host_samples"] = [host_physics.host_row(self._size, self._host_state)]
        if "process_samples" in due:
            reading["process_samples"] = self._process_rows()
        if self._script and self._script[0].at_ms <= ts_ms:
            reading["events"] = self._due_events(ts_ms)
        return reading

    def close(self) -> None:
        """Nothing is held."""

    def _ask(self, at_ms: int) -> None:
        """What each job asks for in the second that ends at `at_ms`."""
        rng = self._rng
        jobs = [timeline.job_at(at_ms) for timeline in self._timelines]
        self._asked = [(job, demand(job, at_ms, rng)) for job in jobs]

    def _host_load(self) -> host_physics.HostLoad:
        return host_physics.total((asked.tree, len(job.pids)) for job, asked in self._asked)

    def _begin(self, ts_ms: int) -> None:
        self._ask(ts_ms)
        for job, asked in self._asked:
            for gpu, load in gpu_loads(job, asked):
                rng = random.Random(f"counters/{self._identity}/{gpu}")
                self._gpu_states[gpu] = gpu_physics.start(
                    self._devices[gpu], load, ts_ms / 1000, rng
                )
        if self._host:
            rng = random.Random(f"counters/{self._identity}")
            self._host_state = host_physics.start(self._size, self._host_load(), rng)

    def _walk(self, from_ms: int, to_ms: int) -> None:
        """Live through the time between two ticks."""
        span_ms = to_ms - from_ms
        steps = min(max(round(span_ms / 1000), 1), STEPS_MAX)
        dt = span_ms / 1000 / steps
        for number in range(1, steps + 1):
            self._step(from_ms + span_ms * number // steps, dt)

    def _step(self, at_ms: int, dt: float) -> None:
        self._ask(at_ms)
        at_s, rng, states = at_ms / 1000, self._rng, self._gpu_states
        for job, asked in self._asked:
            for gpu, load in gpu_loads(job, asked):
                states[gpu] = gpu_physics.step(self._devices[gpu], states[gpu], load, at_s, dt, rng)
            if job.workload is not Workload.FREE:
                self._step_tree(job, asked, at_s, dt)
        if self._host_state is not None:
            self._host_state = host_physics.step(
                self._size, self._host_state, self._host_load(), dt, rng
            )

    def _step_tree(self, job: Job, asked: Demand, at_s: float, dt: float) -> None:
        """The ranks of a job do the same, so one tree's counters serve them all."""
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

    def _due_events(self, ts_ms: int) -> list[Row]:
        due = [event for event in self._script if event.at_ms <= ts_ms]
        self._script = self._script[len(due) :]
        return [
            {
                "kind": event.kind,
                "severity": event.severity,
                "message": event.message,
                "gpu": event.gpu,
                "gpu_uuid": None if event.gpu is None else self._devices[event.gpu].uuid,
                "details": event.details,
            }
            for event in due
        ]


def fleet_nodes(
    gpus_by_node: Sequence[int], model: GpuModel, seed: int
) -> list[tuple[str, SimulatedNode]]:
    """A fleet, by node name: sim-0001 and on, with so many GPUs each.

    The first eight GPUs hold one of each thing to see.
    """
    fleet = []
    taken = 0
    for number, gpus in enumerate(gpus_by_node):
        name = f"sim-{number + 1:04d}"
        workloads = default_workloads(gpus, seed * 100_003 + number, required=taken)
        fleet.append((name, SimulatedNode(name, gpus, model, seed, workloads)))
        taken += gpus
    return fleet
