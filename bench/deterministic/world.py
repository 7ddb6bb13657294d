"""Runs agents, a collector and what is between them in one process and one thread, under faults of a seed.

The product's own code runs: spool and shipper, the writer's thread step by step, plan, ledger, segments, state file,
sealer. Not real are the kernel's page cache (`disk.py`), DuckDB (`lake.py`), time and threads (`loop.py`), HTTP and
decoding, and the power cut of an SQLite file: the state file keeps what was committed (synchronous=FULL), the spool
(NORMAL) any beginning of its log. Checked after each start of the collector, and at the end: what was acknowledged
is stored, nothing twice; no agent refuses a batch; with a segment go no rows that a power cut could take; and at the
end, without faults, all that waits arrives.
"""

import asyncio
import json
import logging
import os
import random
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any, Self
from unittest import mock
from uuid import UUID

import pyarrow as pa
from bench.deterministic.disk import Disk, Disks, PowerCut
from bench.deterministic.lake import Catalogue, Key, StoreWithoutDuckDB, keys_in, keys_of
from bench.deterministic.loop import HostClock, VirtualLoop
from multidict import CIMultiDict

from gpuwarden.clock import to_ms
from gpuwarden.wire import AHEAD_S_MAX, CONTENT_TYPE
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.queue.spool import FILE_NAME as SPOOL_FILE
from gpuwarden_agent.queue.spool import Put, Reserve, Spool
from gpuwarden_agent.ship.address import HttpAddress
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import HttpResponse, NoAnswerError, NoConnectionError
from gpuwarden_collector.http.bodies import Busy
from gpuwarden_collector.http.receive import Ingest
from gpuwarden_collector.ingest import writer as writer_module
from gpuwarden_collector.ingest.admission import Admission
from gpuwarden_collector.ingest.admit import checked, window
from gpuwarden_collector.ingest.clock_check import ClockCheck
from gpuwarden_collector.ingest.commit_plan import Rejected, RetryLater, Stored
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS, Decoded, RefusedBody
from gpuwarden_collector.ingest.decode_pool import Body
from gpuwarden_collector.ingest.quota import SenderQuota
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.address import local_address
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.seal import Sealer, SealPolicy
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import SUFFIX, SegmentError
from gpuwarden_collector.storage.segment_log import SegmentLog
from gpuwarden_collector.storage.stats import StorageStats

KEPT_EVENTS = 60
_ADDRESS = HttpAddress("collector", 7070, False)
_DAY_S = 86_400.0
_TS_PAST_MAX_S = 14 * _DAY_S


