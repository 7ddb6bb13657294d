"""Simulates the fleet an hour at a time: rows as an agent would send them, at a coarser cadence."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from bench.fidelity.scenarios import (
    ScriptedFault,
    faults_of,
    gpus_of,
    model_of,
    node_name,
    placements,
)

from gpuwarden.models import model_named
from gpuwarden.schema import TABLES
from gpuwarden_agent.events.changes import NOTHING, observe
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.events.xid_lines import parse
from gpuwarden_agent.events.xid_rows import row_of
from gpuwarden_agent.probe import Row
from gpuwarden_collector.storage.schemas import arrow_schema
from gpuwarden_simulator import FaultKind, SimulatedNode

START_MS = 1_763_683_200_000
FAST_S, SLOW_S = 15, 60
"""Seconds between two readings of gpu_samples and host_samples, and of all other tables."""
CALM_LINKS_S = 600
"""Seconds between two readings of the links of a node on which no link fails."""
SCHEMAS = {name: arrow_schema(table.columns) for name, table in TABLES.items()}
AGENT_FAULTS: Mapping[str, Mapping[str, int]] = {
    "slow": {"taken": 2, "late": 2},
    "starved": {"taken": 2, "missed": 2},
}
"""Counts in a minute of `coverage` of four readings that were due, by what the agent suffers."""
SXID_LINE = (
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46 sourcetrack timeout error"
)


@dataclass(slots=True)
class Silence:
    """A time in which a node sends nothing, in milliseconds since the epoch; `end_ms` None: it continues."""

    node: str
    begin_ms: int
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """Another board in the place of one; times in milliseconds since the epoch."""

    row: Row
    """Its row of `gpus`."""
    since_ms: int
    replaced_uuid: str
    replaced_ms: int
    """When the replaced board was last seen."""


@dataclass(slots=True)
class Hour:
    """Rows that the fleet sent in an hour."""

    tables: dict[str, pa.Table]
    silences: list[Silence]
    """Silences that began or ended."""
    boards: list[Board] = field(default_factory=list)
    """Boards that were put in."""


@dataclass(slots=True)
class Host:
    """A node and the part of its agent that makes rows of readings."""

    number: int
    seed: int
    incidents: Sequence[ScriptedFault]
    node: SimulatedNode = field(init=False)
    price: float = field(init=False)
    gpus: list[Row] = field(init=False)
    """Rows of `gpus`."""
    silence: Silence | None = None
    boards: list[Board] = field(default_factory=list)
    """Put in since they were taken from here."""
    seen: Any = NOTHING
    link_times: Sequence[tuple[int, int]] = ()
    """When the links are read as often as a link fails, in milliseconds since the beginning."""

    def __post_init__(self) -> None:
        model, gpus = model_named(model_of(self.number)), gpus_of(self.number)
        faults = [fault for incident in self.incidents for fault in faults_of(incident, gpus)]
        self.node = SimulatedNode(
            self.name, gpus, model, self.seed, placements(gpus), script=faults,
            stride_ms=FAST_S * 1000,
        )  # fmt: skip
        self.price = round(random.Random(f"price/{self.number}").uniform(1, 3), 2)
        self.gpus = self.inventory()["gpus"]
        links = [f for f in faults if f.kind is FaultKind.NVLINK_DOWN]
        self.link_times = [(f.begin_ms - 600_000, (f.end_ms or 0) + 600_000) for f in links]

    @property
    def name(self) -> str:
        """The node's name."""
        return node_name(self.number)

    def read(self, ts_ms: int, rows: dict[str, list[Row]], silences: list[Silence]) -> None:
        """Add the rows of an instant."""
        since_ms = ts_ms - START_MS
        reading = self.node.read(ts_ms, self._due(since_ms))
        if not reading:
            if self.silence is None:
                self.silence = Silence(self.name, ts_ms - FAST_S * 1000)
                silences.append(self.silence)
            return
        events = list(reading.pop("events", ()))
        if self.silence is not None:
            self.silence.end_ms = ts_ms
            silences.append(self.silence)
            events += _came_back(self.silence)
            self._look_for_boards(self.silence)
            self.silence = None
        for table, read in reading.items():
            for row in read:
                row |= {"ts": ts_ms, "node": self.name, "simulated": True}
            rows.setdefault(table, []).extend(read)
            self.seen, edges = observe(self.seen, table, read)
            events += edges
        if since_ms and since_ms % 60_000 == 0:
            told, extra = self._agent(since_ms)
            rows.setdefault("coverage", []).extend(_stamped(told, ts_ms, self.name))
            events += extra
        # The wire has one event of a kind, GPU and instant.
        for offset, row in enumerate(events):
            own_ms = row.get("ts") or ts_ms
            rows.setdefault("events", []).append(
                {**row, "ts": own_ms + offset, "node": self.name, "simulated": True}
            )

    def _look_for_boards(self, silence: Silence) -> None:
        """Nobody replaces one while the node is up."""
        before, self.gpus = self.gpus, self.inventory()["gpus"]
        for old, new in zip(before, self.gpus, strict=True):
            if new["gpu_uuid"] != old["gpu_uuid"]:
                since_ms = silence.end_ms or 0
                self.boards.append(Board(new, since_ms, old["gpu_uuid"], silence.begin_ms))

    def inventory(self) -> dict[str, list[Row]]:
        """Rows of `nodes` and `gpus` as they are now."""
        described = self.node.describe()
        gpus: Row = {"usd_per_hour": self.price}
        if model_of(self.number) == "T4-16GB":
            gpus["persistence_mode"] = False
        more: dict[str, Row] = {"nodes": {"agent_id": "a", "boot_id": "b"}, "gpus": gpus}
        return {
            table: [{**row, **more[table], "node": self.name, "simulated": True} for row in rows]
            for table, rows in described.items()
        }

    def _due(self, since_ms: int) -> set[str]:
        due = {"gpu_samples", "host_samples", "events"}
        if since_ms % (SLOW_S * 1000) == 0:
            due |= {
                "process_samples",
                "allocation_samples",
                "gpu_detail_samples",
                "gpu_health_samples",
                "infiniband_samples",
            }
        is_near = any(begin <= since_ms <= end for begin, end in self.link_times)
        if is_near or since_ms % (CALM_LINKS_S * 1000) == 0:
            due.add("link_samples")
        return due & set(self.node.tables)

    def _agent(self, since_ms: int) -> tuple[list[Row], list[Row]]:
        """Rows of `coverage` for the minute that ends, and events of the agent itself."""
        counts = {"taken": 4, "missed": 0, "skipped": 0, "late": 0, "failed": 0}
        events: list[Row] = []
        for incident in self.incidents:
            if incident.begin_ms <= since_ms < incident.end_ms and incident.scenario.agent:
                counts |= AGENT_FAULTS.get(incident.scenario.agent, {})
                if incident.scenario.agent == "loses":
                    message = "the spool is full: 12 batches (60 s) dropped, the oldest first"
                    events.append(event("batches_dropped", message, details={"batches": 12}))
                if incident.scenario.agent == "sxid":
                    found = parse(SXID_LINE)
                    assert found is not None, "the driver's line is one that the agent reads"
                    events.append(row_of(found, {}, since_ms))
        row: Row = {"probe": "nvml", "table_name": "gpu_samples", "expected": 4, **counts}
        return [row], events


