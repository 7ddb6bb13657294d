"""Receivers get every committed row in the order of commits, behind a position that survives kills."""

import itertools
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import SystemClock
from gpuwarden_collector.forwarding.feed import SegmentFeed, begin_positions, position_path
from gpuwarden_collector.forwarding.port import (
    CommitPosition,
    CommittedRows,
    ForwardingPlan,
    ReceiverState,
)
from gpuwarden_collector.forwarding.process import ForwardingSettings, tidy
from gpuwarden_collector.storage.kept_segments import (
    begin_keeping,
    delete_or_keep,
    end_keeping,
    kept_bytes,
)
from gpuwarden_collector.storage.segment import FOLDER, SCHEMAS, Frame, read_header, segment_path
from gpuwarden_collector.storage.segment_log import SegmentLog

TABLES = frozenset({"gpu_samples"})
BEGAN = datetime(2026, 3, 1)  # noqa: DTZ001  as stored


class Store:
    """A log that numbers its rows, and one receiver's feed."""

    def __init__(self, folder: Path, receivers: tuple[str, ...] = ("r",)) -> None:
        self.folder = folder
        self.receivers = receivers
        self.rows = 0
        self.sealed = 0
        self.log = SegmentLog(folder)
        self.log.begin(0)
        begin_keeping(folder)
        header = read_header(segment_path(folder / FOLDER, self.log.segment_number))
        now = CommitPosition(self.log.segment_number, self.log.end, header.salt)
        begin_positions(folder, receivers, now)
        self.state = ReceiverState()

    def feed(self, name: str = "r") -> SegmentFeed:
        return SegmentFeed(self.folder, name, TABLES, self.state)

    def append(self, rows: int = 1) -> None:
        made = [
            {
                "ts": BEGAN + timedelta(seconds=self.rows + number),
                "node": "n",
                "gpu_uuid": "G",
                "simulated": False,
            }
            for number in range(rows)
        ]
        self.rows += rows
        table = pa.Table.from_pylist(made, schema=SCHEMAS["gpu_samples"])
        other = pa.Table.from_pylist(
            [{"ts": BEGAN, "node": "n", "simulated": False}], schema=SCHEMAS["host_samples"]
        )
        self.log.append(Frame({"gpu_samples": table, "host_samples": other}))

    def freeze(self) -> None:
        self.log.freeze()

    def seal(self) -> None:
        """Delete or keep all frozen segments."""
        for number in range(self.sealed + 1, self.log.segment_number):
            delete_or_keep(self.folder, number)
        self.sealed = self.log.segment_number - 1

    def kill(self) -> None:
        """Without `close`, which would tidy up; the lock goes with the process."""
        self.log._segment.close()  # type: ignore[union-attr]
        self.log._segment = None
        self.log.close()
        self.log = SegmentLog(self.folder)
        self.log.begin(self.sealed)

    def close(self) -> None:
        self.log.close()


def numbers(rows: CommittedRows) -> list[int]:
    """Numbers of the rows."""
    found = rows.tables.get("gpu_samples")
    times = [] if found is None else found["ts"].to_pylist()
    return [round((at - BEGAN).total_seconds()) for at in times]


def drained(feed: SegmentFeed) -> list[int]:
    found = []
    while (rows := feed.read()) is not None:
        found += numbers(rows)
        feed.note_sending(rows)
        feed.confirm(rows)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(tmp_path)
    yield made
    made.close()


_STEPS = st.lists(
    st.sampled_from(["append", "append", "read", "confirm", "restart", "freeze", "seal", "kill"]),
    max_size=24,
)


