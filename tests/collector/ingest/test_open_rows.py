"""Parts of rows become the same rows in any order, grouping and repetition."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collector.ingest import open_rows
from gpuwarden_collector.ingest.open_rows import TIMES_MAX, ClosedTimes, Device, OpenRows
from gpuwarden_collector.ingest.port import RowPart

NOW = 1_700_000_000_000


def part(gpu: str, ts_ms: int, **cells: float) -> RowPart:
    return RowPart("gpu_samples", "n1", gpu, ts_ms, cells, {"gpu_uuid": gpu})


def closed(rows: OpenRows, now_ms: int) -> dict[tuple[str, int], dict[str, float]]:
    """The rows that are due, closed."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for due in list(rows.due(now_ms)):
        at = due.device.key, due.ts_ms
        assert at not in found
        found[at] = dict(due.row.cells)
        rows.close(due)
    return found


samples = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.sampled_from("uvwx")),
    min_size=1,
    unique=True,
)


@settings(deadline=None)
@given(samples, st.randoms(use_true_random=False))
def test_any_grouping_order_and_repetition_give_the_same_rows(
    found: list[tuple[str, int, str]], rng: random.Random
) -> None:
    value = {one: float(number) for number, one in enumerate(found)}
    wanted: dict[Any, dict[str, float]] = {}
    for gpu, at, name in found:
        wanted.setdefault((gpu, NOW + at), {})[name] = value[gpu, at, name]
    sent = [*found, *rng.choices(found, k=rng.randrange(8))]
    rng.shuffle(sent)
    rows, number, now_ms = OpenRows(10_000), 0, NOW
    counts: Counter[str] = Counter()
    while sent:
        size = rng.randrange(1, len(sent) + 1)
        taken, sent = sent[:size], sent[size:]
        number += 1
        now_ms += rng.randrange(9_000)
        parts = [part(gpu, NOW + at, **{name: value[gpu, at, name]}) for gpu, at, name in taken]
        counts += rows.take(number, "", parts, now_ms)
    # Each request comes within the time that a row is open after the one before, or is late and counted.
    made = closed(rows, now_ms + 700_000)
    assert rows.rows == 0
    assert made == wanted
    assert counts["joined"] == len(found)
    assert counts["late"] == 0


def test_a_part_of_a_closed_row_is_late_and_changes_nothing() -> None:
    rows = OpenRows(1_000)
    rows.take(1, "", [part("a", NOW, u=1.0)], NOW)
    assert closed(rows, NOW + 999) == {}
    assert closed(rows, NOW + 1_000) == {("a", NOW): {"u": 1.0}}
    assert rows.take(2, "", [part("a", NOW, u=2.0, v=3.0)], NOW + 1_001) == {"late": 2}
    assert closed(rows, NOW + 900_000) == {}


def test_the_first_of_two_readings_with_one_name_counts() -> None:
    rows = OpenRows(1_000)
    rows.take(1, "", [part("a", NOW, u=1.0)], NOW)
    assert rows.take(2, "", [part("a", NOW, u=2.0, v=3.0)], NOW) == {"repeated": 1, "joined": 1}
    assert closed(rows, NOW + 1_000) == {("a", NOW): {"u": 1.0, "v": 3.0}}


def test_rows_of_a_device_are_closed_in_the_order_of_their_times() -> None:
    rows = OpenRows(1_000)
    rows.take(1, "", [part("a", NOW + 15_000, u=2.0)], NOW)
    rows.take(2, "", [part("a", NOW, u=1.0)], NOW + 500)
    # The later row has waited long enough, the one before it has not.
    assert closed(rows, NOW + 1_000) == {}
    assert [*closed(rows, NOW + 1_500)] == [("a", NOW), ("a", NOW + 15_000)]


