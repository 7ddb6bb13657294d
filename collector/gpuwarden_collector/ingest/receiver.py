"""Receives samples of senders that are not agents, and stores the rows that they make.

A request is answered when it is on disk (`received_store.py`). Rows that are due become batches, one a node, which go the way
of agents' batches: decoded, checked, and stored once by the writer.
"""

import asyncio
import hashlib
import logging
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from gpuwarden.clock import Clock, to_ms
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.admission import Admission, Charge
from gpuwarden_collector.ingest.admit import window
from gpuwarden_collector.ingest.commit_plan import Batch, Rejected, RetryLater, Stored
from gpuwarden_collector.ingest.decode import RefusedBody
from gpuwarden_collector.ingest.decode_pool import Body, DecodePool
from gpuwarden_collector.ingest.gpu_owners import NODE_GPUS_MAX
from gpuwarden_collector.ingest.open_rows import Device, OpenRows
from gpuwarden_collector.ingest.port import (
    Before,
    JoinedRow,
    MappedRequest,
    RequestSender,
    RowMaker,
    RowPart,
)
from gpuwarden_collector.ingest.received_rows import BodyRows
from gpuwarden_collector.ingest.received_store import (
    FILE_NAME,
    ClosedBatch,
    ReceivedStore,
    WaitingBatch,
)
from gpuwarden_collector.query.port import Refusal
from gpuwarden_collector.stats import Stats

log = logging.getLogger(__name__)
T = TypeVar("T")

TURN_S = 1.0
"""Interval at which rows that are due are closed and stored."""
NAMES_MAX = 1_000
"""Names of metrics that are counted by themselves; the rest is counted together."""
NAMES_SHOWN_MAX = 200
_NAME_CHARS_MAX = 120
_ROWS_MAX = 2_000
"""Rows that are closed in one transaction: requests wait for it."""
_BATCHES_MAX = 200
OPEN_ROWS_MAX = 50_000
"""Rows that may wait for further samples: they are in memory, with some 2 KB each."""
_RETRY_AFTER_S = 5
_CELL_BYTES = 8
_OTHERS = "other names"
_LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """Bounds of what is received."""

    past_max_s: float
    future_max_s: float
    open_ms: int = 10_000
    """How long a row waits for further parts; in a backlog at least 60 s."""
    bytes_max: int = 64 * 1024 * 1024
    """Bytes on disk of open rows and of batches that wait; above it requests are refused for a while."""


@dataclass(slots=True)
class _Waiting:
    request: MappedRequest
    sender: str
    answer: "Future[Counter[str]]" = field(default_factory=Future)


