"""Rollups equal one aggregation over all samples, however those come and whatever dies meanwhile."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import move
from tests.collector.rollup_reference import Row, hours_of, rolled_up
from tests.collector.rollup_samples import assert_same, samples, tables_of

from gpuwarden.clock import ManualClock
from gpuwarden.idleness import IDLE_1M, INSTANTS, Idleness, Minute, advanced, minutes_sql
from gpuwarden.rollups import GPU_1H, GPU_1M, HOST_1M, PROCESS_1M
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage import rollup_schedule
from gpuwarden_collector.storage.commit import Changes
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.rollup import ROLLUP_TABLES, Progress, doubles, mend
from gpuwarden_collector.storage.rollup_schedule import (
    LATE_LEAST,
    LATE_MAX,
    MEND_S,
    Close,
    Mend,
    Roller,
    RollHour,
    RollMinutes,
    closed_until,
    next_late_count,
    next_step,
)
from gpuwarden_collector.storage.seal import LATE_WAIT_S, Sealer, SealPolicy
from gpuwarden_collector.storage.views import hot_table

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
DUE = datetime(2026, 3, 1, 11, 58)  # noqa: DTZ001  naive UTC, as DuckDB has it
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.mark.parametrize(
    ("progress", "announced", "mend_number", "step"),
    [
        (Progress(), None, 0, Close(DUE)),
        (Progress(DUE - MINUTE, DUE - MINUTE), None, 0, Close(DUE)),
        (Progress(DUE + HOUR, DUE), None, 0, Close(DUE + HOUR)),
        (Progress(DUE, DUE - MINUTE), DUE - MINUTE, 0, Close(DUE)),
        (Progress(DUE), DUE, 0, RollMinutes()),
        (Progress(DUE, DUE - MINUTE, DUE - HOUR), DUE, 0, RollMinutes()),
        (Progress(DUE, DUE, DUE.replace(minute=0) - HOUR), DUE, 0, RollHour()),
        (Progress(DUE, DUE, DUE.replace(minute=0)), DUE, 0, None),
        (Progress(DUE, DUE, DUE.replace(minute=0), 9, 3), DUE, 5, Mend(5)),
        (Progress(DUE, DUE, DUE.replace(minute=0), 9, 1), DUE, 5, Mend(5)),
        (Progress(DUE, DUE, DUE.replace(minute=0), 9, 5), DUE, 5, Mend(5)),
        (Progress(DUE, DUE, DUE.replace(minute=0), 9, 6), DUE, 5, None),
        (Progress(DUE, DUE, None, 9, 6), DUE, 9, Mend(9)),
    ],
)
def test_minutes_come_before_hours_and_late_windows_last(
    progress: Progress, announced: datetime | None, mend_number: int, step: object
) -> None:
    assert next_step(progress, announced, mend_number, NOW) == step


def test_a_minute_closes_when_its_grace_is_over() -> None:
    assert closed_until(NOW) == DUE
    assert closed_until(NOW + timedelta(seconds=29)) == DUE
    assert closed_until(NOW + timedelta(seconds=30)) == DUE + MINUTE


@pytest.mark.parametrize(
    ("count", "taken", "took_s", "wanted"),
    [
        (1_000, 1_000, MEND_S / 4, 2_000),
        (1_000, 999, MEND_S / 4, 1_000),  # fewer were late
        (1_000, 1_000, MEND_S * 0.9, 1_000),
        (1_000, 1_000, MEND_S * 4, 250),
        (1_000, 400, MEND_S * 4, 100),
        (LATE_LEAST, LATE_LEAST, MEND_S * 4, LATE_LEAST),
        (LATE_MAX, LATE_MAX, 0.0, LATE_MAX),
    ],
)
def test_as_many_late_windows_are_computed_at_once_as_take_a_few_seconds(
    count: int, taken: int, took_s: float, wanted: int
) -> None:
    assert next_late_count(count, taken, took_s) == wanted


class Killed(BaseException):
    """The process dies here."""


class DyingCursor:
    """A cursor with which the process dies at a statement."""

    def __init__(self, cursor: Any, statements: list[int]) -> None:
        self._cursor = cursor
        self._left = statements

    def execute(self, *arguments: Any) -> Any:
        self._left[0] -= 1
        if self._left[0] == 0:
            raise Killed
        return self._cursor.execute(*arguments)

    def register(self, *arguments: Any) -> Any:
        return self._cursor.register(*arguments)


class DyingDatabase:
    """A database whose maintenance dies at a statement; what a transaction has not committed is
    undone, as by a kill."""

    def __init__(self, database: Database, statement: int) -> None:
        self._database = database
        self._left = [statement]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def maintaining(self, *arguments: Any) -> Iterator[Any]:
        with self._database.maintaining(*arguments) as cursor:
            yield DyingCursor(cursor, self._left)


class Fleet:
    """A collector that gets samples, rolls up, seals and dies on command."""

    def __init__(self, database: Database, clock: ManualClock, start: datetime) -> None:
        self.database = database
        self.clock = clock
        self.start = start
        self.sent: dict[str, list[Row]] = {}
        self._sequence = 0

    async def run(self, actions: list[Any]) -> None:
        """Take actions: a list of rows to store, seconds to pass, or what to do."""
        for action in actions:
            if isinstance(action, list):
                await self.store(action)
            elif isinstance(action, tuple):
                kind, number = action
                if kind == "pass":
                    self.clock.advance(number)
                elif kind == "seal":
                    await self._with(lambda writer, stats: self._seal(writer, stats))
                else:
                    await self.roll(dying_at=number if kind == "die" else None)

    async def store(self, rows: list[tuple[str, Row]]) -> None:
        tables = tables_of(rows, self.start)
        for name, table in tables.items():
            self.sent.setdefault(name, []).extend(table.to_pylist())
        self._sequence += 1
        batch = Batch(BatchId(str(self.start), "boot", self._sequence, 0), Decoded.of(tables, 1000))
        await self._with(lambda writer, stats: writer.store(batch))

    async def roll(self, dying_at: int | None = None) -> Stats:
        async def rolled(writer: Writer, stats: Stats) -> Stats:
            database: Any = self.database
            if dying_at is not None:
                database = DyingDatabase(database, dying_at)
            roller = Roller(database, writer, stats, self.clock, self._sealer(writer, stats))
            with suppress(Killed):
                await roller.run_once()
            return stats

        result: Stats = await self._with(rolled)
        return result

    def _sealer(self, writer: Writer, stats: Stats) -> Sealer:
        return Sealer(self.database, writer, stats, self.clock, SealPolicy(1e9, 1 << 40))

    async def _seal(self, writer: Writer, stats: Stats) -> None:
        await self._sealer(writer, stats).run_once(is_forced=True)

    async def _with(self, work: Callable[[Writer, Stats], Any]) -> Any:
        """Each time a new writer, which knows what the database says."""
        stats = Stats()
        known = load_known(self.database, self.clock.now())
        writer = Writer(self.database, known, stats, self.clock, commit_interval_s=0.001)
        writer.start()
        try:
            return await work(writer, stats)
        finally:
            await writer.stop()

    def read(self, name: str) -> list[Row]:
        begin = self.start.replace(tzinfo=None, minute=0, second=0)
        with self.database.reading() as cursor:
            table = cursor.execute(
                f"FROM {name} WHERE ts >= $1 AND ts < $2", [begin, begin + 12 * HOUR]
            ).to_arrow_table()
        rows: list[Row] = table.to_pylist()
        return rows

    def check(self) -> None:
        for rollup in (GPU_1M, HOST_1M, PROCESS_1M):
            rows = self.read(rollup.table.name)
            assert_same(rows, rolled_up(rollup, self.sent), rollup.table.key)
        minutes = self.read("gpu_1m")
        assert_same(self.read("gpu_1h"), hours_of(GPU_1H, minutes), GPU_1H.table.key)
        self.check_idleness()

    def check_idleness(self) -> None:
        """Idleness is that of all minutes, one after the other."""
        begin = self.start.replace(tzinfo=None, minute=0, second=0)
        with self.database.reading() as cursor:
            chosen = [
                f"(FROM {name} WHERE ts >= '{begin}' AND ts < '{begin + 12 * HOUR}')"
                for name in ("gpu_1m", "process_1m", "allocation_samples", "idle_1m")
            ]
            minutes = cursor.execute(minutes_sql(*chosen[:3])).fetchall()
            columns = ", ".join(f"epoch_us({n})" if n in INSTANTS else n for n in IDLE_1M.names)
            stored = cursor.execute(f"SELECT {columns} FROM {chosen[3]} ORDER BY 1, 2, 3")
            rows = [Idleness._make(row) for row in stored.fetchall()]
        wanted, _ = advanced({}, map(Minute._make, minutes))
        assert len(rows) == len(wanted)
        for row, one in zip(rows, sorted(wanted, key=lambda row: row[:3]), strict=True):
            assert row == one


@pytest.fixture
def fleet(database: Database, clock: ManualClock) -> Fleet:
    return Fleet(database, clock, clock.now())


@pytest.fixture
def late_fleet(database: Database, clock: ManualClock) -> Fleet:
    """It begins near the end of an hour, which is over after few minutes."""
    clock.advance(3_360)
    return Fleet(database, clock, clock.now())


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Samples in batches, in any order, and what happens between them."""
    rows = draw(samples(most=25))
    random.Random(draw(st.integers(0, 99))).shuffle(rows)
    actions: list[Any] = []
    while rows:
        count = draw(st.integers(1, 8))
        actions.append(rows[:count])
        rows = rows[count:]
        between = st.one_of(
            st.tuples(st.just("pass"), st.sampled_from([60.0, 200.0, 1000.0])),
            st.tuples(st.just("die"), st.integers(1, 40)),
            st.just(("roll", 0)),
            st.just(("seal", 0)),
        )
        actions += draw(st.lists(between, max_size=3))
    return actions