@settings(max_examples=25, deadline=None)
@given(_STEPS)
def test_each_row_is_read_at_least_once_and_in_order_whatever_happens(steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        feed, sending, confirmed = store.feed(), None, [-1]
        try:
            for step in [*steps, "end"]:
                match step:
                    case "read" if sending is None:
                        sending = feed.read()
                        if sending is not None:
                            feed.note_sending(sending)
                    case "confirm" if sending is not None:
                        confirmed += numbers(sending)
                        feed.confirm(sending)
                        sending = None
                    case "restart" | "end":
                        feed, repeated = store.feed(), sending
                        sending = None
                        found: list[int] = []
                        # After a kill, its newest frame is in another segment.
                        while repeated is not None and len(found) < len(numbers(repeated)):
                            again = feed.read()
                            assert again is not None
                            assert again.is_repeated
                            found += numbers(again)
                            feed.confirm(again)
                        assert repeated is None or found == numbers(repeated)
                        confirmed += found
                    case "append" | "freeze" | "seal" | "kill":
                        getattr(store, step)()
            confirmed += drained(feed)
        finally:
            store.close()
        # The newest frame before a kill is read twice, and nothing is skipped.
        assert sorted(set(confirmed)) == list(range(-1, store.rows))
        assert all(after <= before + 1 for before, after in itertools.pairwise(confirmed))
        assert store.state.lost_rows == 0


def test_a_later_run_repeats_exactly_what_was_being_sent(store) -> None:
    store.append()
    feed = store.feed()
    rows = feed.read()
    assert rows is not None and not rows.is_repeated
    feed.note_sending(rows)
    store.append()
    again = store.feed()
    first, second = again.read(), again.read()
    assert first is not None and second is not None
    assert (numbers(first), first.is_repeated) == ([0], True)
    assert (numbers(second), second.is_repeated) == ([1], False)


def test_rows_before_the_position_can_be_read_again(store) -> None:
    for _ in range(3):
        store.append(2)
    drained(store.feed())
    store.append()
    found = [
        CommittedRows(tables, CommitPosition(0, 0, 0), False, False)
        for tables in store.feed().earlier()
    ]
    assert [number for rows in found for number in numbers(rows)] == [0, 1, 2, 3, 4, 5]


def test_a_new_receiver_begins_now_and_a_removed_one_is_forgotten(store) -> None:
    store.append()
    header = read_header(segment_path(store.folder / FOLDER, store.log.segment_number))
    now = CommitPosition(store.log.segment_number, store.log.end, header.salt)
    begin_positions(store.folder, ["r", "new"], now)
    store.append()
    assert drained(store.feed("new")) == [1]
    assert drained(store.feed("r")) == [0, 1]
    begin_positions(store.folder, ["new"], now)
    assert not position_path(store.folder, "r").exists()


def test_sealed_segments_are_kept_until_all_receivers_have_them(tmp_path: Path) -> None:
    store = Store(tmp_path, ("a", "b"))
    for _ in range(3):
        store.append(2)
        store.freeze()
    store.seal()
    feeds = {name: store.feed(name) for name in ("a", "b")}
    states = {name: ReceiverState() for name in feeds}
    plan = ForwardingPlan(("a", "b"), 1 << 30, None)
    chosen = ForwardingSettings(tmp_path, plan, "", 0, SystemClock(), 0, BEGAN)
    drained(feeds["a"])
    tidy(chosen, feeds, states)
    assert len(kept_bytes(tmp_path)) == 3
    assert drained(feeds["b"]) == [*range(6)]
    tidy(chosen, feeds, states)
    assert not kept_bytes(tmp_path)
    assert states["a"].waiting_bytes == 0
    store.close()


def test_what_does_not_fit_is_deleted_counted_and_named(tmp_path: Path, caplog: Any) -> None:
    store = Store(tmp_path)
    for _ in range(3):
        store.append(5)
        store.freeze()
    store.seal()
    feed = store.feed()
    sizes = kept_bytes(tmp_path)
    plan = ForwardingPlan(("r",), sum(sizes.values()) - 1, None)
    chosen = ForwardingSettings(tmp_path, plan, "", 0, SystemClock(), 0, BEGAN)
    tidy(chosen, {"r": feed}, {"r": store.state})
    assert store.state.lost_rows == 5, "rows of the tables that the receiver gets"
    (record,) = caplog.records
    assert (vars(record)["receiver"], vars(record)["rows"]) == ("r", 5)
    assert "keep_bytes_max" in vars(record)["reason"]
    assert drained(feed) == [*range(5, 15)]
    store.close()


def test_without_receivers_nothing_is_kept(store) -> None:
    store.append()
    store.freeze()
    store.seal()
    assert end_keeping(store.folder) == 1
    store.append()
    store.freeze()
    store.seal()
    assert not kept_bytes(store.folder)
    assert end_keeping(store.folder) == 0


def test_a_segment_that_cannot_be_read_is_skipped_and_named(store, caplog: Any) -> None:
    store.append()
    store.freeze()
    store.append()
    segment_path(store.folder / FOLDER, 1).write_bytes(b"no segment")
    assert drained(store.feed()) == [1]
    assert store.state.lost_rows == 1
    assert [vars(record)["segment"] for record in caplog.records] == [1]
