"""Metrics of the collector reach a receiver as samples of whole minutes, with the values of PromQL."""

import asyncio
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prometheus.test_collector_metrics import answer, put

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.collector_metrics import MINUTE_MS, SOURCES
from gpuwarden.query import QueryError
from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_collector.forwarding.minutes import MinuteFile, begin_minutes, minutes_folder
from gpuwarden_collector.forwarding.port import ReceiverState
from gpuwarden_prometheus.remote_write.bodies import BodyEncoder
from gpuwarden_prometheus.remote_write.computed import (
    COMPUTED_KINDS,
    chosen_sources,
)
from gpuwarden_prometheus.remote_write.delivery import Reply, RequestDelivery
from gpuwarden_prometheus.remote_write.messages import STALE_NAN_BITS, decode
from gpuwarden_prometheus.remote_write.minutes import (
    AHEAD_MS,
    CATCH_UP_MS,
    MINUTES_MAX,
    MinuteSender,
    MinuteTimes,
    SourceQueries,
    next_span,
)
from gpuwarden_prometheus.remote_write.settings import RemoteReceiver

NOW = datetime.now(UTC).replace(second=0, microsecond=0)
FIRST_MS = to_ms(NOW) - 40 * MINUTE_MS
MINUTE = timedelta(minutes=1)

Labels = frozenset[tuple[str, str]]


def store() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    for table in TABLES.values():
        connection.execute(create_sql(table).replace(" NOT NULL", ""))
    connection.execute(views_sql())
    return connection


@pytest.fixture(scope="module")
def fleet() -> Iterator[duckdb.DuckDBPyConnection]:
    """States that begin and end within the last 40 minutes, and rows of each minute."""
    connection = store()
    gpu = {"node": "n", "gpu": 3, "gpu_uuid": "G"}
    for hours, label, username in ((0, "busy", "anna"), (1, "busy", "anna"), (1, "free", None)):
        ts = NOW.replace(minute=0) - timedelta(hours=hours)
        put(connection, "waste_1h", ts=ts, label=label, username=username, slurm_job_id="7", seconds=1800.0, usd=3.0, model="H100", **gpu)  # fmt: skip
    for ago in range(40):
        at = NOW - ago * MINUTE
        put(
            connection,
            "collector_samples",
            ts=at,
            collector="c",
            host="h",
            version="1",
            batches=ago,
        )
        if ago % 7 == 0:
            continue  # missing minutes
        put(connection, "coverage", ts=at, probe="gpu0", table_name="gpu_samples", expected=60, taken=50 + ago % 9, **gpu)  # fmt: skip
        put(connection, "gpu_1m", ts=at, idle_seconds=ago * 1.0, busy_seconds=60.0 - ago, **gpu)
        if ago > 20:
            put(connection, "allocation_samples", ts=at - timedelta(seconds=7), scheduler="slurm", owner="7", username="anna", slurm_job_id="7", **gpu)  # fmt: skip
    for began, ended in ((35.5, 30.0), (20.2, 12.7), (5.0, None)):
        ended_at = None if ended is None else NOW - ended * MINUTE
        put(connection, "alerts", fingerprint="f", rule="gpu_hot", severity="warning", labels="{}", active_at=NOW - began * MINUTE, fired_at=NOW - (began - 2) * MINUTE, resolved_at=ended_at, **gpu)  # fmt: skip
        put(connection, "incidents", id=f"i{began}", rule="gpu_hot", severity="warning", opened_at=NOW - began * MINUTE, resolved_at=ended_at, usd_per_hour=2.5)  # fmt: skip
        put(connection, "diagnoses", subject="G", kind="gpu", bottleneck="data_loader", confidence=0.9, stall=began / 100, node="n", gpu=3, began_at=NOW - began * MINUTE, ended_at=ended_at)  # fmt: skip
    yield connection
    connection.close()


