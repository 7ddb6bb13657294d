"""Records the readings of probes into a file, with the sampler's ticks, deadlines and cadences.

Rows are recorded unchanged, with the checks of an agent: values outside the catalogue's limits are
removed and counted, and a row that does not fit its table fails its reading.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from gpuwarden import __version__
from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.lifecycle import StartError, until
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.probe import Probe, Reading, Row
from gpuwarden_agent.queue.rows import impossible_columns
from gpuwarden_agent.sampling.health import HealthEvent
from gpuwarden_agent.sampling.runner import ProbeRunner, wait_for_readings
from gpuwarden_agent.sampling.schedule import Schedule, next_tick, wait_s
from gpuwarden_simulator.recordings.format import (
    Described,
    Ended,
    Entry,
    Failure,
    RecordedProbe,
    RecordingHeader,
    Samples,
    encode_block,
)
from gpuwarden_simulator.recordings.pseudonyms import Pseudonyms

BLOCK_S = 10.0
"""Time in a block: the loss of a crash, and the input of the compression."""

ENTRIES_MAX = 5_000
"""Most entries in a block, so that a short interval does not make it large."""


@dataclass(slots=True)
class RecordingTally:
    """Counts of a recording so far."""

    ticks: int = 0
    missed: int = 0
    """Ticks that were missed: the node was too busy, or paused."""
    rows: Counter[str] = field(default_factory=Counter)
    """By table."""
    failed: int = 0
    """Due tables that were not read: failed, late, skipped during a call, or at the end."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Values outside the catalogue's limits, by table.column."""
    bytes_written: int = 0


class RecordingFile:
    """Writes a recording in complete blocks, also on a full disk."""

    def __init__(self, path: Path, *, force: bool = False) -> None:
        """Create the file; `force`: overwrite an existing one. Raises StartError."""
        self.path = path
        self.size_bytes = 0
        self._is_ours = not path.exists()
        try:
            self._file: BinaryIO = path.open("wb" if force else "xb", buffering=0)
        except FileExistsError as error:
            raise StartError(f"{path} is there already; --force writes over it") from error
        except OSError as error:
            raise StartError(f"{path} cannot be written: {error.strerror}") from error

    def append(self, block: bytes) -> None:
        """Append a block. Raises OSError; the file then ends with the block before."""
        left = memoryview(block)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):  # a pipe has no length
                os.ftruncate(self._file.fileno(), self.size_bytes)
            raise
        self.size_bytes += len(block)

    def close(self) -> None:
        """Close the file; delete a new file without a block."""
        self._file.close()
        if self._is_ours and not self.size_bytes:
            self.path.unlink(missing_ok=True)