@pytest.mark.parametrize("is_restored", [True, False])
def test_rows_of_a_backlog_and_of_an_earlier_run_stay_open_longer(is_restored: bool) -> None:
    rows = OpenRows(1_000)
    at = NOW if is_restored else NOW - 300_000
    rows.take(1, "", [part("a", at, u=1.0)], NOW, is_restored=is_restored)
    assert closed(rows, NOW + 59_999) == {}
    assert closed(rows, NOW + 60_000)


def test_a_sender_that_goes_on_keeps_a_row_open_for_ten_minutes_at_most() -> None:
    rows = OpenRows(10_000)
    for second in range(600):
        rows.take(second, "", [part("a", NOW, **{f"u{second}": 1.0})], NOW + second * 1_000)
    assert closed(rows, NOW + 600_000)


def test_a_clock_that_is_set_back_keeps_no_row_open() -> None:
    rows = OpenRows(10_000)
    rows.take(1, "", [part("a", NOW, u=1.0)], NOW)
    assert closed(rows, NOW - 3_600_000)


def test_times_before_the_forgotten_ones_are_late() -> None:
    times = ClosedTimes()
    gone = [ts for number in range(3 * TIMES_MAX) for ts in times.add(number)]
    assert len(gone) >= 3 * TIMES_MAX - 2 * TIMES_MAX
    assert all(ts in times for ts in range(3 * TIMES_MAX))
    assert 3 * TIMES_MAX not in times


def test_requests_are_unused_once_their_last_row_is_closed() -> None:
    rows = OpenRows(1_000)
    rows.take(1, "", [part("a", NOW, u=1.0), part("b", NOW + 1, u=1.0)], NOW)
    assert rows.is_used(1)
    unused = [one for due in list(rows.due(NOW + 5_000)) for one in rows.close(due)[1]]
    assert unused == [1]
    assert not rows.is_used(1)


def test_more_devices_than_fit_are_crowded_out_until_silent_ones_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_rows, "DEVICES_MAX", 2)
    rows = OpenRows(1_000)
    rows.take(1, "", [part("a", NOW, u=1.0), part("b", NOW, u=1.0)], NOW)
    assert rows.take(2, "", [part("c", NOW, u=1.0)], NOW) == {"crowded": 1}
    closed(rows, NOW + 1_000)
    later = NOW + open_rows.FORGET_MS + 60_000
    assert rows.take(3, "", [part("c", later, u=1.0)], later) == {"joined": 1}
    assert Device("", "n1", "gpu_samples", "a") in rows.forgotten


def test_a_node_may_report_so_many_gpus_at_a_time_and_others_once_those_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_rows, "NODE_GPUS_MAX", 2)
    rows = OpenRows(1_000)
    for gpu in "abab":
        assert set(rows.take(1, "", [part(gpu, NOW, u=1.0)], NOW)) <= {"joined", "repeated"}
    assert rows.take(2, "", [part("c", NOW, u=1.0)], NOW) == {"too_many_gpus": 1}
    other = part("c", NOW, u=1.0)
    elsewhere = RowPart(other.table, "n2", other.key, NOW, other.cells, other.facts)
    assert rows.take(3, "", [elsewhere], NOW) == {"joined": 1}
    later = NOW + 600_000
    assert rows.take(4, "", [part("b", later - 1, u=1.0)], later - 1) == {"joined": 1}
    assert rows.take(5, "", [part("c", later, u=1.0)], later) == {"joined": 1}, "a is gone"
    assert rows.take(6, "", [part("a", later, u=1.0)], later) == {"too_many_gpus": 1}


def test_a_row_has_a_bounded_number_of_readings_and_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_rows, "CELLS_MAX", 3)
    monkeypatch.setattr(open_rows, "FACTS_MAX", 3)
    rows = OpenRows(1_000)
    cells = {f"u{number}": 1.0 for number in range(5)}
    facts = {f"owner:{number}": "" for number in range(9)}
    one = RowPart("gpu_samples", "n1", "a", NOW, cells, facts)
    assert rows.take(1, "", [one], NOW) == {"joined": 3, "crowded": 2}
    (due,) = rows.due(NOW + 1_000)
    assert len(due.row.facts) == 3