def rows_of(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    return connection.execute(sql).to_arrow_table()


class Received:
    """A receiver that keeps samples, and knows what Prometheus' instant query would answer."""

    def __init__(self) -> None:
        self.samples: dict[Labels, dict[int, float | None]] = {}
        """None: a staleness marker."""

    async def __call__(self, body: bytes) -> Reply:
        for one in decode(1, body, 1 << 26).timeseries:
            labels = frozenset((label.name, label.value) for label in one.labels)
            kept = self.samples.setdefault(labels, {})
            for sample in one.samples:
                assert sample.timestamp >= max(kept, default=0), "in order of time"
                kept[sample.timestamp] = None if is_stale(sample.value) else sample.value
        return Reply(204)

    def at(self, ms: int) -> dict[Labels, float]:
        """Series with a value at this minute."""
        newest = {
            labels: max(((t, v) for t, v in kept.items() if t <= ms), default=(0, None))
            for labels, kept in self.samples.items()
        }
        return {labels: v for labels, (_, v) in newest.items() if v is not None}


def is_stale(value: float) -> bool:
    return struct.unpack("<Q", struct.pack("<d", value))[0] == STALE_NAN_BITS


def wanted_at(connection: duckdb.DuckDBPyConnection, source: str, ms: int) -> dict[Labels, float]:
    """The answers of PromQL for the metrics of a source."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return {
        frozenset(labels.items()): value
        for metric in SOURCES[source].metrics
        for labels, value in answer(connection, metric.name, at)
    }


class Context:
    """Implements `ForwardingContext` for minutes."""

    def __init__(
        self, folder: Path, connection: duckdb.DuckDBPyConnection, clock: ManualClock
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.started_at = clock.now() - timedelta(days=3)
        self.states = {"r": ReceiverState()}
        self.settings = (RECEIVER,)
        self.asked: list[str] = []
        self.failures: list[str] = []
        self._connection = connection

    def minutes(self, name: str, source: str) -> MinuteFile:
        return MinuteFile(minutes_folder(self.folder, name) / f"{source}.json", FIRST_MS)

    async def query(self, sql: str) -> Any:
        self.asked.append(sql)
        if self.failures:
            raise QueryError(self.failures.pop())
        return rows_of(self._connection, sql)

    def feed(self, name: str, tables: frozenset[str]) -> Any:
        raise AssertionError

    def inventory(self, name: str) -> Sequence[Mapping[str, Any]]:
        raise AssertionError


RECEIVER = RemoteReceiver("r", "http://r.example/write")


def sender_of(context: Context, post: Any, receiver: RemoteReceiver = RECEIVER) -> MinuteSender:
    begin_minutes(context.folder, ["r"])
    encoder = BodyEncoder(1, COMPUTED_KINDS)
    sent = RequestDelivery(receiver, post, encoder, context.states["r"], context.clock)
    return MinuteSender(receiver, context, SourceQueries(context, 1), sent)


def drain(sender: MinuteSender) -> None:
    async def run() -> None:
        while await sender.turn():
            pass

    asyncio.run(run())


def test_each_minute_is_what_promql_answers(tmp_path: Path, fleet: Any) -> None:
    context, received = Context(tmp_path, fleet, ManualClock(NOW)), Received()
    drain(sender_of(context, received))
    for source in SOURCES:
        last_ms = context.minutes("r", source).position_ms
        assert last_ms >= FIRST_MS + 35 * MINUTE_MS
        names = {metric.name for metric in SOURCES[source].metrics}
        values = 0
        for ms in range(FIRST_MS + MINUTE_MS, last_ms + 1, 5 * MINUTE_MS):
            found = {k: v for k, v in received.at(ms).items() if dict(k)["__name__"] in names}
            assert found == pytest.approx(wanted_at(fleet, source, ms)), (source, ms)
            values += len(found)
        assert values > 3, source


def test_series_end_also_when_the_process_was_killed_between(tmp_path: Path, fleet: Any) -> None:
    receiver = RemoteReceiver("r", "http://r", names=("collector",), metrics=("ALERTS",))
    received, clock = Received(), ManualClock(NOW - 38 * MINUTE)
    for _ in range(19):
        clock.advance(120)
        context = Context(tmp_path, fleet, clock)
        drain(sender_of(context, received, receiver))  # a new process
    last_ms = context.minutes("r", "alerts_metrics").position_ms
    states = []
    for ms in range(FIRST_MS + MINUTE_MS, last_ms + 1, MINUTE_MS):
        assert received.at(ms) == wanted_at(fleet, "alerts_metrics", ms)
        states.append([dict(labels)["alertstate"] for labels in received.at(ms)])
    changes = [state for state, _ in itertools.groupby(states)]
    assert changes == [[], ["pending"], ["firing"]] * 3


def test_only_wanted_metrics_come_and_with_the_receivers_labels(tmp_path: Path, fleet: Any) -> None:
    receiver = RemoteReceiver(
        "r", "http://r.example/write", names=("collector",), metrics=("gpuwarden_gpu_idle_*",),
        labels={"cluster": "c", "node": "m"},
    )  # fmt: skip
    assert receiver.sources == ("gpu_minutes_metrics",)
    context, received = Context(tmp_path, fleet, ManualClock(NOW)), Received()
    drain(sender_of(context, received, receiver))
    (labels,) = received.samples
    assert dict(labels) == {
        "__name__": "gpuwarden_gpu_idle_seconds", "cluster": "c", "node": "m", "gpu": "3", "gpu_uuid": "G",
    }  # fmt: skip
    assert RemoteReceiver("r", "http://r", names=("own",)).sources == ()
    assert chosen_sources(lambda name: name == "ALERTS") == ("alerts_metrics",)


def test_a_receiver_that_is_away_gets_all_minutes_later(tmp_path: Path, fleet: Any) -> None:
    """A run is killed while it waits for the receiver; the next one repeats these minutes."""
    received = Received()
    receiver = RemoteReceiver("r", "http://r", metrics=("gpuwarden_waste_time_ratio",))

    async def away(body: bytes) -> Reply:
        raise asyncio.CancelledError  # as a kill

    clock = ManualClock(NOW - 20 * MINUTE)
    with pytest.raises(asyncio.CancelledError):
        drain(sender_of(Context(tmp_path, fleet, clock), away, receiver))
    context = Context(tmp_path, fleet, clock)
    first = context.minutes("r", "waste_metrics")
    assert (first.position_ms, first.sending_ms) == (FIRST_MS, FIRST_MS + MINUTES_MAX * MINUTE_MS)
    clock.advance(20 * 60)
    drain(sender_of(context, received, receiver))
    times = {t for kept in received.samples.values() for t in kept}
    last_ms = context.minutes("r", "waste_metrics").position_ms
    assert times == {*range(FIRST_MS + MINUTE_MS, last_ms + 1, MINUTE_MS)}
    assert not context.states["r"].skipped_minutes


def test_a_query_that_fails_is_repeated_with_fewer_minutes_and_holds_up_no_other(
    tmp_path: Path, fleet: Any
) -> None:
    context = Context(tmp_path, fleet, ManualClock(NOW))
    metrics = ("ALERTS", "gpuwarden_job_*")
    sender = sender_of(context, Received(), RemoteReceiver("r", "http://r", metrics=metrics))
    context.failures = ["it took too long"]
    asyncio.run(sender.turn())
    assert context.minutes("r", "jobs_metrics").position_ms == FIRST_MS
    assert context.minutes("r", "alerts_metrics").position_ms > FIRST_MS
    sender.note_state()
    state = context.states["r"]
    assert state.query_problem == "jobs_metrics cannot be queried: it took too long"
    assert state.minutes_waiting_s > 30 * 60
    context.clock.advance(60)
    asyncio.run(sender.turn())
    assert context.minutes("r", "jobs_metrics").position_ms == FIRST_MS + MINUTE_MS
    drain(sender)
    sender.note_state()
    assert state.query_problem is None
    assert state.minutes_waiting_s == 0


def test_minutes_that_the_receiver_refuses_as_too_old_are_counted_and_not_repeated(
    tmp_path: Path, fleet: Any
) -> None:
    oldest_ms = FIRST_MS + 23 * MINUTE_MS
    received, requests = Received(), 0

    async def post(body: bytes) -> Reply:
        nonlocal requests
        requests += 1
        found = [s.timestamp for one in decode(1, body, 1 << 26).timeseries for s in one.samples]
        return Reply(400, "out of bounds") if min(found) < oldest_ms else await received(body)

    context = Context(tmp_path, fleet, ManualClock(NOW))
    receiver = RemoteReceiver("r", "http://r", metrics=("gpuwarden_waste_time_ratio",))
    drain(sender_of(context, post, receiver))
    state = context.states["r"]
    times = [t for kept in received.samples.values() for t in kept]
    last_ms = context.minutes("r", "waste_metrics").position_ms
    assert {*times} == {*range(oldest_ms, last_ms + 1, MINUTE_MS)}
    assert state.sent == len(times)
    assert set(state.refused) == {"too_old"}
    assert requests < 60


def test_minutes_that_are_too_old_are_counted_and_named(
    tmp_path: Path, fleet: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(
        datetime.fromtimestamp(FIRST_MS / 1000, UTC) + timedelta(hours=24, minutes=7.6)
    )
    context = Context(tmp_path, fleet, clock)
    receiver = RemoteReceiver("r", "http://r", metrics=("ALERTS",))
    asyncio.run(sender_of(context, Received(), receiver).turn())
    assert context.states["r"].skipped_minutes == 7
    (record,) = caplog.records
    assert (vars(record)["source"], vars(record)["minutes"]) == ("alerts_metrics", 7)


def test_two_receivers_share_a_query(tmp_path: Path, fleet: Any) -> None:
    context = Context(tmp_path, fleet, ManualClock(NOW))
    queries = SourceQueries(context, 2)

    async def both() -> None:
        for _ in range(2):
            await queries.rows("alerts_metrics", FIRST_MS, 5)
        await queries.rows("alerts_metrics", FIRST_MS + MINUTE_MS, 5)

    asyncio.run(both())
    assert len(context.asked) == 2


_MS = st.integers(0, 100 * 24 * 60).map(lambda minute: minute * MINUTE_MS)


@given(_MS, st.none() | st.integers(1, MINUTES_MAX), st.integers(0, 10**10), st.integers(0, 10**10), st.integers(1, MINUTES_MAX))  # fmt: skip
def test_no_minute_is_left_out_or_early(position_ms, sending, now_ms, started_ms, most) -> None:
    sending_ms = None if sending is None else position_ms + sending * MINUTE_MS
    times = MinuteTimes(now_ms, started_ms, 30_000)
    due_ms, skipped, sent = times.due_ms, 0, []
    while (span := next_span(position_ms, sending_ms, times, most)) is not None:
        assert span.until_ms <= due_ms
        assert span.until_ms + 30_000 <= now_ms and started_ms + 30_000 <= now_ms
        assert 0 < span.until_ms - span.after_ms <= most * MINUTE_MS
        if position_ms > due_ms + AHEAD_MS:
            position_ms = span.after_ms
        assert span.after_ms == position_ms + span.skipped * MINUTE_MS
        if span.skipped:
            assert span.after_ms == due_ms - CATCH_UP_MS
        if span.is_repeated:
            assert sending_ms is not None and span.until_ms <= sending_ms
        skipped += span.skipped
        sent.append(span)
        position_ms, sending_ms = span.until_ms, None
        if len(sent) > 3:
            return  # a day of minutes takes long
    assert position_ms >= due_ms or not due_ms


def test_the_position_is_on_disk_and_those_of_other_receivers_are_deleted(tmp_path: Path) -> None:
    begin_minutes(tmp_path, ["a", "b"])
    path = minutes_folder(tmp_path, "a") / "s.json"
    first = MinuteFile(path, 60_000)
    first.note_sending(180_000)
    again = MinuteFile(path, 0)
    assert (again.position_ms, again.sending_ms) == (60_000, 180_000)
    again.confirm(180_000)
    assert (MinuteFile(path, 0).position_ms, MinuteFile(path, 0).sending_ms) == (180_000, None)
    begin_minutes(tmp_path, ["b"])
    assert not path.exists()
    begin_minutes(tmp_path, ["a", "b"])
    assert MinuteFile(path, 240_000).position_ms == 240_000