class Recorder:
    """Runs probes and writes their readings."""

    def __init__(
        self,
        node: str,
        probes: Sequence[Probe],
        file: RecordingFile,
        clock: Clock,
        *,
        interval_ms: int,
        deadline_s: float,
        label: str = "",
        pseudonyms: Pseudonyms | None = None,
    ) -> None:
        """`pseudonyms`: replace identities by these; None: keep them."""
        self.tally = RecordingTally()
        self._probes, self._file, self._clock = probes, file, clock
        self._pseudonyms = pseudonyms
        self._interval_ms = interval_ms
        self._node, self._label = node, label
        self._ts_ms = self._began_ms = 0
        self._has_header = False
        self._entries: list[Entry] = []
        self._described: dict[str, Reading] = {}
        self._runners = [
            ProbeRunner(
                probe,
                deadline_s=deadline_s,
                interval_ms=interval_ms,
                clock=clock,
                counters=Counters(),
                accept=self._accept,
                describe=self._describe,
                report=self._report,
            )
            for probe in probes
        ]

    async def run(self, stop: asyncio.Event, duration_s: float | None = None) -> RecordingTally:
        """Record until `stop`, or for `duration_s`. Closes the probes and the file.

        Raises OSError when the file cannot be written; it is then valid up to its last block.
        """
        full: OSError | None = None
        try:
            async with asyncio.TaskGroup() as probes:
                serving = [
                    probes.create_task(runner.run(), name=f"probe {runner.probe.name}")
                    for runner in self._runners
                    if runner.probe.blocking
                ]
                full = await self._ticks(stop, duration_s)
                for task in serving:
                    task.cancel()
            if full is not None:
                raise full
            self._end()
        finally:
            self._count_failed()
            for runner in self._runners:
                await runner.close()
            self._file.close()
        return self.tally

    async def _ticks(self, stop: asyncio.Event, duration_s: float | None) -> OSError | None:
        """Tick until it is time to stop; returns the error of a file that cannot be written."""
        schedule = Schedule(self._interval_ms)
        written_s = self._clock.monotonic()
        while not (self._is_over(duration_s) or await self._until_next(stop)):
            now_s = self._clock.monotonic()
            schedule, plan = next_tick(schedule, to_ms(self._clock.now()), now_s)
            self.tally.missed += plan.missed
            if plan.ts_ms is None:
                continue
            self._read(plan.ts_ms, plan.missed)
            left_s = wait_s(self._interval_ms, to_ms(self._clock.now()))
            await wait_for_readings(self._runners, left_s)
            # The first block is written early, so that the file has its header.
            is_early = not self._has_header and self.tally.ticks > 1
            is_full = len(self._entries) >= ENTRIES_MAX
            if is_early or is_full or now_s - written_s >= BLOCK_S:
                written_s = now_s
                try:
                    self._write()
                except OSError as error:
                    return error
        return None

    def _is_over(self, duration_s: float | None) -> bool:
        lived_s = (self.tally.ticks + self.tally.missed) * self._interval_ms / 1000
        return duration_s is not None and lived_s >= duration_s

    async def _until_next(self, stop: asyncio.Event) -> bool:
        """Sleep until the next tick; True when asked to stop first."""
        return await until(stop, wait_s(self._interval_ms, to_ms(self._clock.now())))

    def _read(self, ts_ms: int, missed: int) -> None:
        self._began_ms = self._began_ms or ts_ms
        self._ts_ms = ts_ms
        self.tally.ticks += 1
        for runner in self._runners:
            runner.tick(ts_ms, missed)

    def _accept(self, probe: Probe, ts_ms: int, reading: Reading) -> None:
        rows = {
            table: [self._possible(probe, table, row, ts_ms) for row in several]
            for table, several in reading.items()
        }
        for table, several in rows.items():
            self.tally.rows[table] += len(several)
        self._entries.append(Samples(ts_ms, probe.name, self._anonymous(rows)))

    def _describe(self, probe: Probe, reading: Reading) -> None:
        if self._described.get(probe.name) == reading:
            return
        self._described[probe.name] = reading
        self._entries.append(Described(self._ts_ms, probe.name, self._anonymous(reading)))

    def _report(self, probe: Probe, report: HealthEvent) -> None:
        # Inventory that fails is absent; a probe that recovers shows it by its rows.
        if report.kind == "probe_recovered" or report.message.startswith(f"{probe.name} inventory"):
            return
        message = report.message.removeprefix(f"{probe.name}: ")
        if self._pseudonyms is not None:
            message = "left out"
        self._entries.append(Failure(self._ts_ms, probe.name, report.kind, message))

    def _possible(self, probe: Probe, table: str, row: Row, ts_ms: int) -> Row:
        """The row without impossible values, as an agent would send it. Raises RowError."""
        stamp: Row = {"ts": ts_ms, "node": self._node, "simulated": probe.simulated}
        outside = impossible_columns(table, {**stamp, **row})
        self.tally.left_out.update(f"{table}.{column}" for column in outside)
        return {name: value for name, value in row.items() if name not in outside}

    def _anonymous(self, rows: Reading) -> Reading:
        return rows if self._pseudonyms is None else self._pseudonyms.reading(rows)

    def _end(self) -> None:
        if self.tally.ticks:
            self._entries.append(Ended(self._ts_ms, self.tally.ticks, self.tally.missed))
            self._write()

    def _write(self) -> None:
        block = encode_block(self._entries, None if self._has_header else self._header())
        self._file.append(block)
        self._has_header = True
        self._entries.clear()
        self.tally.bytes_written = self._file.size_bytes

    def _header(self) -> RecordingHeader:
        hidden = self._pseudonyms
        return RecordingHeader(
            gpuwarden=__version__,
            node=self._node if hidden is None else hidden.of("node", self._node),
            started_at=from_ms(self._began_ms).isoformat().replace("+00:00", "Z"),
            interval_s=self._interval_ms / 1000,
            label=self._label,
            has_identity=hidden is None,
            probes=tuple(
                RecordedProbe(probe.name, dict(probe.tables), self._uuid(probe.gpu_uuid))
                for probe in self._probes
            ),
        )

    def _uuid(self, gpu_uuid: str | None) -> str | None:
        if gpu_uuid is None or self._pseudonyms is None:
            return gpu_uuid
        return self._pseudonyms.uuid(gpu_uuid)

    def _count_failed(self) -> None:
        for runner in self._runners:
            self.tally.failed += runner.coverage.unread