def _stamped(rows: Iterable[Row], ts_ms: int, node: str) -> list[Row]:
    return [{**row, "ts": ts_ms, "node": node, "simulated": True} for row in rows]


def _came_back(silence: Silence) -> list[Row]:
    """Events of an agent after a reboot, as its daemon writes them."""
    first_ms, last_ms = silence.end_ms or 0, silence.begin_ms
    details = {"last_ts_ms": last_ms, "first_ts_ms": first_ms, "rebooted": True}
    seconds = (first_ms - last_ms) / 1000
    message = f"no samples for {seconds:.0f} s: the agent was not running (the node was rebooted)"
    return [
        event("agent_started", "the agent started"),
        event("agent_gap", message, duration_seconds=seconds, details=details),
    ]


class Fleet:
    """All hosts, in memory; `hour` must be asked in order of time."""

    def __init__(self, nodes: int, seed: int, incidents: Sequence[ScriptedFault]) -> None:
        by_node: dict[str, list[ScriptedFault]] = {}
        for incident in incidents:
            by_node.setdefault(incident.node, []).append(incident)
        self.hosts = [Host(n, seed, by_node.get(node_name(n), ())) for n in range(nodes)]

    def describe(self) -> dict[str, list[Row]]:
        """Rows of `nodes` and `gpus`."""
        found: dict[str, list[Row]] = {"nodes": [], "gpus": []}
        for host in self.hosts:
            for table, rows in host.inventory().items():
                found[table] += rows
        return found

    def read(self, begin_s: int, end_s: int) -> Hour:
        """All rows from one second since the beginning to before another."""
        rows: dict[str, list[Row]] = {}
        silences: list[Silence] = []
        for host in self.hosts:
            for second in range(begin_s, end_s, FAST_S):
                host.read(START_MS + second * 1000, rows, silences)
        tables = {
            name: pa.Table.from_pylist(of_table, SCHEMAS[name]) for name, of_table in rows.items()
        }
        boards = [board for host in self.hosts for board in host.boards]
        for host in self.hosts:
            host.boards.clear()
        return Hour(tables, silences, boards)
