"""Batches hold only what a collector admits, and are the same for the same rows."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import from_ms
from gpuwarden.metrics import METRICS
from gpuwarden_collector.ingest.admit import Window, checked
from gpuwarden_collector.ingest.decode import Decoded, RefusedBody, decode
from gpuwarden_importing import batches as batches_of
from gpuwarden_importing.batches import Batcher, digest
from gpuwarden_importing.model import ImportTally

NOW_MS = 1_780_000_000_000


def row(**values):
    return {
        "ts": NOW_MS - 1000,
        "node": "n1",
        "gpu": 0,
        "gpu_uuid": "GPU-1",
        "util_percent": 5.0,
    } | values


def batches(*rows, table="gpu_samples"):
    batcher, tally = Batcher(NOW_MS), ImportTally()
    made = [*batcher.add([(table, row) for row in rows], tally), *batcher.flush()]
    return made, tally


def rows_of(made):
    return [row for batch in made for row in batch.data.to_pylist()]


def test_rows_keep_their_values_and_are_not_simulated() -> None:
    (only,) = rows_of(batches(row(memory_used_bytes=2**40))[0])
    assert only == {
        "ts": from_ms(NOW_MS - 1000).replace(tzinfo=None), "node": "n1", "gpu": 0,
        "gpu_uuid": "GPU-1", "simulated": False, "util_percent": 5.0, "memory_used_bytes": 2**40,
    }  # fmt: skip


def test_impossible_values_go_and_are_counted() -> None:
    made, tally = batches(
        row(util_percent=101.0, power_watts=5.0),
        row(ts=NOW_MS - 1, util_percent=float("nan"), power_watts=5.0),
    )
    assert [r.get("util_percent") for r in rows_of(made)] == [None, None]
    assert tally.skipped["gpu_samples.util_percent values with an impossible value"].count == 2


def test_rows_of_the_future_without_a_key_or_said_twice_go_and_are_counted() -> None:
    made, tally = batches(
        row(),
        row(),
        row(util_percent=6.0),
        row(ts=NOW_MS + 1),
        row(gpu_uuid=None),
        row(gpu_uuid="", ts=1),
    )
    assert len(rows_of(made)) == 1
    assert {reason: s.count for reason, s in tally.skipped.items()} == {
        "gpu_samples rows in the future, or before 1970": 1,
        "gpu_samples rows without gpu_uuid": 1,
        "gpu_samples rows whose gpu_uuid is empty or longer than 256 bytes": 1,
        "gpu_samples rows with a repeated key": 1,
    }
    assert tally.ignored["gpu_samples rows that come twice"].count == 1


def test_a_row_that_says_nothing_is_none() -> None:
    made, _ = batches(row(util_percent=None), row(ts=1))
    assert len(rows_of(made)) == 1


def test_two_equal_events_are_both_kept() -> None:
    event = {
        "ts": 1,
        "node": "n1",
        "kind": "xid",
        "severity": "critical",
        "message": "m",
        "gpu": None,
    }
    made, _ = batches(event, event, table="events")
    assert len(rows_of(made)) == 2


def test_the_same_rows_make_the_same_batches_however_they_come(monkeypatch) -> None:
    monkeypatch.setattr(batches_of, "BATCH_ROWS", 100)
    many = [row(ts=1000 * n) for n in range(110)]
    together, apart, tally = Batcher(NOW_MS), Batcher(NOW_MS), ImportTally()
    named = [("gpu_samples", each) for each in many]
    first = [*together.add(named, tally), *together.flush()]
    pieces = [named[:7], named[7:60], named[60:]]
    second = [batch for piece in pieces for batch in apart.add(piece, tally)]
    second += apart.flush()
    assert [b.data.num_rows for b in first] == [100, 10]
    assert [digest(b.body()) for b in first] == [digest(b.body()) for b in second]


ANYTHING = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
)


@settings(max_examples=50)
@given(st.lists(st.fixed_dictionaries(
    {"ts": ANYTHING, "node": ANYTHING, "gpu_uuid": ANYTHING, "gpu": ANYTHING},
    optional={m.name: ANYTHING for m in METRICS["gpu_samples"][:12]}), min_size=1, max_size=6))  # fmt: skip
def test_whatever_a_reader_gives_the_collector_admits_what_is_left(rows) -> None:
    made, _ = batches(*rows)
    for batch in made:
        if batch.data.num_rows:
            decoded = decode(batch.body(), "")
            assert isinstance(decoded, Decoded), decoded
            assert not isinstance(checked(decoded.tables, Window(0, NOW_MS)), RefusedBody)