class ViolationError(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Probability of each fault at a step that can have it, from 0 to 1."""

    power: float = 0.003
    kill: float = 0.003
    disk_full: float = 0.002
    sync_error: float = 0.004
    memory: float = 0.006
    agent_kill: float = 0.004
    agent_power: float = 0.004
    lost: float = 0.05
    doubled: float = 0.05
    unanswered: float = 0.05
    clock: float = 0.1
    """Share of the collector's starts with a clock that is wrong for a while."""

    def __mul__(self, factor: float) -> "Rates":
        return Rates(*(getattr(self, name) * factor for name in self.__slots__))


@dataclass(slots=True)
class Tally:
    """Counts of one world."""

    steps: Counter[str] = field(default_factory=Counter)
    put: int = 0
    acknowledged: int = 0
    dropped: int = 0
    """By a full spool."""
    unsynced: int = 0
    """Batches that a spool lost by a power cut."""
    sealed_segments: int = 0

    @property
    def total(self) -> int:
        """Steps of all kinds."""
        return sum(self.steps.values())


class _Worker:
    """Does at once what the agent gives to a thread."""

    def submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        try:
            future.set_result(call(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # the awaiter of the call handles it
            future.set_exception(error)
        return future


class _Turn:
    """Takes the place of the writer's condition: what it is notified of, it does a moment later."""

    def __init__(self, loop: VirtualLoop, cycle: Callable[[], None], rng: random.Random) -> None:
        self._loop = loop
        self._cycle = cycle
        self._rng = rng
        self._is_due = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return predicate()

    def notify(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(self._rng.uniform(0.0, 0.05), self._do)

    def _do(self) -> None:
        self._is_due = False
        self._cycle()


class _Thread:
    """Takes the place of the writer's thread: `Writer` runs in the steps of `_Turn`."""

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return True


class SteppedWriter(Writer):
    """The product's writer, its thread's cycles taken on the loop."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._condition = _Turn(loop, self._take_turn, rng)  # type: ignore[assignment]
        self._thread = _Thread()  # type: ignore[assignment]
        self._is_dead = False

    def keep_house(self) -> None:
        """Do what the thread does after a second without work."""
        self._condition.notify()

    def die(self) -> None:
        """Its process is gone."""
        self._is_dead = True

    def _take_turn(self) -> None:
        if self._is_dead:
            return
        try:
            self._cycle()
        except BaseException as error:  # noqa: BLE001  # as `Writer._run`
            self._is_dead = True
            self._end(error)
            self._ended.exception()
            return
        if self._has_work():
            self._condition.notify()


class _Request:
    """The parts of a request that ingest reads."""

    content_type = CONTENT_TYPE
    remote = ""

    def __init__(self, headers: Mapping[str, str], body: bytes) -> None:
        self.headers = CIMultiDict(headers)
        self.body = body

    def get(self, key: Any) -> None:
        """No token came with it."""


def _answer(status: int, reason: str, retry_after_s: int | None = None) -> HttpResponse:
    headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
    return HttpResponse(status, headers, reason.encode())


class Collector:
    """One collector's host: its disk, and its process from start to crash."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed} collector")
        self.data_dir = world.folder / "collector"
        self.address = local_address(self.data_dir)
        for folder in (Path(self.address.data) / "events", self.data_dir / SEGMENTS):
            folder.mkdir(parents=True)
        self.disk = Disk(str(self.data_dir), self.rng, self._step, self._fails_sync)
        self.catalogue = Catalogue()
        self.clock = HostClock(world.loop)
        self.is_up = False
        self.promised: set[Key] = set()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._opened: list[Any] = []
        self.starts = 0

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        """A task that ends with the process."""
        task = self.world.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, ViolationError):
                self.world.fail(error)
            elif not isinstance(error, PowerCut | NoAnswerError):
                self.world.fail(ViolationError(f"the collector's task ended: {error!r}"))

    def start(self) -> None:
        """Open the store as the daemon does, and check what is in it."""
        world, self.disk.is_off = self.world, False
        self.starts += 1
        world.note("start", "collector")
        if self.rng.random() < world.rates.clock * (not world.is_calm):
            self.clock.wrong_s = self.rng.choice((-3_600.0, -_DAY_S, 15 * _DAY_S))
            world.note("clock", f"collector's is wrong by {self.clock.wrong_s:.0f} s")
            world.loop.call_later(self.rng.uniform(1, 60), self._set_clock)
        try:
            log = SegmentLog(self.data_dir)
            self._opened.append(log.state)
            self._watch_state(log)
            store = StoreWithoutDuckDB(
                self.data_dir, self.address, log.state, self.catalogue, self._step
            )
            with store.cursor() as cursor:
                log.begin(store.sealed(cursor))
            known = load_known(log, self.clock.now())
        except PowerCut:
            return  # `crash` has been called for
        except (OSError, StoreUnavailableError, sqlite3.Error, SegmentError) as error:
            world.note("no start", str(error))
            self._go_off(is_power=False)
            return
        self.store = store
        self.check()
        heard = [row["last_seen_at"] for row in log.state.rows("nodes") if row["last_seen_at"]]
        newest = max(heard).replace(tzinfo=UTC) if heard else None
        self.clock_check = ClockCheck(self.clock, newest, lambda: None)
        stats = Stats()
        self.writer = SteppedWriter(
            world.loop,
            self.rng,
            log,
            known,
            stats,
            self.clock,
            commit_interval_s=0.0,
            trusts_clock=lambda: self.clock_check.is_trusted,
        )
        self.writer.start()
        self.ingest = Ingest(
            Admission(self.writer, SenderQuota(0, self.clock), stats, lambda: None),
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            stats,
            self.clock,
            clock_check=self.clock_check,
        )
        log.follow(self._follow, lambda error: None)
        policy = SealPolicy(3.0, 1 << 30)
        self.sealer = Sealer(store, self.writer, StorageStats(), self.clock, policy)
        self.spawn(self._keep_house())
        self.spawn(self._seal())
        self.is_up = True

    def check(self) -> None:
        """Compare what a query would see with what was acknowledged. Raises ViolationError."""
        counts = Counter(self.store.keys())
        lost = sorted(self.promised - counts.keys())
        doubled = sorted(key for key, count in counts.items() if count > 1)
        if lost:
            raise ViolationError(f"{len(lost)} acknowledged rows are lost, such as {lost[0]}")
        if doubled:
            raise ViolationError(f"{len(doubled)} rows stand twice, such as {doubled[0]}")
        if unknown := sorted(counts.keys() - self.world.made):
            raise ViolationError(f"rows that nobody sent, such as {unknown[0]}")

    async def take(self, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        """Answer a request."""
        if not self.is_up:
            raise NoConnectionError("connection refused")
        match await self.ingest.take(_Request(headers, body)):  # type: ignore[arg-type]
            case Stored():
                self.promise(json.loads(body))
                return HttpResponse(204, {}, b"")
            case RetryLater(reason, after_s, status) | Busy(reason, after_s, status):
                return _answer(status, reason, after_s)
            case Rejected(reason, status) | RefusedBody(status, reason):
                return _answer(status, reason)

    def promise(self, key: list[Any]) -> None:
        """A row was acknowledged."""
        if (key[0], key[1]) not in self.world.given_up:
            self.promised.add((key[0], key[1]))

    async def read(self, request: "_Request", bytes_max: int) -> bytes:
        """Stand in for BodyReader."""
        return request.body

    def release(self, size_bytes: int) -> None:
        """Stand in for BodyReader."""

    async def admit(self, body: Body) -> Decoded | RefusedBody:
        """Stand in for DecodePool."""
        table = event_table(*json.loads(body.content))
        admitted = window(self.clock.now(), _TS_PAST_MAX_S, AHEAD_S_MAX)
        found = checked({"events": table}, admitted)
        return found if isinstance(found, RefusedBody) else Decoded.of({"events": table}, 200)

    def crash(self, *, is_power: bool) -> None:
        """The process is gone, and with the power what was not synced."""
        self.is_up = False
        if self.starts and hasattr(self, "writer"):
            self.writer.die()
        for task in list(self._tasks):
            task.cancel()
        for state in self._opened:
            state.close()
        self._opened.clear()
        self.disk.close_all()
        if is_power:
            self.disk.forget()
        elif self.rng.random() < 0.3:
            self.disk.drop_caches()
        self.world.loop.call_later(self.rng.uniform(0.5, 10.0), self.start_checked)

    def start_checked(self) -> None:
        """`start`; what it finds wrong ends the world."""
        try:
            self.start()
        except ViolationError as error:
            self.world.fail(error)

    def _set_clock(self) -> None:
        self.clock.wrong_s = 0.0
        self.world.note("clock", "collector's is right")

    def _go_off(self, *, is_power: bool) -> None:
        if not self.disk.is_off:
            self.disk.is_off = True
            self.is_up = False
            self.world.loop.call_soon(lambda: self.crash(is_power=is_power))

    def _step(self, kind: str, what: str) -> None:
        world, rates = self.world, self.world.rates
        if self.disk.is_off:
            raise PowerCut
        world.note(kind, what)
        if kind == "unlink" and what.endswith(SUFFIX):
            self._check_segment(what)
        if world.is_calm:
            return
        dice = self.rng.random()
        if dice < rates.power + rates.kill:
            is_power = dice < rates.power
            world.note("power cut" if is_power else "kill", f"collector, before {kind} {what}")
            self._go_off(is_power=is_power)
            raise PowerCut
        if kind in ("write", "open") and self.rng.random() < rates.disk_full:
            world.note("no space", what)
            raise OSError(28, os.strerror(28), what)

    def _fails_sync(self) -> bool:
        fails = not self.world.is_calm and self.rng.random() < self.world.rates.sync_error
        if fails:
            self.world.note("EIO", "the sync fails, and its pages are forgotten")
        return fails

    def _check_segment(self, path: str) -> None:
        """With a segment go rows that the lake has in every case; or none that are acknowledged."""
        number = int(Path(path).stem)
        if number > self.catalogue.sealed:
            if keys_of_segment(self, number) & self.promised:
                self.world.fail(
                    ViolationError(f"segment {number} is deleted and the lake has not sealed it")
                )
            return
        for name, (segment, _, _) in self.catalogue.files.items():
            if segment <= number and keys_in(self.disk.durable(name) or b"") is None:
                self.world.fail(
                    ViolationError(f"segment {number} is deleted, and a power cut can take {name}")
                )

    def _watch_state(self, log: SegmentLog) -> None:
        writing = log.state.writing

        @contextmanager
        def watched() -> Iterator[Any]:
            with writing() as changes:
                yield changes
                self._step("transaction", "state file")
            self._step("transaction end", "state file")

        log.state.writing = watched  # type: ignore[method-assign]

    def _follow(self, tables: Mapping[str, Any]) -> None:
        self.world.maybe_no_memory("following")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.writer.keep_house()
            self.clock_check.evaluate()

    async def _seal(self) -> None:
        while True:
            await asyncio.sleep(self.sealer.look_s)
            self.world.note("seal", "looks")
            await self.sealer.seal_due()


def keys_of_segment(collector: Collector, number: int) -> set[Key]:
    """Keys of the rows of one segment."""
    store = collector.store
    with store.cursor() as cursor:
        tables = store._engine.register(cursor, ["events"], number - 1, number)  # type: ignore[arg-type]
    return set(keys_of(tables["events"]))


class WatchedSpool(Spool):
    """The product's spool; says what it takes and deletes."""

    world: "World"
    node: str
    keys: Mapping[int, Key]

    def acknowledge(self, sequence: int) -> bool:
        is_here = super().acknowledge(sequence)
        self.world.note("acknowledge", f"{self.node} {sequence}")
        key = self.keys[sequence]
        is_known = key in self.world.collector.promised or key in self.world.given_up
        if is_here and not is_known:
            self.world.fail(
                ViolationError(f"{self.node} forgets batch {sequence}, which is stored nowhere")
            )
        self.world.tally.acknowledged += is_here
        return is_here

    def refuse(self, sequence: int, reason: str) -> bool:
        self.world.fail(ViolationError(f"{self.node} discards batch {sequence}: {reason}"))
        return super().refuse(sequence, reason)


class Agent:
    """One agent's host: makes a batch sometimes, and ships them."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.node = f"node{number}"
        self.rng = random.Random(f"{world.seed} {self.node}")
        self.folder = world.folder / self.node
        self.folder.mkdir()
        self.clock = HostClock(world.loop)
        self.address = _ADDRESS
        self.boots = 1
        self.last_ms = 0
        self.keys: dict[int, Key] = {}
        """By sequence."""
        self.bytes_max = self.rng.choice((400, 1 << 20, 1 << 20))
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self) -> None:
        """Open the spool and begin to ship."""
        self.world.note("start", self.node)
        boot = f"{self.node}-boot-{self.boots}"
        self.spool = WatchedSpool(
            self.folder / SPOOL_FILE, bytes_max=self.bytes_max, clock=self.clock, boot=boot
        )
        self.spool.world, self.spool.node, self.spool.keys = self.world, self.node, self.keys
        if self.spool.set_aside is not None:
            self.world.fail(ViolationError(f"{self.node}: a power cut has damaged the spool"))
        self.sealed = asyncio.Event()
        shipper = Shipper(
            self.spool,
            _Worker(),  # type: ignore[arg-type]
            [self],  # type: ignore[list-item]
            clock=self.clock,
            counters=Counters(),
            sealed=self.sealed,
            on_refused=lambda reason: None,
            rng=self.rng,
            is_quiet=True,
        )
        self._tasks = [self.world.loop.create_task(work) for work in (shipper.run(), self._make())]

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        timeout_s: float,
        again: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Stand in for Transport.post, over a network that loses, delays and doubles."""
        world, rates, rng = self.world, self.world.rates, self.rng
        what = f"{self.node} {headers.get('Gpuwarden-Sequence', '')}"
        collector = world.collector
        async with asyncio.timeout(timeout_s):
            await asyncio.sleep(rng.expovariate(20.0))
            if not collector.is_up:
                world.note("refused", what)
                raise NoConnectionError("connection refused")
            if not world.is_calm and rng.random() < rates.lost:
                world.note("lost", what)
                await asyncio.sleep(timeout_s)
            if not world.is_calm and rng.random() < rates.doubled:
                world.loop.call_later(
                    rng.expovariate(0.2), self._arrive_again, {**headers, **(again or {})}, body
                )
            world.note("request", what)
            task = collector.spawn(collector.take(headers, body))
            await asyncio.wait({task})
            if task.cancelled() or task.exception() is not None:
                raise NoAnswerError("connection reset")
            if not world.is_calm and rng.random() < rates.unanswered:
                world.note("answer lost", what)
                await asyncio.sleep(timeout_s if rng.random() < 0.5 else 0.0)
                raise NoAnswerError("connection reset")
            await asyncio.sleep(rng.expovariate(20.0))
        world.note("answer", f"{what}: {task.result().status}")
        return task.result()

    def _arrive_again(self, headers: Mapping[str, str], body: bytes) -> None:
        if self.world.collector.is_up:
            self.world.note("request again", f"{self.node} {headers.get('Gpuwarden-Sequence', '')}")
            self.world.collector.spawn(self.world.collector.take(headers, body))

    async def _make(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1.0))
            if self.world.is_ending:
                await asyncio.sleep(_DAY_S)
            for _ in range(self.rng.choice((1, 1, 1, 6))):
                self.last_ms = max(self.last_ms + 1, to_ms(self.clock.now()))
                key = self.node, self.last_ms
                self.world.made.add(key)
                put: Put = self.spool.put(json.dumps(key).encode(), 1)
                self.world.note("put", f"{self.node} {put.sequence}")
                self.world.tally.put += 1
                self.world.tally.dropped += len(put.dropped)
                self.keys[put.sequence] = key
                # One that is on its way then is answered as one that will not come, and counts as dropped.
                self.world.given_up.update(self.keys[gone.sequence] for gone in put.dropped)
            self.sealed.set()
            dice, rates = self.rng.random(), self.world.rates
            if not self.world.is_calm and dice < rates.agent_kill + rates.agent_power:
                self.world.loop.call_soon(self.crash, dice < rates.agent_power)
                await asyncio.sleep(_DAY_S)

    def crash(self, is_power: bool) -> None:
        """The process is gone, and with the power any end of the spool's log that was not synced."""
        self.world.note("power cut" if is_power else "kill", self.node)
        for task in self._tasks:
            task.cancel()
        path = self.folder / SPOOL_FILE
        log = path.with_name(f"{SPOOL_FILE}-wal")
        kept = path.read_bytes(), log.read_bytes() if log.exists() else b""
        before = self.spool.count
        self.spool.close()
        if is_power:
            path.write_bytes(kept[0])
            log.write_bytes(kept[1][: self.rng.randint(0, len(kept[1]))])
            path.with_name(f"{SPOOL_FILE}-shm").unlink(missing_ok=True)
            self.boots += 1
        self.world.loop.call_later(self.rng.uniform(0.5, 20.0), self._again, before)

    def _again(self, before: int) -> None:
        self.start()
        self.world.tally.unsynced += max(0, before - self.spool.count)

    def stop(self) -> None:
        """The end of the world."""
        for task in self._tasks:
            task.cancel()
        with suppress(Exception):
            self.spool.close()


class World:
    """Everything, for one seed."""

    def __init__(self, seed: int, folder: Path, rates: Rates, agents: int = 3) -> None:
        self.seed = seed
        self.folder = folder
        self.rates = rates
        self.rng = random.Random(f"{seed} world")
        self.loop = VirtualLoop()
        self.tally = Tally()
        self.events: deque[str] = deque(maxlen=KEPT_EVENTS)
        self.made: set[Key] = set()
        self.given_up: set[Key] = set()
        """By a spool that was full, before they were acknowledged."""
        self.is_calm = False
        self.is_ending = False
        self._failed: ViolationError | None = None
        self._stop = asyncio.Event()
        self._steps_max = 0
        self.collector = Collector(self)
        self.agents = [Agent(self, n) for n in range(agents)]

    def note(self, kind: str, what: str) -> None:
        """One step was taken."""
        self.tally.steps[kind] += 1
        self.events.append(f"{self.loop.time():10.3f} {kind:16} {what}")
        self._steps_max -= 1
        if self._steps_max == 0:
            self._stop.set()

    def fail(self, violation: ViolationError) -> None:
        """End the world."""
        self._failed = self._failed or violation
        self._stop.set()

    def maybe_no_memory(self, doing: str) -> None:
        """Raises MemoryError sometimes."""
        if not self.is_calm and self.collector.rng.random() < self.rates.memory:
            self.note("no memory", doing)
            raise MemoryError

    def run(self, steps: int) -> Tally:
        """Take so many steps, and then let all arrive without faults. Raises ViolationError."""
        self._steps_max = steps
        self.loop.set_exception_handler(self._take_error)
        with self._patched():
            try:
                self.loop.run_until_complete(self._live())
            finally:
                self._end()
        self.tally.sealed_segments = self.collector.catalogue.sealed
        return self.tally

    def _take_error(self, loop: Any, context: dict[str, Any]) -> None:
        if "exception" in context:
            self.fail(ViolationError(f"{context['message']}: {context['exception']!r}"))

    async def _live(self) -> None:
        self.collector.start_checked()
        for agent in self.agents:
            agent.start()
        await self._stop.wait()
        self.is_calm = self.is_ending = True
        self.note("calm", "no more faults")
        deadline = self.loop.time() + 3_600
        while self._failed is None and self.loop.time() < deadline:
            await asyncio.sleep(5.0)
            if self.collector.is_up and not any(agent.spool.count for agent in self.agents):
                break
        else:
            self.fail(ViolationError("an hour without faults, and batches still wait"))
        if self._failed is None:
            await self.collector.sealer.run_once(is_forced=True)
            self.collector.check()
        if self._failed is not None:
            raise self._failed

    def _end(self) -> None:
        for agent in self.agents:
            agent.stop()
        self.collector.disk.is_off = True
        self.collector.crash(is_power=False)
        for _ in range(10):  # what was cancelled ends
            self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    @contextmanager
    def _patched(self) -> Iterator[None]:
        rng = random.Random(f"{self.seed} names")
        plan = writer_module.plan

        def planned(*args: Any) -> Any:
            self.maybe_no_memory("planning")
            return plan(*args)

        with ExitStack() as patches:
            for patch in (
                mock.patch("os.urandom", rng.randbytes),
                mock.patch("secrets.randbits", rng.getrandbits),
                mock.patch(
                    "gpuwarden_collector.storage.state.uuid4",
                    lambda: UUID(int=rng.getrandbits(128)),
                ),
                mock.patch.object(Reserve, "hold", lambda self: True),
                mock.patch.object(writer_module, "plan", planned),
            ):
                patches.enter_context(patch)
            patches.enter_context(Disks([self.collector.disk]).watching())
            level = logging.root.manager.disable
            logging.disable(logging.CRITICAL)
            patches.callback(logging.disable, level)
            yield


_EVENT = WIRE_SCHEMAS["events"]
_REST = {"simulated": False, "kind": "xid", "severity": "info", "message": "a row"}
_COLUMNS = {f.name: pa.array([_REST.get(f.name)], f.type) for f in _EVENT}


def event_table(node: str, at_ms: int) -> Any:
    """A batch of one row of `events`."""
    columns = {
        **_COLUMNS,
        "ts": pa.array([at_ms], pa.int64()).cast(_EVENT.field("ts").type),
        "node": pa.array([node]),
    }
    return pa.Table.from_arrays(list(columns.values()), schema=_EVENT)