class SampleReceiver:
    """A `SampleSink`. Its methods run on the event loop, its store in a thread."""

    def __init__(
        self,
        folder: Path,
        maker: RowMaker,
        admission: Admission,
        decode_pool: DecodePool,
        stats: Stats,
        clock: Clock,
        limits: ReceiverLimits,
    ) -> None:
        """Raises sqlite3.Error, OSError."""
        self._maker = maker
        self._admission = admission
        self._decode_pool = decode_pool
        self._stats = stats
        self._clock = clock
        self._limits = limits
        self._where = folder / FILE_NAME
        self._store = ReceivedStore(folder, OpenRows(limits.open_ms), clock)
        self._thread = ThreadPoolExecutor(1, "received")
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._names: Counter[tuple[str, str]] = Counter()
        """By reason and name of the metric: samples that were not stored."""
        self._logged_at_s: dict[str, float] = {}

    async def close(self) -> None:
        """End the thread and close the file; what waits is stored after the next start."""
        self._is_closed = True
        async with self._turn:
            # Not here: the thread may be at work, and the event loop has others.
            await asyncio.to_thread(self._thread.shutdown)
        self._store.close()

    @property
    def open_rows(self) -> int:
        """Rows that wait for further parts."""
        return self._store.open_rows.rows

    @property
    def bytes_waiting(self) -> int:
        """Size on disk of open rows and of batches that wait for the writer."""
        return self._store.bytes_waiting

    async def store(self, request: MappedRequest, sender: RequestSender) -> Refusal | None:
        """Put a request on disk; None: it is there, or was before."""
        if no_room := self._admission.no_room():
            return _refusal(no_room)
        if self.bytes_waiting >= self._limits.bytes_max:
            reason = (
                f"{self.bytes_waiting} bytes of samples wait to be stored, more than"
                f" {self._limits.bytes_max}: send them again later"
            )
            return Refusal(503, reason, _RETRY_AFTER_S)
        if self.open_rows >= OPEN_ROWS_MAX:
            reason = f"{self.open_rows} rows wait for further samples: send these again later"
            return Refusal(503, reason, _RETRY_AFTER_S)
        charges = charges_of(request.parts)
        if refused := self._admission.charge(sender.sender, charges):
            return _refusal(refused)
        if request.parts:
            try:
                counts = await self._added(request, sender.sender)
            except sqlite3.Error as error:
                self._admission.give_back(sender.sender, charges)
                reason = f"{self._where}: {error}: check that the disk has space"
                return Refusal(503, reason, _RETRY_AFTER_S)
            self._stats.received_samples.update(counts)
            if counts["too_many_gpus"]:
                reason = f"a node has more than {NODE_GPUS_MAX} GPUs"
                self._log_rarely(
                    sender.sender, f"{reason}: revoke its token if it cannot have so many"
                )
        self._note(request.skipped)
        return None

    def report(self) -> Mapping[str, Any]:
        """Counts of samples, and the names of metrics that were not stored, as a JSON object."""
        return {
            "samples": dict(sorted(self._stats.received_samples.items())),
            "open_rows": self.open_rows,
            "bytes_waiting": self.bytes_waiting,
            "skipped": [
                {"reason": reason, "name": name, "samples": count}
                for (reason, name), count in self._names.most_common(NAMES_SHOWN_MAX)
            ],
        }

    async def turn(self) -> None:
        """Close the rows that are due, and store them."""
        async with self._turn:
            if self._is_closed:
                return
            try:
                await self._deliver()
                # A row takes more room in a batch: no more are made while those before them wait.
                while self._store.batch_bytes < self._limits.bytes_max and not self._is_closed:
                    closed = await self._in_thread(self._close_due)
                    if closed is None:
                        break
                    self._stats.received_samples.update(closed.lost)
                    await self._deliver()
                    if closed.rows < _ROWS_MAX:
                        break
            except sqlite3.Error as error:
                self._log_rarely("disk", f"{self._where}: {error}")

    async def _added(self, request: MappedRequest, sender: str) -> Counter[str]:
        """Requests that arrive together are one transaction."""
        waiting = _Waiting(request, sender)
        with self._lock:
            self._waiting.append(waiting)
        self._thread.submit(self._add_waiting)
        # Never cancel it: the request may be on disk although the client has closed the connection.
        return await asyncio.shield(asyncio.wrap_future(waiting.answer))

    def _add_waiting(self) -> None:
        with self._lock:
            group = list(self._waiting)
            self._waiting.clear()
        if not group:
            return
        try:
            all_counts = self._store.add([(one.request, one.sender) for one in group])
        except Exception as error:  # noqa: BLE001  each of the group gets it
            for one in group:
                one.answer.set_exception(error)
            return
        for one, counts in zip(group, all_counts, strict=True):
            one.answer.set_result(counts)

    def _close_due(self) -> "_Closed | None":
        """Close rows that are due; None: none, or the collector stops. Raises sqlite3.Error."""
        now = self._clock.now()
        due = list(islice(self._store.open_rows.due(to_ms(now)), _ROWS_MAX))
        if not due:
            return None
        admitted = window(now, self._limits.past_max_s, self._limits.future_max_s)
        bodies: dict[tuple[str, str], BodyRows] = {}
        carried: dict[Device, Before] = {}
        lost: Counter[str] = Counter()
        for one in due:
            if self._is_closed:
                return None
            device = one.device
            joined = JoinedRow(device.table, device.source, one.ts_ms, one.row.cells, one.row.facts)
            before = carried.get(device) or self._store.before(device)
            try:
                rows, cells = list(self._maker.made(joined, before)), self._maker.carried(joined)
            except Exception as error:  # noqa: BLE001  one row must not keep all others from being closed
                self._stats.faults.note("make_row", error)
                lost["failed"] += 1
                continue
            for table, row in rows:
                node = str(row.get("node") or device.source)
                body = bodies.setdefault((device.sender, node), BodyRows(admitted))
                body.add(table, self._identified(table, row, node))
            if cells and (before is None or before.ts_ms < one.ts_ms):
                carried[device] = Before(one.ts_ms, cells)
        batches = []
        for (sender, node), body in bodies.items():
            lost.update(body.lost)
            if body.rows:
                batches.append(ClosedBatch(sender, node, body.rows, body.body()))
        self._store.commit(batches, due, carried)
        return _Closed(len(due), lost)

    def _identified(self, table: str, row: Mapping[str, Any], node: str) -> Mapping[str, Any]:
        if table != "nodes":
            return row
        return {**row, "agent_id": _agent_of(node), "boot_id": self._store.boot_id}

    async def _deliver(self) -> None:
        """Store waiting batches, those of a node in order, until none is left or the store is busy."""
        blocked: set[tuple[str, str]] = set()
        oldest = partial(self._store.oldest, blocked, _BATCHES_MAX)
        while not self._is_closed and (batches := await self._in_thread(oldest)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._is_settled(batch)) for batch in batches]
            settled = [one for one, task in zip(batches, tasks, strict=True) if task.result()]
            if settled:
                await self._in_thread(partial(self._store.delivered, settled))
            blocked |= {(b.sender, b.node) for b in batches if b not in settled}

    async def _is_settled(self, batch: WaitingBatch) -> bool:
        """Whether the writer has stored a batch, or never will."""
        bound = batch.sender.removeprefix("node:") if batch.sender.startswith("node:") else None
        decoded = await self._decode_pool.admit(Body(batch.body, "", False, bound))
        if isinstance(decoded, RefusedBody):
            return decoded.status != 503 and self._lost(batch, decoded.reason)
        # Batches of a node come in order, so a sequence below this one never comes.
        name = BatchId(_agent_of(batch.node), self._store.boot_id, batch.sequence, batch.sequence)
        outcome = await self._admission.deliver(Batch(name, decoded, len(batch.body), batch.sender))
        if isinstance(outcome, Rejected):
            return self._lost(batch, outcome.reason)
        return isinstance(outcome, Stored)

    def _lost(self, batch: WaitingBatch, reason: str) -> bool:
        self._stats.received_samples["refused_rows"] += batch.rows
        self._log_rarely(batch.node, reason)
        return True

    def _note(self, skipped: Counter[tuple[str, str]]) -> None:
        fresh: dict[str, list[str]] = {}
        for (reason, name), count in skipped.items():
            self._stats.received_samples[reason] += count
            key = reason, name[:_NAME_CHARS_MAX]
            if key not in self._names:
                if len(self._names) >= NAMES_MAX:
                    key = reason, _OTHERS
                else:
                    fresh.setdefault(reason, []).append(key[1])
            self._names[key] += count
        for reason, names in fresh.items():
            log.info(
                "samples of these metrics are not stored; further ones are only counted",
                extra={
                    "reason": reason,
                    "names": ", ".join(sorted(names)[:20]),
                    "count": len(names),
                },
            )

    def _log_rarely(self, about: str, problem: str) -> None:
        now_s = self._clock.monotonic()
        recent = {k: at for k, at in self._logged_at_s.items() if now_s - at < _LOG_INTERVAL_S}
        self._logged_at_s = recent
        if about not in recent and len(recent) < NAMES_MAX:
            recent[about] = now_s
            log.warning("received samples are not stored", extra={"about": about, "why": problem})

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


@dataclass(frozen=True, slots=True)
class _Closed:
    rows: int
    lost: Counter[str]


def charges_of(parts: Iterable[RowPart]) -> list[Charge]:
    """By the agent of each node: the size in memory of the rows that parts become, if each becomes one."""
    sizes: Counter[str] = Counter()
    for part in parts:
        texts = sum(len(name) + len(text) for name, text in part.facts.items())
        sizes[part.source] += _CELL_BYTES * len(WIRE_TABLES[part.table].columns) + texts
    return [(_agent_of(node), size) for node, size in sizes.items()]


def _refusal(later: RetryLater) -> Refusal:
    return Refusal(later.status, later.reason, later.retry_after_s)


def _agent_of(node: str) -> str:
    """The agent that a node's received rows count as: the same for all senders, so that they may share a node."""
    return "received-" + hashlib.sha256(node.encode()).hexdigest()[:32]
