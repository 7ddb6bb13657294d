"""Seals the open batch: encodes its rows and makes them durable in the spool."""

import asyncio
import logging
import zlib

from gpuwarden.clock import Clock
from gpuwarden.lifecycle import until
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.queue.batch import OpenBatch, TakenRows
from gpuwarden_agent.queue.encode import encode
from gpuwarden_agent.queue.inventory import Inventory
from gpuwarden_agent.queue.spool import Dropped, Spool, SpoolError
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

DELAY_S_MIN = 0.05
DELAY_S_MAX = 0.7
RETRY_S = 5.0
REPORT_DROPPED_EVERY_S = 600.0


class Flusher:
    """Moves the rows of the open batch to the spool, one batch at a time."""

    def __init__(
        self,
        node: str,
        spool: Spool,
        worker: Worker,
        *,
        clock: Clock,
        counters: Counters,
        batch: OpenBatch,
        inventory: Inventory,
        recorder: EventRecorder,
        sealed: asyncio.Event,
    ) -> None:
        """`worker`: the spool's thread."""
        self._spool = spool
        self._worker = worker
        self._clock = clock
        self._counters = counters
        self._batch = batch
        self._inventory = inventory
        self._recorder = recorder
        self._sealed = sealed
        self._turn = asyncio.Lock()
        # Nodes tick at the same instant. Each waits for a moment of its own, so that the collector
        # does not get thousands of batches at once. Rows that arrive meanwhile join the batch.
        share = zlib.crc32(node.encode()[::-1]) % 1000 / 1000
        self._delay_s = DELAY_S_MIN + share * (DELAY_S_MAX - DELAY_S_MIN)
        self._failing_since_s: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the spool failed to store the last batch."""
        return self._failing_since_s is not None

    def seal_soon(self) -> None:
        """Seal the open batch within a second."""
        self._batch.seal_requested.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Seal when it is requested, until `stop`."""
        while not stop.is_set():
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._batch.seal_requested.wait()
            except TimeoutError:
                if not self.is_failing:
                    continue
            if not await until(stop, self._delay_s):
                self._batch.seal_requested.clear()
                await self.seal()

    async def seal(self, *, is_last: bool = False) -> None:
        """Seal now; rows that the spool cannot store stay in the open batch."""
        async with self._turn:
            for table, row in self._inventory.take_changes(self._clock.monotonic()):
                self._batch.replace(table, row)
                self._counters.rows[table] += 1
            if not self._batch.count:
                return
            rows = self._batch.take()
            try:
                await self._put(rows, is_last=is_last)
            except SpoolError as error:
                self._keep_open(rows, error)

    async def seal_in_turn(self, stop: asyncio.Event) -> None:
        """Wait while the spool is more than half full, then seal: for rows that can be produced later."""
        while self._spool.size_bytes > self._spool.bytes_max // 2:
            if await until(stop, 0.5):
                break
        await self.seal()

    def report_lost_rows(self, rows: int) -> None:
        """Record lost rows as an event, at most every ten minutes."""
        self._recorder.count(
            "rows", rows, every_s=REPORT_DROPPED_EVERY_S, write=self._record_lost_rows
        )

    async def _put(self, rows: TakenRows, *, is_last: bool) -> None:
        self._add_depth(rows)
        body = encode(rows.by_table)
        put = await self._worker.submit(
            self._spool.put, body, rows.count, last_ts_ms=rows.last_ts_ms, is_last=is_last
        )
        self._counters.batches_sealed += 1
        self._counters.bytes_sealed += len(body)
        if self._failing_since_s is not None:
            lasted_s = self._clock.monotonic() - self._failing_since_s
            self._failing_since_s = None
            self._recorder.record(
                "spool_recovered",
                f"the spool takes batches again after {span(lasted_s)}",
                duration_seconds=lasted_s,
            )
        if put.dropped:
            self._report_dropped(put.dropped)
        self._sealed.set()

    def _add_depth(self, rows: TakenRows) -> None:
        """Say in the newest row of the host what waits in the spool."""
        if host := rows.by_table.get("host_samples"):
            depth = {"spool_batches": self._spool.count, "spool_bytes": self._spool.size_bytes}
            host[-1] = host[-1] | depth

    def _keep_open(self, rows: TakenRows, error: SpoolError) -> None:
        lost = self._batch.put_back(rows)
        self._counters.last_error = str(error)
        if self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic()
            self._recorder.record(
                "spool_failed", f"the spool takes no batches, samples wait in memory: {error}"
            )
        if lost:
            self._counters.rows_dropped += lost
            self.report_lost_rows(lost)

    def _report_dropped(self, dropped: tuple[Dropped, ...]) -> None:
        self._counters.batches_dropped += len(dropped)
        oldest_ms = dropped[0].created_ms
        age = span(self._clock.now().timestamp() - oldest_ms / 1000)

        def write(number: int) -> None:
            self._recorder.record(
                "batches_dropped",
                f"the spool is full: {number} batches were dropped, the oldest {age} old",
                details={"batches": number, "waiting": self._spool.count},
            )

        self._recorder.count("dropped", len(dropped), every_s=REPORT_DROPPED_EVERY_S, write=write)

    def _record_lost_rows(self, rows: int) -> None:
        self._recorder.record(
            "rows_dropped",
            f"{rows} rows were lost before they reached the spool",
            details={"rows": rows},
        )
