"""Reads the GPUs of this host with the agent's probes: a source without a collector.

Every probe has the agent's runner, with a thread and a deadline. The newest rows, and an hour of some readings of each
GPU and of the host, stay in memory.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuwarden.clock import Clock, to_ms
from gpuwarden.metrics import THROTTLED_BY
from gpuwarden.models import find_model
from gpuwarden.rollups import IDLE_BELOW_PERCENT
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.probe import Probe, Reading
from gpuwarden_agent.probe import Row as ProbeRow
from gpuwarden_agent.queue.rows import impossible_columns
from gpuwarden_agent.sampling.health import HealthEvent
from gpuwarden_agent.sampling.runner import ProbeRunner
from gpuwarden_cli.top.history import CounterRates, ReadingHistory
from gpuwarden_cli.top.process_tree import PARTS, tree_rows
from gpuwarden_cli.top.request import (
    GPU_METRICS,
    HOST_METRICS,
    Answer,
    GpuAnswer,
    GpuRequest,
    NodeAnswer,
    NodeRequest,
    Request,
    Row,
    RowsAnswer,
    RowsRequest,
    SourceError,
    TopView,
    WhyRequest,
)

TABLES = frozenset({"gpu_samples", "host_samples", "process_samples", "gpus", "nodes"})
DEADLINE_S = 5.0
FIRST_S = 3.0
"""Longest wait of the first screen for readings: a driver may have to wake up, or there is no GPU."""
NEEDS_COLLECTOR = "this needs the history that a collector keeps: start one with `gpuwarden up`, and top without --local"
_OF_GPU = ("util_percent", "memory_used_bytes", "power_watts", "temperature_celsius", "sm_clock_mhz")  # fmt: skip
_OF_PROCESS = {
    "pid": "pid", "username": "username", "memory_bytes": "gpu_memory_bytes", "sm_percent": "sm_util_percent",
    "cpu_percent": "cpu_percent", "rss_bytes": "rss_bytes", "process_name": "process_name",
    "state": "state", "started_by": "ancestors",
}  # fmt: skip
"""Columns of `process_samples` by their names in the view."""
_PRESSURES = ("psi_cpu_some_percent", "psi_io_some_percent", "psi_memory_some_percent")


class LocalSource:
    """The probes of this host as a source."""

    def __init__(
        self, probes: Sequence[Probe], node: str, name: str, clock: Clock, *, every_s: float = 1.0
    ) -> None:
        """`name`: a line on the source."""
        self._node = node
        self._name = name
        self._clock = clock
        self._every_s = every_s
        self._latest = Latest(clock)
        self._history: dict[str, ReadingHistory] = {}
        """By GPU."""
        self._host = ReadingHistory(HOST_METRICS)
        self._rates = CounterRates()
        self._is_read = asyncio.Event()
        """Set by the first samples."""
        self._first = "gpu_samples" if any("gpu_samples" in p.tables for p in probes) else "host_samples"  # fmt: skip
        counters = Counters()
        self._runners = [
            ProbeRunner(
                probe,
                deadline_s=DEADLINE_S,
                interval_ms=round(1000 * every_s),
                clock=clock,
                counters=counters,
                accept=self._accept,
                describe=lambda probe, reading: self._accept(probe, to_ms(clock.now()), reading),
                report=_untold,
            )
            for probe in probes
        ]

    @property
    def name(self) -> str:
        return self._name

    @property
    def node(self) -> str:
        """This host."""
        return self._node

    async def run(self) -> None:
        """Read the probes until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for runner in self._runners:
                    if runner.probe.blocking:
                        group.create_task(runner.run(), name=f"probe {runner.probe.name}")
                while True:
                    at_ms = to_ms(self._clock.now()) // 1000 * 1000
                    for runner in self._runners:
                        runner.tick(at_ms)
                    await asyncio.sleep(self._every_s)
        finally:
            for runner in self._runners:
                await runner.close()

    async def ask(self, request: Request) -> Answer:
        """Answer from the newest readings; the first request waits for them. Raises SourceError."""
        if not self._is_read.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_S):
                    await self._is_read.wait()
            self._is_read.set()
        match request:
            case WhyRequest():
                raise SourceError(NEEDS_COLLECTOR, is_refusal=True)
            case GpuRequest():
                return self._gpu(request)
            case NodeRequest():
                return self._node_graphs(request)
            case RowsRequest():
                return self._rows(request)

    def _accept(self, probe: Probe, ts_ms: int, reading: Reading) -> None:
        for table, rows in reading.items():
            if table not in TABLES:
                continue
            stamped: list[ProbeRow] = []
            for row in rows:
                stamp: ProbeRow = {"node": self._node, "simulated": probe.simulated}
                whole = (
                    {**stamp, **row}
                    if table in ("gpus", "nodes")
                    else {"ts": ts_ms, **stamp, **row}
                )
                for name in () if table in ("gpus", "nodes") else impossible_columns(table, whole):
                    whole.pop(name)
                stamped.append(whole)
            self._latest.take(table, stamped)
            if table == self._first:
                self._is_read.set()
            for row in stamped:
                self._remember(table, ts_ms, row)

    def _remember(self, table: str, ts_ms: int, row: ProbeRow) -> None:
        if table == "gpu_samples":
            values = {name: _number(row.get(name)) for name in GPU_METRICS}
            values["memory_percent"] = _share(row)
            uuid = str(row["gpu_uuid"])
            if uuid not in self._history:
                self._history[uuid] = ReadingHistory(GPU_METRICS)
            self._history[uuid].add(ts_ms, values)
        elif table == "host_samples":
            self._host.add(ts_ms, self._host_values(ts_ms, row))

    def _host_values(self, ts_ms: int, row: ProbeRow) -> dict[str, float | None]:
        pressures = [v for name in _PRESSURES if (v := _number(row.get(name))) is not None]

        def rate(one: str, other: str) -> float | None:
            rates = [self._rates.rate(name, ts_ms, _number(row.get(name))) for name in (one, other)]
            known = [value for value in rates if value is not None]
            return sum(known) if known else None

        return {
            "cpu_percent": _number(row.get("cpu_util_percent")),
            "memory_percent": _share(row),
            "disk_bytes_per_s": rate("disk_read_bytes_total", "disk_write_bytes_total"),
            "network_bytes_per_s": rate("network_rx_bytes_total", "network_tx_bytes_total"),
            "pressure_percent": max(pressures, default=None),
        }

    def _gpus(self) -> list[dict[str, Any]]:
        samples = {str(kept.row["gpu_uuid"]): kept.row for kept in self._latest.samples("gpu_samples")}  # fmt: skip
        held: dict[str, dict[str, Any]] = {}
        for process in self._processes():
            of = held.get(process["gpu_uuid"])
            if of is None or (process["memory_bytes"] or 0) > (of["memory_bytes"] or 0):
                held[process["gpu_uuid"]] = process
        found = []
        for inventory in self._latest.gpus():
            if inventory.get("mig_instance") is None:
                uuid = str(inventory["gpu_uuid"])
                found.append(_gpu_row(inventory, samples.get(uuid), held.get(uuid)))
        return found

    def _processes(self) -> list[dict[str, Any]]:
        now_ms = to_ms(self._clock.now())
        parts = {str(g["gpu_uuid"]): g.get("parent_gpu_uuid") for g in self._latest.gpus()}
        found = []
        for kept in self._latest.samples("process_samples"):
            row, uuid = kept.row, str(kept.row["gpu_uuid"])
            started = _number(row.get("started_at"))
            renamed = {name: row.get(column) for name, column in _OF_PROCESS.items()}
            own = {
                "gpu_uuid": str(parts.get(uuid) or uuid),
                "process": f"{uuid} {row.get('pid')}",
                "job": row.get("job"),
                "command": row.get("command") or row.get("process_name"),
                **{name: row.get(name) for name in PARTS},
                "age_s": None if started is None else (now_ms - started) / 1000,
            }
            found.append({**_placed(row), **renamed, **own})
        return found

    def _nodes(self, gpus: Sequence[Row]) -> list[dict[str, Any]]:
        hosts = self._latest.samples("host_samples")
        host = hosts[0].row if hosts else {}
        return [
            {
                "node": self._node,
                "state": "reports" if hosts or gpus else None,
                **_sums(gpus),
                "gpus": len(gpus),
                "idle": sum(gpu["state"] == "idle" for gpu in gpus),
                "model": gpus[0]["model"] if gpus else None,
                "alerts": None,
                "cpu_percent": host.get("cpu_util_percent"),
                "host_memory_percent": _share(host),
            }
        ]

    def _jobs(self, gpus: Sequence[Row]) -> list[dict[str, Any]]:
        of: dict[str, set[str]] = {}
        user: dict[str, Any] = {}
        for process in self._processes():
            if process["job"] is not None:
                of.setdefault(str(process["job"]), set()).add(process["gpu_uuid"])
                user.setdefault(str(process["job"]), process["username"])
        return [
            {
                "job": job,
                "username": user[job],
                **_sums([gpu for gpu in gpus if gpu["gpu_uuid"] in uuids]),
                "gpus": len(uuids),
                "nodes": 1,
                "where": self._node,
            }
            for job, uuids in sorted(of.items())
        ]

    def _rows(self, request: RowsRequest) -> RowsAnswer:
        gpus = self._gpus()
        made: Mapping[TopView, Callable[[], list[dict[str, Any]]]] = {
            TopView.NODES: lambda: self._nodes(gpus),
            TopView.GPUS: lambda: gpus,
            TopView.PROCESSES: self._processes,
            TopView.JOBS: lambda: self._jobs(gpus),
            TopView.ALERTS: list,
        }
        rows = made[request.view]()
        if request.job is not None:
            rows = [row for row in rows if row.get("job") == request.job]
        if request.is_tree:
            chosen, _ = page_of(rows, RowsRequest(request.view, text=request.text, limit=len(rows)))
            rows = tree_rows(chosen, request)
            shown = rows[request.offset : request.offset + request.limit]
            return RowsAnswer(self._totals(gpus), shown, len(rows))
        return RowsAnswer(self._totals(gpus), *page_of(rows, request))

    def _totals(self, gpus: Sequence[Row]) -> Row:
        states = [gpu["state"] for gpu in gpus]
        sums = _sums(gpus)
        return {
            **sums,
            **{state: states.count(state) for state in ("idle", "busy", "throttled", "unknown")},
            "gpus": len(gpus),
            "reporting": len(gpus) - states.count("not reporting"),
            "nodes": 1,
            "usd_wasted_per_hour": sums["usd_wasted"],
            "simulated": any(gpu["simulated"] for gpu in gpus),
            "at": f"{self._clock.now():%H:%M:%S} UTC",
        }

    def _gpu(self, request: GpuRequest) -> GpuAnswer:
        gpus = self._gpus()
        row = next((gpu for gpu in gpus if gpu["gpu_uuid"] == request.gpu_uuid), None)
        processes = [p for p in self._processes() if p["gpu_uuid"] == request.gpu_uuid]
        kept = self._history.get(request.gpu_uuid)
        now_ms = to_ms(self._clock.now())
        series = {
            name: kept.binned(name, request.bins, request.span_s, now_ms)
            for name in GPU_METRICS
            if kept is not None
        }
        return GpuAnswer(self._totals(gpus), row, series, processes)

    def _node_graphs(self, request: NodeRequest) -> NodeAnswer:
        gpus = self._gpus()
        if request.node != self._node:
            return NodeAnswer(self._totals(gpus))
        now_ms = to_ms(self._clock.now())
        steps = (request.bins, request.span_s, now_ms)
        series = {uuid: kept.binned(request.metric, *steps) for uuid, kept in self._history.items()}  # fmt: skip
        host = {name: self._host.binned(name, *steps) for name in HOST_METRICS}
        return NodeAnswer(self._totals(gpus), gpus, host, series, self._processes())


