"""Records labelled workloads: what the probes say, and when they were read."""

import asyncio
import contextlib
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu import children
from bench.gpu.machine import Machine

from gpuwarden.clock import Clock, SystemClock, to_ms
from gpuwarden_agent.probe import Probe, Reading
from gpuwarden_simulator.recordings.format import Samples, entries_of
from gpuwarden_simulator.recordings.pseudonyms import Pseudonyms
from gpuwarden_simulator.recordings.recorder import Recorder, RecordingFile, RecordingTally

READY_WITHIN_S = 45.0
SHOWN = (
    ("gpu_samples", "util_percent"),
    ("gpu_samples", "power_watts"),
    ("gpu_samples", "sm_clock_mhz"),
    ("gpu_detail_samples", "sm_active_percent"),
    ("gpu_detail_samples", "sm_occupancy_percent"),
    ("gpu_detail_samples", "tensor_active_percent"),
    ("gpu_detail_samples", "dram_active_percent"),
    ("gpu_detail_samples", "pcie_rx_bytes_per_second"),
    ("process_samples", "main_cpu_percent"),
    ("process_samples", "loader_workers"),
    ("process_samples", "loader_cpu_percent"),
)
"""Columns whose mean goes into the summary."""


class Workshop:
    """The process that forks workloads; everything of it is killed by `close`."""

    def __init__(self, *, pretend: bool) -> None:
        script = Path(__file__).with_name("workloads.py")
        command = [sys.executable, str(script), *(["--pretend"] if pretend else [])]
        self._process = children.start(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._pid: int | None = None
        self._why = "the process of the workloads has ended"
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait(self) -> None:
        """Until torch is imported, which keeps a CPU busy, or cannot be."""
        ends = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < ends:
            has_ended = self._has_ended()
            for line in self.take():
                self._why = str(line.get("skipped", self._why))
                if "serving" in line:
                    return
            if has_ended:
                return
            time.sleep(0.02)

    def start(self, name: str) -> str | None:
        """Begin a workload; None once it is at work, else one line on why it is not."""
        with contextlib.suppress(OSError):
            self._say(f"start {name}")
        ends = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < ends:
            has_ended = self._has_ended()
            for line in self.take():
                if "pid" in line:
                    self._pid = line["pid"]
                if "skipped" in line:
                    self._why = str(line["skipped"])
                    return self._why
                if line.get("ready") == name:
                    return None
            if has_ended:
                return self._why
            time.sleep(0.02)
        return f"not at work within {READY_WITHIN_S:g} s"

    def stop(self) -> None:
        """Kill the workload."""
        try:
            self._say("stop")
        except OSError:
            return
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            if any("stopped" in line for line in self.take()):
                self._pid = None
                return
            time.sleep(0.02)

    def _has_ended(self) -> bool:
        """Whether the process has; then all that it said is there to be taken."""
        if self._process.poll() is None:
            return False
        self._listener.join(1.0)  # a workload that it forked may hold the pipe open
        return True

    def take(self) -> list[dict[str, Any]]:
        """Lines since the last call."""
        lines = []
        while not self._said.empty():
            lines.append(self._said.get())
        return lines

    def close(self) -> None:
        """Kill workload and workshop."""
        for group in (self._pid, self._process.pid):
            if group is not None:
                children.kill(group)
        # One that the driver does not release is left to it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def _say(self, request: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._said.put(json.loads(line))
            except ValueError:
                continue


class TimedProbe:
    """A probe whose reads are timed: how late after its tick each began, how long it took."""

    def __init__(self, probe: Probe, clock: Clock) -> None:
        self._probe, self._clock = probe, clock
        self.name, self.simulated, self.blocking = probe.name, probe.simulated, probe.blocking
        self.tables: Mapping[str, int] = probe.tables
        self.late_ms: list[float] = []
        self.took_ms: list[float] = []

    @property
    def gpu_uuid(self) -> str | None:
        return self._probe.gpu_uuid

    def describe(self) -> Reading:
        return self._probe.describe()

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        self.late_ms.append(to_ms(self._clock.now()) - ts_ms)
        began = time.perf_counter()
        try:
            return self._probe.read(ts_ms, due)
        finally:
            self.took_ms.append(1000 * (time.perf_counter() - began))

    def close(self) -> None:
        self._probe.close()


@dataclass
class Scene:
    """The result of one workload."""

    name: str
    skipped: str | None = None
    seconds: float = 0.0
    ticks: int = 0
    missed: int = 0
    failed: int = 0
    rows: int = 0
    size_bytes: int = 0
    late_ms: dict[str, float] = field(default_factory=dict)
    """p50, p99 and max of how late after its tick a GPU's read began."""
    read_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """p50, p99 and max of a read, by probe."""
    achieved: dict[str, float] = field(default_factory=dict)
    """Medians of the workload's own figures."""
    means: dict[str, float] = field(default_factory=dict)
    """Means of the columns SHOWN."""


def record_scene(
    machine: Machine,
    workshop: Workshop,
    scene: Scene,
    seconds: float,
    folder: Path,
    during: Sequence[Callable[[], None]] = (),
    *,
    interval_ms: int = 1000,
) -> None:
    """Start the workload ("idle": none), record, kill it, and fill in the scene. `during` run
    beside, each in a thread.
    """
    name = scene.name
    if name != "idle":
        scene.skipped = workshop.start(name)
        if scene.skipped is not None:
            workshop.stop()
            return
        time.sleep(min(2.0, seconds / 10))  # what started up must not be recorded
        workshop.take()
    beside = [threading.Thread(target=call, daemon=True) for call in during]
    for thread in beside:
        thread.start()
    began = time.monotonic()
    ended: str | None = None
    try:
        _record(machine, scene, seconds, folder / f"{name}.jsonl.gz", interval_ms)
    finally:
        for thread in beside:
            thread.join(20)
        scene.seconds = round(time.monotonic() - began, 1)
        if name != "idle":
            said = workshop.take()
            scene.achieved = _medians(said)
            workshop.stop()
            ended = next((line["skipped"] for line in said if "skipped" in line), None)
    scene.means = means_of(folder / f"{name}.jsonl.gz")
    scene.skipped = None if ended is None else f"it ended before its recording did: {ended}"


def _record(machine: Machine, scene: Scene, seconds: float, path: Path, interval_ms: int) -> None:
    clock = SystemClock()
    probes = [TimedProbe(probe, clock) for probe in machine.probes(scene.name)]
    recorder = Recorder(
        "evidence", probes, RecordingFile(path, force=True), clock,
        interval_ms=interval_ms, deadline_s=2.0, label=f"{scene.name} on {machine.name}",
        pseudonyms=Pseudonyms(),
    )  # fmt: skip
    tally: RecordingTally = asyncio.run(recorder.run(asyncio.Event(), seconds))
    scene.ticks, scene.missed, scene.failed = tally.ticks, tally.missed, tally.failed
    scene.rows, scene.size_bytes = tally.rows.total(), tally.bytes_written
    for probe in probes:
        scene.read_ms[probe.name] = spread(probe.took_ms)
        if "gpu_samples" in probe.tables and not scene.late_ms:
            scene.late_ms = spread(probe.late_ms)


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the largest."""
    ordered = sorted(values)
    if not ordered:
        return {}
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    named = {"p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}
    return {name: round(value, 2) for name, value in named.items()}


def means_of(path: Path) -> dict[str, float]:
    """Means of the columns SHOWN over a recording."""
    values: dict[str, list[float]] = {}
    for entry in entries_of(path):
        if not isinstance(entry, Samples):
            continue
        for table, column in SHOWN:
            for row in entry.rows.get(table, ()):
                if isinstance(value := row.get(column), (int, float)):
                    values.setdefault(column, []).append(value)
    return {column: round(statistics.fmean(several), 2) for column, several in values.items()}


def _medians(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, float):
                values.setdefault(name, []).append(value)
    return {name: statistics.median(several) for name, several in values.items()}