@pytest.mark.slow
@given(histories())
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_rollups_equal_one_aggregation_whatever_happened(
    database: Database, clock: ManualClock, actions: list[Any]
) -> None:
    """Each example has a day of its own in the same store, and one between, after which idleness is forgotten."""
    clock.advance(2 * 86_400)
    fleet = Fleet(database, clock, clock.now())

    async def live() -> None:
        end = [("pass", 7200.0), ("roll", 0), ("seal", 0), ("roll", 0)]
        await fleet.run([*actions, *end])

    asyncio.run(live())
    fleet.check()


@st.composite
def idle_histories(draw: st.DrawFn) -> list[Any]:
    """Two hours of a GPU that idles, works, and is away for a while, a sample a minute, much of which comes late."""
    rows: list[tuple[str, Row]] = []
    identity = {"node": "a", "gpu": 0, "gpu_uuid": "a0", "simulated": True}
    minute, joules = 0, 0.0
    while minute < 100:
        util, away, watts = draw(
            st.sampled_from(
                [(0.0, False, 70.0), (0.0, True, 70.0), (90.0, False, 600.0), (None, False, None)]
            )
        )
        count = draw(st.sampled_from([1, 2, 7, 33]))
        used = draw(st.sampled_from([None, 1 << 20, 1 << 34]))
        for at in range(minute, minute + count):
            joules += 60 * (watts or 0.0)
            reading = {
                "util_percent": util,
                "power_watts": watts,
                "energy_joules_total": joules if watts else None,
                "memory_used_bytes": used,
            }
            if not away:
                rows.append(("gpu_samples", identity | {"ts": 60 * at} | reading))
        minute += count
        joules *= draw(st.sampled_from([1, 1, 1, 0]))
    actions: list[Any] = []
    late = []
    while rows:
        count = draw(st.integers(1, 40))
        batch, rows = rows[:count], rows[count:]
        if draw(st.booleans()):
            late.append(batch)
        else:
            actions.append(batch)
        actions.append(("pass", 60.0 * count))
        actions += draw(
            st.lists(
                st.sampled_from([("roll", 0), ("seal", 0), ("die", 9), ("die", 30)]), max_size=3
            )
        )
        if late and draw(st.booleans()):
            actions.append(late.pop(0))
    return [*actions, *late]


