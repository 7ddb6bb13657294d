"""Requests survive the end of the process, and their rows are made once."""

import json
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.ingest.open_rows import Device, OpenRows
from gpuwarden_collector.ingest.port import Before, MappedRequest, RowPart
from gpuwarden_collector.ingest.received_store import FILE_NAME, ClosedBatch, ReceivedStore

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def request_of(samples: list[tuple[str, int, str]], salt: int = 0) -> MappedRequest:
    parts: dict[tuple[str, int], RowPart] = {}
    for gpu, at, name in samples:
        where = gpu, to_ms(NOW) + at
        part = parts.setdefault(where, RowPart("gpu_samples", "n1", *where, {}, {}))
        part.cells[name] = float(at)
    return MappedRequest(repr((samples, salt)).encode(), list(parts.values()))


def close_due(store: ReceivedStore, clock: ManualClock) -> None:
    due = list(store.open_rows.due(to_ms(clock.now())))
    rows = [[one.device.key, one.ts_ms, sorted(one.row.cells)] for one in due]
    if due:
        body = json.dumps(rows).encode()
        carried = {due[0].device: Before(due[0].ts_ms, due[0].row.cells)}
        store.commit([ClosedBatch("", "n1", len(rows), body)], due, carried)


def batches(store: ReceivedStore) -> Iterator[list[object]]:
    while found := store.oldest((), 10):
        for batch in found:
            yield from json.loads(batch.body)
        store.delivered(found)


samples_of = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.sampled_from("uvw")),
    min_size=1,
    unique=True,
)


@settings(deadline=None, max_examples=20)
@given(samples_of, st.randoms(use_true_random=False))
def test_rows_are_the_same_with_ends_of_the_process_anywhere(
    samples: list[tuple[str, int, str]], rng: random.Random
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        clock = ManualClock(NOW)
        store = ReceivedStore(folder, OpenRows(10_000), clock)
        left = [*samples, *rng.choices(samples, k=3)]
        rng.shuffle(left)
        again = []
        while left:
            size = rng.randrange(1, len(left) + 1)
            again.append(request_of(left[:size]))
            left = left[size:]
            store.add([(rng.choice(again), ""), (again[-1], "")])
            if rng.random() < 0.5:  # as after a kill: nothing is closed
                store = ReceivedStore(folder, OpenRows(10_000), clock)
        clock.advance(61)
        close_due(store, clock)
        store = ReceivedStore(folder, OpenRows(10_000), clock)
        # What was sent before is sent again, in requests as they were and in others.
        counts = store.add([(one, "") for one in again])
        assert {name for count in counts for name in count} == {"again"}
        (late,) = store.add([(request_of(samples, salt=1), "")])
        assert late == {"late": len(samples)}
        clock.advance(61)
        close_due(store, clock)
        wanted: dict[tuple[str, int], set[str]] = {}
        for gpu, at, name in samples:
            wanted.setdefault((gpu, to_ms(NOW) + at), set()).add(name)
        made = sorted(batches(store))
        assert made == sorted([gpu, ts, sorted(names)] for (gpu, ts), names in wanted.items())
        assert store.bytes_waiting == 0
        store.close()
    finally:
        shutil.rmtree(folder)


def test_batches_of_a_node_come_in_order_and_what_the_next_row_needs_is_kept(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW)
    store = ReceivedStore(tmp_path, OpenRows(1_000), clock)
    for at in range(3):
        store.add([(request_of([("a", at, "u")]), "")])
        clock.advance(2)
        close_due(store, clock)
    (first,) = store.oldest((), 10)
    assert json.loads(first.body)[0][1] == to_ms(NOW)
    assert store.oldest([("", "n1")], 10) == []
    store.close()
    store = ReceivedStore(tmp_path, OpenRows(1_000), clock)
    assert len(list(batches(store))) == 3
    before = store.before(Device("", "n1", "gpu_samples", "a"))
    assert before == Before(to_ms(NOW) + 2, {"u": 2.0})
    store.close()


def test_a_damaged_file_is_set_aside_and_a_newer_one_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not SQLite at all" * 100)
    store = ReceivedStore(tmp_path, OpenRows(1_000), ManualClock(NOW))
    store.close()
    assert len(list(tmp_path.glob(f"{FILE_NAME}.corrupt-*"))) == 1
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    with pytest.raises(StartError, match="has version 2, and this collector knows 1"):
        ReceivedStore(tmp_path, OpenRows(1_000), ManualClock(NOW))
