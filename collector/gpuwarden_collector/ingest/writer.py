"""Writes to the store in one thread: batches wait in a queue, and one transaction commits all waiting batches.

The event loop passes batches (`store`) and functions (`do`) to the thread and awaits futures; the thread uses the loop
only to resolve them. A batch is answered when its transaction is durable. The queue is bounded in bytes; a batch that
does not fit raises `QueueFull`.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from gpuwarden.budgets import BUDGETS
from gpuwarden.clock import Clock
from gpuwarden.offers import GPU_OFFERS
from gpuwarden.schema import EVENTS
from gpuwarden_collector.ingest import departures, inventory
from gpuwarden_collector.ingest.commit_plan import (
    LEDGER_KEPT_FOR,
    Batch,
    CommitPlan,
    Known,
    LedgerRow,
    Outcome,
    Rejected,
    RetryLater,
    Stored,
    apply,
    expired,
    forget_gone,
    forget_items,
    inventory_table,
    ledger_rows,
    loaded,
    plan,
)
from gpuwarden_collector.ingest.decode import first_line
from gpuwarden_collector.ingest.deduplicate import LedgerKey
from gpuwarden_collector.ingest.inventory import Item
from gpuwarden_collector.ingest.prices import PriceBook, offers_of
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import Changes, WriterStopped, commit
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.segment_log import FrameLog

log = logging.getLogger(__name__)
T = TypeVar("T")

COMMIT_INTERVAL_S = 0.05
"""Least time between two group commits."""
QUEUE_BYTES_MAX = 256 * 1024 * 1024
"""Most bytes of decoded batches that wait; above it 429."""
GROUP_BYTES_MAX = 128 * 1024 * 1024
"""Decoded bytes at which a group is committed without waiting for the commit interval."""
IDLE_S = 1.0
STUCK_AFTER_S = 30.0
"""A writer that has not finished a cycle for this time is not alive."""
_HEARD_INTERVAL_S = 10.0
_EXPIRY_INTERVAL_S = 3_600.0
_RETRY_AFTER_S = 5
_LEDGER_ROWS = 10_000
_NO_MEMORY = "the collector has not enough memory for it: give it more"


WRITE_ERRORS = (StoreUnavailableError, RowsRefusedError, WriterStopped)
"""Raised by `Writer.write` and `Writer.do`."""


class QueueFull(Exception):  # noqa: N818  an expected outcome, named like queue.Full
    """The batch does not fit into the queue now."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    batch: Batch
    bytes: int
    answer: asyncio.Future[Outcome]


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], Any]
    """Runs in the thread between two groups. Raises StoreUnavailableError, RowsRefusedError."""
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Unsaved:
    """Entries that segments up to `until`, and maybe later ones, have and the state file does not."""

    until: int
    ledger: Sequence[LedgerRow]
    forgotten: Sequence[LedgerKey]
    progress: Mapping[str, datetime | None]


def load_known(log: FrameLog, now: datetime, *, has_peers: bool = False) -> Known:
    """Load the writer's state from the store. Raises StoreUnavailableError."""
    state = log.state
    rows = {name: state.rows(name) for name in ("nodes", "gpus")}
    known = loaded(state.rows("ledger"), rows, log.tail.batches, now)
    known.closed_until = state.progress()["closed_until"]
    known.has_peers = has_peers
    return known


class NodeForgotten(Enum):
    """The result of forgetting a node."""

    DONE = "done"
    UNKNOWN = "unknown"
    SENDS = "sends"


HEARD_LATELY = timedelta(minutes=1)
"""A node that was seen within this time sends data."""