@pytest.mark.slow
@given(idle_histories())
@settings(
    max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
def test_idleness_is_that_of_all_minutes_whatever_came_late_and_whatever_died(
    database: Database, clock: ManualClock, actions: list[Any]
) -> None:
    clock.advance(3 * 86_400 - clock.now().timestamp() % 86_400)
    fleet = Fleet(database, clock, clock.now())
    end = [
        ("roll", 0),
        ("seal", 0),
        ("roll", 0),
        ("pass", 7200.0),
        ("roll", 0),
        ("seal", 0),
        ("roll", 0),
    ]
    asyncio.run(fleet.run([*actions, *end]))
    fleet.check()


def gpu_rows(seconds: range, *, node: str = "a", joules: int = 300) -> list[tuple[str, Row]]:
    identity = {"node": node, "gpu": 0, "gpu_uuid": f"{node}0", "simulated": True}
    return [
        (
            "gpu_samples",
            identity | {"ts": s, "util_percent": 50.0, "energy_joules_total": float(joules * s)},
        )
        for s in seconds
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_late_rows_change_their_window_and_the_next_wherever_it_is(
    fleet: Fleet, is_sealed: bool
) -> None:
    await fleet.store(gpu_rows(range(30)) + gpu_rows(range(90, 120)) + gpu_rows(range(9), node="b"))
    await fleet.run([("pass", 7200.0), ("roll", 0)])
    assert sum(row["energy_joules_delta"] for row in fleet.read("gpu_1m")) == (119 + 8) * 300
    if is_sealed:
        await fleet.run([("seal", 0)])
    await fleet.store(gpu_rows(range(30, 60)) + gpu_rows(range(200, 210), node="c"))
    before = fleet.read("gpu_1m")
    if not is_sealed:
        assert (await fleet.roll()).mended_windows == 0, "what is hot is not replaced"
        await fleet.run([("seal", 0)])
    stats = await fleet.roll()
    assert before != fleet.read("gpu_1m")
    assert stats.mended_windows == 8
    fleet.check()
    assert (await fleet.roll()).mended_windows == 0


@pytest.mark.slow
async def test_a_window_whose_samples_were_dropped_stays_as_it_is(fleet: Fleet) -> None:
    await fleet.store(gpu_rows(range(60)))
    await fleet.run([("pass", 7200.0), ("roll", 0), ("seal", 0)])
    before = fleet.read("gpu_1m")
    with fleet.database.maintaining() as cursor:
        metadata = "__ducklake_metadata_lake"
        cursor.execute(
            f"CREATE TABLE {metadata}.gpuwarden_dropped (table_name VARCHAR, day DATE, "
            '"rows" BIGINT, bytes BIGINT, reason VARCHAR, dropped_at TIMESTAMP)'
        )
        cursor.execute(
            f"INSERT INTO {metadata}.gpuwarden_dropped VALUES ('gpu_samples', $1, 60, 1, 'age', $2)",
            [fleet.start.date(), fleet.clock.now().replace(tzinfo=None)],
        )
    await fleet.store(gpu_rows(range(10), node="b"))
    stats = await fleet.roll()
    assert (stats.mended_windows, stats.unmended_windows) == (0, 1)
    assert fleet.read("gpu_1m") == before
    # What comes after the drop has all its samples.
    await fleet.store(gpu_rows(range(7800, 7860)))
    await fleet.run([("pass", 1000.0), ("roll", 0)])
    await fleet.store(gpu_rows(range(7860, 7870), node="b"))
    await fleet.run([("seal", 0)])
    assert (await fleet.roll()).mended_windows > 0
    assert len(fleet.read("gpu_1m")) == 3


Rolling = Callable[[], AbstractAsyncContextManager[Roller]]


@pytest.fixture
def rolling(database: Database, clock: ManualClock) -> Rolling:
    @asynccontextmanager
    async def running() -> AsyncIterator[Roller]:
        stats = Stats()
        writer = Writer(
            database, load_known(database, clock.now()), stats, clock, commit_interval_s=0.001
        )
        writer.start()
        sealer = Sealer(database, writer, stats, clock, SealPolicy(1e9, 1 << 40))
        roller = Roller(database, writer, stats, clock, sealer)
        try:
            yield roller
        finally:
            await roller.stop()
            await writer.stop()

    return running


@pytest.mark.slow
async def test_windows_that_wait_for_their_seal_have_it_come_sooner(
    rolling: Rolling, fleet: Fleet
) -> None:
    await fleet.store(gpu_rows(range(60)))
    await fleet.run([("pass", 7200.0), ("roll", 0)])
    await fleet.store(gpu_rows(range(60), node="b"))
    async with rolling() as roller:
        assert not roller._sealer.is_late_waiting
        await roller.run_once()
        assert roller._sealer.is_late_waiting
        assert await roller._sealer.run_once() == 0, "not due"
        fleet.clock.advance(LATE_WAIT_S)
        assert await roller._sealer.run_once() > 0
        assert not roller._sealer.is_late_waiting
        await roller.run_once()
        assert roller._stats.mended_windows > 0
    fleet.check()


@pytest.mark.slow
async def test_seals_go_between_late_windows_and_too_many_become_fewer(
    rolling: Rolling, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours of two nodes are late; a step fails at first, as it does without memory, and all are slow."""
    await fleet.store(gpu_rows(range(60), node="c"))
    await fleet.run([("pass", 10_000.0), ("roll", 0), ("seal", 0)])
    late = [row for node in "ab" for row in gpu_rows(range(0, 7_200, 20), node=node)]
    await fleet.store(late)
    await fleet.run([("seal", 0)])
    taken: list[int] = []

    def slow(cursor: Any, windows: Any, *more: Any) -> Any:
        taken.append(windows.num_rows)
        if len(taken) == 1:
            raise StoreUnavailableError("out of memory")
        fleet.clock.advance(2 * MEND_S)
        return mend(cursor, windows, *more)

    monkeypatch.setattr(rollup_schedule, "mend", slow)
    monkeypatch.setattr(rollup_schedule, "LATE_FIRST", 2 * LATE_LEAST)
    async with rolling() as roller:
        await roller.roll_due()
        assert roller._stats.rollup_failures == 1
        turns = []

        async def seal() -> None:
            """As the sealer does: ask for the turn sometimes."""
            while sum(taken[1:]) < 4 * 60:
                async with roller._sealer.turn:
                    turns.append(len(taken))
                await asyncio.sleep(0)

        await asyncio.gather(roller.run_once(), seal())
    assert taken == [2 * LATE_LEAST, *[LATE_LEAST] * 4]
    assert set(turns) >= {2, 3, 4, 5}, "after each of the steps"
    fleet.check()


@pytest.mark.slow
async def test_what_two_collectors_rolled_up_is_rolled_up_once(fleet: Fleet) -> None:
    """Another one that shares the lake has samples of the same node, and its own rollup of them."""
    await fleet.store(gpu_rows(range(70)))
    await fleet.run([("pass", 7200.0), ("roll", 0)])
    others = tables_of(gpu_rows(range(70, 120)), fleet.start)["gpu_samples"]
    fleet.sent["gpu_samples"] += others.to_pylist()
    with fleet.database.maintaining(ROLLUP_TABLES) as cursor:
        cursor.register("others", others)
        cursor.execute("INSERT INTO lake.main.gpu_samples BY NAME FROM others")
        for name in ("gpu_1m", "gpu_1h"):
            cursor.execute(f"INSERT INTO lake.main.{name} FROM {hot_table(name)}")
    with pytest.raises(AssertionError, match="twice"):
        fleet.check()

    async def sealed(writer: Writer, stats: Stats) -> None:
        await writer.freeze()
        (segment,) = fleet.database.frozen
        move(fleet.database, segment)
        with fleet.database.maintaining(ROLLUP_TABLES, after=0, until=segment) as cursor:
            await writer.write(Changes(late=doubles(cursor)))
        await fleet._sealer(writer, stats).run_once()
        with fleet.database.maintaining(ROLLUP_TABLES) as cursor:
            assert doubles(cursor) is None

    await fleet._with(sealed)
    await fleet.roll()
    fleet.check()


@pytest.mark.slow
async def test_a_clock_that_leaps_ahead_and_back_changes_nothing(fleet: Fleet) -> None:
    await fleet.store(gpu_rows(range(60)))
    await fleet.run([("pass", 10 * 365 * 86_400.0), ("roll", 0)])
    fleet.clock = ManualClock(fleet.start + timedelta(minutes=5))
    await fleet.store(gpu_rows(range(60, 200)))
    await fleet.run([("seal", 0), ("roll", 0)])
    fleet.check()


async def test_a_stop_ends_what_runs(rolling: Rolling, late_fleet: Fleet) -> None:
    await late_fleet.store(gpu_rows(range(240)))
    late_fleet.clock.advance(600)
    async with rolling() as roller:
        running = asyncio.ensure_future(roller.roll_due())
        await asyncio.sleep(0)
    await running
    await late_fleet.roll()
    late_fleet.check()


async def test_a_failure_is_counted_and_made_up_for(
    late_fleet: Fleet, files_of_at_most: Any, rolling: Rolling
) -> None:
    await late_fleet.store(gpu_rows(range(60)))
    late_fleet.clock.advance(600)
    async with rolling() as roller:
        with files_of_at_most(100):
            await roller.roll_due()
        assert roller._stats.rollup_failures == 1
        await roller.roll_due()
    late_fleet.check()