def _untold(_probe: Probe, _event: HealthEvent) -> None:
    """Drop the event: a probe in trouble shows as not reporting."""


def page_of(rows: Sequence[Row], request: RowsRequest) -> tuple[list[Row], int]:
    """The rows of a page and the number of all, after search and sort; absent values come last."""
    text = request.text.lower()
    chosen = [
        row
        for row in rows
        if not text or any(text in value.lower() for value in row.values() if isinstance(value, str))
    ]  # fmt: skip
    if request.sort:
        known = [row for row in chosen if row.get(request.sort) is not None]
        known.sort(key=lambda row: row[request.sort], reverse=request.is_descending)
        chosen = known + [row for row in chosen if row.get(request.sort) is None]
    elif request.is_descending:
        chosen = chosen[::-1]
    return list(chosen[request.offset : request.offset + request.limit]), len(chosen)


def _placed(row: ProbeRow) -> dict[str, Any]:
    gpu = row.get("gpu")
    place = f"{row.get('node')}/{row['gpu_uuid'] if gpu is None else gpu}"
    return {"node": row.get("node"), "gpu": gpu, "gpu_uuid": row["gpu_uuid"], "place": place}


def _gpu_row(inventory: ProbeRow, sample: ProbeRow | None, holder: Row | None) -> dict[str, Any]:
    read = sample or {}
    known = find_model(str(inventory.get("model") or ""))
    price = known.price.usd_per_hour if known is not None and known.price is not None else None
    util = _number(read.get("util_percent"))
    reasons = int(_number(read.get("clocks_event_reasons")) or 0)
    if sample is None:
        state = "not reporting"
    elif util is None:
        state = "unknown"
    elif reasons & THROTTLED_BY:
        state = "throttled"
    else:
        state = "idle" if util < IDLE_BELOW_PERCENT else "busy"
    total = read.get("memory_total_bytes") or inventory.get("memory_total_bytes")
    return {
        **{name: read.get(name) for name in _OF_GPU},
        **_placed(inventory),
        "model": inventory.get("model"),
        "simulated": bool(inventory.get("simulated")),
        "state": state,
        "memory_percent": _share(read),
        "memory_total_bytes": total,
        "usd_per_hour": price,
        "usd_wasted": None if price is None or sample is None else price * (state == "idle"),
        **{name: holder[name] if holder else None for name in ("username", "job")},
        "process": holder["process_name"] if holder else None,
    }


def _sums(gpus: Sequence[Row]) -> dict[str, Any]:
    def known(name: str) -> list[float]:
        return [gpu[name] for gpu in gpus if gpu[name] is not None]

    def total(name: str) -> float | None:
        return sum(values) if (values := known(name)) else None

    utils, heats, shares = known("util_percent"), known("temperature_celsius"), known("memory_percent")  # fmt: skip
    return {
        "util_percent": sum(utils) / len(utils) if utils else None,
        "memory_percent": sum(shares) / len(shares) if shares else None,
        "temperature_celsius": max(heats, default=None),
        "power_watts": total("power_watts"),
        "usd_per_hour": total("usd_per_hour"),
        "usd_wasted": total("usd_wasted"),
    }


def _share(row: ProbeRow) -> float | None:
    used, total = _number(row.get("memory_used_bytes")), _number(row.get("memory_total_bytes"))
    return None if used is None or not total else 100 * used / total


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