class Writer:
    """Appends to the current segment, from `start` to `stop`."""

    def __init__(
        self,
        log: FrameLog,
        known: Known,
        stats: Stats,
        clock: Clock,
        *,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        prices: PriceBook | None = None,
        copy: Callable[[], None] = lambda: None,
        trusts_clock: Callable[[], bool] = lambda: True,
    ) -> None:
        """`copy`: sends what is stored to the standby; raises StoreUnavailableError. `trusts_clock`: whether entries
        of the ledger may expire."""
        self._log = log
        self._known = known
        self._stats = stats
        self._clock = clock
        self._interval_s = commit_interval_s
        self._queue_bytes_max = queue_bytes_max
        self._prices = prices or PriceBook()
        self._copy = copy
        self._trusts_clock = trusts_clock
        self._condition = threading.Condition()
        self._batches: deque[_Waiting] = deque()
        self._calls: deque[_Call] = deque()
        self._in_hand: list[asyncio.Future[Any]] = []
        self._queue_bytes = 0
        self._is_stopping = False
        self._failed_at: float | None = None
        self._progress_at = self._heard_at = self._expired_at = clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> "asyncio.Future[None]":
        """Start the thread; the future is done when it ends, with the exception that ended it."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        return self._ended

    @property
    def queue_bytes(self) -> int:
        """Decoded bytes that wait or are being committed."""
        return self._queue_bytes

    def is_alive(self) -> bool:
        """Whether the thread runs and has finished a cycle within STUCK_AFTER_S."""
        late_s = self._clock.monotonic() - self._progress_at
        is_running = self._thread.is_alive() and not self._ended.done()
        return is_running and late_s < STUCK_AFTER_S

    def is_failing(self) -> bool:
        """Whether the last commit failed within STUCK_AFTER_S, for example on a full disk.

        After that time the fault may be over; the next batch shows it.
        """
        failed_at = self._failed_at
        return failed_at is not None and self._clock.monotonic() - failed_at < STUCK_AFTER_S

    async def store(self, batch: Batch) -> Outcome:
        """Wait until the batch is durable or refused. Raises QueueFull, WriterStopped."""
        size_bytes = batch.decoded.memory_bytes
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        with self._condition:
            if self._is_stopping or self._ended.done():
                raise WriterStopped("the collector is stopping")
            # An empty queue takes any batch: one that is larger than the queue must pass, too.
            if self._queue_bytes and self._queue_bytes + size_bytes > self._queue_bytes_max:
                raise QueueFull(f"{self._queue_bytes} bytes wait for the writer")
            self._queue_bytes += size_bytes
            self._batches.append(_Waiting(batch, size_bytes, answer))
            self._condition.notify()
        # Never cancel it: the batch may be committed although the client has closed the connection.
        return await asyncio.shield(answer)

    async def write(self, changes: Changes) -> None:
        """Write changes in their own transaction; they are durable when it returns.

        Raises StoreUnavailableError, RowsRefusedError, WriterStopped.
        """
        await self.do(lambda: self._commit(changes))

    async def do(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread, between two groups.

        Raises StoreUnavailableError, RowsRefusedError, WriterStopped.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        with self._condition:
            if self._is_stopping or self._ended.done():
                raise WriterStopped("the collector is stopping")
            self._calls.append(_Call(work, answer))
            self._condition.notify()
        return await asyncio.shield(answer)

    async def take_prices(self, prices: PriceBook) -> int:
        """Use other prices; returns the number of GPUs whose price has changed. Raises as `do`."""
        return await self.do(lambda: self._take_prices(prices))

    async def forget_node(self, node: str) -> NodeForgotten:
        """Note that a node left when it was last seen. Raises as `do`."""
        return await self.do(lambda: self._forget_node(node))

    async def forget_silent(self, before: datetime) -> Mapping[str, int]:
        """Forget GPUs and nodes that were last seen before that; returns their number by table. Raises as `do`."""
        return await self.do(lambda: self._forget_silent(before))

    async def close_windows(self, until: datetime) -> None:
        """From now on rows from before `until` (naive UTC) are late: their windows are stored with them, and rolled up
        again. Raises as `do`.
        """
        await self.do(lambda: self._close_windows(until))

    async def freeze(self) -> None:
        """Begin a new segment. Raises as `do`."""
        await self.do(self._log.freeze)

    async def save(self) -> None:
        """Write to the state file what frozen segments have stored, so that they can be deleted. Raises as `do`; then
        the next call or the next start completes it."""
        taken = await self.do(self._take_unsaved)
        try:
            await asyncio.to_thread(self._save, taken)
        except BaseException:
            await self.do(lambda: self._give_back(taken))
            raise

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Commit the waiting batches and end the thread. Raises TimeoutError."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        async with asyncio.timeout(timeout_s):
            await asyncio.wait({self._ended})

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while self._cycle():
                pass
        except BaseException as error:
            failure = error
            log.exception("the writer thread failed")
        finally:
            self._on_loop(self._end, failure)

    def _end(self, failure: BaseException | None) -> None:
        answers = [*self._in_hand, *(w.answer for w in self._batches)]
        answers += [call.answer for call in self._calls]
        for answer in answers:
            if not answer.done():
                answer.set_exception(WriterStopped("the writer has ended"))
                answer.exception()
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)

    def _cycle(self) -> bool:
        """Wait for work and do it; False: all is done, and the writer stops."""
        with self._condition:
            self._condition.wait_for(self._has_work, IDLE_S)
            calls = list(self._calls)
            self._calls.clear()
            group = self._take_group()
            self._in_hand = [*(call.answer for call in calls), *(w.answer for w in group)]
            is_last = self._is_stopping and not group and not calls
        for call in calls:
            self._carry_out(call)
        if group:
            self._commit_group(group)
        self._keep_house(is_last=is_last)
        self._progress_at = self._clock.monotonic()
        if group and not is_last:
            with self._condition:
                self._condition.wait_for(self._is_urgent, self._interval_s)
        return not is_last

    def _has_work(self) -> bool:
        return bool(self._batches or self._calls or self._is_stopping)

    def _is_urgent(self) -> bool:
        return bool(self._calls) or self._is_stopping or self._queue_bytes >= GROUP_BYTES_MAX

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size_bytes = 0
        while self._batches and size_bytes < GROUP_BYTES_MAX:
            group.append(self._batches.popleft())
            size_bytes += group[-1].bytes
        return group

    def _commit_group(self, group: Sequence[_Waiting]) -> None:
        started = self._clock.monotonic()
        now = self._clock.now()
        try:
            outcomes = self._outcomes(group, now)
        finally:
            with self._condition:
                self._queue_bytes -= sum(waiting.bytes for waiting in group)
        seconds = self._clock.monotonic() - started
        self._on_loop(self._answer, list(zip(group, outcomes, strict=True)), seconds)

    def _outcomes(self, group: Sequence[_Waiting], now: datetime) -> list[Outcome]:
        batches = [waiting.batch for waiting in group]
        try:
            return list(self._try(batches, now))
        except RowsRefusedError as error:
            # An admitted batch that cannot be stored is a bug, at least of the checks that admitted it.
            doing = "store" if len(group) == 1 else "store_together"
            self._stats.faults.note(doing, error.__cause__ or error)
            if len(group) == 1:
                return [Rejected(f"the store cannot take the rows: {error}")]
        # One batch is at fault: commit each by itself, so that the others are stored.
        return [outcome for waiting in group for outcome in self._outcomes([waiting], now)]

    def _try(self, batches: Sequence[Batch], now: datetime) -> Sequence[Outcome]:
        """Commit batches in one transaction. Raises RowsRefusedError."""
        try:
            planned = self._plan(batches, now)
            if not planned.is_empty:
                self._commit(planned.changes)
        except StoreUnavailableError as error:
            return self._retry_later([None] * len(batches), error)
        apply(self._known, planned)
        self._on_loop(self._count, planned, now)
        self._progress_at = self._clock.monotonic()
        try:
            # Also for duplicates: their copy may have failed before.
            self._copy()
        except StoreUnavailableError as error:
            return self._retry_later(planned.outcomes, error)
        self._set_failing(None)
        return planned.outcomes

    def _retry_later(
        self, outcomes: Sequence[Outcome | None], error: StoreUnavailableError
    ) -> list[Outcome]:
        """Have agents send all batches again but those that are rejected."""
        self._set_failing(str(error))
        self._on_loop(self._count_failure)
        later = RetryLater(f"the store cannot take it now: {error}", _RETRY_AFTER_S)
        return [later if o is None or isinstance(o, Stored) else o for o in outcomes]

    def _plan(self, batches: Sequence[Batch], now: datetime) -> CommitPlan:
        """Raises RowsRefusedError for every exception but MemoryError: planning changes nothing, so only the batches can
        be at fault; if one ended the thread, the agent would send it again after each restart."""
        try:
            return plan(self._known, batches, self._prices, now)
        except MemoryError as error:
            raise StoreUnavailableError(_NO_MEMORY) from error
        except Exception as error:
            raise RowsRefusedError(_failed_on(error)) from error

    def _take_prices(self, prices: PriceBook) -> int:
        changed = reprice(self._log, self._known, prices)
        self._prices = prices
        return changed

    def _forget_node(self, node: str) -> NodeForgotten:
        now = self._clock.now()
        item = self._known.items["nodes"].get(node)
        if item is None:
            return NodeForgotten.UNKNOWN
        seen = {row["node"]: row["last_seen_at"] for row in self._log.state.rows("nodes")}.get(node)
        is_recent = seen is not None and now - seen.replace(tzinfo=UTC) < HEARD_LATELY
        if node not in self._known.left and (is_recent or node in self._known.heard["nodes"]):
            return NodeForgotten.SENDS
        gone = departures.forgotten(item, seen, self._prices.billing, now)
        late = None
        if node not in self._known.left:
            late = departures.unbilled_windows(node, gone.row["unbilled_from"], now)
        self._commit(Changes(upserted={"nodes": inventory_table("nodes", {node: gone})}, late=late))
        self._known.items["nodes"][node] = gone
        self._known.left.add(node)
        return NodeForgotten.DONE

    def _forget_silent(self, before: datetime) -> Mapping[str, int]:
        self._write_heard()
        if any(self._known.heard.values()):
            return {}  # nodes seen just now are not in the state file yet: try again tomorrow
        with self._log.state.writing() as writing:
            gone = writing.forget_silent(before, self._clock.now())
        forget_items(self._known, gone)
        return {name: len(keys) for name, keys in gone.items()}

    def _commit(self, changes: Changes) -> None:
        try:
            commit(self._log, changes)
        except (StoreUnavailableError, RowsRefusedError):
            raise
        except MemoryError as error:
            raise StoreUnavailableError(_NO_MEMORY) from error
        except Exception as error:
            # The next start finds out which rows were written; the batches are refused.
            raise RowsRefusedError(_failed_on(error)) from error

    def _close_windows(self, until: datetime) -> None:
        with self._log.state.writing() as writing:
            writing.set_meta({"closed_until": until})
        self._known.closed_until = until

    def _take_unsaved(self) -> Unsaved:
        keys, self._known.unsaved = self._known.unsaved, set()
        forgotten = [key for key in keys if self._known.ledger.get(key) is None]
        progress = {n: at for n, at in self._log.progress.items() if n != "closed_until"}
        # The newest segment may have a frame whose write failed, which the next start stores.
        until = self._log.last_number - 1
        return Unsaved(until, ledger_rows(self._known, keys), forgotten, progress)

    def _give_back(self, unsaved: Unsaved) -> None:
        self._known.unsaved.update((row[0], row[1], row[2]) for row in unsaved.ledger)
        self._known.unsaved.update(unsaved.forgotten)

    def _save(self, unsaved: Unsaved) -> None:
        """Write in parts, so that a commit that changes the state file waits for at most one part."""
        state, rows = self._log.state, unsaved.ledger
        for start in range(0, len(rows), _LEDGER_ROWS):
            with state.writing() as writing:
                writing.save_ledger(rows[start : start + _LEDGER_ROWS])
        with state.writing() as writing:
            writing.forget_ledger_keys(unsaved.forgotten)
            writing.set_meta({"ledger_until": unsaved.until, **unsaved.progress})

    def _carry_out(self, call: _Call) -> None:
        error: Exception | None = None
        result: Any = None
        try:
            result = call.work()
        except (StoreUnavailableError, RowsRefusedError) as caught:
            error = caught
        self._on_loop(_settle, call.answer, result, error)

    def _keep_house(self, *, is_last: bool) -> None:
        now_s = self._clock.monotonic()
        if is_last or now_s - self._heard_at >= _HEARD_INTERVAL_S:
            self._heard_at = now_s
            self._write_heard()
        if now_s - self._expired_at >= _EXPIRY_INTERVAL_S:
            self._expired_at = now_s
            self._expire_ledger()

    def _write_heard(self) -> None:
        heard = {name: keys for name, keys in self._known.heard.items() if keys}
        if heard and self._quietly(Changes(heard=heard, heard_at=self._clock.now())):
            for keys in self._known.heard.values():
                keys.clear()

    def _expire_ledger(self) -> None:
        if not self._trusts_clock():
            return
        now = self._clock.now()
        forget_gone(self._known, now)
        gone = expired(self._known, now)
        if gone and self._quietly(Changes(forget_ledger_before=now - LEDGER_KEPT_FOR)):
            self._known.ledger.forget(gone)
            self._known.unsaved.difference_update(gone)

    def _quietly(self, changes: Changes) -> bool:
        """Write changes that can be written later as well; whether it worked."""
        try:
            self._commit(changes)
        except (StoreUnavailableError, RowsRefusedError) as error:
            if isinstance(error, RowsRefusedError):
                self._stats.faults.note("housekeeping", error.__cause__ or error)
            log.debug("housekeeping postponed", extra={"reason": str(error)})
            return False
        return True

    def _set_failing(self, reason: str | None) -> None:
        if reason is not None and self._failed_at is None:
            log.error("the store takes no batches; agents keep them", extra={"reason": reason})
        if reason is None and self._failed_at is not None:
            log.warning("the store takes batches again")
        self._failed_at = None if reason is None else self._clock.monotonic()

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("the event loop is closed; nothing waits for the answer")

    def _answer(self, answers: Sequence[tuple[_Waiting, Outcome]], seconds: float) -> None:
        self._stats.commit_seconds.observe(seconds)
        for waiting, outcome in answers:
            if isinstance(outcome, Stored) and not outcome.is_duplicate:
                self._stats.body_bytes += waiting.batch.body_bytes
            if not waiting.answer.done():
                waiting.answer.set_result(outcome)

    def _count(self, planned: CommitPlan, now: datetime) -> None:
        duplicates = sum(isinstance(o, Stored) and o.is_duplicate for o in planned.outcomes)
        stored = sum(isinstance(o, Stored) for o in planned.outcomes) - duplicates
        self._stats.batches += stored
        self._stats.duplicates += duplicates
        self._stats.rows.update(planned.rows)
        self._stats.imported_rows += planned.imported_rows
        self._stats.left_out_rows.update(planned.claims.left_out)
        self._stats.clock_apart_batches += planned.clock_gaps.batches
        if planned.newest is not None:
            lag_s = self._stats.ingest_lag_seconds = (now - planned.newest).total_seconds()
            self._stats.lags.append(lag_s)

    def _count_failure(self) -> None:
        self._stats.commit_failures += 1


def _failed_on(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {first_line(error)}; please report this with the collector's log"
    )


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def reprice(frames: FrameLog, known: Known, prices: PriceBook) -> int:
    """Set the price of each GPU, the budgets and the offers, from the book; returns the number of prices that have changed.

    Call it in the writer, or before it starts. Raises StoreUnavailableError and RowsRefusedError, and then changes
    nothing.
    """
    changed = {}
    for key, item in known.items["gpus"].items():
        node = known.items["nodes"].get(item.row["node"])
        row = inventory.priced(item.row, node.row if node else None, prices)
        if row != item.row:
            changed[key] = Item(row, item.source)
    if changed:
        commit(frames, Changes(upserted={"gpus": inventory_table("gpus", changed)}))
        known.items["gpus"].update(changed)
    _replace(frames, BUDGETS.name, [asdict(budget) for budget in prices.budgets])
    _replace(frames, GPU_OFFERS.name, [asdict(offer) for offer in offers_of(prices)])
    return len(changed)


def _replace(frames: FrameLog, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store these rows of the prices file instead of others."""
    before = [sorted(row.items()) for row in frames.state.rows(name)]
    if sorted(before, key=str) != sorted((sorted(row.items()) for row in rows), key=str):
        with frames.state.writing() as writing:
            writing.replace(name, rows)


Listener = Callable[[Collection[str]], None]


class StoredEvents:
    """Calls a listener on the event loop when events are stored. Create it on that loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener: Listener = lambda kinds: None

    def listen(self, listener: Listener) -> None:
        """Call `listener` with the kinds of the events that are stored from now on."""
        self._listener = listener

    def add(self, tables: Mapping[str, Any]) -> None:
        """Note stored Arrow tables, by name. Thread-safe."""
        rows = tables.get(EVENTS.name)
        if rows is not None and rows.num_rows:
            kinds = rows["kind"].unique().to_pylist()
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._listener, kinds)
