"""Events of the agent, and how often they are sent."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden_agent.events.recorder import EventRecorder, PendingCount, tally
from gpuwarden_agent.queue.rows import impossible_columns


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def recorder(manual_clock: ManualClock, rows: list[dict[str, Any]]) -> EventRecorder:
    return EventRecorder("n1", manual_clock, rows.append, simulated=False)


def test_an_event_is_a_complete_row(
    recorder: EventRecorder, rows: list[dict[str, Any]], manual_clock: ManualClock
) -> None:
    recorder.record("probe_stuck", "gpu3: hangs", gpu=3, gpu_uuid="GPU-3", details={"a": 1})
    (row,) = rows
    assert impossible_columns("events", row) == ()
    assert row["ts"] == to_ms(manual_clock.now())
    assert (row["node"], row["kind"], row["severity"]) == ("n1", "probe_stuck", "warning")
    assert json.loads(row["details"]) == {"a": 1}


def test_two_events_of_a_kind_at_one_instant_keep_keys_of_their_own(
    recorder: EventRecorder, rows: list[dict[str, Any]]
) -> None:
    for gpu in range(8):
        recorder.record("probe_stuck", "hangs", gpu=gpu)
    recorder.record("probe_recovered", "back")
    keys = {(row["ts"], row["kind"]) for row in rows}
    assert len(keys) == 9
    assert rows[-1]["ts"] == rows[0]["ts"]


def test_a_clock_set_back_does_not_hold_events_in_the_old_time(
    recorder: EventRecorder, rows: list[dict[str, Any]], manual_clock: ManualClock
) -> None:
    recorder.record("probe_stuck", "before")
    manual_clock.step(-3600)
    recorder.record("probe_stuck", "after")
    assert rows[1]["ts"] == to_ms(manual_clock.now())


def test_what_happens_in_masses_is_told_at_once_and_then_once_a_while(
    recorder: EventRecorder, manual_clock: ManualClock
) -> None:
    told: list[int] = []
    for _ in range(130):
        recorder.count("missed", 1, every_s=60, write=told.append)
        manual_clock.advance(1)
    assert told == [1, 60, 60]
    manual_clock.advance(60)
    recorder.flush()
    recorder.flush()
    assert told == [1, 60, 60, 9]


def test_what_is_pending_is_told_at_the_end_although_it_is_not_due(recorder: EventRecorder) -> None:
    told: list[int] = []
    for _ in range(3):
        recorder.count("missed", 1, every_s=60, write=told.append)
    recorder.flush()
    assert told == [1]
    recorder.flush(is_last=True)
    recorder.flush(is_last=True)
    assert told == [1, 2]


@settings(max_examples=50)
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.floats(0, 100)), max_size=50))
def test_a_tally_loses_and_invents_nothing(steps: list[tuple[int, float]]) -> None:
    state, now_s, reports = PendingCount(), 0.0, []
    for more, passed_s in steps:
        now_s += passed_s
        state, due = tally(state, more, now_s, 60)
        if due:
            reports.append((now_s, due))
    assert sum(due for _, due in reports) + state.pending == sum(more for more, _ in steps)
    assert all(b[0] - a[0] >= 60 for a, b in itertools.pairwise(reports))
